"""Plugins: users' Python files that add devices and instructions to every platform (docs/extending.md).

A file is executed once for each platform, so that platforms share no objects. It sets `DEVICES`, a list of `Placed`,
or `INSTRUCTIONS`, a list of `CustomInstruction`, or both.
"""

import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from pyv_ext.protocols import CustomInstruction, Placed
from pyv_native.files import MAX_TEXT, check_input
from pyv_npu.errors import BadInputError


class PluginParts(NamedTuple):
    """Devices and instructions that plugins add to a platform."""

    devices: tuple[Placed, ...] = ()
    instructions: tuple[CustomInstruction, ...] = ()


_MODULE = "pyv_npu_plugin_"
"""Prefix of the module name of a plugin."""
_NAMES = {"DEVICES": Placed, "INSTRUCTIONS": CustomInstruction}


def parts(files: Iterable[str]) -> PluginParts:
    """Return new devices and instructions of these files, in order. BadInputError names file, line and reason."""
    devices: list[Placed] = []
    instructions: list[CustomInstruction] = []
    for file in files:
        names = _execute(file)
        if not any(name in names for name in _NAMES):
            raise BadInputError(
                f"{file}: sets neither DEVICES nor INSTRUCTIONS; set one to a list (`pyv-npu docs extending`)"
            )
        devices += _list_of(file, names, "DEVICES")
        instructions += _list_of(file, names, "INSTRUCTIONS")
    return PluginParts(tuple(devices), tuple(instructions))


def _execute(file: str) -> dict[str, Any]:
    """Execute a file and return its names."""
    try:
        check_input(file, MAX_TEXT)
        code = compile(Path(file).read_bytes(), file, "exec")
    except OSError as error:
        raise BadInputError(f"{file}: {error.strerror}; name a Python file that sets DEVICES or INSTRUCTIONS") from None
    except SyntaxError as error:
        raise BadInputError(f"{file}:{error.lineno}: {error.msg}; correct this line") from None
    except ValueError as error:  # a zero byte
        raise BadInputError(f"{file}: {error}; give a Python file") from None
    names: dict[str, Any] = {"__name__": f"{_MODULE}{Path(file).stem}", "__file__": file}
    try:
        exec(code, names)
    except (Exception, SystemExit) as error:
        raise fault_of(error) or error from None
    return names


def fault_of(error: BaseException) -> BadInputError | None:
    """Convert an exception of a plugin's code to an error with file and line; None if it is not from a plugin."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    lines = [line for _, line in traceback.walk_tb(error.__traceback__)]
    at = next((at for at in reversed(range(len(frames))) if _is_plugin(frames[at])), None)
    if at is None:
        return None
    try:
        text = str(error)
    except Exception:
        text = "an error without a text"
    detail = " ".join(f"{type(error).__name__}: {text}".split())
    return BadInputError(f"{frames[at].f_code.co_filename}:{lines[at]}: {detail}; correct this line")


def _is_plugin(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(_MODULE)


def _list_of(file: str, names: dict[str, Any], name: str) -> Sequence[Any]:
    kind, value = _NAMES[name], names.get(name, ())
    if not isinstance(value, list | tuple) or not all(isinstance(item, kind) for item in value):
        raise BadInputError(f"{file}: {name}: must be a list of {kind.__name__} (`pyv-npu docs extending`)")
    for index, item in enumerate(value):
        rules = _rules_of_device(item) if isinstance(item, Placed) else _rules_of_instruction(item)
        for part, holds, rule in rules:
            if not holds:
                raise BadInputError(f"{file}: {name}[{index}]: {part}: must be {rule} (`pyv-npu docs extending`)")
    return value


def _rules_of_device(placed: Placed) -> Iterator[tuple[str, bool, str]]:
    """Yield (part, whether it is valid, rule)."""
    device, source = placed.device, placed.source
    yield "base", _is_integer(placed.base), "an address"
    yield "source", source is None or _is_integer(source), "a PLIC source"
    yield "device", isinstance(getattr(device, "name", None), str), "a device, which has a name"
    yield "device", _is_integer(getattr(device, "size", None)), "a device, which has a size"
    for method in ("accepts", "read", "write"):
        yield "device", callable(getattr(device, method, None)), f"a device, which has a method {method}"


def _rules_of_instruction(row: CustomInstruction) -> Iterator[tuple[str, bool, str]]:
    for part in ("name", "syntax", "expr"):
        yield part, isinstance(getattr(row, part), str), "a text"
    for part in ("match", "mask"):
        yield part, _is_integer(getattr(row, part)) and 0 <= getattr(row, part) < 1 << 32, "a 32-bit word"
    yield "issue", row.issue is None or _is_integer(row.issue), "a number of cycles"
    for part in ("handler", "ready"):
        yield part, getattr(row, part) is None or callable(getattr(row, part)), "a function"


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
