"""Loader of LLVM's object files for x86-64 Linux. It does without LLVM, whose import takes longer than many programs.

A JIT uses the large code model: the only relocations of such a file are 64-bit addresses of its own sections and of
the C library functions that LLVM generates calls to. `llvm` links files with any other content. Memory is writable or
executable, never both.
"""

import ctypes
import mmap
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from pyv_native.elf_tables import ALLOCATED, NO_BITS, SYMBOL_TABLE, UNDEFINED, SectionHeader, Tables, string_at
from pyv_native.host import x86_64_linux

_IDENT = b"\x7fELF\x02\x01\x01"
_RELOCATION = struct.Struct("<QQq")
_WORD = struct.Struct("<Q")
_RELOCATABLE, _X86_64 = 1, 62
_PROGBITS, _RELA, _REL, _UNWIND = 1, 4, 9, 0x70000001
_WRITE, _TLS = 1, 0x400
_R_X86_64_64 = 1
_LIBRARY = frozenset({"memmove"})
"""Functions of the C library that LLVM generates calls to."""
_LARGEST = 1 << 26
"""Maximum bytes of a file in memory; LLVM links larger files."""


class NativeCode:
    """Functions that can be called; their memory is freed with the object."""

    def __init__(self, addresses: Mapping[str, int], memory: object) -> None:
        self._addresses = addresses
        self._memory = memory

    def address(self, name: str) -> int:
        """Return the address of a function or variable, one of the requested names."""
        return self._addresses[name]


class _Unknown(Exception):  # noqa: N818 - no error: LLVM takes over
    """Content of an object file that LLVM has to link."""


def load(file: bytes, names: Collection[str]) -> NativeCode | None:
    """Load an object file and look up the addresses of these names. None: it has unknown content, or the system
    permits no executable memory."""
    if not x86_64_linux():
        return None
    try:
        return _load(file, names)
    except (_Unknown, struct.error, KeyError, IndexError, ValueError, OSError):
        return None


def _load(file: bytes, names: Collection[str]) -> NativeCode:
    tables = Tables(file)
    sections, header = tables.sections, tables.header
    if not file.startswith(_IDENT) or (header.e_type, header.e_machine) != (_RELOCATABLE, _X86_64):
        raise _Unknown
    offsets, executable, size = _assign_offsets(sections)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for index, offset in offsets.items():
        if sections[index].sh_type == _PROGBITS:
            memory[offset : offset + sections[index].sh_size] = tables.content(sections[index])
    (table,) = (section for section in sections if section.sh_type == SYMBOL_TABLE)
    texts = tables.content(sections[table.sh_link])
    symbols = list(tables.symbol_rows(table))
    library = {
        symbol: _library_address(name)
        for symbol, (at, _, _, _, index) in enumerate(symbols)
        if index == UNDEFINED and (name := string_at(texts, at)) in _LIBRARY
    }
    for section in sections:
        if section.sh_type == _REL:
            raise _Unknown
        if section.sh_type == _RELA and section.sh_info in offsets:
            target, content = section.sh_info, tables.content(section)
            _relocate(memory, base, offsets, target, sections[target].sh_size, symbols, library, content)
    if executable:
        _make_executable(base, executable)
    addresses_by_name = {
        string_at(texts, name): base + offsets[index] + value
        for name, value, _, _, index in symbols
        if index in offsets
    }
    return NativeCode({name: addresses_by_name[name] for name in names}, memory)


def _assign_offsets(sections: Sequence[SectionHeader]) -> tuple[dict[int, int], int, int]:
    """Assign offsets in memory to sections; return them by index, the bytes of read-only sections (whole pages at the
    beginning), and the total bytes."""
    offsets: dict[int, int] = {}
    offset = executable = 0
    for writable in (False, True):
        for index, section in enumerate(sections):
            loads = section.sh_flags & ALLOCATED and section.sh_type != _UNWIND  # no exception passes through this code
            if loads and bool(section.sh_flags & _WRITE) is writable:
                alignment = max(section.sh_addralign, 1)
                unknown = section.sh_type not in (_PROGBITS, NO_BITS) or section.sh_flags & _TLS
                if unknown or alignment > mmap.PAGESIZE:
                    raise _Unknown
                offset = offsets[index] = -(-offset // alignment) * alignment
                offset += section.sh_size
                if offset > _LARGEST:
                    raise _Unknown
        offset = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        executable = executable or offset
    return offsets, executable, offset


def _relocate(
    memory: mmap.mmap, base: int, section_offsets: Mapping[int, int], target: int, size: int,
    symbols: Sequence[tuple[int, ...]], library: Mapping[int, int], relocations: bytes,
) -> None:  # fmt: skip
    """Apply the relocations of the section `target`, which has `size` bytes."""
    last, start, write_word = size - _WORD.size, section_offsets[target], _WORD.pack_into
    addresses: dict[int, int] = {}
    """Addresses by symbol and type of relocation: most symbols have many."""
    entries: Iterator[tuple[int, int, int]] = _RELOCATION.iter_unpack(relocations)
    for offset, info, addend in entries:
        address = addresses.get(info)
        if address is None:
            symbol = info >> 32
            _, value, _, _, index = symbols[symbol]
            if info & 0xFFFFFFFF != _R_X86_64_64 or not (index in section_offsets or symbol in library):
                raise _Unknown
            address = addresses[info] = library[symbol] if symbol in library else base + section_offsets[index] + value
        if offset > last:
            raise _Unknown
        write_word(memory, start + offset, address + addend)


@cache
def _library_address(name: str) -> int:
    """Return the address of a function of the C library."""
    address = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    if address is None:
        raise _Unknown
    return address


@cache
def _mprotect() -> Any:
    function = ctypes.CDLL(None).mprotect
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


def _make_executable(address: int, size: int) -> None:
    if _mprotect()(address, size, mmap.PROT_READ | mmap.PROT_EXEC):
        raise _Unknown
