"""`pyv_state.named` makes what `typing.NamedTuple` makes, without writing code for each class."""

import copy
import pickle
from typing import Any, NamedTuple

import pytest

from pyv_ext.hart.hart import Wait
from pyv_state import named


class Standard(NamedTuple):
    """A point."""

    x: int
    y: int = 2

    @property
    def total(self) -> int:
        return self.x + self.y

    def shifted(self, by: int) -> Any:
        return self._replace(x=self.x + by)


class Ours(named.NamedTuple):
    """A point."""

    x: int
    y: int = 2

    @property
    def total(self) -> int:
        return self.x + self.y

    def shifted(self, by: int) -> Any:
        return self._replace(x=self.x + by)


class Nothing(named.NamedTuple):
    """Without a field."""


BOTH: tuple[Any, Any] = Ours, Standard


@pytest.mark.parametrize(("given", "named_"), [((1,), {}), ((1, 3), {}), ((), {"x": 1}), ((1,), {"y": 5})])
def test_instances_are_as_those_of_the_standard_class(given: tuple[int, ...], named_: dict[str, int]) -> None:
    ours, standard = (kind(*given, **named_) for kind in BOTH)
    assert ours == standard == tuple(ours) and hash(ours) == hash(standard)
    assert repr(ours).replace("Ours", "Standard") == repr(standard)
    assert (ours.x, ours.y, ours.total) == (standard.x, standard.y, standard.total)
    assert ours._asdict() == standard._asdict()
    assert ours.shifted(4) == standard.shifted(4) and type(ours.shifted(4)) is Ours
    assert type(Ours._make([7, 8])) is Ours and Ours._make([7, 8]) == (7, 8)
    for again in (pickle.loads(pickle.dumps(ours)), copy.copy(ours), copy.deepcopy(ours)):
        assert again == ours and type(again) is Ours


def test_classes_have_the_attributes_of_the_standard_class() -> None:
    for name in (
        "_fields",
        "_field_defaults",
        "__match_args__",
        "__annotations__",
        "__bases__",
        "__doc__",
        "__slots__",
    ):
        assert getattr(Ours, name) == getattr(Standard, name), name
    assert type(Ours) is type(Standard) is type
    assert Ours.__module__ == Standard.__module__ and Ours.__dict__["x"].__doc__ == Standard.__dict__["x"].__doc__
    assert Nothing() == () and repr(Nothing()) == "Nothing()"
    match Ours(1, 3):
        case Ours(x, y=3):
            assert x == 1
        case _:
            pytest.fail("a pattern of positions and names")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda kind: kind(), lambda kind: kind(1, 2, 3), lambda kind: kind(1, z=3), lambda kind: kind(1, x=3),
        lambda kind: kind._make([1]), lambda kind: kind(1)._replace(z=3), lambda kind: setattr(kind(1), "x", 2),
        lambda kind: setattr(kind(1), "z", 2),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_alike(wrong: Any) -> None:
    raised = []
    for kind in BOTH:
        with pytest.raises((TypeError, ValueError, AttributeError)) as caught:
            wrong(kind)
        raised.append((type(caught.value), str(caught.value).replace(kind.__name__, "")))
    assert raised[0] == raised[1]


def test_a_class_has_fields_with_defaults_last_and_no_other_base() -> None:
    with pytest.raises(TypeError, match="Bad: a field without a default follows one with a default"):
        exec("class Bad(NamedTuple):\n    x: int = 1\n    y: int", {"NamedTuple": named.NamedTuple, "int": int})
    with pytest.raises(TypeError, match="Bad: a named tuple has no other bases: derive from it"):
        exec("class Bad(dict, NamedTuple):\n    x: int", {"NamedTuple": named.NamedTuple, "int": int})


def test_a_class_may_be_derived_from_one() -> None:
    class Longer(Wait):
        def length(self) -> int:
            return self.until - self.start

    made = Longer(1, 2, 5)
    assert made.length() == 4 and type(made._replace(until=7)) is Longer and Wait(1, 2, 5) == made
