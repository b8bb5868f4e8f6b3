"""The pictures of one report by file name, made from results: what is drawn, not how (see `charts`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyv_npu.observe.latency.rows import Reason
from pyv_npu.report.charts import RUN_COLOURS, Line, Range, heat, lines, ranges, stacked
from pyv_npu.report.series import Series
from pyv_npu.tables import COMPARED, MEANING, OPEN_LOOP, headline

Runs = Mapping[str, Mapping[str, Any]]
"""The run objects of the JSON schema, by mode."""

REASON_COLOURS = {
    Reason.INTERRUPTED: "#c2255c",
    Reason.RETRY: "#e03131",
    Reason.SETUP: "#868e96",
    Reason.DESCRIPTOR_STORE: "#1c7ed6",
    Reason.FENCE: "#15aabf",
    Reason.MMIO: "#0b7285",
    Reason.BATCH: "#ced4da",
    Reason.BUS: "#7048e8",
    Reason.ISSUE: "#ae3ec9",
    Reason.FULL_WAIT: "#f08c00",
    Reason.FETCH: "#2f9e44",
    Reason.VALIDATE: "#94d82d",
}


def reasons(runs: Runs) -> str | None:
    """Mean cycles of a submission by reason."""
    rows = {}
    stage, key = headline(runs)
    for mode, run in runs.items():
        latency = run["latency"]
        if latency is not None and latency["stages"][stage]:
            rows[mode] = {name: cycles / latency["stages"][stage]["n"] for name, cycles in latency[key].items()}
    caption = f"mean core cycles of a submission by reason; the parts add up to the mean of {stage}"
    colours = {reason.value: colour for reason, colour in REASON_COLOURS.items()}
    return stacked("Where the cycles of a submission go", caption, rows, colours) if rows else None


def stages(runs: Runs) -> str | None:
    """Order statistics of each stage."""
    rows = []
    for name in (*OPEN_LOOP, *COMPARED):
        for mode, run in runs.items():
            stage = (run["latency"] or {"stages": {}})["stages"].get(name)
            if stage is not None:
                marks = {figure.upper(): stage[figure] for figure in ("p50", "p95", "p99") if stage[figure] is not None}
                rows.append(Range(f"{name}, {mode}", RUN_COLOURS[mode], stage["min"], stage["max"], marks))
    caption = "thin: minimum to maximum; marks: P50, P95, P99"
    return ranges("Stages of a submission", caption, _on_one_axis(rows), "core cycles") if rows else None


def _on_one_axis(rows: Sequence[Range]) -> list[Range]:
    """A logarithmic axis has no zero: zero is drawn as one cycle."""
    return [
        Range(row.name, row.colour, max(row.low, 1), max(row.high, 1), {k: max(v, 1) for k, v in row.marks.items()})
        for row in rows
    ]


def queue_depth(series: Mapping[str, Series]) -> str:
    curves = []
    for mode, run in series.items():
        curves.append(Line(f"{mode}: mean", RUN_COLOURS[mode], _points(run, run.depth_mean)))
        curves.append(Line(f"{mode}: most", RUN_COLOURS[mode], _points(run, run.depth_max), "3 3"))
    caption = "commands accepted by the device and not started"
    return lines("Queue depth over time", caption, curves, "core cycles", "commands")


def te_idle(series: Mapping[str, Series]) -> str:
    curves = [
        Line(mode, RUN_COLOURS[mode], _points(run, [100 * (1 - share) for share in run.busy["te"]]))
        for mode, run in series.items()
    ]
    return lines("TE idle over time", "share of the tensor engines' cycles without work", curves, "core cycles", "%")


def utilization(series: Mapping[str, Series]) -> str:
    dashes = {"te": "", "ve": "6 3", "dma": "2 3"}
    curves = [
        Line(f"{name.upper()}, {mode}", RUN_COLOURS[mode], _points(run, [100 * share for share in shares]),
             dashes[name])
        for name in dashes for mode, run in series.items() for shares in [run.busy[name]]
    ]  # fmt: skip
    return lines("Engines over time", "share of all engines of a kind that work", curves, "core cycles", "%")


def barrier_wait(series: Mapping[str, Series]) -> str:
    curves = [Line(mode, RUN_COLOURS[mode], _points(run, run.barrier)) for mode, run in series.items()]
    caption = "accepted commands that only a barrier holds back, mean of each bin"
    return lines("Barrier wait over time", caption, curves, "core cycles", "commands")


def banks(run: Series, mode: str) -> str | None:
    """None when no bank of the scratchpad was busy."""
    if not run.banks:
        return None
    caption = f"{mode}: white is idle, dark blue is a port that is busy all the time"
    rows = {name: [float(value) for value in values] for name, values in run.banks.items()}
    return heat(f"Scratchpad banks over time, {mode}", caption, rows, int(run.edges[-1]))


def conflicts(run: Series, mode: str) -> str | None:
    """None when no access to a bank lengthened anything."""
    if not run.conflicts:
        return None
    caption = f"{mode}: dark red is a cycle lost for each cycle; conflicts with others, and ports that are too narrow"
    rows = {name: [float(value) for value in values] for name, values in run.conflicts.items()}
    return heat(f"Bank conflicts over time, {mode}", caption, rows, int(run.edges[-1]), red=True)


def scratchpad(series: Mapping[str, Series], size: int) -> str | None:
    """Bytes that hold something; None where it is not known what commands do."""
    curves = [
        Line(mode, RUN_COLOURS[mode], _points(run, run.scratchpad / 1024))
        for mode, run in series.items()
        if run.scratchpad is not None
    ]
    caption = f"memory that a command fills or a later one still reads, mean of each bin, of {size // 1024:,} KiB"
    return lines("Scratchpad occupancy over time", caption, curves, "core cycles", "KiB") if curves else None


def all_pictures(runs: Runs, series: Mapping[str, Series], spm_bytes: int) -> dict[str, str]:
    """File name -> SVG text, of what there is to show; `spm_bytes`: of all scratchpads."""
    found = {
        "reasons.svg": reasons(runs),
        "stages.svg": stages(runs),
        "queue_depth.svg": queue_depth(series),
        "te_idle.svg": te_idle(series),
        "utilization.svg": utilization(series),
        "barrier_wait.svg": barrier_wait(series) if any(run.barrier.any() for run in series.values()) else None,
        "scratchpad.svg": scratchpad(series, spm_bytes),
        **{f"banks_{mode}.svg": banks(run, mode) for mode, run in series.items()},
        **{f"conflicts_{mode}.svg": conflicts(run, mode) for mode, run in series.items()},
    }
    return {name: text for name, text in found.items() if text is not None}


def meaning(stage: str) -> str:
    return MEANING[stage]


def _points(run: Series, values: Any) -> list[tuple[float, float]]:
    """A staircase: the value of each bin from its first to its last cycle."""
    edges = run.edges.tolist()
    points = []
    for index, value in enumerate(values):
        points += [(edges[index], float(value)), (edges[index + 1], float(value))]
    return points
