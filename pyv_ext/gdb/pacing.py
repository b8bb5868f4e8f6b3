"""Pacing of a debugger: intervals of client polls and of snapshots, by CPU time, so that both take little of it.

No simulated value depends on it: splitting a run changes nothing, and replays from all snapshots are equal.
"""

from collections.abc import Callable
from time import process_time

Clock = Callable[[], float]
"""Seconds of CPU time."""

POLL_INTERVAL = 0.01
"""Approximate seconds between two polls of the client; a user does not notice the delay of Ctrl-C."""
MIN_SLICE, FIRST_SLICE, MAX_SLICE = 1 << 8, 1 << 12, 1 << 21
"""Cycles of a slice. Native code executes `MAX_SLICE` in a millisecond, a program that only accesses devices in some
seconds: Ctrl-C may wait that long when a program changes from the former to the latter."""

FIRST_GAP = 0.05
"""Initial seconds of execution between two snapshots, the maximum time of a reverse step."""
MIN_RATIO = 20
"""Minimum execution time after a snapshot, as a multiple of the time that the snapshot took."""


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
    def is_due(self) -> bool:
        """Check whether the next snapshot is due."""
        return self._clock() >= self._next

    def begin(self) -> None:
        """Begin a snapshot."""
        self._began = self._clock()

    def end(self) -> None:
        """End a snapshot, and set the time of the next."""
        now = self._clock()
        self._next = now + max(self._gap, MIN_RATIO * (now - self._began))

    def double(self) -> None:
        """Double the interval of later snapshots."""
        self._gap *= 2
