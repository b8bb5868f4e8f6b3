"""Windows of instructions between a write and a read of mcycle, run on a platform with a user's own parts.

A write of mcycle takes effect at the end of its instruction's last cycle, a read samples its first
(docs/core-timing.md, "Clock"), so the difference is exactly the cycles of the instructions between them.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pyv_ext.bus.memory import PAGE
from pyv_ext.elf import Program, Segment
from pyv_ext.engines.core import StopReason
from pyv_ext.isa import Isa
from pyv_npu.errors import PyvNpuError
from pyv_npu.platform import Platform

Code = tuple[str, Mapping[str, int]]
"""A mnemonic and its operands, as `Isa.encode` takes them."""

MCYCLE = 0xB00
RESULT_REGISTER = 12
"""Register a2, which holds the result of a window."""
_TIME, _POINTER = 15, 31
_WORD = 4


class CodeWindow(NamedTuple):
    """Timed instructions with their expected result and published cycles."""

    name: str
    code: tuple[Code, ...]
    result: int
    published: int


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


def run_windows(platform: Platform, windows: Sequence[CodeWindow], finisher: int, base: int) -> list[WindowRow]:
    """Run each window once, in order, on a new platform; the cycles in the result are the mcycle difference minus 1.

    PyvNpuError when the program fails or a window computes a wrong result, which makes its time meaningless.
    """
    isa = platform.isa
    results = base + PAGE
    words = [_encode(isa, ("lui", {"rd": _POINTER, "imm": _upper(results)}))]
    for window in windows:
        words.append(_encode(isa, ("csrrw", {"csr": MCYCLE})))
        words += [_encode(isa, code) for code in window.code]
        words.append(_encode(isa, ("csrrs", {"rd": _TIME, "csr": MCYCLE})))
        for register in (_TIME, RESULT_REGISTER):
            words.append(_encode(isa, ("sw", {"rs1": _POINTER, "rs2": register})))
            words.append(_encode(isa, ("addi", {"rd": _POINTER, "rs1": _POINTER, "imm": _WORD})))
    words += [
        _encode(isa, code)
        for code in (
            ("lui", {"rd": 5, "imm": _upper(finisher)}),
            ("lui", {"rd": 6, "imm": 0x5000}),
            ("addi", {"rd": 6, "rs1": 6, "imm": 0x555}),
            ("sw", {"rs1": 5, "rs2": 6}),
        )
    ]
    image = b"".join(word.to_bytes(_WORD, "little") for word in words)
    segment = Segment(base, image, len(image), True)
    platform.load(Program("calibration", base, (segment,), {}, (), ()))
    stop = platform.run()
    if stop.reason is not StopReason.EXIT or stop.code != 0:
        raise PyvNpuError(f"calibration ended with {stop.text}: the platform lacks what the windows need")
    return [_row(platform, window, results + 2 * _WORD * index) for index, window in enumerate(windows)]


def _row(platform: Platform, window: CodeWindow, place: int) -> WindowRow:
    ram = platform.ram
    difference, result = ram.read(place, _WORD), ram.read(place + _WORD, _WORD)
    if result != window.result:
        raise PyvNpuError(f"window {window.name}: computed {result:#x} instead of {window.result:#x}")
    texts = tuple(platform.isa.disassemble(_encode(platform.isa, code), 0) for code in window.code)
    return WindowRow(window.name, tuple(text.replace("\t", " ") for text in texts), difference - 1, window.published)


def _encode(isa: Isa, code: Code) -> int:
    name, operands = code
    return isa.encode(name, **operands)


def _upper(address: int) -> int:
    """Return the immediate of LUI for a multiple of 4096, as a signed integer."""
    return address - (1 << 32) if address >> 31 else address
