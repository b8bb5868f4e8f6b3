"""roofline.svg: every layer as a point under the ceilings of the device."""

import math
from collections.abc import Mapping, Sequence

from pyv_npu.observe.analysis.layers import Layer
from pyv_npu.observe.analysis.metrics import Roofline
from pyv_npu.report.charts import AXIS, GRID, MUTED, RIGHT, RUN_COLOURS, WIDTH
from pyv_npu.report.scale import Scale
from pyv_npu.report.svg import Svg

LEFT, TOP, BOTTOM = 80, 96, 420
NAMED = 6
"""Layers that get their name beside the point: those that took longest."""


def draw(layers: Mapping[str, Sequence[Layer]], device: Roofline, caption: str) -> str | None:
    """Both axes are logarithmic. None when no layer both computed and moved something."""
    shown = {mode: [one for one in found if one.bytes and one.ops and one.active] for mode, found in layers.items()}
    points = [layer for found in shown.values() for layer in found]
    if not points:
        return None
    most = max([roof.rate for roof in device.roofs] + [layer.rate for layer in points])
    xs = [layer.ops / layer.bytes for layer in points]
    if device.slope:
        xs.append(most / device.slope)
    across = _decades(min(xs), max(xs) * 1.5, LEFT, RIGHT)
    up = _decades(min(layer.rate for layer in points), most * 1.2, BOTTOM, TOP)
    svg = Svg(WIDTH, 480, f"Roofline: {caption}")
    svg.text(16, 26, "Roofline", size=16, weight="600", fill="#111111")
    svg.text(16, 45, caption, fill=MUTED)
    svg.text(16, 62, "a point: one layer; area: its active cycles; from operations, DRAM bytes and cycles", fill=MUTED)
    _axes(svg, across, up)
    longest = max(layer.active for layer in points)
    labels: list[tuple[float, float]] = []
    for mode, found in shown.items():
        named = sorted(found, key=lambda layer: -layer.active)[:NAMED] if mode == next(iter(shown)) else []
        for layer in found:
            x, y = across(layer.ops / layer.bytes), up(layer.rate)
            radius = 3 + 9 * math.sqrt(layer.active / longest)
            rates = f"{layer.rate:,.1f} operations per cycle, {layer.ops / layer.bytes:,.2f} per byte"
            tip = f"{layer.name}, {mode}: {rates}, {layer.active:,} cycles"
            svg.circle(x, y, radius, RUN_COLOURS[mode], tip)
            if layer in named and all(abs(y - b) > 11 or abs(x - a) > 60 for a, b in labels):
                svg.text(x + radius + 2, y + 4, layer.name, size=10)
                labels.append((x, y))
    _ceilings(svg, across, up, device)
    return str(svg)


def _decades(low: float, high: float, start: float, end: float) -> Scale:
    """A logarithmic axis of whole decades around [low, high]."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return Scale(10.0**first, 10.0 ** max(last, first + 1), start, end, log=True)


def _axes(svg: Svg, across: Scale, up: Scale) -> None:
    for axis in (across, up):
        for exponent in range(round(math.log10(axis.low)), round(math.log10(axis.high)) + 1):
            value = 10.0**exponent
            text = f"{value:,.6g}"
            if axis is across:
                svg.line(across(value), TOP, across(value), BOTTOM, GRID)
                svg.text(across(value), BOTTOM + 18, text, size=11, anchor="middle")
            else:
                svg.line(LEFT, up(value), RIGHT, up(value), GRID)
                svg.text(LEFT - 8, up(value) + 4, text, size=11, anchor="end")
    svg.line(LEFT, BOTTOM, RIGHT, BOTTOM, AXIS)
    svg.line(LEFT, TOP, LEFT, BOTTOM, AXIS)
    svg.text((LEFT + RIGHT) / 2, BOTTOM + 40, "operations per byte of DRAM traffic, logarithmic", anchor="middle")
    svg.text(20, (TOP + BOTTOM) / 2, "operations per core cycle, logarithmic", anchor="middle", turned=True)


def _ceilings(svg: Svg, across: Scale, up: Scale, device: Roofline) -> None:
    top = max((roof.rate for roof in device.roofs), default=up.high)
    if device.slope:
        low = max(across.low, up.low / device.slope)
        high = min(across.high, top / device.slope)
        svg.path([(across(low), up(low * device.slope)), (across(high), up(high * device.slope))], "#111111", 1.6)
        x = math.sqrt(low * high)
        svg.text(across(x) - 8, up(x * device.slope) - 6, f"DRAM {device.slope:,.4g} bytes per cycle", size=11,
                 anchor="end")  # fmt: skip
    for roof in device.roofs:
        if roof.rate < up.low:
            continue
        begin = max(across.low, roof.rate / device.slope) if device.slope else across.low
        svg.path([(across(begin), up(roof.rate)), (RIGHT, up(roof.rate))], "#111111", 1.6)
        svg.text(RIGHT, up(roof.rate) - 6, f"{roof.name}: {roof.rate:,.6g}", size=11, anchor="end")
