"""`pyv_state.frozen` makes what `dataclasses.dataclass(frozen=True)` makes, without writing code for each class."""

import dataclasses
import pickle
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import pytest

from pyv_npu.config import Config, load
from pyv_state import frozen


def declared(module: ModuleType) -> Any:
    field: Callable[..., Any] = module.field

    @module.dataclass(frozen=True)
    class Point:
        shared: ClassVar[int] = 3
        x: int
        y: int = 2
        names: list[str] = field(default_factory=list, compare=False)
        hidden: str = field(default="h", repr=False)

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("x")

    return Point


OURS, STANDARD = declared(frozen), declared(dataclasses)


@pytest.mark.parametrize(
    ("given", "named"), [((1,), {}), ((1, 3), {}), ((), {"x": 1, "hidden": "z"}), ((1,), {"names": ["a"]})]
)
def test_instances_are_as_those_of_the_standard_decorator(given: tuple[Any, ...], named: dict[str, Any]) -> None:
    ours, standard = OURS(*given, **named), STANDARD(*given, **named)
    assert dataclasses.asdict(ours) == dataclasses.asdict(standard)
    assert repr(ours) == repr(standard)
    again = OURS(*given, **named)
    assert ours == again and hash(ours) == hash(again)
    assert ours != dataclasses.replace(ours, y=9) != standard
    assert ours == dataclasses.replace(ours, names=["other"])
    assert dataclasses.replace(ours, y=9).y == 9
    assert dataclasses.replace(ours, y=9) == frozen.replace(ours, y=9)


@pytest.mark.parametrize(
    ("given", "named"), [((), {}), ((1, 2, [], "h", 5), {}), ((1,), {"x": 1}), ((1,), {"other": 1}), ((-1,), {})]
)
def test_what_the_standard_decorator_refuses_is_refused(given: tuple[Any, ...], named: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as standard:
        STANDARD(*given, **named)
    with pytest.raises(standard.type):
        OURS(*given, **named)


def test_instances_cannot_be_changed_and_classes_can_be_derived() -> None:
    point = OURS(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        point.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        del point.x

    @dataclasses.dataclass(frozen=True)
    class Further(OURS):  # type: ignore[misc, valid-type]
        z: int = 7

    assert Further(1).z == 7 and Further(1).y == 2
    assert frozen.replace(Further(1), z=8) == Further(1, z=8)


def test_a_class_made_here_can_derive_from_another() -> None:
    @frozen.dataclass(frozen=True)
    class Further(OURS):  # type: ignore[misc, valid-type]
        y: int = 5
        z: int = 7

    further = Further(1, z=9)
    assert [item.name for item in frozen.fields(Further)] == ["x", "y", "names", "hidden", "z"]
    assert (further.x, further.y, further.z, further.names) == (1, 5, 9, [])


@pytest.mark.parametrize("what", ["name", "type", "init", "repr", "compare", "metadata"])
def test_fields_are_as_those_of_the_standard_decorator(what: str) -> None:
    standard = [getattr(item, what) for item in dataclasses.fields(STANDARD)]
    assert [getattr(item, what) for item in frozen.fields(OURS)] == standard
    assert [getattr(item, what) for item in dataclasses.fields(OURS)] == standard


def test_a_dataclass_is_one_for_both() -> None:
    for what in (OURS, OURS(1)):
        assert frozen.is_dataclass(what) and dataclasses.is_dataclass(what)
    assert not frozen.is_dataclass(1)


def test_each_section_has_defaults_of_its_own_and_can_be_pickled() -> None:
    config = load().config
    assert pickle.loads(pickle.dumps(config)) == config
    assert Config() == Config() and Config().npu is not Config().npu
