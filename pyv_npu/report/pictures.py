"""Charts of the page of a run, from its figures."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from npu_device.levels.explain import Blocker
from pyv_npu.config import Config
from pyv_npu.observe.analysis.layers import Layer
from pyv_npu.observe.analysis.metrics import roofline as device_roofline
from pyv_npu.observe.analysis.model import Analysis
from pyv_npu.observe.latency.table import Latency
from pyv_npu.report.charts import ChartPoint, Line, distributions, roofline, round_significant, stacked_bars
from pyv_npu.result import Runs, headline
from pyv_npu.run_sections.latency import REASONS
from pyv_npu.sections import Chart

Analyses = Mapping[str, Analysis]
"""Run -> analysis."""

TOP = 10
"""Maximum number of rows in the chart of bottlenecks."""
GROUPED_FROM = 12
"""Minimum number of layers for grouping."""
_NUMBERS = re.compile(r"[0-9]+")
DISTRIBUTED = ("t_submit", "t_submit_prebuilt", "core_busy", "response")
"""Stages of the distributions."""
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


def reasons(runs: Runs) -> list[Chart]:
    """Draw the mean cycles of a submission by reason."""
    rows = {}
    stage = headline(runs)
    key = REASONS[stage]
    for mode, run in runs.items():
        latency = run["latency"]
        if latency is not None and latency["stages"][stage]:
            rows[mode] = {
                name: round_significant(cycles / latency["stages"][stage]["n"]) for name, cycles in latency[key].items()
            }
    caption = f"mean of a submission by reason; the parts add up to the mean of {stage}"
    return (
        [stacked_bars("reasons", "Where the cycles of a submission go", caption, rows, "core cycles")] if rows else []
    )


def cumulative(latencies: Mapping[str, Latency], program: str) -> list[Chart]:
    """Draw the cumulative distributions of submission latency."""
    rows = distribution_steps(latencies)
    has_submit = any(stage == "t_submit" for _, stage, _ in rows)
    curves = [
        Line(mode, [(cycles, 100 * rank / steps[-1][1]) for cycles, rank in steps], stage)
        for mode, stage, steps in rows if not (has_submit and stage == "t_submit_prebuilt")
    ]  # fmt: skip
    title = "Submission latency: cumulative distribution"
    return [distributions("latency_cdf", title, program, curves)] if any(curve.points[1:] for curve in curves) else []


def distribution_steps(latencies: Mapping[str, Latency]) -> list[tuple[str, str, list[tuple[int, int]]]]:
    """Return (mode, stage, ascending list of (cycles, number of samples at most that)) of each stage with samples."""
    stages = ((mode, stage, latency.stage(stage).cdf()) for mode, latency in latencies.items() for stage in DISTRIBUTED)
    return [(mode, stage, steps) for mode, stage, steps in stages if steps]


def bottlenecks(analysis: Analysis, name: str) -> Chart:
    """Draw the layers with most cycles on the critical path, by cause; layers of a group share a row."""
    groups = blocks(analysis.layers) or {layer.name: [layer] for layer in analysis.layers}
    cycles = {
        pattern if len(group) == 1 else f"{pattern} ({len(group)}x)": _causes(group)
        for pattern, group in groups.items()
    }
    worst = sorted(cycles, key=lambda key: -sum(cycles[key].values()))[:TOP]
    caption = "core cycles of the critical path that were spent on a layer; all layers add up to the makespan"
    rows = {pattern: cycles[pattern] for pattern in worst}
    return stacked_bars(f"bottlenecks_{name}", f"Bottlenecks, {name}", caption, rows, "core cycles")


def _causes(group: Sequence[Layer]) -> dict[str, int]:
    causes: Counter[Blocker] = Counter()
    for layer in group:
        causes.update(layer.chain)
    return {CAUSES[cause]: causes[cause] for cause in CAUSES if causes[cause]}


def blocks(layers: Sequence[Layer]) -> dict[str, list[Layer]] | None:
    """Group layers with equal operations whose names differ only in numbers: name with # for numbers -> layers, in the
    order of first layers. None if grouping does not halve the table."""
    groups: dict[tuple[str, tuple[str, ...]], list[Layer]] = {}
    for layer in layers:
        groups.setdefault((_NUMBERS.sub("#", layer.name), layer.operations), []).append(layer)
    if len(layers) < GROUPED_FROM or 2 * len(groups) > len(layers):
        return None
    patterns = [pattern for pattern, _ in groups]
    return {
        (group[0].name if len(group) == 1 else pattern)
        + (f" ({' '.join(operations)})" if patterns.count(pattern) > 1 else ""): group
        for (pattern, operations), group in groups.items()
    }


def layers_under_roofs(analyses: Analyses, config: Config, program: str) -> list[Chart]:
    """Draw the roofline with a point for each layer; [] if no layer both computes and moves data."""
    points = [
        ChartPoint(layer.name, name, layer.ops / layer.bytes, layer.rate, layer.active)
        for name, analysis in analyses.items()
        for layer in analysis.layers
        if layer.bytes and layer.ops and layer.active
    ]
    if not points:
        return []
    caption = f"{program}; a point is a layer, its area the active cycles; from operations, DRAM bytes and cycles"
    device = device_roofline(config.npu, [layer for analysis in analyses.values() for layer in analysis.layers])
    return [roofline("roofline", "Roofline", caption, points, device)]
