"""The submit functions of the firmware as they run: where each submission begins, leaves the core, and ends.

Functions named `npu_submit*` are windows: t0 is the start of their first instruction, t1 the first instruction at
their return address. Without such symbols t0 is the first store into the 64 bytes and t1 the cycle after the doorbell
or ENQCMD_T retires (specification 35, "Time stamps").
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyv_ext.engines.noted import FENCE, Noted
from pyv_npu.latency.steps import DEVICE

LINE = 64
MASK = 0xFFFF_FFFF
LINES_KEPT = 1 << 16
"""Lines whose first store is remembered while no submission empties the table."""


@dataclass(slots=True, eq=False)
class Window:
    """One call of a submit function, or (serial 0) the whole program when it has none."""

    serial: int
    t0: int | None
    """None for serial 0: each submission begins with the first store into its 64 bytes."""
    return_pc: int = 0
    sp: int = 0
    depth: int = 0
    """How many traps were being handled at entry."""
    prebuilt: bool = False
    lines: dict[int, int] = field(default_factory=dict)
    """Address of each 64-byte line stored to -> start of the first store."""
    taken: bool = False
    """A submission has used the window's t0."""
    refused: int | None = None
    """Start of the first attempt that was refused."""
    attempt: int = 0
    """Start of the latest attempt."""
    descriptor: int = 0
    """Address of the 64 bytes that were refused."""
    commits: list[int] = field(default_factory=list)
    """Rows of the submissions that left the core in it."""

    def noted(self, notes: Sequence[Noted]) -> None:
        """Keep the first store to each line."""
        lines = self.lines
        for start, what, _ in notes:
            if what not in lines and what != FENCE and what != DEVICE:
                lines[what] = start
        while len(lines) > LINES_KEPT:
            del lines[next(iter(lines))]

    def begin(self, descriptor: int) -> int | None:
        """t0 of the next submission of this window: its entry, or for further descriptors their first store."""
        if self.t0 is not None and not self.taken:
            self.taken = True
            return self.t0
        return self.lines.get(descriptor)


def ring_slots(base: int, size: int, tail: int, new_tail: int) -> list[tuple[int, int]]:
    """(index, address) of the descriptors that a doorbell hands over; none when it claims more than the ring holds."""
    count = (new_tail - tail) & MASK
    if count > size:
        return []
    return [((tail + i) & MASK, base + ((tail + i) % size) * LINE) for i in range(count)]
