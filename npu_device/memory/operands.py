"""Element types in memory, and the matrices of commands."""

from typing import NamedTuple

from npu_device.abi.opcodes import BITS, DataType
from npu_device.memory.bitwidth import bytes_total
from npu_device.memory.region import Region, make_region

FLOATS = (DataType.FP32, DataType.FP16, DataType.BF16, DataType.E4M3FN, DataType.E5M2)
INTEGERS = (DataType.INT32, DataType.INT8, DataType.UINT8, DataType.INT4, DataType.UINT4, DataType.INT2)
TYPES = FLOATS + INTEGERS

ELEMENT_BYTES = {kind: max(1, BITS[kind] // 8) for kind in (*TYPES, DataType.VQ8, DataType.ENCODED)}
"""Alignment of an element's address in bytes, by type."""


def row_bytes(columns: int, kind: DataType) -> int:
    """Return the bytes of one row; rows of elements below 8 bits are padded to a byte."""
    return bytes_total(columns, BITS[kind])


class Matrix(NamedTuple):
    """Row-major matrix of `rows` x `columns` elements."""

    region: Region
    rows: int
    columns: int
    kind: DataType
    bits: int
    """Bits of an element in memory."""


def make_matrix(address: int, rows: int, columns: int, kind: DataType, stride: int = 0, bits: int = 0) -> Matrix:
    """Return a matrix whose rows are `stride` bytes apart; 0 means packed. `bits`: width of an element if a codec
    encodes it, else 0."""
    bits = bits or BITS[kind]
    return Matrix(make_region(address, rows, (columns * bits + 7) // 8, stride), rows, columns, kind, bits)
