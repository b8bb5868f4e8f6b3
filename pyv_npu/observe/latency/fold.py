"""Figures of submissions, accumulated chunk by chunk."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pyv_npu.observe.latency import STAGES
from pyv_npu.observe.latency.batches import Batches, value_counts
from pyv_npu.observe.latency.rows import COLUMN, NONE, REASONS

Integers = NDArray[np.int64]


@dataclass
class Fold:
    """Accumulator of figures in one pass over the rows of submissions. Cycles are counted by value."""

    good: int = 0
    errors: int = 0
    stages: dict[str, Batches] = field(default_factory=lambda: {name: Batches() for name in STAGES})
    reasons: dict[str, Integers] = field(default_factory=dict)
    """t_submit or t_submit_prebuilt -> sums of cycles, in the order of `Reason`."""
    first: int | None = None
    """Start of the first submission. It, `last` and `unfinished` include warm-up and failed submissions."""
    last: int = NONE
    """Last completion."""
    unfinished: bool = False
    sites: dict[int, Counter[int]] = field(default_factory=dict)
    """Call site -> counts of cycles from t0 to t2."""

    def add(self, rows: Integers, warmup: int) -> None:
        """Add a chunk, whose first `warmup` rows are warm-up."""
        begins = np.where(column_of(rows, "t0") == NONE, column_of(rows, "leave"), column_of(rows, "t0"))
        first = int(begins.min())
        self.first = first if self.first is None else min(self.first, first)
        self.last = max(self.last, int(column_of(rows, "t4").max()))
        self.unfinished = self.unfinished or bool((column_of(rows, "t4") == NONE).any())
        rows = rows[warmup:]
        is_good = column_of(rows, "error") == 0
        self.errors += len(rows) - int(is_good.sum())
        rows = rows[is_good]
        self.good += len(rows)
        prebuilt = column_of(rows, "prebuilt") != 0
        for name, stage in STAGES.items():
            start, end = column_of(rows, stage.first), column_of(rows, stage.last)
            selection = (start != NONE) & (end != NONE)
            if stage.prebuilt is not None:
                selection &= prebuilt == stage.prebuilt
            self.stages[name].extend((end - start)[selection])
            if name in ("t_submit", "t_submit_prebuilt"):
                self.reasons[name] = self.reasons.get(name, 0) + rows[selection][:, REASONS].sum(axis=0)
        start, end, site = column_of(rows, "t0"), column_of(rows, "t2"), column_of(rows, "call_site")
        timed = (start != NONE) & (end != NONE)
        for address in value_counts(site[timed]):
            site_rows = timed & (site == address)
            self.sites.setdefault(address, Counter()).update(value_counts((end - start)[site_rows]))


def column_of(rows: Integers, name: str) -> Integers:
    """Return a column of `COLUMNS`."""
    return rows[:, COLUMN[name]]
