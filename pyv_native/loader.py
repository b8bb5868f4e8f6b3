"""Loader of LLVM's object files for x86-64 Linux. It does without LLVM, whose import takes longer than many programs.

A JIT uses the large code model: the only relocations of such a file are 64-bit addresses of its own sections and of
the C library functions that LLVM generates calls to. `llvm` links files with any other content. Memory is writable or
executable, never both.
"""

import ctypes
import mmap
import struct
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from pyv_native.host import x86_64_linux

_IDENT = b"\x7fELF\x02\x01\x01"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_WORD = struct.Struct("<Q")
_RELOCATABLE, _X86_64 = 1, 62
_PROGBITS, _SYMTAB, _RELA, _NOBITS, _REL, _UNWIND = 1, 2, 4, 8, 9, 0x70000001
_WRITE, _ALLOC, _TLS = 1, 2, 0x400
_R_X86_64_64 = 1
_UNDEFINED = 0
"""Section of a symbol that the file does not define."""
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


class _Section(NamedTuple):
    """Fields of a section header."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int

    @property
    def loaded(self) -> bool:
        """Check whether a section is loaded. Unwind tables are not: no exception passes through this code."""
        return bool(self.flags & _ALLOC) and self.type != _UNWIND


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
    sections = _sections(file)
    offsets, executable, size = _assign_offsets(sections)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for index, offset in offsets.items():
        if sections[index].type == _PROGBITS:
            memory[offset : offset + sections[index].size] = _content(file, sections[index])
    (table,) = (section for section in sections if section.type == _SYMTAB)
    texts = _content(file, sections[table.link])
    symbols = list(_SYMBOL.iter_unpack(_content(file, table)))
    library = {
        symbol: _library_address(name)
        for symbol, (at, _, _, index, _, _) in enumerate(symbols)
        if index == _UNDEFINED and (name := _name(texts, at)) in _LIBRARY
    }
    for section in sections:
        if section.type == _REL:
            raise _Unknown
        if section.type == _RELA and section.info in offsets:
            _relocate(memory, base, offsets, section.info, sections, symbols, library, _content(file, section))
    if executable:
        _make_executable(base, executable)
    addresses_by_name = {
        _name(texts, name): base + offsets[index] + value for name, _, _, index, value, _ in symbols if index in offsets
    }
    return NativeCode({name: addresses_by_name[name] for name in names}, memory)


def _sections(file: bytes) -> list[_Section]:
    ident, file_type, machine, _, _, _, offset, _, _, _, _, size, count, _ = _HEADER.unpack_from(file)
    if not ident.startswith(_IDENT) or (file_type, machine, size) != (_RELOCATABLE, _X86_64, _SECTION.size):
        raise _Unknown
    if offset + count * size > len(file):
        raise _Unknown
    return [_Section(*_SECTION.unpack_from(file, offset + index * size)) for index in range(count)]


def _assign_offsets(sections: list[_Section]) -> tuple[dict[int, int], int, int]:
    """Assign offsets in memory to sections; return them by index, the bytes of read-only sections (whole pages at the
    beginning), and the total bytes."""
    offsets: dict[int, int] = {}
    offset = executable = 0
    for writable in (False, True):
        for index, section in enumerate(sections):
            if section.loaded and bool(section.flags & _WRITE) is writable:
                if section.type not in (_PROGBITS, _NOBITS) or section.flags & _TLS or section.align > mmap.PAGESIZE:
                    raise _Unknown
                offset = offsets[index] = -(-offset // max(section.align, 1)) * max(section.align, 1)
                offset += section.size
                if offset > _LARGEST:
                    raise _Unknown
        offset = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        executable = executable or offset
    return offsets, executable, offset


def _name(texts: bytes, offset: int) -> str:
    return texts[offset : texts.index(b"\0", offset)].decode()


def _content(file: bytes, section: _Section) -> bytes:
    end = section.offset + section.size
    if end > len(file):
        raise _Unknown
    return file[section.offset : end]


def _relocate(
    memory: mmap.mmap, base: int, section_offsets: Mapping[int, int], target: int, sections: list[_Section],
    symbols: list[tuple[Any, ...]], library: Mapping[int, int], relocations: bytes,
) -> None:  # fmt: skip
    """Apply the relocations of a section."""
    last, start, write_word = sections[target].size - _WORD.size, section_offsets[target], _WORD.pack_into
    addresses: dict[int, int] = {}
    """Addresses by symbol and type of relocation: most symbols have many."""
    entries: Iterator[tuple[int, int, int]] = _RELOCATION.iter_unpack(relocations)
    for offset, info, addend in entries:
        address = addresses.get(info)
        if address is None:
            symbol = info >> 32
            _, _, _, index, value, _ = symbols[symbol]
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
