"""The CLINT in native code does in every cycle what its Python form does; programs mean the same in both."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_forms import NATIVE_FORMS
from near_rig import AT_COMPARE, CLINT, PARTS, Machine, both, program, until_it_stops
from shares import draws

from pyv_ext.devices.programs import compiled


@pytest.mark.parametrize("form", NATIVE_FORMS, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_random_accesses_are_those_of_the_reference(form, seed, monkeypatch):
    reference, native = both(form, seed, monkeypatch)
    native.count(monkeypatch)
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
    native.count(monkeypatch)
    seen: tuple[list[object], list[object]] = [], []
    for number, until in enumerate(until_it_stops(reference, seed, 2500)):
        assert native.run(until) == reference.run(until), (seed, until)
        if number == 5:
            for machine, log in zip((reference, native), seen, strict=True):
                machine.bus.observe(machine.clint, lambda access, log=log: log.append(access[1:]))
                native.asked = 0
        if number == 20:
            for machine in (reference, native):
                machine.bus.observers.append(lambda access: None)
    loads = [[access for access in log if access[2] or access[0] >= 0xBFF8] for log in seen]
    assert loads[0] == loads[1] and native.asked > len(loads[0]) > 10


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
    machine.count(monkeypatch)
    traps = machine.hart.traps
    machine.run(1_000_000)
    assert machine.hart.traps > traps + 10_000
    assert machine.asked < 40


def test_what_else_follows_the_device_is_told_of_each_access(monkeypatch):
    NATIVE_FORMS[1].choose(monkeypatch)
    reference, native = Machine("reference", 1), Machine("fast", 1)
    told: tuple[list[int], list[int]] = [], []
    for machine, log in zip((reference, native), told, strict=True):
        machine.load(program(machine.hart.isa, 1))
        machine.clock.on_change(log.append)
    for until in until_it_stops(reference, 1, 1000):
        assert native.run(until) == reference.run(until)
    assert set(told[0]) == set(told[1])


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


WORDS = ("one", "two")
PROGRAMS = (
    "one = one + value * 3\none - two",
    "t = one - value\ntwo = t // (now | 1)\nt ^ two",
    "one = value if one > two else ~one\n(one << 7) | (two >> 9)",
    "two = (one <= value) + (two == now) + (one != two) + (value < now) + (one >= two)\ntwo & ~one",
    "now + 0xFFFFFFFFFFFFFFFF",
    "one = value >> 3 if one & 1 else two | value\nfound = two ^ one\n(found // 3 if two <= now else found) == value",
    "twofold = one if value & 2 else two\ntwo = twofold & now",
)
"""In the last two no value can wrap around."""


@settings(max_examples=draws(60), deadline=None)
@given(*(st.integers(0, (1 << 64) - 1) for _ in range(4)))
def test_programs_mean_the_same_in_both_forms(one, two, now, value):
    for text, native in zip(PROGRAMS, native_programs(), strict=True):
        words, native_words = (memoryview(bytearray(16)).cast("Q") for _ in range(2))
        words[0], words[1] = native_words[0], native_words[1] = one, two
        result = compiled(text, WORDS)(words, now, value, 0)
        assert native(native_words, now, value) == result % (1 << 64)
        assert words.tolist() == native_words.tolist(), text


MADE: list[Any] = []


def native_programs() -> list[Any]:
    import ctypes

    from pyv_ext.engines.program_code import Lowered
    from pyv_native.compiler import make_compiler
    from pyv_native.ir import Ir

    if not MADE:
        compiler, text = make_compiler(), ""
        for number, program in enumerate(PROGRAMS):
            ir = Ir()
            ir.block("entry")
            made = Lowered(ir, WORDS, "%words")
            result = made.execute(program, now="%now", value="%value")
            made.save()
            ir.do(f"ret i64 {result}")
            text += ir.text(f"i64 @program{number}(ptr %words, i64 %now, i64 %value)")
        names = [f"program{number}" for number in range(len(PROGRAMS))]
        code = compiler.load(text, *names)
        kind = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)
        for name in names:
            function = kind(code.address(name))

            def call(words: Any, now: int, value: int, function: Any = function, code: Any = code) -> int:
                at = ctypes.addressof(ctypes.c_char.from_buffer(words))
                return function(at, now, value)

            MADE.append(call)
    return MADE
