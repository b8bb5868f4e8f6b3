"""The deterministic event queue of the device: a heap of (cycle, phase, sequence, action)."""

from collections.abc import Callable
from enum import IntEnum
from heapq import heappop, heappush
from typing import Any

Action = Callable[[int, Any], None]

NEVER = 1 << 62
"""Later than any cycle."""


class Phase(IntEnum):
    """The order of events at equal cycles (docs/npu-timing.md, "Events"). The core acts after all of them."""

    END = 0
    RELEASE = 1
    RATE = 2
    ACCEPT = 3
    FETCH = 4
    START = 5
    IRQ = 6


class Timeline:
    """Events to come. Within one cycle and phase they happen in the order in which they were scheduled."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Action, Any]] = []
        self._sequence = 0
        self._until = 0

    def at(self, cycle: int, phase: Phase, action: Action, argument: Any = None) -> None:
        """Call `action(cycle, argument)` at the start of `cycle`; an action may schedule for its own cycle."""
        self._sequence += 1
        heappush(self._heap, (cycle, phase, self._sequence, action, argument))

    def next_event(self) -> int | None:
        """The cycle of the next event, or None."""
        return self._heap[0][0] if self._heap else None

    def horizon(self) -> int:
        """For an action: the first cycle in which another event is due, or which `advance` was not asked for."""
        after = self._until + 1
        return self._heap[0][0] if self._heap and self._heap[0][0] < after else after

    def advance(self, now: int) -> None:
        """Do all that is due at the start of cycle `now` or earlier."""
        heap = self._heap
        self._until = now
        while heap and heap[0][0] <= now:
            cycle, _, _, action, argument = heappop(heap)
            action(cycle, argument)

    def clear(self) -> None:
        """Forget everything that was to come."""
        self._heap.clear()


class Agenda:
    """One action that is wanted at most once per cycle however often it is asked for.

    A request for an earlier cycle than the one planned comes in addition: actions must bear being called in vain.
    """

    def __init__(self, timeline: Timeline, phase: Phase, action: Callable[[int], None]) -> None:
        self._at = timeline.at
        self._phase = phase
        self._action = action
        self._planned = NEVER

    def request(self, cycle: int) -> None:
        """Make sure that the action is called at `cycle` or earlier, and at `cycle` if not earlier."""
        if cycle < self._planned:
            self._planned = cycle
            self._at(cycle, self._phase, self._run)

    def reset(self) -> None:
        """The timeline has been cleared."""
        self._planned = NEVER

    def _run(self, cycle: int, _: Any) -> None:
        if self._planned == cycle:
            self._planned = NEVER
        self._action(cycle)
