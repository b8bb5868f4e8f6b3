"""What report.html says about the layers of a model: bottlenecks, roofline, a row for each layer or kind of layer."""

from collections import Counter
from collections.abc import Mapping, Sequence

from npu_device.levels.explain import Blocker
from pyv_npu.config import Config
from pyv_npu.observe.analysis.layers import Layer
from pyv_npu.observe.analysis.model import Analysis
from pyv_npu.report.page import Cell, Details, Heading, Note, Part, Section, Table, mean
from pyv_npu.report.pictures import CAUSES, TOP, Analyses, blocks, bottlenecks, counted, layers_under_roofs
from pyv_npu.text import MISSING
from pyv_npu.units import number, quantity, short
from pyv_npu.verdict import BOUNDS

HEADS = (
    ("layer", "operations", "commands", "first cycle", "end", "active cycles"),
    ("DRAM read", "written", "MACs", "ops/byte", "ops/cycle", "main cause", "of the makespan"),
)
"""Before what was busy, and behind it."""
BUSY = {"te": "TE busy", "ve": "VE busy", "dma": "DMA busy", "core": "core busy"}


def of_model(analyses: Analyses, config: Config, program: str) -> list[Section]:
    bars = [bottlenecks(analysis, name) for name, analysis in analyses.items() if analysis.bottlenecks]
    top = [_top(name, analysis) for name, analysis in analyses.items() if analysis.bottlenecks]
    bounds = [_bounds(name, analysis) for name, analysis in analyses.items()]
    found = [part for name, analysis in analyses.items() for part in _layers(name, analysis)]
    return [
        Section("bottlenecks", "Bottlenecks", [*bars, *top, *bounds]),
        Section("roofline", "Roofline", layers_under_roofs(analyses, config, program)),
        Section("layers", "Layers", found),
    ]


def causes(analysis: Analysis) -> dict[str, int]:
    """What the makespan of the NPU was spent on, in words, with cycles."""
    return {CAUSES[cause]: cycles for cause, cycles in analysis.explanation.causes.items()}


def _top(name: str, analysis: Analysis) -> Table:
    """The largest causes of layers; layers that differ in numbers only are one."""
    whole = max(analysis.explanation.makespan, 1)
    groups = blocks(analysis.layers) or {layer.name: [layer] for layer in analysis.layers}
    spent: Counter[tuple[str, Blocker]] = Counter()
    for pattern, group in groups.items():
        for layer in group:
            spent.update({(counted(pattern, group), cause): cycles for cause, cycles in layer.chain.items()})
    rows = [
        [Cell(str(rank), f"{name}.top.{rank}.rank"), Cell(layer, kind="text"), Cell(CAUSES[cause], kind="text"),
         Cell(number(cycles), f"{name}.top.{rank}"), Cell(f"{100 * cycles / whole:.1f} %")]
        for rank, ((layer, cause), cycles) in enumerate(spent.most_common(TOP), 1)
    ]  # fmt: skip
    return Table((f"top {len(rows)}, {name}", "layer", "cause", "core cycles", "of the makespan"), rows)


def _bounds(name: str, analysis: Analysis) -> Table:
    explained = analysis.explanation
    whole = max(explained.makespan, 1)
    causes = sorted(explained.causes.items(), key=lambda item: -item[1])
    figures = [
        *((f"lower bound: {BOUNDS[bound]}", f"bound.{bound}", cycles) for bound, cycles in explained.bounds.items()),
        *((CAUSES[cause], f"cause.{cause}", cycles) for cause, cycles in causes),
        ("makespan: cycle 0 to the last completion", "makespan", explained.makespan),
    ]
    rows = [
        [Cell(text), Cell(number(cycles), f"{name}.{key}"), Cell(f"{100 * cycles / whole:.1f} %")]
        for text, key, cycles in figures
    ]
    return Table((f"NPU, {name}", "core cycles", "of the makespan"), rows)


def _layers(name: str, analysis: Analysis) -> list[Part]:
    """A row for each layer; where many are equal but for numbers in their names, a row for all of those first."""
    meaning = "Active: cycles in which an engine, or the core, worked for the layer. Busy: summed over the engines."
    note = Note(meaning, "muted")
    whole = max(analysis.explanation.makespan, 1)
    before, behind = HEADS
    heads = *before, *(BUSY[kind] for layer in analysis.layers[:1] for kind in layer.busy), *behind
    each = Table(heads, [_row(name, layer, whole) for layer in analysis.layers])
    grouped = blocks(analysis.layers)
    if grouped is None:
        return [Heading(name), each, note]
    rows = [_row_of(pattern, group, whole) for pattern, group in grouped.items()]
    table = Table(("layers of a kind", "count", *heads[1:]), rows)
    text = "A row sums the layers whose names differ in numbers only (#); first cycle and end are those of all of them."
    return [Heading(name), table, Note(text, "muted"), note, Details(f"every layer ({len(analysis.layers)})", each)]


def _figures(layers: Sequence[Layer]) -> dict[str, int]:
    """The sums over layers, by the name of the figure."""
    return {
        "commands": sum(layer.commands for layer in layers),
        "start": min(layer.start for layer in layers), "end": max(layer.end for layer in layers),
        "active": sum(layer.active for layer in layers),
        **{f"{kind}_busy": sum(layer.busy[kind] for layer in layers) for kind in layers[0].busy},
        "dram_read": sum(layer.read for layer in layers), "dram_written": sum(layer.written for layer in layers),
        "macs": sum(layer.macs for layer in layers),
    }  # fmt: skip


def _row(name: str, layer: Layer, makespan: int) -> list[Cell]:
    figures = _cells(_figures([layer]), f"{name}.layer.{layer.name}.")
    return [Cell(layer.name, kind="text"), Cell(" ".join(layer.operations), kind="text"), *figures,
            *_rates([layer], makespan)]  # fmt: skip


def _row_of(pattern: str, group: Sequence[Layer], makespan: int) -> list[Cell]:
    return [Cell(pattern, kind="text"), Cell(number(len(group))), Cell(" ".join(group[0].operations), kind="text"),
            *_cells(_figures(group)), *_rates(group, makespan)]  # fmt: skip


def _cells(figures: Mapping[str, int], name: str = "") -> list[Cell]:
    """Narrow texts of figures, which are sorted and saved with all their digits."""
    return [
        Cell(quantity(value, "bytes") if key.startswith("dram") else short(value), name and f"{name}{key}", value=value)
        for key, value in figures.items()
    ]


def _rates(group: Sequence[Layer], makespan: int) -> list[Cell]:
    """Operations per byte and per cycle, the main cause, and the share of the makespan."""
    ops, moved, active = (sum(getattr(layer, name) for layer in group) for name in ("ops", "bytes", "active"))
    spent: Counter[Blocker] = Counter()
    for layer in group:
        spent.update(layer.chain)
    worst = max(spent, key=lambda cause: spent[cause]) if spent else None
    return [
        Cell(mean(ops / moved if moved else None)), Cell(mean(ops / active if active else 0.0)),
        Cell(MISSING if worst is None else CAUSES[worst], kind="text"),
        Cell(f"{100 * spent.total() / makespan:.1f} %"),
    ]  # fmt: skip
