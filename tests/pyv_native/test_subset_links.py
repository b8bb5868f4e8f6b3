"""Modules that are compiled apart call each other; callbacks answer with integers or end the call."""

from collections.abc import Callable
from typing import Any

import linked_parts as parts
import pytest

from pyv_native.arena import STATUS, Arena
from pyv_native.errors import CheckError, NativeError
from pyv_native.module import Linkage, NativeModule, interpreted

Turn = Callable[[Arena, int], int]


def table(answer: Callable[[int, int], Any], form: str) -> tuple[Arena, Turn]:
    """A table whose judge is `answer`, and `ping`."""
    linkage = Linkage(parts.ping, parts.pong, parts.judge)
    modules = [
        NativeModule([function], parts.Table, linkage=linkage, checked=form == "checked")
        for function in (parts.ping, parts.pong)
    ]
    arena = Arena(parts.Table)
    linkage.connect(arena, modules, {parts.judge: answer})
    return arena, interpreted(parts.ping, parts.Table) if form == "interpreted" else modules[0].entry(parts.ping)


FORMS = pytest.mark.parametrize("form", ["interpreted", "compiled", "checked"])


@FORMS
def test_modules_call_each_other_and_python(form: str) -> None:
    asked = []

    def answer(value: int, remaining: int) -> int:
        asked.append((value, remaining))
        return -value

    arena, ping = table(answer, form)
    assert ping(arena, 5) == -10 - 1020 - 2030 - 0
    assert asked == [(10, 5), (1020, 3), (2030, 1)]
    assert list(arena.root.log) == [-10, -1020, -2030] and arena.root.count == 303


@FORMS
@pytest.mark.parametrize(
    "error", [ValueError("broken"), KeyboardInterrupt(), SystemExit(3)], ids=lambda e: type(e).__name__
)
def test_an_exception_of_a_callback_ends_the_call_where_it_was_made(form: str, error: BaseException) -> None:
    answers = iter([-7])

    def answer(value: int, remaining: int) -> int:
        for points in answers:
            return points
        raise error

    arena, ping = table(answer, form)
    with pytest.raises(type(error)) as raised:
        ping(arena, 5)
    assert raised.value is error
    assert list(arena.root.log) == [-7] and arena.root.count == 102  # nothing after the second judge
    assert arena.root.best == -7  # in the caller of its caller neither
    answers = iter([1, 2, 3])
    assert ping(arena, 5) == 6  # the machine goes on


@FORMS
@pytest.mark.parametrize("points", [None, 1.5, "7", True, 1 << 63], ids=repr)
def test_an_answer_that_is_no_integer_of_64_bits_is_refused(form: str, points: Any) -> None:
    arena, ping = table(lambda value, remaining: points, form)
    with pytest.raises(NativeError, match=r"judge answered .*: answer a 64-bit integer"):
        ping(arena, 3)
    assert not len(arena.root.log)


def test_a_link_without_a_module_is_refused() -> None:
    linkage = Linkage(parts.ping, parts.pong)
    module = NativeModule([parts.ping], parts.Table, linkage=Linkage(parts.pong, parts.judge))
    with pytest.raises(NativeError, match="pong: no module has this function"):
        linkage.connect(Arena(parts.Table), [module], {})


@FORMS
def test_a_port_of_another_buffer_is_called_by_address(form: str) -> None:
    provider = NativeModule([parts.add_points], parts.Table)
    caller = NativeModule([parts.add_elsewhere], parts.Table, checked=form == "checked")
    call = interpreted(parts.add_elsewhere, parts.Table)
    if form != "interpreted":
        call = caller.entry(parts.add_elsewhere)
    here, there = Arena(parts.Table), Arena(parts.Table)
    function = provider.address(parts.add_points)
    assert call(here, function, there.address, 5) == 5 + 60 - 500 + 1000
    assert list(there.root.log) == [5, 6, -5] and not len(here.root.log)
    for _ in range(20):
        call(here, function, there.address, 5)
    assert not there.words[STATUS]
    call(here, function, there.address, 5)  # the 64th value and two more: an error of the other buffer alone
    assert there.words[STATUS] and not here.words[STATUS] and here.root.count == there.root.count == 22
    with pytest.raises(CheckError, match="holds at most 64"):
        there.raise_error()
