"""LAYERNORM, SOFTMAX, REDUCE by rows, and GELU: evaluated in fp64, rounded to fp32, then to the type."""

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.opcodes import DataType, Norm, Reduce
from npu_device.memory.operands import INTEGERS
from npu_device.operations.kernels.elements import Values, as_float, positive_zero, to_float, wide, wrap
from npu_device.operations.kernels.epilogue import gelu as gelu_erf
from npu_device.operations.kernels.epilogue import gelu_tanh


def _result(values: Values, kind: DataType) -> Values:
    return to_float(values.astype(np.float32), kind)


def normalize(x: Values, gamma: Values, beta: Values | None, epsilon: np.float32, norm: Norm, kind: DataType) -> Values:
    """Return for LAYER: (x - mean) / sqrt(variance + eps) * gamma + beta.

    For RMS: x / sqrt(mean of squares + eps) * gamma.
    """
    x = x.astype(np.float64)
    with np.errstate(all="ignore"):
        if norm is Norm.LAYER:
            x = x - x.mean(axis=1, keepdims=True)
        y = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + float(epsilon)) * gamma.astype(np.float64)
        return _result(y if beta is None else y + beta.astype(np.float64), kind)


def layernorm(d: Descriptor, operands: list[Values], kind: DataType, _: Values | None) -> Values:
    """Compute the tile form; in1 holds gamma and, for LAYER, beta."""
    x, weights = operands
    norm = Norm(d.function)
    return normalize(x, weights[0], weights[1] if norm is Norm.LAYER else None, as_float(d.param0), norm, kind)


def softmax(d: Descriptor, operands: list[Values], kind: DataType, _: Values | None) -> Values:
    """Return exp(x - maximum of the row) / sum of the row."""
    x = operands[0].astype(np.float64)
    with np.errstate(all="ignore"):
        y = np.exp(x - x.max(axis=1, keepdims=True))
        return _result(y / y.sum(axis=1, keepdims=True), kind)


def gelu(d: Descriptor, operands: list[Values], kind: DataType, _: Values | None) -> Values:
    """Return x/2 * (1 + erf(x / sqrt 2)), or with param0 = 1 the tanh form."""
    with np.errstate(all="ignore"):
        return _result((gelu_tanh if d.param0 else gelu_erf)(operands[0].astype(np.float64)), kind)


def reduce_axis(x: Values, function: Reduce, kind: DataType) -> Values:
    """Reduce axis 1, which stays with length 1; ARGMAX is the first index of the largest."""
    with np.errstate(all="ignore"):
        if function in (Reduce.ARGMAX, Reduce.MAX):
            values = wide(x)
            best = np.argmax(values, axis=1, keepdims=True)
            if function is Reduce.ARGMAX:
                return best.astype(np.int32)
            largest = np.take_along_axis(values, best, axis=1)
            return wrap(largest, kind) if kind in INTEGERS else to_float(positive_zero(largest), kind)
        if kind in INTEGERS:
            return wrap(wide(x).sum(axis=1, keepdims=True), kind)
        total = x.astype(np.float64).sum(axis=1, keepdims=True)
        return _result(total / x.shape[1] if function is Reduce.MEAN else total, kind)


def reduce(d: Descriptor, operands: list[Values], kind: DataType, _: Values | None) -> Values:
    """Compute the tile form, by rows."""
    return reduce_axis(operands[0], Reduce(d.function), kind)
