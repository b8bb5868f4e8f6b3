"""What a tracer of an engine is told: of every instruction, or of blocks of them."""

from collections.abc import Callable, Sequence
from typing import Protocol

from pyv_ext.isa import Instruction

FENCE = 1
"""In the place of a line's address: fences that wait for nothing."""

Record = tuple[int, int, int]
"""(start, what, cycles): consecutive stores to the same 64-byte line of memory, or consecutive fences that wait for
nothing, maybe with other instructions of the block between them. The cycle at whose start the first one began; the
address of the line, or `FENCE`; the cycles that they took together, without the others."""

OnBlock = Callable[[int, int, Sequence[Record]], None]
"""See `BatchTracer.on_block`."""


class Tracer(Protocol):
    """Sees every instruction and trap while it is an engine's `tracer`. Cycles are starts."""

    def retire(self, pc: int, start: int, end: int, instruction: Instruction) -> None:
        """An instruction has retired; the next one starts in cycle `end`."""

    def trap(self, pc: int, cause: int, value: int, start: int, end: int, interrupt: bool) -> None:
        """The instruction at `pc` has trapped or was squashed; the handler starts in cycle `end`."""


class BatchTracer(Tracer, Protocol):
    """A tracer that sees blocks of instructions where they only load from memory, store to it, compute, jump or access
    CSRs of the hart itself.

    How an engine divides them into blocks is up to it; it may also report each by `retire`.
    """

    def on_block(self, start: int, end: int, records: Sequence[Record]) -> None:
        """Such instructions have retired, with these stores and fences in order; the next one starts in cycle `end`."""


def batches_of(tracer: Tracer | None) -> OnBlock | None:
    """The `on_block` of a batch tracer; None of any other."""
    on_block: OnBlock | None = getattr(tracer, "on_block", None)
    return on_block
