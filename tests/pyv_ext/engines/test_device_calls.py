"""Native code that calls a device in Python itself does in every cycle what Python does for the reference."""

import random
from typing import Any

import numpy as np
import pytest
from native_forms import NATIVE_FORMS
from near_rig import AT_OWN, MAIN, Machine, Own, interrupting_program, looped, until_it_stops

from pyv_ext.bus.clock import Clock
from pyv_ext.errors import PyvExtError
from pyv_ext.isa import Isa
from pyv_ext.protocols import Reply

SETTLED = NATIVE_FORMS[1]
VALUES = (0, 1, True, 0xFFFF_FFFF, 1 << 40 | 5, 1 << 70 | 9, -3, np.int64(-2), np.uint32(77))


class Moody(Own):
    """Its line, its events and its answers follow from what it was asked before."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._chance = random.Random(5)
        self._level = False
        self._event: int | None = None

    @property
    def irq(self) -> bool:
        return self._level

    def next_event(self) -> int | None:
        return self._event

    def advance(self, now: int) -> None:
        if self._event is not None and self._event <= now:
            self.log.append((-1, now, self._clock.now))
            self._event, self._level = None, False

    def _mood(self, now: int) -> None:
        mood = self._chance.random()
        if mood < 0.15:
            self._level, self._event = True, now + 1 + self._chance.randrange(200)
        elif mood < 0.3:
            self._event = now + 1 + self._chance.randrange(60)
        elif mood < 0.35 and not self._level:
            self._event = None
        elif mood < 0.4:
            self._level = False

    def read(self, offset: int, size: int, now: int) -> int | Reply:
        reply = super().read(offset, size, now)
        self._mood(now)
        return self._chance.choice(VALUES) if offset < 8 else reply

    def write(self, offset: int, size: int, value: int, now: int) -> Reply | None:
        super().write(offset, size, value, now)
        self._mood(now)
        return Reply(wait=now % 5, fault=now % 11 == 0) if offset == 16 else None


class Calm(Own):
    """It might have a line and events; what it answers is the cycle."""

    @property
    def irq(self) -> bool:
        return False

    def next_event(self) -> int | None:
        return None

    def read(self, offset: int, size: int, now: int) -> int | Reply:
        super().read(offset, size, now)
        return now


def busy_program(isa: Isa, seed: int) -> list[int]:
    """Accesses of the device between those of all others."""
    chance, words = random.Random(seed), list[int]()
    for word in interrupting_program(isa, seed)[:-2]:
        words.append(word)
        while chance.random() < 0.5:
            offset, width = chance.choice(((0, "w"), (4, "w"), (4, "b"), (8, "w"), (12, "h"), (16, "w"), (24, "w")))
            register = chance.randrange(16, 28)
            words.append(isa.encode(chance.choice("sl") + width, rd=register, rs1=AT_OWN, rs2=register, imm=offset))
    return looped(isa, words)


def pair(monkeypatch: pytest.MonkeyPatch, seed: int, form: Any = SETTLED, **given: Any) -> tuple[Machine, Machine]:
    form.choose(monkeypatch)
    return Machine("reference", seed, **given), Machine("fast", seed, **given)


def accessing(machines: tuple[Machine, Machine], *accesses: tuple[str, int]) -> None:
    """A loop of such accesses."""
    for machine in machines:
        one = machine.hart.isa.encode
        machine.hart.csrs.mtvec = MAIN + 0x80
        words = [one(name, rd=16, rs1=AT_OWN, rs2=17, imm=offset) for name, offset in accesses]
        words += [one("addi", rd=17, rs1=17, imm=3), one("jal", imm=-4 * (len(words) + 1))]
        machine.load(words)


@pytest.mark.parametrize("form", NATIVE_FORMS, ids=str)
@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("seed", [40, 41, 60])
def test_a_device_with_line_and_events_is_called_in_the_cycles_of_the_reference(form, near, seed, monkeypatch):
    machines = reference, native = pair(monkeypatch, seed, form, own=Moody, near=near)
    for machine in machines:
        machine.load(busy_program(machine.hart.isa, seed))
    for until in until_it_stops(reference, seed, 600):
        assert native.run(until) == reference.run(until), (seed, until)
    assert len(reference.own.log) > 60 and any(entry[0] == -1 for entry in reference.own.log)


@pytest.mark.parametrize("own", [Own, Calm])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("accesses", [[("lw", 0)], [("sw", 0)], [("sw", 4), ("lw", 0), ("lbu", 4)]], ids=str)
def test_the_clock_is_told_of_nothing_while_only_registers_change(own, seed, accesses, monkeypatch):
    machines = reference, native = pair(monkeypatch, seed, own=own)
    accessing(machines, *accesses)
    for machine in machines:
        machine.run(500)
    told = list[int]()
    touched = native.clock.touched

    def counted(number: int, cycle: int) -> None:
        told.append(cycle)
        touched(number, cycle)

    monkeypatch.setattr(native.clock, "touched", counted)
    for until in (4000, 4001, 12_000):
        assert native.run(until) == reference.run(until)
    assert len(native.own.log) > 200 and len(told) < 20


class Broken(Calm):
    """Something raises at its hundredth access."""

    where = "read"

    def _now(self, where: str) -> None:
        if where == self.where and len(self.log) >= 100:
            raise ZeroDivisionError(f"in {where}")

    @property
    def irq(self) -> bool:
        self._now("irq")
        return False

    def next_event(self) -> int | None:
        self._now("next_event")
        return None

    def read(self, offset: int, size: int, now: int) -> int | Reply:
        value = super().read(offset, size, now)
        self._now("read")
        return value

    def write(self, offset: int, size: int, value: int, now: int) -> Reply | None:
        super().write(offset, size, value, now)
        self._now("write")
        return None


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("where", ["read", "write", "irq", "next_event"])
@pytest.mark.parametrize("access", ["lw", "sw"])
def test_what_a_device_raises_is_raised_by_the_run(where, access, seed, monkeypatch):
    if (access, where) in (("lw", "write"), ("sw", "read")):
        pytest.skip("it is not called")
    monkeypatch.setattr(Broken, "where", where)
    machines = pair(monkeypatch, seed, own=Broken)
    accessing(machines, (access, 0))
    for machine in machines:
        with pytest.raises(ZeroDivisionError, match=f"in {where}") as caught:
            machine.run(100_000)
        assert caught.traceback[-2].name == where
    assert machines[0].own.log == machines[1].own.log


def told(machine: Machine) -> list[object]:
    """What they are told."""
    seen = list[object]()
    machine.run(1000)
    machine.bus.observe(machine.own, lambda access: seen.append(access[1:]))
    machine.run(2000)
    machine.clock.on_change(seen.append)
    machine.run(3000)
    return seen


@pytest.mark.parametrize("access", ["lw", "sw"])
def test_who_comes_later_is_told_of_every_access(access, monkeypatch):
    """An observer of the device, and a listener of the clock."""
    for seed in range(2):
        machines = reference, native = pair(monkeypatch, seed, own=Calm)
        accessing(machines, (access, 0))
        seen = [told(machine) for machine in machines]
        assert seen[0] == seen[1] and len(seen[0]) > 50
        assert native.run(4000) == reference.run(4000)


@pytest.mark.parametrize("value", [None, "5", 2.5])
def test_a_device_that_returns_no_integer_is_named(value, monkeypatch):
    class Odd(Own):
        def read(self, offset: int, size: int, now: int) -> int | Reply:
            super().read(offset, size, now)
            return value if len(self.log) > 50 else 1

    machines = pair(monkeypatch, 1, own=Odd)
    accessing(machines, ("lw", 4))
    for machine in machines:
        with pytest.raises(
            PyvExtError, match=f"device own: read at 0x4 gave {value!r}: it gives an integer or a Reply"
        ):
            machine.run(100_000)
