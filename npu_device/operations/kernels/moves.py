"""Kernels of row look-ups and conversions: GATHER, KV_READ and KV_APPEND, and ROPE and POOL in tile form."""

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.opcodes import DataType, Pool
from npu_device.memory.operands import FLOATS
from npu_device.operations.checks import DescriptorError
from npu_device.operations.kernels import attention, windows
from npu_device.operations.kernels.elements import Values, as_float, as_signed, saturate, to_float
from npu_device.operations.limits import TABLE
from npu_device.operations.tile_form import pool_window


def row_numbers(indices: Values, rows: int) -> Values:
    """Return the indices into a table of `rows` rows, negative indices counted from the end. DescriptorError."""
    index = indices.astype(np.int64)
    wrong = np.flatnonzero((index < -rows) | (index >= rows))
    if len(wrong):
        at = int(wrong[0])
        raise DescriptorError(TicketError.ADDRESS, f"index {at} is {int(index[at])}, {TABLE} {rows} rows")
    return index % rows


def gather(d: Descriptor, operands: list[Values], kind: DataType, _: Values | None) -> Values:
    table, indices = operands
    return table[row_numbers(indices[0], len(table))]


def dequantize(codes: Values, scale: Values | None, zero_point: int) -> Values:
    """Return fp32 of elements of a cache; without a scale they are floats."""
    if scale is None:
        return codes.astype(np.float32)
    return ((codes.astype(np.int64) - zero_point) * scale.astype(np.float64)).astype(np.float32)


def quantize(x: Values, kind: DataType, scale: Values | None, zero_point: int) -> Values:
    """Return elements of a cache from numbers: rint(x / scale) + zero point, or a single rounding for floats."""
    if kind in FLOATS:
        return to_float(x.astype(np.float32), kind)
    assert scale is not None
    with np.errstate(all="ignore"):
        return saturate(np.rint(x.astype(np.float32) / scale) + np.float64(zero_point), kind)


def _scale(d: Descriptor, kind: int) -> Values | None:
    return None if kind in FLOATS else np.array(as_float(d.param0))


def kv_read(d: Descriptor, operands: list[Values], kind: DataType, _: Values | None) -> Values:
    if kind == d.type_kv:
        return operands[0]
    return to_float(dequantize(operands[0], _scale(d, d.type_kv), as_signed(d.param1)), kind)


def kv_append(d: Descriptor, operands: list[Values], kind: DataType, _: Values | None) -> Values:
    if kind == d.type_in0:
        return operands[0]
    return quantize(operands[0], kind, _scale(d, kind), as_signed(d.param1))


def rope(d: Descriptor, operands: list[Values], kind: DataType, _: Values | None) -> Values:
    x, table = operands
    half = table.shape[1] // 2
    turned = attention.rope(x[:, None], table[:, :half], table[:, half:], bool(d.param0))
    return to_float(turned[:, 0], kind)


def pool(d: Descriptor, operands: list[Values], kind: DataType, _: Values | None) -> Values:
    s = pool_window(d)
    images = operands[0].reshape(1, s.h, s.w, -1)
    return windows.pool(images, s, Pool(d.function), False, kind).reshape(s.pixels, -1)
