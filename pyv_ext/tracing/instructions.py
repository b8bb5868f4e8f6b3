"""Instruction log: every instruction and trap with its cycles, for output at the end of a run."""

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from pyv_ext.isa import Instruction, Isa

TRAP, INTERRUPT = 1, 2


class InstructionStep(NamedTuple):
    """Instruction that retired, or a trap that was taken instead, in cycles [start, end)."""

    pc: int
    start: int
    end: int
    word: int
    """Instruction word, or the cause of a trap."""
    trap: int
    """0, or `TRAP` or `INTERRUPT`."""


class InstructionLog:
    """Tracer that stores every step of a hart with this instruction set, 40 bytes each."""

    def __init__(self, isa: Isa) -> None:
        self.isa = isa
        self._data = array("q")

    def __len__(self) -> int:
        return len(self._data) // len(InstructionStep._fields)

    def __iter__(self) -> Iterator[InstructionStep]:
        """Iterate in the order of time."""
        data, width = self._data, len(InstructionStep._fields)
        return (InstructionStep(*data[offset : offset + width]) for offset in range(0, len(data), width))

    def retire(self, pc: int, start: int, end: int, instruction: Instruction) -> None:
        self._data.extend((pc, start, end, instruction.word, 0))

    def trap(self, pc: int, cause: int, value: int, start: int, end: int, interrupt: bool) -> None:
        self._data.extend((pc, start, end, cause, INTERRUPT if interrupt else TRAP))
