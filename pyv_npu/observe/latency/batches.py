"""Confidence intervals of percentiles by batch means, for autocorrelated samples such as waits.

Samples are cut in order into batches of equal size, long enough to be nearly independent; the interval follows from the
spread of a percentile over the batches (batch quantiles; L. W. Schruben and B. Schmeiser, Operations Research 30, 1982,
on batch sizes; A. F. Seila, Management Science 28, 1982, on quantiles).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import sqrt
from statistics import stdev

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
MIN_BATCHES, MAX_BATCHES = 10, 64
"""Minimum number of complete batches for an interval; number of complete batches at which they are joined in pairs."""
BEYOND = 10
"""Minimum number of a batch's samples beyond a percentile: with fewer the batch's percentile is biased."""
FIRST_SIZE = 16
"""Initial number of samples per batch."""
NORMAL = 1.959964
"""Quantile of the normal distribution for 95 %."""


def value_counts(values: Integers) -> dict[int, int]:
    """Return the count of each value."""
    ordered = np.sort(values)
    edges = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    counts = np.diff(edges, append=len(ordered))
    return dict(zip(ordered[edges].tolist(), counts.tolist(), strict=True))


class Batches:
    """Ordered samples, stored as counts of equal values by batch."""

    def __init__(self, values: Iterable[int] = ()) -> None:
        self._size = FIRST_SIZE
        self._full: list[Counter[int]] = []
        self._last: Counter[int] = Counter()
        """Incomplete batch."""
        self._remaining = FIRST_SIZE
        """Number of samples that it lacks."""
        self.extend(np.fromiter(values, np.int64))

    def extend(self, values: Integers) -> None:
        """Append samples."""
        while len(values):
            self._last.update(value_counts(values[: self._remaining]))
            count = min(self._remaining, len(values))
            values = values[count:]
            self._remaining -= count
            if not self._remaining:
                self._full.append(self._last)
                if len(self._full) == MAX_BATCHES:
                    self._full, self._size = _pairs(self._full), 2 * self._size
                self._last, self._remaining = Counter(), self._size

    def counts(self) -> Counter[int]:
        """Return the count of each value over all batches."""
        return sum(self._full, Counter(self._last))

    def half_width(self, percent: int) -> float | None:
        """Return half of the 95 % confidence interval of a percentile, in the unit of the samples; None for fewer than
        `MIN_BATCHES` batches of sufficient size."""
        batches, size = self._full, self._size
        while size * (100 - percent) < 100 * BEYOND:
            batches, size = _pairs(batches), 2 * size
        count = len(batches)
        if count < MIN_BATCHES:
            return None
        return student(count - 1) * stdev(_percentile(batch, percent) for batch in batches) / sqrt(count)


def _pairs(batches: Sequence[Counter[int]]) -> list[Counter[int]]:
    """Join batches in pairs; a last batch without a partner is dropped."""
    return [first + second for first, second in zip(batches[::2], batches[1::2], strict=False)]


def _percentile(counts: Counter[int], percent: int) -> int:
    values = sorted(counts)
    return nearest_rank(values, percent, ranks=list(accumulate(counts[value] for value in values)))


def nearest_rank(values: Sequence[int], part: int, denominator: int = 100, ranks: Sequence[int] | None = None) -> int:
    """Return the percentile of ascending samples by nearest rank. `ranks`: for distinct values, the number of samples
    at most each value."""
    ranks = range(1, len(values) + 1) if ranks is None else ranks
    return values[bisect_left(ranks, -(-part * ranks[-1] // denominator))]


def student(freedom: int) -> float:
    """Return the quantile of Student's distribution for 95 %, accurate to 0.1 % from 9 degrees of freedom on
    (Cornish and Fisher)."""
    z = NORMAL
    terms = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))
