"""Reproduction of a published latency table: a multiplier coupled to a NEORV32 core as an instruction or device.

Source: DCIS 2024, DOI 10.1109/DCIS62603.2024.10769177. The multiplier is a custom instruction and a device, built on
the public extension protocols; the timing is preset `neorv32-2024`, fitted to this table.

A write of mcycle takes effect at the end of its instruction's last cycle, a read samples its first
(docs/core-timing.md, "Clock"), so the difference is exactly the cycles of the instructions between them.
"""

from typing import NamedTuple

from npu_device.abi.memory_map import DRAM_BASE, FINISHER_BASE
from pyv_ext.bus.memory import PAGE
from pyv_ext.devices.base import Register, RegisterDevice
from pyv_ext.elf import parse_elf
from pyv_ext.engines.core import StopReason
from pyv_ext.protocols import CustomInstruction, Operands, Outcome, Value
from pyv_npu.config import Config, load
from pyv_npu.errors import PyvNpuError, UsageError
from pyv_npu.platform import Placed, Platform
from toolchain.assembler.program import assemble

PRESET = "neorv32-2024"
SOURCE = "DCIS 2024, DOI 10.1109/DCIS62603.2024.10769177, one NEORV32 at 100 MHz"
NOTE = "cycles = difference of mcycle - 1"
CUSTOM_1 = 0b010_1011
DURATIONS = (2, 5, 7)
"""Cycles of the multiplier behind the custom instruction, by funct3."""
DEVICE_BASE = 0x6000_0000
PRODUCT = 0x123 * 0x456
"""Result of each window: the product of the halves of an operand word."""


class Multiplier(RegisterDevice):
    """Multiplier of the halves of PACKED, or of A and B on a write of START."""

    name = "multiplier"
    size = 0x1000
    registers = (
        Register("PACKED", 0x00),
        Register("A", 0x104),
        Register("B", 0x108),
        Register("START", 0x10C, "wo"),
        Register("CLEAR", 0x110, "wo"),
        Register("RESULT", 0x114, "ro"),
        Register("SQUARE", 0x200),
    )

    def on_write(self, name: str, value: int, now: int) -> None:
        if name == "START":
            self["RESULT"] = self["A"] * self["B"]
        elif name in ("PACKED", "SQUARE"):
            self[name] = multiply_halves(value)
        else:
            self[name] = value


def multiply_halves(word: int) -> int:
    """Return the product of the halves of a word."""
    return (word >> 16) * (word & 0xFFFF)


def _instruction(funct3: int, cycles: int) -> CustomInstruction:
    def handler(operands: Operands) -> Outcome:
        return Value(multiply_halves(operands.rs1), cycles)

    match, mask = CUSTOM_1 | funct3 << 12, 0xFE00_707F
    return CustomInstruction(f"mulhalf{cycles}", match, mask, "rd, rs1, rs2", handler)


class CodeWindow(NamedTuple):
    """Timed instructions, which leave their result in a2, with their published cycles."""

    name: str
    code: str
    published: int


_CUSTOM = """
    lui  a0, 0x1230
    addi a0, a0, 0x456
    mulhalf{cycles} a2, a0, a0
"""
_BUS = """
    lui  a0, 0x1230
    addi a0, a0, 0x456
    lui  a1, 0x60000
    sw   a0, 0(a1)
    lw   a2, 0(a1)
"""
_ONE_REGISTER = """
    lui  a0, 0x1230
    lui  a1, 0x60000
    addi a0, a0, 0x456
    addi a1, a1, 0x200
    sw   a0, 0(a1)
    lw   a2, 0(a1)
"""
_HAND_SHAKE = """
    lui  a1, 0x60000
    lui  a0, 0
    addi a1, a1, 0x100
    addi a0, a0, 0x123
    addi a3, zero, 0x456
    addi a4, zero, 1
    sw   a0, 0x4(a1)
    sw   a3, 0x8(a1)
    sw   a4, 0xc(a1)
    sw   zero, 0x10(a1)
    lw   a2, 0x14(a1)
"""
WINDOWS = (
    *(
        CodeWindow(f"custom instruction, T = {cycles}", _CUSTOM.format(cycles=cycles), published)
        for cycles, published in zip(DURATIONS, (8, 11, 13), strict=True)
    ),
    CodeWindow("external bus", _BUS, 16),
    CodeWindow("memory-mapped, one register", _ONE_REGISTER, 18),
    CodeWindow("memory-mapped with hand-shake", _HAND_SHAKE, 37),
)
_RESULTS = DRAM_BASE + PAGE
"""Address of the mcycle difference and the result of each window."""
_TIMED = """
    csrw mcycle, zero
    {code}
    csrr a5, mcycle
    sw   a5, 0(t6)
    sw   a2, 4(t6)
    addi t6, t6, 8
"""
_EXIT = f"""
    li   t0, {FINISHER_BASE:#x}
    li   t1, 0x5555
    sw   t1, 0(t0)
"""


class WindowRow(NamedTuple):
    """Measurement of a window."""

    name: str
    instructions: tuple[str, ...]
    """Disassembled instructions."""
    cycles: int
    published: int


class Measurement(NamedTuple):
    """Measurement of all windows of a publication."""

    preset: str
    source: str
    note: str
    rows: tuple[WindowRow, ...]

    @property
    def exact(self) -> bool:
        """True if every window takes the published cycles."""
        return all(row.cycles == row.published for row in self.rows)


def calibrate(preset: str) -> Measurement:
    """Run the measurement of a preset; UsageError for a preset without a measurement."""
    if preset != PRESET:
        raise UsageError(f"preset {preset} has no published measurement; those that have: {PRESET}")
    return Measurement(PRESET, SOURCE, NOTE, tuple(measure(load(preset=preset).config)))


def measure(config: Config) -> list[WindowRow]:
    """Run each window once, in order; its cycles are the mcycle difference minus 1.

    PyvNpuError when the program fails or a window computes a wrong result, which makes its time meaningless.
    """
    instructions = [_instruction(funct3, cycles) for funct3, cycles in enumerate(DURATIONS)]
    platform = Platform(config, devices=[Placed(DEVICE_BASE, Multiplier())], instructions=instructions)
    code = "".join(_TIMED.format(code=window.code) for window in WINDOWS)
    program = assemble(f"li t6, {_RESULTS:#x}\n{code}{_EXIT}", platform.isa, "calibration")
    platform.load(parse_elf(program.elf, "calibration"))
    stop = platform.run()
    if stop.reason is not StopReason.EXIT or stop.code != 0:
        raise PyvNpuError(f"calibration ended with {stop.text}: the platform lacks what the windows need")
    return [_row(platform, window, _RESULTS + 8 * index) for index, window in enumerate(WINDOWS)]


def _row(platform: Platform, window: CodeWindow, address: int) -> WindowRow:
    isa, difference, result = platform.isa, platform.ram.read(address, 4), platform.ram.read(address + 4, 4)
    if result != PRODUCT:
        raise PyvNpuError(f"window {window.name}: computed {result:#x} instead of {PRODUCT:#x}")
    texts = (isa.disassemble(entry.word, 0).replace("\t", " ") for entry in assemble(window.code, isa).code)
    return WindowRow(window.name, tuple(texts), difference - 1, window.published)
