"""The pictures of a report by file name: what is drawn of the results, not how (see `charts`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from npu_device.levels.explain import Blocker
from npu_device.trace.spans import Table
from pyv_npu.config import Config
from pyv_npu.observe.analysis.metrics import roofline as device_roofline
from pyv_npu.observe.analysis.model import Analysis
from pyv_npu.observe.latency.rows import Reason
from pyv_npu.observe.latency.table import Latency
from pyv_npu.report.charts import (
    RUN_COLOURS,
    Line,
    Point,
    Range,
    distributions,
    gantt,
    heat,
    lines,
    ranges,
    roofline,
    stacked,
)
from pyv_npu.report.figures import Series, lane_colour
from pyv_npu.tables import COMPARED, MEANING, OPEN_LOOP, headline

Runs = Mapping[str, Mapping[str, Any]]
"""The run objects of the JSON schema, by mode."""

Analyses = Mapping[str, Analysis]
"""By the name of the run."""

TOP = 10
"""Layers of the picture of bottlenecks."""
NAME_LENGTH = 17
"""Letters of a layer's name at a bar."""
STAGE_DASHES = {"t_submit": "-", "core_busy": "--", "response": ":"}
"""Stages of the distributions -> line style."""

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


CAUSE_COLOURS = {
    Blocker.COMPUTE: "#1c7ed6",
    Blocker.VECTOR: "#2f9e44",
    Blocker.FILL_DRAIN: "#74c0fc",
    Blocker.DRAM: "#7048e8",
    Blocker.DRAM_LATENCY: "#b197fc",
    Blocker.NOC: "#ae3ec9",
    Blocker.L2: "#0ca678",
    Blocker.CHANNEL: "#5f3dc4",
    Blocker.CHANNEL_BUSY: "#d0bfff",
    Blocker.BANK_CONFLICT: "#e03131",
    Blocker.PORT_BOUND: "#ff8787",
    Blocker.WIDTH: "#e8590c",
    Blocker.QUERY_LOAD: "#0b7285",
    Blocker.QUANTIZE: "#d6336c",
    Blocker.DEQUANTIZE: "#f783ac",
    Blocker.KEY_WAIT: "#15aabf",
    Blocker.CHAIN_FILL: "#99e9f2",
    Blocker.TILE_RESTART: "#a9e34b",
    Blocker.DEPENDENCY: "#868e96",
    Blocker.BARRIER: "#f08c00",
    Blocker.SUBMISSION: "#ffd43b",
    Blocker.CORE: "#f06595",
    Blocker.FAULT: "#c2255c",
}
CAUSES = {
    Blocker.COMPUTE: "computing: tensor engine",
    Blocker.VECTOR: "computing: vector engine",
    Blocker.FILL_DRAIN: "stalled: pipeline fill and drain",
    Blocker.DRAM: "stalled: DRAM bandwidth",
    Blocker.DRAM_LATENCY: "stalled: DRAM latency",
    Blocker.NOC: "stalled: NoC",
    Blocker.L2: "stalled: L2",
    Blocker.CHANNEL: "stalled: DMA channel bandwidth",
    Blocker.CHANNEL_BUSY: "stalled: DMA channel busy",
    Blocker.BANK_CONFLICT: "stalled: bank conflict",
    Blocker.PORT_BOUND: "stalled: scratchpad port",
    Blocker.WIDTH: "idle: engines that came free too late for a command",
    Blocker.QUERY_LOAD: "stalled: query load of a chain",
    Blocker.QUANTIZE: "stalled: quantization of keys and values",
    Blocker.DEQUANTIZE: "stalled: dequantization of keys and values",
    Blocker.KEY_WAIT: "stalled: key wait of a chain",
    Blocker.CHAIN_FILL: "stalled: chain fill",
    Blocker.TILE_RESTART: "stalled: tile restart of a chain",
    Blocker.DEPENDENCY: "stalled: dependency",
    Blocker.BARRIER: "stalled: barrier",
    Blocker.SUBMISSION: "stalled: submission",
    Blocker.CORE: "computing: core",
    Blocker.FAULT: "stalled: injected fault",
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
        curves.append(Line(f"{mode}: most", RUN_COLOURS[mode], _points(run, run.depth_max), ":"))
    caption = "commands accepted by the device and not started"
    return lines("Queue depth over time", caption, curves, "core cycles", "commands")


def te_idle(series: Mapping[str, Series]) -> str:
    curves = [
        Line(mode, RUN_COLOURS[mode], _points(run, [100 * (1 - share) for share in run.busy["te"]]))
        for mode, run in series.items()
    ]
    return lines("TE idle over time", "share of the tensor engines' cycles without work", curves, "core cycles", "%")


def utilization(series: Mapping[str, Series]) -> str:
    dashes = {"te": "-", "ve": "--", "dma": ":"}
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


def cumulative(latencies: Mapping[str, Latency], program: str) -> str | None:
    """Which share of the submissions took at most how many cycles; None when nothing was submitted."""
    curves = [
        Line(f"{stage}, {mode} (n = {steps[-1][1]})", RUN_COLOURS[mode],
             [(cycles, 100 * rank / steps[-1][1]) for cycles, rank in steps], STAGE_DASHES[stage])
        for mode, stage, steps in distribution_steps(latencies)
    ]  # fmt: skip
    return distributions("Submission latency: cumulative distribution", program, curves) if curves else None


def distribution_steps(latencies: Mapping[str, Latency]) -> list[tuple[str, str, list[tuple[int, int]]]]:
    """(mode, stage, (cycles, how many samples are at most that) ascending) of every stage that has samples."""
    stages = (
        (mode, stage, latency.stage(stage).cdf()) for mode, latency in latencies.items() for stage in STAGE_DASHES
    )
    return [(mode, stage, steps) for mode, stage, steps in stages if steps]


def bottlenecks(analysis: Analysis, name: str) -> str:
    """The layers that cost most, by cause."""
    worst = sorted(analysis.layers, key=lambda layer: -sum(layer.chain.values()))[:TOP]
    rows = {_short(layer.name): {CAUSES[cause]: layer.chain[cause] for cause in layer.chain} for layer in worst}
    caption = "core cycles of the critical path that were spent on a layer; all layers add up to the makespan"
    return stacked(f"Bottlenecks, {name}: the {len(rows)} layers that cost most", caption, rows,
                   {CAUSES[cause]: colour for cause, colour in CAUSE_COLOURS.items()})  # fmt: skip


def _short(name: str) -> str:
    return name if len(name) <= NAME_LENGTH else f"\u2026{name[1 - NAME_LENGTH :]}"


def layers_under_roofs(analyses: Analyses, config: Config, program: str) -> str | None:
    """Every layer as a point under the ceilings of the device; None when no layer both computed and moved something."""
    points = [
        Point(layer.name, RUN_COLOURS[name], layer.ops / layer.bytes, layer.rate, layer.active,
              f"{layer.name}, {name}: {layer.rate:,.1f} operations per cycle, {layer.ops / layer.bytes:,.2f} per byte, "
              f"{layer.active:,} cycles")
        for name, analysis in analyses.items() for layer in analysis.layers
        if layer.bytes and layer.ops and layer.active
    ]  # fmt: skip
    if not points:
        return None
    caption = f"{program}; a point is a layer, its area the active cycles; from operations, DRAM bytes and cycles"
    device = device_roofline(config.npu, [layer for analysis in analyses.values() for layer in analysis.layers])
    return roofline("Roofline", caption, points, device)


def unit_lanes(lanes: Mapping[str, Table], end: int, title: str) -> str:
    """From when to when each unit worked."""
    caption = "from when to when each unit worked; the chart of report.html can be zoomed"
    return gantt(title, caption, {name: (lane_colour(name), rows) for name, rows in lanes.items()}, end)


def all_pictures(
    runs: Runs, series: Mapping[str, Series], lanes: Mapping[str, Mapping[str, Table]], analyses: Analyses,
    latencies: Mapping[str, Latency], config: Config,
) -> dict[str, str]:  # fmt: skip
    """File name -> SVG text, of what there is to show. All but `config` by the name of the run."""
    run = next(iter(runs.values()))
    drawn = {
        "roofline.svg": layers_under_roofs(analyses, config, run["program"]),
        **{f"bottlenecks_{name}.svg": bottlenecks(analysis, name) for name, analysis in analyses.items()},
        "reasons.svg": reasons(runs),
        "stages.svg": stages(runs),
        "queue_depth.svg": queue_depth(series),
        "te_idle.svg": te_idle(series),
        "utilization.svg": utilization(series),
        "barrier_wait.svg": barrier_wait(series) if any(run.barrier.any() for run in series.values()) else None,
        "scratchpad.svg": scratchpad(series, config.npu.spm.size * config.npu.clusters),
        **{f"banks_{mode}.svg": banks(run, mode) for mode, run in series.items()},
        **{f"conflicts_{mode}.svg": conflicts(run, mode) for mode, run in series.items()},
        "latency_cdf.svg": cumulative(latencies, f"{run['program']}, preset {run['preset']}"),
        **{f"gantt_{name}.svg": unit_lanes(rows, int(runs[name]["cycles"]), f"{run['program']}: {name}")
           for name, rows in lanes.items()},
    }  # fmt: skip
    return {name: text for name, text in drawn.items() if text is not None}


def meaning(stage: str) -> str:
    return MEANING[stage]


def _points(run: Series, values: Any) -> list[tuple[float, float]]:
    """A staircase: the value of each bin from its first to its last cycle."""
    edges = run.edges.tolist()
    points = []
    for index, value in enumerate(values):
        points += [(edges[index], float(value)), (edges[index + 1], float(value))]
    return points
