"""Ranges of a tensor, from what samples show: all of it, all but a share, or what loses least information in codes."""

from typing import Any

import numpy as np

from toolchain.errors import ModelError

METHODS = ("minmax", "percentile", "entropy")
"""Of `--calibration-method`."""
SHARE = 99.99
"""Percent of the numbers that lie within a range of `percentile`."""
_BINS = 1 << 15
"""On each side of zero."""
_VIEW = 2048
"""Bins that `entropy` looks at together."""
_CODES = 128
"""Steps that `entropy` has for the sizes of numbers."""
_LITTLE = 1e-4
"""What an empty bin counts."""
_STEP = 16
"""Bins between limits that `entropy` tries."""


def parsed(method: str) -> tuple[str, float]:
    """(method, percent) of `minmax`, `percentile`, `percentile:99.9` or `entropy`. ModelError: it is none."""
    name, colon, text = method.partition(":")
    try:
        share = float(text) if colon else SHARE
    except ValueError:
        share = 0.0
    if name not in METHODS or (colon and name != "percentile") or not 50 < share <= 100:
        raise ModelError(
            f"--calibration-method {method}: must be minmax, percentile, percentile:P with P above 50, at most 100, "
            f"or entropy"
        )
    return name, share


class Observed:
    """Numbers of a tensor: the least and the largest, and how many are in each bin of a histogram whose end is a power
    of two, so that a wider one has whole bins of it."""

    def __init__(self, *, counting: bool) -> None:
        self.low, self.high = np.inf, -np.inf
        self._counting = counting
        self._end = 0.0
        self._counts = np.zeros(2 * _BINS, np.int64)

    def add(self, values: Any) -> None:
        """Numbers of one more sample."""
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        largest = max(-self.low, self.high)
        if not self._counting or not np.isfinite(largest) or largest == 0:
            return
        if largest >= self._end:
            end = 2.0 ** (np.floor(np.log2(largest)) + 1)
            self._widen(end)
        self._counts += np.histogram(values, 2 * _BINS, (-self._end, self._end))[0]

    def _widen(self, end: float) -> None:
        counts, made = self._counts, np.zeros_like(self._counts)
        if self._end:
            merged = min(int(end / self._end), 4 * _BINS)
            places = _BINS + (np.arange(2 * _BINS) - _BINS) // merged
            np.add.at(made, places, counts)
        self._counts, self._end = made, end

    def range(self, method: str, share: float) -> tuple[float, float]:
        """(least, largest) number that codes should reach."""
        if method == "minmax" or not self._counts.any():
            return self.low, self.high
        if method == "entropy":
            limit = self._end * _limit(self._counts[_BINS:] + self._counts[:_BINS][::-1]) / _BINS
            return max(self.low, float(-limit)), min(self.high, float(limit))
        sums, outside = np.cumsum(self._counts), (1 - share / 100) * self._counts.sum()
        first, last = np.searchsorted(sums, outside, "right"), np.searchsorted(sums, sums[-1] - outside)
        step = self._end / _BINS
        return max(self.low, float((first - _BINS) * step)), min(self.high, float((last + 1 - _BINS) * step))


def _limit(sizes: Any) -> int:
    """The number of bins that codes should reach. Where the narrowest of a view is the best, a closer view is taken."""
    width = len(sizes) // _VIEW
    while True:
        near, far = sizes[: _VIEW * width], sizes[_VIEW * width :]
        found = _least_lost(near.reshape(_VIEW, width).sum(axis=1), int(far.sum()))
        if found > _CODES or width == 1:
            return found * width
        width //= 2


def _least_lost(sizes: Any, beyond: int) -> int:
    """The number of bins of which codes keep most: the least divergence of what they are from what they become, with
    all beyond in the last bin (S. Migacz, 8-bit inference with TensorRT, 2017)."""
    best, found = np.inf, len(sizes)
    for count in range(_CODES, len(sizes) + 1, _STEP):
        kept = sizes[:count].astype(np.float64)
        whole = kept.copy()
        whole[-1] += sizes[count:].sum() + beyond
        group = np.arange(count) * _CODES // count
        filled = np.bincount(group, kept > 0, _CODES)
        spread = np.bincount(group, kept, _CODES) / np.maximum(filled, 1)
        coded = np.where(kept > 0, spread[group], 0)
        if not coded.any():
            continue
        p, q = _smooth(whole), _smooth(coded)
        lost = float((p * np.log(p / q)).sum())
        if lost < best:
            best, found = lost, count
    return found


def _smooth(counts: Any) -> Any:
    """Shares of the bins; none is quite empty."""
    made = np.maximum(counts, _LITTLE)
    return made / made.sum()
