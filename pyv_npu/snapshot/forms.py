"""The kinds of objects that have a content which changes: how it is taken out and put back.

A content is a flat list of values. An object is made empty first and filled when all objects exist, so that objects
may refer to each other in circles.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from types import BuiltinMethodType, FunctionType, MethodDescriptorType, MethodType
from typing import Any, NamedTuple, TypeGuard

import numpy as np


class Form(NamedTuple):
    """`header(object)` is what `make(header)` needs; `put(object, take(object))` restores the content in place."""

    header: Callable[[Any], Any]
    make: Callable[[Any], Any]
    take: Callable[[Any], list[Any]]
    put: Callable[[Any, list[Any]], None]


def _no_header(value: object) -> None:
    return None


def _put_list(target: list[Any], values: list[Any]) -> None:
    target[:] = values


def _put_collection(target: Any, values: list[Any]) -> None:
    target.clear()
    target.extend(values)


def _put_set(target: set[Any], values: list[Any]) -> None:
    target.clear()
    target.update(values)


def _take_mapping(value: Mapping[Any, Any]) -> list[Any]:
    return [part for item in value.items() for part in item]


def _put_mapping(target: dict[Any, Any], values: list[Any]) -> None:
    target.clear()
    for key, value in zip(values[::2], values[1::2], strict=True):
        target[key] = value


def _take_buffer(value: Any) -> list[Any]:
    return [bytes(value)]


def _put_bytearray(target: bytearray, values: list[Any]) -> None:
    target[:] = values[0]


def _put_view(target: memoryview, values: list[Any]) -> None:
    target.cast("B")[:] = values[0]


def _array_header(value: np.ndarray[Any, Any]) -> list[Any]:
    return [value.dtype.name, *value.shape]


def _make_array(header: list[Any]) -> np.ndarray[Any, Any]:
    name, *shape = header
    return np.zeros(shape, np.dtype(name))


def _take_array(value: np.ndarray[Any, Any]) -> list[Any]:
    return [value.tobytes()]


def _put_array(target: np.ndarray[Any, Any], values: list[Any]) -> None:
    target[...] = np.frombuffer(values[0], target.dtype).reshape(target.shape)


def _no_view(header: Any) -> Any:
    raise TypeError("a view of memory belongs to a part and is not made anew")


FORMS: dict[type, Form] = {
    list: Form(_no_header, lambda _: [], list, _put_list),
    deque: Form(lambda value: value.maxlen, lambda maxlen: deque(maxlen=maxlen), list, _put_collection),
    set: Form(_no_header, lambda _: set(), sorted, _put_set),
    dict: Form(_no_header, lambda _: {}, _take_mapping, _put_mapping),
    OrderedDict: Form(_no_header, lambda _: OrderedDict(), _take_mapping, _put_mapping),
    Counter: Form(_no_header, lambda _: Counter(), _take_mapping, _put_mapping),
    bytearray: Form(_no_header, lambda _: bytearray(), _take_buffer, _put_bytearray),
    memoryview: Form(_no_header, _no_view, _take_buffer, _put_view),
    np.ndarray: Form(_array_header, _make_array, _take_array, _put_array),
}
NAMES = {kind.__name__: kind for kind in FORMS}


FUNCTIONS = (FunctionType, MethodDescriptorType)
"""What a class holds as its methods, in Python and compiled."""


def is_method(value: object) -> TypeGuard[MethodType]:
    """Whether this is a method, in Python or compiled, bound to an instance."""
    if isinstance(value, BuiltinMethodType):
        return hasattr(type(value.__self__), "__mypyc_attrs__")
    return type(value) is MethodType


def blank(cls: Any) -> Any:
    """An instance of a class whose constructor has not run."""
    return cls.__new__(cls)


def attributes(instance: object) -> dict[str, Any]:
    """The attributes of an instance with `__dict__`, slots, fields of a compiled class, or several of them, by name."""
    found = {
        name: getattr(instance, name)
        for kind in type(instance).__mro__
        for name in _slots(kind)
        if hasattr(instance, name)
    }
    return dict(sorted((found | getattr(instance, "__dict__", {})).items()))


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__mypyc_attrs__") or kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))
