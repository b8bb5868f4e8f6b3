"""Records of built-in devices: each has one of its own until it is placed in a machine."""

import ctypes
from typing import Any, TypeVar

from pyv_native.arena import Arena

Record = TypeVar("Record")


def standing(record: type[Record]) -> Record:
    """A record by itself, in its default state."""
    view: Record = Arena(record).root
    return view


def moved(source: Record, target: Record) -> Record:
    """The target, with the content of the source."""
    old: Any = source
    new: Any = target
    ctypes.memmove(ctypes.addressof(new), ctypes.addressof(old), ctypes.sizeof(old))
    return target
