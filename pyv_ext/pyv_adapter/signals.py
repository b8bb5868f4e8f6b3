"""Signals on the ports that we add to Py-V's."""

from enum import Enum, auto
from typing import NamedTuple

from pyv_ext.isa import Instruction


class TrapRequest(NamedTuple):
    """Request of a stage for a trap: mcause (interrupts with their top bit) and mtval."""

    cause: int = -1
    """Negative: no request."""
    value: int = 0


NO_TRAP = TrapRequest()


class Duty(Enum):
    """Work of the system unit on an instruction that Py-V's decoder does not know."""

    NONE = auto()
    TRAP = auto()
    WFI = auto()
    CUSTOM = auto()
    CSR_WINDOW = auto()
    EBREAK = auto()
    """Only with semihosting; else EBREAK is a `TRAP`."""


class SystemWork(NamedTuple):
    """Signal from fetch to the system unit, while a NOP replaces the instruction in the pipeline."""

    duty: Duty = Duty.NONE
    pc: int = 0
    instruction: Instruction | None = None
    trap: TrapRequest = NO_TRAP


NO_WORK = SystemWork()


class SystemResult(NamedTuple):
    """Signal from the system unit to write-back."""

    rd: int = 0
    """Register to write; 0: none."""
    value: int = 0


NO_RESULT = SystemResult()
