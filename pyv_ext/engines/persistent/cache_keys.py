"""Keys of the code cache: native code is looked up by the inputs of its IR, without generating the IR.

An input that changes the IR changes its key: the sources of all modules that generate it, the instruction set with
custom instructions, the timing, and the arguments. All tests compare them (tests/conftest.py).
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
    "pyv_ext/engines/persistent", "pyv_ext/hart", "pyv_ext/isa", "pyv_ext/machine",
)  # fmt: skip
"""Folders of the modules that generate IR, and of all that these import."""
_MIN_AGE = 1.0
"""Minimum seconds from the last change of a source to the start of this process. With less, the process may have
imported an older source."""


class CacheKeys:
    """Cache keys of the native code of one hart."""

    def __init__(self, isa: Isa, timing: CoreTiming, *, fused: bool) -> None:
        custom = [_inputs(instruction) for instruction in isa.custom]
        self._prefix = generator() and repr((generator(), isa.name, custom, timing, fused))

    def interpreter(self, *inputs: object) -> str:
        """Return the key of the interpreter; `inputs`: further inputs of its IR. Empty if sources are unknown."""
        return self._prefix and f"{self._prefix}\ninterpreter {inputs!r}"

    def region(self, access: object, blocks: Sequence[tuple[int, int, Sequence[int]]]) -> str:
        """Return the key of a region, from address, end and words of its blocks; `access`: inputs of its accesses.
        Empty if the sources are unknown."""
        return self._prefix and f"{self._prefix}\nregion {access!r} {blocks!r}"


def _inputs(instruction: CustomInstruction) -> tuple[object, ...]:
    """Return the fields of an instruction on which IR may depend; for functions only whether they exist, since native
    code calls them through a table."""
    return tuple(
        field if field is None or isinstance(field, str | int) else callable(field) for field in tuple(instruction)
    )


@cache
def generator() -> str:
    """Return a digest of this process's sources; empty if they may differ from the modules that it imported."""
    return sources_digest(_ROOT, IMPORT_TIME)


def sources_digest(root: "str | Path", import_time: float) -> str:
    """Digest the sources below a folder for a process that began to import them at `import_time`; empty if it may have
    imported others.

    It covers names, inodes, sizes and times of the files, not their content: reading all of them takes longer than the
    rest of a warm start.
    """
    lines = [sys.version]
    try:
        for folder in FOLDERS:
            with os.scandir(f"{root}/{folder}") as files:
                entries = sorted((file.name, file.stat()) for file in files if file.name.endswith(".py"))
            for name, about in entries:
                if about.st_ctime > import_time - _MIN_AGE:
                    return ""
                lines.append(f"{folder}/{name} {about.st_ino} {about.st_size} {about.st_mtime_ns} {about.st_ctime_ns}")
    except OSError:
        return ""  # no sources: a zip file
    return str(sha256("\n".join(lines).encode()).hexdigest())
