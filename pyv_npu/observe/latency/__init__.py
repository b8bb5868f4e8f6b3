"""The submissions of a program, from the core's first instruction for one to what firmware hears of it."""

from typing import NamedTuple

from pyv_ext.elf import Program

_SUBMIT, _PREBUILT = "npu_submit", "npu_submit_prebuilt"
"""Prefixes of the names of functions that submit."""


def submit_functions(program: Program) -> dict[int, bool]:
    """Return the functions of a program that submit: entry -> whether the descriptor lies in memory already."""
    return {
        symbol.address: symbol.name.startswith(_PREBUILT)
        for symbol in program.functions
        if symbol.name.startswith(_SUBMIT)
    }


class Stage(NamedTuple):
    """The cycles between two stamps of a submission."""

    first: str
    last: str
    prebuilt: bool | None
    """Submissions that count: those whose descriptor lay in memory already, the others, or all."""


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
