"""RISC-V executables, of 32 or 64 bits: segments to load, entry, symbols and sections.

`pyv_native.elf_tables` reads the records of the file.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from pyv_ext.bus.bus import ADDRESS_SPACE, Bus
from pyv_ext.errors import PyvExtError
from pyv_ext.source_lines import SECTIONS, SourceLine, SourceLines
from pyv_native.elf_tables import (
    ALLOCATED,
    EXECUTABLE,
    FLAG_COMPRESSED,
    FUNCTION,
    GLOBAL,
    LITTLE_ENDIAN,
    LOAD,
    RISCV,
    SEGMENT_EXECUTABLE,
    TYPES,
    UNTYPED,
    XLEN,
    ElfNote,
    Header,
    SectionHeader,
    SegmentHeader,
    SymbolEntry,
    Tables,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyv_ext.inlined import InlinedFunctions


class ElfError(PyvExtError):
    """Error of a file that is no program for this hart; one line has reason and remedy."""


class Segment(NamedTuple):
    """Bytes to load at a physical address, followed by zeros up to `size`."""

    address: int
    data: bytes | memoryview
    size: int
    executable: bool
    """Whether its flags say so, or it contains a section of code: linker scripts of riscv-tests set wrong flags."""
    head: int = 0
    """Bytes at its begin that are headers of the file, not of the program; linkers load them with it."""

    @property
    def end(self) -> int:
        return self.address + self.size


class Symbol(NamedTuple):
    name: str
    address: int
    size: int


@dataclass(frozen=True)
class Program:
    """Executable, read completely except for its source lines."""

    name: str
    entry: int
    segments: tuple[Segment, ...]
    symbols: dict[str, Symbol]
    """Symbols by name; among duplicates the global symbol, else the first."""
    functions: tuple[Symbol, ...]
    """Code symbols by address, one for each address."""
    notes: tuple[ElfNote, ...]
    extensions: tuple[str, ...] = ()
    """Base and extensions that it was built for. Without attributes only the use of C is known."""
    sidecars: Mapping[str, bytes] = field(default_factory=dict)
    """Content, by name, of files that its notes name and that do not exist as files."""
    code: tuple[tuple[int, int], ...] = ()
    """Address and size of each section with instructions; without sections, of each executable segment."""
    lines: SourceLines = field(default_factory=SourceLines, repr=False, compare=False)
    xlen: int = 32
    """Bits of the addresses and registers that it was built for."""

    @cached_property
    def inlined(self) -> "InlinedFunctions":
        """Inlined functions by address."""
        from pyv_ext.inlined import InlinedFunctions  # needed for profiles only

        return InlinedFunctions(self.lines)

    def function_at(self, address: int) -> Symbol | None:
        """Return the function that holds `address`, or None; a function without a size reaches to the next."""
        index = bisect_right(self.functions, address, key=lambda function: function.address) - 1
        if index < 0:
            return None
        function = self.functions[index]
        return function if not function.size or address < function.address + function.size else None

    def place(self, address: int) -> str:
        """Return function and source line of an address, as far as they are known: `main, firmware/apps/hello.c:12`."""
        function, line = self.function_at(address), self.line_of(address)
        return ", ".join([*([] if function is None else [function.name]), *([] if line is None else [str(line)])])

    def line_of(self, address: int) -> SourceLine | None:
        """Return the source line of the instruction that holds `address`; None without debug information for it."""
        return self.lines.at(address)


def read_elf(path: "str | Path") -> Program:
    """Read an executable file. ElfError, in one line, if it is damaged or no program for this hart."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise ElfError(f"{path}: {error.strerror}: give the path of a RISC-V ELF executable") from None
    return parse_elf(data, str(path))


def parse_elf(data: bytes, name: str) -> Program:
    """Parse the program in `data`; `name` stands for it in messages."""
    if data[:4] != b"\x7fELF":
        raise ElfError(
            f"{name}: starts with {data[:4].hex() or 'nothing'}, an ELF file with 7f454c46: give an ELF file"
        )
    try:
        program = _program(data, name)
    except (ValueError, ArithmeticError, LookupError, struct.error, MemoryError) as error:
        reason = ascii(str(error) or type(error).__name__)[1:-1]
        raise ElfError(f"{name}: truncated or damaged ELF file ({reason}): rebuild or copy it again") from None
    if not any(s.executable and s.address <= program.entry < s.end for s in program.segments):
        raise ElfError(
            f"{name}: entry {program.entry:#x} lies in no executable segment: "
            "set it with ENTRY(symbol) in the linker script"
        )
    return program


def load(program: Program, bus: Bus) -> None:
    """Write all segments into memory; ElfError outside of memory. Headers of the file may be outside."""
    for segment in program.segments:
        ram = bus.ram_at(segment.address, segment.size)
        if ram is None and segment.head:
            head = segment.head
            segment = Segment(segment.address + head, segment.data[head:], segment.size - head, segment.executable)
            ram = bus.ram_at(segment.address, segment.size)
        if ram is None or not ram.writable:
            raise ElfError(
                f"{program.name}: segment {segment.address:#x}..{segment.end:#x} lies outside writable memory: "
                "link it into RAM or enlarge the RAM"
            )
        bus.poke(segment.address, segment.data)
        if segment.size > len(segment.data):
            bus.clear(segment.address + len(segment.data), segment.size - len(segment.data))


def _program(data: bytes, name: str) -> Program:
    _check_ident(data, name)
    tables = Tables(data)
    _check_header(tables.header, name)
    segments = tuple(_segments(tables, name))
    symbols = list(tables.symbols())
    return Program(
        name=name,
        entry=tables.header.e_entry,
        segments=segments,
        symbols=_by_name(symbols),
        functions=_functions(tables, symbols),
        notes=tuple(tables.notes()),
        extensions=_extensions(tables),
        code=_code(tables, segments),
        lines=_lines(tables),
        xlen=XLEN[data[4]],
    )


def _check_ident(data: bytes, name: str) -> None:
    file_class, order = data[4], data[5]
    if file_class not in XLEN:
        raise ElfError(f"{name}: class {file_class}, an ELF file has one of {', '.join(map(str, XLEN))}: rebuild it")
    if order != LITTLE_ENDIAN:
        raise ElfError(f"{name}: big-endian, this hart is little-endian: build with -mlittle-endian")


def _check_header(header: Header, name: str) -> None:
    if header.e_machine != RISCV:
        raise ElfError(f"{name}: machine {header.e_machine}, expected {RISCV} (RISC-V): build with a RISC-V compiler")
    if header.e_type != EXECUTABLE:
        file_type = TYPES.get(header.e_type, header.e_type)
        raise ElfError(
            f"{name}: type {file_type}, expected {TYPES[EXECUTABLE]}: link it with -static and without -pie or -r"
        )


def _segments(tables: Tables, name: str) -> Iterator[Segment]:
    total, memory = 0, 0
    for segment in tables.segments:
        if segment.p_type != LOAD:
            continue
        address, in_file, size, data = segment.p_paddr, segment.p_filesz, segment.p_memsz, tables.contents(segment)
        if len(data) < in_file:
            raise ElfError(
                f"{name}: truncated: segment at {address:#x} has {len(data)} of {in_file} bytes: copy it again"
            )
        if in_file > size or address + size > ADDRESS_SPACE:
            raise ElfError(
                f"{name}: segment at {address:#x} with {in_file} bytes in the file and {size} in memory: the file's "
                "must fit into the memory's and these into 32-bit addresses: rebuild it"
            )
        total += in_file
        if total > 2 * tables.size:
            raise ValueError(f"segments of {total} bytes in a file of {tables.size}")
        memory += size
        if memory > ADDRESS_SPACE:
            raise ValueError(f"segments of {memory} bytes of memory, at most {ADDRESS_SPACE}")
        if size:
            executable = segment.p_flags & SEGMENT_EXECUTABLE or any(
                _loads_section(segment, code) for code in tables.code.values()
            )
            yield Segment(address, data, size, bool(executable), _head(tables, segment))
    if not memory:
        raise ElfError(f"{name}: nothing to load: link it into an executable with code")


def _head(tables: Tables, segment: SegmentHeader) -> int:
    """Return `Segment.head`: the bytes before the first section, or without sections, the headers and the zeros after
    them."""
    if segment.p_offset:
        return 0
    sections = (section for section in tables.sections if section.sh_flags & ALLOCATED)
    offsets = [section.sh_addr - segment.p_vaddr for section in sections if _loads_section(segment, section)]
    if offsets:
        return int(min(offsets))
    header, data = tables.header, tables.contents(segment)
    headers = data[max(header.e_ehsize, header.e_phoff + header.e_phnum * header.e_phentsize) :]
    return len(data) - len(headers.lstrip(b"\0"))


def _code(tables: Tables, segments: Iterable[Segment]) -> tuple[tuple[int, int], ...]:
    sections = tuple((section.sh_addr, section.sh_size) for section in tables.code.values())
    return sections or tuple((segment.address, segment.size) for segment in segments if segment.executable)


def _loads_section(segment: SegmentHeader, section: SectionHeader) -> bool:
    """Check whether the section, which is not empty, is loaded with the segment."""
    end = segment.p_vaddr + segment.p_memsz
    return bool(section.sh_size > 0 and segment.p_vaddr <= section.sh_addr <= end - section.sh_size)


def _by_name(symbols: Iterable[SymbolEntry]) -> dict[str, Symbol]:
    result: dict[str, Symbol] = {}
    for symbol in symbols:
        if symbol.bind == GLOBAL or symbol.name not in result:
            result[symbol.name] = Symbol(symbol.name, symbol.value, symbol.size)
    return result


def _functions(tables: Tables, symbols: Iterable[SymbolEntry]) -> tuple[Symbol, ...]:
    """Collect functions, and labels of hand-written assembly: untyped global symbols in executable sections."""
    best: dict[int, tuple[bool, bool, str]] = {}
    result: dict[int, Symbol] = {}
    for name, address, size, bind, symbol_type, section in symbols:
        typed = symbol_type == FUNCTION
        label = symbol_type == UNTYPED and bind == GLOBAL and section in tables.code
        rank = (not typed, not size, name)
        if (typed or label) and (address not in best or rank < best[address]):
            best[address] = rank
            result[address] = Symbol(name, address, size)
    return tuple(result[address] for address in sorted(result))


def _extensions(tables: Tables) -> tuple[str, ...]:
    architecture = tables.architecture()
    if architecture is None:
        return ("i", "c") if tables.header.e_flags & FLAG_COMPRESSED else ()
    names = architecture.lower().removeprefix("rv32").removeprefix("rv64").split("_")
    return tuple(map(_unversioned, names))


def _unversioned(name: str) -> str:
    """Return the name of an extension without its version: `zicsr` of `zicsr2p0`."""
    major, _, minor = name.rpartition("p")
    versioned = minor.isdecimal() and major[-1:].isdecimal()
    return major.rstrip("0123456789") if versioned else name


def _lines(tables: Tables) -> SourceLines:
    """Collect the sections with debug information, to be parsed later. Damage to them is no reason to refuse the
    program."""
    try:
        names = tables.content(tables.sections[tables.header.e_shstrndx])
        texts = {name: f"{name}\0".encode() for name in SECTIONS}
        headers = {
            name: section
            for section in tables.sections
            for name, text in texts.items()
            if names.startswith(text, section.sh_name)
        }
        content = {name: tables.content(section) for name, section in headers.items()}
    except (IndexError, ValueError):
        content = {}
    return SourceLines(content)
