"""Conversion between a tree of dataclasses and a flat table of keys."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

from pyv_npu.config.key import Key, KeyForm, Value
from pyv_npu.errors import BadInputError, did_you_mean

T = TypeVar("T")


@cache
def keys_of(cls: type) -> dict[str, Key]:
    """Return every leaf of a tree of dataclasses by its dotted path, in the order of declaration."""
    return {key.path: key for key in _keys(cls, "")}


def _keys(cls: type, prefix: str) -> Iterator[Key]:
    for item in fields(cls):
        path = prefix + item.name
        kind: Any = item.type
        if _is_section(kind):
            yield from _keys(kind, path + ".")
        else:
            yield Key(path, KeyForm.of(kind), _default(item), item.metadata)


@cache
def sections_of(cls: type) -> frozenset[str]:
    """Return the dotted paths of sections."""
    return frozenset(path[:at] for path in keys_of(cls) for at, letter in enumerate(path) if letter == ".")


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and is_dataclass(kind)


def _default(item: "Field[Any]") -> Value:
    return item.default_factory() if item.default_factory is not MISSING else item.default


def build(cls: type[T], values: Mapping[str, Value], prefix: str = "") -> T:
    """Return an instance of `cls` with defaults replaced by `values` (dotted path -> converted value)."""
    arguments: dict[str, Any] = {}
    for item in fields(cls):  # type: ignore[arg-type]
        path, kind = prefix + item.name, item.type
        if _is_section(kind):
            arguments[item.name] = build(kind, values, path + ".")  # type: ignore[arg-type]
        elif path in values:
            arguments[item.name] = values[path]
    return cls(**arguments)


def flatten(instance: Any, prefix: str = "") -> dict[str, Value]:
    """Return the value of every leaf by its dotted path: the inverse of `build`."""
    result: dict[str, Value] = {}
    for item in fields(instance):
        value = getattr(instance, item.name)
        if is_dataclass(value):
            result.update(flatten(value, f"{prefix}{item.name}."))
        else:
            result[prefix + item.name] = value
    return result


def unknown(path: str, keys: Iterable[str], listed_by: str = "--print-config lists every key") -> BadInputError:
    """Return the error for an unknown key, with the most similar key."""
    names = list(keys)
    last = path.rsplit(".", 1)[-1]
    equal = [f"; did you mean {name}?" for name in names if name.rsplit(".", 1)[-1] == last]
    hint = did_you_mean(path, names) or next(iter(equal), f"; {listed_by}")
    return BadInputError(f"{path}: unknown key{hint}")
