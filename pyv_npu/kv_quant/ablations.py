"""Ablations of Oaken: its groups, their ratios, the group shift and the granularity of extremes (docs/oaken.md,
"Ablations").

A layer is a pair of keys and values (tokens, C). Thresholds are order statistics of the first half of its tokens.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.kv_quant.codec import Parameters
from npu_device.kv_quant.codecs import OAKEN
from npu_device.kv_quant.methods import METHODS, KvMethod
from npu_device.kv_quant.thresholds import RATIOS, Thresholds

Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]
Layer = tuple[Floats, Floats]
Group = tuple[Mask, float, float, int, int | None]
"""Elements, limits by which they are shifted, bits of a code, and the axis of their extremes; None: all."""
Read = Callable[[str, Floats], tuple[float, Floats]]
"""Function from the side and its numbers to (bits of an element, decoded values)."""
TWO_GROUPS, NO_INNER = "two groups 10/90", (0.10, 0.90, 0.0)
"""Variant, and its shares."""
SCALE_BITS = 32
"""Bits of the fp16 minimum and step of a group."""


class AblationRow(NamedTuple):
    """Ablation of a variant: bits of an element, relative errors in the Euclidean norm over all layers."""

    variant: str
    bits: float
    keys: float
    values: float
    inner_keys: float
    """Error of only the elements in the inner group at 4/90/6."""
    inner_values: float


class Ratio(NamedTuple):
    """Point of the sweep over ratios."""

    outer: float
    middle: float
    inner: float
    b_eff: float
    keys: float
    values: float


def parameters(x: Floats, ratios: Sequence[float] = RATIOS) -> Parameters:
    """Calibrate parameters on the first half of the tokens. NpuDeviceError for NaN and infinities."""
    return OAKEN.calibrate([x[: max(1, len(x) // 2)]], 1, ratios)


def _all(x: Floats) -> Mask:
    return np.ones_like(x, bool)


def _inner(x: Floats, t: Thresholds) -> Mask:
    return (x > t.inner_low) & (x < t.inner_high)


def _outer(x: Floats, t: Thresholds) -> Mask:
    return (x <= t.outer_low) | (x >= t.outer_high)


def grouped(
    x: Floats, t: Thresholds, *, outer: bool = True, inner: bool = True, shift: bool = True, call: bool = False
) -> Floats:  # fmt: skip
    """Quantize like Oaken without some of its parts, and return the values after decoding, with the side of each
    element known. `call`: extremes of the outer and middle group over all tokens, as in the published artifact."""
    is_outer = _outer(x, t) & outer
    is_inner = _inner(x, t) & ~is_outer & inner
    axis = None if call else 1
    groups: list[Group] = [
        (is_outer, t.outer_low * shift, t.outer_high * shift, 5, axis),
        (~is_outer & ~is_inner, t.inner_low * shift, t.inner_high * shift, 4, axis),
        (is_inner, 0.0, 0.0, 5, 1),
    ]
    return _decoded(x, groups)


def _decoded(x: Floats, groups: Iterable[Group]) -> Floats:
    """Return the values after decoding: each group shifted by its limits, with uniform codes between its extremes."""
    result = x
    for mask, low, high, bits, axis in groups:
        offsets = np.where(x >= high, np.float32(high), np.float32(low))
        v = x - offsets
        lowest = np.where(mask, v, np.inf).min(axis=axis, keepdims=True)
        highest = np.where(mask, v, -np.inf).max(axis=axis, keepdims=True)
        lowest, highest = (np.where(np.isfinite(extreme), extreme, 0) for extreme in (lowest, highest))
        lowest = lowest.astype(np.float16).astype(np.float32)
        top = (1 << bits) - 1
        step = ((highest - lowest) / top).astype(np.float16).astype(np.float32)
        code = np.divide(v - lowest, step, out=np.zeros_like(v), where=step > 0)
        result = np.where(mask, np.clip(np.rint(code), 0, top) * step + lowest + offsets, result)
    return result.astype(np.float16).astype(np.float32)


def _bits(x: Floats, t: Thresholds, outer: bool, inner: bool) -> float:
    """Return the bits of an element: 4, a byte for each outlier, and min and step of each group."""
    is_outer = _outer(x, t) & outer
    outliers = float((is_outer | (_inner(x, t) & inner)).mean())
    return 4 + 8 * outliers + SCALE_BITS * (1 + outer + inner) / x.shape[1]


_PARTS: dict[str, dict[str, bool]] = {
    "side known": {},
    "no outer group": {"outer": False},
    "no inner group": {"inner": False},
    "no group shift": {"shift": False},
    "extremes of a call": {"call": True},
    TWO_GROUPS: {"inner": False},
}


def _variant(name: str, head_dim: int, side: str, x: Floats) -> tuple[float, Floats]:
    """Return (bits, decoded values)."""
    if (method := METHODS.get(name)) is not None:
        return _stored(method, head_dim, side, x)
    parts = _PARTS[name]
    t = parameters(x, NO_INNER if name == TWO_GROUPS else RATIOS).thresholds
    return _bits(x, t, parts.get("outer", True), parts.get("inner", True)), grouped(x, t, **parts)


def _stored(
    method: KvMethod, head_dim: int, side: str, x: Floats, ratios: Sequence[float] = RATIOS
) -> tuple[float, Floats]:
    """Return (bits, decoded values) of a method."""
    stored = method.store(x, side, head_dim, parameters(x, ratios))
    return stored.bits, stored.numbers


VARIANTS = ("oaken", *_PARTS, "per_token4")
"""Names of the variants. per_token4 has one group, the whole token. All others but oaken know the side of each element
without storing it, and so compare with "side known"."""


def ablations(layers: Sequence[Layer], head_dim: int) -> list[AblationRow]:
    """Return a row for each variant. NpuDeviceError for numbers that cannot be encoded."""
    subsets = _all, lambda x: _inner(x, parameters(x).thresholds)
    return [AblationRow(name, *_measure(layers, partial(_variant, name, head_dim), subsets)) for name in VARIANTS]


def _measure(layers: Sequence[Layer], read: Read, subsets: Sequence[Callable[[Floats], Mask]] = (_all,)) -> list[float]:
    """Return the mean bits of an element, then the relative errors of keys and of values in each subset of elements."""
    bits, squares = [], np.zeros((len(subsets), 2, 2))
    for layer in layers:
        for side, x in enumerate(layer):
            size, decoded = read("kv"[side], x)
            bits.append(size)
            for index, subset in enumerate(subsets):
                mask = subset(x)
                for at, numbers in enumerate((decoded - x, x)):
                    squares[index, side, at] += np.square(numbers[mask], dtype=np.float64).sum()
    errors = np.sqrt(squares[..., 0] / np.maximum(squares[..., 1], np.finfo(float).tiny))
    return [float(np.mean(bits)), *map(float, errors.reshape(-1))]


def ratio_sweep(layers: Sequence[Layer], points: Sequence[tuple[float, float, float]]) -> list[Ratio]:
    """Return errors and bits of Oaken at several shares of the groups."""
    return [Ratio(*point, *_measure(layers, partial(_stored, METHODS["oaken"], 1, ratios=point))) for point in points]


class GroupCount(NamedTuple):
    """Bits of an element and relative errors of Oaken with another number of groups."""

    groups: int
    bits: float
    keys: float
    values: float


GROUPS = ((0.10, 0.90), (0.04, 0.90, 0.06), (0.02, 0.02, 0.90, 0.06), (0.02, 0.02, 0.90, 0.03, 0.03))
"""Shares from the outermost group to the innermost; the largest is dense, with 4 bits, the others have 5 bits."""


def group_counts(layers: Sequence[Layer]) -> list[GroupCount]:
    """Return errors and bits of 2 to 5 groups. An entry has 6 bits of index, the highest bit of its code and the index
    of its group: 1 bit for up to three groups, 2 bits for more, so that entries exceed a byte. The side is known."""
    return [GroupCount(len(shares), *_measure(layers, partial(_concentric, shares))) for shares in GROUPS]


def _concentric(shares: Sequence[float], side: str, x: Floats) -> tuple[float, Floats]:
    """Return (bits, decoded values) with groups around the median, each shifted by its inner limits."""
    sample, count, dense = x[: max(1, len(x) // 2)], len(shares), int(np.argmax(shares))
    limits = [tuple(np.quantile(sample, at).astype(np.float16).astype(np.float32) for at in (end / 2, 1 - end / 2))
              for end in np.cumsum(shares)[:-1]]  # fmt: skip
    group = sum(((x > low) & (x < high)).astype(np.int64) for low, high in limits)
    groups = [(group == index, low, high, 4 if index == dense else 5, 1)
              for index, (low, high) in enumerate([*limits, (0.0, 0.0)])]  # fmt: skip
    entry = 7 + (count > 3) + (count > 2)
    outliers = float((group != dense).mean())
    return 4 + entry * outliers + SCALE_BITS * count / x.shape[1], _decoded(x, groups)
