"""The CLINT does in every cycle the same, compiled below native code and interpreted below the reference."""

from typing import Any

import pytest
from native_forms import NATIVE_FORMS
from near_rig import AT_COMPARE, CLINT, PARTS, Machine, both, until_it_stops

from pyv_ext.machine.state import LogKind


@pytest.mark.parametrize("form", NATIVE_FORMS, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_random_accesses_are_those_of_the_reference(form, seed, monkeypatch):
    reference, native = both(form, seed, monkeypatch)
    for until in until_it_stops(reference, seed, 3000):
        assert native.run(until) == reference.run(until), (seed, until)
    assert reference.hart.traps > 20


@pytest.mark.parametrize("seed", range(6, 9))
def test_a_machine_that_goes_on_from_the_state_of_another(seed, monkeypatch):
    """Snapshots in the middle: each engine goes on where the other has been."""
    reference, native = both(NATIVE_FORMS[1], seed, monkeypatch)
    for number, until in enumerate(until_it_stops(reference, seed, 2500)):
        assert native.run(until) == reference.run(until), (seed, until)
        if number % 5 == 4:
            one, two = (
                {name: getattr(machine, name).state() for name in PARTS}
                for machine in (reference, native)
            )  # fmt: skip
            for machine, states in ((reference, two), (native, one)):
                for name, state in states.items():
                    getattr(machine, name).load_state(state)
                machine.engine.flush()


@pytest.mark.parametrize("seed", range(9, 12))
def test_an_observer_sees_every_access_and_changes_nothing(seed, monkeypatch):
    reference, native = both(NATIVE_FORMS[1], seed, monkeypatch)
    seen: tuple[list[object], list[object]] = [], []
    for number, until in enumerate(until_it_stops(reference, seed, 2500)):
        assert native.run(until) == reference.run(until), (seed, until)
        if number == 5:
            for machine, log in zip((reference, native), seen, strict=True):
                machine.bus.log(machine.clint)
                machine.clock.log.subscribe(log.extend)
    for machine in (reference, native):
        machine.clock.log.read()
    loads = [[row for row in log if row[5] == LogKind.STORE or row[3] - CLINT >= 0xBFF8] for log in seen]
    assert loads[0] == loads[1] and len(loads[0]) > 10


def test_a_guard_is_asked_before_every_access(monkeypatch):
    """As for watchpoints of GDB."""
    reference, native = both(NATIVE_FORMS[1], 5, monkeypatch)
    asked: tuple[list[object], list[object]] = [], []
    for number, until in enumerate(until_it_stops(reference, 5, 2500)):
        assert native.run(until) == reference.run(until)
        if number == 3:
            for machine, log in zip((reference, native), asked, strict=True):
                machine.bus.guards.append(lambda *access, log=log: log.append(access))
    assert [one for one in asked[0] if one[0] >> 16 == CLINT >> 16] == [
        one for one in asked[1] if one[0] >> 16 == CLINT >> 16
    ]
    assert asked[0]


def test_a_timer_and_its_handler_ask_python_for_nothing(monkeypatch):
    """Nor a WFI that waits for it."""
    NATIVE_FORMS[1].choose(monkeypatch)
    machine = Machine("fast", 0, divider=2)
    one = machine.hart.isa.encode
    machine.load([one("sw", rs1=AT_COMPARE), one("sw", rs1=AT_COMPARE, imm=4), one("wfi"), one("jal", imm=-4)])
    machine.run(1000)
    machine.count()
    traps = machine.hart.traps
    machine.run(1_000_000)
    assert machine.hart.traps > traps + 10_000
    assert machine.asked < 60


def test_a_slow_clock_is_seen_at_once(monkeypatch):
    reference, native = both(NATIVE_FORMS[1], 4, monkeypatch)
    undo: list[Any] = []
    for number, until in enumerate(until_it_stops(reference, 4, 2500)):
        assert native.run(until) == reference.run(until)
        if number == 10:
            undo = [machine.clint.slow_down(5, machine.hart.cycle) for machine in (reference, native)]
        elif number == 30:
            for end in undo:
                end()
        if number in (10, 30):
            for machine in (reference, native):
                machine.clock.changed(machine.hart.cycle)
