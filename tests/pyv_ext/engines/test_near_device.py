"""The CLINT in native code does in every cycle what its Python form does; programs mean the same in both."""

import random
from typing import Any

import pytest
from hart_rig import FULL
from hypothesis import given, settings
from hypothesis import strategies as st
from native_forms import NATIVE_FORMS

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import Clock
from pyv_ext.bus.memory import Ram
from pyv_ext.cores import make_engine
from pyv_ext.devices.base import compiled
from pyv_ext.devices.clint import Clint
from pyv_ext.devices.interrupts import InterruptWiring
from pyv_ext.devices.plic import Plic
from pyv_ext.devices.uart import Uart
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Isa
from pyv_ext.timing import CoreTiming

RAM, CLINT, PLIC, UART = 0x8000_0000, 0x200_0000, 0xC00_0000, 0x1000_0000
COMPARE, TIME = CLINT + 0x4000, CLINT + 0xBFF8
AT_SOFTWARE, AT_COMPARE, AT_TIME, AT_UART, AT_PLIC, ALL = 8, 9, 10, 11, 12, 28
MAIN = RAM + 0x200
PARTS = ("hart", "bus", "uart", "clint", "plic", "wiring", "clock")
TIMINGS = (
    CoreTiming(),
    CoreTiming(near_extra=3, load=2, store=2, irq=4, wfi=3, mmio_write=2, mmio_one_way=12, mmio_read=30, plic=5),
    CoreTiming(mmio_one_way=60, mmio_read=9, posted_depth=2, near_extra=1, csr=3),
)


class Machine:
    def __init__(self, engine: str, seed: int, *, divider: int | None = None) -> None:
        chance = random.Random(seed)
        self.timing = TIMINGS[seed % len(TIMINGS)]
        self.clock = Clock()
        self.bus = Bus(self.clock, self.timing)
        self.bus.add_ram(Ram("ram", RAM, 0x1_0000))
        self.hart = Hart(Isa(FULL), self.timing, reset_pc=MAIN)
        self.clint = Clint(chance.choice((1, 2, 7, 40)) if divider is None else divider)
        self.plic, self.uart = Plic(), Uart()
        self.hart.csrs.time = self.clint.mtime
        self.engine = make_engine(engine, self.hart, self.bus)
        self.bus.add_device(CLINT, self.clint, near=True)
        self.bus.add_device(PLIC, self.plic)
        self.bus.add_device(UART, self.uart)
        self.wiring = InterruptWiring(
            self.clock, self.hart.set_lines, clint=self.clint, plic=self.plic, sources={10: self.uart},
            plic_delay=self.timing.plic,
        )  # fmt: skip
        self.asked = 0
        """Calls of the Python form by engines."""
        hart, x = self.hart, self.hart.x
        hart.csrs.mtvec, hart.csrs.mie, hart.csrs.mstatus = RAM, 0x888, 0x1888
        for register, address in (
            (AT_SOFTWARE, CLINT), (AT_COMPARE, COMPARE), (AT_TIME, TIME), (AT_UART, UART), (AT_PLIC, PLIC + 0x2000),
        ):  # fmt: skip
            x[register] = address
        x[ALL] = 0x888
        self.bus.poke(RAM, handler(hart.isa))

    def count(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("read", "write", "advance"):
            original = getattr(self.clint, name)

            def counted(*given: Any, original: Any = original) -> Any:
                self.asked += 1
                return original(*given)

            patch.setattr(self.clint, name, counted)

    def load(self, words: list[int]) -> None:
        self.bus.poke(MAIN, b"".join(word.to_bytes(4, "little") for word in words))

    def seen(self) -> tuple[object, ...]:
        hart, csrs = self.hart, self.hart.csrs
        plain = ("mstatus", "mie", "mip", "mepc", "mcause", "mtval")
        devices = (self.clint, self.plic, self.uart, self.wiring)
        return (
            hart.pc, hart.cycle, hart.instret, hart.traps, hart.waiting, *(getattr(csrs, name) for name in plain),
            *hart.x[:32], *(device.state() for device in devices), self.clock.next, bytes(self.uart.console.data),
        )  # fmt: skip

    def run(self, until: int) -> tuple[object, ...]:
        """All that can be seen of it then."""
        stop = self.engine.run(until)
        self.clock.settle(self.hart.cycle)
        return (stop, *self.seen())


def handler(isa: Isa) -> bytes:
    """Takes back a software interrupt and arms the timer anew; other traps go on after the instruction."""
    one = isa.encode
    words = [
        one("csrrs", rd=30, csr=0x342),
        one("blt", rs1=30, imm=20),
        one("csrrs", rd=30, csr=0x341),
        one("addi", rd=30, rs1=30, imm=4),
        one("csrrw", rs1=30, csr=0x341),
        one("mret"),
        one("sw", rs1=AT_SOFTWARE),
        one("lw", rd=31, rs1=AT_TIME, imm=4),
        one("sw", rs1=AT_COMPARE, rs2=31, imm=4),
        one("lw", rd=31, rs1=AT_TIME),
        one("addi", rd=31, rs1=31, imm=29),
        one("sw", rs1=AT_COMPARE, rs2=31),
        one("addi", rd=29, rs1=29, imm=1),
        one("lbu", rd=30, rs1=AT_UART, imm=2),
        one("mret"),
    ]
    return b"".join(word.to_bytes(4, "little") for word in words)


def program(isa: Isa, seed: int) -> list[int]:
    """An endless loop over accesses of all registers, and whatever lets interrupts come at other times."""
    chance, one, words = random.Random(seed), isa.encode, list[int]()
    places = ((AT_SOFTWARE, 0), (AT_COMPARE, 0), (AT_COMPARE, 4), (AT_TIME, 0), (AT_TIME, 4))
    for _ in range(120):
        what, (base, imm), register = chance.random(), chance.choice(places), chance.randrange(16, 28)
        if what < 0.25:
            words.append(one("lw", rd=register, rs1=base, imm=imm))
        elif what < 0.35:
            words.append(one("sw", rs1=base, rs2=register, imm=imm))
        elif what < 0.5:  # the next interrupt comes soon
            words.append(one("lw", rd=register, rs1=AT_TIME, imm=4))
            words.append(one("sw", rs1=AT_COMPARE, rs2=register, imm=4))
            words.append(one("lw", rd=register, rs1=AT_TIME))
            words.append(one("addi", rd=register, rs1=register, imm=chance.randrange(-3, 40)))
            words.append(one("sw", rs1=AT_COMPARE, rs2=register))
            if chance.random() < 0.4:
                words += [one("csrrs", rs1=ALL, csr=0x304), one("wfi")]
        elif what < 0.55:
            words.append(one(chance.choice(("csrrsi", "csrrci")), imm=8, csr=chance.choice((0x300, 0x300, 0x304))))
        elif what < 0.6:
            words.append(one("addi", rd=register, imm=chance.choice((-1, 0, 1, 128, -7))))
            words.append(one(chance.choice(("csrrs", "csrrc")), rs1=register, csr=0x304))
        elif what < 0.63:
            words.append(one(chance.choice(("lb", "lhu")), rd=register, rs1=base, imm=imm))
        elif what < 0.7:
            words.append(one("sb", rs1=AT_UART, rs2=register, imm=chance.choice((0, 0, 0, 1, 7))))
        elif what < 0.73:
            words.append(one("lbu", rd=register, rs1=AT_UART, imm=chance.choice((2, 5, 7))))
        elif what < 0.76:
            words.append(one(chance.choice(("sw", "lw")), rd=register, rs1=AT_PLIC, rs2=register))
        else:
            words.append(one(chance.choice(("addi", "xori")), rd=register, rs1=register, imm=chance.randrange(-90, 90)))
    words.append(one("csrrwi", imm=8, csr=0x300))
    words.append(one("jal", imm=-4 * len(words)))
    return words


def both(form: Any, seed: int, patch: pytest.MonkeyPatch) -> tuple[Machine, Machine]:
    form.choose(patch)
    machines = Machine("reference", seed), Machine("fast", seed)
    for machine in machines:
        machine.load(program(machine.hart.isa, seed))
    return machines


def until_it_stops(reference: Machine, seed: int, instructions: int) -> Any:
    """Cycles up to which to run, until so many instructions have retired, or a wait is long."""
    chance = random.Random(seed)
    for _ in range(instructions):
        if reference.hart.instret >= instructions:
            return
        yield reference.hart.cycle + chance.choice((1, 2, 3, 17, chance.randint(1, 4001)))
        if reference.hart.waiting is not None and reference.clock.next > reference.hart.cycle + 10_000:
            return


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
)


@settings(max_examples=60, deadline=None)
@given(*(st.integers(0, (1 << 64) - 1) for _ in range(4)))
def test_programs_mean_the_same_in_both_forms(one, two, now, value):
    for program, native in zip(PROGRAMS, native_programs(), strict=True):
        words, native_words = (memoryview(bytearray(16)).cast("Q") for _ in range(2))
        words[0], words[1] = native_words[0], native_words[1] = one, two
        result = compiled(program, WORDS)(words, now, value)
        assert native(native_words, now, value) == result % (1 << 64)
        assert words.tolist() == native_words.tolist(), program


MADE: list[Any] = []


def native_programs() -> list[Any]:
    import ctypes

    from pyv_ext.devices.base import NativeForm
    from pyv_ext.engines.near import Lowered
    from pyv_jit.compiler import make_compiler
    from pyv_jit.ir import Ir

    if not MADE:
        compiler, text = make_compiler(), ""
        form = NativeForm(WORDS, {}, {}, "", "", "", 0, frozenset())
        for number, program in enumerate(PROGRAMS):
            ir = Ir()
            ir.block("entry")
            made = Lowered(ir, form, "%words")
            result = made.execute(program, {"now": "%now", "value": "%value"})
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
