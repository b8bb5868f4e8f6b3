"""The charts of a sweep, as SVG text."""

from collections.abc import Mapping, Sequence

from pyv_npu.report.charts import INK, MUTED, RUN_COLOURS, Chart, Line, cells, drawn_as_svg, lines, new_chart
from pyv_npu.studies.sweep.effects import main_effect, numbers, pareto
from pyv_npu.studies.sweep.figures import Cell
from pyv_npu.studies.sweep.table import MODE, POINT, Table, shown

PLAIN = "#1f6fb4"
MOST_CELLS = 30
"""Values of an axis of a heat map."""
MOST_LABELS = 12
"""Values of an axis that are written."""
MOST_CURVES = 500
"""Points that parallel coordinates show."""


def _of_mode(table: Table) -> Mapping[str, Table]:
    """The table by mode; as a whole where it has none."""
    modes = [str(mode) for mode in table.varied(MODE)] if MODE in table.axes else []
    if not modes:
        return {"mean": table}
    return {mode: Table(table.axes, table.figures, [row for row in table.rows if row[MODE] == mode]) for mode in modes}


def effect(table: Table, axis: str, figure: str) -> str:
    """The mean of a figure over the values of an axis, by mode. Words stand at equal distances."""
    values = table.varied(axis)
    numeric = all(isinstance(value, int) for value in values)
    places = {value: value if numeric and isinstance(value, int) else index for index, value in enumerate(values)}
    curves = [
        Line(
            mode,
            RUN_COLOURS.get(mode, PLAIN),
            [(places[value], mean) for value, mean in main_effect(part, axis, figure)],
        )
        for mode, part in _of_mode(table).items()
    ]
    at = [value for value in values if isinstance(value, int)] if numeric and len(values) <= MOST_LABELS else None
    more = ", ..." if values[MOST_LABELS:] else ""
    caption = f"mean over everything else; {axis} = {', '.join(map(str, values[:MOST_LABELS]))}{more}"
    return lines(figure, caption, curves, axis, table.figures[figure].unit, dots=True, at_x=at)


def heat(table: Table, down: str, across: str, figure: str) -> str:
    """The mean of a figure at each pair of values; the largest is darkest."""
    found: dict[tuple[Cell, Cell], list[float]] = {}
    for row, number in numbers(table, figure):
        found.setdefault((row[down], row[across]), []).append(number)
    means = {pair: sum(values) / len(values) for pair, values in found.items()}
    low, high = min(means.values()), max(means.values())
    columns = table.varied(across)[:MOST_CELLS]
    rows = {}
    for value in table.varied(down)[:MOST_CELLS]:
        line = []
        for other in columns:
            mean = means.get((value, other))
            share = 0.0 if mean is None or high == low else (mean - low) / (high - low)
            line.append(("" if mean is None or len(columns) > MOST_LABELS else f"{mean:,.4g}", share))
        rows[f"{value}"] = line
    caption = f"mean from {low:,.6g} (white) to {high:,.6g}; down: {down}"
    return cells(f"{figure} over {down} and {across}", caption, rows, [str(value) for value in columns], across)


def front(table: Table, x: str, y: str) -> str:
    """Every point, and those that no other beats."""
    curves = []
    for mode, part in _of_mode(table).items():
        dots = [(number, float(value)) for row, number in numbers(part, x) if isinstance(value := row[y], int | float)]
        curves.append(Line(f"points, {mode}" if mode != "mean" else "points", RUN_COLOURS.get(mode, PLAIN), dots, " "))
    best = [(float(row[x]), float(row[y])) for row in pareto(table, x, y)]  # type: ignore[arg-type]
    curves.append(Line("Pareto front", INK, best, "--"))
    caption = f"{len(best)} of {len(table.good):,} points are beaten by no other; small is good"
    return lines(
        f"{y} against {x}",
        caption,
        curves,
        f"{x} ({table.figures[x].unit})",
        f"{y} ({table.figures[y].unit})",
        dots=True,
    )


@drawn_as_svg
def parallel(table: Table, names: Sequence[str], figure: str) -> Chart:
    """A line for each point through its axes and figures, each scaled from its least to its largest value; the darker
    a line, the smaller `figure`."""
    chart = new_chart(
        420, "Parallel coordinates", f"a line a point; dark: small {figure}", left=60, right=60, bottom=60
    )
    axes = chart.axes
    rows = [row for row in table.good if isinstance(row[figure], int | float)][:MOST_CURVES]
    scales = {name: _scale([row[name] for row in rows]) for name in names}
    for row in sorted(rows, key=lambda row: -scales[figure][row[figure]]):
        shade = scales[figure][row[figure]]
        (line,) = axes.plot(
            range(len(names)), [scales[name][row[name]] for name in names], linewidth=1,
            color=str(round(0.1 + 0.75 * shade, 3)),
        )  # fmt: skip
        chart.tip(line, f"point {row[POINT]}: " + ", ".join(f"{name} {shown(row[name])}" for name in names))
    for place, name in enumerate(names):
        ends = sorted(scales[name].items(), key=lambda item: item[1])
        axes.axvline(place, color=MUTED, linewidth=1)
        for value, y in (ends[0], ends[-1]):
            axes.text(place, y + (0.03 if y else -0.03), shown(value), ha="center", va="bottom" if y else "top", size=9)
    axes.set_xticks(range(len(names)), [f"{name}" for name in names], size=9)
    axes.set_yticks([])
    axes.set_ylim(-0.12, 1.12)
    axes.set_xlim(-0.3, len(names) - 0.7)
    axes.grid(visible=False)
    return chart


def _scale(values: Sequence[Cell]) -> dict[Cell, float]:
    """Each value's place from 0 to 1; words by their order."""
    known = list(dict.fromkeys(values))
    if all(isinstance(value, int | float) for value in known):
        known.sort(key=lambda value: float(value))  # type: ignore[arg-type]
        low, high = float(known[0]), float(known[-1])  # type: ignore[arg-type]
        return {value: (float(value) - low) / (high - low) if high > low else 0.5 for value in known}  # type: ignore[arg-type]
    return {value: index / max(len(known) - 1, 1) for index, value in enumerate(known)}
