"""The keys of a tree of dataclasses, and the one place where a value is checked against its key's rule."""

import difflib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin

from pyv_npu.errors import BadInputError

T = TypeVar("T")
Value = Any  # int, bool, str, None, a tuple of them, or a mapping of names to int


class RuleError(BadInputError):
    """A value breaks its key's rule. The message does not say where the value came from: the caller does."""


@dataclass(frozen=True)
class Key:
    """One leaf: its dotted path, type, default and rule."""

    path: str
    type: Any
    default: Value
    metadata: Mapping[str, Any]

    @property
    def unit(self) -> str:
        return str(self.metadata.get("unit", ""))

    def convert(self, raw: object) -> Value:
        """`raw` (from YAML, a command line or Python) as this key's type; RuleError where it breaks the rule."""
        if NoneType in get_args(self.type) and (raw is None or (isinstance(raw, str) and raw.lower() == "none")):
            return None
        return self._convert(self.type, raw, raw)

    def _convert(self, kind: Any, raw: object, whole: object) -> Value:
        origin, parts = get_origin(kind), get_args(kind)
        if NoneType in parts:
            return self._convert(next(part for part in parts if part is not NoneType), raw, whole)
        if origin is tuple:
            items = (
                [item.strip() for item in raw.strip("[] ").split(",") if item.strip()] if isinstance(raw, str) else raw
            )
            if not isinstance(items, list | tuple) or (parts[-1] is not ... and len(items) != len(parts)):
                raise self._error(whole, self._expected(kind))
            if len(set(map(repr, items))) != len(items) and parts[-1] is ...:
                raise self._error(whole, "must not name an entry twice")
            return tuple(self._convert(parts[0], item, whole) for item in items)
        if origin is not None:  # Mapping[str, int]
            if not isinstance(raw, Mapping) or not all(isinstance(name, str) for name in raw):
                raise self._error(whole, self._expected(kind))
            return {name: Key(f"{self.path}.{name}", parts[1], None, self.metadata).convert(raw[name]) for name in raw}
        return self._check(self._scalar(kind, raw, whole), whole)

    def _scalar(self, kind: Any, raw: object, whole: object) -> Value:
        if kind is bool and isinstance(raw, str) and raw.lower() in ("true", "false"):
            return raw.lower() == "true"
        if kind is int and isinstance(raw, str):
            try:
                return int(raw, 0)
            except ValueError:
                raise self._error(whole, self._expected(kind)) from None
        if type(raw) is not kind:
            raise self._error(whole, self._expected(kind))
        return raw

    def _check(self, value: Value, whole: object) -> Value:
        rule = self.metadata
        if isinstance(value, str):
            value = rule.get("aliases", {}).get(value, value)
        if "choices" in rule and value not in rule["choices"]:
            near = difflib.get_close_matches(str(value), rule["choices"], 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise self._error(whole, f"must be one of {', '.join(rule['choices'])}{hint}")
        if value in rule.get("unavailable", ()):
            raise self._error(whole, f"{rule['unavailable'][value]}; use {self.default}")
        if isinstance(value, int) and not self._in_range(value):
            raise self._error(whole, self._expected(self.type if NoneType in get_args(self.type) else int))
        return value

    def _in_range(self, value: int) -> bool:
        rule = self.metadata
        return (
            rule.get("min", value) <= value <= rule.get("max", value)
            and value % rule.get("multiple_of", 1) == 0
            and (not rule.get("power_of_two") or value & (value - 1) == 0)
        )

    def _expected(self, kind: Any) -> str:
        """The rule in words, with the default as the remedy."""
        origin, parts = get_origin(kind), get_args(kind)
        if "choices" in self.metadata and origin is None:
            return f"must be one of {', '.join(self.metadata['choices'])}"
        if NoneType in parts:
            return self._expected(next(part for part in parts if part is not NoneType)) + " or none"
        if origin is tuple:
            count = "" if parts[-1] is ... else f"{len(parts)} "
            example = ", ".join(map(str, self.default))
            return f"must be a list of {count}{'words' if parts[0] is str else 'integers'}, for example [{example}]"
        if origin is not None:
            return f"must be a table of names and integers{self._range()}, for example {{n: 1000}}"
        if kind is int:
            default = "" if self.default is None or isinstance(self.default, dict) else f" (default {self.show()})"
            return f"must be an integer{self._range()}{default}"
        return {bool: "must be true or false", str: "must be a word"}[kind]

    def _range(self) -> str:
        rule, text = self.metadata, ""
        low, high = rule.get("min"), rule.get("max")
        if low is not None and high is not None:
            text = f" from {self.show(low)} to {self.show(high)}"
        elif low is not None:
            text = f" of at least {self.show(low)}"
        if rule.get("power_of_two"):
            text += ", a power of two"
        if rule.get("multiple_of", 1) > 1:
            text += f", a multiple of {self.show(rule['multiple_of'])}"
        return text

    def show(self, value: object = MISSING) -> str:
        """A value (the default when none is given) as people write it."""
        value = self.default if value is MISSING else value
        if isinstance(value, int) and not isinstance(value, bool) and self.unit == "address":
            return f"{value:#x}"
        if isinstance(value, bool) or value is None:
            return {True: "true", False: "false", None: "none"}[value]
        return str(value)

    def _error(self, raw: object, rule: str) -> RuleError:
        return RuleError(f"{self.path} = {self.show(raw)}: {rule}")


@cache
def keys_of(cls: type) -> dict[str, Key]:
    """Every leaf of a tree of dataclasses by its dotted path, in the order of declaration."""
    result: dict[str, Key] = {}
    hints = typing.get_type_hints(cls)
    for item in fields(cls):
        kind = hints[item.name]
        if _is_section(kind):
            for key in keys_of(kind).values():
                path = f"{item.name}.{key.path}"
                result[path] = Key(path, key.type, key.default, key.metadata)
        else:
            result[item.name] = Key(item.name, kind, _default(item), item.metadata)
    return result


@cache
def sections_of(cls: type) -> frozenset[str]:
    """Every dotted path that holds keys, not a value."""
    return frozenset(path[:at] for path in keys_of(cls) for at, letter in enumerate(path) if letter == ".")


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and is_dataclass(kind)


def _default(item: Field[Any]) -> Value:
    return item.default_factory() if item.default_factory is not MISSING else item.default


def build(cls: type[T], values: Mapping[str, Value], prefix: str = "") -> T:
    """An instance of `cls` in which the keys of `values` (dotted paths, already converted) replace the defaults."""
    hints = typing.get_type_hints(cls)
    arguments: dict[str, Any] = {}
    for item in fields(cls):  # type: ignore[arg-type]
        path = prefix + item.name
        if _is_section(hints[item.name]):
            arguments[item.name] = build(hints[item.name], values, path + ".")
        elif path in values:
            arguments[item.name] = values[path]
    return cls(**arguments)


def flatten(instance: Any, prefix: str = "") -> dict[str, Value]:
    """The value of every leaf by its dotted path: the inverse of `build`."""
    result: dict[str, Value] = {}
    for item in fields(instance):
        value = getattr(instance, item.name)
        if is_dataclass(value):
            result.update(flatten(value, f"{prefix}{item.name}."))
        else:
            result[prefix + item.name] = value
    return result


def unknown(path: str, known: Iterable[str], listed_by: str = "--print-config lists every key") -> BadInputError:
    """The error for a key that does not exist, with the nearest one that does."""
    return BadInputError(f"{path}: unknown key; {_nearest(path, list(known)) or listed_by}")


def _nearest(path: str, names: list[str]) -> str:
    last = path.rsplit(".", 1)[-1]
    near = difflib.get_close_matches(path, names, 1) or [name for name in names if name.rsplit(".", 1)[-1] == last]
    return f"did you mean {near[0]}?" if near else ""
