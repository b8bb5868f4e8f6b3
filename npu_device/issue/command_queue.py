"""Entries of the device queue, which the front end reserves for descriptors on their way."""

from collections.abc import Callable
from typing import Any

from npu_device.issue.interrupts import Interrupts, Irq
from pyv_native.state import Fields


class CommandQueue:
    """Occupancy of the device queue: at most `capacity` commands that have not started, those on their way included."""

    def __init__(self, capacity: int, interrupts: Interrupts) -> None:
        self.capacity = capacity
        self.on_room: Callable[[int], None] | None = None
        """Called with the cycle from whose start there is room."""
        self.depth = 0
        """Commands that were accepted and have not started."""
        self._reserved = 0
        self._interrupts = interrupts
        self._wanted = False

    @property
    def room(self) -> bool:
        return self.depth + self._reserved < self.capacity

    def want(self) -> None:
        """Request IRQ_STATUS.SPACE when the queue next leaves full: a submission was refused or waits."""
        self._wanted = True

    def reserve(self) -> None:
        """Reserve an entry for a descriptor whose fetch begins."""
        self._reserved += 1

    def enter(self) -> None:
        """Enter a command into its reserved entry."""
        self._reserved -= 1
        self.depth += 1

    def cancel(self, cycle: int) -> None:
        """Free the reserved entry of a descriptor that was in error."""
        self._reserved -= 1
        self._leave(cycle, cycle)

    def leave(self, cycle: int, count: int) -> None:
        """Commands start. Fetches of this cycle came before, their entries are for later ones."""
        self.depth -= count
        self._leave(cycle, cycle + 1)

    def _leave(self, cycle: int, room: int) -> None:
        if self._wanted:
            self._wanted = False
            self._interrupts.set(cycle, Irq.SPACE)
        if self.on_room is not None:
            self.on_room(room)

    def reset(self) -> None:
        """Empty the queue."""
        self.depth = self._reserved = 0
        self._wanted = False

    def state(self) -> dict[str, Any]:
        """Return the state for a snapshot; the rest follows from waiting commands and descriptors on their way."""
        return {"wanted": self._wanted}

    def load_state(self, state: Any) -> None:
        """Take on a state; commands that wait, and descriptors on their way, enter after this."""
        fields = Fields(state, "wanted")
        self.reset()
        self._wanted = fields.flag("wanted")
