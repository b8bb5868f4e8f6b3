"""ELF32 RISC-V executables: what to load, where to start, and what the addresses are called."""

import re
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pyv_ext import elf_file as e
from pyv_ext.bus.bus import ADDRESS_SPACE, Bus
from pyv_ext.elf_file import ElfFile, SymbolEntry
from pyv_ext.errors import PyvExtError


class ElfError(PyvExtError):
    """The file is not a program that this hart can run; one line says why and what to do."""


class Segment(NamedTuple):
    """Bytes to load at a physical address, followed by zeros up to `size`."""

    address: int
    data: bytes
    size: int
    executable: bool
    """Its flags say so, or it holds a section of code: linker scripts get the flags wrong, those of riscv-tests do."""

    @property
    def end(self) -> int:
        return self.address + self.size


class Symbol(NamedTuple):
    name: str
    address: int
    size: int


class Note(NamedTuple):
    """One entry of a note section; `desc` is for whoever owns it to interpret."""

    owner: str
    type: int
    desc: bytes


@dataclass(frozen=True)
class Program:
    """An executable, read completely."""

    name: str
    entry: int
    segments: tuple[Segment, ...]
    symbols: dict[str, Symbol]
    """By name; where a name occurs twice, the global symbol, else the first."""
    functions: tuple[Symbol, ...]
    """Code symbols by address, one for each address."""
    notes: tuple[Note, ...]
    extensions: tuple[str, ...] = ()
    """The base and the extensions that it was built for. Without attributes all that is known is whether C is one."""
    beside: Mapping[str, bytes] = field(default_factory=dict)
    """Files that its notes name and that are no files: name -> content."""

    def function_at(self, address: int) -> Symbol | None:
        """The function that holds `address`; one without a size reaches to the next function."""
        index = bisect_right(self.functions, address, key=lambda function: function.address) - 1
        if index < 0:
            return None
        function = self.functions[index]
        return function if not function.size or address < function.address + function.size else None


def read_elf(path: str | Path) -> Program:
    """Read an executable file; ElfError says in one line what is wrong with it."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ElfError(f"{path}: {error.strerror}: give the path of an RV32 ELF executable") from None
    return parse_elf(data, str(path))


def parse_elf(data: bytes, name: str) -> Program:
    """The program in `data`; `name` stands for it in messages."""
    if data[:4] != b"\x7fELF":
        raise ElfError(
            f"{name}: starts with {data[:4].hex() or 'nothing'}, an ELF file with 7f454c46: give an ELF file"
        )
    try:
        _check_ident(data, name)
        elf = ElfFile(data)
        _check_header(elf.header, name)
        segments = tuple(_segments(elf, name))
        symbols = list(_symbols(elf))
        program = Program(
            name=name,
            entry=elf.header.entry,
            segments=segments,
            symbols=_by_name(symbols),
            functions=_functions(elf, symbols),
            notes=tuple(_notes(elf)),
            extensions=_extensions(elf),
        )
    except (ValueError, struct.error) as error:
        raise ElfError(f"{name}: truncated or damaged ELF file ({error}): rebuild or copy it again") from None
    if not any(s.executable and s.address <= program.entry < s.end for s in segments):
        raise ElfError(
            f"{name}: entry {program.entry:#x} lies in no executable segment: "
            "set it with ENTRY(symbol) in the linker script"
        )
    return program


def load(program: Program, bus: Bus) -> None:
    """Write all segments into memory; ElfError where there is none."""
    for segment in program.segments:
        ram = bus.ram_at(segment.address, segment.size)
        if ram is None or not ram.writable:
            raise ElfError(
                f"{program.name}: segment {segment.address:#x}..{segment.end:#x} lies outside writable memory: "
                "link it into RAM or enlarge the RAM"
            )
        bus.poke(segment.address, segment.data + bytes(segment.size - len(segment.data)))


def _check_ident(data: bytes, name: str) -> None:
    if len(data) < e.HEADER.size:
        raise ValueError(f"{len(data)} bytes, of which the header would take {e.HEADER.size}")
    bits = e.CLASSES.get(data[4], 0)
    if bits != 32:
        raise ElfError(f"{name}: ELF{bits or '?'}, this hart runs ELF32: build with -march=rv32... -mabi=ilp32")
    if data[5] != e.LITTLE_ENDIAN:
        raise ElfError(f"{name}: big-endian, this hart is little-endian: build with -mlittle-endian")


def _check_header(header: e.Header, name: str) -> None:
    if header.machine != e.EM_RISCV:
        raise ElfError(
            f"{name}: machine {header.machine}, expected {e.EM_RISCV} (RISC-V): build with a RISC-V compiler"
        )
    kind = e.TYPES.get(header.type, header.type)
    if kind != "ET_EXEC":
        raise ElfError(f"{name}: type {kind}, expected ET_EXEC: link it with -static and without -pie or -r")


def _segments(elf: ElfFile, name: str) -> Iterator[Segment]:
    found = False
    code = [section for section in elf.sections if section.flags & e.SHF_EXECINSTR]
    for segment in elf.segments:
        if segment.type != e.PT_LOAD:
            continue
        address, in_file, size, data = segment.paddr, segment.filesz, segment.memsz, elf.loaded(segment)
        if len(data) < in_file:
            raise ElfError(
                f"{name}: truncated: segment at {address:#x} has {len(data)} of {in_file} bytes: copy it again"
            )
        if in_file > size or address + size > ADDRESS_SPACE:
            raise ElfError(
                f"{name}: segment at {address:#x} with {in_file} bytes in the file and {size} in memory: the file's "
                "must fit into the memory's and these into 32-bit addresses: rebuild it"
            )
        if size:
            found = True
            executable = bool(segment.flags & e.PF_X) or any(map(segment.holds, code))
            yield Segment(address, data, size, executable)
    if not found:
        raise ElfError(f"{name}: nothing to load: link it into an executable with code")


def _symbols(elf: ElfFile) -> Iterator[SymbolEntry]:
    """Defined symbols, without the assembler's own (files, sections, `$x` and `.L`)."""
    for symbol in elf.symbols():
        named = symbol.name and not symbol.name.startswith(("$", ".L"))
        if named and symbol.section != e.SHN_UNDEF and symbol.type not in (e.STT_FILE, e.STT_SECTION):
            yield symbol


def _by_name(symbols: Iterable[SymbolEntry]) -> dict[str, Symbol]:
    found: dict[str, Symbol] = {}
    for symbol in symbols:
        if symbol.bind == e.STB_GLOBAL or symbol.name not in found:
            found[symbol.name] = Symbol(symbol.name, symbol.value, symbol.size)
    return found


def _functions(elf: ElfFile, symbols: Iterable[SymbolEntry]) -> tuple[Symbol, ...]:
    """Functions, and labels of hand-written assembly: untyped global symbols in executable sections."""
    code = {index for index, section in enumerate(elf.sections) if section.flags & e.SHF_EXECINSTR}
    best: dict[int, tuple[bool, bool, str]] = {}
    found: dict[int, Symbol] = {}
    for symbol in symbols:
        typed = symbol.type == e.STT_FUNC
        label = symbol.type == e.STT_NOTYPE and symbol.bind == e.STB_GLOBAL and symbol.section in code
        rank = (not typed, not symbol.size, symbol.name)
        if (typed or label) and (symbol.value not in best or rank < best[symbol.value]):
            best[symbol.value] = rank
            found[symbol.value] = Symbol(symbol.name, symbol.value, symbol.size)
    return tuple(found[address] for address in sorted(found))


def _notes(elf: ElfFile) -> Iterator[Note]:
    """The note sections' entries."""
    for section in elf.of_type(e.SHT_NOTE):
        data, at = elf.content(section), 0
        while at < len(data):
            name_size, desc_size, kind = struct.unpack_from("<III", data, at)
            name_at = at + 12
            desc_at = name_at + _aligned(name_size)
            at = desc_at + _aligned(desc_size)
            if at > len(data):
                raise ValueError("a note is longer than its section")
            owner = data[name_at : name_at + name_size].rstrip(b"\0").decode("ascii")
            yield Note(owner, kind, data[desc_at : desc_at + desc_size])


def _extensions(elf: ElfFile) -> tuple[str, ...]:
    architecture = elf.architecture()
    if architecture is None:
        return ("i", "c") if elf.header.flags & e.EF_RISCV_RVC else ()
    names = architecture.lower().removeprefix("rv32").split("_")
    return tuple(re.sub(r"\d+p\d+$", "", name) for name in names)


def _aligned(size: int) -> int:
    return (size + 3) & ~3
