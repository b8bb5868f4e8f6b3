"""LAYERNORM, SOFTMAX, REDUCE by rows, and GELU: evaluated in fp64, rounded to fp32, then to the type."""

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.opcodes import DataType, Norm, Reduce
from npu_device.kernels.elements import Values, to_float, wide, wrap
from npu_device.kernels.eltwise import erf
from npu_device.kernels.parameters import as_float
from npu_device.operands import INTEGERS

_TANH_CUBIC = 0.044715
"""Of GELU's tanh form (Hendrycks and Gimpel, arXiv 1606.08415)."""


def _result(values: Values, kind: DataType) -> Values:
    return to_float(values.astype(np.float32), kind)


def layernorm(d: Descriptor, operands: list[Values], kind: DataType, _: Values | None) -> Values:
    """LAYER: (x - mean) / sqrt(variance + eps) * gamma + beta. RMS: x / sqrt(mean of squares + eps) * gamma."""
    x, weights = (operand.astype(np.float64) for operand in operands)
    epsilon = float(as_float(d.param0))
    with np.errstate(all="ignore"):
        if d.function == Norm.LAYER:
            x = x - x.mean(axis=1, keepdims=True)
        y = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + epsilon) * weights[0]
        return _result(y + weights[1] if d.function == Norm.LAYER else y, kind)


def softmax(d: Descriptor, operands: list[Values], kind: DataType, _: Values | None) -> Values:
    """exp(x - largest of the row) / sum of the row."""
    x = operands[0].astype(np.float64)
    with np.errstate(all="ignore"):
        y = np.exp(x - x.max(axis=1, keepdims=True))
        return _result(y / y.sum(axis=1, keepdims=True), kind)


def gelu(d: Descriptor, operands: list[Values], kind: DataType, _: Values | None) -> Values:
    """x/2 * (1 + erf(x / sqrt 2)), or with param0 = 1 the tanh form."""
    x = operands[0].astype(np.float64)
    with np.errstate(all="ignore"):
        if d.param0:
            gate = np.tanh(np.sqrt(2 / np.pi) * (x + _TANH_CUBIC * x**3))
        else:
            gate = erf(x / np.sqrt(2))
        return _result(x / 2 * (1 + gate), kind)


def reduce(d: Descriptor, operands: list[Values], kind: DataType, _: Values | None) -> Values:
    """One element per row; ARGMAX is the first index of the largest."""
    x = operands[0]
    with np.errstate(all="ignore"):
        if d.function == Reduce.ARGMAX:
            return np.argmax(wide(x), axis=1, keepdims=True).astype(np.int32)
        if d.function == Reduce.MAX:
            return x[np.arange(len(x)), np.argmax(wide(x), axis=1)][:, None]
        if kind in INTEGERS:
            return wrap(wide(x).sum(axis=1, keepdims=True), kind)
        total = x.astype(np.float64).sum(axis=1, keepdims=True)
        return _result(total / x.shape[1] if d.function == Reduce.MEAN else total, kind)
