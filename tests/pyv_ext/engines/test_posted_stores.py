"""Stores to devices that native code leaves in its queue: they arrive as if it had asked Python for each."""

import random

import pytest
from core_rows import Lines
from engine_world import compare
from hart_rig import FULL
from native_forms import NATIVE_FORMS

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import Clock
from pyv_ext.bus.memory import Ram
from pyv_ext.cores import make_engine
from pyv_ext.devices.base import Register, RegisterDevice
from pyv_ext.devices.clint import Clint
from pyv_ext.devices.interrupts import InterruptWiring
from pyv_ext.devices.plic import Plic
from pyv_ext.devices.uart import Uart
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Isa
from pyv_ext.machine.state import SENT
from pyv_ext.protocols import Reply
from pyv_ext.timing import CoreTiming

RAM, UART, OWN = 0x8000_0000, 0x1000_0000, 0x4800_0000
COUNTER, VALUE, AT_UART, AT_OWN = 5, 6, 8, 9
_, INTERPRETED = NATIVE_FORMS
TIMINGS = (
    CoreTiming(),
    CoreTiming(mmio_write=2, mmio_one_way=60, mmio_read=120),
    CoreTiming(mmio_one_way=7, mmio_read=15, posted_depth=1),
)


class Own(RegisterDevice):
    """Registers that do nothing."""

    name = "own"
    size = 0x100
    registers = (Register("A", 0), Register("B", 4, mask=0xFF), Register("FLAGS", 8, "w1c", reset=0xF))


class Refusal(Own):
    """Refuses stores to B, slowly."""

    def on_write(self, name: str, value: int, now: int) -> Reply | None:
        return Reply(fault=True, wait=5) if name == "B" else super().on_write(name, value, now)


class Machine:
    def __init__(self, engine: str, seed: int, own: type[Own] = Own) -> None:
        timing = TIMINGS[seed % len(TIMINGS)]
        isa = Isa(FULL)
        self.clock = Clock()
        self.bus = Bus(self.clock, timing)
        self.bus.add_ram(Ram("ram", RAM, 0x1_0000))
        self.hart = Hart(isa, timing, self.clock.records, reset_pc=RAM)
        self.uart, self.own = Uart(), own()
        self.bus.add_device(UART, self.uart)
        self.bus.add_device(OWN, self.own)
        InterruptWiring(self.clock, clint=Clint(), plic=Plic(), sources={}, direct=[self.uart])
        self.lines = Lines(self.clock)
        self.engine = make_engine(engine, self.hart, self.bus)
        self.bus.poke(RAM, program(isa, seed))
        x = self.hart.x
        x[COUNTER], x[AT_UART], x[AT_OWN] = 1000, UART, OWN

    def run(self, until: int) -> tuple[object, ...]:
        """All that can be seen of it then."""
        self.engine.run(until)
        hart, bus = self.hart, self.bus.state()
        seen = (self.uart.state(), bytes(self.uart.console.data), dict(self.own._content), self.lines.external, bus)
        return (*seen, hart.pc, hart.cycle, hart.instret, *hart.x[:32])


def program(isa: Isa, seed: int) -> bytes:
    """A loop of text with a few stores to other registers, and loads of some."""
    chance = random.Random(seed)
    words = []
    for _ in range(60):
        what = chance.random()
        if what < 0.6:
            words.append(isa.encode("sb", rs1=AT_UART, rs2=VALUE, imm=0))
        elif what < 0.65:
            words.append(isa.encode("sb", rs1=AT_UART, rs2=VALUE, imm=chance.choice((1, 1, 2, 3, 4, 7))))
        elif what < 0.7:
            words.append(isa.encode("lbu", rd=10, rs1=AT_UART, imm=chance.choice((0, 2, 3, 5, 5, 6, 7, 7))))
        elif what < 0.8:
            words.append(isa.encode("sw", rs1=AT_OWN, rs2=VALUE, imm=4 * chance.randrange(3)))
        elif what < 0.85:
            words.append(isa.encode("lw", rd=11, rs1=AT_OWN, imm=4 * chance.randrange(3)))
        elif what < 0.87:
            words.append(isa.encode(chance.choice(("fence", "fence.i"))))
        else:
            words.append(isa.encode("addi", rd=VALUE, rs1=VALUE, imm=chance.randrange(1, 90)))
    words.append(isa.encode("addi", rd=COUNTER, rs1=COUNTER, imm=-1))
    words.append(isa.encode("bne", rs1=COUNTER, rs2=0, imm=-4 * len(words)))
    words.append(isa.encode("jal", imm=0))
    return b"".join(word.to_bytes(4, "little") for word in words)


@pytest.mark.parametrize("seed", range(3))
def test_text_and_registers_arrive_as_in_the_reference(seed, monkeypatch):
    INTERPRETED.choose(monkeypatch)
    reference, native = Machine("reference", seed), Machine("fast", seed)
    chance = random.Random(seed)
    while reference.hart.instret < 8000:
        until = reference.hart.cycle + chance.choice((1, 3, 50, chance.randint(1, 4001), 9000))
        assert native.run(until) == reference.run(until)
    assert len(reference.uart.console.data) > 1000


def test_characters_that_are_sent_back_are_seen(monkeypatch):
    """With MCR.LOOP, status follows what is stored."""
    INTERPRETED.choose(monkeypatch)
    for timing in range(len(TIMINGS)):
        machine = Machine("fast", timing)
        isa = machine.hart.isa
        words = [isa.encode("lbu", rd=12, rs1=AT_UART, imm=5)] * 3
        words += [isa.encode("addi", rd=VALUE, imm=16), isa.encode("sb", rs1=AT_UART, rs2=VALUE, imm=4)]
        words += [isa.encode("sb", rs1=AT_UART, rs2=VALUE), isa.encode("lbu", rd=12, rs1=AT_UART, imm=5)]
        words += [isa.encode("lbu", rd=12, rs1=AT_UART, imm=5), isa.encode("lbu", rd=12, rs1=AT_UART, imm=5)]
        machine.bus.poke(RAM, b"".join(word.to_bytes(4, "little") for word in (*words, isa.encode("jal", imm=0))))
        machine.run(3000)
        assert machine.hart.x[12] == 0x61


@pytest.mark.parametrize("seed", range(401, 406))
def test_random_programs_that_store_to_devices_all_the_time(seed, monkeypatch):
    INTERPRETED.choose(monkeypatch)
    assert compare(("reference", "fast"), seed, 4000, ports=True).events > 50


def test_text_comes_to_the_console_in_pieces(monkeypatch):
    """In full buffers, and what is left when it is asked for."""
    INTERPRETED.choose(monkeypatch)
    machine = Machine("fast", 1)
    store = machine.hart.isa.encode("sb", rs1=AT_UART, rs2=VALUE, imm=0).to_bytes(4, "little")
    machine.bus.poke(RAM, 700 * store + machine.hart.isa.encode("jal").to_bytes(4, "little"))
    pieces: list[int] = []
    machine.uart.console.sink = lambda data: pieces.append(len(data))
    machine.run(20_000)
    assert sum(pieces) == len(machine.uart.console.data) == 700
    assert pieces == [SENT, 700 - SENT]


@pytest.mark.parametrize("engine", ["reference", "fast"])
def test_a_posted_store_that_its_device_refuses_is_dropped(engine, monkeypatch):
    """Nobody waits for its answer: it is no fault, and no delay, of the load in whose time it arrives."""
    INTERPRETED.choose(monkeypatch)
    results = []
    for offset in (4, 0):
        machine = Machine(engine, 1, Refusal)
        machine.own["A"] = 7
        isa = machine.hart.isa
        words = [isa.encode("sw", rs1=AT_OWN, rs2=0, imm=offset), isa.encode("lw", rd=12, rs1=AT_OWN, imm=8)]
        words.append(isa.encode("jal"))
        machine.bus.poke(RAM, b"".join(word.to_bytes(4, "little") for word in words))
        machine.run(1000)
        assert machine.hart.pc == RAM + 8 and machine.hart.x[12] == 0xF
        assert machine.own["A"] == (7 if offset else 0) and not machine.clock.machine.fault
        results.append(machine.hart.instret)
    assert results[0] == results[1]
