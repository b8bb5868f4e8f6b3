"""Sweeps in the report of a comparison: loose against tight over the values of a key, with the break-even points. For
all other sweeps use `pyv-npu sweep`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyv_ext.elf import Program
from pyv_npu.config import Config, with_values
from pyv_npu.sections import Part
from pyv_npu.studies.sweep.charts import effect_parts
from pyv_npu.studies.sweep.effects import break_even, crossing_text
from pyv_npu.studies.sweep.figures import select_figures, submissions
from pyv_npu.studies.sweep.table import ERROR, MODE, Table, is_integer
from pyv_npu.workloads.firmware import run_whole

FIGURES = ("t_submit", "core_per_command", "submit_per_compute")
BREAK_EVEN = ("t_submit", "core_per_command", "response")
MODES = ("loose", "tight")


@dataclass(frozen=True)
class Sweep:
    """Configuration key with the values to sweep, and the other settings of all points."""

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
"""Program -> sweeps of its report."""


def run_sweep(config: Config, program: str | Program, sweep: Sweep) -> dict[str, Any]:
    """Run every value in both modes: the object `sweeps[i]` of the JSON result. KeyboardInterrupt on Ctrl-C."""
    points = []
    for value in sweep.values:
        settings = {**sweep.fixed, sweep.key: value}
        point: dict[str, Any] = {"value": int(value, 0) if is_integer(value) else value}
        for mode in MODES:
            point[mode] = submissions(run_whole(with_values(config, {**settings, "npu.mode": mode}), program))
        points.append(point)
    figures = [name for name in (*FIGURES, "response", "rejected") if any(p[m][name] for p in points for m in MODES)]
    document: dict[str, Any] = {"key": sweep.key, "fixed": dict(sweep.fixed), "figures": figures, "points": points}
    table = _table(document)
    lines = {name: list(break_even(table, name)) for name in BREAK_EVEN if name in figures}
    return {
        **document,
        "units": {name: figure.unit for name, figure in table.figures.items()},
        "break_even": {name: [at for line in crossings for at in line.at] for name, crossings in lines.items()},
        "findings": [crossing_text(name, sweep.key, crossings) for name, crossings in lines.items() if crossings],
    }


def _table(document: Mapping[str, Any]) -> Table:
    """Return the points of a sweep as a table with a row for each value and mode."""
    rows = [{document["key"]: point["value"], MODE: mode, ERROR: None, **point[mode]}
            for point in document["points"] for mode in MODES]  # fmt: skip
    return Table((document["key"], MODE), select_figures(document["figures"]), rows)


def charts(document: Mapping[str, Any]) -> list[Part]:
    """Return small multiples: each figure of both modes over the values; a constant figure is a sentence."""
    return effect_parts(_table(document), document["key"], document["figures"])
