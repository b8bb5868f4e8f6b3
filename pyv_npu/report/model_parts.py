"""The parts of a report that are about a model: its pictures, and its sections of the page."""

from collections.abc import Mapping, Sequence

from npu_device.levels.explain import Blocker
from pyv_npu.config import Config
from pyv_npu.observe.analysis.layers import Layer
from pyv_npu.observe.analysis.metrics import roofline
from pyv_npu.observe.analysis.model import Analysis
from pyv_npu.report import roofline as roofline_picture
from pyv_npu.report.charts import stacked
from pyv_npu.report.html import Cell, number, paragraph, table

TOP = 10
"""Bottlenecks that are named."""
NAME_LENGTH = 17
"""Letters of a layer's name beside a bar."""

COLOURS = {
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
    Blocker.DEPENDENCY: "#868e96",
    Blocker.BARRIER: "#f08c00",
    Blocker.SUBMISSION: "#ffd43b",
}

Analyses = Mapping[str, Analysis]
"""By the name of the run."""


def pictures(analyses: Analyses, config: Config, program: str) -> dict[str, str]:
    """File name -> SVG text."""
    if not analyses:
        return {}
    drawn = {f"bottlenecks_{name}.svg": _bottlenecks(one, name) for name, one in analyses.items()}
    layers = {name: one.layers for name, one in analyses.items()}
    device = roofline(config.npu, [layer for found in layers.values() for layer in found])
    picture = roofline_picture.draw(layers, device, program)
    return drawn if picture is None else {"roofline.svg": picture, **drawn}


def sections(analyses: Analyses, drawn: Mapping[str, str]) -> list[tuple[str, str, list[str]]]:
    """(id, heading, parts) of the sections of the page."""
    if not analyses:
        return []
    bars = [drawn[f"bottlenecks_{name}.svg"] for name in analyses]
    return [
        ("bottlenecks", "Bottlenecks", [*bars, *(_top(name, one) for name, one in analyses.items()),
                                        *(_bounds(name, one) for name, one in analyses.items())]),
        ("roofline", "Roofline", [drawn.get("roofline.svg", "")]),
        ("layers", "Layers", [_layers(name, one.layers, one.explanation.makespan) for name, one in analyses.items()]),
    ]  # fmt: skip


def _bottlenecks(analysis: Analysis, name: str) -> str:
    worst = sorted(analysis.layers, key=lambda layer: -sum(layer.chain.values()))[:TOP]
    rows = {_short(layer.name): {str(cause): layer.chain[cause] for cause in layer.chain} for layer in worst}
    caption = "core cycles of the critical chain that were spent on a layer; all layers add up to the makespan"
    return stacked(f"Bottlenecks, {name}: the {len(rows)} layers that cost most", caption, rows,
                   {str(cause): colour for cause, colour in COLOURS.items()})  # fmt: skip


def _short(name: str) -> str:
    return name if len(name) <= NAME_LENGTH else f"\u2026{name[1 - NAME_LENGTH :]}"


def _top(name: str, analysis: Analysis) -> str:
    whole = max(analysis.explanation.makespan, 1)
    rows = [
        [Cell(str(rank), f"{name}.top.{rank}.rank"), Cell(layer, kind="text"), Cell(cause, kind="text"),
         Cell(number(cycles), f"{name}.top.{rank}"), Cell(f"{100 * cycles / whole:.1f} %")]
        for rank, (layer, cause, cycles) in enumerate(analysis.bottlenecks[:TOP], 1)
    ]  # fmt: skip
    heads = (f"top {len(rows)}, {name}", "layer", "cause", "core cycles", "of the makespan")
    return table(heads, rows) if rows else ""


def _bounds(name: str, analysis: Analysis) -> str:
    explained = analysis.explanation
    whole = max(explained.makespan, 1)
    causes = sorted(explained.causes.items(), key=lambda item: -item[1])
    figures = [
        *((f"at least, by {bound}", f"bound.{bound}", cycles) for bound, cycles in explained.bounds.items()),
        *((f"spent on {cause}", f"cause.{cause}", cycles) for cause, cycles in causes),
        ("makespan: cycle 0 to the last completion", "makespan", explained.makespan),
    ]
    rows = [
        [Cell(text), Cell(number(cycles), f"{name}.{key}"), Cell(f"{100 * cycles / whole:.1f} %")]
        for text, key, cycles in figures
    ]
    return table((f"NPU, {name}", "core cycles", "of the makespan"), rows)


def _layers(name: str, layers: Sequence[Layer], makespan: int) -> str:
    heads = (
        "layer", "operations", "commands", "first cycle", "end", "active cycles", "TE busy", "VE busy", "DMA busy",
        "DRAM bytes read", "written", "MACs", "ops/byte", "ops/cycle", "held up by", "of the makespan",
    )  # fmt: skip
    rows = []
    for layer in layers:
        worst = max(layer.chain, key=lambda cause: layer.chain[cause]) if layer.chain else None
        figures = {
            "commands": layer.commands, "start": layer.start, "end": layer.end, "active": layer.active,
            **{f"{kind}_busy": busy for kind, busy in layer.busy.items()},
            "dram_read": layer.read, "dram_written": layer.written, "macs": layer.macs,
        }  # fmt: skip
        rows.append(
            [Cell(layer.name, kind="text"), Cell(" ".join(layer.operations), kind="text"),
             *(Cell(number(value), f"{name}.layer.{layer.name}.{figure}") for figure, value in figures.items()),
             Cell("-" if layer.intensity is None else f"{layer.intensity:,.2f}"), Cell(f"{layer.rate:,.1f}"),
             Cell("-" if worst is None else str(worst), kind="text"),
             Cell(f"{100 * sum(layer.chain.values()) / max(makespan, 1):.1f} %")]
        )  # fmt: skip
    note = "Active: cycles in which an engine worked for the layer. Busy: summed over the engines of a kind."
    return f"<h3>{name}</h3>" + table(heads, rows) + paragraph(note, "muted")
