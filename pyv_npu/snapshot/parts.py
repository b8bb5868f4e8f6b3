"""The parts of a machine: every object that its constructors made, under a name that other such machines have too."""

import re
import struct
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from fractions import Fraction
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from pyv_npu.snapshot.forms import attributes, is_method

CONSTANTS = (Fraction, range, re.Pattern, struct.Struct, np.dtype)
"""Immutable objects that are not worth taking apart: they are named where the constructors made them."""
PLAIN = (int, float, str, bytes, type(None), Enum, np.generic)


class Kept(NamedTuple):
    """What a user's class offers instead of its attributes: `Stateful` of `pyv_ext.protocols`."""

    state: Any
    load_state: Any


def kept(instance: object) -> Kept | None:
    """The two methods of the protocol, None where the class does not have them."""
    state, load = getattr(instance, "state", None), getattr(instance, "load_state", None)
    return Kept(state, load) if is_method(state) and is_method(load) else None


def is_frozen(value: object) -> bool:
    """Whether this is an instance of a frozen dataclass: a value, not an object that changes."""
    return is_dataclass(value) and bool(getattr(type(value), "__dataclass_params__").frozen)  # noqa: B009 - for mypy


def is_wiring(value: object) -> bool:
    """Something to be called, or a container of nothing else: how parts are connected, which is not a state."""
    if callable(value) or isinstance(value, ModuleType):
        return True
    if isinstance(value, dict):
        return bool(value) and all(map(is_wiring, value.values()))
    return isinstance(value, list | tuple) and bool(value) and all(map(is_wiring, value))


class Parts:
    """Everything that can be reached from `roots` now. The walk is deterministic, so equal machines get equal names.

    What is in `without` has no state of its own; it can be referred to, and is not looked into. `packages` are those
    whose classes hold states as attributes; of other classes only the roots themselves may.
    """

    def __init__(self, roots: Mapping[str, object], without: Collection[object], packages: Collection[str]) -> None:
        self.roots = dict(roots)
        self.packages = frozenset(packages)
        self.objects: dict[str, object] = {}
        self._without = {id(value) for value in without}
        self._root_ids = {id(value) for value in roots.values()}
        self._names: dict[int, str] = {}
        for name, root in roots.items():
            self._add(name, root)
        for name, root in roots.items():
            self._walk(name, root)

    def name(self, value: object) -> str | None:
        """The name of a part, None for anything else."""
        name = self._names.get(id(value))
        return name if name is not None and self.objects[name] is value else None

    def shape(self) -> list[tuple[str, str]]:
        """(name, class) of every part that is no code: equal in machines that a snapshot fits."""
        return [(name, type(value).__qualname__) for name, value in self.objects.items() if not callable(value)]

    def is_opaque(self, value: object) -> bool:
        """Whether a part is referred to and never looked into."""
        return id(value) in self._without or callable(value) or isinstance(value, CONSTANTS) or is_frozen(value)

    def is_open(self, value: object) -> bool:
        """Whether the attributes of an instance are its state."""
        return type(value).__module__.split(".")[0] in self.packages or id(value) in self._root_ids

    def _add(self, name: str, value: object) -> None:
        self.objects[name] = value
        self._names[id(value)] = name

    def _walk(self, name: str, value: object) -> None:
        """Name everything that is reached from `value` and has no name yet, depth first."""
        waiting = [(name, value)]
        while waiting:
            name, value = waiting.pop()
            for label, child in reversed(list(self._children(value))):
                if isinstance(child, tuple | frozenset):
                    waiting.append((name + label, child))
                elif not isinstance(child, PLAIN) and id(child) not in self._names:
                    self._add(name + label, child)
                    waiting.append((name + label, child))

    def _children(self, value: object) -> Iterator[tuple[str, object]]:
        if self.is_opaque(value) or isinstance(value, _BUFFERS):
            return
        if isinstance(value, dict):
            yield from ((f"[{key!r}]", child) for key, child in value.items())
        elif isinstance(value, tuple | list | deque | set):
            yield from ((f"[{index}]", child) for index, child in enumerate(value))
        elif kept(value) is None and self.is_open(value):
            yield from ((f".{name}", child) for name, child in attributes(value).items())


_BUFFERS = (bytearray, memoryview, np.ndarray)
