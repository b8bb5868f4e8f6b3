"""CPU seconds of an access to a user's device and of a custom instruction, both in Python, without loop overhead.

Each measurement runs in a separate process.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyv_ext.devices.base import DeviceBase, Register, RegisterDevice
from pyv_ext.elf import Program, Segment
from pyv_ext.isa import Isa
from pyv_ext.protocols import CustomInstruction, Device, Operands, Outcome, Placed
from pyv_npu.config import load
from pyv_npu.platform import Platform

RAM, BASE = 0x8000_0000, 0x4800_0000
TIMES = 8
"""Copies of the instruction in the loop."""
PERIOD = 50
"""Cycles between two events."""
MATCH, MASK = 0x2B, 0xFE00_707F
_encode = Isa("rv32im").encode


class ReadWriteDevice(DeviceBase):
    """Device with one register and without declarations."""

    name, size, value = "own", 0x1000, 0

    def accepts(self, offset: int, size: int, write: bool) -> bool:
        """Return whether an access has the size of the register."""
        return size == 4

    def read(self, offset: int, size: int, now: int) -> int:
        """Return the register."""
        return self.value

    def write(self, offset: int, size: int, value: int, now: int) -> None:
        """Set the register."""
        self.value = value


class TimedDevice(ReadWriteDevice):
    """Device that can interrupt and have events."""

    @property
    def irq(self) -> bool:
        """Level of its line."""
        return False

    def next_event(self) -> int | None:
        """Return None: no event is pending."""
        return None


class TickingDevice(ReadWriteDevice):
    """Device with an event every `PERIOD` cycles."""

    deadline = PERIOD

    def next_event(self) -> int | None:
        """Return the cycle of the next event."""
        return self.deadline

    def advance(self, now: int) -> None:
        """Take the event."""
        self.deadline = now + PERIOD


class StateDevice(RegisterDevice):
    """Device whose state a custom instruction declares."""

    name, size, registers = "own", 0x1000, (Register("VALUE", 0),)


def add(operands: Operands) -> Outcome:
    """Execute the instruction: add 1."""
    return operands.rs1 + 1


def cost(
    word: int, turns: int, device: Device, instructions: Sequence[CustomInstruction] = (), quantum: int = 200_000
) -> float:
    """Return the CPU seconds of one execution of an instruction word."""
    full = _loop(word, TIMES, turns, device, instructions, quantum).seconds
    return (full - _loop(word, 0, 50 * turns, device, instructions, quantum).seconds) / TIMES


class LoopCost(NamedTuple):
    """CPU seconds and cycles of a loop iteration."""

    seconds: float
    cycles: float


def _loop(
    word: int, times: int, turns: int, device: Device, instructions: Sequence[CustomInstruction], quantum: int
) -> LoopCost:
    """Measure an iteration of a loop with `times` copies of an instruction, after the loop has been compiled."""
    words = [word] * times + [_encode("addi", rd=5, rs1=5, imm=-1)]
    words.append(_encode("bne", rs1=5, rs2=0, imm=-4 * len(words)))
    code = b"".join(each.to_bytes(4, "little") for each in words)
    config = load(preset="soc-axi", overrides={"npu.mode": "loose"}).config
    platform = Platform(config, instructions=instructions, devices=[Placed(BASE, device)])
    platform.load(Program("loop", RAM, (Segment(RAM, code, len(code), True),), {}, (), ()))
    x = platform.hart.x
    x[5], x[6] = 1 << 30, BASE
    platform.run(until=40 * quantum)
    first, cycle, start = x[5], platform.cycle, time.process_time()
    while x[5] > first - turns:
        platform.run(until=platform.cycle + quantum)
    count = first - x[5]
    return LoopCost((time.process_time() - start) / count, (platform.cycle - cycle) / count)


def device_costs(turns: int, code_cache: Path) -> dict[str, float]:
    """Return CPU seconds of accesses to devices with more and more methods, of an event, and of a plain Python call."""
    os.environ["PYV_NPU_CACHE"] = str(code_cache)
    costs = {}
    for name, row, device in (
        ("load", "lw", ReadWriteDevice), ("store", "sw", ReadWriteDevice),
        ("load, a device with line and events", "lw", TimedDevice), ("store, the same", "sw", TimedDevice),
    ):  # fmt: skip
        costs[name] = cost(_encode(row, rd=7, rs1=6, rs2=5), turns, device())
    costs["event of a device"] = event_cost(50 * turns)
    read, start = ReadWriteDevice().read, time.process_time()
    for now in range(10 * turns):
        read(0, 4, now)
    costs["call of `read` by Python"] = (time.process_time() - start) / (10 * turns)
    return costs


def event_cost(turns: int) -> float:
    """Return the CPU seconds of a device event."""
    word = _encode("addi", rd=7, rs1=7, imm=1)
    ticking, quiet = (_loop(word, TIMES, turns, device, (), 200_000) for device in (TickingDevice(), ReadWriteDevice()))
    return (ticking.seconds - quiet.seconds) * PERIOD / ticking.cycles


def instruction_costs(turns: int, code_cache: Path) -> dict[str, float]:
    """Return the CPU seconds of an instruction with fewer and fewer declared effects."""
    os.environ["PYV_NPU_CACHE"] = str(code_cache)
    device = StateDevice()
    declarations: dict[str, dict[str, Any]] = {
        "`expr=`": {"expr": "(a + 1) & M"}, '`touches="nothing"`': {"touches": "nothing"},
        '`touches="memory"`': {"touches": "memory"}, "`device=`": {"device": device}, "nothing": {},
    }  # fmt: skip
    costs = {}
    for name, declaration in declarations.items():
        handler = None if "expr" in declaration else add
        row = CustomInstruction("own", MATCH, MASK, "rd,rs1,rs2", handler, **declaration)
        count = turns if handler else 50 * turns
        costs[name] = cost(MATCH | 7 << 7 | 5 << 15 | 6 << 20, count, device, [row], 20_000)
    return costs
