"""Charts of two results: their latencies over each other, and their units on one time axis.

Both are read from the files of the results' folders (docs/results.md): latency.csv and timeline.csv of each run.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from npu_device.trace.events import Kind, What
from npu_device.trace.run_spans import rows_between
from npu_device.trace.spans import UNITS, Table
from pyv_native.files import MAX_DATA, check_input
from pyv_npu.errors import BadInputError
from pyv_npu.observe.latency.percentiles import Distribution
from pyv_npu.observe.latency.table import STAGES
from pyv_npu.report.charts import Line, distributions
from pyv_npu.report.figures import gantt_chart
from pyv_npu.report.page import Note, OverTime, Part
from pyv_npu.studies.diff import Difference, Loaded, Run

TIMELINE, LATENCY = "timeline.csv", "latency.csv"
SIDES = "AB"
SHOWN = ("t_submit", "t_submit_prebuilt", "response")
"""Stages whose distributions are drawn."""
MAX_CHARTS = 8
MARKS = (("min", 0.0), ("p50", 50.0), ("p95", 95.0), ("p99", 99.0), ("max", 100.0))
LONGEST = 2**62
"""Cycles beyond this are no cycles."""
ENGINE = re.compile("({})([0-9]+)".format("|".join(kind.name.lower() for kind in UNITS)))
COUNTS = {Kind.TE: "npu.te.count", Kind.VE: "npu.ve.count", Kind.DMA: "npu.dma.channels"}
"""The key that says how many engines of a kind a cluster has."""
EVENTS = {*(what.name for what in What), "BARRIER"}
"""Of timeline.csv: what is no work of an engine."""
LIFE = frozenset((What.ACCEPT.name, What.DONE.name, What.ERROR.name))
"""When a command enters the device and leaves it."""


# -- the files -----------------------------------------------------------------------------------------------------


def _rows(path: Path, *columns: str) -> Iterator[tuple[str, ...]]:
    """These columns of the rows of a file of a report."""
    check_input(path, MAX_DATA)
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        heads = next(rows, [])
        for name in columns:
            if name not in heads:
                raise ValueError(f"has no column {name}")
        chosen, width = itemgetter(*map(heads.index, columns)), len(heads)
        for row in rows:
            if len(row) != width:
                raise ValueError(f"line {rows.line_num} has not as many fields as the first")
            yield chosen(row)


def _wrong(path: Path, error: Exception) -> BadInputError:
    if isinstance(error, UnicodeError):
        error = ValueError("is no text")
    reason = error.strerror if isinstance(error, OSError) else error
    return BadInputError(f"{path}: {reason}; make the report again, or name its result.json for a diff without charts")


def _cycle(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= LONGEST):
        raise ValueError(f"{text[:40]!r} is no cycle, a whole number from 0 on")
    return int(text)


def _file(loaded: Loaded, name: str, file: str) -> Path | None:
    """Of a run; None where its result has no folder, or the run no such file."""
    path = None if loaded.folder is None else loaded.folder / name / file
    return path if path is not None and path.exists() else None


# -- latencies -----------------------------------------------------------------------------------------------------


def latencies(path: Path) -> dict[str, Distribution]:
    """The distributions of `SHOWN` in a latency.csv; only those with samples. BadInputError, one line."""
    found: dict[str, list[int]] = {name: [] for name in SHOWN}
    stamps = dict.fromkeys(stamp for name in SHOWN for stamp in STAGES[name][:2])
    try:
        for written, *texts in _rows(path, "prebuilt", *stamps):
            seen = {stamp: _cycle(text) for stamp, text in zip(stamps, texts, strict=True) if text}
            for name, values in found.items():
                first, last, prebuilt = STAGES[name]
                if first in seen and last in seen and prebuilt in (None, written == "1"):
                    values.append(seen[last] - seen[first])
    except (OSError, ValueError, csv.Error) as error:
        raise _wrong(path, error) from None
    return {name: Distribution(values) for name, values in found.items() if values}


def latency_parts(found: Difference) -> list[Part]:
    """A chart for each run and stage that both results have."""
    parts: list[Part] = []
    for name in found.common:
        both = [_curves(one, name) for one in (found.before, found.after)]
        for stage in SHOWN:
            if stage in both[0] and stage in both[1]:
                end = max(of[stage][1][-1][0] for of in both)  # where the slower one reaches all of its submissions
                lines = [
                    Line(f"{side} ({of[stage][0]})", [*of[stage][1], (end, 100.0)], side)
                    for side, of in zip(SIDES, both, strict=True)
                ]
                caption = f"{name}: {stage}" if name else stage
                parts.append(distributions(f"latency_{name}_{stage}", "Cumulative submissions", caption, lines))
    more = [Note(f"{len(parts) - MAX_CHARTS:,} more are not drawn", "muted")] if len(parts) > MAX_CHARTS else []
    return [*parts[:MAX_CHARTS], *more]


def _curves(loaded: Loaded, name: str) -> dict[str, tuple[str, list[tuple[float, float]]]]:
    """By stage: what the curve is of, and (cycles, per cent of the submissions that took at most that).

    All submissions of latency.csv; where there is none, the order statistics of the JSON object.
    """
    path = _file(loaded, name, LATENCY)
    if path is not None:
        return {
            stage: (f"n = {len(of):,}", [(cycles, 100 * rank / len(of)) for cycles, rank in of.cdf()])
            for stage, of in latencies(path).items()
        }
    stages = (loaded.runs[name].get("latency") or {}).get("stages") or {}
    return {
        stage: (f"n = {stages[stage]['n']:,}, percentiles only",
                [(stages[stage][key], share) for key, share in MARKS if stages[stage][key] is not None])
        for stage in SHOWN if stages.get(stage)
    }  # fmt: skip


# -- over time -----------------------------------------------------------------------------------------------------


class Recorded:
    """What the units of a run did, from its timeline.csv. BadInputError, one line.

    The lanes are those of the page of its report: work on engines, and each command in the queue between acceptance and
    its first work, or its end when it needs no engine.
    """

    def __init__(self, path: Path, end: int) -> None:
        """`end`: the last cycle of the run; what is unfinished lasts to it."""
        self._steps: dict[str, list[tuple[int, int, int]]] = {}
        self._accepted: list[tuple[int, int]] = []
        """(cycle, ticket), in the order of acceptance."""
        self._until: list[int] = []
        self._layers: list[str] = []
        self._flying: dict[int, int] = {}
        """Ticket -> number of the command that has it."""
        try:
            for unit, what, *texts in _rows(path, "unit", "what", "ticket", "start", "end", "layer"):
                if what in LIFE or (what not in EVENTS and ENGINE.fullmatch(unit)):
                    self._take(unit, what, texts, end)
        except (OSError, ValueError, csv.Error) as error:
            raise _wrong(path, error) from None

    def _take(self, unit: str, what: str, texts: Sequence[str], end: int) -> None:
        ticket, start = _cycle(texts[0]), _cycle(texts[1])
        stop = _cycle(texts[2]) if texts[2] else max(end, start)
        if stop < start:
            raise ValueError(f"{what} of ticket {ticket} ends in cycle {stop}, before it starts in {start}")
        if what == What.ACCEPT.name:
            self._flying[ticket] = len(self._accepted)
            self._accepted.append((stop, ticket))
            self._until.append(end)
            self._layers.append(texts[3])
            return
        number = self._flying.get(ticket)
        if what not in LIFE:
            self._steps.setdefault(unit, []).append((start, stop, ticket))
            stop = start
        if number is not None:
            self._until[number] = min(self._until[number], stop)
            if what in LIFE:
                del self._flying[ticket]

    def lanes(self, core: Table) -> dict[str, Table]:
        """By name, as the page of a report has them; `core`: when it was in submit functions."""
        queue = [(cycle, until, ticket) for (cycle, ticket), until in zip(self._accepted, self._until, strict=True)]
        names = sorted(self._steps, key=_place)
        return {"core": core, "queue": _table(queue), **{name: _table(self._steps[name]) for name in names}}

    @property
    def commands(self) -> dict[int, str]:
        """Ticket -> layer, ascending; nothing where the program has no layers."""
        named = {ticket: layer for (_, ticket), layer in zip(self._accepted, self._layers, strict=True) if layer}
        return dict(sorted(named.items()))


def _place(unit: str) -> tuple[int, int]:
    kind, number = _unit(unit)
    return UNITS.index(kind), number


def _unit(name: str) -> tuple[Kind, int]:
    found = ENGINE.fullmatch(name)
    assert found is not None, "only engines have a lane"
    return Kind[found[1].upper()], int(found[2])


def _table(rows: Sequence[tuple[int, int, int]]) -> Table:
    start, stop, ticket = np.array(rows, np.int64).reshape(-1, 3).T
    return rows_between(start, stop, ticket)


def core_lane(path: Path) -> Table:
    """The core in its submit function, t0 to t1 of each submission of a latency.csv. BadInputError, one line."""
    try:
        rows = [
            (_cycle(t0), _cycle(t1), _cycle(ticket))
            for ticket, t0, t1 in _rows(path, "ticket", "t0", "t1")
            if t0 and t1
        ]
    except (OSError, ValueError, csv.Error) as error:
        raise _wrong(path, error) from None
    return _table(sorted(rows))


def time_parts(found: Difference) -> list[Part]:
    """Every run of both results that has a timeline, on one axis; A above B."""
    charts: dict[str, Any] = {}
    for name in found.common:
        for side, loaded in zip(SIDES, (found.before, found.after), strict=True):
            chart = _chart(loaded, name)
            if chart is not None:
                charts[f"{side} {name}".strip()] = chart
    words = "A and B have one time axis. A command that is chosen in one is chosen in all, by its ticket."
    return [Note(words, "muted"), OverTime(charts)] if charts else []


def _chart(loaded: Loaded, name: str) -> dict[str, Any] | None:
    run: Run = loaded.runs[name]
    path, end = _file(loaded, name, TIMELINE), run.get("cycles")
    if path is None or not isinstance(end, int):
        return None
    recorded, latency = Recorded(path, end), _file(loaded, name, LATENCY)
    lanes = recorded.lanes(_table(()) if latency is None else core_lane(latency))
    commands, hertz = recorded.commands, loaded.keys.get("npu.clock_hz")
    return gantt_chart(
        lanes, end, np.array(list(commands), np.int64), list(commands.values()),
        engines=_engines(loaded.keys, lanes), hertz=hertz if isinstance(hertz, int | float) else 0,
    )  # fmt: skip


def _engines(keys: Mapping[str, object], lanes: Mapping[str, Table]) -> dict[str, int]:
    """How many of each kind there are, of all clusters: those that worked at least, the others by the configuration."""
    clusters, worked = keys.get("npu.clusters"), [_unit(name) for name in lanes if ENGINE.fullmatch(name)]
    found = {}
    for kind, key in COUNTS.items():
        count = keys.get(key)
        there = count * clusters if isinstance(count, int) and isinstance(clusters, int) else 0
        found[kind.name.lower()] = max([there, *(number + 1 for which, number in worked if which == kind)])
    return found
