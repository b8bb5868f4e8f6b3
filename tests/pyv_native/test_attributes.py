"""Attributes of Python objects, found in memory."""

import ctypes
from typing import Any

import pytest

from pyv_native.attributes import slot_of


class Held:
    __slots__ = "__dict__", "number", "other"

    def __init__(self) -> None:
        self.number: Any = 1 << 40
        self.loose = 5

    @property
    def made(self) -> int:
        return 5


class Derived(Held):
    __slots__ = ("more",)

    def __init__(self) -> None:
        super().__init__()
        self.more: Any = "text"


def in_memory(owner: object, name: str) -> object:
    return ctypes.cast(ctypes.c_void_p.from_address(slot_of(owner, name)).value or 0, ctypes.py_object).value


@pytest.mark.parametrize("kind", [Held, Derived])
def test_what_is_in_the_slot_is_the_attribute(kind: type[Held]) -> None:
    owner = kind()
    for value in (7, None, "text", 1 << 70, owner.number):
        owner.number = value
        assert in_memory(owner, "number") is value
    assert not isinstance(owner, Derived) or in_memory(owner, "more") == "text"


@pytest.mark.parametrize("name", ["loose", "made", "__dict__", "missing"])
def test_other_attributes_have_no_slot(name: str) -> None:
    assert slot_of(Held(), name) == 0


def test_a_slot_that_holds_nothing_is_refused() -> None:
    with pytest.raises(AttributeError):
        slot_of(Held(), "other")


def test_members_of_other_kinds_are_no_slots() -> None:
    """Attributes that are numbers of C."""
    assert slot_of(slice(1), "start") == 0
    assert slot_of(lambda: None, "__closure__") == 0
