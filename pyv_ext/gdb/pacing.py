"""Pacing of a debugger: intervals of polls of its client and of snapshots, by CPU time, so that neither is slow.

No simulated value depends on it: splitting a run changes nothing, and every snapshot leads to the same past.
"""

from collections.abc import Callable
from time import process_time

Clock = Callable[[], float]
"""Seconds of CPU time."""

POLL_INTERVAL = 0.01
"""Seconds between two looks at the client, about: Ctrl-C is not felt to wait."""
MIN_SLICE, FIRST_SLICE, MAX_SLICE = 1 << 8, 1 << 12, 1 << 21
"""Cycles of a slice. Native code executes `MAX_SLICE` in a millisecond, a program that only accesses devices in some
seconds: that long Ctrl-C may wait where the one turns into the other."""

FIRST_GAP = 0.05
"""Seconds of execution between two snapshots at first, which is how long going back one step takes at most."""
MIN_RATIO = 20
"""A snapshot is followed by so many times its own cost of execution at least."""


class Slices:
    """Cycles to run between two polls of the client."""

    def __init__(self, clock: Clock = process_time) -> None:
        self._clock = clock
        self._began = clock()
        self.cycles = FIRST_SLICE

    def begin(self) -> None:
        """Begin a slice."""
        self._began = self._clock()

    def end(self) -> None:
        """End a slice, and adapt the length of the next."""
        now = self._clock()
        took, self._began = now - self._began, now
        if took < POLL_INTERVAL / 2:
            self.cycles = min(2 * self.cycles, MAX_SLICE)
        elif took > 2 * POLL_INTERVAL:
            self.cycles = max(int(self.cycles * POLL_INTERVAL / took), MIN_SLICE)


class Intervals:
    """Execution time between two snapshots."""

    def __init__(self, clock: Clock = process_time) -> None:
        self._clock = clock
        self._gap = FIRST_GAP
        self._next = self._began = clock()

    @property
    def due(self) -> bool:
        """Check whether the next snapshot is due."""
        return self._clock() >= self._next

    def begin(self) -> None:
        """Begin the time of a snapshot."""
        self._began = self._clock()

    def end(self) -> None:
        """End the time of a snapshot, and set the time of the next."""
        now = self._clock()
        self._next = now + max(self._gap, MIN_RATIO * (now - self._began))

    def double(self) -> None:
        """Double the distance of snapshots from now on."""
        self._gap *= 2
