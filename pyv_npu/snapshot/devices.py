"""Snapshot state of users' devices and custom instructions: by their own methods, or by their attributes."""

import re
import struct
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import is_dataclass
from enum import Enum
from fractions import Fraction
from types import ModuleType
from typing import Any

import numpy as np

from pyv_ext.protocols import CustomInstruction, Device
from pyv_native.state import StateError, Stateful, data, inside, quote, sequence
from pyv_npu.errors import UsageError

CONSTANTS = (CustomInstruction, Fraction, range, re.Pattern, struct.Struct, np.dtype)
"""Immutable values that the constructor of a device may keep."""
PLAIN = (int, str, bool, float, bytes, type(None))
CONTAINERS: dict[str, type] = {
    kind.__name__: kind for kind in (list, tuple, set, frozenset, deque, dict, Counter, OrderedDict)
}
MAPPINGS = (dict, Counter, OrderedDict)
ORDERED = (list, tuple, deque)


def parts_of(
    devices: Iterable[Device], instructions: Iterable[CustomInstruction], wiring: Collection[object]
) -> dict[str, Stateful]:
    """Return the snapshot parts of a user's devices and instructions, by name; see `part_of`."""
    owners: dict[str, Any] = {f"device {device.name}": device for device in devices}
    for instruction in instructions:
        owner = getattr(instruction.handler, "__self__", None)
        if owner is not None and not isinstance(owner, ModuleType):
            owners[f"instruction {instruction.name}"] = owner
    return {label: part_of(owner, label, wiring) for label, owner in owners.items()}


def part_of(owner: Any, label: str, wiring: Collection[object]) -> Stateful:
    """Return the snapshot part of a user's object. `wiring`: parts of the machine that it may reference."""
    if _has_protocol(owner):
        return _ByProtocol(owner, label)
    return _ByAttributes(owner, label, wiring)


def _has_protocol(value: object) -> bool:
    """Check whether the class of a value defines `pyv_ext.protocols.Stateful` for its own attributes.

    Methods that a subclass inherits from a device of `pyv_ext` do not cover the attributes it adds.
    """
    kind = type(value)
    owners = [cls for cls in kind.__mro__ if "state" in cls.__dict__ or "load_state" in cls.__dict__]
    methods = all(callable(getattr(kind, name, None)) for name in ("state", "load_state"))
    return methods and (owners[0] is kind or not owners[0].__module__.startswith("pyv_ext."))


class _ByProtocol:
    """State of an object by its `state` and `load_state`; their data may contain tuples and keys of any plain type."""

    def __init__(self, owner: Any, label: str) -> None:
        self._owner = owner
        self._label = label

    def state(self) -> Any:
        state = self._owner.state()
        _check_plain(state, self._label)
        return encode(state, self._label)

    def load_state(self, state: Any) -> None:
        decoded = decode(state)
        try:
            self._owner.load_state(decoded)
        except Exception as error:  # the user's class may raise anything on data it did not write
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise StateError(f"load_state() failed with {text}") from error


class _ByAttributes:
    """State of an object by its attributes, except those that hold functions or parts of the machine."""

    def __init__(self, owner: Any, label: str, wiring: Collection[object]) -> None:
        self._owner = owner
        self._label = label
        self._wiring = {id(value) for value in wiring}
        self._constants = {name: value for name, value in self._attributes() if _is_constant(value)}

    def _attributes(self) -> Iterable[tuple[str, Any]]:
        """Return name and value of each attribute, in `__dict__` or slots."""
        slots = [name for cls in type(self._owner).__mro__ for name in _names(cls.__dict__.get("__slots__", ()))]
        names = {*slots, *getattr(self._owner, "__dict__", ())} - {"__dict__", "__weakref__"}
        return [(name, getattr(self._owner, name)) for name in sorted(names) if hasattr(self._owner, name)]

    def _attribute_values(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in self._attributes()
            if id(value) not in self._wiring and not is_code(value) and self._constants.get(name, self) is not value
        }

    def state(self) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, value in self._attribute_values().items():
            label = f"{self._label}.{name}"
            if _has_protocol(value) and not isinstance(value, type):
                result[name] = ["part", _ByProtocol(value, label).state()]
            else:
                result[name] = encode(value, label)
        return result

    def load_state(self, state: Any) -> None:
        if type(state) is not dict:
            raise StateError(f"{quote(state)} is no dict")
        own_state = self._attribute_values()
        for name in own_state.keys() - state.keys():
            delattr(self._owner, name)
        for name, item in state.items():
            with inside(name):
                current = getattr(self._owner, name, None)
                if name not in own_state and (
                    hasattr(self._owner, name) or not name.isidentifier() or name[:2] == "__"
                ):
                    raise StateError("is no attribute that a snapshot keeps")
                if type(item) is list and item[:1] == ["part"]:
                    if not _has_protocol(current):
                        raise StateError("has no load_state()")
                    _ByProtocol(current, name).load_state(sequence(item, 2)[1])
                    continue
                restored = decode(item)
                if type(current) is not type(restored) or not _fill(current, restored):
                    object.__setattr__(self._owner, name, restored)


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def is_code(value: object) -> bool:
    """Check whether a value is a callable or a container of callables: wiring between objects, not state."""
    if callable(value) or isinstance(value, ModuleType):
        return True
    if isinstance(value, dict):
        return bool(value) and all(map(is_code, value.values()))
    return isinstance(value, list | tuple) and bool(value) and all(map(is_code, value))


def _is_constant(value: object) -> bool:
    frozen = is_dataclass(value) and bool(getattr(type(value), "__dataclass_params__").frozen)  # noqa: B009 - for mypy
    return frozen or isinstance(value, CONSTANTS)


def _fill(target: Any, value: Any) -> bool:
    """Replace a container's content in place, so that all references see it. Return False if it is no container."""
    if isinstance(target, list | bytearray):
        target[:] = value
    elif isinstance(target, dict | set) or (isinstance(target, deque) and target.maxlen == value.maxlen):
        target.clear()
        target.extend(value) if isinstance(target, deque) else target.update(value)
    elif (
        isinstance(target, np.ndarray)
        and target.shape == value.shape
        and target.dtype == value.dtype
        and target.flags.writeable
    ):
        target[...] = value
    else:
        return False
    return True


# -- values ------------------------------------------------------------------------------------------------------------


def encode(value: Any, label: str) -> Any:
    """Encode a value as numbers, strings, bytes, None and lists. UsageError for a value that cannot be encoded."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if isinstance(value, Enum):
        return ["enum", _class_name(kind), encode(value.value, label)]
    if kind is bytearray:
        return ["bytearray", bytes(value)]
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        return [
            "array" if isinstance(value, np.ndarray) else "scalar",
            value.dtype.name,
            [*value.shape],
            value.tobytes(),
        ]
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return ["named", _class_name(kind), *(encode(item, label) for item in value)]
    if kind not in CONTAINERS.values():
        raise UsageError(
            f"{label} is a {kind.__qualname__}, which no snapshot can hold; give the class that owns it state() and "
            "load_state()"
        )
    items: Iterable[Any] = value
    if kind in MAPPINGS:
        items = [part for item in value.items() for part in item]
    elif kind not in ORDERED:
        items = sorted(value)
    head = [kind.__name__, value.maxlen] if isinstance(value, deque) else [kind.__name__]
    return head + [encode(item, f"{label}[{index}]") for index, item in enumerate(items)]


def decode(state: Any) -> Any:
    """Decode the result of `encode`; StateError for anything else."""
    if type(state) in PLAIN:
        return state
    try:
        name, *rest = sequence(state)
        if name == "enum":
            return _class_of(rest[0], lambda cls: issubclass(cls, Enum))(decode(rest[1]))
        if name == "named":
            tuple_class = _class_of(rest[0], lambda cls: issubclass(cls, tuple) and hasattr(cls, "_fields"))
            if len(rest) != 1 + len(tuple_class._fields):
                raise StateError(f"{len(rest) - 1} fields for a {tuple_class.__name__}")
            return tuple.__new__(tuple_class, map(decode, rest[1:]))
        if name == "bytearray":
            return bytearray(data(rest[0]))
        if name in ("array", "scalar"):
            array = np.frombuffer(data(rest[2]), np.dtype(rest[0])).reshape(rest[1]).copy()
            return array if name == "array" else array[()]
        kind: Any = CONTAINERS[name]
        if kind is deque:
            return deque(map(decode, rest[1:]), rest[0])
        items = [decode(item) for item in rest]
        return kind(dict(zip(items[::2], items[1::2], strict=True))) if kind in MAPPINGS else kind(items)
    except StateError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, MemoryError):
        raise StateError(f"{quote(state)} is no value") from None


def _class_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _class_of(name: object, fits: Callable[[type], bool]) -> Any:
    """Return a class of a module that is already imported: reading a file imports nothing."""
    module, _, path = str(name).partition(":")
    value: Any = sys.modules.get(module)
    for step in path.split("."):
        value = getattr(value, "__dict__", {}).get(step)
    if not isinstance(value, type) or value.__module__ != module or not fits(value):
        raise StateError(f"{quote(name)} is no class of a value")
    return value


def _check_plain(state: object, label: str) -> None:
    """Raise UsageError unless the data of a `state()` means the same in another process."""
    if isinstance(state, dict):
        for item in (*state.keys(), *state.values()):
            _check_plain(item, label)
    elif isinstance(state, list | tuple):
        for item in state:
            _check_plain(item, label)
    elif type(state) not in PLAIN:
        raise UsageError(
            f"{label}: state() gave a {type(state).__name__}; it may hold numbers, strings, bytes, None, and lists, "
            "tuples and dicts of these"
        )
