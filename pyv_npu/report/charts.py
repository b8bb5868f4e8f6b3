"""The kinds of picture that a report draws: stacked bars, ranges, lines and a heat map. Each returns SVG text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyv_npu.report.scale import Scale, cycles_scale
from pyv_npu.report.svg import Svg

WIDTH = 820
LEFT, RIGHT, TOP = 130, 790, 70
GRID, AXIS, MUTED = "#e3e3e3", "#555555", "#666666"
RUN_COLOURS = {"loose": "#1f6fb4", "tight": "#d9480f", "IA_TIMING": "#2f9e44", "CA_HYBRID": "#5f3dc4"}
"""By mode; by level where there is no core."""


@dataclass(frozen=True)
class Line:
    """A curve through points (x, y)."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    dash: str = ""


@dataclass(frozen=True)
class Range:
    """Order statistics of one row: a bar from `low` to `high` with marks inside."""

    name: str
    colour: str
    low: int
    high: int
    marks: Mapping[str, int]


def _frame(height: int, title: str, caption: str) -> Svg:
    svg = Svg(WIDTH, height, title)
    svg.text(16, 26, title, size=16, weight="600", fill="#111111")
    svg.text(16, 45, caption, fill=MUTED)
    return svg


def stacked(title: str, caption: str, rows: Mapping[str, Mapping[str, float]], colours: Mapping[str, str]) -> str:
    """One bar a row, of the parts that are not zero; the legend below says what each colour is."""
    parts = [name for name in colours if any(row.get(name) for row in rows.values())]
    per_line = 5
    legend = TOP + 46 * len(rows) + 48
    svg = _frame(legend + 20 * (-(-len(parts) // per_line)) + 8, title, caption)
    most = max((sum(row.values()) for row in rows.values()), default=0) or 1
    across = Scale(0, most * 1.12, LEFT, RIGHT)
    bottom = TOP + 46 * len(rows)
    _ticks_below(svg, across, bottom)
    for number, (name, row) in enumerate(rows.items()):
        y = TOP + 46 * number
        svg.text(LEFT - 10, y + 22, name, anchor="end")
        at = 0.0
        for part in parts:
            if value := row.get(part, 0.0):
                left, right = across(at), across(at + value)
                svg.rectangle(left, y + 4, right - left, 28, colours[part], f"{name}: {part} {value:,.2f}")
                at += value
        svg.text(across(at) + 6, y + 22, f"{at:,.0f}" if at == int(at) else f"{at:,.1f}", weight="600")
    for index, part in enumerate(parts):
        x, y = 30 + 155 * (index % per_line), legend + 20 * (index // per_line)
        svg.rectangle(x, y - 10, 12, 12, colours[part])
        svg.text(x + 18, y, part, size=11)
    return str(svg)


def ranges(title: str, caption: str, rows: Sequence[Range], unit: str) -> str:
    """One horizontal range a row: thin from low to high, thick between the first and the last mark."""
    bottom = TOP + 26 * len(rows) + 6
    svg = _frame(bottom + 50, title, caption)
    across = cycles_scale(min(row.low for row in rows), max(row.high for row in rows), LEFT + 70, RIGHT)
    _ticks_below(svg, across, bottom)
    kind = ", logarithmic" if across.log else ""
    svg.text((LEFT + RIGHT) / 2, bottom + 40, f"{unit}{kind}", anchor="middle")
    for number, row in enumerate(rows):
        y = TOP + 26 * number + 14
        svg.text(LEFT + 58, y + 4, row.name, anchor="end", size=11)
        svg.line(across(row.low), y, across(row.high), y, row.colour, 1)
        places = {mark: across(value) for mark, value in row.marks.items()}
        first, last = min(places.values()), max(places.values())
        svg.rectangle(first, y - 3, max(last - first, 1), 6, row.colour)
        for mark, x in places.items():
            svg.rectangle(x - 1.5, y - 8, 3, 16, row.colour, f"{row.name}: {mark} {row.marks[mark]:,}")
    return str(svg)


def lines(
    title: str, caption: str, curves: Sequence[Line], x_label: str, y_label: str, *, dots: bool = False,
    at_x: Sequence[int] | None = None, level: float | None = None,
) -> str:  # fmt: skip
    """Curves over a common axis from zero; `at_x`: label these places only, `level`: a horizontal line to look at."""
    top, bottom, left = 96, 300, 80
    svg = _frame(356, title, caption)
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points] + ([level] if level is not None else [])
    least, most = min(xs, default=0), max(xs, default=1)
    across = Scale(least, most if most > least else least + 1, left, RIGHT)
    up = Scale(0, max(max(ys, default=0) * 1.06, 1e-9), bottom, top)
    for value, text in _levels(up.high):
        svg.line(left, up(value), RIGHT, up(value), GRID)
        svg.text(left - 8, up(value) + 4, text, size=11, anchor="end")
    for tick in at_x if at_x is not None else across.ticks():
        svg.line(across(tick), top, across(tick), bottom, GRID)
        svg.text(across(tick), bottom + 18, f"{tick:,}", size=11, anchor="middle")
    svg.line(left, bottom, RIGHT, bottom, AXIS)
    svg.line(left, top, left, bottom, AXIS)
    svg.text((left + RIGHT) / 2, bottom + 42, x_label, anchor="middle")
    svg.text(20, (top + bottom) / 2, y_label, anchor="middle", turned=True)
    if level is not None:
        svg.line(left, up(level), RIGHT, up(level), "#111111", 1, "2 3")
    for number, curve in enumerate(curves):
        points = [(across(x), up(y)) for x, y in curve.points]
        svg.path(points, curve.colour, 1.6, curve.dash)
        for (x, y), (value, result) in zip(points, curve.points, strict=True):
            if dots:
                svg.rectangle(x - 3, y - 3, 6, 6, curve.colour, f"{curve.name}: {value:,} -> {result:,.3f}")
        x = left + 240 * (number % 3)
        y = 66 + 16 * (number // 3)
        svg.line(x, y, x + 24, y, curve.colour, 2, curve.dash)
        svg.text(x + 30, y + 4, curve.name, size=11)
    return str(svg)


def heat(title: str, caption: str, rows: Mapping[str, Sequence[float]], end: int, red: bool = False) -> str:
    """One row of cells a name, from left to right over [0, end) cycles; values are shares 0..1, blue or red."""
    height = 16
    bottom = TOP + height * len(rows)
    svg = _frame(bottom + 50, title, caption)
    for number, (name, values) in enumerate(rows.items()):
        y = TOP + height * number
        svg.text(LEFT - 10, y + 12, name, anchor="end", size=11)
        width = (RIGHT - LEFT) / max(len(values), 1)
        for index, value in enumerate(values):
            if value > 0:
                shade = round(235 - 200 * min(value, 1.0))
                colour = f"#ff{shade:02x}{shade:02x}" if red else f"#{shade:02x}{shade:02x}ff"
                svg.rectangle(LEFT + width * index, y, width + 0.1, height - 1, colour)
    _ticks_below(svg, Scale(0, max(end, 1), LEFT, RIGHT), bottom)
    svg.text((LEFT + RIGHT) / 2, bottom + 40, "core cycles", anchor="middle")
    return str(svg)


def _ticks_below(svg: Svg, across: Scale, bottom: float) -> None:
    for tick in across.ticks():
        x = across(tick)
        svg.line(x, TOP, x, bottom, GRID)
        svg.text(x, bottom + 18, f"{tick:,}", size=11, anchor="middle")
    svg.line(across.start, bottom, across.end, bottom, AXIS)


def _levels(high: float) -> list[tuple[float, str]]:
    """About five round values from zero to `high`, with their texts."""
    step = 10.0**-6
    factors = (2, 2.5, 2)
    turn = 0
    while high / step > 6:
        step *= factors[turn % 3]
        turn += 1
    return [(index * step, f"{index * step:,.6g}") for index in range(int(high / step) + 1)]
