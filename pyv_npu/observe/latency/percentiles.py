"""Order statistics of integer cycles (docs/latency.md, "Percentiles")."""

import warnings
from collections.abc import Iterable, Mapping
from itertools import accumulate
from math import ceil, floor
from typing import Any

from pyv_npu.errors import UsageError
from pyv_npu.observe.latency.batches import Batches, nearest_rank
from pyv_npu.text import MISSING, columns

P99_SAMPLES = 100
"""Minimum number of samples for P99, whose nearest rank would otherwise be the maximum."""
TAILS = {"p99_9": (999, 1000), "p99_99": (9999, 10_000)}
"""Percentiles beyond P99 as (numerator, denominator); the denominator is the minimum number of samples."""

_SHOWN = ("n", "p50", "p95", "p99", "min", "max")


class Distribution:
    """Distribution of the cycles of a stage over submissions, stored as counts of equal values."""

    def __init__(self, values: Iterable[int] | Mapping[int, int] | Batches) -> None:
        """`values`: ordered samples, or counts of values, which allow no confidence intervals."""
        if not isinstance(values, Mapping | Batches):
            values = Batches(values)
        self._batches = values if isinstance(values, Batches) else Batches()
        self._counts = dict(sorted((values.counts() if isinstance(values, Batches) else values).items()))
        self._values = list(self._counts)
        self._ranks = list(accumulate(self._counts.values()))
        """Number of samples at most each value."""

    def __len__(self) -> int:
        return self._ranks[-1] if self._ranks else 0

    @property
    def total(self) -> int:
        """Sum of all samples, in cycles."""
        return sum(value * count for value, count in self._counts.items())

    @property
    def max(self) -> int:
        """Largest sample, in cycles; there must be at least one sample."""
        return self._values[-1]

    def percentile(self, percent: int) -> int:
        """Return a percentile by nearest rank; UsageError without samples, and for P99 of fewer than 100."""
        count = len(self)
        if not count:
            raise UsageError(f"P{percent} of 0 samples does not exist: submit something first")
        if percent >= 99 and count < P99_SAMPLES:
            raise UsageError(f"P{percent} of {count} samples would be their maximum: take at least {P99_SAMPLES}")
        return self._at(percent)

    def _at(self, part: int, denominator: int = 100) -> int:
        return nearest_rank(self._values, part, denominator, self._ranks)

    def interval(self, percent: int) -> list[int] | None:
        """Return [low, high], the 95 % confidence interval of a percentile by batch means, in cycles; None for too few
        samples, or if their order is unknown."""
        half = self._batches.half_width(percent)
        if half is None:
            return None
        middle = self._at(percent)
        return [max(self._values[0], floor(middle - half)), min(self.max, ceil(middle + half))]

    @property
    def p50(self) -> int:
        return self.percentile(50)

    @property
    def p95(self) -> int:
        return self.percentile(95)

    @property
    def p99(self) -> int | None:
        """P99 in cycles; None, with a warning, for fewer than 100 samples, whose nearest rank is the maximum."""
        if self._note:
            warnings.warn(self._note, stacklevel=2)
            return None
        return self.percentile(99)

    @property
    def _note(self) -> str:
        """Reason why `p99` is None; empty if it is a number."""
        few = len(self) < P99_SAMPLES
        return f"p99 is None: {len(self)} samples, below {P99_SAMPLES}" if few else ""

    def __repr__(self) -> str:
        summary = self.summary() or {"n": 0}
        note = f"; {self._note}" if self._note else ""
        return f"<Distribution: {', '.join(f'{key} {summary[key]}' for key in _SHOWN if key in summary)} cycles{note}>"

    def _repr_html_(self) -> str:
        """Return a row of figures for notebooks."""
        return f"<pre>{figures_text({'': self.summary() or {'n': 0}})}\n{self._note}</pre>"

    def cdf(self) -> list[tuple[int, int]]:
        """Return (cycles, number of samples at most that) for each distinct value."""
        return list(zip(self._values, self._ranks, strict=True))

    def summary(self) -> dict[str, Any] | None:
        """Return the stage object of the JSON schema; None without samples. `p99`, `p99_9` and `p99_99` are None below
        100, 1,000 and 10,000 samples."""
        count = len(self)
        if not count:
            return None
        return {
            "n": count,
            "p50": self._at(50),
            "p95": self._at(95),
            "p99": self._at(99) if count >= P99_SAMPLES else None,
            **{
                name: self._at(part, denominator) if count >= denominator else None
                for name, (part, denominator) in TAILS.items()
            },
            "ci95": {f"p{percent}": self.interval(percent) for percent in (50, 95, 99)},
            "min": self._values[0],
            "max": self.max,
            "mean": round(self.total / count, 3),
        }


def figures_text(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """Format a row of figures for each stage, in core cycles."""
    rows = [
        [name, *(MISSING if row.get(figure) is None else f"{row[figure]:,}" for figure in _SHOWN)]
        for name, row in summaries.items()
    ]
    return columns(["core cycles", *_SHOWN], rows)
