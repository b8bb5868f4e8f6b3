"""Reasons for a stop of an engine, and the interface of its tracers."""

from enum import StrEnum
from typing import NamedTuple, Protocol

from pyv_ext.isa import Instruction


class StopReason(StrEnum):
    EXIT = "exit"
    LIMIT = "limit"
    TIMEOUT = "timeout"
    DEADLOCK = "deadlock"
    TRAP_LOOP = "trap_loop"
    INTERRUPTED = "interrupted"
    BREAKPOINT = "breakpoint"
    ENGINE = "engine"


class AccessStopped(Exception):  # noqa: N818 - no error: a debugger stops the run
    """Stop that a guard of the bus raises: the run stops before the instruction that would make the access."""

    def __init__(self, stop: "Stop") -> None:
        super().__init__(stop)
        self.stop = stop


class Stop(NamedTuple):
    """Reason of a stop, the guest's exit code if it set one, and a line of text for the user."""

    reason: StopReason
    code: int | None = None
    text: str = ""


class Tracer(Protocol):
    """Observer of every instruction and trap of an engine (`Engine.add_tracer`). A cycle stands for its start."""

    def retire(self, pc: int, start: int, end: int, instruction: Instruction) -> None:
        """Handle an instruction that has retired; the next instruction starts in cycle `end`."""

    def trap(self, pc: int, cause: int, value: int, start: int, end: int, interrupt: bool) -> None:
        """Handle a trap at `pc`, or an interrupt that squashed its instruction; the handler starts in cycle `end`."""
