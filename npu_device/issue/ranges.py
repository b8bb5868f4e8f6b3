"""Ranges of addresses: a line of disjoint intervals, and the in-flight ranges that overlap a given one."""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from typing import Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray


class Content(Protocol):
    """What an interval holds: when one is split, each part has its own."""

    def copy(self) -> Self: ...


T = TypeVar("T", bound=Content)


class Intervals(ABC, Generic[T]):
    """Intervals `starts[i]`..`ends[i]` - 1 in ascending order, with gaps between them."""

    __slots__ = ("contents", "ends", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.contents: list[T] = []

    @abstractmethod
    def empty(self) -> T:
        """The content of what was a gap."""

    def overlapping(self, low: int, end: int) -> list[T]:
        """Contents of the intervals that overlap `low`..`end` - 1."""
        first = bisect_right(self.ends, low)
        return self.contents[first : bisect_left(self.starts, end, first)]

    def cut(self, low: int, end: int) -> tuple[int, int]:
        """(first, last): the intervals `first`..`last` - 1 now cover `low`..`end` - 1 and nothing else."""
        starts, ends = self.starts, self.ends
        first = bisect_right(ends, low)
        if first < len(starts):
            if starts[first] == low and ends[first] == end:
                return first, first + 1
            if starts[first] < low:
                self._split(first, low)
                first += 1
        at, last = low, first
        while at < end:
            if last == len(starts) or starts[last] > at:
                starts.insert(last, at)
                ends.insert(last, end if last + 1 == len(starts) else min(end, starts[last + 1]))
                self.contents.insert(last, self.empty())
            elif ends[last] > end:
                self._split(last, end)
            at = ends[last]
            last += 1
        return first, last

    def join(self, first: int, last: int) -> None:
        """Make one of the adjoining intervals `first`..`last` - 1, with the content of the first."""
        del self.starts[first + 1 : last]
        del self.ends[first : last - 1]
        del self.contents[first + 1 : last]

    def keep(self, indices: list[int]) -> None:
        """Forget all intervals but these."""
        self.starts = [self.starts[index] for index in indices]
        self.ends = [self.ends[index] for index in indices]
        self.contents = [self.contents[index] for index in indices]

    def copy(self) -> Self:
        made = type(self)()
        made.starts, made.ends = self.starts.copy(), self.ends.copy()
        made.contents = [content.copy() for content in self.contents]
        return made

    def _split(self, index: int, at: int) -> None:
        self.starts.insert(index + 1, at)
        self.ends.insert(index, at)
        self.contents.insert(index + 1, self.contents[index].copy())


_OVER = 1 << 62
"""Above all addresses: the begin of an access that is over."""
_ROOM = 64


class InFlightRanges:
    """Ranges of addresses in the order of acceptance. A query over thousands costs no more than one over a few."""

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

    def overlapping(self, low: int, end: int, before: int) -> list[int]:
        """Numbers below `before` of the accesses that overlap `low`..`end` - 1, oldest first."""
        found: list[int] = self._rows[0, self._indices(low, end, before)].tolist()
        return found

    def youngest(self, low: int, end: int, before: int) -> int | None:
        """The largest of these."""
        indices = self._indices(low, end, before)
        return int(self._rows[0, indices[-1]]) if len(indices) else None

    def _indices(self, low: int, end: int, before: int) -> NDArray[np.intp]:
        numbers, lows, ends = self._rows[:, : self._used if self.near(low, end) else 0]
        indices: NDArray[np.intp] = ((lows < end) & (ends > low) & (numbers < before)).nonzero()[0]
        return indices
