"""What a device raises ends a run where it ends that of the reference, and the machine goes on from there."""

import random
from typing import Any

import pytest
from called_devices import SETTLED, Moody, busy_program, interrupted_program, pair
from native_forms import NATIVE_FORMS
from near_rig import AT_COMPARE, AT_TIME, Machine, looped
from shares import slow

from pyv_ext.bus.clock import Clock
from pyv_ext.isa import Isa
from pyv_ext.protocols import Reply


class UnfitError(Exception):
    """What it raises."""


class Fragile(Moody):
    """Something raises once after each few accesses, deferrable stores aside."""

    where, accesses = "access", 9

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._count = 0
        self._broken = False

    def _access(self) -> None:
        self._count += 1
        self._broken = self._broken or self._count % self.accesses == 0
        self._use("access")

    def _use(self, where: str) -> None:
        if self._broken and where == self.where:
            self._broken = False
            raise UnfitError(f"{where} {self._count}")

    @property
    def irq(self) -> bool:
        self._use("irq")
        return super().irq

    def next_event(self) -> int | None:
        self._use("next_event")
        return super().next_event()

    def advance(self, now: int) -> None:
        super().advance(now)
        self._use("advance")

    def read(self, offset: int, size: int, now: int) -> int | Reply:
        value = super().read(offset, size, now)
        if offset != 28:
            self._access()
        return value

    def write(self, offset: int, size: int, value: int, now: int) -> Reply | None:
        reply = super().write(offset, size, value, now)
        if offset != 24:
            self._access()
        return reply


def waiting_program(isa: Isa, seed: int) -> list[int]:
    """The same, with waits for the timer."""
    chance, one, words = random.Random(seed), isa.encode, list[int]()
    for word in interrupted_program(isa, seed)[:-2]:
        words.append(word)
        if chance.random() < 0.2:
            words += [one("lw", rd=16, rs1=AT_TIME), one("addi", rd=16, rs1=16, imm=chance.randrange(90))]
            words += [one("sw", rs1=AT_COMPARE, imm=4), one("sw", rs1=AT_COMPARE, rs2=16), one("wfi")]
    return looped(isa, words)


def outcome(machine: Machine, until: int) -> tuple[object, ...]:
    """What a run raises, and the machine then."""
    try:
        return None, *machine.run(until)
    except UnfitError as error:
        return str(error), None, *machine.seen()


def failures(patch: pytest.MonkeyPatch, seed: int, accesses: int, where: str, near: bool, program: Any) -> int:
    """How often a device raises something in runs of both engines, which are the same."""
    form: Any = SETTLED if seed % 2 else NATIVE_FORMS[1]
    patch.setattr(Fragile, "where", where)
    patch.setattr(Fragile, "accesses", accesses)
    machines = reference, native = pair(patch, seed, form, own=Fragile, near=near)
    for machine in machines:
        machine.load(program(machine.hart.isa, seed))
    chance, raised = random.Random(seed), 0
    for _ in range(60):
        until = reference.hart.cycle + chance.randint(1, 1500)
        seen = outcome(native, until)
        assert seen == outcome(reference, until), (seed, until)
        raised += seen[0] is not None
    return raised


@pytest.mark.parametrize("seeds", [range(40, 42), *slow(range(42, 46), ids=("more",))])
@pytest.mark.parametrize("program", [interrupted_program, busy_program, waiting_program])
@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("where", ["access", "irq", "next_event", "advance"])
def test_a_machine_whose_device_raises_is_where_the_reference_is(where, near, program, seeds, monkeypatch):
    assert sum(failures(monkeypatch, seed, 3 + seed % 7, where, near, program) for seed in seeds) >= len(seeds)


@pytest.mark.parametrize(("seed", "accesses"), [(59, 9), (47, 5)])
@pytest.mark.parametrize("where", ["access", "irq"])
def test_what_a_device_has_changed_before_it_raised_is_seen(where, seed, accesses, monkeypatch):
    assert failures(monkeypatch, seed, accesses, where, False, interrupted_program)
