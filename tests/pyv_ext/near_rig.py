"""A machine with CLINT, PLIC and UART, and random programs for it, for lock-step between native code and Python."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from core_rows import Lines
from hart_rig import FULL

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import Clock
from pyv_ext.bus.memory import Ram
from pyv_ext.cores import make_engine
from pyv_ext.devices.base import DeviceBase
from pyv_ext.devices.clint import Clint
from pyv_ext.devices.interrupts import InterruptWiring
from pyv_ext.devices.plic import Plic
from pyv_ext.devices.uart import Uart
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Isa
from pyv_ext.machine.functions import LINKAGE
from pyv_ext.protocols import BusMaster, Reply
from pyv_ext.timing import CoreTiming

RAM, CLINT, PLIC, UART = 0x8000_0000, 0x200_0000, 0xC00_0000, 0x1000_0000
COMPARE, TIME = CLINT + 0x4000, CLINT + 0xBFF8
AT_SOFTWARE, AT_COMPARE, AT_TIME, AT_UART, AT_PLIC, AT_CONTEXT, AT_PRIORITY, AT_PENDING, ALL = (
    8,
    9,
    10,
    11,
    12,
    13,
    14,
    15,
    28,
)
AT_OWN, OWN = 7, 0x4800_0000
CLAIM = 4
"""From `AT_CONTEXT`."""
MAIN = RAM + 0x200
PARTS = ("hart", "bus", "uart", "clint", "plic", "wiring", "clock")
TIMINGS = (
    CoreTiming(),
    CoreTiming(near_extra=3, load=2, store=2, irq=4, wfi=3, mmio_write=2, mmio_one_way=12, mmio_read=30, plic=5),
    CoreTiming(mmio_one_way=60, mmio_read=9, posted_depth=2, near_extra=1, csr=3),
)


class Own(DeviceBase):
    """A device of a user's, in Python and nothing else: what it reads counts, and it knows what it was asked when."""

    name, size = "own", 0x100

    def __init__(self, clock: Clock) -> None:
        self.log: list[tuple[int, ...]] = []
        self._clock = clock

    def connect(self, master: BusMaster) -> None:
        self._master = master

    def accepts(self, offset: int, size: int, write: bool) -> bool:
        return True

    def read(self, offset: int, size: int, now: int) -> int | Reply:
        self.log.append((offset, size, now, self._clock.now))
        if offset == 8:
            self._clock.changed(now + 1)
        elif offset == 20:  # what may be the code of this very load is written again
            for line in range(MAIN, MAIN + 0x400, 64):
                self._master.poke(line, self._master.peek(line, 64) or b"")
        return Reply(offset + now % 4, now % 3, now % 7 == 0) if offset == 16 else len(self.log) * 0x1234567

    def write(self, offset: int, size: int, value: int, now: int) -> Reply | None:
        self.log.append((offset, size, value, now, self._clock.now))
        if offset == 8:
            self._clock.changed(now + 1)
        return None


class Machine:
    def __init__(
        self, engine: str, seed: int, *, divider: int | None = None, own: type[Own] = Own, near: bool = False
    ) -> None:  # fmt: skip
        chance = random.Random(seed)
        self.timing = TIMINGS[seed % len(TIMINGS)]
        self.clock = Clock()
        self.bus = Bus(self.clock, self.timing)
        self.bus.add_ram(Ram("ram", RAM, 0x1_0000))
        self.hart = Hart(Isa(FULL), self.timing, self.clock.records, reset_pc=MAIN)
        self.clint = Clint(chance.choice((1, 2, 7, 40)) if divider is None else divider)
        self.plic, self.uart = Plic(), Uart()
        self.engine = make_engine(engine, self.hart, self.bus)
        self.bus.add_device(CLINT, self.clint, near=True)
        self.bus.add_device(PLIC, self.plic)
        self.bus.add_device(UART, self.uart)
        self.own = own(self.clock)
        self.bus.add_device(OWN, self.own, near=near)
        self.wiring = InterruptWiring(
            self.clock, clint=self.clint, plic=self.plic, sources={10: self.uart, 11: self.own},
            plic_delay=self.timing.plic,
        )  # fmt: skip
        self.asked = 0
        """Callbacks since `count`."""
        hart, x = self.hart, self.hart.x
        hart.csrs.mtvec, hart.csrs.mie, hart.csrs.mstatus = RAM, 0x888, 0x1888
        for register, address in (
            (AT_SOFTWARE, CLINT), (AT_COMPARE, COMPARE), (AT_TIME, TIME), (AT_UART, UART), (AT_PLIC, PLIC + 0x2000),
            (AT_CONTEXT, PLIC + 0x20_0000), (AT_PRIORITY, PLIC),
            (AT_PENDING, PLIC + 0x1000), (AT_OWN, OWN),
        ):  # fmt: skip
            x[register] = address
        x[ALL] = 0x888
        self.lines = Lines(self.clock)
        self.bus.poke(RAM, handler(hart.isa))

    def count(self) -> None:
        """Count what native code asks Python for from now on."""
        arena = self.clock.arena
        for declaration, call in tuple(arena.callbacks.items()):

            def counted(*given: int, call: Any = call) -> int:
                self.asked += 1
                return call(*given)

            arena.link_callback(LINKAGE.slots[declaration], declaration, counted)

    def load(self, words: list[int]) -> None:
        self.bus.poke(MAIN, b"".join(word.to_bytes(4, "little") for word in words))

    def seen(self) -> tuple[object, ...]:
        hart, csrs = self.hart, self.hart.csrs
        plain = ("mstatus", "mie", "mip", "mepc", "mcause", "mtval")
        devices = (self.clint, self.plic, self.uart, self.wiring)
        return (
            hart.pc, hart.cycle, hart.instret, hart.traps, hart.waiting, *(getattr(csrs, name) for name in plain),
            *hart.x[:32], *(device.state() for device in devices), self.clock.next, bytes(self.uart.console.data),
            tuple(self.lines.external), tuple(self.own.log),
        )  # fmt: skip

    def run(self, until: int) -> tuple[object, ...]:
        """All that can be seen of it then."""
        stop = self.engine.run(until)
        return (stop, *self.seen())


def handler(isa: Isa) -> bytes:
    """Takes back a software interrupt, arms the timer anew, and serves the UART; other traps go on after the
    instruction."""
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
        one("lw", rd=31, rs1=AT_CONTEXT, imm=CLAIM),
        one("lbu", rd=30, rs1=AT_UART, imm=2),
        one("lbu", rd=30, rs1=AT_UART),
        one("sb", rs1=AT_UART, rs2=29),
        one("sw", rs1=AT_CONTEXT, rs2=31, imm=CLAIM),
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
    return looped(isa, words)


def looped(isa: Isa, words: list[int]) -> list[int]:
    """These words for ever, with interrupts on again."""
    return [*words, isa.encode("csrrwi", imm=8, csr=0x300), isa.encode("jal", imm=-4 * (len(words) + 1))]


def interrupting_program(isa: Isa, seed: int) -> list[int]:
    """An endless loop over accesses of all registers of PLIC and UART, with interrupts of UART and timer."""
    chance, one, words = random.Random(seed), isa.encode, list[int]()
    registers = (
        (AT_PLIC, 0),
        (AT_PENDING, 0),
        (AT_CONTEXT, 0),
        (AT_CONTEXT, CLAIM),
        (AT_PRIORITY, 40),
        (AT_PRIORITY, 44),
    )
    for _ in range(100):
        what, (base, imm), register = chance.random(), chance.choice(registers), chance.randrange(16, 28)
        if what < 0.08:
            words.append(one("lw", rd=register, rs1=base, imm=imm))
        elif what < 0.14:
            value = chance.choice((0, 1, 3, 7, 10, 11, 0x400, 0x7FF, -1))
            words += [one("addi", rd=register, imm=value), one("sw", rs1=base, rs2=register, imm=imm)]
        elif what < 0.3:  # what lets the UART interrupt
            for at, value, place in ((AT_PRIORITY, 5, 40), (AT_PLIC, 0x400, 0), (AT_CONTEXT, chance.randrange(6), 0)):
                words += [one("addi", rd=register, imm=value), one("sw", rs1=at, rs2=register, imm=place)]
            words += [
                one("addi", rd=register, imm=chance.choice((1, 2, 3, 3))),
                one("sb", rs1=AT_UART, rs2=register, imm=1),
            ]
            if chance.random() < 0.5:
                words += [one("csrrs", rs1=ALL, csr=0x304), one("csrrwi", imm=8, csr=0x300)]
        elif what < 0.5:
            words.append(one("lbu", rd=register, rs1=AT_UART, imm=chance.choice((0, 0, 1, 2, 2, 3, 4, 5, 5, 6, 7))))
        elif what < 0.64:
            words.append(one("sb", rs1=AT_UART, rs2=register, imm=chance.choice((0, 0, 0, 0, 7, 7))))
        elif what < 0.74:
            place, value = chance.choice(
                (
                    (1, 0),
                    (1, 3),
                    (2, 0),
                    (2, 7),
                    (2, 0xC1),
                    (2, 0x41),
                    (3, 3),
                    (3, 0x83),
                    (3, 3),
                    (4, 0x10),
                    (4, 0),
                    (4, 11),
                )
            )
            words += [one("addi", rd=register, imm=value), one("sb", rs1=AT_UART, rs2=register, imm=place)]
        elif what < 0.8:  # the timer comes between
            words += [
                one("lw", rd=register, rs1=AT_TIME),
                one("addi", rd=register, rs1=register, imm=chance.randrange(60)),
            ]
            words += [one("sw", rs1=AT_COMPARE, imm=4), one("sw", rs1=AT_COMPARE, rs2=register)]
            if chance.random() < 0.4:
                words += [one("csrrs", rs1=ALL, csr=0x304), one("wfi")]
        elif what < 0.84:
            words.append(one(chance.choice(("csrrsi", "csrrci")), imm=8, csr=chance.choice((0x300, 0x304))))
        elif what < 0.92:
            (offset, width), kind = (
                chance.choice(((0, "w"), (0, "w"), (4, "b"), (8, "w"), (12, "h"), (16, "w"), (20, "w"))),
                chance.choice("sl"),
            )
            words.append(one(kind + width, rd=register, rs1=AT_OWN, rs2=register, imm=offset))
        elif what < 0.94:
            words.append(one(chance.choice(("lb", "lh", "sh")), rd=register, rs1=base, rs2=register, imm=imm))
        else:
            words.append(one(chance.choice(("addi", "xori")), rd=register, rs1=register, imm=chance.randrange(-90, 90)))
    return looped(isa, words)


def both(form: Any, seed: int, patch: pytest.MonkeyPatch, make: Any = program) -> tuple[Machine, Machine]:
    form.choose(patch)
    machines = Machine("reference", seed), Machine("fast", seed)
    for machine in machines:
        machine.load(make(machine.hart.isa, seed))
    return machines


def until_it_stops(reference: Machine, seed: int, instructions: int) -> Iterator[int]:
    """Cycles up to which to run, until so many instructions have retired, or a wait is long."""
    chance = random.Random(seed)
    for _ in range(instructions):
        if reference.hart.instret >= instructions:
            return
        yield reference.hart.cycle + chance.choice((1, 2, 3, 17, chance.randint(1, 4001)))
        if reference.hart.waiting is not None and reference.clock.next > reference.hart.cycle + 10_000:
            return
