"""Loads and stores of memory beside the records: guest RAM and byte maps, by host address.

The memory must outlive the calls. Values are little-endian and unsigned; a store takes the low bits. Nothing is
checked.
"""

import ctypes
from ctypes import c_uint8, c_uint16, c_uint32


def load_u8(address: int) -> int:
    """The byte at a host address."""
    return c_uint8.from_address(address).value


def load_u16(address: int) -> int:
    """The two bytes at a host address."""
    return c_uint16.from_address(address).value


def load_u32(address: int) -> int:
    """The four bytes at a host address."""
    return c_uint32.from_address(address).value


def store_u8(address: int, value: int) -> None:
    """Store a byte."""
    c_uint8.from_address(address).value = value


def store_u16(address: int, value: int) -> None:
    """Store two bytes."""
    c_uint16.from_address(address).value = value


def store_u32(address: int, value: int) -> None:
    """Store four bytes."""
    c_uint32.from_address(address).value = value


def address_of(buffer: object) -> int:
    """Host address of a writable buffer; the caller keeps the buffer alive."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))  # type: ignore[arg-type]
