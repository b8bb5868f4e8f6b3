"""Calibration on a multiplier behind several couplings of a NEORV32 at 100 MHz: the published table, reproduced.

Source: DCIS 2024, DOI 10.1109/DCIS62603.2024.10769177. The multiplier is a custom instruction and a device, built on
the public extension protocols; the timing is preset `neorv32-2024`, fitted to this table.
"""

from npu_device.abi.memory_map import DRAM_BASE, FINISHER_BASE
from pyv_ext.devices.base import Register, RegisterDevice
from pyv_ext.protocols import CustomInstruction, Operands, Outcome, Value
from pyv_npu.config import load
from pyv_npu.platform import Placed, Platform
from pyv_npu.studies.calibration.window import RESULT_REGISTER, Code, CodeWindow, Measurement, run_windows

PRESET = "neorv32-2024"
SOURCE = "DCIS 2024, DOI 10.1109/DCIS62603.2024.10769177, one NEORV32 at 100 MHz"
NOTE = "cycles = difference of mcycle - 1"

CUSTOM_1 = 0b010_1011
DURATIONS = (2, 5, 7)
"""Cycles of the multiplier behind the custom instruction, by funct3."""
DEVICE_BASE = 0x6000_0000
HIGH, LOW = 0x123, 0x456
"""Factors in the halves of an operand word."""
OPERAND = HIGH << 16 | LOW
PRODUCT = HIGH * LOW

_A0, _A1, _A2, _A3, _A4 = 10, 11, RESULT_REGISTER, 13, 14


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
            self[name] = multiplied(value)
        else:
            self[name] = value


def multiplied(word: int) -> int:
    """Return the product of the halves of a word."""
    return (word >> 16) * (word & 0xFFFF)


def _instruction(funct3: int, cycles: int) -> CustomInstruction:
    def handler(operands: Operands) -> Outcome:
        return Value(multiplied(operands.rs1), cycles)

    match, mask = CUSTOM_1 | funct3 << 12, 0xFE00_707F
    return CustomInstruction(f"mulhalf{cycles}", match, mask, "rd, rs1, rs2", handler)


def _constant(register: int, value: int) -> tuple[Code, Code]:
    """Return lui and addi that load a 32-bit value."""
    low = (value & 0xFFF ^ 0x800) - 0x800
    return ("lui", {"rd": register, "imm": value - low}), ("addi", {"rd": register, "rs1": register, "imm": low})


def _store(register: int, offset: int) -> Code:
    return "sw", {"rs1": _A1, "rs2": register, "imm": offset}


def _load(offset: int) -> Code:
    return "lw", {"rd": _A2, "rs1": _A1, "imm": offset}


def _windows() -> list[CodeWindow]:
    operand, one_register, packed = _constant(_A0, OPERAND), _constant(_A1, DEVICE_BASE + 0x200), DEVICE_BASE
    custom = [
        CodeWindow(
            f"custom instruction, T = {cycles}",
            (*operand, (f"mulhalf{cycles}", {"rd": _A2, "rs1": _A0, "rs2": _A0})),
            PRODUCT,
            published,
        )
        for cycles, published in zip(DURATIONS, (8, 11, 13), strict=True)
    ]
    bus = (*operand, ("lui", {"rd": _A1, "imm": packed}), _store(_A0, 0), _load(0))
    mapped = (operand[0], one_register[0], operand[1], one_register[1], _store(_A0, 0), _load(0))
    address, factor = _constant(_A1, DEVICE_BASE + 0x100), _constant(_A0, HIGH)
    hand_shake = (
        address[0],
        factor[0],
        address[1],
        factor[1],
        ("addi", {"rd": _A3, "imm": LOW}),
        ("addi", {"rd": _A4, "imm": 1}),
        _store(_A0, 0x4),
        _store(_A3, 0x8),
        _store(_A4, 0xC),
        _store(0, 0x10),
        _load(0x14),
    )
    return [
        *custom,
        CodeWindow("external bus", bus, PRODUCT, 16),
        CodeWindow("memory-mapped, one register", mapped, PRODUCT, 18),
        CodeWindow("memory-mapped with hand-shake", hand_shake, PRODUCT, 37),
    ]


def measure() -> Measurement:
    """Run all windows under the preset."""
    platform = Platform(
        load(preset=PRESET).config,
        devices=[Placed(DEVICE_BASE, Multiplier())],
        instructions=[_instruction(funct3, cycles) for funct3, cycles in enumerate(DURATIONS)],
    )
    rows = run_windows(platform, _windows(), FINISHER_BASE, DRAM_BASE)
    return Measurement(PRESET, SOURCE, NOTE, tuple(rows))
