"""Scales of tensors from sampled ranges, and the nodes that convert a tensor to codes and back."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from onnx import helper, numpy_helper

from toolchain.ir.graph import Values

Samples = Sequence[Mapping[str, Values]]
"""Input name -> values, for each sample."""
TINY = float(np.finfo(np.float32).tiny)
"""Smallest normal number of FP32."""


class ActivationScale(NamedTuple):
    """Scale of an activation, one for the whole tensor."""

    scale: np.float32
    kind: type
    zero: int


class Pair(NamedTuple):
    """Nodes that convert a tensor to codes and back; their outputs have suffixes `.q` and `.dq`."""

    nodes: tuple[Any, Any]
    constants: tuple[Any, Any]


def codes_of(values: Values, scale: ActivationScale) -> Values:
    """Quantize numbers to codes of a scale, with saturation."""
    steps = values / scale.scale
    if not issubclass(scale.kind, np.integer):
        limit = float(ml_dtypes.finfo(scale.kind).max)
        return np.clip(steps, -limit, limit).astype(scale.kind)
    limits = np.iinfo(scale.kind)
    return np.clip(np.rint(steps) + scale.zero, limits.min, limits.max).astype(scale.kind)


_SHRINKS = np.linspace(1, 0.5, 26)
"""Candidate scales, relative to the scale that covers the largest number."""


def least_squares_scales(rows: Values, top: int) -> Values:
    """Return a scale for each row, for codes -top..top: for 8 bits the scale that covers the largest number, for fewer
    bits that with the least squared error among `_SHRINKS`. FP32; 1 for a row of zeros."""
    wide = rows.astype(np.float64)
    full_scale = np.abs(wide).max(axis=1, keepdims=True) / top
    full_scale[full_scale <= 0] = 1
    best, min_errors = full_scale, np.full(full_scale.shape, np.inf)
    for shrink in _SHRINKS if top < np.iinfo(np.int8).max else ():
        scale = full_scale * shrink
        errors = ((np.clip(np.rint(wide / scale), -top, top) * scale - wide) ** 2).sum(axis=1, keepdims=True)
        best, min_errors = np.where(errors < min_errors, scale, best), np.minimum(errors, min_errors)
    return best[:, 0].astype(np.float32)


def pair(name: str, scale: ActivationScale) -> Pair:
    """Return QuantizeLinear and DequantizeLinear of a tensor."""
    values = {f"{name}.scale": scale.scale, f"{name}.zero": scale.kind(scale.zero)}
    nodes = (
        helper.make_node("QuantizeLinear", [name, *values], [f"{name}.q"], name=f"{name}.quantize"),
        helper.make_node("DequantizeLinear", [f"{name}.q", *values], [f"{name}.dq"], name=f"{name}.dequantize"),
    )
    first, second = (numpy_helper.from_array(np.asarray(value), tensor_name) for tensor_name, value in values.items())
    return Pair(nodes, (first, second))


def invertible_scale(step: float) -> np.float32:
    """Return a scale with a finite inverse."""
    return np.float32(step if step > TINY else 1)


def scale_of(low: float, high: float, kind: type | None = None) -> ActivationScale:
    """Return the scale of a range. `kind`: type that matches another tensor; UINT8 has its zero point in the middle for
    ranges with negative values."""
    kind = kind or (np.uint8 if low >= 0 else np.int8)
    positive = low >= 0 and kind is np.uint8
    step = high / 255 if positive else max(-low, high) / 127
    return ActivationScale(invertible_scale(step), kind, 0 if positive or kind is np.int8 else 128)
