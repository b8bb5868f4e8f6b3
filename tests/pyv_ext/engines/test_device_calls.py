"""Native code that calls a device in Python itself does in every cycle what Python does for the reference."""

import random
import re
import signal
import sys
from _thread import interrupt_main
from functools import partial
from typing import Any

import numpy as np
import pytest
from called_devices import SETTLED, Calm, Moody, accessing, busy_program, interrupted_program, pair
from hart_rig import FULL
from native_forms import NATIVE_FORMS
from near_rig import AT_OWN, MAIN, PARTS, Machine, Own, until_it_stops

from pyv_ext.bus.memory import Ram
from pyv_ext.errors import PyvExtError
from pyv_ext.isa import Isa
from pyv_ext.machine.state import LogKind
from pyv_ext.protocols import Reply
from pyv_ext.tracing.commits import CommitLog


@pytest.mark.parametrize(
    ("form", "near", "seed"),
    [(NATIVE_FORMS[1], True, 41), (SETTLED, False, 40), (SETTLED, True, 44)],
    ids=str,
)
def test_a_device_with_line_and_events_is_called_in_the_cycles_of_the_reference(form, near, seed, monkeypatch):
    machines = reference, native = pair(monkeypatch, seed, form, own=Moody, near=near)
    for machine in machines:
        machine.load(busy_program(machine.hart.isa, seed))
    for until in until_it_stops(reference, seed, 600):
        assert native.run(until) == reference.run(until), (seed, until)
    assert len(reference.own.log) > 60 and any(entry[0] == -1 for entry in reference.own.log)


class Broken(Calm):
    """Something raises once, at its hundredth access."""

    where = "read"

    raised = False

    def _now(self, where: str) -> None:
        if where == self.where and len(self.log) >= 100 and not self.raised:
            self.raised = True
            int(f"in {where}")  # a ValueError by C code, which makes the object late

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
        with pytest.raises(ValueError, match=f"in {where}") as caught:
            machine.run(100_000)
        assert caught.traceback[-2].name == where
    assert machines[0].own.log == machines[1].own.log


@pytest.mark.parametrize("access", ["lw", "sw"])
def test_an_observer_that_comes_later_reads_every_access(access, monkeypatch):
    for seed in range(2):
        machines = reference, native = pair(monkeypatch, seed, own=Calm)
        accessing(machines, (access, 0))
        seen: list[list[object]] = [[], []]
        for machine, log in zip(machines, seen, strict=True):
            machine.run(1000)
            machine.clock.log.subscribe(log.extend, (LogKind.LOAD, LogKind.STORE))
            machine.run(3000)
            machine.clock.log.read()
        assert seen[0] == seen[1] and len(seen[0]) > 50
        assert native.run(4000) == reference.run(4000)


class Pretender:
    """It says that it is an integer."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def __repr__(self) -> str:
        return "Pretender()"


@pytest.mark.parametrize("value", [None, "5", 2.5, Pretender()], ids=repr)
def test_a_device_that_returns_no_integer_is_named(value, monkeypatch):
    class Odd(Own):
        def read(self, offset: int, size: int, now: int) -> int | Reply:
            super().read(offset, size, now)
            return value if len(self.log) > 50 else 1

    machines = pair(monkeypatch, 1, own=Odd)
    accessing(machines, ("lw", 4))
    for machine in machines:
        with pytest.raises(
            PyvExtError, match=f"device own: read at 0x4 gave {re.escape(repr(value))}: it gives an integer or a Reply"
        ):
            machine.run(100_000)


class UnfitError(Exception):
    """What a device raises."""


class Restless(Moody):
    """It also is in snapshots, and raises now and then where it `fails`."""

    fails = False

    def _mood(self, now: int) -> None:
        super()._mood(now)
        if self.fails and self._chance.random() < 0.1:
            raise UnfitError(f"in cycle {now}")

    def state(self) -> Any:
        return [*self._chance.getstate()[1]], self._level, self._event, self._stored, self._kept

    def load_state(self, state: Any) -> None:
        chance, self._level, self._event, self._stored, self._kept = state
        self._chance.setstate((3, tuple(chance), None))


class Ticks:
    """Something at the clock that follows every device."""

    irq = False

    def __init__(self, seen: list[object]) -> None:
        self._seen = seen
        self._due = 0

    def next_event(self) -> int | None:
        return self._due or None

    def advance(self, now: int) -> None:
        if self._due <= now:
            self._seen.append(now)
            self._due = now + 97


class Disturbances:
    """What may happen to a machine between two runs; `seen` is what it says of that."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.seen = list[object]()
        self._guards = [lambda *access: self.seen.append(access)]

    def logged(self) -> None:
        """The device's accesses, each at once, so that they are among all that is seen."""
        self.machine.bus.log(self.machine.own)
        self.machine.clock.log.subscribe(self.seen.extend, at_once=True)

    def followed(self) -> None:
        self.machine.clock.attach(Ticks(self.seen))

    def guarded(self) -> None:
        guards = self.machine.bus.guards
        guards[:] = [] if guards else self._guards

    def traced(self) -> None:
        engine = self.machine.engine
        if engine.tracers:
            engine.remove_tracer(engine.tracers[0])
        else:
            engine.add_tracer(CommitLog(engine.hart, engine.bus, self.seen.append))

    def watched(self) -> None:
        """Loads and stores of the page of the program."""
        self.machine.bus.watch(MAIN)
        self.machine.bus.watch_stores(MAIN, lambda *store: self.seen.append(store))

    def mapped(self) -> None:
        self.machine.bus.add_ram(Ram("more", 0x9000_0000, 0x1000))


def take_turns(one: Machine, other: Machine) -> None:
    """Each goes on where the other has been."""
    states = [{name: getattr(machine, name).state() for name in (*PARTS, "own")} for machine in (one, other)]
    for machine, state in zip((other, one), states, strict=True):
        for name, part in state.items():
            getattr(machine, name).load_state(part)
        machine.engine.flush()


@pytest.mark.parametrize(("seed", "near"), [(70, False), (70, True), (71, False), (71, True), (72, False)])
def test_a_machine_that_is_disturbed_goes_on_as_the_reference(seed, near, monkeypatch):
    """Between runs of 1 to 4001 cycles: the core log, guards, traces, watched pages, snapshots; the device raises in
    the last."""
    machines = reference, native = pair(monkeypatch, seed, own=Restless, near=near, divider=50)
    disturbed = [Disturbances(machine) for machine in machines]
    chance = random.Random(seed)
    once = ["logged", "followed", "watched", "mapped"]
    for machine in machines:
        machine.load(interrupted_program(machine.hart.isa, seed))
    for number, until in enumerate(until_it_stops(reference, seed, 3000)):
        assert native.run(until) == reference.run(until), (seed, number, until)
        if number % 4 == 3:
            lasting = once if reference.hart.instret > 1500 else []
            what = chance.choice(["guarded", "traced", *lasting, "saved", "saved"])
            if what in once:
                once.remove(what)
            if what == "saved":
                take_turns(reference, native)
            else:
                for one in disturbed:
                    getattr(one, what)()
    assert disturbed[0].seen == disturbed[1].seen
    raised = set[str]()
    for machine in machines:
        machine.own.fails = True
        with pytest.raises(UnfitError) as caught:
            machine.run(1_000_000)
        raised.add(str(caught.value))
    assert len(raised) == 1 and reference.own.log == native.own.log


class Secretive:
    """It does not even say what it is."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise ZeroDivisionError


def test_what_looking_at_a_value_raises_is_raised_by_the_run(monkeypatch):
    class Odd(Own):
        def read(self, offset: int, size: int, now: int) -> Any:
            super().read(offset, size, now)
            return Secretive() if len(self.log) > 50 else 1

    machines = pair(monkeypatch, 1, own=Odd)
    accessing(machines, ("lw", 4))
    for machine in machines:
        with pytest.raises(ZeroDivisionError):
            machine.run(100_000)


class Giving(Own):
    """What it gives and raises are the same objects each time."""

    values = (1 << 40, Reply(1 << 41), np.int64(1 << 42), 1 << 80, 1 << 43)
    """Read at 0, 4, 8, 12; the last two are cycles of the next event."""
    error = UnfitError()
    done = Reply(wait=1)
    fails = ""

    @property
    def irq(self) -> bool:
        if self.fails == "irq":
            raise self.error
        return len(self.log) % 9 == 0

    def next_event(self) -> int | None:
        return self.values[3 + len(self.log) // 14 % 2] if len(self.log) % 7 else None  # type: ignore[return-value]

    def read(self, offset: int, size: int, now: int) -> Any:
        self.log.append((offset,))
        if self.fails == "access":
            raise self.error
        return self.values[offset // 4]

    def write(self, offset: int, size: int, value: int, now: int) -> Reply | None:
        self.log.append((offset,))
        if self.fails == "access":
            raise self.error
        return self.done if offset else None


@pytest.mark.parametrize(("near", "seed"), [(False, 1), (True, 0)])
def test_native_calls_keep_and_lose_no_objects(near, seed, monkeypatch):
    """References to what a device gives, takes and raises are those of before, however often it was called."""
    before, blocks = list[int](), 0
    machines = _, native = pair(monkeypatch, seed, own=Giving, near=near)
    accessing(machines, *(("lw", offset) for offset in (0, 4, 8, 12)), ("sw", 0), ("sw", 4))
    device = native.own
    native.hart.x[17] = 1 << 30
    objects = [*Giving.values, Giving.done, Giving.error, UnfitError, native.clock, device, None, True, False]

    def references() -> list[int]:
        return [sys.getrefcount(one) for one in objects]

    def fails() -> None:
        for where in ("access", "irq"):
            device.fails = where
            with pytest.raises(UnfitError):
                native.run(1 << 30)
        device.fails, Giving.error.__traceback__ = "", None

    for turn in range(60):
        if turn == 20:
            before, blocks = references(), sys.getallocatedblocks()
        native.run(native.hart.cycle + 300)
        device.log.clear()
        fails()
    leaked = [after - was for after, was in zip(references(), before, strict=True)]
    assert max(map(abs, leaked[:-3])) < 6 and max(map(abs, leaked)) < 35, leaked
    assert sys.getallocatedblocks() - blocks < 300


def test_ctrl_c_while_a_store_raises_ends_the_run(monkeypatch):
    """It comes before anything is done about what the store has raised."""
    _, native = pair(monkeypatch, 1, NATIVE_FORMS[1])
    accessing((native, native), ("sb", signal.SIGINT))
    write: Any = partial(max, key=interrupt_main)  # C alone: Ctrl-C at the offset, a ValueError at the value 0
    native.own.write = write
    native.hart.x[17] = 0
    with pytest.raises(KeyboardInterrupt):
        native.run(1000)
    assert native.hart.cycle < 20  # in the cycle of the arrival


class Writing(Own):
    """Writes the instruction behind the next fence.i, unseen by the bus; another one each third time."""

    def read(self, offset: int, size: int, now: int) -> int | Reply:
        self.log.append((now,))
        word = Isa(FULL).encode("addi", rd=20, rs1=20, imm=len(self.log) // 3 % 1000)
        ram = self._master.rams[0]  # type: ignore[attr-defined]
        ram.u8[MAIN + 8 - ram.base : MAIN + 12 - ram.base] = word.to_bytes(4, "little")
        return 0


def test_code_that_a_device_writes_unseen_by_the_bus_is_executed_after_a_fence(monkeypatch):
    machines = reference, native = pair(monkeypatch, 0, own=Writing)
    one = native.hart.isa.encode
    for machine in machines:
        words = [one("lw", rd=16, rs1=AT_OWN), one("fence.i"), one("addi", rd=20, rs1=20), one("jal", imm=-12)]
        machine.load(words)
    assert native.run(2000) == reference.run(2000)
    assert len(native.own.log) > 50


class Waking(Own):
    """Something else at the clock is due soon after each tenth load."""

    due: int | None = None

    def read(self, offset: int, size: int, now: int) -> int | Reply:
        self.log.append((now,))
        if len(self.log) % 10 == 0:
            Waking.due = now + 3
            self._clock.changed(now + 1)
        return 0


class Woken:
    """It says when."""

    irq = False

    def __init__(self, log: list[tuple[int, ...]]) -> None:
        self._log = log

    def next_event(self) -> int | None:
        return Waking.due

    def advance(self, now: int) -> None:
        self._log.append((now, -1))
        Waking.due = None


def test_an_event_of_something_else_that_a_device_changes_comes_in_its_cycle(monkeypatch):
    machines = reference, native = pair(monkeypatch, 0, own=Waking)
    accessing(machines, ("lw", 0))
    for machine in machines:
        machine.clock.attach(Woken(machine.own.log), shared=True)
        machine.run(2000)
    assert native.own.log == reference.own.log
    assert len(native.own.log) > 100
