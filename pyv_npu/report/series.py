"""Time series of a run in equal bins: queue depth, busy engines, waiting for barriers, banks, scratchpad."""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from npu_device.trace.events import Kind
from pyv_npu.report.folder import replacing
from pyv_npu.report.spans import (
    Integers,
    Records,
    Spans,
    bank_spans,
    barrier_spans,
    conflict_spans,
    queue_spans,
    unit_spans,
)

BINS = 300

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """One value for each bin [edges[i], edges[i + 1]) of the run, in core cycles."""

    edges: Integers
    depth_mean: Floats
    """Commands accepted and not started."""
    depth_max: Integers
    busy: Mapping[str, Floats]
    """"te", "ve", "dma" -> share of the engines' time, 0..1."""
    barrier: Floats
    """Accepted commands that only a barrier held back."""
    banks: Mapping[str, Floats]
    """Bank -> share of its port's time; only banks that worked."""
    conflicts: Mapping[str, Floats]
    """Bank -> by how many cycles per cycle its accesses lengthened what engines did; only banks that did."""
    scratchpad: Floats | None
    """Bytes that hold something, mean; None where it is not known what commands do."""

    @property
    def columns(self) -> dict[str, Iterable[float]]:
        """The series by name, as in series.csv."""
        table: dict[str, Iterable[float]] = {
            "queue_depth_mean": self.depth_mean,
            "queue_depth_max": self.depth_max,
            **{f"{name}_busy": values for name, values in self.busy.items()},
            "te_idle": 1 - self.busy["te"],
            "barrier_waiting": self.barrier,
            **self.banks,
            **{f"{bank}_conflict": values for bank, values in self.conflicts.items()},
        }
        return table if self.scratchpad is None else {**table, "scratchpad_bytes": self.scratchpad}


def series(
    records: Records, engines: Mapping[str, int], end: int, held: tuple[Spans, Integers] | None = None
) -> Series:
    """Bin a run that ended at cycle `end`; `engines`: how many of each kind ("te", "ve", "dma") there are; `held`: what
    the scratchpads held, spans and bytes."""
    edges = np.unique(np.linspace(0, max(end, 1), BINS + 1).astype(np.int64))
    width = np.diff(edges)
    waiting = queue_spans(records, end)
    busy = {
        name: sum((_covered(spans, edges) for spans in unit_spans(records, Kind[name.upper()], end).values()),
                  np.zeros(len(width), dtype=np.int64)) / (width * max(count, 1))
        for name, count in engines.items()
    }  # fmt: skip
    banks = {f"bank{unit & 0xFF}": _covered(spans, edges) / width for unit, spans in bank_spans(records).items()}
    lost = {f"bank{unit & 0xFF}": _covered(spans, edges) / width for unit, spans in conflict_spans(records).items()}
    return Series(
        edges,
        _covered(waiting, edges) / width,
        _deepest(waiting, edges),
        busy,
        _covered(barrier_spans(records), edges) / width,
        banks,
        lost,
        None if held is None else _covered(held[0], edges, held[1]) / width,
    )


def _covered(spans: Spans, edges: Integers, weight: Integers | None = None) -> Integers:
    """Cycles of all spans within each bin, times their weights, exactly: differences of the sum that has passed at each
    edge."""
    weight = np.ones(len(spans.start), dtype=np.int64) if weight is None else weight
    order = np.argsort(spans.end, kind="stable")
    return np.diff(_passed(spans.start, weight, edges) - _passed(spans.end[order], weight[order], edges))


def _passed(moments: Integers, weight: Integers, edges: Integers) -> Integers:
    """Sum of weight * max(0, edge - moment) over ascending moments, for each edge."""
    count = np.searchsorted(moments, edges)
    zero = np.zeros(1, dtype=np.int64)
    total, weights = (np.concatenate([zero, np.cumsum(each)]) for each in (moments * weight, weight))
    return np.asarray(weights[count] * edges - total[count], dtype=np.int64)


def _deepest(spans: Spans, edges: Integers) -> Integers:
    """The most spans that are open at once in each bin. What ends in a cycle is gone before what begins in it."""
    real = spans.end > spans.start
    start, end = spans.start[real], np.sort(spans.end[real])
    depth = np.arange(1, len(start) + 1) - np.searchsorted(end, start, side="right")
    begin = np.searchsorted(start, edges, side="left")
    before = begin - np.searchsorted(end, edges, side="right")
    most = np.maximum(before[:-1], 0)
    for index in np.flatnonzero(begin[1:] > begin[:-1]):
        most[index] = max(most[index], depth[begin[index] : begin[index + 1]].max())
    return np.asarray(most, dtype=np.int64)


def write_series_csv(path: Path, runs: Mapping[str, Series]) -> None:
    """One line per mode and bin."""
    names = list(dict.fromkeys(name for run in runs.values() for name in run.columns))
    with replacing(path) as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["mode", "start", "end", *names])
        for mode, run in runs.items():
            columns = {name: list(values) for name, values in run.columns.items()}
            for index, (start, end) in enumerate(zip(run.edges[:-1], run.edges[1:], strict=True)):
                values = (columns[name][index] if name in columns else "" for name in names)
                rows.writerow([mode, start, end, *(f"{value:.6g}" if value != "" else "" for value in values)])
