"""ELTWISE: functions of one or two elements (operand conventions: `npu_device.operations.tile_form`).

Integers compute exactly and wrap on the way out; division truncates towards zero and gives 0 for a zero divisor. Floats
compute in fp32 and are rounded once to their type; functions beyond + - * / are evaluated in fp64 and rounded to fp32,
so that they do not depend on the machine.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.opcodes import DataType, Eltwise
from npu_device.memory.operands import INTEGERS
from npu_device.operations.kernels.elements import (
    Values,
    as_float,
    as_signed,
    positive_zero,
    saturate,
    to_float,
    wide,
    wrap,
)
from npu_device.operations.kernels.gemm import requantize


def in_fp64(function: Callable[[Values], Values]) -> Callable[[Values], Values]:
    """Evaluate in fp64, round to fp32."""

    def evaluate(values: Values) -> Values:
        return function(values.astype(np.float64)).astype(np.float32)

    return evaluate


_erf: Callable[[Values], Values] = np.vectorize(math.erf, otypes=[np.float64])
_ERF_BLOCK = 1 << 20


def erf(values: Values) -> Values:
    """Return erf of fp64 values, in blocks; numpy has none, and the fallback makes an object per element."""
    if values.size <= _ERF_BLOCK:
        return _erf(values)
    flat = values.reshape(-1)
    parts = [_erf(flat[start : start + _ERF_BLOCK]) for start in range(0, len(flat), _ERF_BLOCK)]
    return np.concatenate(parts).reshape(values.shape)


def _sigmoid(x: Values) -> Values:
    return 1 / (1 + np.exp(-x))


def _relu(x: Values) -> Values:
    return positive_zero(np.maximum(x, x.dtype.type(0)))


def _relu6(x: Values) -> Values:
    return np.minimum(_relu(x), x.dtype.type(6))


def _hard_sigmoid(x: Values) -> Values:
    """Return the hard sigmoid of fp64 values, as in MobileNetV3 (Howard et al., arXiv 1905.02244)."""
    return _relu6(x + 3) / 6


def _mish(x: Values) -> Values:
    """Return mish of fp64 values; log(1 + e^x) does not overflow (Misra, arXiv 1908.08681)."""
    return x * np.tanh(np.logaddexp(0, x))


UNARY: dict[Eltwise, Callable[[Values], Values]] = {
    Eltwise.RELU: _relu,
    Eltwise.RELU6: _relu6,
    Eltwise.SILU: in_fp64(lambda x: x / (1 + np.exp(-x))),
    Eltwise.HARD_SIGMOID: in_fp64(_hard_sigmoid),
    Eltwise.HARD_SWISH: in_fp64(lambda x: x * _hard_sigmoid(x)),
    Eltwise.MISH: in_fp64(_mish),
    Eltwise.SIGMOID: in_fp64(_sigmoid),
    Eltwise.TANH: in_fp64(np.tanh),
    Eltwise.ERF: in_fp64(erf),
    Eltwise.EXP: in_fp64(np.exp),
    Eltwise.SQRT: np.sqrt,
    Eltwise.SIN: in_fp64(np.sin),
    Eltwise.COS: in_fp64(np.cos),
    Eltwise.LOG: in_fp64(np.log),
    Eltwise.FLOOR: np.floor,
    Eltwise.CEIL: np.ceil,
    Eltwise.ROUND: np.rint,
}


def _divide(a: Values, b: Values) -> Values:
    if a.dtype.kind == "f":
        return np.divide(a, b)
    quotient = np.abs(a) // np.where(b == 0, 1, np.abs(b))
    return np.where(b == 0, 0, np.where((a < 0) != (b < 0), -quotient, quotient))


def _remainder(a: Values, b: Values) -> Values:
    """Return the remainder of a division that rounds towards zero; for integers, the dividend for a divisor of 0."""
    return np.fmod(a, b) if a.dtype.kind == "f" else a - _divide(a, b) * b


def _power(a: Values, b: Values) -> Values:
    return np.power(a.astype(np.float64), b.astype(np.float64)).astype(np.float32)


def _shift_left(a: Values, b: Values) -> Values:
    return np.where((b < 0) | (b > 31), 0, a << (b & 31))


def _shift_right(a: Values, b: Values) -> Values:
    return a >> np.where((b < 0) | (b > 31), 63, b)


BINARY: dict[Eltwise, Callable[[Values, Values], Values]] = {
    Eltwise.ADD: np.add,
    Eltwise.SUB: np.subtract,
    Eltwise.MUL: np.multiply,
    Eltwise.DIV: _divide,
    Eltwise.MAX: lambda a, b: positive_zero(np.maximum(a, b)),
    Eltwise.MIN: lambda a, b: positive_zero(np.minimum(a, b)),
    Eltwise.POW: _power,
    Eltwise.REM: _remainder,
    Eltwise.AND: np.bitwise_and,
    Eltwise.OR: np.bitwise_or,
    Eltwise.XOR: np.bitwise_xor,
    Eltwise.SHL: _shift_left,
    Eltwise.SHR: _shift_right,
}


COMPARE: dict[Eltwise, Callable[[Values, Values], Values]] = {
    Eltwise.EQUAL: np.equal,
    Eltwise.GREATER: np.greater,
    Eltwise.LESS: np.less,
}
"""1 or 0 as UINT8."""


def narrow(values: Values, kind: DataType) -> Values:
    """Return a result to its type in memory."""
    return wrap(values, kind) if kind in INTEGERS else to_float(values, kind)


def cast(values: Values, kind: DataType) -> Values:
    """Convert between integers modulo the range; from float truncated and clipped; to float rounded once."""
    if kind not in INTEGERS:
        return to_float(values, kind)
    if values.dtype.kind in "iu":
        return wrap(values.astype(np.int64), kind)
    return saturate(np.trunc(values.astype(np.float64)), kind)


def quantize(values: Values, scale: Values, zero_point: int, kind: DataType) -> Values:
    """Quantize floats as ONNX QuantizeLinear does: rint(x / scale) + zero point; int32 sums as GEMM_T requantizes."""
    if values.dtype.kind == "i":
        return requantize(values, scale, zero_point, kind)
    return saturate(np.rint(values.astype(np.float32) / scale) + np.float64(zero_point), kind)


def dequantize(values: Values, scale: Values, zero_point: int, kind: DataType) -> Values:
    """Return (x - zero point) * scale, rounded to fp32 and then to the type."""
    difference = (values.astype(np.int64) - zero_point).astype(np.float64)
    return to_float((difference * scale.astype(np.float64)).astype(np.float32), kind)


class Parameters(NamedTuple):
    """Numbers that some functions take."""

    scale: Values = np.ones(1, np.float32)
    """f32, a scalar or a value per column."""
    zero_point: int = 0
    lowest: int = 0
    """Bits of an f32, or an i32 for integers."""
    highest: int = 0


def clip(values: Values, p: Parameters, kind: DataType) -> Values:
    number = as_signed if kind in INTEGERS else as_float
    return positive_zero(np.minimum(np.maximum(wide(values), number(p.lowest)), number(p.highest)))


def apply(function: Eltwise, operands: list[Values], p: Parameters, kind: DataType) -> Values:
    """Return the result in `kind`. WHERE takes a condition, the value if it holds, and the value if not."""
    first = operands[0]
    with np.errstate(all="ignore"):
        if function is Eltwise.WHERE:
            return np.where(first != 0, operands[1], operands[2])
        if function is Eltwise.CAST:
            return cast(first, kind)
        if function is Eltwise.QUANT:
            return quantize(first, p.scale, p.zero_point, kind)
        if function is Eltwise.DEQUANT:
            return dequantize(first, p.scale, p.zero_point, kind)
        if function is Eltwise.CLIP:
            return narrow(clip(first, p, kind), kind)
        if function in COMPARE:
            return COMPARE[function](wide(first), wide(operands[1])).astype(np.uint8)
        if function in UNARY:
            return narrow(UNARY[function](wide(first)), kind)
        return narrow(BINARY[function](wide(first), wide(operands[1])), kind)


def eltwise(d: Descriptor, operands: list[Values], kind: DataType, previous: Values | None) -> Values:
    """Compute the tile form; `previous` is the old content of the output (WHERE)."""
    if previous is not None:
        operands = [*operands, previous]
    if d.function == Eltwise.CLIP:
        parameters = Parameters(lowest=d.param0, highest=d.param1)
    else:
        parameters = Parameters(np.array([as_float(d.param0)]), as_signed(d.param1))
    return apply(Eltwise(d.function), operands, parameters, kind)


assert set(UNARY) | set(BINARY) | set(COMPARE) | {
    Eltwise.CLIP,
    Eltwise.WHERE,
    Eltwise.CAST,
    Eltwise.QUANT,
    Eltwise.DEQUANT,
} == set(Eltwise), "every function of ELTWISE has a kernel"
