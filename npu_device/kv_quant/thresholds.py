"""Thresholds between Oaken's groups, profiled offline: a set for the keys and one for the values of each layer.

Source: Kim et al., Oaken, ISCA 2025, section 4.3; the file has its artifact's format (docs/oaken.md, "Thresholds").
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.abi.errors import NpuDeviceError

RATIOS = (0.04, 0.90, 0.06)
"""Outer, middle and inner share of the elements."""
GROUPS = 3
SIDES = ("key", "value")


class Thresholds(NamedTuple):
    """Thresholds of a layer's keys or values, fp16: x <= outer_low or x >= outer_high is outer, inner_low < x <
    inner_high is inner, the rest is middle."""

    outer_low: float
    inner_low: float
    inner_high: float
    outer_high: float

    def check(self, origin: str) -> "Thresholds":
        """Return the thresholds rounded to fp16. Raise NpuDeviceError if they are not finite or not ascending."""
        with np.errstate(over="ignore"):
            rounded = [float(np.float16(threshold)) for threshold in self]
        for name, number, value in zip(self._fields, self, rounded, strict=True):
            if not math.isfinite(value):
                raise NpuDeviceError(f"{origin}: {name} {number}: must be a finite fp16 number")
        for name, low, high in zip(self._fields, rounded, rounded[1:], strict=False):
            if low > high:
                raise NpuDeviceError(f"{origin}: {name} {low} is above the next threshold {high}: must be in order")
        return Thresholds(*rounded)


class LayerThresholds(NamedTuple):
    """Thresholds of a layer."""

    key: Thresholds
    value: Thresholds


def check_ratios(ratios: Sequence[float]) -> None:
    """Raise NpuDeviceError unless outer, middle and inner are shares that sum to 1 within 1e-6."""
    if len(ratios) != GROUPS or not all(math.isfinite(ratio) and 0 <= ratio <= 1 for ratio in ratios):
        raise NpuDeviceError(f"ratios {tuple(ratios)}: must be three shares, outer, middle and inner")
    if abs(sum(ratios) - 1) > 1e-6:
        raise NpuDeviceError(f"ratios {tuple(ratios)}: their sum is {sum(ratios):g}, must be 1")


def order_statistics(sample: NDArray[Any], ratios: Sequence[float] = RATIOS) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return (upper, lower), each (outer, inner, median) of one run's keys or values, over all tokens and channels.
    Shares are two-sided: half of the outer share is above the upper threshold. Raise NpuDeviceError for NaN and
    infinities."""
    check_ratios(ratios)
    flat = np.sort(np.asarray(sample, np.float32).ravel())
    if not len(flat) or not np.isfinite(flat[[0, -1]]).all():
        raise NpuDeviceError("thresholds: a sample is empty, or has NaN or infinite elements: profile finite numbers")
    upper, lower = [], []
    for share in np.cumsum(ratios).clip(0, 1):
        position = (1 - share / 2) * (len(flat) - 1)
        upper.append(flat[min(len(flat) - 1, math.ceil(position - 1e-9))])
        lower.append(flat[max(0, math.floor((share / 2) * (len(flat) - 1) + 1e-9))])
    with np.errstate(over="ignore"):
        return np.array(upper).astype(np.float16), np.array(lower).astype(np.float16)


class Profiler:
    """Profiler of the mean order statistics of all runs, by layer. Samples may be added in any order."""

    def __init__(self, ratios: Sequence[float] = RATIOS) -> None:
        check_ratios(ratios)
        self.ratios = tuple(ratios)
        self._sums: dict[tuple[int, str], NDArray[np.float64]] = {}
        self._runs: dict[tuple[int, str], int] = {}

    def add(self, layer: int, side: str, sample: NDArray[Any]) -> None:
        """Add the keys or values of a layer in one run."""
        statistics = np.stack(order_statistics(sample, self.ratios)).astype(np.float64)
        key = layer, side
        self._sums[key] = self._sums.get(key, np.zeros_like(statistics)) + statistics
        self._runs[key] = self._runs.get(key, 0) + 1

    def document(self) -> dict[str, Any]:
        """Return the file's contents. Raise NpuDeviceError if a layer lacks keys or values."""
        layers = 1 + max((layer for layer, _ in self._sums), default=-1)
        document: dict[str, Any] = {"n_quant_group": GROUPS}
        for side in SIDES:
            rows = []
            for layer in range(layers):
                if (layer, side) not in self._sums:
                    raise NpuDeviceError(f"thresholds: layer {layer} has no sample of its {side}s")
                rows.append(np.float16(self._sums[layer, side] / self._runs[layer, side]).astype(float).tolist())
            document[side] = {"upper_threshold": [row[0] for row in rows], "lower_threshold": [row[1] for row in rows]}
        return document

    def thresholds(self) -> list[LayerThresholds]:
        """Return the thresholds of each layer."""
        return from_document(self.document(), "profile")


def from_document(document: Any, origin: str) -> list[LayerThresholds]:
    """Return the thresholds of each layer from a document in the file format. Raise NpuDeviceError with the fault."""
    if not isinstance(document, Mapping) or document.get("n_quant_group") != GROUPS:
        raise NpuDeviceError(f"{origin}: n_quant_group must be {GROUPS}, a document of thresholds")
    sides = [_side(document.get(side), f"{origin}: {side}") for side in SIDES]
    if len(sides[0]) != len(sides[1]):
        raise NpuDeviceError(f"{origin}: {len(sides[0])} layers of keys and {len(sides[1])} of values: must be as many")
    return [LayerThresholds(*pair) for pair in zip(*sides, strict=True)]


def _side(part: Any, origin: str) -> list[Thresholds]:
    rows = []
    for name in ("upper_threshold", "lower_threshold"):
        table = part.get(name) if isinstance(part, Mapping) else None
        if not isinstance(table, list) or not table:
            raise NpuDeviceError(f"{origin}.{name}: must be a list with a row of thresholds for each layer")
        for layer, row in enumerate(table):
            numbers = isinstance(row, list) and len(row) in (2, 3)
            if not numbers or not all(isinstance(item, int | float) and not isinstance(item, bool) for item in row):
                raise NpuDeviceError(f"{origin}.{name}: layer {layer}: {row!r} is not [outer, inner, median]")
        rows.append(table)
    upper, lower = rows
    if len(upper) != len(lower):
        raise NpuDeviceError(f"{origin}: layer {min(len(upper), len(lower))} is missing in one of the two lists")
    pairs = zip(upper, lower, strict=True)
    return [
        Thresholds(low[0], low[1], high[1], high[0]).check(f"{origin}: layer {layer}")
        for layer, (high, low) in enumerate(pairs)
    ]


def parse(text: str, origin: str) -> list[LayerThresholds]:
    """Parse the text of a file. Raise NpuDeviceError if it has no valid thresholds."""
    try:
        document = json.loads(text, parse_int=float)
    except (ValueError, RecursionError) as error:
        raise NpuDeviceError(f"{origin}: no JSON: {error}") from error
    return from_document(document, origin)
