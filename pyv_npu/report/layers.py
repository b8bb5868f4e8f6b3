"""Sections of a page about the layers of a model: bottlenecks, roofline, a row for each layer or group of layers."""

from collections import Counter
from collections.abc import Mapping, Sequence

from npu_device.levels.explain import Blocker
from pyv_npu.config import Config
from pyv_npu.observe.analysis.layers import Layer
from pyv_npu.observe.analysis.model import Analysis
from pyv_npu.report.pictures import CAUSES, Analyses, blocks, bottlenecks, layers_under_roofs
from pyv_npu.sections import Cell, Details, Heading, Note, Part, Section, Table, Value
from pyv_npu.units import number, short
from pyv_npu.verdict import BOUNDS

HEADS = ("operations", "commands", "active cycles")
SPAN = ("first cycle", "end")
"""Additional columns for single layers."""
RATES = ("MACs", "DRAM read", "written", "ops/byte", "ops/cycle", "main cause", "of the makespan")
UNITS = ("bytes", "bytes", "", "", "", "share")
"""Units of the last columns."""
BUSY = {"te": "TE busy", "ve": "VE busy", "dma": "DMA busy", "core": "core busy"}


def of_model(analyses: Analyses, config: Config, program: str) -> list[Section]:
    bars = [bottlenecks(analysis, name) for name, analysis in analyses.items() if analysis.bottlenecks]
    bounds = [_bounds(name, analysis) for name, analysis in analyses.items()]
    rows = [part for name, analysis in analyses.items() for part in _layers(name, analysis)]
    return [
        Section("bottlenecks", "Bottlenecks", [*bars, *bounds]),
        Section("roofline", "Roofline", layers_under_roofs(analyses, config, program)),
        Section("layers", "Layers", rows),
    ]


def causes(analysis: Analysis) -> dict[str, int]:
    """Return cause in words -> cycles of the makespan of the NPU."""
    return {CAUSES[cause]: cycles for cause, cycles in analysis.explanation.causes.items()}


def _bounds(name: str, analysis: Analysis) -> Table:
    explanation = analysis.explanation
    makespan = max(explanation.makespan, 1)
    ranked = sorted(explanation.causes.items(), key=lambda item: -item[1])
    figures = [
        *((f"lower bound: {BOUNDS[bound]}", f"bound.{bound}", cycles) for bound, cycles in explanation.bounds.items()),
        *((CAUSES[cause], f"cause.{cause}", cycles) for cause, cycles in ranked),
        ("makespan: cycle 0 to the last completion", "makespan", explanation.makespan),
    ]
    rows = [(text, Cell(number(cycles), f"{name}.{key}"), cycles / makespan) for text, key, cycles in figures]
    return Table((f"NPU, {name}", "core cycles", "of the makespan"), rows, units=("", "", "share"))


def _layers(name: str, analysis: Analysis) -> list[Part]:
    """Return a row for each layer; if the names of many differ only in numbers, first a row for each such group."""
    meaning = "Active: cycles in which an engine, or the core, worked for the layer. Busy: summed over the engines."
    note = Note(meaning, "muted")
    makespan = max(analysis.explanation.makespan, 1)
    heads = *HEADS, *(BUSY[kind] for layer in analysis.layers[:1] for kind in layer.busy), *RATES
    rows = [[layer.name, *(Cell(short(cycle), value=cycle) for cycle in (layer.start, layer.end)),
             *_cells([layer], makespan, f"{name}.layer.{layer.name}")] for layer in analysis.layers]  # fmt: skip
    table = _table(("layer", *SPAN, *heads), rows, f"{name}.layer.{{0}}.{{head}}")
    grouped = blocks(analysis.layers)
    if grouped is None:
        return [Heading(name), table, note]
    rows = [[pattern, len(group), *_cells(group, makespan)] for pattern, group in grouped.items()]
    text = "A row sums the layers whose names differ in numbers only (#)."
    return [Heading(name), _table(("layers of a kind", "count", *heads), rows), Note(text, "muted"), note,
            Details(f"every layer ({len(analysis.layers)})", table)]  # fmt: skip


def _table(heads: Sequence[str], rows: Sequence[Sequence[Value]], figures: str = "") -> Table:
    return Table(heads, rows, units=[*[""] * (len(heads) - len(UNITS)), *UNITS], figures=figures)


def _cells(group: Sequence[Layer], makespan: int, name: str = "") -> list[Value]:
    """Return sums over layers in narrow cells, which are sorted and saved with all digits."""

    def total(key: str) -> int:
        return sum(getattr(layer, key) for layer in group)

    figures: Mapping[str, int] = {
        "commands": total("commands"),
        "active": total("active"),
        **{f"{kind}_busy": sum(layer.busy[kind] for layer in group) for kind in group[0].busy},
        "macs": total("macs"),
    }  # fmt: skip
    ops, size, active = total("ops"), total("bytes"), total("active")
    spent: Counter[Blocker] = Counter()
    for layer in group:
        spent.update(layer.chain)
    worst = max(spent, key=lambda cause: spent[cause]) if spent else None
    return [
        Cell(" ".join(group[0].operations), kind="text"),
        *(Cell(short(value), name and f"{name}.{key}", value=value) for key, value in figures.items()),
        total("read"), total("written"), ops / size if size else None, ops / active if active else 0.0,
        "" if worst is None else CAUSES[worst].split(": ")[-1], spent.total() / makespan,
    ]  # fmt: skip
