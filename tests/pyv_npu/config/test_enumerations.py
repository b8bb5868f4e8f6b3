"""`pyv_state.enumerations` makes what `enum` makes, in a fraction of the time."""

import copy
import enum
import json
import pickle
from typing import Any

import pytest

from npu_device.abi.opcodes import Opcode
from pyv_ext.isa.row import Kind
from pyv_npu.snapshot.devices import decode, encode
from pyv_state import enumerations


class Standard(enum.IntEnum):
    """Sizes."""

    SMALL = 1
    """The least."""
    LARGE = 7
    MEDIUM = 3

    @property
    def half(self) -> float:
        return self / 2

    def plus(self, by: int) -> int:
        return self + by


class Ours(enumerations.IntEnum):
    """Sizes."""

    SMALL = 1
    """The least."""
    LARGE = 7
    MEDIUM = 3

    @property
    def half(self) -> float:
        return self / 2

    def plus(self, by: int) -> int:
        return self + by


class StandardKind(enum.Enum):
    FIRST = enum.auto()
    SECOND = enum.auto()
    TEXT = "text"


class OurKind(enumerations.Enum):
    FIRST = enumerations.auto()
    SECOND = enumerations.auto()
    TEXT = "text"


PAIRS: list[tuple[Any, Any]] = [(Ours, Standard), (OurKind, StandardKind)]


@pytest.mark.parametrize(("ours", "standard"), PAIRS)
def test_members_are_those_of_the_standard_class(ours: Any, standard: Any) -> None:
    assert ours.__doc__ == standard.__doc__ or ours is OurKind
    assert len(ours) == len(standard) and bool(ours)
    assert list(ours.__members__) == list(standard.__members__)
    assert [each.name for each in reversed(ours)] == [each.name for each in reversed(standard)]
    for one, other in zip(ours, standard, strict=True):
        assert (one.name, one.value) == (other.name, other.value)
        assert repr(one).partition(".")[2] == repr(other).partition(".")[2]
        assert str(one).rpartition(".")[2] == str(other).rpartition(".")[2] and f"{one}" == str(one)
        assert ours(one.value) is ours(one) is ours[one.name] is getattr(ours, one.name) is one
        assert one in ours and isinstance(one, ours) and type(one) is ours
        assert copy.copy(one) is copy.deepcopy(one) is pickle.loads(pickle.dumps(one)) is one
        assert {one: 1}[one] == 1


@pytest.mark.parametrize(("ours", "standard"), PAIRS)
def test_what_is_no_member_is_refused_alike(ours: Any, standard: Any) -> None:
    for wrong in (5, "SMALL", None, [1], {}):
        texts = []
        for kind in (ours, standard):
            with pytest.raises(ValueError, match="is not a valid") as refused:
                kind(wrong)
            texts.append(str(refused.value).partition(" is ")[0])
        assert texts[0] == texts[1]
    for kind in (ours, standard):
        with pytest.raises(KeyError):
            kind["NONE"]
        with pytest.raises(AttributeError):
            kind.OTHER  # noqa: B018
        first = next(iter(kind))
        with pytest.raises(AttributeError):
            setattr(kind, first.name, 5)
        with pytest.raises(AttributeError):
            first.name = "other"


def test_integers_are_integers() -> None:
    assert Ours.LARGE == 7 and hash(Ours.LARGE) == hash(7) and {7: "x"}[Ours.LARGE] == "x"
    assert type(Ours.LARGE | 8) is int and sorted(Ours) == sorted(Standard) and max(Ours) is Ours.LARGE
    assert json.dumps({"a": Ours.SMALL}) == json.dumps({"a": Standard.SMALL})
    assert (Ours.LARGE.half, Ours.LARGE.plus(2)) == (Standard.LARGE.half, Standard.LARGE.plus(2))
    assert f"{Ours.SMALL:04x} {Ours.SMALL}" == f"{Standard.SMALL:04x} {Standard.SMALL}"


@pytest.mark.parametrize("member", [Ours.LARGE, OurKind.TEXT, Standard.LARGE, Opcode.GEMM_T, Kind.CUSTOM])
def test_a_snapshot_keeps_members_that_a_device_holds(member: Any) -> None:
    assert decode(encode(member, "x")) is member


def test_two_members_of_one_value_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Twice\.B: .* has the value already"):
        type(enumerations.IntEnum)("Twice", (enumerations.IntEnum,), {"A": 1, "B": 1})


def test_those_that_each_run_imports_are_of_this_kind() -> None:
    for kind in (Opcode, Kind):
        assert type(kind) is type(enumerations.Enum)


class StandardReason(enum.StrEnum):
    EXIT = "exit"
    LIMIT = "limit"


class OurReason(enumerations.StrEnum):
    EXIT = "exit"
    LIMIT = "limit"


@pytest.mark.parametrize("kind", [StandardReason, OurReason])
def test_members_can_be_text(kind: Any) -> None:
    assert [str(member) for member in kind] == ["exit", "limit"] and kind("limit") is kind.LIMIT is kind["LIMIT"]
    assert kind.EXIT == "exit" and isinstance(kind.EXIT, str) and hash(kind.EXIT) == hash("exit")
    assert f"{kind.EXIT:>6}" == "  exit" and json.dumps([kind.EXIT]) == '["exit"]'
    assert repr(kind.EXIT) == f"<{kind.__name__}.EXIT: 'exit'>"
    assert pickle.loads(pickle.dumps(kind.EXIT)) is kind.EXIT
