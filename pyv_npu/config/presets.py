"""Timing presets and configurations of whole devices, shipped with the package. Every number has a source.

The keys of a preset's file are `name`, `basis` (one line: the origin of the preset), `extends` (a base preset),
`values` (keys of the configuration), `source` (of all values that `sources` lacks) and `sources` (by key).
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pyv_npu.config.package_data import data_files, find_file
from pyv_npu.config.schema import keys_of, sections_of, unknown
from pyv_npu.config.tree import Config
from pyv_npu.config.yaml_file import Entry, read_entries
from pyv_npu.errors import BadInputError

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("ideal", "pyv", "neorv32-2024", "ibex", "rocket", "cva6", "soc-axi", "pcie", "rocc", "dsa", "nvme",
         "cxl-cache")  # fmt: skip
DEFAULT = "soc-axi"
PYV = "pyv"
"""Name of the preset with the cycle contract, and of the core that defines it."""

_REQUIRED = ("name", "basis", "source")
_WORDS = (*_REQUIRED, "extends")
_TOP = (*_WORDS, "values", "sources")


class PresetNumber(NamedTuple):
    """Value with its source."""

    value: Any
    source: str


@dataclass(frozen=True)
class Preset:
    """Timing preset."""

    name: str
    basis: str
    values: Mapping[str, PresetNumber]
    """Dotted path -> number, those of `extends` included."""


def load(name: str, folder: "str | Path") -> Preset:
    """Load a shipped preset by its name, or a user's by the path of its file, relative to `folder`.

    BadInputError: no such preset, or an error in its file, with the line.
    """
    return _read(_locate(name, folder), ())


def _locate(name: str, folder: "str | Path") -> str:
    """Return the file of a preset; the name of a shipped preset takes precedence over a user's file."""
    return data_files("presets")[name] if name in NAMES else find_file(name, "presets", base=str(folder))


def _read(path: str, children: tuple[str, ...]) -> Preset:
    folder = os.path.dirname(path)
    real_path = os.path.realpath(path)
    if real_path in children:
        raise BadInputError(f"{path}: extends itself; let it extend a shipped preset")
    entries = read_entries(path, _sections())
    words = {entry.path: _word(path, entry) for entry in entries if entry.path in _WORDS}
    value_entries = {entry.path.removeprefix("values."): entry for entry in entries if entry.path.startswith("values.")}
    texts = {entry.path.removeprefix("sources."): entry for entry in entries if entry.path.startswith("sources.")}
    for entry in entries:
        if entry.path not in _WORDS and not entry.path.startswith(("values.", "sources.")):
            raise _error(path, entry, str(unknown(entry.path, _TOP, f"a preset holds {', '.join(_TOP)}")))
    for word in _REQUIRED:
        if word not in words:
            raise BadInputError(f"{path}: {word}: is missing; a preset holds {', '.join(_REQUIRED)}")
    for name, entry in texts.items():
        if name not in value_entries:
            raise _error(path, entry, f"{entry.path}: this file sets no such value; set it or remove the source")
    values: dict[str, PresetNumber] = {}
    for entry in entries:
        if entry.path == "extends":
            try:
                values.update(_read(_locate(entry.value, folder), (*children, real_path)).values)
            except BadInputError as error:
                raise _error(path, entry, f"extends: {error}") from None
    for name, entry in value_entries.items():
        source = _word(path, texts[name]) if name in texts else words["source"]
        values[name] = PresetNumber(_check_entry(path, name, entry), source)
    return Preset(words["name"], words["basis"], values)


@cache
def _sections() -> frozenset[str]:
    inner = {f"{top}.{section}" for top in ("values", "sources") for section in sections_of(Config)}
    return frozenset(inner | {"values", "sources"})


def _word(path: str, entry: Entry) -> str:
    if not isinstance(entry.value, str) or not entry.value.strip():
        raise _error(path, entry, f"{entry.path} = {entry.value}: must be text; write it in quotes")
    return entry.value


def _check_entry(path: str, name: str, entry: Entry) -> Any:
    keys = keys_of(Config)
    try:
        if name not in keys or name == "preset":
            raise unknown(name, (key for key in keys if key != "preset"))
        return keys[name].convert(entry.value)
    except BadInputError as error:
        raise _error(path, entry, str(error)) from None


def _error(path: str, entry: Entry, text: str) -> BadInputError:
    return BadInputError(f"{path}:{entry.line}: {text}")
