"""`pyv_state.frozen` makes what `dataclasses.dataclass(frozen=True)` makes, without writing code for each class."""

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from pyv_npu.config import Config, load
from pyv_state import frozen


def declared(decorator: Callable[..., Any]) -> Any:
    @decorator(frozen=True)
    class Point:
        x: int
        y: int = 2
        names: list[str] = dataclasses.field(default_factory=list, compare=False)
        hidden: str = dataclasses.field(default="h", repr=False)

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("x")

    return Point


OURS, STANDARD = declared(frozen.dataclass), declared(dataclasses.dataclass)


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


def test_each_section_has_defaults_of_its_own_and_can_be_pickled() -> None:
    config = load().config
    assert pickle.loads(pickle.dumps(config)) == config
    assert Config() == Config() and Config().npu is not Config().npu
