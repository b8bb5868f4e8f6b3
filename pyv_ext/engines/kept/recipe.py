"""What the text of native code is made from: the key of the code, so that code that is kept needs no text.

Whatever changes the text changes the recipe: the sources of all modules that have a part in it, the instruction set
with custom instructions, the timing, and what is asked for. All tests compare them (tests/conftest.py).
"""

import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import pyv_ext
from pyv_ext.isa import Isa
from pyv_ext.protocols import CustomInstruction
from pyv_ext.timing import CoreTiming
from pyv_native import IMPORT_TIME
from pyv_native.digest import sha256

if TYPE_CHECKING:
    from pathlib import Path

_ROOT = os.path.dirname(os.path.dirname(os.path.realpath(pyv_ext.__file__)))
FOLDERS = (
    "pyv_native", "pyv_ext", "pyv_ext/bus", "pyv_ext/devices", "pyv_ext/engines", "pyv_ext/engines/fast",
    "pyv_ext/engines/kept", "pyv_ext/hart", "pyv_ext/isa", "pyv_ext/machine",
)  # fmt: skip
"""Of the modules that make text, and of all that these import."""
_SETTLED = 1.0
"""Seconds between the last change of a source and the start of this process; after less, or the other way round, the
process may have imported what was there before."""


class Recipe:
    """The recipes of one hart."""

    def __init__(self, isa: Isa, timing: CoreTiming, *, fused: bool) -> None:
        custom = [_described(one) for one in isa.custom]
        self._about = generator() and repr((generator(), isa.name, custom, timing, fused))

    def interpreter(self, *inputs: object) -> str:
        """Of the interpreter: all that its text depends on besides. Empty: there is no recipe, only text."""
        return self._about and f"{self._about}\ninterpreter {inputs!r}"

    def region(self, access: object, blocks: Sequence[tuple[int, int, Sequence[int]]]) -> str:
        """Of a region: address, end and instruction words of its blocks; `access`: what its accesses depend on."""
        return self._about and f"{self._about}\nregion {access!r} {blocks!r}"


def _described(instruction: CustomInstruction) -> tuple[object, ...]:
    """What text can depend on: functions are called through a table."""
    return tuple(each if each is None or isinstance(each, str | int) else callable(each) for each in tuple(instruction))


@cache
def generator() -> str:
    """The sources of this process, as a digest; empty where it is unknown whether they are what it has imported."""
    return sources_digest(_ROOT, IMPORT_TIME)


def sources_digest(root: "str | Path", started: float) -> str:
    """The digest of the sources below a folder for a process that has begun to import them at `started`.

    Not of what they hold, but of which files they are and when these have changed last: whatever writes one sets that
    time, and to read all takes longer than what else a warm start does with native code.
    """
    lines = [sys.version]
    try:
        for folder in FOLDERS:
            with os.scandir(f"{root}/{folder}") as files:
                found = sorted((file.name, file.stat()) for file in files if file.name.endswith(".py"))
            for name, about in found:
                if about.st_ctime > started - _SETTLED:
                    return ""
                lines.append(f"{folder}/{name} {about.st_ino} {about.st_size} {about.st_mtime_ns} {about.st_ctime_ns}")
    except OSError:
        return ""  # no sources: a zip file
    return str(sha256("\n".join(lines).encode()).hexdigest())
