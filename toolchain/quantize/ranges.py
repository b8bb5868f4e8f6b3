"""Ranges of a tensor from samples: all values, a share of them, or the range with the least information loss."""

from typing import Any

import numpy as np

from toolchain.errors import ModelError

METHODS = ("minmax", "percentile", "entropy")
"""Values of `--calibration-method`."""
SHARE = 99.99
"""Default percentage of values within a range of `percentile`."""
_BINS = 1 << 15
"""Number of histogram bins on each side of zero."""
_VIEW = 2048
"""Number of combined bins that `entropy` evaluates."""
_CODES = {False: 128, True: 256}
"""Whether all values are non-negative -> number of code steps for magnitudes, for `entropy`."""
_LITTLE = 1e-4
"""Count of an empty bin."""
_LOSS = 0.8
"""Maximum squared error of a clipped range, relative to that of the full range."""
_STEP = 16
"""Distance between candidate limits of `entropy`, bins."""


def parse_method(method: str) -> tuple[str, float]:
    """Parse `minmax`, `percentile`, `percentile:99.9` or `entropy` to (method, percent). ModelError: invalid method."""
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


class Histogram:
    """Distribution of a tensor's values: minimum, maximum, and a histogram whose range ends at a power of two, so that
    its bins merge evenly if it is widened."""

    def __init__(self, *, counting: bool) -> None:
        self.low, self.high = np.inf, -np.inf
        self._counting = counting
        self._end = 0.0
        self._counts = np.zeros(2 * _BINS, np.int64)

    def add(self, values: Any) -> None:
        """Add the values of another sample."""
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        largest = max(-self.low, self.high)
        if not self._counting or not np.isfinite(largest) or largest == 0:
            return
        if largest >= self._end:
            end = 2.0 ** (np.floor(np.log2(largest)) + 1)
            self._widen(end)
        self._counts += np.histogram(values, 2 * _BINS, (-self._end, self._end))[0]

    def _widen(self, end: float) -> None:
        counts, result = self._counts, np.zeros_like(self._counts)
        if self._end:
            merged = min(int(end / self._end), 4 * _BINS)
            places = _BINS + (np.arange(2 * _BINS) - _BINS) // merged
            np.add.at(result, places, counts)
        self._counts, self._end = result, end

    def range(self, method: str, share: float) -> tuple[float, float]:
        """Return the (minimum, maximum) that codes should represent."""
        if method == "minmax" or not self._counts.any():
            return self.low, self.high
        if method == "entropy":
            sizes = self._counts[_BINS:] + self._counts[:_BINS][::-1]
            sizes[0] = 0  # 0 is a code in any range; after Relu it would dominate
            limit = self._end * _limit(sizes, _CODES[self.low >= 0]) / _BINS
            return max(self.low, float(-limit)), min(self.high, float(limit))
        sums, outside = np.cumsum(self._counts), (1 - share / 100) * self._counts.sum()
        first, last = np.searchsorted(sums, outside, "right"), np.searchsorted(sums, sums[-1] - outside)
        step = self._end / _BINS
        return max(self.low, float((first - _BINS) * step)), min(self.high, float((last + 1 - _BINS) * step))


def _limit(sizes: Any, codes: int) -> int:
    """Return the number of bins that codes should cover. If the smallest candidate is best, bins are refined."""
    width, errors = len(sizes) // _VIEW, _squared_errors(sizes, codes)
    last = np.flatnonzero(sizes)[-1] if sizes.any() else 0
    while True:
        inner, far = sizes[: _VIEW * width], sizes[_VIEW * width :]
        usable = errors[width - 1 : _VIEW * width : width] <= _LOSS * errors[last]
        usable |= np.arange(width, _VIEW * width + 1, width) > last
        width_of_range = _least_lost(inner.reshape(_VIEW, width).sum(axis=1), int(far.sum()), codes, usable)
        if width_of_range > codes or width == 1:
            return width_of_range * width
        width //= 2


def _squared_errors(sizes: Any, codes: int) -> Any:
    """Return the total squared error in squared bins, for codes that end after each bin: rounding error plus clipping
    error."""
    ends, centres = np.arange(1.0, len(sizes) + 1), np.arange(len(sizes)) + 0.5
    tail = [np.append(np.cumsum((sizes * centres**power)[::-1])[::-1][1:], 0) for power in range(3)]
    inside = sizes.sum() - tail[0]
    return (ends / codes) ** 2 / 12 * inside + tail[2] - 2 * ends * tail[1] + ends**2 * tail[0]


def _least_lost(sizes: Any, outliers: int, codes: int, usable: Any) -> int:
    """Return the number of bins with the least divergence between original and quantized distribution, with outliers
    counted in the last bin (S. Migacz, 8-bit inference with TensorRT, 2017). `usable`: valid numbers of bins, those of
    the full range and those with a sufficiently smaller squared error.

    Random differences between bins with few samples look like information. Their contribution to the divergence, half a
    sample per bin without its own step (Miller-Madow), is subtracted.
    """
    total = max(1, int(sizes.sum()) + outliers)
    best, best_count = np.inf, len(sizes)
    for count in range(codes, len(sizes) + 1, _STEP):
        if not usable[count - 1]:
            continue
        head = sizes[:count].astype(np.float64)
        reference = head.copy()
        reference[-1] += sizes[count:].sum() + outliers
        group = np.arange(count) * codes // count
        filled = np.bincount(group, head > 0, codes)
        spread = np.bincount(group, head, codes) / np.maximum(filled, 1)
        coded = np.where(head > 0, spread[group], 0)
        if not coded.any():
            continue
        p, q = _smooth(reference), _smooth(coded)
        chance = (np.count_nonzero(head) - np.count_nonzero(filled)) / (2 * total)
        lost = max(0.0, float((p * np.log(p / q)).sum()) - chance)
        if lost <= best:
            best, best_count = lost, count
    return best_count


def _smooth(counts: Any) -> Any:
    """Return the relative frequencies of the bins, none of them zero."""
    positive = np.maximum(counts, _LITTLE)
    return positive / positive.sum()
