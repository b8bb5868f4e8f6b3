"""Figures of a report from the table of spans: time series in equal bins, and the lanes of a Gantt chart."""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.trace.events import Kind, unit_index
from npu_device.trace.run_spans import Spans, rows_between
from npu_device.trace.spans import UNITS, Integers, Table
from pyv_native.files import replacing
from pyv_npu.observe.latency.rows import NONE, Submissions
from pyv_npu.report.charts import quantitative, round_significant, specification
from pyv_npu.report.timeline import unit_name
from pyv_npu.sections import Chart
from pyv_npu.units import UnitScale, scale_of

BINS = 300
CONFLICT = "_conflict"
"""Suffix of the series of a bank's conflicts."""

Floats = NDArray[np.float64]


class Series(NamedTuple):
    """Time series of a run: a value for each bin [edges[i], edges[i + 1]), in core cycles."""

    edges: Integers
    columns: Mapping[str, NDArray[Any]]
    """Series by name, as in series.csv."""


def series(spans: Spans, engines: Mapping[str, int], occupancy: Table | None = None) -> Series:
    """Bin a run; `engines`: number of each kind ("te", "ve", "dma"); `occupancy`: of the scratchpads, None if the work
    of commands is unknown.

    Queue depth: accepted commands that have not started. Barriers: accepted commands that wait only for a barrier.
    Engines: busy share, 0..1. Banks in use: busy share of the port, and stall cycles of engines per cycle by conflicts.
    """
    edges = np.unique(np.linspace(0, max(spans.end, 1), BINS + 1).astype(np.int64))
    width = np.diff(edges)
    busy = {
        name: sum((_covered_cycles(rows, edges) for rows in spans.units(Kind[name.upper()]).values()),
                  np.zeros(len(width), dtype=np.int64)) / (width * max(count, 1))
        for name, count in engines.items()
    }  # fmt: skip
    before = _working_cycles(spans.steps)
    columns = {
        "queue_depth_mean": _covered_cycles(spans.queue, edges) / width,
        "queue_depth_max": _deepest(spans.queue, edges),
        **{f"{name}_busy": shares for name, shares in busy.items()},
        "te_idle": 1 - busy["te"],
        "barrier_waiting": _covered_cycles(spans.barriers, edges) / width,
        **{f"bank{unit_index(unit)}": _spread(rows, edges, before) / width for unit, rows in spans.banks.items()},
        **{f"bank{unit_index(unit)}{CONFLICT}": _covered_cycles(rows, edges) / width
           for unit, rows in spans.conflicts.items()},
    }  # fmt: skip
    if occupancy is not None:
        size = occupancy["bytes"].astype(np.int64)
        columns["scratchpad_bytes"] = _covered_cycles(occupancy, edges, size) / width
    return Series(edges, columns)


def _covered_cycles(rows: Table, edges: Integers, weight: Integers | None = None) -> Integers:
    """Return the weighted cycles of all rows within each bin, exact: differences of the sums up to each edge."""
    weight = np.ones(len(rows), dtype=np.int64) if weight is None else weight
    return np.diff(_elapsed_at(rows["start"], weight, edges) - _elapsed_at(rows["end"], weight, edges))


def _working_cycles(work: Table) -> Callable[[Integers], Integers]:
    """Return a function of moments: the cycles before each in which at least one engine works."""
    order = np.argsort(work["start"], kind="stable")
    start, latest_end = work["start"][order], np.maximum.accumulate(work["end"][order])
    opens = np.ones(len(start), np.bool_)
    opens[1:] = start[1:] > latest_end[:-1]
    begins, ends = start[opens], latest_end[np.append(opens[1:], True)[: len(latest_end)]]
    weight = np.ones(len(begins), dtype=np.int64)
    return lambda moments: _elapsed_at(begins, weight, moments) - _elapsed_at(ends, weight, moments)


def _spread(rows: Table, edges: Integers, before: Callable[[Integers], Integers]) -> Floats:
    """Return the bytes of rows in each bin, distributed evenly over the time of each row in which engines work."""
    start, end, edges = (before(moments) for moments in (rows["start"], rows["end"], edges))
    weight = rows["bytes"] / np.maximum(end - start, 1)
    return np.diff(_elapsed_at(start, weight, edges) - _elapsed_at(end, weight, edges))


def _elapsed_at(moments: Integers, weight: NDArray[Any], edges: Integers) -> NDArray[Any]:
    """Return, for each edge, the sum of weight * max(0, edge - moment) over all moments."""
    order = np.argsort(moments, kind="stable")
    moments, weight = moments[order], weight[order]
    count = np.searchsorted(moments, edges)
    total, weights = (np.concatenate([[0], np.cumsum(values)]) for values in (moments * weight, weight))
    return weights[count] * edges - total[count]


def _deepest(rows: Table, edges: Integers) -> Integers:
    """Return the maximum number of open rows in each bin. Within a cycle, ends precede begins."""
    rows = rows[rows["end"] > rows["start"]]
    start, end = np.sort(rows["start"]), np.sort(rows["end"])
    depth = np.arange(1, len(start) + 1) - np.searchsorted(end, start, side="right")
    begin = np.searchsorted(start, edges, side="left")
    open_count = begin - np.searchsorted(end, edges, side="right")
    peak = np.maximum(open_count[:-1], 0)
    for index in np.flatnonzero(begin[1:] > begin[:-1]):
        peak[index] = max(peak[index], depth[begin[index] : begin[index + 1]].max())
    return np.asarray(peak, dtype=np.int64)


def write_series_csv(path: Path, runs: Mapping[str, Series]) -> None:
    """Write a line per mode and bin."""
    names = list(dict.fromkeys(name for run in runs.values() for name in run.columns))
    with replacing(path) as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["mode", "start", "end", *names])
        for mode, run in runs.items():
            blank = [""] * (len(run.edges) - 1)
            texts = [[f"{value:.6g}" for value in run.columns.get(name, ())] or blank for name in names]
            rows.writerows(zip([mode] * len(blank), run.edges[:-1], run.edges[1:], *texts, strict=True))


# -- Gantt ---------------------------------------------------------------------------------------------------------

LANE_COLOURS = {"core": "#495057", "kernels": "#f06595", "queue": "#f08c00", "te": "#1c7ed6", "ve": "#2f9e44",
                "dma": "#7048e8", "kv_engine": "#d6336c"}  # fmt: skip


def lanes(spans: Spans, submissions: Submissions) -> dict[str, Table]:
    """Return lanes by name: the core in submit functions, the queue, kernels on the core, every engine in use, KV
    engines last."""
    rows_of = {"core": _core(submissions), "queue": spans.queue}
    if len(spans.core):
        rows_of["kernels"] = spans.core
    for kind in UNITS:
        rows_of |= {unit_name(unit): rows for unit, rows in spans.units(kind).items()}
    rows_of |= {unit_name(unit): rows for unit, rows in spans.kv_engines.items()}
    return rows_of


def _core(submissions: Submissions) -> Table:
    """Return the intervals of the core in submit functions: t0 to t1."""
    t0, t1, ticket = (submissions.column(name) for name in ("t0", "t1", "ticket"))
    order = np.lexsort((ticket, t1, t0))
    order = order[(t0[order] != NONE) & (t1[order] != NONE)]
    return rows_between(t0[order], t1[order], ticket[order])


def gantt_chart(
    shown: Mapping[str, Table], end: int, tickets: Integers, layers: Sequence[str], binned: Series,
    engines: Mapping[str, int], waits: Sequence[Sequence[int]], hertz: float,
) -> dict[str, Any]:  # fmt: skip
    """Return the object that page/gantt.js reads. `layers`: known layers of the first commands of `tickets`, ascending.
    `binned`: series below the lanes; `engines`: number of each kind; `waits`: as in `Analysis`."""
    count = min(len(tickets), len(layers))
    names = list(dict.fromkeys(layers))
    order = {name: index for index, name in enumerate(names)}
    columns: dict[tuple[int, ...], int] = {}  # tickets of lanes are often equal
    return {
        "end": end,
        "hertz": hertz,
        "engines": dict(engines),
        "layers": names,
        "known": count,
        "tickets": differences(tickets[:count]),
        "layer": differences(np.array([order[name] for name in layers[:count]], np.int64)),
        "waits": [list(wait) for wait in waits[:count]],
        "bins": len(binned.edges) - 1,
        "edges": differences(binned.edges),
        "tracks": _tracks(binned),
        "lanes": [
            {
                "name": name,
                "engine": _engine(name),
                "colour": LANE_COLOURS[name.rstrip("0123456789")],
                "count": len(rows),
                "start": differences(rows["start"]),
                "length": differences(rows["end"] - rows["start"]),
                "ticket": columns.setdefault(tuple(differences(rows["ticket"])), len(columns)),
            }
            for name, rows in shown.items()
        ],
        "columns": list(columns),
    }


def _tracks(run: Series) -> list[dict[str, Any]]:
    """Return tracks of binned values, for page/gantt.js, without tracks that are always zero."""
    columns = run.columns
    tracks = [_track("barrier wait", "commands", columns["barrier_waiting"], 1 / 64)]
    if "scratchpad_bytes" in columns:
        tracks.insert(0, _track("scratchpad", "KiB", columns["scratchpad_bytes"] / 1024, 1 / 16))
    for name, values in columns.items():
        if name.startswith("bank"):
            conflict: dict[str, Any] = {"conflict": True} if name.endswith(CONFLICT) else {}
            tracks.append(_track(name.replace("_", " "), "%", values, 1 / 255, heat=True, **conflict, most=1))
    return [track for track in tracks if track["any"]]


def _track(name: str, unit: str, values: Floats, step: float, **more: Any) -> dict[str, Any]:
    """Return values in multiples of `step`, rounded up, so that small values remain visible."""
    steps = np.ceil(values / step - 1e-9).astype(np.int64)
    return {"name": name, "unit": unit, "step": step, "values": differences(steps), "any": bool(steps.any()), **more}


def _engine(name: str) -> str:
    """Return the kind of engine of a lane; empty for the core and the queue."""
    kind = name.rstrip("0123456789")
    return kind if kind in ("te", "ve", "dma") else ""


def differences(values: Integers) -> list[int]:
    """Return the differences of successive values, from zero: small numbers, which page/gantt.js adds up."""
    return np.diff(values.astype(np.int64), prepend=0).tolist()


def sums(steps: Sequence[int], count: int) -> Integers:
    """Return the inverse of `differences`. ValueError: they are not `count` integers."""
    numbers = np.array(steps) if steps else np.zeros(0, np.int64)
    if numbers.dtype.kind != "i" or numbers.shape != (count,):
        raise ValueError(f"a row has not {count} integers")
    return np.cumsum(numbers)


PICTURE_COLUMNS, PICTURE_SHADES = 1000, 8
TRACK_COLOURS = ("#1f6fb4", "#d9203c")
"""Colours of tracks, and of tracks of conflicts."""


def gantt_picture(name: str, run: Mapping[str, Any]) -> Chart:
    """Draw a result of `gantt_chart`: the busy share of each lane over time, and the values of each track relative to
    its largest. ValueError: invalid object."""
    hertz, end = float(run.get("hertz") or 0), int(run["end"])
    scale = scale_of([end / hertz], "s") if hertz else UnitScale(1, "core cycles")
    per_cycle = 1 / hertz / scale.factor if hertz else 1.0
    edges = np.unique(np.linspace(0, max(end, 1), PICTURE_COLUMNS + 1).astype(np.int64))
    bins = sums(run["edges"], run["bins"] + 1)
    rows = list[tuple[str, str, Integers, Floats]]()
    for lane in run["lanes"]:
        start, length = (sums(lane[key], lane["count"]) for key in ("start", "length"))
        busy = _covered_cycles(rows_between(start, start + length), edges) / np.diff(edges)
        rows.append((lane["name"], lane["colour"], edges, busy))
    for track in run["tracks"]:
        values = sums(track["values"], run["bins"]) * track["step"]
        shares = values / (track.get("most") or max(values.max(), track["step"]))
        rows.append((track["name"], TRACK_COLOURS["conflict" in track], bins, shares))
    data = []
    for lane, colour, moments, shares in rows:
        shades = np.ceil(np.minimum(shares, 1) * PICTURE_SHADES).astype(int)
        changes = np.flatnonzero(np.diff(shades, prepend=-1))
        for at, until in zip(changes, [*changes[1:], len(shades)], strict=True):
            if shades[at]:
                data.append({"lane": lane, "x": round_significant(float(moments[at] * per_cycle)),
                             "x2": round_significant(float(moments[until] * per_cycle)), "colour": colour,
                             "share": int(shades[at]) / PICTURE_SHADES})  # fmt: skip
    lanes = [lane for lane, *_ in rows]
    bar = {
        "mark": {"type": "bar", "height": {"band": 0.75}},
        "encoding": {
            "y": {"field": "lane", "type": "nominal", "scale": {"domain": lanes}, "title": None},
            "x": quantitative("x", f"time ({scale.unit})" if hertz else scale.unit, [0, end * per_cycle]),
            "x2": {"field": "x2"},
            "color": {"field": "colour", "type": "nominal", "scale": None},
            "opacity": {"field": "share", "type": "quantitative", "legend": None,
                        "scale": {"domain": [0, 1], "range": [0.25, 1]}},
        },
    }  # fmt: skip
    caption = "the darker, the larger the share of the time in which a lane works, or the value beside the largest"
    return Chart(f"gantt_{name}", f"{name} over time", caption, specification(data, [bar], 26 * len(lanes)))
