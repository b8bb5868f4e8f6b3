"""The tables of an ELF file of 32 bits, little-endian (System V ABI; attributes: RISC-V ELF psABI), as numbers.

What lies outside the file or contradicts itself raises ValueError.
"""

import struct
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

HEADER, SECTION, SEGMENT, SYMBOL = (struct.Struct(form) for form in ("<16s2H5I6H", "<10I", "<8I", "<3I2BH"))

CLASSES = {1: 32, 2: 64}
"""Bits by e_ident[EI_CLASS]."""
LITTLE_ENDIAN = 1
"""e_ident[EI_DATA]."""
TYPES = {0: "ET_NONE", 1: "ET_REL", 2: "ET_EXEC", 3: "ET_DYN", 4: "ET_CORE"}
EM_RISCV = 243
EF_RISCV_RVC = 1
PT_LOAD, PF_X = 1, 1
SHT_SYMTAB, SHT_NOTE, SHT_NOBITS, SHT_RISCV_ATTRIBUTES = 2, 7, 8, 0x7000_0003
SHF_EXECINSTR = 4
SHN_UNDEF = 0
STT_NOTYPE, STT_FUNC, STT_SECTION, STT_FILE = 0, 2, 3, 4
STB_GLOBAL = 1
TAG_FILE, TAG_ARCH = 1, 5


class Header(NamedTuple):
    ident: bytes
    type: int
    machine: int
    version: int
    entry: int
    phoff: int
    shoff: int
    flags: int
    ehsize: int
    phentsize: int
    phnum: int
    shentsize: int
    shnum: int
    shstrndx: int


class SegmentHeader(NamedTuple):
    type: int
    offset: int
    vaddr: int
    paddr: int
    filesz: int
    memsz: int
    flags: int
    align: int

    def holds(self, section: "SectionHeader") -> bool:
        """Whether the section, which is not empty, is loaded with this segment."""
        return bool(section.size) and self.vaddr <= section.addr <= self.vaddr + self.memsz - section.size


class SectionHeader(NamedTuple):
    name: int
    type: int
    flags: int
    addr: int
    offset: int
    size: int
    link: int
    info: int
    addralign: int
    entsize: int


class SymbolEntry(NamedTuple):
    name: str
    value: int
    size: int
    type: int
    """STT_..."""
    bind: int
    """STB_..."""
    section: int
    """Index of its section, or SHN_..."""


class ElfFile:
    """Reads what is asked for. The first 16 bytes have been looked at."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.header = Header(*HEADER.unpack(self._at(0, HEADER.size)))

    @cached_property
    def segments(self) -> tuple[SegmentHeader, ...]:
        header = self.header
        return tuple(SegmentHeader(*row) for row in self._table(SEGMENT, header.phoff, header.phentsize, header.phnum))

    @cached_property
    def sections(self) -> tuple[SectionHeader, ...]:
        header = self.header
        return tuple(SectionHeader(*row) for row in self._table(SECTION, header.shoff, header.shentsize, header.shnum))

    def of_type(self, kind: int) -> Iterator[SectionHeader]:
        return (section for section in self.sections if section.type == kind)

    def loaded(self, segment: SegmentHeader) -> bytes:
        """A segment's bytes; less than `filesz` where the file ends before."""
        return self._data[segment.offset : segment.offset + segment.filesz]

    def content(self, section: SectionHeader) -> bytes:
        return b"" if section.type == SHT_NOBITS else self._at(section.offset, section.size)

    def symbols(self) -> Iterator[SymbolEntry]:
        """The symbol table, in its order."""
        for table in self.of_type(SHT_SYMTAB):
            if table.link >= len(self.sections):
                raise ValueError(f"the names of symbols are in section {table.link} of {len(self.sections)}")
            names = self.content(self.sections[table.link])
            for name, value, size, info, _, section in SYMBOL.iter_unpack(self.content(table)):
                yield SymbolEntry(_string(names, name), value, size, info & 15, info >> 4, section)

    def architecture(self) -> str | None:
        """The file's attribute Tag_RISCV_arch, for example rv32i2p1_m2p0_zicsr2p0."""
        for section in self.of_type(SHT_RISCV_ATTRIBUTES):
            for tag, value in _attributes(self.content(section)):
                if tag == TAG_ARCH and isinstance(value, str):
                    return value
        return None

    def _table(self, row: struct.Struct, offset: int, size: int, count: int) -> Iterator[tuple[int, ...]]:
        if not count:
            return iter(())
        if size != row.size:
            raise ValueError(f"rows of a header table have {size} bytes, not {row.size}")
        return row.iter_unpack(self._at(offset, size * count))

    def _at(self, offset: int, size: int) -> bytes:
        if offset + size > len(self._data):
            raise ValueError(f"bytes {offset}..{offset + size} of a file of {len(self._data)}")
        return self._data[offset : offset + size]


def _attributes(data: bytes) -> Iterator[tuple[int, int | str]]:
    """Tag and value of the attributes of the file, of vendor riscv; odd tags have strings."""
    at = 1  # after the version
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        vendor = _string(data, at + 4)
        inside, at = at + 4 + len(vendor) + 1, at + _positive(length)
        while vendor == "riscv" and inside < at:
            scope, first = _uleb128(data, inside)
            (length,) = struct.unpack_from("<I", data, first)
            end = inside + _positive(length)
            if scope == TAG_FILE:
                yield from _values(data, first + 4, end)
            inside = end


def _values(data: bytes, at: int, end: int) -> Iterator[tuple[int, int | str]]:
    while at < end:
        tag, at = _uleb128(data, at)
        if tag & 1:
            text = _string(data, at)
            at += len(text.encode()) + 1
            yield tag, text
        else:
            value, at = _uleb128(data, at)
            yield tag, value


def _positive(length: int) -> int:
    if not length:
        raise ValueError("an attribute section has a part without length")
    return length


def _uleb128(data: bytes, at: int) -> tuple[int, int]:
    """(number, where it ends)."""
    value = shift = 0
    while at < len(data):
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 0x80:
            return value, at
    raise ValueError("a number of the attributes does not end")


def _string(data: bytes, at: int) -> str:
    end = data.find(b"\0", at)
    if at >= len(data) or end < 0:
        raise ValueError(f"a name at {at} of {len(data)} bytes of names")
    return data[at:end].decode("ascii", "backslashreplace")
