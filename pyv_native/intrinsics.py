"""Intrinsics of the subset: conversions of 64-bit signed values to narrow or unsigned ones, accesses of memory outside
the records (guest RAM, byte maps) and calls of functions of another buffer by host address.

Such memory and functions must outlive the calls. Values of memory are little-endian and, below eight bytes, unsigned; a
store takes the low bits. Nothing is checked.
"""

import ctypes
from ctypes import c_int64, c_uint8, c_uint16, c_uint32, c_void_p

U32 = (1 << 32) - 1
U64 = (1 << 64) - 1


def u32(value: int) -> int:
    """Return the low 32 bits, 0..2^32-1."""
    return value & U32


def i32(value: int) -> int:
    """Return the low 32 bits with their sign, -2^31..2^31-1."""
    return ((value & U32) ^ (1 << 31)) - (1 << 31)


def unsigned_less(left: int, right: int) -> int:
    """Return 1 if `left` is below `right`, both read as unsigned 64-bit integers, else 0."""
    return int((left & U64) < (right & U64))


def wrapping_sub(left: int, right: int) -> int:
    """Return the difference modulo 2^64, -2^63..2^63-1."""
    return ((left - right & U64) ^ (1 << 63)) - (1 << 63)


def load_u8(address: int) -> int:
    """Load the byte at a host address."""
    return c_uint8.from_address(address).value


def load_u16(address: int) -> int:
    """Load the two bytes at a host address."""
    return c_uint16.from_address(address).value


def load_u32(address: int) -> int:
    """Load the four bytes at a host address."""
    return c_uint32.from_address(address).value


def load_i64(address: int) -> int:
    """Load the eight bytes at a host address, signed."""
    return c_int64.from_address(address).value


def store_u8(address: int, value: int) -> None:
    """Store a byte."""
    c_uint8.from_address(address).value = value


def store_u16(address: int, value: int) -> None:
    """Store two bytes."""
    c_uint16.from_address(address).value = value


def store_u32(address: int, value: int) -> None:
    """Store four bytes."""
    c_uint32.from_address(address).value = value


def store_i64(address: int, value: int) -> None:
    """Store eight bytes."""
    c_int64.from_address(address).value = value


def copy_bytes(target: int, source: int, size: int) -> None:
    """Copy bytes from one host address to another; they may overlap."""
    ctypes.memmove(target, source, size)


_PORT = ctypes.PYFUNCTYPE(c_int64, c_void_p, c_int64, c_int64, c_int64)


def call_native(function: int, buffer: int, first: int, second: int, third: int) -> int:
    """Call the compiled function at host address `function` as `int64 f(buffer, first, second, third)`; `buffer` is the
    host address of the arena that it works on, whose status word an error sets."""
    result: int = _PORT(function)(buffer, first, second, third)
    return result


def address_of(buffer: object) -> int:
    """Return the host address of a writable buffer; the caller keeps the buffer alive."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))  # type: ignore[arg-type]
