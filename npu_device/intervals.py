"""A line of disjoint intervals, each with a content."""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from typing import Generic, Protocol, Self, TypeVar


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

    def meeting(self, low: int, end: int) -> list[T]:
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
