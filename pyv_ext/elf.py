"""ELF32 RISC-V executables: what to load, where to start, and what the addresses are called.

pyelftools knows the records and the names of their values. Which tables are read, and how much of each, is decided
here: a damaged file takes no more time and memory than its size explains. A run loads only the part of pyelftools
that it needs; `elftools.elf.elffile` would bring the readers of debug information and of dynamic linking.
"""

import re
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyv_ext.bus.bus import ADDRESS_SPACE, Bus
from pyv_ext.errors import PyvExtError
from pyv_ext.source_lines import SECTIONS, Line, SourceLines
from pyv_state.frozen import dataclass

if TYPE_CHECKING:
    from elftools.construct import Struct
    from elftools.construct.lib.container import Container
    from elftools.elf.structs import ELFStructs

    from pyv_ext.inlined import InlinedFunctions

MAX_SYMBOL_TABLE = 1 << 22
MAX_NOTES = 1 << 16
MAX_ATTRIBUTES = 1 << 12
"""Bytes of a section. A larger one is damage: reading it would take seconds."""
MAX_NAMES = 1 << 26
"""Characters in all names of symbols."""


class ElfError(PyvExtError):
    """The file is not a program that this hart can run; one line says why and what to do."""


class Segment(NamedTuple):
    """Bytes to load at a physical address, followed by zeros up to `size`."""

    address: int
    data: bytes
    size: int
    executable: bool
    """Its flags say so, or it holds a section of code: linker scripts get the flags wrong, those of riscv-tests do."""
    head: int = 0
    """Bytes at its begin that are nothing of the program, but the headers of the file, which linkers load with it."""

    @property
    def end(self) -> int:
        return self.address + self.size


class Symbol(NamedTuple):
    name: str
    address: int
    size: int


class Note(NamedTuple):
    """One entry of a note section; the reader of `owner` interprets `desc`."""

    owner: str
    type: int
    desc: bytes


@dataclass(frozen=True)
class Program:
    """An executable, read completely except for its source lines."""

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
    sidecars: Mapping[str, bytes] = field(default_factory=dict)
    """Files that its notes name and that are no files: name -> content."""
    code: tuple[tuple[int, int], ...] = ()
    """Address and size of each section with instructions; of each executable segment where there are no sections."""
    lines: SourceLines = field(default_factory=SourceLines, repr=False, compare=False)

    @cached_property
    def inlined(self) -> "InlinedFunctions":
        """Which functions are inlined where."""
        from pyv_ext.inlined import InlinedFunctions  # a profile asks

        return InlinedFunctions(self.lines)

    def function_at(self, address: int) -> Symbol | None:
        """The function that holds `address`; one without a size reaches to the next function."""
        index = bisect_right(self.functions, address, key=lambda function: function.address) - 1
        if index < 0:
            return None
        function = self.functions[index]
        return function if not function.size or address < function.address + function.size else None

    def place(self, address: int) -> str:
        """Function and source line of an address, as far as they are known: `main, firmware/apps/hello.c:12`."""
        function, line = self.function_at(address), self.line_of(address)
        return ", ".join([*([] if function is None else [function.name]), *([] if line is None else [str(line)])])

    def line_of(self, address: int) -> Line | None:
        """The source line of the instruction that holds `address`; None without debug information for it."""
        return self.lines.at(address)


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
    from elftools.common.exceptions import ELFError
    from elftools.construct import ConstructError

    try:
        program = _program(data, name)
    except (ELFError, ConstructError, ValueError, ArithmeticError, LookupError, struct.error, MemoryError) as error:
        reason = ascii(str(error) or type(error).__name__)[1:-1]
        raise ElfError(f"{name}: truncated or damaged ELF file ({reason}): rebuild or copy it again") from None
    if not any(s.executable and s.address <= program.entry < s.end for s in program.segments):
        raise ElfError(
            f"{name}: entry {program.entry:#x} lies in no executable segment: "
            "set it with ENTRY(symbol) in the linker script"
        )
    return program


def load(program: Program, bus: Bus) -> None:
    """Write all segments into memory; ElfError where there is none. Headers of the file need none."""
    for segment in program.segments:
        ram = bus.ram_at(segment.address, segment.size)
        if ram is None and segment.head:
            segment = _without_head(segment)
            ram = bus.ram_at(segment.address, segment.size)
        if ram is None or not ram.writable:
            raise ElfError(
                f"{program.name}: segment {segment.address:#x}..{segment.end:#x} lies outside writable memory: "
                "link it into RAM or enlarge the RAM"
            )
        bus.poke(segment.address, segment.data + bytes(segment.size - len(segment.data)))


def _without_head(segment: Segment) -> Segment:
    head = segment.head
    return Segment(segment.address + head, segment.data[head:], segment.size - head, segment.executable)


def _program(data: bytes, name: str) -> Program:
    _check_ident(data, name)
    tables = _Tables(data)
    _check_header(tables.header, name)
    segments = tuple(_segments(tables, name))
    symbols = list(_symbols(tables))
    return Program(
        name=name,
        entry=tables.header.e_entry,
        segments=segments,
        symbols=_by_name(symbols),
        functions=_functions(tables, symbols),
        notes=tuple(_notes(tables)),
        extensions=_extensions(tables),
        code=_code(tables, segments),
        lines=_lines(tables),
    )


class _Tables:
    """The headers and the sections of a file, as records of pyelftools. ValueError for what lies outside the file."""

    def __init__(self, data: bytes) -> None:
        from elftools.elf.structs import ELFStructs

        self._data = data
        self.size = len(data)
        self.structs = ELFStructs(little_endian=True, elfclass=32)
        self.structs.create_basic_structs()
        self.structs.create_advanced_structs("ET_EXEC", "EM_RISCV", "ELFOSABI_SYSV")
        (self.header,) = self.records(self.structs.Elf_Ehdr, 0, 1)

    @cached_property
    def segments(self) -> list["Container"]:
        header = self.header
        return self._table(self.structs.Elf_Phdr, header.e_phoff, header.e_phentsize, header.e_phnum)

    @cached_property
    def sections(self) -> list["Container"]:
        header = self.header
        return self._table(self.structs.Elf_Shdr, header.e_shoff, header.e_shentsize, header.e_shnum)

    @cached_property
    def code(self) -> dict[int, "Container"]:
        """The sections with instructions, by index."""
        from elftools.elf.constants import SH_FLAGS

        return {i: section for i, section in enumerate(self.sections) if section.sh_flags & SH_FLAGS.SHF_EXECINSTR}

    def of_type(self, kind: str, limit: int) -> Iterator["Container"]:
        """The sections of a type. ValueError for one with more than `limit` bytes."""
        for section in self.sections:
            if section.sh_type == kind:
                if section.sh_size > limit:
                    raise ValueError(f"{kind} of {section.sh_size} bytes, at most {limit}")
                yield section

    def loaded(self, segment: "Container") -> bytes:
        """A segment's bytes; less than `p_filesz` where the file ends before."""
        return self._data[segment.p_offset : segment.p_offset + segment.p_filesz]

    def content(self, section: "Container") -> bytes:
        return b"" if section.sh_type == "SHT_NOBITS" else self._at(section.sh_offset, section.sh_size)

    def stream(self, section: "Container") -> "_SectionFile":
        """The section as a file of its own, so that no reader of pyelftools leaves it."""
        return _SectionFile(BytesIO(self.content(section)), self.structs)

    def records(self, record: "Struct", offset: int, count: int) -> Iterator["Container"]:
        stream = BytesIO(self._at(offset, count * record.sizeof()))
        return (record.parse_stream(stream) for _ in range(count))

    def _table(self, record: "Struct", offset: int, size: int, count: int) -> list["Container"]:
        if count and size != record.sizeof():
            raise ValueError(f"rows of a header table have {size} bytes, not {record.sizeof()}")
        return list(self.records(record, offset, count))

    def _at(self, offset: int, size: int) -> bytes:
        if offset + size > len(self._data):
            raise ValueError(f"bytes {offset}..{offset + size} of a file of {len(self._data)}")
        return self._data[offset : offset + size]


class _SectionFile(NamedTuple):
    """What the readers of pyelftools ask of a file."""

    stream: BytesIO
    structs: "ELFStructs"
    elfclass: int = 32


def _check_ident(data: bytes, name: str) -> None:
    from elftools.elf.enums import ENUM_EI_CLASS, ENUM_EI_DATA

    kind, order = data[4], data[5]
    if kind != ENUM_EI_CLASS["ELFCLASS32"]:
        bits = "64" if kind == ENUM_EI_CLASS["ELFCLASS64"] else "?"
        raise ElfError(f"{name}: ELF{bits}, this hart runs ELF32: build with -march=rv32... -mabi=ilp32")
    if order != ENUM_EI_DATA["ELFDATA2LSB"]:
        raise ElfError(f"{name}: big-endian, this hart is little-endian: build with -mlittle-endian")


def _check_header(header: "Container", name: str) -> None:
    from elftools.elf.enums import ENUM_E_MACHINE

    if header.e_machine != "EM_RISCV":
        machine, expected = (ENUM_E_MACHINE.get(key, key) for key in (header.e_machine, "EM_RISCV"))
        raise ElfError(f"{name}: machine {machine}, expected {expected} (RISC-V): build with a RISC-V compiler")
    if header.e_type != "ET_EXEC":
        raise ElfError(f"{name}: type {header.e_type}, expected ET_EXEC: link it with -static and without -pie or -r")


def _segments(tables: _Tables, name: str) -> Iterator[Segment]:
    from elftools.elf.constants import P_FLAGS

    total, found = 0, False
    for segment in tables.segments:
        if segment.p_type != "PT_LOAD":
            continue
        address, in_file, size, data = segment.p_paddr, segment.p_filesz, segment.p_memsz, tables.loaded(segment)
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
        if size:
            found = True
            executable = segment.p_flags & P_FLAGS.PF_X or any(_holds(segment, code) for code in tables.code.values())
            yield Segment(address, data, size, bool(executable), _head(tables, segment))
    if not found:
        raise ElfError(f"{name}: nothing to load: link it into an executable with code")


def _head(tables: _Tables, segment: "Container") -> int:
    """`Segment.head`: up to the first section, or where there are no sections, the headers and the zeros after them."""
    from elftools.elf.constants import SH_FLAGS

    if segment.p_offset:
        return 0
    sections = (section for section in tables.sections if section.sh_flags & SH_FLAGS.SHF_ALLOC)
    held = [section.sh_addr - segment.p_vaddr for section in sections if _holds(segment, section)]
    if held:
        return int(min(held))
    header, data = tables.header, tables.loaded(segment)
    headers = data[max(header.e_ehsize, header.e_phoff + header.e_phnum * header.e_phentsize) :]
    return len(data) - len(headers.lstrip(b"\0"))


def _code(tables: _Tables, segments: Iterable[Segment]) -> tuple[tuple[int, int], ...]:
    sections = tuple((section.sh_addr, section.sh_size) for section in tables.code.values())
    return sections or tuple((segment.address, segment.size) for segment in segments if segment.executable)


def _holds(segment: "Container", section: "Container") -> bool:
    """Whether the section, which is not empty, is loaded with the segment."""
    end = segment.p_vaddr + segment.p_memsz
    return bool(section.sh_size > 0 and segment.p_vaddr <= section.sh_addr <= end - section.sh_size)


class _Entry(NamedTuple):
    """A row of a symbol table; fields and values are those of the ELF specification."""

    name: str
    value: int
    size: int
    bind: int
    type: int
    section: int


_ENTRY = struct.Struct("<IIIBBH")
"""st_name, st_value, st_size, st_info, st_other, st_shndx: thousands of them, and pyelftools takes 30 us for one."""


def _symbols(tables: _Tables) -> Iterator[_Entry]:
    """Defined symbols, without the assembler's own (files, sections, `$x` and `.L`)."""
    from elftools.elf.enums import ENUM_ST_INFO_TYPE, ENUM_ST_SHNDX

    assembler = (ENUM_ST_INFO_TYPE["STT_FILE"], ENUM_ST_INFO_TYPE["STT_SECTION"])
    undefined, left = ENUM_ST_SHNDX["SHN_UNDEF"], MAX_NAMES
    for table in tables.of_type("SHT_SYMTAB", MAX_SYMBOL_TABLE):
        if table.sh_link >= len(tables.sections):
            raise ValueError(f"the names of symbols are in section {table.sh_link} of {len(tables.sections)}")
        names, rows = (tables.content(section) for section in (tables.sections[table.sh_link], table))
        whole = len(rows) - len(rows) % _ENTRY.size
        for at, value, size, info, _, section in _ENTRY.iter_unpack(rows[:whole]):
            name = _string(names, at, left)
            left -= len(name)
            kind = info & 15
            if name and not name.startswith(("$", ".L")) and kind not in assembler and section != undefined:
                yield _Entry(name, value, size, info >> 4, kind, section)


def _by_name(symbols: Iterable[_Entry]) -> dict[str, Symbol]:
    from elftools.elf.enums import ENUM_ST_INFO_BIND

    found: dict[str, Symbol] = {}
    for symbol in symbols:
        if symbol.bind == ENUM_ST_INFO_BIND["STB_GLOBAL"] or symbol.name not in found:
            found[symbol.name] = Symbol(symbol.name, symbol.value, symbol.size)
    return found


def _functions(tables: _Tables, symbols: Iterable[_Entry]) -> tuple[Symbol, ...]:
    """Functions, and labels of hand-written assembly: untyped global symbols in executable sections."""
    from elftools.elf.enums import ENUM_ST_INFO_BIND, ENUM_ST_INFO_TYPE

    function, untyped = ENUM_ST_INFO_TYPE["STT_FUNC"], ENUM_ST_INFO_TYPE["STT_NOTYPE"]
    best: dict[int, tuple[bool, bool, str]] = {}
    found: dict[int, Symbol] = {}
    for name, address, size, bind, kind, section in symbols:
        typed = kind == function
        label = kind == untyped and bind == ENUM_ST_INFO_BIND["STB_GLOBAL"] and section in tables.code
        rank = (not typed, not size, name)
        if (typed or label) and (address not in best or rank < best[address]):
            best[address] = rank
            found[address] = Symbol(name, address, size)
    return tuple(found[address] for address in sorted(found))


def _notes(tables: _Tables) -> Iterator[Note]:
    """The entries of the note sections."""
    from elftools.elf.enums import ENUM_NOTE_N_TYPE
    from elftools.elf.notes import iter_notes

    for section in tables.of_type("SHT_NOTE", MAX_NOTES):
        for note in iter_notes(tables.stream(section), 0, section.sh_size):
            if note.n_offset + note.n_size > section.sh_size:
                raise ValueError("a note is longer than its section")
            yield Note(note.n_name or "", ENUM_NOTE_N_TYPE.get(note.n_type, note.n_type), note.n_descdata)


def _extensions(tables: _Tables) -> tuple[str, ...]:
    from elftools.elf.constants import E_FLAGS

    architecture = _architecture(tables)
    if architecture is None:
        return ("i", "c") if tables.header.e_flags & E_FLAGS.EF_RISCV_RVC else ()
    names = architecture.lower().removeprefix("rv32").split("_")
    return tuple(re.sub(r"\d+p\d+$", "", name) for name in names)


def _architecture(tables: _Tables) -> str | None:
    """The attribute Tag_RISCV_arch of the whole file, for example rv32i2p1_m2p0_zicsr2p0."""
    from elftools.construct.lib.container import Container
    from elftools.elf.sections import RISCVAttributesSection

    for section in tables.of_type("SHT_RISCV_ATTRIBUTES", MAX_ATTRIBUTES):
        header = Container(**{**section, "sh_offset": 0, "sh_flags": 0})
        vendor = next(RISCVAttributesSection(header, "", tables.stream(section)).iter_subsections(), None)
        # only the first of each: pyelftools returns to it where others would follow
        if vendor is None or vendor["vendor_name"] != "riscv":
            continue
        try:
            scope = next(vendor.iter_subsubsections(), None)
        except TypeError:  # pyelftools takes the text of another tag for the size of a part
            raise ValueError("attributes that begin with no part of the file, a section or a symbol") from None
        if scope is not None and scope.header.tag == "TAG_FILE":
            for attribute in scope.iter_attributes("TAG_ARCH"):
                return str(attribute.value)
    return None


def _lines(tables: _Tables) -> SourceLines:
    """The sections with debug information, to be read later. Damage among them is no reason to refuse the program."""
    try:
        names = tables.content(tables.sections[tables.header.e_shstrndx])
        found = {
            wanted: tables.content(section)
            for section in tables.sections
            for wanted in SECTIONS
            if names.startswith(f"{wanted}\0".encode(), section.sh_name)
        }
    except (IndexError, ValueError):
        found = {}
    return SourceLines(found)


def _string(names: bytes, at: int, limit: int) -> str:
    """The name at `at`, of at most `limit` characters."""
    end = names.find(b"\0", at, at + limit + 1)
    if at >= len(names) or end < 0:
        raise ValueError(f"a name at {at} of {len(names)} bytes of names")
    return names[at:end].decode("ascii", "backslashreplace")
