"""Plugins: Python files of users that give every platform their own devices and instructions (docs/extending.md).

A file is executed once for each platform, so that what it makes belongs to that one. It sets `DEVICES`, a list of
`Placed`, or `INSTRUCTIONS`, a list of `CustomInstruction`, or both.
"""

import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyv_ext.protocols import CustomInstruction, Placed
from pyv_native.files import MAX_TEXT, check_input
from pyv_npu.errors import BadInputError


class Parts(NamedTuple):
    """What plugins add to a platform."""

    devices: tuple[Placed, ...] = ()
    instructions: tuple[CustomInstruction, ...] = ()


_NAMES = {"DEVICES": Placed, "INSTRUCTIONS": CustomInstruction}


def parts(files: Iterable[str]) -> Parts:
    """New devices and instructions of these files, in their order. BadInputError names file, line and reason."""
    devices: list[Placed] = []
    instructions: list[CustomInstruction] = []
    for file in files:
        names = _executed(file)
        if not any(name in names for name in _NAMES):
            raise BadInputError(
                f"{file}: sets neither DEVICES nor INSTRUCTIONS; set one to a list (`pyv-npu docs extending`)"
            )
        devices += _listed(file, names, "DEVICES")
        instructions += _listed(file, names, "INSTRUCTIONS")
    return Parts(tuple(devices), tuple(instructions))


def _executed(file: str) -> dict[str, Any]:
    """The names of a file that has run."""
    try:
        check_input(file, MAX_TEXT)
        code = compile(Path(file).read_bytes(), file, "exec")
    except OSError as error:
        raise BadInputError(f"{file}: {error.strerror}; name a Python file that sets DEVICES or INSTRUCTIONS") from None
    except SyntaxError as error:
        raise BadInputError(f"{file}:{error.lineno}: {error.msg}; correct this line") from None
    except ValueError as error:  # a zero byte
        raise BadInputError(f"{file}: {error}; give a Python file") from None
    names: dict[str, Any] = {"__name__": f"pyv_npu_plugin_{Path(file).stem}", "__file__": file}
    try:
        exec(code, names)
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise BadInputError(f"{file}:{lines[-1] if lines else 1}: {what}; correct this line") from None
    return names


def _listed(file: str, names: dict[str, Any], name: str) -> Sequence[Any]:
    kind, value = _NAMES[name], names.get(name, ())
    if not isinstance(value, list | tuple) or not all(isinstance(one, kind) for one in value):
        raise BadInputError(f"{file}: {name}: must be a list of {kind.__name__} (`pyv-npu docs extending`)")
    return value
