"""The state of a machine as plain data (lists, numbers, strings, bytes), and the way back.

The machine's parts (`pyv_npu.snapshot.parts`) exist in the machine that is restored; they are filled in place. Every
other object that they refer to is data and is made anew, without running its constructor. A bound method among data,
such as the action of an event to come, is stored as object and name. Nothing else of code is stored: a state from an
untrusted file can put wrong values into the simulated machine, but runs nothing outside of it.

A state is a list of nodes [part or None, kind, header, content]; values inside of contents are encoded by `_Values`.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

from pyv_npu.errors import BadInputError, UsageError
from pyv_npu.snapshot.forms import FORMS, FUNCTIONS, NAMES, attributes, blank, is_method
from pyv_npu.snapshot.parts import Parts, is_frozen, is_wiring, kept

Node = list[Any]
WIRING, KEPT, INSTANCE = "wiring", "kept", "instance"


def take(parts: Parts) -> list[Node]:
    """The state of the parts. UsageError names what cannot be stored."""
    return _Writer(parts).run()


@contextmanager
def misfits_refused() -> Iterator[None]:
    """BadInputError for what goes wrong where a state does not fit; the machine may then be half restored."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, MemoryError) as error:
        found = " ".join(f"{type(error).__name__}: {error}".split())  # a name in it may have more than one line
        raise BadInputError(f"snapshot: its state does not fit this machine ({found}); take it again") from error


@misfits_refused()
def put(parts: Parts, nodes: list[Node]) -> None:
    """Bring the parts into a state that `take` gave, of this machine or an equal one."""
    _Reader(parts, nodes).run()


class _Writer:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._nodes: list[Node] = []
        self._objects: list[tuple[object, str]] = []
        """Each node's object, and where it was met first."""
        self._index: dict[int, int] = {}

    def run(self) -> list[Node]:
        for name, root in self._parts.roots.items():
            self._node(root, name)
        at = 0
        while at < len(self._objects):
            self._fill(self._nodes[at], *self._objects[at])
            at += 1
        return self._nodes

    def _node(self, value: object, where: str) -> int:
        index = self._index.get(id(value))
        if index is None:
            index = self._index[id(value)] = len(self._nodes)
            self._nodes.append([self._parts.name(value), INSTANCE, None, None])
            self._objects.append((value, where))
        return index

    def _fill(self, node: Node, value: object, where: str) -> None:
        is_part = node[0] is not None
        form = FORMS.get(type(value))
        protocol = None if form is not None else kept(value)
        if is_part and is_wiring(value):
            node[1] = WIRING
        elif form is not None:
            node[1:3] = type(value).__name__, form.header(value)
            node[3] = [self._value(item, f"{where}[{index}]") for index, item in enumerate(form.take(value))]
        elif protocol is not None and is_part:
            state = protocol.state()
            _check_plain(state, where)
            node[1:4] = KEPT, None, self._value(state, f"{where}.state()")
        elif self._parts.is_open(value):
            content = attributes(value)
            wiring = [name for name, item in content.items() if is_part and is_wiring(item)]
            for name in wiring:
                del content[name]
            node[2] = [_class_name(type(value)), wiring, *content]
            node[3] = [self._value(item, f"{where}.{name}") for name, item in content.items()]
        else:
            raise _cannot(where, value)

    def _value(self, value: Any, where: str) -> Any:
        kind = type(value)
        if value is None or kind in (int, str, bool, float):
            return value
        if kind is tuple:
            return ["tuple", *(self._value(item, where) for item in value)]
        if kind is bytes:
            return ["bytes", value]
        if isinstance(value, Enum):
            return ["enum", _class_name(kind), value.value]
        name = self._parts.name(value)
        if name is not None and self._parts.is_opaque(value):
            return ["part", name]
        if isinstance(value, tuple):
            return ["named", _class_name(kind), *(self._value(item, where) for item in value)]
        if is_method(value):
            return ["method", self._value(value.__self__, where), value.__name__]
        if isinstance(value, frozenset):
            return ["frozenset", *(self._value(item, where) for item in sorted(value))]
        if isinstance(value, np.generic):
            return ["scalar", value.dtype.name, value.tobytes()]
        if is_frozen(value):
            return ["frozen", _class_name(kind), *(self._value(getattr(value, f.name), where) for f in fields(value))]
        if callable(value):
            raise _cannot(where, value)
        return ["node", self._node(value, where)]


class _Reader:
    def __init__(self, parts: Parts, nodes: list[Node]) -> None:
        self._parts = parts
        self._nodes = nodes
        self._objects: list[Any] = []

    def run(self) -> None:
        self._objects = [self._object(*node[:3]) for node in self._nodes]
        for node, value in zip(self._nodes, self._objects, strict=True):
            if node[1] not in (WIRING, KEPT):
                self._fill(value, *node[1:])
        for node, value in zip(self._nodes, self._objects, strict=True):
            if node[1] == KEPT:
                value.load_state(self._value(node[3]))

    def _object(self, part: str | None, kind: str, header: Any) -> Any:
        if part is not None:
            return self._parts.objects[part]
        if kind == INSTANCE:
            return blank(self._class(header[0]))
        return FORMS[NAMES[kind]].make(header)

    def _fill(self, value: Any, kind: str, header: Any, content: Any) -> None:
        items = [self._value(item) for item in content]
        if kind == INSTANCE:
            _, wiring, *names = header
            if not all(name.isidentifier() and not name.startswith("__") for name in names):
                raise ValueError(f"{names} are not attributes")
            ours = attributes(value)
            for name, item in ours.items():
                if name not in names and name not in wiring and not is_wiring(item):
                    delattr(value, name)
            for name, item in zip(names, items, strict=True):
                if not is_wiring(ours.get(name)):
                    object.__setattr__(value, name, item)
        elif not is_wiring(value):
            FORMS[type(value)].put(value, items)

    def _value(self, code: Any) -> Any:
        if not isinstance(code, list):
            return code
        kind, *rest = code
        if kind == "node":
            return self._objects[rest[0]]
        if kind == "bytes":
            return rest[0]
        if kind == "part":
            return self._parts.objects[rest[0]]
        if kind == "tuple":
            return tuple(map(self._value, rest))
        if kind == "frozenset":
            return frozenset(map(self._value, rest))
        if kind == "scalar":
            return np.frombuffer(rest[1], np.dtype(rest[0]))[0]
        if kind == "method":
            return self._method(self._value(rest[0]), rest[1])
        cls = self._class(rest[0])
        if kind == "enum" and issubclass(cls, Enum):
            return cls(rest[1])
        values = [self._value(item) for item in rest[1:]]
        if kind == "named" and issubclass(cls, tuple):
            return tuple.__new__(cls, values)
        if kind == "frozen" and is_dataclass(cls):
            frozen = blank(cls)
            for field, item in zip(fields(cls), values, strict=True):
                object.__setattr__(frozen, field.name, item)
            return frozen
        raise ValueError(f"no value of kind {kind!r}")

    def _method(self, owner: Any, name: str) -> Any:
        if not isinstance(getattr(type(owner), name, None), FUNCTIONS) or not self._parts.is_open(owner):
            raise ValueError(f"{type(owner).__name__}.{name} is no method of a part of the machine")
        return getattr(owner, name)

    def _class(self, name: str) -> type:
        """A class of ours that is in use already: nothing is imported for a file."""
        module, _, path = name.partition(":")
        found: Any = sys.modules.get(module) if module.split(".")[0] in self._parts.packages else None
        for step in path.split("."):
            found = getattr(found, "__dict__", {}).get(step)
        if not isinstance(found, type) or found.__module__ != module:
            raise ValueError(f"{name} is no class of ours")
        return found


def _class_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _check_plain(state: object, where: str) -> None:
    """UsageError unless a `state()` gave data that means the same in another process."""
    if isinstance(state, dict):
        for item in (*state.keys(), *state.values()):
            _check_plain(item, where)
    elif isinstance(state, list | tuple):
        for item in state:
            _check_plain(item, where)
    elif type(state) not in (int, str, bool, float, bytes, type(None)):
        raise UsageError(
            f"{where}: state() gave a {type(state).__name__}; it may hold numbers, strings, bytes, None, and lists, "
            "tuples and dicts of these"
        )


def _cannot(where: str, value: object) -> UsageError:
    return UsageError(
        f"{where} is a {type(value).__qualname__}, which no snapshot can hold; give the class that owns it "
        "state() and load_state()"
    )
