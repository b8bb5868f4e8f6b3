"""Sweeps in the report of a comparison: loose against tight over the values of a key, with the break-even points. For
all other sweeps use `pyv-npu sweep`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyv_ext.elf import Program
from pyv_ext.engines.core import StopReason
from pyv_npu.config import Config, with_values
from pyv_npu.report.charts import Line, axis_title, flat, line_view, link_views
from pyv_npu.run_sections.latency import TITLES, UNITS, key_heading, key_unit
from pyv_npu.sections import Chart, Note, Part
from pyv_npu.studies.sweep.effects import crossings
from pyv_npu.studies.sweep.figures import submissions
from pyv_npu.units import number
from pyv_npu.workloads.firmware import run_program

FIGURES = ("t_submit", "core_per_command", "submit_per_compute")
BREAK_EVEN = ("t_submit", "core_per_command", "response")
MODES = ("loose", "tight")


@dataclass(frozen=True)
class Sweep:
    """A key of the configuration, the values it takes, and what else is set meanwhile."""

    key: str
    values: tuple[str, ...]
    fixed: Mapping[str, object] = field(default_factory=dict)


_TILES: Mapping[str, object] = {"run.args.n": 32, "run.args.phases": 16}
_BATCHES: Mapping[str, object] = {"run.args.n": 32, "run.args.phases": 32, "run.args.tile": 16}
_PACED: Mapping[str, object] = {"run.args.n": 16, "run.args.phases": 2, "run.args.tile": 16}
AUTOMATIC = {
    "submit_latency": (
        Sweep("run.args.tile", ("16", "32", "64", "128"), _TILES),
        Sweep("run.args.prefetch", ("0", "1", "2", "4"), _TILES),
        Sweep("run.args.batch", ("1", "2", "4", "16"), _BATCHES),
        Sweep("core.timing.mmio_one_way", ("0", "20", "60", "240"), _PACED),
        Sweep("core.timing.custom_response", ("0", "4", "60"), _PACED),
    ),
}
"""Program -> the sweeps of its report: tile size and prefetch distance."""


def run_sweep(config: Config, program: str | Program, sweep: Sweep) -> dict[str, Any]:
    """Run every value in both modes: the object `sweeps[i]` of the JSON result. KeyboardInterrupt on Ctrl-C."""
    points = []
    for value in sweep.values:
        settings = {**sweep.fixed, sweep.key: value}
        point: dict[str, Any] = {"value": int(value, 0) if _is_integer(value) else value}
        for mode in MODES:
            mode_config = with_values(config, {**settings, "npu.mode": mode})
            run = run_program(mode_config, program, mode_config.run.args)
            if run.stop.reason is StopReason.INTERRUPTED:
                raise KeyboardInterrupt
            point[mode] = submissions(run)
        points.append(point)
    named = [name for name in (*FIGURES, "response", "rejected") if any(p[m][name] for p in points for m in MODES)]
    return {
        "key": sweep.key,
        "fixed": dict(sweep.fixed),
        "figures": named,
        "points": points,
        "break_even": {name: break_even(points, name) for name in BREAK_EVEN if name in named},
        "findings": list(_findings(sweep.key, points, named)),
    }


def break_even(points: Sequence[Mapping[str, Any]], figure: str) -> list[float]:
    """Return the values where loose and tight cost the same, by linear interpolation; [] where one is always
    cheaper."""
    return crossings(
        [
            (point["value"], point["loose"][figure], point["tight"][figure])
            for point in points
            if isinstance(point["value"], int) and None not in (point["loose"][figure], point["tight"][figure])
        ]
    )


def _findings(key: str, points: Sequence[Mapping[str, Any]], named: Sequence[str]) -> Iterator[str]:
    for figure in BREAK_EVEN:
        if figure not in named:
            continue
        if crossings := break_even(points, figure):
            values = ", ".join(f"{crossing:,.1f}" for crossing in crossings)
            yield f"break-even of {figure}: {key} = {values} {key_unit(key)}".rstrip()
            continue
        pairs = [(p["loose"][figure], p["tight"][figure]) for p in points]
        if all(loose is not None and tight is not None and loose > tight for loose, tight in pairs):
            yield f"{figure}: tight is cheaper at every value of {key}"
        elif all(loose is not None and tight is not None and loose < tight for loose, tight in pairs):
            yield f"{figure}: loose is cheaper at every value of {key}"


def charts(sweep: Mapping[str, Any]) -> list[Part]:
    """Return small multiples: each figure of both modes over the values; a figure that is constant is a sentence."""
    points, key = sweep["points"], sweep["key"]
    views: list[Mapping[str, Any]] = []
    constant: list[str] = []
    words = any(isinstance(point["value"], str) for point in points)
    for figure in sweep["figures"]:
        curves = {
            mode: [(str(p["value"]) if words else p["value"], p[mode][figure])
                   for p in points if p[mode][figure] is not None]
            for mode in MODES
        }  # fmt: skip
        title = axis_title(TITLES[figure], UNITS[figure])
        if all(flat([value for _, value in curve]) for curve in curves.values() if curve):
            means = ", ".join(f"{mode} {number(curve[0][1])}" for mode, curve in curves.items() if curve)
            constant.append(f"{title}: {means}")
            continue
        shown = [Line(mode, curve) for mode, curve in curves.items()]
        view = line_view(shown, key_heading(key), UNITS[figure], dots=True, height=150, heading=TITLES[figure])
        views.append({**view, "name": f"view{len(views)}"})
    caption = "loose and tight over its values; drag to move, Ctrl and wheel to zoom all charts of the key"
    parts: list[Part] = [Chart(f"sweep_{key}", key, caption, link_views(views))] if views else []
    return [*parts, *([Note(f"Over {key} these stay: {'; '.join(constant)}.", "muted")] if constant else [])]


def _is_integer(text: str) -> bool:
    try:
        int(text, 0)
    except ValueError:
        return False
    return True
