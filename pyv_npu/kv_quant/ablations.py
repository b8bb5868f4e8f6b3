"""Ablations of Oaken: its groups, their ratios, the group shift and the granularity of extremes (docs/oaken.md,
"Ablations").

A layer is a pair of keys and values (tokens, C). Thresholds are order statistics of the first half of its tokens.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.kv_quant import oaken
from npu_device.kv_quant.codec import Parameters
from npu_device.kv_quant.codecs import OAKEN
from npu_device.kv_quant.methods import METHODS
from npu_device.kv_quant.thresholds import RATIOS, Thresholds

Floats = NDArray[np.float32]
Layer = tuple[Floats, Floats]
NO_INNER = (0.10, 0.90, 0.0)
"""Shares of two groups."""
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


def _inner(x: Floats, t: Thresholds) -> NDArray[np.bool_]:
    return (x > t.inner_low) & (x < t.inner_high)


def _outer(x: Floats, t: Thresholds) -> NDArray[np.bool_]:
    return (x <= t.outer_low) | (x >= t.outer_high)


def grouped(
    x: Floats, t: Thresholds, *, outer: bool = True, inner: bool = True, shift: bool = True, call: bool = False
) -> Floats:  # fmt: skip
    """Quantize like Oaken without some of its parts, and return the values after decoding, with the side of each
    element known. `call`: extremes of the outer and middle group over all tokens, as in the published artifact."""
    is_outer = _outer(x, t) & outer
    is_inner = _inner(x, t) & ~is_outer & inner
    result = x
    for mask, low, high, bits, axis in (
        (is_outer, t.outer_low, t.outer_high, 5, None if call else 1),
        (~is_outer & ~is_inner, t.inner_low, t.inner_high, 4, None if call else 1),
        (is_inner, 0.0, 0.0, 5, 1),
    ):
        offsets = np.where(x >= high, np.float32(high), np.float32(low)) if shift else np.zeros_like(x)
        v = x - offsets
        lowest = np.where(mask, v, np.inf).min(axis=axis, keepdims=True)
        highest = np.where(mask, v, -np.inf).max(axis=axis, keepdims=True)
        lowest, highest = (np.where(np.isfinite(extreme), extreme, 0) for extreme in (lowest, highest))
        lowest = lowest.astype(np.float16).astype(np.float32)
        top = (1 << bits) - 1
        step = ((highest - lowest) / top).astype(np.float16).astype(np.float32)
        code = np.divide(v - lowest, step, out=np.zeros_like(v), where=step > 0)
        read = np.clip(np.rint(code), 0, top) * step + lowest + offsets
        result = np.where(mask, read, result)
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
}


def _variant(name: str, x: Floats, side: str, head_dim: int) -> tuple[float, Floats]:
    """Return (bits, decoded values)."""
    if (method := METHODS.get(name)) is not None:
        p = parameters(x)
        return method.stored_bits(x, side, head_dim, p), method.read_back(x, side, head_dim, p)
    if name in _PARTS:
        t, parts = parameters(x).thresholds, _PARTS[name]
        return _bits(x, t, parts.get("outer", True), parts.get("inner", True)), grouped(x, t, **parts)
    t = parameters(x, NO_INNER).thresholds
    return _bits(x, t, True, False), grouped(x, t, inner=False)


VARIANTS = ("oaken", *_PARTS, "two groups 10/90", "per_token4")
"""Names of the variants. per_token4 has one group, the whole token. All others but oaken know the side of each element
without storing it, and so compare with "side known"."""


def ablations(layers: Sequence[Layer], head_dim: int) -> list[AblationRow]:
    """Return a row for each variant. NpuDeviceError for numbers that cannot be encoded."""
    rows = []
    for name in VARIANTS:
        squares = np.zeros((2, 2, 2))  # axes: all or inner elements, keys or values, errors or values
        bits = []
        for layer in layers:
            for side, x in enumerate(layer):
                size, read = _variant(name, x, "kv"[side], head_dim)
                bits.append(size)
                for subset, mask in enumerate((np.ones_like(x, bool), _inner(x, parameters(x).thresholds))):
                    difference = (read - x)[mask]
                    squares[subset, side] += _square(difference), _square(x[mask])
        errors = np.sqrt(squares[..., 0] / np.maximum(squares[..., 1], np.finfo(float).tiny))
        rows.append(AblationRow(name, float(np.mean(bits)), *map(float, errors.reshape(-1))))
    return rows


def _square(x: NDArray[Any]) -> float:
    return float(np.square(x, dtype=np.float64).sum())


def ratio_sweep(layers: Sequence[Layer], points: Sequence[tuple[float, float, float]]) -> list[Ratio]:
    """Return errors and bits of Oaken at several shares of the groups."""
    rows = []
    for point in points:
        squares = np.zeros((2, 2))
        bits = []
        for layer in layers:
            for side, x in enumerate(layer):
                p = parameters(x, point)
                encoded = oaken.encode(x, p.thresholds, p.code)
                bits.append(8 * encoded.payload / x.size)
                read = oaken.decode(encoded, p.thresholds, p.code).astype(np.float32)
                squares[side] += _square(read - x), _square(x)
        errors = np.sqrt(squares[:, 0] / np.maximum(squares[:, 1], np.finfo(float).tiny))
        rows.append(Ratio(*point, float(np.mean(bits)), *map(float, errors)))
    return rows


class GroupCount(NamedTuple):
    """Bits of an element and relative errors of Oaken with another number of groups."""

    groups: int
    bits: float
    keys: float
    values: float


GROUPS = {2: (0.10, 0.90), 3: (0.04, 0.90, 0.06), 4: (0.02, 0.02, 0.90, 0.06), 5: (0.02, 0.02, 0.90, 0.03, 0.03)}
"""Shares from the outermost group to the innermost; the largest is dense, with 4 bits, the others have 5 bits."""


def group_counts(layers: Sequence[Layer]) -> list[GroupCount]:
    """Return errors and bits of 2 to 5 groups. An entry has 6 bits of index, the highest bit of its code and the index
    of its group: 1 bit for up to three groups, 2 bits for more, so that entries exceed a byte. The side is known."""
    rows = []
    for count, shares in GROUPS.items():
        squares, bits = np.zeros((2, 2)), []
        entry = 7 + (count > 3) + (count > 2)
        for layer in layers:
            for side, x in enumerate(layer):
                read, outliers = _concentric(x, shares)
                bits.append(4 + entry * outliers + SCALE_BITS * count / x.shape[1])
                squares[side] += _square(read - x), _square(x)
        errors = np.sqrt(squares[:, 0] / np.maximum(squares[:, 1], np.finfo(float).tiny))
        rows.append(GroupCount(count, float(np.mean(bits)), *map(float, errors)))
    return rows


def _concentric(x: Floats, shares: Sequence[float]) -> tuple[Floats, float]:
    """Return (decoded values, share of outliers) with groups around the median, each shifted by its inner limits."""
    sample, dense = x[: max(1, len(x) // 2)], int(np.argmax(shares))
    ends = np.cumsum(shares)[:-1]
    limits = [tuple(np.quantile(sample, at).astype(np.float16).astype(np.float32) for at in (end / 2, 1 - end / 2))
              for end in ends]  # fmt: skip
    group = sum(((x > low) & (x < high)).astype(np.int64) for low, high in limits)
    read = x
    for index in range(len(shares)):
        low, high = limits[index] if index < len(limits) else (np.float32(0), np.float32(0))
        offsets, mask = np.where(x >= high, high, low), group == index
        v = x - offsets
        lowest, highest = (np.where(mask, v, sign * np.inf) for sign in (1, -1))
        first, last = lowest.min(axis=1, keepdims=True), highest.max(axis=1, keepdims=True)
        first, last = (np.where(np.isfinite(extreme), extreme, 0) for extreme in (first, last))
        first = first.astype(np.float16).astype(np.float32)
        top = (1 << (4 if index == dense else 5)) - 1
        step = ((last - first) / top).astype(np.float16).astype(np.float32)
        code = np.divide(v - first, step, out=np.zeros_like(v), where=step > 0)
        read = np.where(mask, np.clip(np.rint(code), 0, top) * step + first + offsets, read)
    return read.astype(np.float16).astype(np.float32), float((group != dense).mean())
