"""Vega-Lite specifications of the charts of a page. The theme defines the colours."""

from collections.abc import Iterable, Mapping, Sequence
from math import log, sqrt
from typing import Any, NamedTuple

from pyv_npu.observe.analysis.metrics import Roofline
from pyv_npu.sections import Chart
from pyv_npu.units import number

Spec = dict[str, Any]
RUNS = ("loose", "tight")
"""Modes, which have the first colours of a theme in every chart."""
LOG_FROM = 20
"""Minimum ratio of the largest to the smallest value for a logarithmic axis."""
FLAT = 0.005
"""Relative range below which a series is stated in words."""
MAX_PARTS = 9
"""Maximum number of coloured parts of a stacked bar; the smaller parts are merged into one more."""
TOTALS = 80
"""Pixels for the total after a bar."""
MAX_POINTS = 400
"""Maximum number of points of a distribution."""
LABELLED = 6
"""Maximum number of labels in a roofline, for the points with most cycles."""
LABEL_WIDTH, LABEL_HEIGHT = 0.45, 0.035
"""Size of a label in shares of the axes of a roofline; points within it of a labelled point have no label."""
_LABEL = "datum.value >= 10000 ? format(datum.value, '~s') : format(datum.value, '~g')"
_DIGIT = "round(datum.value / pow(10, floor(log(datum.value) / LN10 + 1e-9)))"
DECADES = f"{_DIGIT} === 1 ? {_LABEL} : ''"
"""Labels of a logarithmic axis: DECADES at powers of ten, STEPS also at 2 and 5 times each."""
STEPS = f"indexof([1, 2, 5], {_DIGIT}) >= 0 ? {_LABEL} : ''"
NEAR_ZERO = 0.1
"""Share of the largest value; an axis whose values begin below it begins at zero."""
FADED = 0.12
EDGE = 0.03
"""Margin at the first and the last dot, as a share of the axis."""
OTHER = "other"


class Line(NamedTuple):
    """Curve through points (x, y). Curves of equal name share a colour, curves of equal style a dash."""

    name: str
    points: Sequence[tuple[float | str, float]]
    style: str = ""


class ChartPoint(NamedTuple):
    """Layer under a roofline."""

    name: str
    group: str
    intensity: float
    """Operations per byte of DRAM traffic."""
    rate: float
    """Operations per core cycle."""
    cycles: int


# -- parts of specifications -------------------------------------------------------------------------------------------


def axis_title(name: str, unit: str) -> str:
    """Return the title of an axis."""
    return f"{name} ({unit})" if unit and name else name or unit


def quantitative(
    field: str, title: str, values: Iterable[float], *, zero: bool = True, ticks: int = 10, linear: bool = False
) -> Spec:  # fmt: skip
    """Return an axis of numbers: logarithmic if they span decades and `linear` is not set, otherwise from zero unless
    their variation would be invisible."""
    numbers = [value for value in values if value is not None]
    low, high = min(numbers, default=0), max(numbers, default=0)
    axis: Spec = {"field": field, "type": "quantitative", "title": title, "axis": {"tickCount": ticks}}
    if low > 0 and high >= LOG_FROM * low and not linear:
        axis["title"] = f"{title}, logarithmic" if title else "logarithmic"
        axis["scale"] = {"type": "log", "domain": [low / 1.15, high * 1.15]}
        axis["axis"] = {"labelExpr": DECADES if high >= 1000 * low else STEPS}
    else:
        base = zero and (low <= 0 or high > 1.5 * low)
        axis["scale"] = {"domain": [0, high * 1.05 or 1]} if base and low >= 0 else {"zero": base, "padding": 8}
        if not base and 0 <= low <= NEAR_ZERO * high:
            axis["scale"] = {"domain": [0, high], "nice": False}
    return axis


def colour(field: str, names: Sequence[str]) -> Spec:
    """Return the colour encoding of names; modes have the same colours in all charts."""
    modes = [name for name in RUNS if name in names]
    domain = [*RUNS, *(name for name in names if name not in RUNS)] if modes else list(names)
    channel: Spec = {"field": field, "type": "nominal", "scale": {"domain": domain}, "legend": {"values": list(names)}}
    if len(names) < 2:
        channel["legend"] = None
    return channel


def legend_toggle(field: str, names: Sequence[str]) -> tuple[list[Spec], Spec]:
    """Return parameters and the opacity of marks: a click on the legend selects a name, with Shift several."""
    if len(names) < 2:
        return [], {"value": 1}
    parameter = {"name": "shown", "select": {"type": "point", "fields": [field]}, "bind": "legend"}
    return [parameter], {"condition": {"param": "shown", "value": 1}, "value": FADED}


def zoom_parameter(*axes: str) -> Spec:
    """Return the parameter that moves axes by a drag and zooms by Ctrl with the wheel; a double click resets both."""
    select = {"type": "interval", "encodings": list(axes), "zoom": "wheel![event.ctrlKey || event.metaKey]"}
    return {"name": "zoom", "select": select, "bind": "scales"}


def tips(**titles: str) -> list[Spec]:
    """Return the fields of a mark's tooltip, with their titles."""
    return [{"field": field, "title": title} for field, title in titles.items()]


def numeric_tip(field: str, title: str) -> Spec:
    return {"field": field, "type": "quantitative", "title": title, "format": ",.6~g"}


def specification(data: Sequence[Mapping[str, Any]], layers: Sequence[Spec], height: int = 260) -> Spec:
    """Return a chart of one view."""
    view: Spec = {"layer": list(layers)} if len(layers) > 1 else dict(layers[0])
    return {"data": {"values": list(data)}, "height": height, **view}


def round_significant(value: float) -> float:
    """Round a number of a specification to six significant digits."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def flat(values: Sequence[float]) -> bool:
    """Check whether a series is constant, within `FLAT`."""
    return bool(values) and max(values) - min(values) <= FLAT * max(abs(value) for value in values)


# -- charts -----------------------------------------------------------------------------------------------------------


def lines(
    name: str, title: str, caption: str, curves: Sequence[Line], x: str, y: str, *, dots: bool = False,
    level: float | None = None,
) -> Chart:  # fmt: skip
    """Draw curves over a common axis; `x`, `y`: titles of the axes; `level`: position of a horizontal line."""
    return Chart(name, title, caption, line_view(curves, x, y, dots=dots, level=level))


def line_view(
    curves: Sequence[Line], x: str, y: str, *, dots: bool = False, level: float | None = None,
    at: float | None = None, height: int = 240, heading: str = "", linear: bool = False,
) -> Spec:  # fmt: skip
    """Return a view of curves, with zoom along a numeric x axis. `heading`: of a view among several; `linear`: the x
    axis is not logarithmic."""
    names = list(dict.fromkeys(curve.name for curve in curves))
    styles = list(dict.fromkeys(curve.style for curve in curves if curve.style))
    data = [
        {"curve": curve.name, **({"style": curve.style} if curve.style else {}),
         "x": [at for at, _ in curve.points], "y": [round_significant(value) for _, value in curve.points]}
        for curve in curves
    ]  # fmt: skip
    xs = [at for curve in curves for at, _ in curve.points]
    ys = [value for curve in curves for _, value in curve.points]
    words = any(isinstance(at, str) for at in xs)
    across: Spec = (
        {"field": "x", "type": "ordinal", "sort": None, "title": x, "axis": {"labelAngle": 0}}
        if words
        else quantitative(
            "x", x, [at for at in xs if not isinstance(at, str)], zero=False, ticks=5 if height < 200 else 10,
            linear=linear,
        )
    )  # fmt: skip
    domain = across.get("scale", {}).get("domain")
    if dots and domain and domain[0] == 0:  # dots at the ends are not clipped
        across["scale"]["domain"] = [-EDGE * domain[1], (1 + EDGE) * domain[1]]
    params, opacity = legend_toggle("curve", names)
    encoding: Spec = {
        "x": across,
        "y": quantitative("y", y, ys, ticks=5),
        "color": colour("curve", names),
        "opacity": opacity,
        "tooltip": [
            *tips(curve="curve"), *(tips(style="of") if styles else []),
            {"field": "x", "title": x} if words else numeric_tip("x", x), numeric_tip("y", y),
        ],
    }  # fmt: skip
    if styles:
        encoding["strokeDash"] = {"field": "style", "type": "nominal", "scale": {"domain": styles}}
        if len({(curve.name, curve.style) for curve in curves}) == len(names) == len(styles):
            encoding["strokeDash"]["legend"] = None  # redundant with the legend of colours
    mark: Spec = {"type": "line", "point": dots or all(len(curve.points) < 2 for curve in curves)}
    zoom = [] if words else [zoom_parameter("x")]
    flatten = [{"flatten": ["x", "y"]}]
    layers: list[Spec] = [{"mark": mark, "encoding": encoding, "params": [*params, *zoom], "transform": flatten}]
    for channel, value in (("x", at), ("y", level)):
        if value is not None:
            layers.append({"data": {"values": [{channel: value}]}, "mark": {"type": "rule", "strokeDash": [2, 3]},
                           "encoding": {channel: {"field": channel, "type": "quantitative"}}})  # fmt: skip
    return {**({"title": heading} if heading else {}), **specification(data, layers, height)}


def link_views(views: Sequence[Mapping[str, Any]]) -> Spec:
    """Return a specification of several views with shared parameters, so that legend and zoom act on all."""
    names = [view["name"] for view in views]
    parameters = {param["name"]: {**param, "views": names} for view in views for param in view.get("params", ())}
    bare = [{key: value for key, value in view.items() if key != "params"} for view in views]
    return {"params": list(parameters.values()), "concat": bare, "spacing": 24}


def distributions(
    name: str, title: str, caption: str, curves: Sequence[Line], x: str = "latency (core cycles)",
    y: str = "cumulative submissions (%)", at: float | None = None,
) -> Chart:  # fmt: skip
    """Draw empirical distributions: points are (x, per cent of samples at most x), ascending."""
    stepped = [Line(curve.name, _steps(curve.points), curve.style) for curve in curves]
    spec = line_view(stepped, x, y, at=at, height=300)
    view = spec["layer"][0] if "layer" in spec else spec
    view["mark"]["interpolate"] = "step-after"
    view["encoding"]["y"] |= {"scale": {"domain": [0, 101]}, "axis": {"values": [0, 25, 50, 75, 100]}, "title": y}
    return Chart(name, title, caption, spec)


def _steps(points: Sequence[tuple[float | str, float]]) -> list[tuple[float | str, float]]:
    """Reduce the points of a step function to at most `MAX_POINTS`, from zero."""
    step = -(-len(points) // MAX_POINTS)
    return [(points[0][0], 0), *points[: len(points) - 1 : step], points[-1]] if points else []


def stacked_bars(
    name: str, title: str, caption: str, rows: Mapping[str, Mapping[str, float]], unit: str, total: float = 0
) -> Chart:
    """Draw a stacked bar for each row; beyond `MAX_PARTS` the smaller parts are merged. `total`: common sum of all
    rows, which replaces the sums after the bars."""
    totals: dict[str, float] = {}
    for row in rows.values():
        for part, value in row.items():
            totals[part] = totals.get(part, 0) + value
    parts = [part for part, value in totals.items() if value]
    largest = set(sorted(parts, key=lambda part: -totals[part])[:MAX_PARTS])
    names = [part for part in parts if part in largest]
    data: list[Spec] = []
    for label, row in rows.items():
        data += [{"row": label, "part": part, "value": row[part]} for part in names if row.get(part)]
        rest = sum(value for part, value in row.items() if part not in largest)
        data += [{"row": label, "part": OTHER, "value": rest}] if rest else []
    lengths = {label: sum(row.values()) for label, row in rows.items()}
    sums = [{"row": label, "sum": length, "text": number(length)} for label, length in lengths.items()]
    top = max(lengths.values(), default=0) or 1
    wide: Spec = (
        {"scale": {"domain": [0, total]}}
        if total
        else {"scale": {"domainMin": 0, "domainMax": {"expr": f"{top} * (1 + {TOTALS} / max(width - {TOTALS}, 99))"}}}
    )
    names += [OTHER] if len(parts) > len(names) else []
    params, opacity = legend_toggle("part", names)
    order = {part: index for index, part in enumerate(names)}
    data = [{**row, "order": order[row["part"]]} for row in data]
    down = {"field": "row", "type": "nominal", "sort": None, "title": None}
    bars = {
        "params": params,
        "mark": {"type": "bar", "height": {"band": 0.7}},
        "encoding": {
            "y": down, "x": {"field": "value", "type": "quantitative", "aggregate": "sum", "title": unit, **wide,
                  "axis": {"tickCount": 8}},
            "color": colour("part", names), "opacity": opacity, "order": {"field": "order"},
            "tooltip": [*tips(row="of", part="part"), {**numeric_tip("value", unit), "aggregate": "sum"}],
        },
    }  # fmt: skip
    labels = {
        "data": {"values": sums}, "mark": {"type": "text", "align": "left", "dx": 5, "fontWeight": 600},
        "encoding": {"y": down, "x": {"field": "sum", "type": "quantitative"}, "text": {"field": "text"}},
    }  # fmt: skip
    return Chart(name, title, caption, specification(data, [bars] if total else [bars, labels], 30 * len(rows)))


def cells(
    name: str, title: str, caption: str, rows: Mapping[str, Sequence[tuple[str, float]]], columns: Sequence[str],
    across: str, down: str = "",
) -> Chart:  # fmt: skip
    """Draw a table of cells, each with a text and a share 0..1 of the darkest colour; `across`, `down`: titles of the
    axes."""
    data = [
        {"row": row, "column": column, "text": text, "share": share}
        for row, shares in rows.items()
        for column, (text, share) in zip(columns, shares, strict=True)
    ]
    encoding: Spec = {
        "x": {"field": "column", "type": "ordinal", "sort": None, "title": across, "axis": {"labelAngle": 0}},
        "y": {"field": "row", "type": "ordinal", "sort": None, "title": down or None},
    }
    box = {
        "mark": {"type": "rect"},
        "encoding": {
            **encoding,
            "color": {"field": "share", "type": "quantitative", "legend": None,
                      "scale": {"domain": [0, 1], "range": "ramp"}},
            "tooltip": tips(row=down or "of", column=across, text=title),
        },
    }  # fmt: skip
    text = {"mark": {"type": "text"}, "encoding": {**encoding, "text": {"field": "text"}}}
    has_labels = len(columns) <= 12
    spec = specification(data, [box, text] if has_labels else [box], (30 if has_labels else 18) * len(rows))
    return Chart(name, title, caption, spec)


def roofline(name: str, title: str, caption: str, points: Sequence[ChartPoint], device: Roofline) -> Chart:
    """Draw layers under the roofs of a device, logarithmic; the area of a point is its cycles."""
    top = max([roof.rate for roof in device.roofs] + [point.rate for point in points])
    ridges = [top / device.slope] if device.slope else []
    low = min([point.intensity for point in points] + ridges) / 2
    high = max([point.intensity for point in points] + ridges) * 3
    bottom, ceiling = min(point.rate for point in points) / 2, top * 2
    groups = list(dict.fromkeys(point.group for point in points))
    params, opacity = legend_toggle("run", groups)
    data = [
        {"layer": point.name, "run": point.group, "x": point.intensity, "y": point.rate, "cycles": point.cycles}
        for point in points
    ]
    roofs: list[Spec] = []
    if device.slope:
        first, last = max(low, bottom / device.slope), min(high, top / device.slope)
        lower = max((roof.rate for roof in device.roofs if roof.rate < top), default=0.0)
        rise = max(sqrt(top * lower), 0.6 * top)  # between the labels of roofs, on the free left side of the line
        roofs.append({"x": first, "y": first * device.slope, "x2": last, "y2": last * device.slope,
                      "text": f"DRAM {device.slope:,.4g} bytes/cycle", "at": low, "rise": rise,
                      "left": True})  # fmt: skip
    for roof in device.roofs:
        start = max(low, roof.rate / device.slope) if device.slope else low
        if roof.rate >= bottom:
            roofs.append({"x": start, "y": roof.rate, "x2": high, "y2": roof.rate, "at": high, "rise": roof.rate,
                          "text": f"{roof.name}: {roof.rate:,.6g}"})  # fmt: skip
    x = {"field": "x", "type": "quantitative", "title": "operations per byte of DRAM traffic, logarithmic",
         "scale": {"type": "log", "domain": [low, high], "nice": False}}  # fmt: skip
    y = {"field": "y", "type": "quantitative", "title": "operations per core cycle, logarithmic",
         "scale": {"type": "log", "domain": [bottom, ceiling], "nice": False}}  # fmt: skip
    tooltip = [*tips(layer="layer", run="run"), numeric_tip("y", "operations per core cycle"),
               numeric_tip("x", "operations per byte"), numeric_tip("cycles", "active core cycles")]  # fmt: skip
    labels: list[Spec] = []
    places: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda point: -point.cycles):
        right, up = (log(point.intensity / low) / log(high / low), log(point.rate / bottom) / log(ceiling / bottom))
        if len(labels) < LABELLED and all(
            abs(right - x) > LABEL_WIDTH or abs(up - y) > LABEL_HEIGHT for x, y in places
        ):
            labels.append({"x": point.intensity, "y": point.rate, "text": point.name, "left": right <= 0.5})
            places.append((right, up))
    layers: list[Spec] = [
        {"params": [*params, zoom_parameter("x", "y")], "mark": {"type": "circle", "clip": True},
         "encoding": {"x": x, "y": y, "color": colour("run", groups), "opacity": opacity, "tooltip": tooltip,
                      "size": {"field": "cycles", "type": "quantitative", "legend": None,
                               "scale": {"range": [25, 500]}}}},
        {"data": {"values": roofs}, "mark": {"type": "rule", "strokeWidth": 1.6, "clip": True},
         "encoding": {"x": x, "y": y, "x2": {"field": "x2"}, "y2": {"field": "y2"}}},
        {"data": {"values": roofs},
         "mark": {"type": "text", "align": {"expr": "datum.left ? 'left' : 'right'"},
                  "dx": {"expr": "datum.left ? 4 : 0"}, "dy": -7, "clip": True},
         "encoding": {"x": {**x, "field": "at"}, "y": {**y, "field": "rise"}, "text": {"field": "text"}}},
        {"data": {"values": labels},
         "mark": {"type": "text", "align": {"expr": "datum.left ? 'left' : 'right'"},
                  "dx": {"expr": "datum.left ? 11 : -11"}, "fontSize": 10, "clip": True},
         "encoding": {"x": x, "y": y, "text": {"field": "text"}}},
    ]  # fmt: skip
    return Chart(name, title, caption, specification(data, layers, 400))
