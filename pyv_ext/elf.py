"""ELF32 RISC-V executables: what to load, where to start, and what the addresses are called."""

import re
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from pyv_ext.bus import ADDRESS_SPACE, Bus
from pyv_ext.errors import PyvExtError

PF_X = 1
SHF_EXECINSTR = 4
EF_RISCV_RVC = 1


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
        elf = ELFFile(BytesIO(data))
        _check_header(elf, name)
        segments = tuple(_segments(elf, name))
        program = Program(
            name=name,
            entry=elf["e_entry"],
            segments=segments,
            symbols=_by_name(_symbols(elf)),
            functions=_functions(elf),
            notes=tuple(_notes(elf)),
            extensions=_extensions(elf),
        )
    except ElfError:
        raise
    except Exception as error:  # pyelftools raises whatever its parsing of a broken file runs into
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ElfError(f"{name}: truncated or damaged ELF file ({reason}): rebuild or copy it again") from None
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


def _check_header(elf: Any, name: str) -> None:
    header = elf.header
    if elf.elfclass != 32:
        raise ElfError(f"{name}: ELF{elf.elfclass}, this hart runs ELF32: build with -march=rv32... -mabi=ilp32")
    if not elf.little_endian:
        raise ElfError(f"{name}: big-endian, this hart is little-endian: build with -mlittle-endian")
    if header["e_machine"] != "EM_RISCV":
        raise ElfError(f"{name}: machine {header['e_machine']}, expected EM_RISCV: build with a RISC-V compiler")
    if header["e_type"] != "ET_EXEC":
        raise ElfError(
            f"{name}: type {header['e_type']}, expected ET_EXEC: link it with -static and without -pie or -r"
        )


def _segments(elf: Any, name: str) -> Iterator[Segment]:
    found = False
    code = [section for section in elf.iter_sections() if section["sh_flags"] & SHF_EXECINSTR]
    for segment in elf.iter_segments("PT_LOAD"):
        address, in_file, size = segment["p_paddr"], segment["p_filesz"], segment["p_memsz"]
        data = segment.data()
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
            executable = bool(segment["p_flags"] & PF_X) or any(map(segment.section_in_segment, code))
            yield Segment(address, data, size, executable)
    if not found:
        raise ElfError(f"{name}: nothing to load: link it into an executable with code")


def _symbols(elf: Any) -> Iterator[tuple[Symbol, Any]]:
    """Defined symbols with their table entries, without the assembler's own (files, sections, `$x` and `.L`)."""
    for section in elf.iter_sections("SHT_SYMTAB"):
        if not isinstance(section, SymbolTableSection):
            continue
        for entry in section.iter_symbols():
            if entry.name and entry["st_shndx"] != "SHN_UNDEF" and not entry.name.startswith(("$", ".L")):
                kind = entry["st_info"]["type"]
                if kind not in ("STT_FILE", "STT_SECTION"):
                    yield Symbol(entry.name, entry["st_value"], entry["st_size"]), entry


def _by_name(symbols: Iterable[tuple[Symbol, Any]]) -> dict[str, Symbol]:
    found: dict[str, Symbol] = {}
    for symbol, entry in symbols:
        if entry["st_info"]["bind"] == "STB_GLOBAL" or symbol.name not in found:
            found[symbol.name] = symbol
    return found


def _functions(elf: Any) -> tuple[Symbol, ...]:
    """Functions, and labels of hand-written assembly: untyped global symbols in executable sections."""
    code = {index for index, section in enumerate(elf.iter_sections()) if section["sh_flags"] & SHF_EXECINSTR}
    best: dict[int, tuple[tuple[bool, bool, str], Symbol]] = {}
    for symbol, entry in _symbols(elf):
        info = entry["st_info"]
        typed = info["type"] == "STT_FUNC"
        label = info["type"] == "STT_NOTYPE" and info["bind"] == "STB_GLOBAL" and entry["st_shndx"] in code
        if typed or label:
            rank = (not typed, not symbol.size, symbol.name)
            if symbol.address not in best or rank < best[symbol.address][0]:
                best[symbol.address] = (rank, symbol)
    return tuple(best[address][1] for address in sorted(best))


def _notes(elf: Any) -> Iterator[Note]:
    """The note sections' entries. pyelftools renames types as if every owner were GNU, so they are read here."""
    for section in elf.iter_sections("SHT_NOTE"):
        data, at = section.data(), 0
        while at < len(data):
            name_size, desc_size, kind = struct.unpack_from("<III", data, at)
            name_at = at + 12
            desc_at = name_at + _aligned(name_size)
            at = desc_at + _aligned(desc_size)
            if at > len(data):
                raise ValueError(f"a note in {section.name} is longer than its section")
            owner = data[name_at : name_at + name_size].rstrip(b"\0").decode("ascii")
            yield Note(owner, kind, data[desc_at : desc_at + desc_size])


def _extensions(elf: Any) -> tuple[str, ...]:
    """From the architecture string of the attributes, for example rv32i2p1_m2p0_zicsr2p0."""
    for section in elf.iter_sections("SHT_RISCV_ATTRIBUTES"):
        for part in section.iter_subsections(vendor_name="riscv"):
            for file in part.iter_subsubsections(scope="TAG_FILE"):
                for attribute in file.iter_attributes(tag="TAG_ARCH"):
                    names = attribute.value.lower().removeprefix("rv32").split("_")
                    return tuple(re.sub(r"\d+p\d+$", "", name) for name in names)
    return ("i", "c") if elf.header["e_flags"] & EF_RISCV_RVC else ()


def _aligned(size: int) -> int:
    return (size + 3) & ~3
