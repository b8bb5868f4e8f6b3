"""GEMM_T: one k tile (specification 40, "Numerics")."""

import numpy as np

from npu_device.abi.opcodes import DataType
from npu_device.kernels.elements import Values, saturate, to_float, wrap


def product(in0: Values, in1: Values) -> Values:
    """in0 (M x K) times in1 (K x N): int32 for integers, exact and wrapping; fp32 for floats.

    Both go through float64 BLAS: exact for integers, whose sums stay below 2^53 for every tile that fits the
    scratchpad; for floats the sum of a tile is rounded once, to fp32.
    """
    total = in0.astype(np.float64) @ in1.astype(np.float64)
    if in0.dtype.kind in "iu":
        return wrap(total.astype(np.int64), DataType.INT32)
    return to_float(total, DataType.FP32)


def add(held: Values, tile: Values) -> Values:
    """Tile sums in k order: wrapping int32, or fp32."""
    with np.errstate(over="ignore", invalid="ignore"):
        return held + tile


def requantize(total: Values, multiplier: np.float32, zero_point: int, kind: DataType) -> Values:
    """rint_half_even(float64(sum) * float64(multiplier) + zero point), clipped."""
    with np.errstate(over="ignore", invalid="ignore"):
        return saturate(np.rint(total.astype(np.float64) * np.float64(multiplier) + zero_point), kind)
