"""IRQ_STATUS, IRQ_MASK and the line between device and core."""

from enum import IntEnum
from typing import Any

from npu_device.abi.registers import IRQ_ALL, IRQ_BITS
from npu_device.event_loop.timeline import Agenda, Phase, Timeline
from npu_device.trace.events import FRONTEND, What
from npu_device.trace.stream import EventStream
from pyv_native.state import Fields

_BIT = {bits.name: 1 << bits.low for bits in IRQ_BITS}


class Irq(IntEnum):
    """Bits of IRQ_STATUS; the table is `abi.registers.IRQ_BITS`."""

    DONE = _BIT["DONE"]
    ERROR = _BIT["ERROR"]
    SPACE = _BIT["SPACE"]
    RING_OVERFLOW = _BIT["RING_OVERFLOW"]
    DROPPED = _BIT["DROPPED"]


class Interrupts:
    """Sticky causes, a mask, and a level. Cycles given are those from whose start the change holds."""

    def __init__(self, timeline: Timeline, events: EventStream) -> None:
        self.status = 0
        self.mask = 0
        self.level = False
        """The line now."""
        self._events = events
        self._line = False
        self._check = Agenda(timeline, "irq", Phase.IRQ, self._settle)

    def set(self, cycle: int, bits: int) -> None:
        self._change(cycle, self.status | bits, self.mask)

    def acknowledge(self, cycle: int, bits: int) -> None:
        self._change(cycle, self.status & ~bits, self.mask)

    def set_mask(self, cycle: int, mask: int) -> None:
        self._change(cycle, self.status, mask & IRQ_ALL)

    def reset(self, cycle: int) -> None:
        """Clear cause and mask, after the timeline was cleared."""
        self._check.reset()
        self._change(cycle, 0, 0)

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot."""
        return {"status": self.status, "mask": self.mask, "line": self._line}

    def load_state(self, state: Any) -> None:
        fields = Fields(state, "status", "mask", "line")
        self.status, self.mask = fields.integer("status", 0, IRQ_ALL), fields.integer("mask", 0, IRQ_ALL)
        self.level = self.status & self.mask != 0
        self._line = fields.flag("line")

    def _change(self, cycle: int, status: int, mask: int) -> None:
        self.status = status
        self.mask = mask
        self.level = status & mask != 0
        if self.level != self._line:
            self._check.request(cycle)

    def _settle(self, cycle: int) -> None:
        """Update the line in the last phase of a cycle: a line that fell and rose within it has not moved."""
        level = self.level
        if level and not self._line:
            self._events.emit(cycle, FRONTEND, What.IRQ, aux=self.status & self.mask)
        self._line = level
