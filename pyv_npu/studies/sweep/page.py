"""Page of a sweep: the best point, the strongest axis, effects, the front, where loose and tight break even."""

from collections.abc import Iterator, Mapping, Sequence

from pyv_npu.report.charts import FLAT
from pyv_npu.report.page import render
from pyv_npu.sections import Cell, Details, Note, Part, Section, Table, Tile, Value, Verdict, as_text
from pyv_npu.studies.sweep import charts, effects
from pyv_npu.studies.sweep.figures import COSTS, is_estimate
from pyv_npu.studies.sweep.figures import Cell as Figure
from pyv_npu.studies.sweep.table import ERROR, MODE, POINT
from pyv_npu.studies.sweep.table import Table as Points
from pyv_npu.units import number, quantity

MAX_ROWS = 2000
"""Maximum rows of a table on the page; the files have all."""
SHOWN = 40
"""Maximum rows of a table in the text."""
MAX_EFFECTS = 12
"""Maximum number of axes in the charts of effects."""
MAX_FIGURES = 6
"""Maximum number of figures in the charts of effects."""
NO_LINKS: Mapping[int, str] = {}
BREAK_EVEN = ("cycles", "t_submit", "core_per_command")


def text(program: str, points: Points) -> str:
    """Format the sweep for a terminal: the sentences and the first rows of the table."""
    failed = sum(row[ERROR] is not None for row in points.rows)
    head = Note(f"{program}: {len(points.rows):,} points, {failed:,} failed")
    figures = [name for name in points.named if effects.numbers(points, name)]
    table = Section("points", "", [head, *_verdict(points, figures), _points(points)])
    return as_text([table, _failures(points)], SHOWN)


def _verdict(points: Points, figures: Sequence[str]) -> list[Part]:
    estimates = [name for name in points.named if is_estimate(name)]
    note = [Note(f"Estimates, counts of events times a table: {', '.join(estimates)}", "muted")] if estimates else []
    return [*([Verdict(list(sentences(points, figures[0])))] if figures else []), *note]


def page(
    program: str, points: Points, front: Sequence[str], command: str, links: Mapping[int, str] = NO_LINKS
) -> str:  # fmt: skip
    """Render the document. `front`: two or three figures of the Pareto front; `command`: the command that writes the
    report of point N; `links`: by point, the path of its report or result."""
    failed = sum(row[ERROR] is not None for row in points.rows)
    figures = [name for name in points.named if effects.numbers(points, name)]
    axes = [axis for axis in points.axes if len(points.varied(axis)) > 1]
    tiles = [Tile("points", number(len(points.rows)), "points" + (f", {failed:,} failed" if failed else ""))]
    sections = [Section("table", "Table", _table(points, command, links))]
    if figures:
        names = [name for name in figures if name not in COSTS][:MAX_FIGURES] or figures[:1]
        tiles += _tiles(points, figures[0])
        sections[:0] = [
            Section("effects", "Main effects", _effects(points, axes, names)),
            Section("front", "Pareto front", _front(points, front, axes, names, links)),
            Section("heat", "Two axes at once", _heat(points, figures[0])),
            Section("break-even", "Loose and tight", _break_even(points, figures)),
            Section("sensitivity", "Which axis moves what", _sensitivity(points, figures)),
        ]
    sections.append(_failures(points))
    head: list[Part] = [Note(f"over {', '.join(points.axes)}", "muted"), *_verdict(points, figures)]
    return render(f"{program}: sweep", head, tiles, sections)


def _failures(points: Points) -> Section:
    """Return the points without a result, with the reasons."""
    rows = [(str(row[POINT]), str(row[ERROR])) for row in points.rows if row[ERROR]]
    return Section("failed", "Failed points", [Table(("point", "reason"), rows[:MAX_ROWS])] if rows else [])


def best_of(points: Points, figure: str) -> tuple[str, dict[str, Figure], float]:
    """Return the best point by a figure: `most` or `least`, its row and the value."""
    high = effects.high_is_good(figure)
    row, value = (max if high else min)(effects.numbers(points, figure), key=lambda item: item[1])
    return "most" if high else "least", dict(row), value


def sentences(points: Points, figure: str) -> Iterator[str]:
    """Yield sentences: the best point, the axis to change, and the mode that wins."""
    unit = points.figures[figure].unit
    word, row, value = best_of(points, figure)
    settings = ", ".join(f"{axis} = {row[axis]}" for axis in points.axes)
    yield f"Point {row[POINT]} has the {word} {figure}, {quantity(value, unit)}: {settings}."
    strong = [effect for effect in effects.sensitivity(points, figure) if effect.axis != MODE]
    if strong and strong[0].share:
        first, *rest = strong
        weak = ", ".join(
            f"{effect.axis} by {quantity(effect.share, 'share')}" for effect in rest if effect.share > FLAT
        )
        yield (f"Change {first.axis} first: it moves the mean of {figure} by {quantity(first.share, 'share')}, from "
               f"{number(first.low)} to {quantity(first.high, unit)}" + (f"; {weak}." if weak else "."))  # fmt: skip
    modes = dict(effects.main_effect(points, MODE, figure)) if MODE in points.axes else {}
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
    values = [result for _, result in effects.numbers(points, figure)]
    if min(values) > 0:
        tiles.append(Tile("spread", f"{number(max(values) / min(values))}x", f"{figure}, largest over least point"))
    strong = [effect for effect in effects.sensitivity(points, figure) if effect.axis != MODE]
    if strong:
        tiles.append(Tile("strongest", strong[0].axis, f"moves {figure} most: {quantity(strong[0].share, 'share')}"))
    return tiles


def _points(points: Points, links: Mapping[int, str] = NO_LINKS) -> Table:
    """Return a row for each point; figures of failed points are empty."""
    return _rows(points, [*points.axes, *points.named], points.rows, links)


def _rows(
    points: Points, heads: Sequence[str], pages: Sequence[Mapping[str, Figure]], links: Mapping[int, str],
    name: str = "point",
) -> Table:  # fmt: skip
    """Return a table of some points, with the figures and axes of `heads`."""
    units = ["", *(points.figures[head].unit if head in points.figures else "" for head in heads)]
    rows: list[list[Value]] = [[_number(row[POINT], links), *(row[head] for head in heads)]
                               for row in pages[:MAX_ROWS]]  # fmt: skip
    return Table((POINT, *heads), rows, units, figures=f"{name}.{{0}}.{{head}}")


def _number(point: object, links: Mapping[int, str]) -> Cell:
    """Return the number of a point, linked to its report or result."""
    assert isinstance(point, int)
    return Cell(number(point), link=links.get(point, ""), value=point)


def _table(points: Points, command: str, links: Mapping[int, str]) -> list[Part]:
    total = len(points.rows)
    more = f" The first {MAX_ROWS:,} of {total:,} are here, all in table.csv." if total > MAX_ROWS else ""
    text = "A number leads to the result of its point, or to its report; for a report, with the folder of this page: "
    text += f"{command}.{more}"
    return [Note(text, "muted"), _points(points, links)]


def _effects(points: Points, axes: Sequence[str], figures: Sequence[str]) -> list[Part]:
    names = [axis for axis in axes if axis != MODE][:MAX_EFFECTS]
    return [part for axis in names for part in charts.effect_parts(points, axis, figures)]


def _sensitivity(points: Points, figures: Sequence[str]) -> list[Part]:
    def mean(value: float, figure: str) -> Cell:
        return Cell(quantity(value, points.figures[figure].unit), value=value)

    rows: list[list[Value]] = [
        [figure, effect.axis, mean(effect.low, figure), mean(effect.high, figure), effect.share]
        for figure in figures for effect in effects.sensitivity(points, figure) if effect.share and figure not in COSTS
    ]  # fmt: skip
    heads = ("figure", "axis", "least mean", "largest mean", "distance over the mean of all")
    return [Table(heads, rows, ("", "", "", "", "share"))] if rows else []


def _heat(points: Points, figure: str) -> list[Part]:
    ranked = [effect.axis for effect in effects.sensitivity(points, figure)]
    return [charts.heat(points, ranked[1], ranked[0], figure)] if len(ranked) > 1 else []


def _front(
    points: Points, front: Sequence[str], axes: Sequence[str], figures: Sequence[str], links: Mapping[int, str]
) -> list[Part]:
    best = effects.pareto(points, *front)
    if len(set(front)) < 2 or not best:
        return []
    heads = list(dict.fromkeys([*points.axes, *front]))
    return [charts.front(points, front, axes, figures, links), _rows(points, heads, best, links, "front")]


def _break_even(points: Points, figures: Sequence[str]) -> list[Part]:
    """Return a sentence for each figure and axis, and a folded table of all break-even points."""
    parts: list[Part] = []
    rows: list[tuple[str, ...]] = []
    for name in BREAK_EVEN:
        crossings = list(effects.break_even(points, name)) if name in figures else []
        for axis in dict.fromkeys(crossing.axis for crossing in crossings):
            lines = [crossing for crossing in crossings if crossing.axis == axis]
            parts.append(Note(effects.crossing_text(name, axis, lines)))
            rows += [(name, axis, _settings(line), ", ".join(map(number, line.at))) for line in lines if line.at]
    heads = ("figure", "axis", "everything else", "equal at")
    return [
        *parts,
        *([Details(f"every break-even point ({len(rows)})", Table(heads, rows[:MAX_ROWS]))] if rows else []),
    ]


def _settings(crossing: effects.BreakEven) -> str:
    return ", ".join(f"{name} = {value}" for name, value in crossing.fixed.items()) or "nothing"
