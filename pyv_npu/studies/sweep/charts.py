"""Charts of a sweep: small multiples of effects, a heat map of two axes, the Pareto front."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyv_npu.report.charts import (
    FADED,
    Line,
    axis_title,
    cells,
    colour,
    flat,
    line_view,
    link_views,
    numeric_tip,
    quantitative,
    tips,
)
from pyv_npu.run_sections.latency import key_heading
from pyv_npu.sections import Chart, Note, Part
from pyv_npu.studies.sweep.effects import high_is_good, main_effect, numbers, pareto
from pyv_npu.studies.sweep.figures import Cell
from pyv_npu.studies.sweep.table import MODE, POINT, Table
from pyv_npu.units import SCALES, number, quantity, scale_of

MAX_CELLS = 30
"""Maximum number of values of an axis in a heat map."""
MAX_LINES = 500
"""Maximum number of points in parallel coordinates."""
ALL = "mean"


def split_by_mode(table: Table) -> Mapping[str, Table]:
    """Split the table by mode; a table without modes is one part."""
    modes = [str(mode) for mode in table.varied(MODE)] if MODE in table.axes else []
    if not modes:
        return {ALL: table}
    return {mode: Table(table.axes, table.figures, [row for row in table.rows if row[MODE] == mode]) for mode in modes}


def effect_parts(table: Table, axis: str, figures: Sequence[str]) -> list[Part]:
    """Return small multiples of the figures that depend on an axis, and a sentence on the constant figures."""
    views: list[dict[str, Any]] = []
    constant: list[str] = []
    for figure in figures:
        curves = {mode: main_effect(part, axis, figure) for mode, part in split_by_mode(table).items()}
        if all(flat([mean for _, mean in curve]) for curve in curves.values() if curve):
            unit = table.figures[figure].unit
            texts = [f"{'' if mode == ALL else f'{mode} '}{quantity(curve[0][1], unit)}"
                     for mode, curve in curves.items() if curve]  # fmt: skip
            constant.append(f"{figure}: {', '.join(texts)}")
            continue
        words = any(isinstance(value, str) for value in table.varied(axis))
        scale = scale_of([mean for curve in curves.values() for _, mean in curve], table.figures[figure].unit)
        lines = [
            Line(mode, [(str(value) if words or value is None else value, mean / scale.factor)
                        for value, mean in curve])
            for mode, curve in curves.items()
        ]  # fmt: skip
        view = line_view(lines, key_heading(axis), scale.unit or figure, dots=True, height=150, heading=figure)
        views.append({**view, "name": f"view{len(views)}"})
    caption = "mean over everything else; " if len(table.axes) > 2 else ""
    caption += "drag to move, Ctrl and wheel to zoom all charts of an axis"
    parts: list[Part] = [Chart(f"effect_{axis}", axis, caption, link_views(views))] if views else []
    return [*parts, *([Note(f"{axis} leaves these as they are: {'; '.join(constant)}.", "muted")] if constant else [])]


def heat(table: Table, down: str, across: str, figure: str) -> Chart:
    """Draw the mean of a figure at each pair of values; the largest is darkest."""
    results: dict[tuple[Cell, Cell], list[float]] = {}
    for row, result in numbers(table, figure):
        results.setdefault((row[down], row[across]), []).append(result)
    means = {pair: sum(values) / len(values) for pair, values in results.items()}
    low, high = min(means.values()), max(means.values())
    scale = scale_of([high], table.figures[figure].unit)
    columns = table.varied(across)[:MAX_CELLS]
    rows: dict[str, list[tuple[str, float]]] = {}
    for value in table.varied(down)[:MAX_CELLS]:
        line = []
        for column in columns:
            mean = means.get((value, column))
            share = 0.0 if mean is None or high == low else (mean - low) / (high - low)
            line.append(("" if mean is None else number(mean / scale.factor), share))
        rows[number(value)] = line
    title = f"{axis_title(figure, scale.unit)} over {down} and {across}"
    caption = f"mean over everything else, from {number(low / scale.factor)} to {number(high / scale.factor)} (darkest)"
    return cells("heat", title, caption, rows, [number(value) for value in columns], across, down)


def front(
    table: Table, objectives: Sequence[str], axes: Sequence[str], figures: Sequence[str], links: Mapping[int, str]
) -> Chart:
    """Draw the Pareto chart of the objectives with all points; a third objective is the size of a point. Below, each
    point is a line through its axes and figures. A selection in either chart applies to both."""
    x, y, *third = objectives
    rows = [row for row in table.good if all(isinstance(row[name], int | float) for name in objectives)][:MAX_LINES]
    best = {row[POINT] for row in pareto(table, *objectives)}
    rows.sort(key=lambda row: row[POINT] in best)  # later rows are drawn on top
    steps = {row[POINT] for row in pareto(table, x, y)}
    modes = [mode for mode in split_by_mode(table) if mode != ALL]
    scales = {name: scale_of([float(row[name]) for row in rows], table.figures[name].unit) for name in objectives}  # type: ignore[arg-type]
    points = [
        {**{key: row[name] / scales[name].factor  # type: ignore[operator]
            for key, name in zip(("x", "y", "size"), objectives, strict=False)},
         "front": "Pareto front" if row[POINT] in best else "beaten", "step": row[POINT] in steps,
         "point": row[POINT], "mode": row.get(MODE) or "point", "run": links.get(int(str(row[POINT]))),
         "set": ", ".join(f"{name} = {row[name]}" for name in axes if name != MODE)}
        for row in rows
    ]  # fmt: skip
    brush = {"name": "chosen", "select": {"type": "interval"}}
    shade = colour("mode", modes or ["point"])
    titles = {name: axis_title(name, scale.unit) for name, scale in scales.items()}
    tooltip = [*tips(point="point", mode="mode", set="set"), numeric_tip("x", titles[x]), numeric_tip("y", titles[y]),
               *(numeric_tip("size", titles[name]) for name in third)]  # fmt: skip
    size: dict[str, Any] = {"condition": {"test": "datum.front === 'Pareto front'", "value": 110}, "value": 36}
    if third:
        legend = {"title": titles[third[0]], "orient": "bottom", "tickCount": 3, "symbolFillColor": "#8a95a1",
                  "symbolStrokeWidth": 0}  # fmt: skip
        size = {"field": "size", "type": "quantitative", "legend": legend,
                "scale": {"zero": False, "range": [90, 450]}}  # fmt: skip
    across, up = (
        quantitative(key, titles[name], [float(row[key]) for row in points], zero=False)  # type: ignore[arg-type]
        for key, name in (("x", x), ("y", y))
    )
    scatter: dict[str, Any] = {
        "data": {"values": points}, "height": 240, "name": "scatter",
        "layer": [
            {"transform": [{"filter": "datum.step"}],
             "mark": {"type": "line", "strokeDash": [4, 3], "strokeWidth": 1.5,
                      "interpolate": "step-before" if high_is_good(x) else "step-after"},
             "encoding": {"x": across, "y": up, "order": {"field": "x"}, "color": {"value": "#8a95a1"}}},
            {"name": "points", "params": [brush], "mark": {"type": "point", "filled": True},
             "encoding": {
                 "x": across, "y": up, "color": shade, "tooltip": tooltip,
                 "href": {"field": "run"},
                 "shape": {"field": "front", "legend": {"symbolFillColor": "#8a95a1", "orient": "bottom"},
                           "scale": {"domain": ["Pareto front", "beaten"], "range": ["diamond", "circle"]}},
                 "size": size, "strokeWidth": {"value": 1.5},
                 "stroke": {"condition": {"test": "datum.front === 'Pareto front'", "value": "white"}, "value": None},
                 "opacity": {"condition": {"param": "chosen", "value": 0.9}, "value": FADED}}},
        ],
    }  # fmt: skip
    spec: dict[str, Any] = {"vconcat": [scatter]}
    names = [name for name in dict.fromkeys((*axes, *figures, *objectives)) if len({row[name] for row in rows}) > 1]
    if len(names) > 2 and len(rows) > 2:
        spec["vconcat"].append(_parallel(table, rows, names, points, shade))
    aims = ", ".join(f"{name} ({'large' if high_is_good(name) else 'small'} is good)" for name in objectives)
    caption = (
        f"{len(best)} of {len(table.good):,} points are beaten by no other in {aims}; "
        "drag over points to follow them; a click opens the report or result of a point"
    )
    return Chart("front", f"{y} against {x}", caption, spec)


def _parallel(table: Table, rows: Sequence[Mapping[str, Cell]], names: Sequence[str],
              points: Sequence[Mapping[str, Any]], shade: Mapping[str, Any]) -> dict[str, Any]:  # fmt: skip
    """Draw parallel coordinates: a line for each point through its values, each axis scaled to its range."""
    places = {name: _places([row[name] for row in rows]) for name in names}
    data = [
        {**point, "axis": name, "rank": rank, "at": round(places[name][row[name]], 4)}
        for row, point in zip(rows, points, strict=True)
        for rank, name in enumerate(names)
    ]
    ends = [
        {"axis": name, "at": at, "text": _text(table, name, value)}
        for name in names
        for value, at in places[name].items()
        if at in (0, 1)
    ]
    down = {"field": "axis", "type": "nominal", "sort": None, "title": None, "scale": {"type": "point", "padding": 0.5},
            "axis": {"labelOverlap": False, "grid": True, "domain": False, "ticks": False}}  # fmt: skip
    across = {"field": "at", "type": "quantitative", "axis": None, "scale": {"domain": [-0.02, 1.02]}}
    best = "datum.front === 'Pareto front'"
    opacity = {"condition": [
        {"test": {"and": [{"param": "chosen"}, best]}, "value": 1}, {"param": "chosen", "value": 0.3},
    ], "value": 0.03}  # fmt: skip
    line = {"x": across, "y": down, "order": {"field": "rank"}, "detail": {"field": "point"}, "color": shade,
            "opacity": opacity, "strokeWidth": {"condition": {"test": best, "value": 2.5}, "value": 1},
            "tooltip": tips(point="point", mode="mode", set="set")}  # fmt: skip
    text = {
        "type": "text",
        "align": {"expr": "datum.at ? 'right' : 'left'"},
        "dy": -9,
        "dx": {"expr": "datum.at ? -4 : 4"},
    }
    return {
        "data": {"values": data}, "height": 38 * len(names),
        "layer": [
            {"mark": {"type": "line"}, "encoding": line},
            {"data": {"values": ends}, "mark": text,
             "encoding": {"x": across, "y": down, "text": {"field": "text"}}},
        ],
    }  # fmt: skip


def _text(table: Table, name: str, value: Cell) -> str:
    """Format a value, with its unit only if the unit takes a prefix, as others are too wide."""
    unit = table.figures[name].unit if name in table.figures else ""
    return quantity(value, unit) if isinstance(value, int | float) and unit in SCALES else number(value)


def _places(values: Sequence[Cell]) -> dict[Cell, float]:
    """Return each value's position from 0 to 1; words in their order of appearance."""
    distinct = list(dict.fromkeys(values))
    if all(isinstance(value, int | float) for value in distinct):
        distinct.sort(key=lambda value: float(value))  # type: ignore[arg-type]
        low, high = float(distinct[0]), float(distinct[-1])  # type: ignore[arg-type]
        return {value: (float(value) - low) / (high - low) if high > low else 0.5 for value in distinct}  # type: ignore[arg-type]
    return {value: index / max(len(distinct) - 1, 1) for index, value in enumerate(distinct)}
