"""Engines occupied by commands, and the potential savings by engines that became free after a command's start."""

from bisect import bisect_right
from collections.abc import Mapping

import numpy as np

from npu_device.config import NpuConfig
from npu_device.trace.events import Kind, unit_code, unit_index, unit_kind
from npu_device.trace.run_spans import Spans
from npu_device.trace.spans import UNFINISHED, Table


class Occupancy:
    """Occupancy of the engines of a run. A command occupies its engines from its first step to its last."""

    def __init__(self, config: NpuConfig, spans: Spans, engines: Mapping[int, tuple[int, int]]) -> None:
        """`engines`: (kind, maximum number in parallel) by ticket."""
        self._counts = {Kind.TE: config.te.count, Kind.VE: config.ve.count}
        self._engines = engines
        work = spans.steps[spans.steps["last"] != UNFINISHED]
        self._units: dict[int, set[int]] = {}
        """Engines of a ticket, of its kind."""
        self._spans: dict[int, tuple[list[int], list[int]]] = {}
        """Begin and end cycles of the occupancy of each engine by commands."""
        if not any(count > 1 for _, count in engines.values()):
            return
        first, last = _reach(work)
        pairs = np.unique(np.stack([work["unit"].astype(np.int64), work["ticket"].astype(np.int64)]), axis=1)
        intervals: dict[int, list[tuple[int, int]]] = {}
        for unit, ticket in pairs.T.tolist():
            if engines.get(ticket, (0, 0))[0] == unit_kind(unit):
                self._units.setdefault(ticket, set()).add(unit)
            if unit_kind(unit) in self._counts:
                intervals.setdefault(unit, []).append((first[ticket], last[ticket]))
        for unit, rows in intervals.items():
            rows.sort()
            self._spans[unit] = [begin for begin, _ in rows], [end for _, end in rows]

    def lost(self, unit: int, ticket: int, begin: int, end: int, cycles: int) -> int:
        """Return the part of `cycles` of a step on an engine of its command that free engines would have saved."""
        units = self._units.get(ticket, ())
        missing = self._engines[ticket][1] - len(units) if unit in units else 0
        if missing <= 0:
            return 0
        kind = Kind(unit_kind(unit))
        count, index = self._counts[kind], unit_index(unit)
        low = index - index % count
        codes = [unit_code(kind, index) for index in range(low, low + count)]
        free = sum(code not in units and self._free(code, begin, end) for code in codes)
        free = min(free, missing)
        return cycles * free // (len(units) + free)

    def _free(self, unit: int, begin: int, end: int) -> bool:
        """Check that no command occupies an engine between two cycles."""
        begins, ends = self._spans.get(unit, ((), ()))
        index = bisect_right(begins, end - 1) - 1
        return index < 0 or ends[index] <= begin


def _reach(work: Table) -> tuple[dict[int, int], dict[int, int]]:
    """Return (first start, last end) of the steps, each by ticket."""
    names, index = np.unique(work["ticket"], return_inverse=True)
    first = np.full(len(names), np.iinfo(np.int64).max)
    last = np.zeros(len(names), np.int64)
    np.minimum.at(first, index, work["start"])
    np.maximum.at(last, index, work["end"])
    keys = names.tolist()
    return dict(zip(keys, first.tolist(), strict=True)), dict(zip(keys, last.tolist(), strict=True))
