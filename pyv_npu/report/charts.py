"""The kinds of chart of a report, as SVG text: matplotlib draws them, the same figures give the same bytes."""

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from html import escape
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from npu_device.trace.spans import Integers, Table
from pyv_npu.observe.analysis.metrics import Roofline

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

WIDTH = 820
GRID, AXIS, MUTED, INK = "#e3e3e3", "#555555", "#666666", "#111111"
RUN_COLOURS = {"loose": "#1f6fb4", "tight": "#d9480f", "IA_TIMING": "#2f9e44", "CA_HYBRID": "#5f3dc4"}
"""By mode; by level where there is no core."""
LOG_FROM = 20
"""A range that spans this factor is drawn on a logarithmic axis."""
LABELLED = 6
"""Points of a roofline that are labelled: those with the largest area."""

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "pyv-npu",
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "text.parse_math": False,
    "axes.axisbelow": True,
    "axes.edgecolor": AXIS,
    "axes.grid": True,
    "axes.labelsize": 12,
    "axes.labelcolor": "#333333",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.color": GRID,
    "legend.frameon": False,
    "legend.borderaxespad": 0,
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}
_OURS = ("axes", "figure", "font", "grid", "hatch", "image", "legend", "lines", "patch", "path", "savefig", "scatter",
         "svg", "text", "xtick", "ytick")  # fmt: skip
"""Settings of matplotlib that a user's own file of settings does not change here."""


@dataclass(frozen=True)
class Line:
    """A curve through points (x, y)."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    dash: str = "-"
    """A line style of matplotlib."""


@dataclass(frozen=True)
class Range:
    """Order statistics of one row: a bar from `low` to `high` with marks inside."""

    name: str
    colour: str
    low: int
    high: int
    marks: Mapping[str, int]


@dataclass(frozen=True)
class Point:
    """A layer under a roofline."""

    name: str
    colour: str
    intensity: float
    """Operations per byte of DRAM traffic."""
    rate: float
    """Operations per core cycle."""
    cycles: int
    tip: str


@dataclass
class Chart:
    """A figure with title, caption and one pair of axes, and what its artists say when the pointer rests on them."""

    axes: "Axes"
    title: str
    tips: list[str] = field(default_factory=list)

    def tip(self, artist: "Artist", text: str) -> None:
        artist.set_gid(f"tip{len(self.tips)}-")
        self.tips.append(text)


_P = ParamSpec("_P")


def drawn_as_svg(draw: Callable[_P, Chart]) -> Callable[_P, str]:
    """Draw with settings of our own, and give the SVG text."""

    @wraps(draw)
    def drawn(*args: _P.args, **kwargs: _P.kwargs) -> str:
        import matplotlib  # only a run with a report needs it

        default: dict[Any, Any] = {
            key: value for key, value in matplotlib.rcParamsDefault.items() if key.startswith(_OURS)
        }
        with matplotlib.rc_context({**default, **_STYLE}):
            return _svg(draw(*args, **kwargs))

    return drawn


def _svg(chart: Chart) -> str:
    """Without names that are equal in every chart of a page, and with coordinates to a hundredth."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    file = io.StringIO()
    figure = chart.axes.get_figure(root=True)
    assert figure is not None
    FigureCanvasSVG(figure).print_svg(file, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = file.getvalue()
    height = round(figure.get_figheight() * 72)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">\n<title>{escape(chart.title)}</title>'
    )
    body = text[text.index(">", text.index("<svg")) + 1 :]
    body = re.sub(r'<g id="tip(\d+)-">', lambda match: f"<g><title>{escape(chart.tips[int(match[1])])}</title>", body)
    body = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", body)
    body = re.sub(r' d="[^"]*"', lambda match: re.sub(r"(\.\d\d)\d+", r"\1", match[0]).replace("\n", ""), body)
    return head + body


def new_chart(
    height: int, title: str, caption: str, *, left: int = 130, right: int = 30, top: int = 70, bottom: int = 50
) -> Chart:
    """Axes with these margins, in pixels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
    figure.text(16 / WIDTH, 1 - 26 / height, title, size=16, weight="bold", color=INK)
    figure.text(16 / WIDTH, 1 - 47 / height, caption, size=12, color=MUTED)
    box = (left / WIDTH, bottom / height, (WIDTH - left - right) / WIDTH, (height - top - bottom) / height)
    axes = figure.add_axes(box)
    axes.margins(0)
    return Chart(axes, title)


def _rows(axes: "Axes", names: Sequence[str]) -> None:
    """A row of the chart for each name, from the top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)


def _cycles(axes: "Axes", least: float, most: float, label: str = "core cycles") -> None:
    """The x axis for cycles from `least` to `most`, with a margin, from zero where that costs little room."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    if least > 0 and most >= LOG_FROM * least:
        axes.set_xscale("log")
        axes.set_xlim(least / 1.15, most * 1.15)
        few = most / least < 10_000
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,), numticks=20))
        axes.xaxis.set_minor_locator(NullLocator())
        label += ", logarithmic"
    else:
        margin = max(1.0, (most - least) * 0.05)
        axes.set_xlim(0 if 2 * least <= most else least - margin, most + margin)
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel(label)


def _over_time(axes: "Axes", end: int) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(0, max(end, 1))
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("core cycles")


@drawn_as_svg
def stacked(title: str, caption: str, rows: Mapping[str, Mapping[str, float]], colours: Mapping[str, str]) -> Chart:
    """One bar a row, of the parts that are not zero; the legend below says what each colour is."""
    parts = [name for name in colours if any(row.get(name) for row in rows.values())]
    per_line = 3
    legend = 18 * -(-len(parts) // per_line)
    chart = new_chart(70 + 40 * len(rows) + 40 + legend, title, caption, bottom=36 + legend)
    axes = chart.axes
    for number, (name, row) in enumerate(rows.items()):
        at = 0.0
        for part in parts:
            if value := row.get(part, 0.0):
                (bar,) = axes.barh(number, value, 0.62, at, color=colours[part])
                chart.tip(bar, f"{name}: {part} {value:,.2f}")
                at += value
        axes.annotate(f"{at:,.0f}" if at == int(at) else f"{at:,.1f}", (at, number), (6, 0), weight="bold",
                      textcoords="offset points", va="center")  # fmt: skip
    _rows(axes, list(rows))
    axes.set_xlim(0, 1.12 * (max((sum(row.values()) for row in rows.values()), default=0) or 1))
    axes.xaxis.set_major_formatter("{x:,.6g}")
    _legend(axes, {part: colours[part] for part in parts}, per_line)
    return chart


def _legend(axes: "Axes", colours: Mapping[str, str], columns: int) -> None:
    """Colours and what they are, at the bottom of the figure, line by line."""
    from matplotlib.patches import Patch

    names = list(colours)
    lines = -(-len(names) // columns)
    order = [row * columns + column for column in range(columns) for row in range(lines)]
    chosen = [names[index] for index in order if index < len(names)]
    handles = [Patch(color=colours[name], label=name) for name in chosen]
    figure = axes.get_figure()
    assert figure is not None
    figure.legend(handles=handles, loc="lower left", ncols=columns, bbox_to_anchor=(0.02, 0.02), handlelength=1,
                  handleheight=1, fontsize=11)  # fmt: skip


@drawn_as_svg
def ranges(title: str, caption: str, rows: Sequence[Range], unit: str) -> Chart:
    """One horizontal range a row: thin from low to high, thick between the first and the last mark."""
    chart = new_chart(70 + 26 * len(rows) + 50, title, caption, left=200)
    axes = chart.axes
    for number, row in enumerate(rows):
        first, last = min(row.marks.values(), default=row.low), max(row.marks.values(), default=row.high)
        axes.plot([row.low, row.high], [number, number], color=row.colour, linewidth=1)
        axes.plot([first, last], [number, number], color=row.colour, linewidth=6, solid_capstyle="butt")
        for mark, value in row.marks.items():
            (drawn,) = axes.plot(value, number, "|", color=row.colour, markersize=15, markeredgewidth=3)
            chart.tip(drawn, f"{row.name}: {mark} {value:,}")
    _rows(axes, [row.name for row in rows])
    _cycles(axes, min(row.low for row in rows), max(row.high for row in rows), unit)
    return chart


@drawn_as_svg
def lines(
    title: str, caption: str, curves: Sequence[Line], x_label: str, y_label: str, *, dots: bool = False,
    at_x: Sequence[int] | None = None, level: float | None = None,
) -> Chart:  # fmt: skip
    """Curves over a common axis from zero; `at_x`: label these positions only, `level`: a horizontal line."""
    from matplotlib.ticker import MaxNLocator

    rows = 2 if len(curves) == 4 else -(-len(curves) // 3)
    chart = new_chart(320 + 18 * rows, title, caption, left=80, top=66 + 18 * rows)
    axes = chart.axes
    for curve in curves:
        xs, ys = zip(*curve.points, strict=True) if curve.points else ((), ())
        axes.plot(xs, ys, curve.dash, color=curve.colour, linewidth=1.6, label=curve.name)
        for x, y in curve.points if dots else ():
            (dot,) = axes.plot(x, y, "s", color=curve.colour, markersize=6)
            chart.tip(dot, f"{curve.name}: {x:,} -> {y:,.3f}")
    most = max([y for curve in curves for _, y in curve.points] + ([] if level is None else [level]), default=0)
    axes.set_ylim(0, max(most * 1.06, 1e-9))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter("{x:,.6g}")
    if at_x is None:
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    else:
        axes.set_xticks(at_x)
        axes.margins(x=0.02)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if level is not None:
        axes.axhline(level, color=INK, linewidth=1, linestyle=":")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.02), ncols=2 if len(curves) == 4 else 3)
    return chart


@drawn_as_svg
def heat(title: str, caption: str, rows: Mapping[str, Sequence[float]], end: int, red: bool = False) -> Chart:
    """One row of cells a name, from left to right over [0, end) cycles; values are shares 0..1, blue or red."""
    from matplotlib.colors import LinearSegmentedColormap

    chart = new_chart(70 + 16 * len(rows) + 50, title, caption)
    colours = LinearSegmentedColormap.from_list("share", ["#ffffff", "#ff2323" if red else "#2323ff"])
    chart.axes.imshow(
        np.array(list(rows.values())), cmap=colours, vmin=0, vmax=1, aspect="auto", interpolation="none",
        extent=(0, max(end, 1), len(rows) - 0.5, -0.5),
    )  # fmt: skip
    _rows(chart.axes, list(rows))
    _over_time(chart.axes, end)
    return chart


@drawn_as_svg
def cells(
    title: str, caption: str, rows: Mapping[str, Sequence[tuple[str, float]]], columns: Sequence[str], label: str
) -> Chart:
    """A table of cells, each with its text and its share 0..1 of the darkest colour; `label`: what columns are."""
    from matplotlib.colors import LinearSegmentedColormap

    chart = new_chart(70 + 30 * len(rows) + 50, title, caption, left=100)
    axes = chart.axes
    shares = np.array([[share for _, share in row] for row in rows.values()])
    colours = LinearSegmentedColormap.from_list("share", ["#ffffff", "#74a9e8"])
    axes.imshow(shares, cmap=colours, vmin=0, vmax=1, aspect="auto", interpolation="none")
    for y, row in enumerate(rows.values()):
        for x, (text, _) in enumerate(row):
            axes.text(x, y, text, ha="center", va="center", color=INK)
    _rows(axes, list(rows))
    axes.grid(visible=False)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_xlabel(label)
    return chart


@drawn_as_svg
def distributions(title: str, caption: str, curves: Sequence[Line]) -> Chart:
    """Empirical distributions: points are (cycles, per cent of the samples that took at most that), ascending."""
    rows = 2 if len(curves) == 4 else -(-len(curves) // 3)
    chart = new_chart(420 + 18 * rows, title, caption, left=80, top=66 + 18 * rows)
    axes = chart.axes
    for curve in curves:
        xs, ys = zip((curve.points[0][0], 0), *curve.points, strict=True)
        axes.plot(xs, ys, curve.dash, color=curve.colour, linewidth=2, label=curve.name, drawstyle="steps-post")
    cycles = [x for curve in curves for x, _ in curve.points]
    _cycles(axes, min(cycles), max(cycles), "latency (core cycles)")
    axes.set_ylim(0, 101)
    axes.set_yticks((0, 25, 50, 75, 95, 100))
    axes.set_ylabel("cumulative submissions (%)")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.02), ncols=2 if len(curves) == 4 else 3)
    return chart


@drawn_as_svg
def gantt(title: str, caption: str, lanes: Mapping[str, tuple[str, Table]], end: int) -> Chart:
    """Lanes of a colour; what lies within one column of the picture is one rectangle."""
    chart = new_chart(70 + 22 * len(lanes) + 50, title, caption)
    count, whole = 2 * (WIDTH - 160), max(end, 1)
    for number, (colour, rows) in enumerate(lanes.values()):
        bars = [(first * whole / count, (last - first) * whole / count) for first, last in columns(rows, whole, count)]
        chart.axes.broken_barh(bars, (number - 0.36, 0.72), facecolor=colour, linewidth=0)
    _rows(chart.axes, list(lanes))
    _over_time(chart.axes, end)
    return chart


def columns(rows: Table, end: int, count: int) -> list[tuple[int, int]]:
    """Runs [first, last) of the columns, `count` over [0, end), in which something of a lane is."""
    rows = rows[rows["end"] > rows["start"]]
    change: Integers = np.zeros(count + 1, np.int64)
    np.add.at(change, rows["start"] * count // end, 1)
    np.add.at(change, np.minimum(-(-rows["end"] * count // end), count), -1)
    busy = np.concatenate([[False], np.cumsum(change[:count]) > 0, [False]])
    edges = np.flatnonzero(busy[1:] != busy[:-1]).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


@drawn_as_svg
def roofline(title: str, caption: str, points: Sequence[Point], device: Roofline) -> Chart:
    """Points under the ceilings of a device, on axes of whole decades; the area of a point is its cycles."""
    chart = new_chart(480, title, caption, left=80, top=76, bottom=56)
    axes = chart.axes
    most = max([roof.rate for roof in device.roofs] + [point.rate for point in points])
    xs = [point.intensity for point in points] + ([most / device.slope] if device.slope else [])
    low, high = _decades(min(xs), max(xs) * 1.5)
    bottom, top = _decades(min(point.rate for point in points), most * 1.2)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(bottom, top),
             xlabel="operations per byte of DRAM traffic, logarithmic",
             ylabel="operations per core cycle, logarithmic")  # fmt: skip
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.6g}")
        axis.set_tick_params(which="minor", size=0)
    longest = max(point.cycles for point in points)
    for point in points:
        radius = 3 + 9 * math.sqrt(point.cycles / longest)
        drawn = axes.scatter(point.intensity, point.rate, 4 * radius**2, point.colour, alpha=0.75, linewidths=0)
        chart.tip(drawn, point.tip)
    labels: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda point: -point.cycles)[:LABELLED]:
        x, y = axes.transData.transform((point.intensity, point.rate))
        if all(abs(y - b) > 11 or abs(x - a) > 60 for a, b in labels):
            axes.annotate(point.name, (point.intensity, point.rate), (12, -4), textcoords="offset points", size=10)
            labels.append((x, y))
    roof = max((roof.rate for roof in device.roofs), default=top)
    if device.slope:
        ends = max(low, bottom / device.slope), min(high, roof / device.slope)
        axes.plot(ends, [x * device.slope for x in ends], color=INK, linewidth=1.6)
        middle = math.sqrt(ends[0] * ends[1])
        axes.annotate(f"DRAM {device.slope:,.4g} bytes per cycle", (middle, middle * device.slope), (-8, 6),
                      textcoords="offset points", ha="right")  # fmt: skip
    for each in device.roofs:
        if each.rate >= bottom:
            begin = max(low, each.rate / device.slope) if device.slope else low
            axes.plot([begin, high], [each.rate, each.rate], color=INK, linewidth=1.6)
            axes.annotate(f"{each.name}: {each.rate:,.6g}", (high, each.rate), (0, 6), textcoords="offset points",
                          ha="right")  # fmt: skip
    return chart


def _decades(low: float, high: float) -> tuple[float, float]:
    """Whole decades around [low, high]."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return 10.0**first, 10.0 ** max(last, first + 1)
