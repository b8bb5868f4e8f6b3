"""Latency of a program's submissions, from the first instruction of each to firmware's notice of its completion."""

from typing import NamedTuple

from pyv_ext.elf import Program

_SUBMIT, _PREBUILT = "npu_submit", "npu_submit_prebuilt"
"""Prefixes of the names of submit functions."""


def submit_functions(program: Program) -> dict[int, bool]:
    """Return the submit functions of a program: entry -> whether the descriptor is prebuilt in memory."""
    return {
        symbol.address: symbol.name.startswith(_PREBUILT)
        for symbol in program.functions
        if symbol.name.startswith(_SUBMIT)
    }


class Stage(NamedTuple):
    """Interval between two timestamps of a submission."""

    first: str
    last: str
    prebuilt: bool | None
    """Selection of submissions: with prebuilt descriptors (True), with written descriptors (False), or all (None)."""


STAGES = {
    "t_submit": Stage("t0", "t2", False),
    "t_submit_prebuilt": Stage("t0", "t2", True),
    "core_busy": Stage("t0", "t1", False),
    "queue_wait": Stage("t2", "t3", False),
    "execute": Stage("t3", "t4", False),
    "notify": Stage("t4", "t7", False),
    "arrival_wait": Stage("t_arr", "t0", None),
    "response": Stage("t_arr", "t2", None),
}
