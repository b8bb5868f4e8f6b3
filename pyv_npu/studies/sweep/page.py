"""Page of a sweep: the best point, the strongest axis, effects, the front, where loose and tight break even."""

from collections.abc import Iterator, Mapping, Sequence

from pyv_npu.report.charts import FLAT
from pyv_npu.report.page import Cell, Details, Note, Part, Section, Table, Tile, Verdict, as_text, render
from pyv_npu.studies.sweep import charts
from pyv_npu.studies.sweep.effects import BreakEven, break_even, high_is_good, main_effect, numbers, pareto, sensitivity
from pyv_npu.studies.sweep.figures import COSTS
from pyv_npu.studies.sweep.figures import Cell as Value
from pyv_npu.studies.sweep.table import ERROR, MODE, POINT
from pyv_npu.studies.sweep.table import Table as Points
from pyv_npu.units import number, quantity, scale_of

MAX_ROWS = 2000
"""Rows of the table on the page; the files have all."""
SHOWN = 40
"""Rows of the text."""
MAX_EFFECTS = 12
"""Axes whose effect is drawn."""
MAX_FIGURES = 6
"""Figures whose effect is drawn."""
BREAK_EVEN = ("cycles", "t_submit", "core_per_command")


def text(program: str, points: Points) -> str:
    """The same for a terminal: the sentences and the first rows of the table."""
    failed = sum(row[ERROR] is not None for row in points.rows)
    head = Note(f"{program}: {len(points.rows):,} points, {failed:,} failed")
    figures = [name for name in points.named if numbers(points, name)]
    return as_text([head, *_verdict(points, figures), _points(points)], SHOWN)


def _verdict(points: Points, figures: Sequence[str]) -> list[Part]:
    return [Verdict(list(sentences(points, figures[0])))] if figures else []


def page(program: str, points: Points, front: Sequence[str], again: str) -> str:
    """The document. `front`: two or three figures of the Pareto front; `again`: the command that runs point N by
    itself."""
    failed = [row for row in points.rows if row[ERROR]]
    figures = [name for name in points.named if numbers(points, name)]
    axes = [axis for axis in points.axes if len(points.varied(axis)) > 1]
    tiles = [Tile("points", number(len(points.rows)), "points" + (f", {len(failed):,} failed" if failed else ""))]
    sections = [Section("table", "Table", _table(points, again))]
    if figures:
        shown = [name for name in figures if name not in COSTS][:MAX_FIGURES] or figures[:1]
        tiles += _tiles(points, figures[0])
        sections[:0] = [
            Section("effects", "Main effects", _effects(points, axes, shown)),
            Section("front", "Pareto front", _front(points, front, axes, shown)),
            Section("heat", "Two axes at once", _heat(points, figures[0])),
            Section("break-even", "Loose and tight", _break_even(points, figures)),
            Section("sensitivity", "Which axis moves what", _sensitivity(points, figures)),
        ]
    if failed:
        rows = [[Cell(number(row[POINT])), Cell(str(row[ERROR]), kind="text")] for row in failed[:MAX_ROWS]]
        sections.append(Section("failed", "Failed points", [Table(("point", "why"), rows)]))
    head: list[Part] = [Note(f"over {', '.join(points.axes)}", "muted"), *_verdict(points, figures)]
    return render(f"{program}: sweep", head, tiles, sections)


def best_of(points: Points, figure: str) -> tuple[str, dict[str, Value], float]:
    """The word for the best value of a figure, its row and the value."""
    high = high_is_good(figure)
    row, value = (max if high else min)(numbers(points, figure), key=lambda item: item[1])
    return "most" if high else "least", dict(row), value


def sentences(points: Points, figure: str) -> Iterator[str]:
    """What is best, which axis to change, and which mode wins."""
    unit = points.figures[figure].unit
    word, row, value = best_of(points, figure)
    settings = ", ".join(f"{axis} = {row[axis]}" for axis in points.axes)
    yield f"Point {row[POINT]} has the {word} {figure}, {quantity(value, unit)}: {settings}."
    strong = [effect for effect in sensitivity(points, figure) if effect.axis != MODE]
    if strong and strong[0].share:
        first, *rest = strong
        weak = ", ".join(
            f"{effect.axis} by {quantity(effect.share, 'share')}" for effect in rest if effect.share > FLAT
        )
        yield (f"Change {first.axis} first: it moves the mean of {figure} by {quantity(first.share, 'share')}, from "
               f"{number(first.low)} to {quantity(first.high, unit)}" + (f"; {weak}." if weak else "."))  # fmt: skip
    modes = dict(main_effect(points, MODE, figure)) if MODE in points.axes else {}
    if len(modes) == 2:
        (loser, high), (winner, low) = sorted(modes.items(), key=lambda item: -item[1])
        ratio = f"{number(high / low)}x " if low else ""
        equal = high - low <= FLAT * high
        yield (f"loose and tight are equal in {figure} on average." if equal else
               f"On average over all points, {figure} is {ratio}lower in {winner} than in {loser} mode.")  # fmt: skip


def _tiles(points: Points, figure: str) -> list[Tile]:
    unit = points.figures[figure].unit
    word, row, value = best_of(points, figure)
    tiles = [Tile(f"{word}.{figure}", quantity(value, unit), f"{word} {figure}, point {row[POINT]}")]
    values = [each for _, each in numbers(points, figure)]
    if min(values) > 0:
        tiles.append(Tile("spread", f"{number(max(values) / min(values))}x", f"{figure}, largest over least point"))
    strong = [effect for effect in sensitivity(points, figure) if effect.axis != MODE]
    if strong:
        tiles.append(Tile("strongest", strong[0].axis, f"moves {figure} most: {quantity(strong[0].share, 'share')}"))
    return tiles


def _points(points: Points) -> Table:
    """A row for each point."""
    heads = [POINT, *points.axes, *points.named, *([ERROR] if any(row[ERROR] for row in points.rows) else [])]
    return _scaled(points, heads, points.rows)


def _scaled(points: Points, heads: Sequence[str], chosen: Sequence[Mapping[str, Value]], name: str = "point") -> Table:
    """Some rows of the points; a column of times or bytes has one prefix."""
    scales = {figure: scale_of([value for _, value in numbers(points, figure)], points.figures[figure].unit)
              for figure in points.named}  # fmt: skip

    def cell(row: dict[str, Value], head: str) -> Cell:
        value = row[head]
        if head in scales and isinstance(value, int | float) and scales[head].factor != 1:
            value = value / scales[head].factor
        return Cell(number(value), f"{name}.{row[POINT]}.{head}", "text" if head == ERROR else "")

    rows = [[cell(dict(row), head) for head in heads] for row in chosen[:MAX_ROWS]]
    return Table(heads, rows, True, [scales[head].unit if head in scales else "" for head in heads])


def _table(points: Points, again: str) -> list[Part]:
    total = len(points.rows)
    more = f" The first {MAX_ROWS:,} of {total:,} are here, all in table.csv." if total > MAX_ROWS else ""
    return [Note(f"A point by itself, with its report: {again}.{more}", "muted"), _points(points)]


def _effects(points: Points, axes: Sequence[str], figures: Sequence[str]) -> list[Part]:
    parts: list[Part] = []
    for axis in [axis for axis in axes if axis != MODE][:MAX_EFFECTS]:
        chart, constant = charts.effects(points, axis, figures)
        parts += [chart] if chart else []
        parts += [Note(f"{axis} leaves these as they are: {'; '.join(constant)}.", "muted")] if constant else []
    return parts


def _sensitivity(points: Points, figures: Sequence[str]) -> list[Part]:
    rows = [
        [Cell(figure, kind="text"), Cell(effect.axis, kind="text"), Cell(number(effect.low)),
         Cell(number(effect.high)), Cell(quantity(effect.share, "share"))]
        for figure in figures
        for effect in sensitivity(points, figure)
        if effect.share and figure not in COSTS
    ]  # fmt: skip
    heads = ("figure", "axis", "least mean", "largest mean", "distance over the mean of all")
    return [Table(heads, rows, tools=True)] if rows else []


def _heat(points: Points, figure: str) -> list[Part]:
    ranked = [effect.axis for effect in sensitivity(points, figure)]
    return [charts.heat(points, ranked[1], ranked[0], figure)] if len(ranked) > 1 else []


def _front(points: Points, front: Sequence[str], axes: Sequence[str], figures: Sequence[str]) -> list[Part]:
    best = pareto(points, *front)
    if len(set(front)) < 2 or not best:
        return []
    heads = list(dict.fromkeys([POINT, *points.axes, *front]))
    return [charts.front(points, front, axes, figures), _scaled(points, heads, best, "front")]


def _break_even(points: Points, figures: Sequence[str]) -> list[Part]:
    """A sentence for each figure and axis; where they differ by the other axes, every setting is folded below."""
    parts: list[Part] = []
    rows: list[list[Cell]] = []
    for name in BREAK_EVEN:
        crossings = list(break_even(points, name)) if name in figures else []
        for axis in dict.fromkeys(each.axis for each in crossings):
            lines = [each for each in crossings if each.axis == axis]
            parts.append(Note(_crossing(name, axis, lines)))
            rows += [[Cell(name, kind="text"), Cell(axis, kind="text"), Cell(_settings(each), kind="text"),
                      Cell(", ".join(number(at) for at in each.at) or f"{each.cheaper} is always cheaper", kind="text")]
                     for each in lines if each.at]  # fmt: skip
    heads = ("figure", "axis", "everything else", "equal at")
    return [
        *parts,
        *([Details(f"every break-even point ({len(rows)})", Table(heads, rows[:MAX_ROWS]))] if rows else []),
    ]


def _settings(each: BreakEven) -> str:
    return ", ".join(f"{name} = {value}" for name, value in each.fixed.items()) or "nothing"


def _crossing(figure: str, axis: str, lines: Sequence[BreakEven]) -> str:
    at = sorted(value for each in lines for value in each.at)
    always = {mode: sum(not each.at and each.cheaper == mode for each in lines) for mode in ("loose", "tight")}
    if not at:
        winners = [mode for mode, count in always.items() if count]
        if len(winners) == 1:
            return f"{figure}: {winners[0]} is cheaper at every value of {axis}, whatever else is set."
        return (f"{figure}: over {axis}, loose is cheaper everywhere in {always['loose']} of {len(lines)} settings of "
                f"everything else, tight in {always['tight']}.")  # fmt: skip
    span = number(at[0]) if at[0] == at[-1] else f"{number(at[0])} to {number(at[-1])}"
    text = f"{figure}: loose and tight break even at {axis} = {span}"
    if len(lines) == 1:
        return f"{text}."
    rest = [f"{mode} is always cheaper in {count}" for mode, count in always.items() if count]
    crossing = sum(bool(each.at) for each in lines)
    return f"{text} in {crossing} of {len(lines)} settings of everything else{''.join(f'; {each}' for each in rest)}."
