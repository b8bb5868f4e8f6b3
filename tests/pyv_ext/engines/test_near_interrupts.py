"""PLIC, UART and the way of their interrupts do in every cycle the same, compiled below native code and interpreted
below the reference."""

import random

import pytest
from native_forms import NATIVE_FORMS
from near_rig import (
    AT_CONTEXT,
    AT_OWN,
    AT_PLIC,
    AT_PRIORITY,
    AT_UART,
    CLAIM,
    MAIN,
    PARTS,
    RAM,
    TIMINGS,
    UART,
    Machine,
    Own,
    both,
    interrupting_program,
    looped,
    until_it_stops,
)
from shares import slow

from pyv_ext.isa import Isa
from pyv_ext.machine.state import LogKind
from pyv_ext.protocols import Reply

UART_SOURCE, OWN_SOURCE = 10, 11


def fed(machines: tuple[Machine, Machine], chance: random.Random) -> None:
    """The host sends the same to both, sometimes more than there is room for."""
    characters = chance.randbytes(chance.choice((1, 1, 3, 20)))
    for machine in machines:
        machine.clock.advance(machine.hart.cycle)
        machine.uart.feed(characters)
        machine.clock.changed(machine.clock.now)


@pytest.mark.parametrize("form", NATIVE_FORMS, ids=str)
@pytest.mark.parametrize("seed", [*range(20, 23), 138, *slow(*range(23, 26))])
def test_random_accesses_are_those_of_the_reference(form, seed, monkeypatch):
    machines = reference, native = both(form, seed, monkeypatch, interrupting_program)
    chance = random.Random(seed)
    for until in until_it_stops(reference, seed, 1500):
        assert native.run(until) == reference.run(until), (seed, until)
        if chance.random() < 0.2:
            fed(machines, chance)
    assert reference.hart.traps > 20 and len(reference.lines.external) > 10


@pytest.mark.parametrize("seed", range(30, 32))
def test_a_machine_that_goes_on_from_the_state_of_another(seed, monkeypatch):
    """Snapshots with stores on their way and interrupts between PLIC and mip."""
    machines = reference, native = both(NATIVE_FORMS[1], seed, monkeypatch, interrupting_program)
    chance = random.Random(seed)
    for number, until in enumerate(until_it_stops(reference, seed, 1500)):
        assert native.run(until) == reference.run(until), (seed, until)
        if chance.random() < 0.2:
            fed(machines, chance)
        if number % 5 == 4:
            one, two = ({name: getattr(machine, name).state() for name in PARTS} for machine in machines)
            assert one == two
            for machine, states in ((reference, two), (native, one)):
                for name, state in states.items():
                    getattr(machine, name).load_state(state)
                machine.engine.flush()


def test_an_observer_of_the_uart_sees_every_access_and_changes_nothing(monkeypatch):
    machines = reference, native = both(NATIVE_FORMS[1], 23, monkeypatch, interrupting_program)
    seen: tuple[list[object], list[object]] = [], []
    for number, until in enumerate(until_it_stops(reference, 23, 2500)):
        assert native.run(until) == reference.run(until), until
        if number == 5:
            for machine, log in zip(machines, seen, strict=True):
                machine.bus.log(machine.uart)
                machine.clock.log.subscribe(log.extend)
    for machine in machines:
        machine.clock.log.read()
    taking = [[row for row in log if row[3] - UART in (0, 2) and row[5] == LogKind.LOAD] for log in seen]
    assert taking[0] == taking[1] and len(taking[0]) > 20  # stable registers need not be read again


def transmitter(machine: Machine) -> None:
    """Sends from its interrupt handler, for ever: claim, identify, send, complete."""
    one = machine.hart.isa.encode
    handler = [
        one("lw", rd=31, rs1=AT_CONTEXT, imm=CLAIM),
        one("lbu", rd=30, rs1=AT_UART, imm=2),
        one("addi", rd=29, rs1=29, imm=1),
        one("sb", rs1=AT_UART, rs2=29),
        one("sw", rs1=AT_CONTEXT, rs2=31, imm=CLAIM),
        one("mret"),
    ]
    machine.bus.poke(RAM, b"".join(word.to_bytes(4, "little") for word in handler))
    start = []
    for base, value, imm, row in (
        (AT_PRIORITY, 1, 4 * UART_SOURCE, "sw"),
        (AT_PLIC, 1 << UART_SOURCE, 0, "sw"),
        (AT_UART, 2, 1, "sb"),
    ):
        start += [one("addi", rd=20, imm=value), one(row, rs1=base, rs2=20, imm=imm)]
    machine.load(start + looped(machine.hart.isa, [one("addi", rd=21, rs1=21, imm=1)] * 9))


def test_interrupts_of_the_uart_ask_python_for_nothing(monkeypatch):
    NATIVE_FORMS[1].choose(monkeypatch)
    reference, native = Machine("reference", 1), Machine("fast", 1)
    for machine in (reference, native):
        transmitter(machine)
        machine.run(2000)
    native.count()
    for until in (10_000, 12_345, 40_000):
        assert native.run(until) == reference.run(until)
    sent = bytes(native.uart.console.data)
    assert native.hart.traps > 100 and len(sent) > 100
    assert sent == bytes(number % 256 for number in range(1, len(sent) + 1))
    assert native.asked < 30  # once for each full buffer of characters, and registers that are used first


def text_program(isa: Isa, seed: int) -> list[int]:
    """Much text to the UART, hundreds of stores in a row, and now and then something else than text: scratch, format,
    divisor, loopback, the interrupt of the transmitter, which is not enabled in the PLIC; another device."""
    chance, one, words = random.Random(seed), isa.encode, list[int]()

    def text(length: int) -> None:
        for _ in range(length):
            words.append(one("sb", rs1=AT_UART, rs2=17, imm=0 if chance.random() < 0.9 else 7))
            if chance.random() < 0.3:
                words.append(one("addi", rd=17, rs1=17, imm=chance.randrange(1, 90)))

    def pause() -> None:
        """All stores arrive, or not; maybe Python is asked then."""
        words.extend([one("addi", rd=18, rs1=18, imm=1)] * chance.choice((0, 5, 70)))
        words.extend([one("lbu", rd=18, rs1=AT_UART, imm=2)] * chance.randrange(2))

    def put(register: int, value: int) -> None:
        words.extend((one("addi", rd=16, imm=value), one("sb", rs1=AT_UART, rs2=16, imm=register)))

    while len(words) < 700:
        text(chance.choice((3, 20, 70, 200)))
        what = chance.random()
        if what < 0.3:
            words.append(one("lbu", rd=chance.randrange(18, 28), rs1=AT_UART, imm=chance.randrange(8)))
        elif what < 0.9:
            pause()
            put(*chance.choice(((3, 0x83), (1, 2), (1, 3), (2, 1), (4, 0x10), (4, 0x10))))
            text(chance.choice((0, 1, 3, 9, 80)))
            pause()
            for register, value in ((4, 0), (3, 3), (1, 0)):
                put(register, value)
        else:
            words.append(one(chance.choice(("lw", "sw")), rd=18, rs1=AT_OWN, rs2=17))
    return looped(isa, words)


@pytest.mark.parametrize("seed", [*range(50, 59), *slow(*range(59, 68))])
def test_text_that_native_code_lets_arrive_is_that_of_the_reference(seed, monkeypatch):
    machines = reference, native = both(NATIVE_FORMS[1], seed, monkeypatch, text_program)
    chance, longest = random.Random(seed), (300, 500, 4001)[seed // 3 % 3]
    while reference.hart.instret < 5000:
        until = reference.hart.cycle + chance.randint(1, longest)
        assert native.run(until) == reference.run(until), (seed, until)
        if chance.random() < 0.1:
            fed(machines, chance)
    assert len(reference.uart.console.data) > 300


def loopback_program(isa: Isa, seed: int) -> list[int]:
    """Characters right behind a store that switches loopback on."""
    chance, one = random.Random(seed), isa.encode
    nothing, text = [one("addi", rd=17, rs1=17, imm=1)], [one("sb", rs1=AT_UART, rs2=17)]
    words = [one("addi", rd=16, imm=0x10), *chance.choice((1, 3)) * text, *chance.choice((0, 60, 60)) * nothing]
    words += [one("sb", rs1=AT_UART, rs2=16, imm=4), *chance.choice((1, 2, 9)) * text]
    words += chance.choice((5, 60)) * nothing
    return looped(isa, [*words, one("lbu", rd=18, rs1=AT_UART, imm=chance.choice((0, 2, 5))), *150 * nothing])


@pytest.mark.parametrize("timing", (1, 2))
def test_characters_are_sent_back_from_the_store_on_that_says_so(timing, monkeypatch):
    for seed in range(timing, timing + 25 * len(TIMINGS), len(TIMINGS)):
        reference, native = both(NATIVE_FORMS[1], seed, monkeypatch, loopback_program)
        chance = random.Random(seed)
        while reference.hart.instret < 150:
            until = reference.hart.cycle + chance.randint(20, 110)
            assert native.run(until) == reference.run(until), (seed, until)
        assert reference.uart.state()["mcr"] == 0x10


@pytest.mark.parametrize("timing", (1, 2))
def test_text_on_its_way_has_not_arrived(timing, monkeypatch):
    """Wherever a run ends."""
    machines = reference, native = both(NATIVE_FORMS[1], timing, monkeypatch, lambda isa, seed: [])
    for machine in machines:
        one = machine.hart.isa.encode
        machine.load(looped(machine.hart.isa, [one("addi", rd=17, rs1=17, imm=1), one("sb", rs1=AT_UART, rs2=17)] * 9))
    chance = random.Random(timing)
    for _ in range(60):
        until = reference.hart.cycle + chance.randint(*((150, 400), (2000, 4001))[timing - 1])
        assert native.run(until) == reference.run(until), until


@pytest.mark.parametrize("register", [0, 7], ids=["text", "scratch"])
def test_stores_to_the_uart_ask_python_once_in_thousands(register, monkeypatch):
    NATIVE_FORMS[1].choose(monkeypatch)
    machine = Machine("fast", 1)  # stores arrive 12 cycles later
    one = machine.hart.isa.encode
    store, step = one("sb", rs1=AT_UART, rs2=17, imm=register), one("addi", rd=17, rs1=17, imm=1)
    machine.load([store, step, store, step, one("jal", imm=-16)])
    machine.run(2000)
    machine.count()
    stored = machine.hart.x[17]
    machine.run(200_000)
    stored = machine.hart.x[17] - stored
    assert stored > 30_000 and machine.asked < stored / 500 + 5
    if not register:
        sent = machine.uart.console.data
        assert sent == bytes(number % 256 for number in range(len(sent))) and len(sent) > stored


class Alarm(Own):
    """It interrupts again and again: some cycles after a store to it, which lowers its line."""

    level, due = False, 0

    @property
    def irq(self) -> bool:
        return self.level

    def next_event(self) -> int | None:
        return self.due or None

    def advance(self, now: int) -> None:
        if 0 < self.due <= now:
            self.level, self.due = True, 0

    def write(self, offset: int, size: int, value: int, now: int) -> Reply | None:
        self.level, self.due = False, now + 50 + len(self.log) % 70
        return super().write(offset, size, value, now)


@pytest.mark.parametrize("seed", range(len(TIMINGS)))
def test_interrupts_of_a_device_in_python_are_claimed_and_completed_by_native_code(seed, monkeypatch):
    """Python is asked for the device alone: an event, two stores and a load per interrupt."""
    NATIVE_FORMS[1].choose(monkeypatch)
    machines = reference, native = Machine("reference", seed, own=Alarm), Machine("fast", seed, own=Alarm)
    for machine in machines:
        one = machine.hart.isa.encode
        words = [
            one("lw", rd=31, rs1=AT_CONTEXT, imm=CLAIM),
            one("addi", rd=29, rs1=29, imm=1),
            one("sw", rs1=AT_OWN, rs2=29),
            one("lw", rd=30, rs1=AT_OWN, imm=4),  # by then the line is low
            one("sw", rs1=AT_CONTEXT, rs2=31, imm=CLAIM),
            one("mret"),
        ]
        machine.bus.poke(RAM, b"".join(word.to_bytes(4, "little") for word in words))
        start = [one("addi", rd=20, imm=1), one("slli", rd=20, rs1=20, imm=OWN_SOURCE), one("sw", rs1=AT_PLIC, rs2=20)]
        start += [one("sw", rs1=AT_PRIORITY, rs2=29, imm=4 * OWN_SOURCE) for _ in range(2)]
        machine.hart.x[29] = 1
        start.append(one("sw", rs1=AT_OWN, rs2=29))
        machine.load(start + looped(machine.hart.isa, [one("addi", rd=21, rs1=21, imm=1)] * 9))
        machine.run(2000)
    native.count()
    traps = native.hart.traps
    for until in (10_000, 12_345, 40_000):
        assert native.run(until) == reference.run(until)
    assert native.hart.traps > traps + 100
    assert native.asked < 4 * (native.hart.traps - traps) + 10


@pytest.mark.parametrize("access", ["lw", "sw"])
@pytest.mark.parametrize("offset", [0, 8, 16, 20])
def test_native_code_calls_a_device_in_python_itself(access, offset, monkeypatch):
    """Also where it changes the code of the very load, and where it says more than a value."""
    NATIVE_FORMS[1].choose(monkeypatch)
    machines = reference, native = Machine("reference", 1), Machine("fast", 1)
    one = native.hart.isa.encode
    for machine in machines:
        machine.hart.csrs.mtvec = MAIN + 0x80
        row = one(access, rd=16, rs1=AT_OWN, rs2=16, imm=offset)
        machine.load([row, one("jal", imm=-4), *[one("addi")] * 30, one("jal", imm=-0x80)])
    for until in (1000, 1003, 3000):
        assert native.run(until) == reference.run(until)
    assert len(native.own.log) > 40 and native.hart.x[0] == 0
