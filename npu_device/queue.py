"""The device queue: commands that were accepted and have not started, and room reserved for those on their way."""

from collections import deque
from collections.abc import Callable

from npu_device.command import Command
from npu_device.interrupts import Interrupts, Irq


class CommandQueue:
    """At most `capacity` commands, in the order of acceptance."""

    def __init__(self, capacity: int, interrupts: Interrupts) -> None:
        self.capacity = capacity
        self.on_room: Callable[[int], None] | None = None
        """Called with the cycle from whose start there is room."""
        self.waiting: deque[Command] = deque()
        self._reserved = 0
        self._interrupts = interrupts
        self._wanted = False

    @property
    def room(self) -> bool:
        return len(self.waiting) + self._reserved < self.capacity

    def want(self) -> None:
        """Someone was refused or waits: IRQ_STATUS.SPACE when the queue next leaves full."""
        self._wanted = True

    def reserve(self) -> None:
        """Keep a place for a descriptor whose fetch begins."""
        self._reserved += 1

    def enter(self, command: Command) -> None:
        """The command takes its reserved place."""
        self._reserved -= 1
        self.waiting.append(command)

    def give_back(self, cycle: int) -> None:
        """The reserved place is not needed: the descriptor was in error."""
        self._reserved -= 1
        self._left(cycle, cycle)

    def leave(self, cycle: int, index: int) -> Command:
        """Take out the `index`-th oldest command: it starts. Fetches of this cycle came before, its room is for later
        ones."""
        command = self.waiting[index]
        del self.waiting[index]
        self._left(cycle, cycle + 1)
        return command

    def _left(self, cycle: int, room: int) -> None:
        if self._wanted:
            self._wanted = False
            self._interrupts.set(cycle, Irq.SPACE)
        if self.on_room is not None:
            self.on_room(room)

    def reset(self) -> None:
        self.waiting.clear()
        self._reserved = 0
        self._wanted = False
