"""Order statistics of integer cycles (docs/latency.md, "Percentiles")."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from pyv_npu.errors import UsageError
from pyv_npu.text import MISSING, html_table

P99_SAMPLES = 100
"""Below so many samples the nearest rank of P99 is the maximum: it is refused."""


_SHOWN = ("n", "p50", "p95", "p99", "min", "max")


def nearest_rank(ordered: Sequence[int], percent: int) -> int:
    """The value of rank (p*N + 99)//100, 1-based, of a non-empty ascending sequence."""
    return ordered[(percent * len(ordered) + 99) // 100 - 1]


class Distribution:
    """Cycles of one stage over many submissions, ascending."""

    def __init__(self, values: Iterable[int]) -> None:
        self.values = sorted(values)

    def __len__(self) -> int:
        return len(self.values)

    def percentile(self, percent: int) -> int:
        """Nearest rank; UsageError for no samples, and for P99 of fewer than 100."""
        if not self.values:
            raise UsageError(f"P{percent} of 0 samples does not exist: submit something first")
        if percent >= 99 and len(self.values) < P99_SAMPLES:
            raise UsageError(
                f"P{percent} of {len(self.values)} samples would be their maximum: take at least {P99_SAMPLES}"
            )
        return nearest_rank(self.values, percent)

    @property
    def p50(self) -> int:
        return self.percentile(50)

    @property
    def p95(self) -> int:
        return self.percentile(95)

    @property
    def p99(self) -> int | None:
        """Cycles; None, with a warning, for fewer than 100 samples: their nearest rank is the maximum."""
        if self._note:
            warnings.warn(self._note, stacklevel=2)
            return None
        return self.percentile(99)

    @property
    def _note(self) -> str:
        """The reason for which `p99` is None; empty where it is a number."""
        few = len(self.values) < P99_SAMPLES
        return f"p99 is None: {len(self.values)} samples, below {P99_SAMPLES}" if few else ""

    def __repr__(self) -> str:
        shown = self.summary() or {"n": 0}
        note = f"; {self._note}" if self._note else ""
        return f"<Distribution: {', '.join(f'{key} {shown[key]}' for key in _SHOWN if key in shown)} cycles{note}>"

    def _repr_html_(self) -> str:
        """A row of figures for notebooks."""
        shown = self.summary() or {"n": 0}
        cells = [f"{shown[key]:,}" if shown.get(key) is not None else MISSING for key in _SHOWN]
        return html_table(["cycles", *_SHOWN], [["", *cells]]) + (f"<p>{self._note}</p>" if self._note else "")

    def cdf(self) -> list[tuple[int, int]]:
        """(cycles, how many samples are at most that), one row per distinct value."""
        rows: list[tuple[int, int]] = []
        for rank, value in enumerate(self.values, 1):
            if rows and rows[-1][0] == value:
                rows[-1] = (value, rank)
            else:
                rows.append((value, rank))
        return rows

    def summary(self) -> dict[str, Any] | None:
        """The stage object of the JSON schema; None without samples, `p99` None below 100."""
        if not self.values:
            return None
        count = len(self.values)
        return {
            "n": count,
            "p50": nearest_rank(self.values, 50),
            "p95": nearest_rank(self.values, 95),
            "p99": nearest_rank(self.values, 99) if count >= P99_SAMPLES else None,
            "min": self.values[0],
            "max": self.values[-1],
            "mean": round(sum(self.values) / count, 3),
        }
