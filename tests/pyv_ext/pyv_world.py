"""A machine full of trouble, for engines in lock-step.

Devices with side effects, waits and faults; interrupt lines that move and DMA into data and code, at any cycle; custom
instructions that stall, retry, trap and take their time; CSRs that belong to a device.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from compared_machines import ComparedMachine

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import Clock
from pyv_ext.bus.memory import Ram
from pyv_ext.engines.engine import Engine
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Isa
from pyv_ext.protocols import CustomInstruction, Operands, Outcome, Reply, Retry, Stall, Trap, Value
from pyv_ext.timing import CoreTiming

ISA = "rv32im_zicsr_zifencei"
RAM, RAM_SIZE = 0x8000_0000, 0x4000
HANDLER, DATA = RAM + 0x1000, RAM + 0x2000
SPM, ROM, DISTURBER = 0x5000_0000, 0x1000, 0x4000_0000
NOP = 0x13
LEVELS = (0, 1 << 3, 1 << 7, 1 << 11, 1 << 3 | 1 << 11, 1 << 3 | 1 << 7 | 1 << 11)
WINDOW = (0x7C0, 0x7C1, 0xFC0)
SLOT = 0b0001011


class Event(NamedTuple):
    """At the start of `cycle`: lines become `value` (address 0), or DMA writes a word."""

    cycle: int
    address: int
    value: int


class Image(NamedTuple):
    """What is in the world before the first cycle."""

    memory: dict[int, bytes]
    registers: dict[int, int]
    events: tuple[Event, ...] = ()


class Disturber:
    """Reads of its words: 0 counts them, 1 waits, 2 faults, 3 shows the cycle. Writes: see `write`. 64.. is bytes."""

    name, size, irq = "disturber", 0x1000, False

    def __init__(self, bus: Bus, hart: Hart, events: Sequence[Event], journal: list[object]) -> None:
        self._bus = bus
        self._journal = journal
        self._events = sorted(events)
        self._count = 0
        self._hart = hart
        self._bytes = bytearray(64)

    def accepts(self, offset: int, size: int, write: bool) -> bool:
        return 64 <= offset < 128 or (size == 4 and offset < (32 if write else 16))

    def refused(self, offset: int, size: int, write: bool, now: int) -> None:
        self._journal.append(("refused", offset, size, write, now))

    def read(self, offset: int, size: int, now: int) -> int | Reply:
        self._journal.append(("read", offset, size, now))
        if offset >= 64:
            return int.from_bytes(self._bytes[offset - 64 : offset - 64 + size], "little")
        self._count += 1
        return (self._count, Reply(self._count, wait=self._count & 3), Reply(fault=True), now)[offset // 4]

    def write(self, offset: int, size: int, value: int, now: int) -> Reply | None:
        self._journal.append(("write", offset, size, value, now))
        if offset >= 64:
            self._bytes[offset - 64 : offset - 64 + size] = value.to_bytes(size, "little")
            return None
        later, what = now + 1 + (value & 15), value >> 4
        code = RAM + 4 * (what & 0x3FF)
        if offset == 4:
            return Reply(wait=value & 3)
        if offset == 8:
            return Reply(fault=True)
        if offset == 12:
            heappush(self._events, Event(later, 0, LEVELS[what % len(LEVELS)]))
        elif offset == 16:
            heappush(self._events, Event(later, DATA + 4 * (what & 31), what * 0x9E37_79B1 & 0xFFFF_FFFF))
        elif offset == 20:
            heappush(self._events, Event(later, code, NOP))
        elif offset == 24:
            self._bus.poke(code, NOP.to_bytes(4, "little"))
        elif offset == 28:
            self._hart.csrs.mip = 0
        return None

    def next_event(self) -> int | None:
        return self._events[0].cycle if self._events else None

    def advance(self, now: int) -> None:
        while self._events and self._events[0].cycle <= now:
            event = heappop(self._events)
            self._journal.append(("event", event, now))
            if event.address:
                self._bus.poke(event.address, event.value.to_bytes(4, "little"))
            else:
                self._hart.csrs.mip = event.value


class DisturberCsrs:
    """The first counts its reads, the second moves interrupt lines in two cycles, the third shows the cycle."""

    addresses = frozenset(WINDOW)

    def __init__(self, disturber: Disturber, journal: list[object]) -> None:
        self._disturber = disturber
        self._journal = journal
        self._count = 0

    def read(self, address: int, now: int) -> int:
        self._journal.append(("csr read", address, now))
        self._count += address == WINDOW[0]
        return now if address == WINDOW[2] else self._count

    def write(self, address: int, value: int, now: int, written: int) -> None:
        self._journal.append(("csr write", address, value, now, written))
        if address == WINDOW[1]:
            self._disturber.write(12, 4, value << 4 & 0xF0 | 1, now)


def custom_instructions(journal: list[object]) -> list[CustomInstruction]:
    """One for each funct3."""

    def row(funct3: int, answer: Callable[[Operands], Outcome], **more: object) -> CustomInstruction:
        def handler(operands: Operands) -> Outcome:
            journal.append((answer.__name__, *operands[:5], operands.resumed))
            return answer(operands)

        match = funct3 << 12 | SLOT
        return CustomInstruction(answer.__name__, match, 0xFE00_707F, "rd,rs1,rs2", handler, **more)  # type: ignore[arg-type]

    def mixes(operands: Operands) -> Outcome:
        return operands.rs1 ^ operands.rs2

    def takes_time(operands: Operands) -> Outcome:
        return Value(operands.rs1 + operands.rs2, operands.rs2 & 3)

    def waits_for_a_cycle(operands: Operands) -> Outcome:
        return Stall(operands.now | 7) if operands.now & 7 != 7 else Value(operands.now)

    def waits_for_an_event(operands: Operands) -> Outcome:
        return Value(operands.now) if operands.resumed else Stall()

    def asks_again(operands: Operands) -> Outcome:
        return Retry(1 + (operands.rs1 & 3)) if operands.now % 5 else -1

    def traps(operands: Operands) -> Outcome:
        return Trap(24, operands.rs1)

    def issues_slowly(operands: Operands) -> Outcome:
        return Value(operands.now, 1)

    def loads(operands: Operands) -> Outcome:
        found = operands.load(operands.rs1 & -4, 4)
        return Trap(5, operands.rs1) if found is None else int.from_bytes(found, "little")

    return [
        row(0, mixes),
        row(1, takes_time),
        row(2, waits_for_a_cycle),
        row(3, waits_for_an_event),
        row(4, asks_again),
        row(5, traps),
        row(6, issues_slowly, issue=3, ready=lambda operands: operands.now % 4 == 3),
        row(7, loads),
    ]


def side(name: str, engine: Callable[[Hart, Bus], Engine], image: Image) -> ComparedMachine:
    """A world that starts with `image`, on the engine that `engine` makes."""
    journal: list[object] = []
    bus = Bus(Clock(), CoreTiming())
    for memory in (
        Ram("ram", RAM, RAM_SIZE),
        Ram("spm", SPM, 0x1000, near=True),
        Ram("rom", ROM, 0x1000, writable=False),
    ):
        bus.add_ram(memory)
    for address, content in image.memory.items():
        ram = bus.ram_at(address, len(content))
        assert ram is not None
        ram.u8[address - ram.base : address - ram.base + len(content)] = content
    hart = Hart(Isa(ISA, custom_instructions(journal)), bus.timing, bus.clock.records, reset_pc=RAM, reset_cycles=1)
    for register, value in image.registers.items():
        hart.x[register] = value
    hart.csrs.mtvec = HANDLER
    disturber = Disturber(bus, hart, image.events, journal)
    hart.csrs.add_window(DisturberCsrs(disturber, journal))
    bus.add_device(DISTURBER, disturber)
    return ComparedMachine(name, engine(hart, bus), journal)
