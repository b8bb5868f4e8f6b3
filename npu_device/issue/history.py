"""The latest completions of tickets, in memory that does not grow with their number."""

from array import array
from collections.abc import Iterable, Iterator

NONE = 0
"""No ticket."""
MIN_CAPACITY = 1024


class History:
    """Codes of the tickets that completed last.

    A ticket is at its number modulo the size of a table, where tickets in succession do not collide; those that
    do are in a dictionary. The order of completion is a ring, in which a ticket that was given again leaves a gap.
    """

    def __init__(self, size: int) -> None:
        """`size`: the number of tickets that are kept."""
        self._size = size
        self._build(min(size, MIN_CAPACITY), ())

    def _build(self, capacity: int, entries: Iterable[tuple[int, int]]) -> None:
        """Make a table of a capacity, with tickets and codes, the oldest first."""
        self._capacity = capacity
        self._tickets, self._codes = (array("i", bytes(4 * capacity)) for _ in range(2))
        self._positions = array("q", bytes(8 * capacity))
        self._collisions: dict[int, tuple[int, int]] = {}
        """Codes and positions of tickets whose index in the table is occupied."""
        self._ring = array("i", bytes(8 * capacity))
        self._begin = self._end = self._count = 0
        """Positions in the ring, which grow, and tickets in it."""
        for ticket, code in entries:
            self._append(ticket, code)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Tickets and codes, the oldest first."""
        for position in range(self._begin, self._end):
            if ticket := self._ring[position % len(self._ring)]:
                yield ticket, self._find(ticket)[0]

    def get(self, ticket: int) -> int | None:
        """Return the code of a ticket, 0 for success; None: it is not here."""
        at = ticket % self._capacity
        if ticket != NONE and self._tickets[at] == ticket:
            return self._codes[at]
        return self._collisions[ticket][0] if ticket in self._collisions else None

    def add(self, ticket: int, code: int) -> None:
        """Add the completion of a ticket that is not here; evict the oldest where there are too many."""
        while self._count >= self._size:
            oldest = self._ring[self._begin % len(self._ring)]
            self._begin += 1
            if oldest != NONE:
                self._forget(oldest)
        if self._count == self._capacity:
            self._build(min(self._size, 2 * self._capacity), list(self))
        elif self._end - self._begin == len(self._ring):
            self._build(self._capacity, list(self))
        self._append(ticket, code)

    def discard(self, ticket: int) -> None:
        """Remove the completion, if any, of a ticket that is assigned again."""
        if (self._collisions or self._tickets[ticket % self._capacity] == ticket) and self.get(ticket) is not None:
            self._ring[self._find(ticket)[1] % len(self._ring)] = NONE
            self._forget(ticket)

    def _find(self, ticket: int) -> tuple[int, int]:
        """Code and position of a ticket that is here."""
        at = ticket % self._capacity
        if self._tickets[at] == ticket:
            return self._codes[at], self._positions[at]
        return self._collisions[ticket]

    def _append(self, ticket: int, code: int) -> None:
        at = ticket % self._capacity
        if self._tickets[at] == NONE:
            self._tickets[at], self._codes[at], self._positions[at] = ticket, code, self._end
        else:
            self._collisions[ticket] = code, self._end
        self._ring[self._end % len(self._ring)] = ticket
        self._end += 1
        self._count += 1

    def _forget(self, ticket: int) -> None:
        self._count -= 1
        if self._collisions.pop(ticket, None) is None:
            self._tickets[ticket % self._capacity] = NONE
