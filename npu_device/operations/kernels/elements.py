"""Elements in memory to numpy and back (docs/numerics.md).

Elements below 8 bits are two's complement or unsigned, element 2i in the low bits; each row starts at a byte. The
parameter words of a descriptor hold numbers in the same way.
"""

import struct
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from npu_device.abi.opcodes import BITS, DataType
from npu_device.memory.arrays import Bytes

Values = NDArray[Any]

DTYPE: dict[DataType, np.dtype[Any]] = {
    DataType.FP32: np.dtype("<f4"),
    DataType.FP16: np.dtype("<f2"),
    DataType.BF16: np.dtype(ml_dtypes.bfloat16),
    DataType.E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    DataType.E5M2: np.dtype(ml_dtypes.float8_e5m2),
    DataType.INT32: np.dtype("<i4"),
    DataType.INT8: np.dtype("i1"),
    DataType.UINT8: np.dtype("u1"),
    DataType.INT4: np.dtype("i1"),
    DataType.UINT4: np.dtype("u1"),
    DataType.INT2: np.dtype("i1"),
}
"""The array type of an element; elements below 8 bits take a byte there."""

SIGNED = frozenset((DataType.INT32, DataType.INT8, DataType.INT4, DataType.INT2))

LARGEST = {
    DataType.E4M3FN: float(ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).max),
    DataType.E5M2: float(ml_dtypes.finfo(ml_dtypes.float8_e5m2).max),
}
"""Types that saturate at their largest finite value."""


def limits(kind: DataType) -> tuple[int, int]:
    """Return (lowest, highest) of an integer type."""
    bits = BITS[kind]
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if kind in SIGNED else (0, (1 << bits) - 1)


def decode(data: Bytes, kind: DataType, rows: int, columns: int) -> Values:
    """Return `rows` x `columns` elements from bytes; may share memory with `data`."""
    bits = BITS[kind]
    if bits >= 8:
        return data.view(DTYPE[kind]).reshape(rows, columns)
    per_byte = 8 // bits
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    padded = data.reshape(rows, -1)
    elements = padded[:, :, None] >> shifts & np.uint8((1 << bits) - 1)
    elements = elements.reshape(rows, padded.shape[1] * per_byte)[:, :columns]
    if kind in SIGNED:
        sign = np.uint8(1 << bits - 1)
        elements = (elements ^ sign) - sign
    return elements.view(DTYPE[kind])


def encode(values: Values, kind: DataType) -> Bytes:
    """Return the bytes of a matrix whose values are of `DTYPE[kind]` and in range, one row per row."""
    bits = BITS[kind]
    rows, columns = values.shape
    if bits >= 8:
        return np.ascontiguousarray(values).view(np.uint8).reshape(rows, -1)
    per_byte = 8 // bits
    padded = np.zeros((rows, -(-columns // per_byte) * per_byte), dtype=np.uint8)
    padded[:, :columns] = values.view(np.uint8) & np.uint8((1 << bits) - 1)
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    packed = padded.reshape(rows, -1, per_byte) << shifts
    return np.bitwise_or.reduce(packed, axis=2).astype(np.uint8)


NAN_BITS = {
    DataType.FP32: 0x7FC0_0000, DataType.FP16: 0x7E00, DataType.BF16: 0x7FC0, DataType.E4M3FN: 0x7F,
    DataType.E5M2: 0x7E,
}  # fmt: skip
"""Quiet, positive, without a payload."""

BLOCK = 1 << 22
"""Elements that are computed at a time, which bounds the temporary memory of a command."""


def blocks(rows: int, width: int) -> list[slice]:
    """Divide rows of `width` elements into blocks."""
    step = max(1, BLOCK // max(1, width))
    return [slice(start, min(rows, start + step)) for start in range(0, rows, step)]


def join(parts: list[Values]) -> Values:
    """Concatenate blocks of rows."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def wide(values: Values) -> Values:
    """Convert integers to int64, in which the arithmetic of a step is exact; floats to fp32."""
    return values.astype(np.int64) if values.dtype.kind in "iu" else values.astype(np.float32)


def to_float(values: Values, kind: DataType) -> Values:
    """Round to a float type, half to even; fp8 saturates, the others overflow to infinity. Every not-a-number is
    that of `NAN_BITS`."""
    if kind in LARGEST:
        values = np.clip(values, -LARGEST[kind], LARGEST[kind])
    with np.errstate(over="ignore", invalid="ignore"):
        result = values.astype(DTYPE[kind])
    nans = np.isnan(values)
    if nans.any():
        result.view(f"u{result.dtype.itemsize}")[nans] = NAN_BITS[kind]
    return result


def positive_zero(values: Values) -> Values:
    """Replace -0 by 0 in place, in the result of a maximum or minimum of floats."""
    if values.dtype.kind == "f":
        values += values.dtype.type(0)
    return values


def wrap(values: Values, kind: DataType) -> Values:
    """Convert int64 to an integer type, modulo its range."""
    if BITS[kind] >= 8:
        return values.astype(DTYPE[kind])
    low, high = limits(kind)
    return ((values - low) % (high - low + 1) + low).astype(DTYPE[kind])


def saturate(values: Values, kind: DataType) -> Values:
    """Convert whole numbers (float or int64) to an integer type, clipped to its range; not-a-number gives 0."""
    if values.dtype.kind == "f":
        values = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=2.0**40, neginf=-(2.0**40))
    return np.clip(values, *limits(kind)).astype(DTYPE[kind])


def as_float(word: int) -> np.float32:
    """Return the f32 with these bits."""
    return np.float32(struct.unpack("<f", word.to_bytes(4, "little"))[0])


def as_signed(word: int) -> int:
    """Return the i32 with these bits."""
    return word - (1 << 32) if word >> 31 else word
