"""Accesses in flight, by address alone: who of them meets a range."""

import numpy as np
from numpy.typing import NDArray

_OVER = 1 << 62
"""Above all addresses: the begin of an access that is over."""
_ROOM = 64


class Crowd:
    """Ranges of addresses in the order of acceptance. A look at thousands of them costs no more than a few do."""

    __slots__ = ("_end", "_low", "_rows", "_used", "alive")

    def __init__(self) -> None:
        self._rows: NDArray[np.int64] = np.empty((3, _ROOM), np.int64)
        """Numbers, begins, ends."""
        self._used = 0
        self.alive = 0
        self._low, self._end = _OVER, 0
        """All of them lie between these."""

    def add(self, number: int, low: int, end: int) -> None:
        """One more; its acceptance number is not below those before it."""
        if self._used == self._rows.shape[1]:
            kept = self._rows[:, self._rows[1] != _OVER]
            self._used = kept.shape[1]
            self._rows = np.empty((3, max(_ROOM, 2 * self._used)), np.int64)
            self._rows[:, : self._used] = kept
        self._rows[:, self._used] = number, low, end
        self._used += 1
        self.alive += 1
        if low < self._low:
            self._low = low
        if end > self._end:
            self._end = end

    def remove(self, number: int) -> None:
        """All accesses of a command are over."""
        numbers, lows, _ = self._rows[:, : self._used]
        first, last = numbers.searchsorted((number, number + 1))
        lows[first:last] = _OVER
        self.alive -= int(last - first)
        if not self.alive:
            self._used, self._low, self._end = 0, _OVER, 0

    def near(self, low: int, end: int) -> bool:
        """Whether one of them may overlap `low`..`end` - 1."""
        return low < self._end and end > self._low

    def meeting(self, low: int, end: int, before: int) -> list[int]:
        """Numbers below `before` of the accesses that overlap `low`..`end` - 1, oldest first."""
        found: list[int] = self._rows[0, self._places(low, end, before)].tolist()
        return found

    def youngest(self, low: int, end: int, before: int) -> int | None:
        """The largest of these."""
        places = self._places(low, end, before)
        return int(self._rows[0, places[-1]]) if len(places) else None

    def _places(self, low: int, end: int, before: int) -> NDArray[np.intp]:
        numbers, lows, ends = self._rows[:, : self._used if self.near(low, end) else 0]
        places: NDArray[np.intp] = ((lows < end) & (ends > low) & (numbers < before)).nonzero()[0]
        return places
