"""Events of devices, which native code lets happen itself where it can: what they do to everything it keeps."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import near_rig
import pytest
from called_devices import interrupted_program, pair
from near_rig import AT_OWN, MAIN, OWN, RAM, Machine, Own, looped
from near_rig import program as timer_program

from pyv_ext.bus.bus import Access
from pyv_ext.engines.boundary import going_on, objects, turns
from pyv_ext.engines.stop import Stop, StopReason
from pyv_ext.hart.traps import USER
from pyv_ext.protocols import Reply
from pyv_ext.tracing.tracers import add_tracer, remove_tracer
from pyv_native.attributes import slot_of

OTHER = OWN + 0x1000


class Seen:
    """A tracer of instructions."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def retire(self, pc: int, start: int, end: int, instruction: Any) -> None:
        self.log.append((pc, start, end))

    def trap(self, pc: int, cause: int, value: int, start: int, end: int, interrupt: bool) -> None:
        self.log.append((pc, cause, start, end))


class Restless(Own):
    """It has an event now and then, and one may change anything."""

    machine: Machine
    effects: tuple[str, ...] = ("nothing",)
    seed = 1

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self._chance = random.Random(self.seed)
        self._event: int | None = 20
        self._level = False
        self._stored = 0

    @property
    def irq(self) -> bool:
        return self._level

    def next_event(self) -> int | None:
        return self._event

    def stable(self, offset: int, size: int) -> bool:
        return offset == 28

    def read(self, offset: int, size: int, now: int) -> int | Reply:
        if offset != 28:
            self.log.append((self.name, offset, now, self._clock.now))
            self._event = self._event or now + 9
        return self._stored

    def write(self, offset: int, size: int, value: int, now: int) -> Reply | None:
        if offset != 24:
            self.log.append((self.name, offset, value, now, self._clock.now))
            self._stored += 1
        return None

    def deferrable(self, offset: int, size: int) -> bool:
        return offset == 24

    def advance(self, now: int) -> None:
        chance = self._chance
        self.log.append((self.name, now, self._clock.now))
        self._event = now + chance.choice((1, 2, 7, 20, 20, 60)) if chance.random() < 0.95 else None
        self._stored += 1
        if chance.random() < 0.4:
            EFFECTS[chance.choice(self.effects)](self, now)


class Second(Restless):
    name, seed = "second", 2


class Written(Restless):
    """A store may change anything too, and when it has its next event: none is deferrable."""

    deferrable = None  # type: ignore[assignment]

    def write(self, offset: int, size: int, value: int, now: int) -> Reply | None:
        super().write(offset, size, value, now)
        chance = self._chance
        if chance.random() < 0.5:
            self._event = chance.choice((None, now + 1, now + 1, now + 2, now + 30, 1 << 70))
        if chance.random() < 0.4:
            EFFECTS[chance.choice(self.effects)](self, now + 1)
        return None


def _observe(device: Restless, now: int) -> None:
    log, observers = device.log, device.machine.bus.observers
    if observers:
        observers.clear()
    else:
        observers.append(lambda access: log.append((access.offset, access.start, access.end, access.arrival)))


def _trace(device: Restless, now: int) -> None:
    engine = device.machine.engine
    if engine.tracer is None:
        add_tracer(engine, Seen(device.log))
    else:
        remove_tracer(engine, engine.tracer)


def _watch(device: Restless, now: int) -> None:
    bus, log = device.machine.bus, device.log
    bus.watchers[:] = [lambda seen: log.append((seen.address, seen.value, seen.start))]
    bus.watch(RAM + 0x8000)


def _line(device: Restless, now: int) -> None:
    device._level ^= True


def _counter(device: Restless, now: int) -> None:
    device.machine.hart.csrs.mcycle.set(now * 3, now)


def _protect(device: Restless, now: int) -> None:
    pmp = device.machine.hart.csrs.pmp
    pmp.write_addr(device._chance.randrange(3), device._chance.randrange(1 << 12))


def _poke(device: Restless, now: int) -> None:
    """What may be the code to come is written again."""
    line = MAIN + 64 * (now % 8)
    device._master.poke(line, device._master.peek(line, 64) or b"")


EFFECTS: dict[str, Callable[[Restless, int], object]] = {
    "nothing": lambda device, now: None,
    "line": _line,
    "poke": _poke,
    "changed": lambda device, now: device._clock.changed(now),
    "stop": lambda device, now: device.machine.engine.stop(Stop(StopReason.LIMIT, text=str(now))),
    "observe": _observe,
    "trace": _trace,
    "watch": _watch,
    "counter": _counter,
    "protect": _protect,
}


def machines_with(
    patch: pytest.MonkeyPatch, seed: int, effects: tuple[str, ...], own: type[Restless] = Restless
) -> tuple[Machine, Machine]:
    """Two equal machines with two such devices each."""
    patch.setattr(Restless, "effects", effects)
    machines = pair(patch, seed, own=own)
    for machine in machines:
        second = Second(machine.clock)
        second.log = machine.own.log
        machine.bus.add_device(OTHER, second)
        second.machine = machine.own.machine = machine  # type: ignore[attr-defined]
        machine.load(program(machine, seed))
    return machines


def program(machine: Machine, seed: int) -> list[int]:
    """Accesses of both devices and of memory, reads of counters, loops between them."""
    chance, one = random.Random(seed), machine.hart.isa.encode
    words = interrupted_program(machine.hart.isa, seed)[:-2]
    for _ in range(60):
        offset = chance.choice((0, 24, 24, 28, 28))
        register = chance.randrange(16, 28)
        words += chance.choice(
            (
                [one(chance.choice(("lw", "sw")), rd=register, rs1=AT_OWN, rs2=register, imm=offset)],
                [one("lui", rd=16, imm=OTHER), one(chance.choice(("lw", "sw")), rd=17, rs1=16, rs2=17, imm=offset)],
                [one("csrrs", rd=register, csr=0xB00)],
                [one("auipc", rd=16, imm=0x8000), one("lw", rd=17, rs1=16), one("sw", rs1=16, rs2=17, imm=8)],
                [one("addi", rd=register, rs1=register, imm=1)] * chance.randrange(30),
            )
        )
    return looped(machine.hart.isa, words)


def cases(*names: str) -> list[tuple[str, ...]]:
    """Each effect alone, and all of them."""
    return [*((name,) for name in names), names]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("effects", cases(*EFFECTS), ids="-".join)
def test_events_are_those_of_the_reference(effects, seed, monkeypatch):
    reference, native = machines_with(monkeypatch, seed, effects)
    compare(reference, native, seed)
    assert native.clock.now == reference.clock.now


@pytest.mark.parametrize("own", [Restless, Written])
@pytest.mark.parametrize("effects", cases("nothing", "line", "changed"), ids="-".join)
@pytest.mark.parametrize("seed", range(4))
def test_stores_of_observed_devices_arrive_as_in_the_reference(seed, effects, own, monkeypatch):
    """Python makes them, and native code lets them arrive."""
    machines = machines_with(monkeypatch, seed, effects, own)
    for machine in machines:
        machine.bus.observe(machine.own, partial(_noted, machine.own.log))
    compare(*machines, seed)


@pytest.mark.parametrize("seed", range(4))
def test_interrupts_that_come_in_accesses_of_user_mode_are_taken_at_once(seed, monkeypatch):
    """Whatever mstatus says; Python makes the accesses."""
    monkeypatch.setattr(near_rig, "FULL", near_rig.FULL.replace("imac", "imacu"))
    machines = pair(monkeypatch, seed)
    for machine in machines:
        hart = machine.hart
        machine.load(timer_program(hart.isa, seed))
        machine.bus.observe(machine.clint, id)
        hart.csrs.pmp.write_addr(0, (1 << 32) - 1)
        hart.csrs.pmp.write_cfg(0, 0x1F)  # all of memory
        hart.csrs.mstatus, hart.priv = 0, USER
        hart.guard()
    compare(*machines, seed)
    assert machines[0].hart.traps > 10


def _noted(log: list[Any], access: Access) -> None:
    log.append((access.offset, access.start, access.end, access.arrival))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "effects", cases("nothing", "line", "poke", "changed", "watch", "counter", "protect"), ids="-".join
)
def test_posted_stores_that_are_not_deferrable_arrive_as_in_the_reference(effects, seed, monkeypatch):
    compare(*machines_with(monkeypatch, seed, effects, Written), seed)


def compare(reference: Machine, native: Machine, seed: int) -> None:
    """Both run in pieces."""
    chance, longest = random.Random(seed), (40, 700, 4001, 150)[seed % 4]
    while reference.hart.instret < 4000:
        until = reference.hart.cycle + chance.randint(1, longest)
        assert native.run(until) == reference.run(until), until


@pytest.mark.parametrize("seed", range(2))
def test_attributes_without_slots_are_asked_for(seed, monkeypatch):
    """As in a Python that lays objects out in another way."""
    monkeypatch.setattr(objects, "slot_of", lambda owner, name: 0)
    compare(*machines_with(monkeypatch, seed, tuple(EFFECTS)), seed)
    compare(*machines_with(monkeypatch, seed, ("line", "changed"), Written), seed)


def test_attributes_that_native_code_looks_at_have_slots(monkeypatch):
    _, native = machines_with(monkeypatch, 0, ())
    owners = {"clock": native.clock, "core": native.engine, "bus": native.bus, "hart": native.hart}
    for owner, name in (*going_on._ATTRIBUTES, *turns._ATTRIBUTES):
        assert slot_of(owners[owner], name) != 0, (owner, name)
