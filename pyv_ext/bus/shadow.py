"""Shadow memory of a sanitizer: the hart's last store to each word, and lines whose accesses are reported.

A sanitizer adds it to the bus before the program runs. Stores record pc and cycle here; loads and stores of flagged
lines are reported to the sanitizer. Native code does the same for the memory of its fast path; without a shadow it
contains no such code. A shadow is no part of the machine's state: snapshots omit it.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyv_ext.bus.memory import PAGE_BITS, Ram
from pyv_ext.hart.hart import Hart
from pyv_ext.machine.state import LINE_BITS
from pyv_native.arena import zeros

LOADS, STORES = 1, 2
"""Bits of a line's flags: reported accesses."""

WORD_BITS = 2
_WORDS_OF_PAGE = PAGE_BITS - WORD_BITS


class LastStore(NamedTuple):
    """Latest store of the hart into a range after a given cycle."""

    cycle: int
    """Cycle at whose start the store began."""
    pc: int
    address: int
    """Address of the word."""


class ShadowTable:
    """Shadow of one memory: zeros, which take host memory only once they are written."""

    def __init__(self, ram: Ram, bytes_written: bool) -> None:
        self.base = ram.base
        self.end = ram.end
        self.flags = bytearray(len(ram.code))
        """Per line of 64 bytes: LOADS, STORES."""
        self.pcs = _zeros(ram.size >> WORD_BITS, "I")
        """Per word: pc of its last store."""
        self.cycles = _zeros(ram.size >> WORD_BITS, "Q")
        """Per word: the cycle at whose start its last store began; 0: never."""
        self.pages = _zeros(ram.size >> PAGE_BITS, "Q")
        """Per page: the cycle of its latest store."""
        self.written_flags = _zeros(ram.size, "B") if bytes_written else None
        """Per byte: 1 once anything has written it."""

    def flag(self, low: int, end: int, bits: int) -> tuple[int, int]:
        """Set bits of all lines of a range, clipped to this memory; return the first line and the end, exclusive."""
        first = max(low, self.base) - self.base >> LINE_BITS
        after = (min(end, self.end) - self.base + (1 << LINE_BITS) - 1) >> LINE_BITS
        np.frombuffer(self.flags, np.uint8)[first:after] |= bits
        return first, after

    def latest(self, low: int, end: int, since: int) -> LastStore | None:
        """Find the latest store to low..end-1 that began after cycle `since`."""
        low, end = max(low, self.base) - self.base, min(end, self.end) - self.base
        first = low >> PAGE_BITS
        pages = np.frombuffer(self.pages, np.uint64)[first : (end - 1 >> PAGE_BITS) + 1]
        cycles = np.frombuffer(self.cycles, np.uint64)
        store: LastStore | None = None
        for page in (np.flatnonzero(pages > since) + first).tolist():
            start = max(low >> WORD_BITS, page << _WORDS_OF_PAGE)
            words = cycles[start : min((end - 1 >> WORD_BITS) + 1, page + 1 << _WORDS_OF_PAGE)]
            offset = int(words.argmax())
            if words[offset] > max(since, store.cycle if store is not None else 0):
                word = start + offset
                store = LastStore(int(words[offset]), self.pcs[word], self.base + (word << WORD_BITS))
        return store


def _zeros(count: int, code: Literal["B", "I", "Q"]) -> "memoryview[int]":
    return memoryview(zeros(count * {"B": 1, "I": 4, "Q": 8}[code])).cast(code)


class Shadow:
    """Shadow of all writable memories of one hart's bus."""

    def __init__(self, hart: Hart, rams: Sequence[Ram], *, bytes_written: bool = False) -> None:
        """`bytes_written`: also track which bytes have been written, and report loads of others."""
        self._hart = hart
        self.bytes_written = bytes_written
        self.tables = [ShadowTable(ram, bytes_written) for ram in rams if ram.writable]
        """Tables of the memories; that of the fast path is the first."""
        self.on_load: Callable[[int, int, int], None] = _ignore_access
        """`f(address, size, start)` before a load from a flagged line; the hart's pc is that of the load."""
        self.on_store: Callable[[int, int, int], None] = _ignore_access
        """`f(address, size, start)` before a store to a flagged line."""
        self.on_unwritten: Callable[[int, int, int], None] = _ignore_access
        """`f(address, size, start)` before a load of unwritten bytes."""
        self.on_return: Callable[[int], None] = _ignore_return
        """`f(start)` before MRET."""

    @property
    def fence_cycle(self) -> int:
        """Cycle of the last fence that orders stores to memory before stores to devices."""
        return int(self._hart.records.machine.fence_cycle)

    @property
    def drain_cycle(self) -> int:
        """Cycle of the last fence that waits for posted stores."""
        return int(self._hart.records.machine.drain_cycle)

    def table_at(self, address: int) -> ShadowTable | None:
        """Return the table of the memory at an address."""
        for table in self.tables:
            if table.base <= address < table.end:
                return table
        return None

    def latest(self, low: int, end: int, since: int) -> LastStore | None:
        """Find the latest store of the hart to low..end-1 that began after cycle `since`."""
        table = self.table_at(low)
        return None if table is None else table.latest(low, end, since)

    def check_load(self, address: int, size: int, start: int) -> None:
        """Check a load of the hart from memory before it executes in cycle `start`."""
        table = self.table_at(address)
        if table is None:
            return
        offset = address - table.base
        if (table.flags[offset >> LINE_BITS] | table.flags[offset + size - 1 >> LINE_BITS]) & LOADS:
            self.on_load(address, size, start)
        if table.written_flags is not None and not all(table.written_flags[offset : offset + size]):
            self.on_unwritten(address, size, start)

    def record_store(self, address: int, size: int, start: int) -> None:
        """Check and record a store of the hart to memory before it executes in cycle `start`."""
        table = self.table_at(address)
        if table is None:
            return
        offset = address - table.base
        if (table.flags[offset >> LINE_BITS] | table.flags[offset + size - 1 >> LINE_BITS]) & STORES:
            self.on_store(address, size, start)
        for word in range(offset >> WORD_BITS, (offset + size - 1 >> WORD_BITS) + 1):
            table.pcs[word], table.cycles[word] = self._hart.pc, start
        table.pages[offset >> PAGE_BITS] = table.pages[offset + size - 1 >> PAGE_BITS] = start
        self.initialise(address, size)

    def initialise(self, address: int, size: int, has_data: bool = True) -> None:
        """Mark bytes as written or, with `has_data` False, as without data."""
        if not self.bytes_written or size <= 0:
            return
        table = self.table_at(address)
        if table is not None and table.written_flags is not None:
            first = address - table.base
            end = min(first + size, len(table.written_flags))
            np.frombuffer(table.written_flags, np.uint8)[first:end] = has_data

    def written_flags(self, low: int, end: int) -> NDArray[np.uint8] | None:
        """Return flags of bytes low..end-1, up to the end of their memory: 1 for a written byte. None if they are not
        tracked."""
        table = self.table_at(low)
        if table is None or table.written_flags is None:
            return None
        return np.frombuffer(table.written_flags, np.uint8)[low - table.base : end - table.base]

    def clear(self) -> None:
        """Reset after a snapshot is restored: no store is recorded, all bytes count as written."""
        for table in self.tables:
            for part, value in ((table.flags, 0), (table.cycles.cast("B"), 0), (table.pages.cast("B"), 0)):
                np.frombuffer(part, np.uint8)[:] = value
            if table.written_flags is not None:
                np.frombuffer(table.written_flags, np.uint8)[:] = 1
        machine = self._hart.records.machine
        machine.fence_cycle = machine.drain_cycle = 0


def _ignore_return(start: int) -> None:
    """Ignore a return."""


def _ignore_access(address: int, size: int, start: int) -> None:
    """Ignore an access."""
