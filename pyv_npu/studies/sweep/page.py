"""The page of a sweep: what moved the figures, and the table."""

from collections.abc import Sequence

from pyv_npu.report.page import Cell, Note, Pair, Part, Picture, Section, Table, Tile, number, render
from pyv_npu.studies.sweep import charts
from pyv_npu.studies.sweep.effects import break_even, numbers, pareto, sensitivity
from pyv_npu.studies.sweep.figures import COSTS
from pyv_npu.studies.sweep.table import ERROR, MODE, POINT, shown
from pyv_npu.studies.sweep.table import Table as Made

MOST_ROWS = 2000
"""Of the table on the page; the files have all."""
MOST_FINDINGS = 40
"""Break-even points on the page."""
MOST_EFFECTS = 12
"""Axes whose effect is drawn."""


def page(program: str, made: Made, front: Sequence[str], again: str) -> str:
    """The document. `front`: two figures of the Pareto front; `again`: the command that runs point N by itself."""
    failed = [row for row in made.rows if row[ERROR]]
    tiles = [Tile("points", number(len(made.rows)), "points"), Tile("failed", number(len(failed)), "failed")]
    figures = [name for name in made.named if numbers(made, name)]
    axes = [axis for axis in made.axes if len(made.varied(axis)) > 1]
    sections = [Section("table", "Table", _table(made, again))]
    if figures:
        headline = figures[0]
        for name in figures[:3]:
            best = min(numbers(made, name), key=lambda item: item[1])
            text = f"least {name} ({made.figures[name].unit}), point {best[0][POINT]}"
            tiles.append(Tile(f"least.{name}", shown(best[0][name]), text))
        effects = [
            Pair([Picture(charts.effect(made, axis, name)) for name in figures[:2]])
            for axis in axes[:MOST_EFFECTS]
            if axis != MODE
        ]
        sections[:0] = [
            Section("sensitivity", "Which axis moves what", _sensitivity(made, figures)),
            Section("effects", "Main effects", effects),
            Section("heat", "Two axes at once", _heat(made, axes, headline)),
            Section("front", "Pareto front", _front(made, front)),
            Section("parallel", "Parallel coordinates", _parallel(made, axes, figures)),
            Section("break-even", "Loose and tight", _break_even(made, figures)),
        ]
    if failed:
        rows = [[Cell(shown(row[POINT])), Cell(str(row[ERROR]), kind="text")] for row in failed[:MOST_ROWS]]
        sections.append(Section("failed", "Failed points", [Table(("point", "why"), rows)]))
    return render(f"{program}: sweep", [Note(f"over {', '.join(made.axes)}", "muted")], tiles, sections)


def _table(made: Made, again: str) -> list[Part]:
    heads = [POINT, *made.axes, *made.named, ERROR]
    rows = [
        [Cell(shown(row[head]), f"point.{row[POINT]}.{head}", "text" if head == ERROR else "") for head in heads]
        for row in made.rows[:MOST_ROWS]
    ]
    units = [made.figures[head].unit if head in made.figures else "" for head in heads]
    named = [f"{head} ({unit})" if unit else head for head, unit in zip(heads, units, strict=True)]
    more = (
        f" The first {MOST_ROWS:,} of {len(made.rows):,} are here, all in table.csv." if made.rows[MOST_ROWS:] else ""
    )
    return [Note(f"A point by itself, with its report: {again}.{more}", "muted"), Table(named, rows, tools=True)]


def _sensitivity(made: Made, figures: Sequence[str]) -> list[Part]:
    rows = [
        [
            Cell(figure),
            Cell(effect.axis),
            Cell(shown(effect.low)),
            Cell(shown(effect.high)),
            Cell(f"{effect.share:.1%}"),
        ]
        for figure in figures
        for effect in sensitivity(made, figure)
        if effect.share and figure not in COSTS
    ]
    heads = ("figure", "axis", "least mean", "largest mean", "distance over the mean of all")
    return [Table(heads, rows, tools=True)] if rows else []


def _heat(made: Made, axes: Sequence[str], figure: str) -> list[Part]:
    ranked = [effect.axis for effect in sensitivity(made, figure)]
    return [Picture(charts.heat(made, ranked[0], ranked[1], figure))] if len(ranked) > 1 else []


def _front(made: Made, front: Sequence[str]) -> list[Part]:
    x, y = front
    if not (numbers(made, x) and numbers(made, y)):
        return []
    heads = [POINT, *made.axes, x, y]
    rows = [[Cell(shown(row[head])) for head in heads] for row in pareto(made, x, y)[:MOST_ROWS]]
    return [Picture(charts.front(made, x, y)), Table(heads, rows, tools=True)]


def _parallel(made: Made, axes: Sequence[str], figures: Sequence[str]) -> list[Part]:
    names = [*axes, *figures[:3]]
    return [Picture(charts.parallel(made, names, figures[0]))] if len(axes) > 1 else []


def _break_even(made: Made, figures: Sequence[str]) -> list[Part]:
    """One sentence where a mode is cheaper everywhere, else where the modes cost the same."""
    parts: list[Part] = []
    for name in ("cycles", "t_submit", "core_per_command"):
        found = list(break_even(made, name)) if name in figures else []
        for axis in dict.fromkeys(one.axis for one in found):
            own = [one for one in found if one.axis == axis]
            always = {one.cheaper for one in own if not one.at}
            if len(always) == 1 and not any(one.at for one in own):
                parts.append(Note(f"{name}: {always.pop()} is cheaper at every value of {axis}, whatever else is set."))
            else:
                parts += [Note(one.text) for one in own]
    return parts[:MOST_FINDINGS]
