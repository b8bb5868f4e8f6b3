"""Sweeps of a key in a comparison: figures of both modes at each value, and break-even points."""

from collections.abc import Mapping
from typing import Any

from pyv_npu.config import Config
from pyv_npu.config.schema import keys_of
from pyv_npu.sections import Heading, Note, Part, Table

TITLES = {
    "t_submit": "T_submit",
    "core_per_command": "Core time of a submission",
    "submit_per_compute": "T_submit / T_comp",
    "response": "Response: arrival to accepted",
    "rejected": "Rejected submissions",
}
UNITS = {
    "t_submit": "core cycles",
    "core_per_command": "core cycles",
    "submit_per_compute": "ratio",
    "response": "core cycles",
    "rejected": "commands",
}
"""Figures of each run in a sweep. t_submit and response are means; core_per_command is the core time in submit
functions over the commands, where overlapping calls count once; submit_per_compute is the sum of t_submit over the busy
cycles of tensor and vector engines."""


def sweep_parts(sweep: Mapping[str, Any]) -> list[Part]:
    key, figures = sweep["key"], sweep["figures"]
    rows = [[str(point["value"]), mode, *(point[mode][figure] for figure in figures)]
            for point in sweep["points"] for mode in ("loose", "tight")]  # fmt: skip
    units = ["", "", *(UNITS[figure] for figure in figures)]
    table = Table((key_heading(key), "mode", *figures), rows, units=units, figures=f"sweep.{key}.{{0}}.{{1}}.{{head}}")
    return [Heading(key), table, *map(Note, sweep["findings"])]


def key_unit(key: str) -> str:
    """Returns the unit of a key that is swept, empty where it has none."""
    return keys_of(Config)[key].unit if key in keys_of(Config) else ""


def key_heading(key: str) -> str:
    """Returns a key that is swept with its unit."""
    return f"{key} ({key_unit(key)})" if key_unit(key) else key
