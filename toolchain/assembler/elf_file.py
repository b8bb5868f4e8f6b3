"""Writer of an ELF file for RV32 from sections and symbols (System V ABI, "Object Files")."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

ALLOC, WRITE, EXECUTE = 2, 1, 4
"""Flags of a section: SHF_ALLOC, SHF_WRITE, SHF_EXECINSTR."""
_PROGBITS, _SYMTAB, _STRTAB, _NOBITS = 1, 2, 3, 8
_EM_RISCV, _ET_EXEC, _PT_LOAD = 243, 2, 1
_GLOBAL, _FUNC = 1, 2
_SHN_ABS = 0xFFF1


class ElfSection(NamedTuple):
    name: str
    flags: int
    address: int
    data: bytes
    reserved: int = 0
    """Bytes of zeros that the file does not store; `data` is empty then."""

    @property
    def size(self) -> int:
        return len(self.data) or self.reserved


class ElfSymbol(NamedTuple):
    name: str
    value: int
    section: int | None
    """Index into the sections; None for an absolute value."""
    exported: bool = False
    function: bool = False
    size: int = 0


def write(sections: Sequence[ElfSection], symbols: Sequence[ElfSymbol], entry: int) -> bytes:
    """Return the bytes of an executable file."""
    present = [section for section in sections if section.size]
    at = 52 + 32 * len(present)
    programs, headers, body = bytearray(), [bytes(40)], bytearray()
    names, strings = bytearray(b"\0"), bytearray(b"\0")

    def named(text: str) -> int:
        names.extend(text.encode() + b"\0")
        return len(names) - len(text.encode()) - 1

    for section in sections:
        padding = -(at + len(body)) % 16
        body += bytes(padding)
        offset = at + len(body)
        kind = _NOBITS if section.reserved else _PROGBITS
        headers.append(struct.pack("<10I", named(section.name), kind, section.flags, section.address, offset,
                                   section.size, 0, 0, 16, 0))  # fmt: skip
        body += section.data
        if section.size:
            access = 4 | (2 if section.flags & WRITE else 0) | (1 if section.flags & EXECUTE else 0)
            programs += struct.pack("<8I", _PT_LOAD, offset, section.address, section.address, len(section.data),
                                    section.size, access, 16)  # fmt: skip
    ordered = sorted(symbols, key=lambda symbol: symbol.exported)
    table = bytearray(16)
    for symbol in ordered:
        place = _SHN_ABS if symbol.section is None else symbol.section + 1
        info = (_GLOBAL if symbol.exported else 0) << 4 | (_FUNC if symbol.function else 0)
        table += struct.pack("<3I2BH", len(strings), symbol.value & 0xFFFF_FFFF, symbol.size, info, 0, place)
        strings += symbol.name.encode() + b"\0"
    first = 1 + sum(not symbol.exported for symbol in ordered)
    count = len(headers)
    for name, kind, data, link, info, entry_size in (
        (".symtab", _SYMTAB, table, count + 1, first, 16),
        (".strtab", _STRTAB, strings, 0, 0, 0),
        (".shstrtab", _STRTAB, names, 0, 0, 0),
    ):
        number = named(name)
        body += bytes(-(at + len(body)) % 4)
        headers.append(struct.pack("<10I", number, kind, 0, 0, at + len(body), len(data), link, info, 4, entry_size))
        body += data
    body += bytes(-(at + len(body)) % 4)
    identity = b"\x7fELF" + bytes((1, 1, 1)) + bytes(9)
    head = identity + struct.pack("<2H5I6H", _ET_EXEC, _EM_RISCV, 1, entry, 52 if present else 0, at + len(body), 0,
                                  52, 32, len(present), 40, len(headers), len(headers) - 1)  # fmt: skip
    return head + bytes(programs) + bytes(body) + b"".join(headers)
