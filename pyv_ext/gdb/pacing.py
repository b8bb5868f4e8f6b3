"""How often a debugger looks at its client, and takes a snapshot: by CPU time, so that neither slows the program down.

Nothing simulated depends on it: splitting a run changes nothing, and every snapshot leads to the same past.
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
    """Cycles to run between two looks at the client."""

    def __init__(self, clock: Clock = process_time) -> None:
        self._clock = clock
        self._began = clock()
        self.cycles = FIRST

    def begin(self) -> None:
        """The hart goes on."""
        self._began = self._clock()

    def end(self) -> None:
        """A slice is over: the next one is as long as fits."""
        now = self._clock()
        took, self._began = now - self._began, now
        if took < GLANCE / 2:
            self.cycles = min(2 * self.cycles, MOST)
        elif took > 2 * GLANCE:
            self.cycles = max(int(self.cycles * GLANCE / took), LEAST)


class Intervals:
    """Execution between two snapshots."""

    def __init__(self, clock: Clock = process_time) -> None:
        self._clock = clock
        self._gap = GAP
        self._next = self._began = clock()

    @property
    def over(self) -> bool:
        """Whether it is time for the next snapshot."""
        return self._clock() >= self._next

    def begin(self) -> None:
        """A snapshot is being taken."""
        self._began = self._clock()

    def end(self) -> None:
        """It has been."""
        now = self._clock()
        self._next = now + max(self._gap, SHARE * (now - self._began))

    def double(self) -> None:
        """Snapshots are to be twice as far apart from now on."""
        self._gap *= 2
