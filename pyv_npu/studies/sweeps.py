"""Loose against tight over the values of one parameter: what a submission costs, and where the order turns."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any

from pyv_ext.elf import Program
from pyv_ext.engines.stop import StopReason
from pyv_npu.config import Config, with_values
from pyv_npu.config.schema import keys_of
from pyv_npu.errors import UsageError
from pyv_npu.observe.latency.rows import Submission
from pyv_npu.report.charts import RUN_COLOURS, Line, lines
from pyv_npu.result import Result
from pyv_npu.tables import TITLES, UNITS, key_heading
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


_OF_COMPARE = ("npu.mode", "run.program", "run.sim_level")
"""Keys that a comparison settles itself."""


def parse(text: str) -> Sweep:
    """`key=a,b,c`; UsageError where it is not that, or names no key."""
    key, equals, values = text.partition("=")
    found = tuple(value.strip() for value in values.split(",") if value.strip())
    if not (key and equals and found):
        raise UsageError(f"--sweep {text}: must have the form KEY=A,B,C, for example core.timing.mmio_one_way=0,60,240")
    if len(set(found)) != len(found):
        raise UsageError(f"--sweep {text}: gives a value twice; keep one")
    if not any(key == name or key.startswith(name + ".") for name in keys_of(Config)):
        raise UsageError(f"--sweep {text}: {key} is no key; --print-config lists every key")
    if key in _OF_COMPARE:
        raise UsageError(f"--sweep {text}: every value runs the one program, at one level, in both modes; drop it")
    return Sweep(key, found)


def run_sweep(config: Config, program: str | Program, sweep: Sweep) -> dict[str, Any]:
    """Run every value in both modes: the object `sweeps[i]` of the JSON result. KeyboardInterrupt on Ctrl-C."""
    points = []
    for value in sweep.values:
        settings = {**sweep.fixed, sweep.key: value}
        point: dict[str, Any] = {"value": int(value, 0) if _is_integer(value) else value}
        for mode in MODES:
            chosen = with_values(config, {**settings, "npu.mode": mode})
            run = run_program(chosen, program, chosen.run.args)
            if run.stop.reason is StopReason.INTERRUPTED:
                raise KeyboardInterrupt
            point[mode] = figures(run)
        points.append(point)
    named = [name for name in (*FIGURES, "response", "rejected") if any(p[m][name] for p in points for m in MODES)]
    return {
        "key": sweep.key,
        "fixed": dict(sweep.fixed),
        "figures": named,
        "points": points,
        "break_even": {name: break_even(points, name) for name in BREAK_EVEN if name in named},
        "findings": list(_findings(sweep.key, points, named)),
        "pictures": [f"sweep_{sweep.key}_{name}.svg" for name in named],
    }


def figures(run: Result[Any]) -> dict[str, Any]:
    """What a run contributes to a sweep; None where nothing was submitted."""
    submissions = [s for s in run.latency.submissions if s.t0 is not None]
    spans = [span for s in submissions if (span := s.span("t0", "t2")) is not None]
    engines = run.json["npu"]
    compute = sum(engines["te_busy"]) + sum(engines["ve_busy"])
    response = run.latency.stage("response").values
    return {
        "t_submit": _ratio(sum(spans), len(spans)),
        "core_per_command": _ratio(_covered(submissions), len(submissions)),
        "submit_per_compute": _ratio(sum(spans), compute),
        "response": _ratio(sum(response), len(response)),
        "rejected": run.latency.rejected,
    }


def _ratio(total: int, count: int) -> float | None:
    return round(total / count, 3) if count else None


def _covered(submissions: Sequence[Submission]) -> int:
    """Cycles in the union of [t0, t1)."""
    total = reach = 0
    for t0, t1 in sorted((s.t0, s.t1) for s in submissions if s.t0 is not None and s.t1 is not None):
        total += max(0, t1 - max(t0, reach))
        reach = max(reach, t1)
    return total


def break_even(points: Sequence[Mapping[str, Any]], figure: str) -> list[float]:
    """Where loose and tight cost the same, by straight lines between the values; [] where one is always cheaper."""
    found: list[float] = []
    rows = [
        (point["value"], Fraction(str(point["loose"][figure])) - Fraction(str(point["tight"][figure])))
        for point in points
        if isinstance(point["value"], int) and None not in (point["loose"][figure], point["tight"][figure])
    ]
    for (x, here), (y, there) in pairwise(sorted(rows)):
        if here == 0:
            found.append(float(x))
        elif here * there < 0:
            found.append(round(float(x + (y - x) * here / (here - there)), 3))
    return found + [float(x) for x, difference in rows[-1:] if difference == 0]


def _findings(key: str, points: Sequence[Mapping[str, Any]], named: Sequence[str]) -> Iterator[str]:
    for figure in BREAK_EVEN:
        if figure not in named:
            continue
        if crossings := break_even(points, figure):
            values = ", ".join(f"{crossing:,.1f}" for crossing in crossings)
            yield f"break-even of {figure}: {key} = {values}"
            continue
        known = [(p["loose"][figure], p["tight"][figure]) for p in points]
        if all(loose is not None and tight is not None and loose > tight for loose, tight in known):
            yield f"{figure}: tight is cheaper at every value of {key}"
        elif all(loose is not None and tight is not None and loose < tight for loose, tight in known):
            yield f"{figure}: loose is cheaper at every value of {key}"


def pictures(sweep: Mapping[str, Any]) -> dict[str, str]:
    """File name -> SVG text: a figure of both modes over the values. Words stand at equal distances."""
    points = sweep["points"]
    words = any(isinstance(point["value"], str) for point in points)
    place: Callable[[int, Any], float] = (lambda index, _: index) if words else (lambda _, value: value)
    drawn = {}
    for name, figure in zip(sweep["pictures"], sweep["figures"], strict=True):
        curves = [
            Line(mode, RUN_COLOURS[mode],
                 [(place(i, p["value"]), p[mode][figure]) for i, p in enumerate(points) if p[mode][figure] is not None])
            for mode in MODES
        ]  # fmt: skip
        values = ", ".join(str(point["value"]) for point in points)
        caption = f"over {sweep['key']} = {values}"
        at = None if words else [point["value"] for point in points]
        drawn[name] = lines(
            f"{TITLES[figure]}", caption, curves, key_heading(sweep["key"]), UNITS[figure], dots=True, at_x=at
        )
    return drawn


def _is_integer(text: str) -> bool:
    try:
        int(text, 0)
    except ValueError:
        return False
    return True
