"""Tables of an ELF file: headers, sections, symbols, notes and attributes as records of numbers.

Numbers, and names of fields, are those of the ELF specification and of the RISC-V ELF psABI. Limits on the tables and
their sizes bound the time and memory of a damaged file by its size. ValueError or LookupError for tables that are
damaged or outside the file.
pyelftools reads debug information (`pyv_ext.source_lines`); its readers of these tables would take a tenth of the start
of a run.
"""

import struct
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

CLASS32, CLASS64, LITTLE_ENDIAN = 1, 2, 1
RISCV = 243
EXECUTABLE = 2
TYPES = {0: "ET_NONE", 1: "ET_REL", EXECUTABLE: "ET_EXEC", 3: "ET_DYN", 4: "ET_CORE"}
"""Types of files."""
FLAG_COMPRESSED = 1
"""EF_RISCV_RVC."""
LOAD, SEGMENT_EXECUTABLE = 1, 1
"""PT_LOAD, PF_X."""
SYMBOL_TABLE, NOTES, NO_BITS, ATTRIBUTES = 2, 7, 8, 0x7000_0003
"""Types of sections."""
ALLOCATED, INSTRUCTIONS = 2, 4
"""Flags of sections."""
UNTYPED, FUNCTION, SECTION, FILE = 0, 2, 3, 4
"""Types of symbols."""
GLOBAL = 1
"""Binding of a symbol."""
UNDEFINED = 0
"""Section of a symbol that is defined elsewhere."""
_WHOLE_FILE, _ARCHITECTURE = 1, 5
_SCOPES = (_WHOLE_FILE, 2, 3)
"""Tags of attributes."""

MAX_SECTIONS = 1 << 14
MAX_PAIRS = 1 << 22
"""Maximum of segments times sections, each pair of which is compared."""
MAX_SYMBOL_TABLE = 1 << 22
MAX_NOTES = 1 << 16
MAX_ATTRIBUTES = 1 << 12
"""Maximum bytes of all sections of a type, which may overlap. More is damage, and would take seconds to read."""
MAX_NAMES = 1 << 26
"""Maximum characters in all names of symbols."""

_IDENT = 16
"""Bytes of the identification before the header, which contains the class of the file."""
_NOTE = struct.Struct("<3I")


class Header(NamedTuple):
    e_type: int
    e_machine: int
    e_version: int
    e_entry: int
    e_phoff: int
    e_shoff: int
    e_flags: int
    e_ehsize: int
    e_phentsize: int
    e_phnum: int
    e_shentsize: int
    e_shnum: int
    e_shstrndx: int


class SegmentHeader(NamedTuple):
    p_type: int
    p_offset: int
    p_vaddr: int
    p_paddr: int
    p_filesz: int
    p_memsz: int
    p_flags: int
    p_align: int


class SectionHeader(NamedTuple):
    sh_name: int
    sh_type: int
    sh_flags: int
    sh_addr: int
    sh_offset: int
    sh_size: int
    sh_link: int
    sh_info: int
    sh_addralign: int
    sh_entsize: int


class _Form(NamedTuple):
    """Forms of the records of a class, and for each field of `SegmentHeader`, and name, value, size, info and section
    of a symbol, its index in them."""

    header: struct.Struct
    section: struct.Struct
    segment: struct.Struct
    segment_fields: tuple[int, ...]
    symbol: struct.Struct
    symbol_fields: tuple[int, ...]


_FORMS = {
    CLASS32: _Form(
        struct.Struct("<16x2H5I6H"), struct.Struct("<10I"), struct.Struct("<8I"), (0, 1, 2, 3, 4, 5, 6, 7),
        struct.Struct("<IIIBBH"), (0, 1, 2, 3, 5),
    ),
    CLASS64: _Form(
        struct.Struct("<16x2HI3QI6H"), struct.Struct("<2I4Q2I2Q"), struct.Struct("<2I6Q"), (0, 2, 3, 4, 5, 6, 1, 7),
        struct.Struct("<IBBHQQ"), (0, 4, 5, 1, 3),
    ),
}  # fmt: skip
"""Forms by class."""
XLEN = {CLASS32: 32, CLASS64: 64}
"""Bits of addresses, by class."""


class SymbolEntry(NamedTuple):
    """Row of a symbol table."""

    name: str
    value: int
    size: int
    bind: int
    type: int
    section: int


class ElfNote(NamedTuple):
    """Entry of a note section; the reader of `owner` interprets `desc`."""

    owner: str
    type: int
    desc: bytes


class Tables:
    """Tables of one little-endian file of a class in `XLEN`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)
        self._form = _FORMS[self._slice(0, _IDENT)[4]]
        self.header = Header(*self._form.header.unpack(self._slice(0, self._form.header.size)))

    @cached_property
    def segments(self) -> list[SegmentHeader]:
        header = self.header
        limit = MAX_PAIRS // max(1, header.e_shnum)
        rows = self._rows(self._form.segment, header.e_phoff, header.e_phentsize, header.e_phnum, limit)
        return [SegmentHeader(*(row[field] for field in self._form.segment_fields)) for row in rows]

    @cached_property
    def sections(self) -> list[SectionHeader]:
        header = self.header
        rows = self._rows(self._form.section, header.e_shoff, header.e_shentsize, header.e_shnum, MAX_SECTIONS)
        return [SectionHeader(*row) for row in rows]

    @cached_property
    def code(self) -> dict[int, SectionHeader]:
        """Sections with instructions, by index."""
        return {index: section for index, section in enumerate(self.sections) if section.sh_flags & INSTRUCTIONS}

    def contents(self, segment: SegmentHeader) -> bytes:
        """Return a segment's bytes; fewer than `p_filesz` if the file is truncated."""
        return self._data[segment.p_offset : segment.p_offset + segment.p_filesz]

    def content(self, section: SectionHeader) -> bytes:
        return b"" if section.sh_type == NO_BITS else self._slice(section.sh_offset, section.sh_size)

    def symbol_rows(self, table: SectionHeader) -> Iterator[tuple[int, ...]]:
        """Yield the offset of its name, value, size, info and section of each symbol in a table."""
        rows, form = self.content(table), self._form.symbol
        for row in form.iter_unpack(rows[: len(rows) - len(rows) % form.size]):
            yield tuple(row[field] for field in self._form.symbol_fields)

    def symbols(self) -> Iterator[SymbolEntry]:
        """Yield defined symbols, without the assembler's own (files, sections, `$x` and `.L`)."""
        remaining = MAX_NAMES
        for table in self._of_type(SYMBOL_TABLE, MAX_SYMBOL_TABLE):
            if table.sh_link >= len(self.sections):
                raise ValueError(f"the names of symbols are in section {table.sh_link} of {len(self.sections)}")
            names = self.content(self.sections[table.sh_link])
            for name_offset, value, size, info, section in self.symbol_rows(table):
                symbol_type = info & 15
                if symbol_type in (FILE, SECTION) or section == UNDEFINED:
                    continue
                name = string_at(names, name_offset, remaining)
                remaining -= len(name)
                if name and not name.startswith(("$", ".L")):
                    yield SymbolEntry(name, value, size, info >> 4, symbol_type, section)

    def notes(self) -> Iterator[ElfNote]:
        """Yield the entries of the note sections."""
        for section in self._of_type(NOTES, MAX_NOTES):
            data, offset = self.content(section), 0
            while offset + _NOTE.size < len(data):
                name_size, size, note_type = _NOTE.unpack_from(data, offset)
                name = offset + _NOTE.size
                desc = name + -(-name_size // 4) * 4
                offset = desc + -(-size // 4) * 4
                if desc + size > len(data):
                    raise ValueError("a note is longer than its section")
                owner = data[name : name + name_size].partition(b"\0")[0]
                yield ElfNote(owner.decode("utf-8", "replace"), note_type, data[desc : desc + size])

    def architecture(self) -> str | None:
        """Return the attribute Tag_RISCV_arch of the whole file, for example rv32i2p1_m2p0_zicsr2p0."""
        for section in self._of_type(ATTRIBUTES, MAX_ATTRIBUTES):
            data = self.content(section)
            if data[:1] != b"A":
                raise ValueError(f"attributes of version {data[:1]!r}, expected b'A'")
            if len(data) < 6:
                continue
            end = min(1 + int.from_bytes(data[1:5], "little"), len(data))
            vendor, offset = _text(data, 5)
            if vendor != "riscv" or offset >= end:
                continue
            begin = offset
            tag, offset = _number(data, offset)
            if tag not in _SCOPES:
                raise ValueError("attributes that begin with no part of the file, a section or a symbol")
            if tag != _WHOLE_FILE:
                continue
            end = min(begin + int.from_bytes(data[offset : offset + 4], "little"), end)
            offset += 4
            while offset < end:
                tag, offset = _number(data, offset)
                if tag == _ARCHITECTURE:
                    return _text(data, offset)[0]
                _, offset = _text(data, offset) if tag & 1 else _number(data, offset)
        return None

    def _of_type(self, section_type: int, limit: int) -> Iterator[SectionHeader]:
        """Yield the sections of a type. ValueError if they have more than `limit` bytes."""
        total = 0
        for section in self.sections:
            if section.sh_type == section_type:
                total += section.sh_size
                if total > limit:
                    raise ValueError(f"sections of type {section_type:#x} of {total} bytes, at most {limit}")
                yield section

    def _rows(
        self, record: struct.Struct, offset: int, size: int, count: int, limit: int
    ) -> Iterator[tuple[int, ...]]:  # fmt: skip
        if count > limit:
            raise ValueError(f"a header table of {count} rows, at most {limit}")
        if count and size != record.size:
            raise ValueError(f"rows of a header table have {size} bytes, not {record.size}")
        return record.iter_unpack(self._slice(offset, count * record.size))

    def _slice(self, offset: int, size: int) -> bytes:
        if offset + size > len(self._data):
            raise ValueError(f"bytes {offset}..{offset + size} of a file of {len(self._data)}")
        return self._data[offset : offset + size]


def string_at(names: bytes, start: int, limit: int = MAX_NAMES) -> str:
    """Return the name at an offset, of at most `limit` characters. ValueError if it has no end."""
    end = names.find(b"\0", start, start + limit + 1)
    if start >= len(names) or end < 0:
        raise ValueError(f"a name at {start} of {len(names)} bytes of names")
    return names[start:end].decode("ascii", "backslashreplace")


def _text(data: bytes, start: int) -> tuple[str, int]:
    """Return a text that ends with 0, and the offset after it."""
    end = data.index(b"\0", start)
    return data[start:end].decode("utf-8"), end + 1


def _number(data: bytes, offset: int) -> tuple[int, int]:
    """Return a number in ULEB128, and the offset after it."""
    value = shift = 0
    while True:
        byte = data[offset]
        value |= (byte & 0x7F) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 0x80:
            return value, offset
