"""The queue of what native code has stored to devices (see `pyv_ext.bus.clock`)."""

from collections.abc import Sequence
from struct import Struct
from typing import Any

from pyv_native.state import WORD32

ARRIVAL, WHAT_OF_STORE, VALUE, CALL = range(4)
"""Words of a store in the queue; the last is what native code may call instead of the clock, 0 if nothing."""
STORE_WORDS = 4
STORE = Struct(f"{STORE_WORDS}Q")
COUNT, LOUD, FIRST = 0, 1, 2
"""Words of the queue: how many stores there are, how many of them are not deferrable; where they begin."""
CAPACITY = 1024
CROWDED = 64
"""Stores in the queue from which on native code lets those arrive itself that it can."""
NOT_DEFERRABLE = 1 << 63
"""Added to device and register of such a store in the queue, and of all behind it: it may change which are."""

QueuedStore = tuple[int, int, int, int, int]
"""Arrival, number of the device, offset, size, value."""


def what_of(number: int, offset: int, size: int) -> int:
    """A device and a register of it, in one word."""
    return number << 40 | size << 32 | offset


class StoreQueue:
    """What native code has stored and no device has yet, in the order of arrival."""

    def __init__(self) -> None:
        self._bytes = memoryview(bytearray(8 * FIRST + STORE.size * CAPACITY))
        self.table = self._bytes.cast("Q")

    def put(self, stores: Sequence[tuple[int, int, int, int]]) -> None:
        """Let these, words as above, be in the queue, which is empty."""
        table, at, loud = self.table, 8 * FIRST, 0
        for store in stores:
            STORE.pack_into(self._bytes, at, *store)
            at += STORE.size
            if store[WHAT_OF_STORE] >= NOT_DEFERRABLE:
                loud += 1
        table[COUNT], table[LOUD] = len(stores), loud

    def words(self, first: int, last: int) -> list[tuple[int, int, int, int]]:
        """The words of the stores from the `first` on that come before the `last`."""
        begin = 8 * FIRST
        found: Any = STORE.iter_unpack(self._bytes[begin + STORE.size * first : begin + STORE.size * last])
        return list(found)

    def take(self, first: int = 0) -> list[QueuedStore]:
        """The stores from the `first` on; the queue is empty then."""
        table = self.table
        words = self.words(first, table[COUNT])
        table[COUNT] = table[LOUD] = 0
        return stores_of(words)


def stores_of(words: Sequence[tuple[int, int, int, int]]) -> list[QueuedStore]:
    """The stores of these words of a queue."""
    return [
        (arrival, what >> 40 & 0xFFFF, what & WORD32, what >> 32 & 0xFF, value) for arrival, what, value, _ in words
    ]
