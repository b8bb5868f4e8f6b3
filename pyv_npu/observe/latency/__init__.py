"""The submissions of a program, from the core's first instruction for one to what firmware hears of it."""

from pyv_ext.elf import Program

_SUBMIT, _PREBUILT = "npu_submit", "npu_submit_prebuilt"
"""How the names of functions begin that submit."""


def submit_functions(program: Program) -> dict[int, bool]:
    """The functions of a program that submit: entry -> whether the descriptor lies in memory already."""
    return {
        symbol.address: symbol.name.startswith(_PREBUILT)
        for symbol in program.functions
        if symbol.name.startswith(_SUBMIT)
    }
