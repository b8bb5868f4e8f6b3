"""Epilogue of a sum (docs/descriptor.md, "Extended block"; docs/numerics.md).

| sum | steps | |---|---| | int32 | + bias (int32, wrapping); x scale; + residual; activation; to the type | | fp32 | x
scale; + bias; + residual; activation; to the type |

An integer result with a scale is requantized: all of it in fp64, rounded once, half to even, after the zero point was
added, then clipped. Its residual is (in2 - zero point) x the f32 that follows the scales. Every other step is in fp32.
An int32 result without a scale wraps.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from npu_device.abi.opcodes import Activation, DataType, Eltwise
from npu_device.memory.operands import INTEGERS
from npu_device.operations.kernels.elements import Values, saturate, to_float, wrap
from npu_device.operations.kernels.eltwise import UNARY, erf, in_fp64
from npu_device.operations.kernels.gemm import add

_TANH_CUBIC = 0.044715
"""Of GELU's tanh form (Hendrycks and Gimpel, arXiv 1606.08415)."""


def gelu(x: Values) -> Values:
    """Return x/2 (1 + erf(x / sqrt 2)), of fp64."""
    return x / 2 * (1 + erf(x / np.sqrt(2)))


def gelu_tanh(x: Values) -> Values:
    """Return GELU with tanh instead of erf, of fp64."""
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + _TANH_CUBIC * x**3)))


ACTIVATIONS: dict[Activation, Callable[[Values], Values]] = {
    Activation.NONE: lambda x: x,
    Activation.GELU: in_fp64(gelu),
    Activation.GELU_TANH: in_fp64(gelu_tanh),
    **{member: UNARY[Eltwise[member.name]] for member in Activation if member.name in Eltwise.__members__},
}
"""Those of ELTWISE, and GELU."""
ON_INTEGERS = frozenset((Activation.NONE, Activation.RELU))
"""Activations that an integer result may have: they do not depend on its scale."""


class Epilogue(NamedTuple):
    """Values to use, in shapes that broadcast against the sum (M x N)."""

    activation: Activation = Activation.NONE
    bias: Values | None = None
    scale: Values | None = None
    """f32."""
    residual: Values | None = None
    """Of the result's type, less its zero point."""
    residual_scale: np.float32 = np.float32(1)
    zero_point: int = 0
    """Of an integer result."""


def finish(total: Values, epilogue: Epilogue, kind: DataType) -> Values:
    """Return the result in `kind` of a sum, int32 or fp32."""
    activate = ACTIVATIONS[epilogue.activation]
    with np.errstate(all="ignore"):
        if total.dtype.kind == "i":
            if epilogue.bias is not None:
                total = add(total, epilogue.bias)
            if epilogue.scale is None:
                wide = total.astype(np.int64)
                if epilogue.residual is not None:
                    wide = wide + epilogue.residual
                return activate(wrap(wide, kind))
            scaled = total.astype(np.float64) * epilogue.scale.astype(np.float64)
            if kind in INTEGERS:
                if epilogue.residual is not None:
                    scaled = scaled + epilogue.residual.astype(np.float64) * np.float64(epilogue.residual_scale)
                return saturate(np.rint(activate(scaled) + epilogue.zero_point), kind)
            value = scaled.astype(np.float32)
        else:
            value = total if epilogue.scale is None else total * epilogue.scale
            if epilogue.bias is not None:
                value = value + epilogue.bias
        if epilogue.residual is not None:
            value = value + epilogue.residual.astype(np.float32)
        return to_float(activate(value), kind)


assert set(ACTIVATIONS) == set(Activation), "every activation has a kernel"
