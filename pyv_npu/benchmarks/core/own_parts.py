"""Microseconds of CPU of an access to a device in Python, or of a custom instruction, in a process of their own.

The loop around them is taken off. `device`: a load and a store, of a device without and then with line and events; an
event of one; and a call of its method by Python alone.
`instruction`: one that declares more and more less of what it touches.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pyv_ext.devices.base import DeviceBase, Register, RegisterDevice
from pyv_ext.elf import Program, Segment
from pyv_ext.isa import Isa
from pyv_ext.protocols import CustomInstruction, Device, Operands, Outcome, Placed
from pyv_npu.config import load
from pyv_npu.platform import Platform

RAM, OWN, TIMES = 0x8000_0000, 0x4800_0000, 8
PERIOD = 50
"""Cycles."""
MATCH, MASK = 0x2B, 0xFE00_707F
_encode = Isa("rv32im").encode


class OwnDevice(DeviceBase):
    """One register; it declares nothing."""

    name, size, value = "own", 0x1000, 0

    def accepts(self, offset: int, size: int, write: bool) -> bool:
        return size == 4

    def read(self, offset: int, size: int, now: int) -> int:
        return self.value

    def write(self, offset: int, size: int, value: int, now: int) -> None:
        self.value = value


class TimedDevice(OwnDevice):
    """It might interrupt, and might have events."""

    @property
    def irq(self) -> bool:
        return False

    def next_event(self) -> int | None:
        return None


class TickingDevice(OwnDevice):
    """It has an event every `PERIOD` cycles."""

    due = PERIOD

    def next_event(self) -> int | None:
        return self.due

    def advance(self, now: int) -> None:
        self.due = now + PERIOD


class OwnRegister(RegisterDevice):
    name, size, registers = "own", 0x1000, (Register("VALUE", 0),)


def add(operands: Operands) -> Outcome:
    return operands.rs1 + 1


def seconds(
    word: int, turns: int, device: Device, instructions: Sequence[CustomInstruction] = (), slice_: int = 200_000
) -> float:
    """Of one execution of an instruction, whose word is given."""
    once = _loop(word, TIMES, turns, device, instructions, slice_).seconds
    return (once - _loop(word, 0, 50 * turns, device, instructions, slice_).seconds) / TIMES


class Turn(NamedTuple):
    """Of a loop: what it takes."""

    seconds: float
    cycles: float


def _loop(
    word: int, times: int, turns: int, device: Device, instructions: Sequence[CustomInstruction], slice_: int
) -> Turn:
    """One turn of a loop with so many of them, after native code has been made."""
    words = [word] * times + [_encode("addi", rd=5, rs1=5, imm=-1)]
    words.append(_encode("bne", rs1=5, rs2=0, imm=-4 * len(words)))
    code = b"".join(each.to_bytes(4, "little") for each in words)
    config = load(preset="soc-axi", overrides={"npu.mode": "loose"}).config
    platform = Platform(config, instructions=instructions, devices=[Placed(OWN, device)])
    platform.load(Program("loop", RAM, (Segment(RAM, code, len(code), True),), {}, (), ()))
    x = platform.hart.x
    x[5], x[6] = 1 << 30, OWN
    platform.run(until=40 * slice_)
    first, cycle, begun = x[5], platform.cycle, time.process_time()
    while x[5] > first - turns:
        platform.run(until=platform.cycle + slice_)
    done = first - x[5]
    return Turn((time.process_time() - begun) / done, (platform.cycle - cycle) / done)


def of_a_device(turns: int) -> Iterator[float]:
    for device in (OwnDevice, TimedDevice):
        for row in ("lw", "sw"):
            yield seconds(_encode(row, rd=7, rs1=6, rs2=5), turns, device())
    yield of_an_event(50 * turns)
    read, begun = OwnDevice().read, time.process_time()
    for now in range(10 * turns):
        read(0, 4, now)
    yield (time.process_time() - begun) / (10 * turns)


def of_an_event(turns: int) -> float:
    """Seconds of one."""
    word = _encode("addi", rd=7, rs1=7, imm=1)
    ticking, quiet = (_loop(word, TIMES, turns, device, (), 200_000) for device in (TickingDevice(), OwnDevice()))
    return (ticking.seconds - quiet.seconds) * PERIOD / ticking.cycles


def of_an_instruction(turns: int) -> Iterator[float]:
    own = OwnRegister()
    declarations: tuple[dict[str, Any], ...] = (
        {"expr": "(a + 1) & M"}, {"touches": "nothing"}, {"touches": "memory"}, {"device": own}, {},
    )  # fmt: skip
    for declared in declarations:
        row = CustomInstruction("own", MATCH, MASK, "rd,rs1,rs2", None if "expr" in declared else add, **declared)
        count = turns if row.handler else 50 * turns
        yield seconds(MATCH | 7 << 7 | 5 << 15 | 6 << 20, count, own, [row], 20_000)


if __name__ == "__main__":
    kind, turns = sys.argv[1:]
    for each in {"device": of_a_device, "instruction": of_an_instruction}[kind](int(turns)):
        print(each * 1e6)
