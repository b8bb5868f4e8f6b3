"""Text of a configuration: YAML with meaning, unit and source of each key, and the list of sources.

`load` reads the YAML back to an equal configuration.
"""

import re
from collections.abc import Mapping

from pyv_npu.config.effective import RECORD, Effective
from pyv_npu.config.key import Key
from pyv_npu.config.schema import flatten, keys_of
from pyv_npu.config.tree import Config
from pyv_npu.text import lines_of

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./+-]*")
_NOT_PLAIN = frozenset({"true", "false", "yes", "no", "on", "off", "null", "none", "y", "n"})
_COLUMN = 44
"""Column of comments after short values."""


def render(effective: Effective, record: Mapping[str, object] | None = None) -> str:
    """Return YAML text of every key with its value; `record` (program, versions and inputs) becomes a section of
    run.yaml."""
    values = flatten(effective.config)
    lines: list[str] = []
    if record is not None:
        lines.append(f"{RECORD}:  # what was run; not read back")
        lines += [f"  {name}: {scalar(value)}" for name, value in record.items()]
    opened: list[str] = []
    for path, key in keys_of(Config).items():
        *folders, name = path.split(".")
        shared = 0
        while shared < min(len(opened), len(folders)) and opened[shared] == folders[shared]:
            shared += 1
        lines += ["  " * depth + folders[depth] + ":" for depth in range(shared, len(folders))]
        opened = folders
        text = "  " * len(folders) + f"{name}: {scalar(values[path], key)}"
        lines.append(f"{text:{_COLUMN}}  # {_comment(key, effective.origins.get(path))}")
    return "\n".join(lines) + "\n"


def provenance(effective: Effective) -> str:
    """List every key that is not at its declared default, with its source."""
    values, keys = flatten(effective.config), keys_of(Config)
    rows = []
    for path, origin in effective.origins.items():
        unit = f" {keys[path].unit}" if keys[path].unit not in ("", "address") else ""
        rows.append((path, f"{keys[path].show(values[path])}{unit} -- {origin}"))
    return lines_of("where the parameters come from (all others are at their defaults, see run.yaml)", rows) + "\n"


def _comment(key: Key, origin: str | None) -> str:
    unit = f" [{key.unit}]" if key.unit else ""
    source = origin if origin is not None else f"default: {key.rule.get('source', 'preset pyv')}"
    return f"{key.rule['meaning']}{unit} -- {source}"


def scalar(value: object, key: Key | None = None) -> str:
    """Format a value in YAML's flow style."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar(name)}: {scalar(item)}" for name, item in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(scalar(item) for item in value) + "]"
    if isinstance(value, str):
        return _quote(value)
    if value is None:
        return "none" if key is not None else "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:#x}" if key is not None and key.unit == "address" else str(value)


def _quote(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _NOT_PLAIN:
        return text
    letters = (letter if " " <= letter <= "~" and letter not in '"\\' else f"\\U{ord(letter):08x}" for letter in text)
    return '"' + "".join(letters) + '"'
