"""GEMM_T: one k tile (docs/numerics.md)."""

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.opcodes import DataType
from npu_device.memory.arrays import WriteSet
from npu_device.memory.operands import Matrix
from npu_device.operations.kernels.elements import (
    BLOCK,
    Values,
    as_float,
    as_signed,
    blocks,
    encode,
    join,
    saturate,
    to_float,
    wrap,
)
from npu_device.operations.tile_form import REQUANTIZED

FP32_DEPTH = 256
"""Up to here sums of products of two bytes stay below 2^24: fp32 is exact, in whatever order they are added."""


def product(in0: Values, in1: Values) -> Values:
    """Multiply in0 (M x K) by in1 (K x N), in blocks if they are large; see `_product`."""
    (rows, depth), columns = in0.shape[-2:], in1.shape[-1]
    if in0.ndim > 2 or max(rows * depth, depth * columns, rows * columns) <= BLOCK:
        return _product(in0, in1)
    across = blocks(columns, depth)
    down = blocks(rows, max(depth, across[0].stop))
    return join([np.concatenate([_product(in0[r], in1[:, c]) for c in across], axis=1) for r in down])


def _product(in0: Values, in1: Values) -> Values:
    """Return the product: int32 if both are integers, exact and wrapping; else fp32.

    Both go through float64 BLAS: exact for integers, whose sums stay below 2^53 for every tile that fits the
    scratchpad; for floats the sum of a tile is rounded once, to fp32. For bytes float32 may do.
    """
    integers = in0.dtype.kind in "iu" and in1.dtype.kind in "iu"
    if integers and in0.dtype.itemsize == in1.dtype.itemsize == 1 and in0.shape[-1] <= FP32_DEPTH:
        return np.matmul(in0.astype(np.float32), in1.astype(np.float32)).astype(np.int32)
    total = in0.astype(np.float64) @ in1.astype(np.float64)
    if integers:
        return wrap(total.astype(np.int64), DataType.INT32)
    return to_float(total, DataType.FP32)


def add(total: Values, tile: Values) -> Values:
    """Add sums of tiles in k order: wrapping int32, or fp32."""
    with np.errstate(over="ignore", invalid="ignore"):
        return total + tile


def requantize(total: Values, multiplier: Values | np.float32, zero_point: int, kind: DataType) -> Values:
    """Return rint_half_even(float64(sum) * float64(multiplier) + zero point), clipped."""
    with np.errstate(over="ignore", invalid="ignore"):
        return saturate(np.rint(total.astype(np.float64) * multiplier.astype(np.float64) + zero_point), kind)


def finish_tile(d: Descriptor, output: Matrix, holds: bool, total: Values) -> WriteSet:
    """Return the writes of a GEMM_T in tile form from its sum."""
    if holds:
        return WriteSet(accumulator=total)
    if output.kind in REQUANTIZED:
        total = requantize(total, as_float(d.param0), as_signed(d.param1), output.kind)
    elif total.dtype.kind == "f":
        total = to_float(total, output.kind)
    return WriteSet(((output.region, encode(total, output.kind)),))


def multiply(in0: Values, in1: Values, tile_k: int, total: Values | None = None) -> Values:
    """Compute a product whose depth is cut into tiles: their sums are added in k order to `total`, if any.

    The last two axes are M x K and K x N; axes before them are independent products. Integers need no tiles, their sum
    is exact and wraps.
    """
    depth = in0.shape[-1]
    if in0.dtype.kind in "iu":
        tile_k = depth
    for start in range(0, depth, tile_k):
        tile = product(in0[..., start : start + tile_k], in1[..., start : start + tile_k, :])
        total = tile if total is None else add(total, tile)
    assert total is not None
    return total


def subtract_zero(values: Values, zero_point: int) -> Values:
    """Subtract a zero point from elements; integers get a type that holds the result exactly."""
    if not zero_point:
        return values
    return values.astype(np.int16 if values.dtype.itemsize == 1 else np.int64) - zero_point
