"""Scales of quantized tensors that are numbers to compute with."""

from typing import Any

import numpy as np

from toolchain.errors import ModelError
from toolchain.ir.graph import Values
from toolchain.onnx_frontend.model import OnnxModel

_LEAST = float(np.finfo(np.float32).tiny)
_DIVIDES = ("QuantizeLinear",)
"""Operators that divide by their scale."""


def check_scale(model: OnnxModel, proto: Any, name: str, values: Values, *, divides: bool = False) -> None:
    """ModelError where the scale `name` of a node is not finite, or where it divides, as that of QuantizeLinear does,
    is 0 or so small that its inverse is not finite."""
    wide = np.asarray(values).astype(np.float64).reshape(-1)
    divides = divides or proto.op_type in _DIVIDES
    wrong = wide[~np.isfinite(wide) | ((np.abs(wide) < _LEAST) if divides else False)]
    if wrong.size:
        rule = f"finite and at least {_LEAST:.3g} in size" if divides else "finite"
        where = proto.name or f"{proto.op_type}_{proto.output[0]}"
        raise ModelError(
            f"{model.name}: node {where} ({proto.op_type}, opset {model.opset}): scale {name} holds {wrong[0]:g}: "
            f"must be {rule}: quantize the model again"
        )
