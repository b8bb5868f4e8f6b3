"""Devices that native code serves, too: their state is 64-bit words, and what they do is short programs over these.

A program is one text for Python, which executes it as written (`Programs`), and for native code
(`pyv_ext.engines.near`). It is lines `name = expression`, and maybe a last line that is its result. Names are the words
of the device, inputs, or values of lines before. Expressions have integers, + - * // & | ^ ~ << >>, comparisons (1 or
0), and `x if c else y`, of which both sides are computed. All values are 0..2^64-1 and wrap around; nothing is divided
by 0 or shifted by 64 or more.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

WORD64 = (1 << 64) - 1
NOW, VALUE, PLACE = "now", "value", "place"
"""Inputs of a program: a cycle, what is stored, and the offset of the register."""

Execute = Callable[["memoryview[int]", int, int, int], int]
"""`execute(words, now, value, place) -> result`, 0 where the program has none."""


class NativeForm(NamedTuple):
    """What native code needs of a device to serve its registers."""

    names: tuple[str, ...]
    """Of the words."""
    size: int
    """Bytes of each access."""
    loads: Mapping[int, str]
    """Offset -> what is read in cycle `now`, and what the load does."""
    stores: Mapping[int, str]
    """Offset -> what a store of `value` does that is seen from the start of cycle `now` on."""
    lines: str
    """What the device drives: its interrupt line, or the bits of mip of one whose lines go past the PLIC."""
    quiet: frozenset[int]
    """Offsets of loads that change nothing, after which nothing is told to the clock: registers that are stable."""
    settle: str = ""
    """After a store, or when `due` has come: what follows from the words at the start of cycle `now`."""
    due: str = ""
    """The word that is the cycle of the next event, if there are any."""
    python: Mapping[str, str] = {}
    """Program of a register -> where this is not 0, native code leaves the access to Python."""
    sends: Mapping[int, str] = {}
    """Offset of a store -> whether what is stored leaves the device: Python hears of it later, in its order."""


class Programs:
    """The words of a device, all 0 at first, and the execution of programs over them by Python."""

    def __init__(self, names: Sequence[str]) -> None:
        self.words = memoryview(bytearray(8 * len(names))).cast("Q")
        """Their buffer stays where it is."""
        self._names = tuple(names)
        self._made: dict[str, Execute] = {}

    def __call__(self, program: str, now: int = 0, value: int = 0, place: int = 0) -> int:
        """The result of a program, which is compiled when it is first needed."""
        made = self._made.get(program)
        if made is None:
            made = self._made[program] = compiled(program, self._names)
        return made(self.words, now, value, place)


_WRAPS = ("+", "-", "*", "~", "<<")
_WORDS = re.compile(r"(\w+)")


def compiled(program: str, names: Sequence[str]) -> Execute:
    """The Python form of a program over the words `names`. Where no value can wrap around, that is its text with other
    names of the words; all others need a parser of expressions, which takes longer to import than many runs."""
    if any(operator in program for operator in _WRAPS):
        from pyv_ext.devices.programs_python import parsed

        return parsed(program, tuple(names))
    places = {name: f"words[{place}]" for place, name in enumerate(names)}
    lines = "".join(places.get(part, part) for part in _WORDS.split(program.strip())).split("\n")
    if lines[-1].split(" ", 2)[1:2] != ["="]:
        lines[-1] = f"return {lines[-1]}"
    else:
        lines.append("return 0")
    scope: dict[str, Execute] = {}
    exec("\n ".join([f"def execute(words, {NOW}, {VALUE}, {PLACE}):", *lines]), scope)
    return scope["execute"]
