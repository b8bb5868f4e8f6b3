"""Pacing of a debugger: intervals of polls of its client and of snapshots, by CPU time, so that neither is slow.

No simulated value depends on it: splitting a run changes nothing, and every snapshot leads to the same past.
"""

from collections.abc import Callable
from time import process_time

Clock = Callable[[], float]
"""Seconds of CPU time."""

GLANCE = 0.01
"""Seconds between two looks at the client, about: Ctrl-C is not felt to wait."""
LEAST, FIRST, MOST = 1 << 8, 1 << 12, 1 << 21
"""Cycles of a slice. Native code executes `MOST` in a millisecond, a program that only accesses devices in some
seconds: that long Ctrl-C may wait where the one turns into the other."""

GAP = 0.05
"""Seconds of execution between two snapshots at first, which is how long going back one step takes at most."""
SHARE = 20
"""A snapshot is followed by so many times its own cost of execution at least."""


class Slices:
    """Cycles to run between two polls of the client."""

    def __init__(self, clock: Clock = process_time) -> None:
        self._clock = clock
        self._began = clock()
        self.cycles = FIRST

    def begin(self) -> None:
        """Begin a slice."""
        self._began = self._clock()

    def end(self) -> None:
        """End a slice, and adapt the length of the next."""
        now = self._clock()
        took, self._began = now - self._began, now
        if took < GLANCE / 2:
            self.cycles = min(2 * self.cycles, MOST)
        elif took > 2 * GLANCE:
            self.cycles = max(int(self.cycles * GLANCE / took), LEAST)


class Intervals:
    """Execution time between two snapshots."""

    def __init__(self, clock: Clock = process_time) -> None:
        self._clock = clock
        self._gap = GAP
        self._next = self._began = clock()

    @property
    def over(self) -> bool:
        """Check whether the next snapshot is due."""
        return self._clock() >= self._next

    def begin(self) -> None:
        """Begin the time of a snapshot."""
        self._began = self._clock()

    def end(self) -> None:
        """End the time of a snapshot, and set the time of the next."""
        now = self._clock()
        self._next = now + max(self._gap, SHARE * (now - self._began))

    def double(self) -> None:
        """Double the distance of snapshots from now on."""
        self._gap *= 2
