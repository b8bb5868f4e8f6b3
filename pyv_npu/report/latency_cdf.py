"""latency_cdf.svg: which share of the submissions took at most how many cycles, both modes in one picture."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyv_npu.observe.latency.table import Latency
from pyv_npu.report.folder import write_text
from pyv_npu.report.scale import Scale, cycles_scale
from pyv_npu.report.svg import Svg

WIDTH, HEIGHT = 820, 460
LEFT, RIGHT, TOP, BOTTOM = 70, 800, 104, 400
LEGEND = 68
COLOURS = {"loose": "#1f6fb4", "tight": "#d9480f"}
STAGES = {"t_submit": "", "core_busy": "5 4", "response": "1.5 2.5"}
"""Stage -> dash pattern."""
GRID, AXIS = "#e3e3e3", "#555555"


@dataclass(frozen=True)
class Curve:
    """One empirical distribution: (cycles, how many samples are at most that), ascending."""

    mode: str
    stage: str
    steps: list[tuple[int, int]]

    @property
    def samples(self) -> int:
        return self.steps[-1][1]


def curves(latencies: Mapping[str, Latency]) -> list[Curve]:
    """Every stage that has samples, by mode."""
    found = (Curve(mode, stage, latency.stage(stage).cdf()) for mode, latency in latencies.items() for stage in STAGES)
    return [curve for curve in found if curve.steps]


def write_latency_cdf(path: Path, latencies: Mapping[str, Latency], caption: str) -> bool:
    """Draw the distributions of `STAGES`; False, and no file, when nothing was submitted."""
    drawn = curves(latencies)
    if drawn:
        write_text(path, draw(drawn, caption))
    return bool(drawn)


def draw(drawn: list[Curve], caption: str) -> str:
    """The picture as SVG text; at least one curve."""
    svg = Svg(WIDTH, HEIGHT, f"Submission latency, cumulative distribution: {caption}")
    least = min(curve.steps[0][0] for curve in drawn)
    most = max(curve.steps[-1][0] for curve in drawn)
    across = cycles_scale(least, most, LEFT, RIGHT)
    up = Scale(0, 100, BOTTOM, TOP)
    svg.text(LEFT, 28, "Submission latency: cumulative distribution", size=17, weight="600", fill="#111111")
    svg.text(LEFT, 48, caption, fill="#666666")
    _axes(svg, across, up)
    for curve in drawn:
        svg.path(_staircase(curve, across, up), COLOURS[curve.mode], dash=STAGES[curve.stage])
    _legend(svg, drawn)
    return str(svg)


def _axes(svg: Svg, across: Scale, up: Scale) -> None:
    for percent in (0, 25, 50, 75, 95, 100):
        y = up(percent)
        svg.line(LEFT, y, RIGHT, y, GRID)
        svg.text(LEFT - 8, y + 4, str(percent), size=11, anchor="end")
    for tick in across.ticks():
        x = across(tick)
        svg.line(x, TOP, x, BOTTOM, GRID)
        svg.text(x, BOTTOM + 18, f"{tick:,}", size=11, anchor="middle")
    svg.line(LEFT, BOTTOM, RIGHT, BOTTOM, AXIS)
    svg.line(LEFT, TOP, LEFT, BOTTOM, AXIS)
    kind = ", logarithmic" if across.log else ""
    svg.text((LEFT + RIGHT) / 2, BOTTOM + 42, f"latency (core cycles{kind})", anchor="middle")
    svg.text(22, (TOP + BOTTOM) / 2, "submissions at most that slow (%)", anchor="middle", turned=True)


def _staircase(curve: Curve, across: Scale, up: Scale) -> list[tuple[float, float]]:
    points = [(across(curve.steps[0][0]), up(0))]
    share = 0.0
    for cycles, rank in curve.steps:
        points.append((across(cycles), up(share)))
        share = 100 * rank / curve.samples
        points.append((across(cycles), up(share)))
    return points


def _legend(svg: Svg, drawn: list[Curve]) -> None:
    """A line for each mode."""
    for number, mode in enumerate(dict.fromkeys(curve.mode for curve in drawn)):
        y = LEGEND + 18 * number
        for index, curve in enumerate(curve for curve in drawn if curve.mode == mode):
            x = LEFT + 245 * index
            svg.line(x, y, x + 26, y, COLOURS[mode], 2, STAGES[curve.stage])
            svg.text(x + 34, y + 4, f"{curve.stage}, {mode} (n = {curve.samples})", size=11)
