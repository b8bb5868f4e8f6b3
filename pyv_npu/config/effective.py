"""Effective configuration: the merge of all layers, with the origin of each value.

A layer is a list of settings. Later settings win; within a layer its preset comes first (docs/configuration.md). So
`--preset` on the command line replaces the timing of a file, and a file's own keys replace its preset's.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyv_npu.config import presets
from pyv_npu.config.key import Key, KeyRuleError
from pyv_npu.config.package_data import data_files, find_file
from pyv_npu.config.schema import build, flatten, keys_of, sections_of, unknown
from pyv_npu.config.tree import Config, check_together
from pyv_npu.config.yaml_file import read_entries
from pyv_npu.errors import BadInputError, PyvNpuError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

RECORD = "record"
"""Section of a run.yaml that describes the run; `load` skips the section, and needs no preset for such a file."""

COMMAND_LINE, CALLER, ARGUMENT = "command line", "caller", "argument "
"""Origins of values given directly by the user; ARGUMENT is followed by the argument's name."""

QUEUE_SIZE = "queue_size"
"""Setting of `--queue-size`, an alias of the ring's length in loose mode, of the device queue's in tight mode."""


class Setting(NamedTuple):
    """Value of a key in a layer."""

    path: str
    value: object
    origin: str
    """Readable origin: `command line`, `my.yaml:3`, `preset rocket: SiFive E31 manual`."""


@dataclass(frozen=True)
class Effective:
    """Configuration, with the origin of every key that is not at its declared default."""

    config: Config
    origins: Mapping[str, str]

    def with_defaults(self, defaults: Mapping[str, object], origin: str) -> "Effective":
        """Return the configuration with `defaults` for keys that are not set; `origin`: their origin."""
        missing = {key: value for key, value in defaults.items() if key not in self.origins}
        return self.adopt(with_values(self.config, missing), origin) if missing else self

    def adopt(self, config: Config, origin: str) -> "Effective":
        """Return the configuration with the values of `config`; `origin`: origin of the values that differ."""
        previous = flatten(self.config)
        changed = {path: origin for path, value in flatten(config).items() if value != previous[path]}
        return Effective(config, {**self.origins, **changed})


def load(
    files: "Iterable[str | Path]" = (),
    preset: str | None = None,
    overrides: Mapping[str, object] | None = None,
    arguments: Mapping[str, str] | None = None,
) -> Effective:
    """Return the effective configuration: preset `soc-axi`, then each file, then `preset` (of timing, or the name of a
    shipped configuration) and `overrides`.

    `arguments`: key -> function argument that is its origin; other overrides are from the command line. The Py-V core
    implies its instruction set and, unless another preset is named, its preset; the preset implies that instruction
    set, too. BadInputError names file and line; UsageError for a wrong override.
    """
    settings: list[Setting] = []
    for name in files:
        settings += file_settings(find_file(name, "configs"), str(name))
    settings_of_caller = dict(overrides or {})
    base = settings_of_caller.pop("preset", preset)
    if base in data_files("configs"):
        settings += file_settings(find_file(str(base), "configs"), str(base))
    elif base is not None:
        try:
            settings += preset_settings(base, "", COMMAND_LINE)
        except BadInputError as error:
            raise UsageError(f"{COMMAND_LINE}: preset: {error}") from None
    names = {path: ARGUMENT + name for path, name in (arguments or {}).items()}
    settings += [Setting(path, value, names.get(path, COMMAND_LINE)) for path, value in settings_of_caller.items()]
    return resolve(_beneath(settings) + _settings_of_mode(settings))


def _settings_of_mode(settings: Sequence[Setting]) -> list[Setting]:
    """Replace QUEUE_SIZE by its key in the mode of the settings."""
    mode = next(
        (setting.value for setting in reversed(settings) if setting.path == "npu.mode"),
        keys_of(Config)["npu.mode"].default,
    )
    key = "npu.queue.size" if mode == "loose" else "npu.queue.tight_size"
    direct = [setting for setting in settings if setting.origin == COMMAND_LINE or setting.origin.startswith(ARGUMENT)]
    sizes = {str(setting.value): setting.path for setting in direct if setting.path in (QUEUE_SIZE, key)}
    if len(sizes) > 1:
        text = " and ".join(f"{path} = {value}" for value, path in sizes.items())
        raise UsageError(f"{text}: are one value in {mode} mode; drop one of them")
    return [setting._replace(path=key) if setting.path == QUEUE_SIZE else setting for setting in settings]


def check_isa(effective: Effective, name: str) -> None:
    """Raise UsageError when the user names instructions (by the option or argument `name`) for a loose run."""
    origin = effective.origins.get("core.custom", "")
    if effective.config.npu.mode == "loose" and (origin == COMMAND_LINE or origin.startswith(ARGUMENT)):
        raise UsageError(f"{name}: names instructions of tight mode, and npu.mode is loose; drop it or choose tight")


def _beneath(settings: Sequence[Setting]) -> list[Setting]:
    """Return the base layer: the default preset, and values that the Py-V core implies."""
    result = preset_settings(presets.DEFAULT, "", "default")
    values = {setting.path: setting.value for setting in settings}
    for path in ("core.engine", "preset"):
        if values.get(path) == presets.PYV:
            from pyv_ext import pyv_adapter

            origin = f"{path} = {presets.PYV}"
            result.append(Setting("core.isa", pyv_adapter.ISA, origin))
            if "preset" not in values:
                result += preset_settings(presets.PYV, "", origin)
            break
    return result


def with_values(config: Config, values: Mapping[str, object]) -> Config:
    """Return a configuration with some keys changed, for example `{"npu.mode": "loose"}`; UsageError for a wrong
    value."""
    if "preset" in values:
        raise UsageError("preset: is where values start from, not one of them; use load(preset=...)")
    return resolve([Setting(path, value, CALLER) for path, value in values.items()], Effective(config, {})).config


def resolve(settings: Sequence[Setting], base: Effective | None = None) -> Effective:
    """Apply settings in order to `base` (None: the declared defaults)."""
    keys = keys_of(Config)
    values = {} if base is None else flatten(base.config)
    origins = {} if base is None else dict(base.origins)
    for path, raw, origin in settings:
        try:
            key, item = _find(keys, path)
            if item is None:
                values[key.path] = key.convert(raw)
            else:
                values[key.path] = {**(values.get(key.path) or key.default), **key.convert({item: raw})}
        except PyvNpuError as error:
            raise _locate_error(error, origin) from None
        origins[key.path] = origin
    config = build(Config, values)
    check_together(config)
    return Effective(config, origins)


def _locate_error(error: PyvNpuError, origin: str) -> PyvNpuError:
    explicit = origin in (COMMAND_LINE, CALLER) or origin.startswith(ARGUMENT)
    kind = UsageError if explicit else BadInputError
    return kind(f"{origin}: {error}" if origin != CALLER else str(error))


def _find(keys: Mapping[str, Key], path: str) -> tuple[Key, str | None]:
    """Return the key at `path`, and the item's name if `path` names an item of a table."""
    if path in keys:
        return keys[path], None
    for key in keys.values():
        if item := key.item(path):
            return key, item
    below = [name for name in keys if name.startswith(path + ".")]
    for name in below:
        if "." not in name[len(path) + 1 :] and "section_value" in keys[name].rule:
            return keys[name], None
    if below:
        raise KeyRuleError(f"{path}: is a section, not a value; set one of its keys, for example {below[0]}")
    raise unknown(path, keys)


def file_settings(path: str, name: str) -> list[Setting]:
    """Return the layer of a YAML file: its preset first, unless the file is the complete record of a run. `name`: the
    file as named by the user."""
    entries = read_entries(path, sections_of(Config))
    preset = [entry for entry in entries if entry.path == "preset"]
    settings = [Setting(entry.path, entry.value, f"{name}:{entry.line}") for entry in entries]
    if any(entry.path == RECORD for entry in entries):
        return [setting for setting in settings if setting.path != RECORD]
    if not preset:
        return settings
    try:
        base = preset_settings(preset[0].value, os.path.dirname(path), f"{name}:{preset[0].line}")
    except BadInputError as error:
        raise BadInputError(f"{name}:{preset[0].line}: preset: {error}") from None
    return base + [setting for setting in settings if setting.path != "preset"]


def preset_settings(name: object, folder: "str | Path", origin: str) -> list[Setting]:
    """Return the layer of a preset; a user's preset is a YAML file, relative to `folder`. `origin`: of the choice."""
    if not isinstance(name, str):
        raise BadInputError(f"{name}: must be a name: {', '.join(presets.NAMES)}, or a file ending in .yaml")
    preset = presets.load(name, folder)
    label = Setting("preset", preset.name, origin)
    return [label] + [
        Setting(path, number.value, f"preset {preset.name}: {number.source}") for path, number in preset.values.items()
    ]
