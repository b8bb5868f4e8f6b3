"""What a sweep shows of each run: names, titles and units.

| figure | meaning |
|---|---|
| t_submit | mean |
| core_per_command | core time in submit functions, divided by the commands: overlapping calls count once |
| submit_per_compute | sum of t_submit over the busy cycles of tensor and vector engines |
| response | mean, open loop only |
| rejected | submissions that the device turned away |
"""

from pyv_npu.config import Config
from pyv_npu.config.schema import keys_of

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


def heading(figure: str) -> str:
    """The figure with its unit, as tables have it."""
    return f"{figure} ({UNITS[figure]})"


def key_unit(key: str) -> str:
    """The unit of a swept key, empty where it has none."""
    return keys_of(Config)[key].unit if key in keys_of(Config) else ""


def key_heading(key: str) -> str:
    """The swept key with its unit."""
    return f"{key} ({key_unit(key)})" if key_unit(key) else key
