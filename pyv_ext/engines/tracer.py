"""Interface of a tracer of an engine."""

from typing import Protocol

from pyv_ext.isa import Instruction


class Tracer(Protocol):
    """Sees every instruction and trap while it is an engine's `tracer`. Cycles are starts."""

    def retire(self, pc: int, start: int, end: int, instruction: Instruction) -> None:
        """An instruction has retired; the next one starts in cycle `end`."""

    def trap(self, pc: int, cause: int, value: int, start: int, end: int, interrupt: bool) -> None:
        """The instruction at `pc` has trapped or was squashed; the handler starts in cycle `end`."""
