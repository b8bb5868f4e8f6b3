"""MMU of the DMA: pages of encoded keys and values, allocated at the first access (docs/oaken.md, "Pages").

Commands use the virtual addresses of an `EncodedCache`, which has a row for each layer, request, side and stream of its
codec. A page of DRAM belongs to one row. Values stay at the addresses of the commands; translation affects only timing,
by the DRAM rows and channels of the transfers.
"""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any

import numpy as np

from npu_device.abi.errors import TicketError
from npu_device.abi.memory_map import DRAM_BASE
from npu_device.config import NpuConfig
from npu_device.cost.plan import Column, Piece, Plan, Transfer
from npu_device.kv_quant.codec import PageTable
from npu_device.kv_quant.storage import PART_ALIGNMENT, KvAccess, RowSpan
from npu_device.operations.checks import DescriptorError
from npu_device.operations.limits import POOL_KEY
from npu_device.trace.events import Kind, Role, What, unit_code
from npu_device.trace.stream import EventStream
from pyv_native.state import LATEST, Fields, StateError, inside, sequence

TABLES = tuple(table.name.lower() for table in PageTable)
UNIT = unit_code(Kind.KV_MMU, 0)


class Mmu:
    """Page tables and page pool of a device."""

    def __init__(self, config: NpuConfig, events: EventStream | None = None) -> None:
        """`events` receives allocations and releases of pages."""
        self._events = events
        self._page = config.kv_quant.page_bytes
        pool = config.kv_quant.pool_pages
        self._pool = config.dram.size // self._page if pool is None else pool
        self._virtual = config.l2.enabled
        """Whether transfers keep virtual addresses, because an L2 is indexed by them."""
        self._turn = 0
        """Bytes after which the interleaving of DRAM channels repeats; 0 for a single channel."""
        if config.dram.channels > 1:
            self._turn = config.dram.channels * config.dram.interleave
        self.reset()

    def reset(self) -> None:
        """Free all pages."""
        self._tables: tuple[dict[int, array[int]], ...] = tuple({} for _ in TABLES)
        """Virtual address of the first byte of a stream -> page numbers in DRAM, in the order of the stream. Arrays of
        8 bytes a page, because a long run has a million streams."""
        self._passed: dict[int, int] = {}
        """The same address -> number of pages before these, released because a window has passed their tokens."""
        self._free: list[int] = []
        """Heap of released pages."""
        self._next_page = 0
        """Lowest page that was never allocated."""

    @property
    def allocated(self) -> int:
        """Number of allocated pages."""
        return self._next_page - len(self._free)

    def tables(self) -> dict[str, int]:
        """Return the number of pages by table."""
        return {name: sum(map(len, table.values())) for name, table in zip(TABLES, self._tables, strict=True)}

    # -- allocation --------------------------------------------------------------------------------------------

    def begin(self, cycle: int, ticket: int, accesses: Sequence[KvAccess]) -> None:
        """Allocate the pages that a starting command accesses. Release the pages after its appended tokens, and those
        before the tokens that it and later commands read.

        Raise DescriptorError, without changes, if the pool is exhausted or the command reads a released page."""
        changes: list[tuple[int, int, int, int]] = []
        demand = surplus = 0
        for access in accesses:
            for span in access.row_bytes():
                begin, end = self._extent(span.table, span.start)
                low, high = self._extent_after(access, span, begin, end)
                common = max(0, min(end, high) - max(begin, low))
                demand += high - low - common
                surplus += end - begin - common
                if (low, high) != (begin, end):
                    changes.append((span.start, span.table, low, high))
        free = self._pool - self.allocated + surplus
        if demand > free:
            raise DescriptorError(
                TicketError.KV_PAGES,
                f"keys and values need {demand} more pages of {self._page} bytes, {free} of {self._pool} are free: "
                f"raise {POOL_KEY}",
            )
        gaps = [self._release(*change) for change in changes]
        for (start, table, low, high), (before, after) in zip(changes, gaps, strict=True):
            pages = self._tables[table][start]
            pages[:0] = array("q", [self._allocate() for _ in range(before)])
            pages.extend([self._allocate() for _ in range(after)])
            self._passed.pop(start, None)
            if low:
                self._passed[start] = low
            if low == high:
                del self._tables[table][start]
        if changes and self._events is not None:
            self._events.emit(cycle, UNIT, What.PAGES, ticket, surplus, self.allocated, demand)

    def _extent(self, table: int, start: int) -> tuple[int, int]:
        """Return the range of allocated pages of a row: the first, and the last plus 1."""
        begin = self._passed.get(start, 0)
        return begin, begin + len(self._tables[table].get(start, ()))

    def _extent_after(self, access: KvAccess, span: RowSpan, begin: int, end: int) -> tuple[int, int]:
        """Return the page range of a row after a command, from that before it. Raise DescriptorError as `begin`."""
        offset = span.start % PART_ALIGNMENT
        high = -(-(offset + span.size) // self._page) if span.size else 0
        if not access.new:
            high = max(high, end)
        low = begin
        if access.new and span.stored < span.size:
            low = min(low, (offset + span.stored) // self._page)  # the cache restarts at an earlier token
        if access.first is not None and access.tokens > access.new:
            oldest = (offset + span.passed) // self._page
            if oldest < begin and span.passed < span.stored:
                raise DescriptorError(
                    TicketError.KV_PAGES,
                    f"keys and values from token {access.first} on: {begin} pages of the row at {span.start:#x} were "
                    f"given back, as the window of an earlier command has passed them",
                )
            low = max(low, oldest)
        return min(low, high), high

    def _release(self, start: int, table: int, low: int, high: int) -> tuple[int, int]:
        """Release the pages of a row outside low..high. Return the number of missing pages before and after these."""
        begin, end = self._extent(table, start)
        first = min(max(begin, low), end)
        last = max(first, min(end, high))
        pages = self._tables[table].setdefault(start, array("q"))
        for page in (*pages[: first - begin], *pages[last - begin :]):
            heappush(self._free, page)
        self._tables[table][start] = pages[first - begin : last - begin]
        return (first - low, high - last) if first < last else (0, high - low)

    def _allocate(self) -> int:
        """Allocate the lowest free page."""
        if self._free:
            return heappop(self._free)
        self._next_page += 1
        return self._next_page - 1

    # -- translation -------------------------------------------------------------------------------------------

    def translate(self, plan: Plan, accesses: Sequence[KvAccess]) -> Plan:
        """Return a plan whose transfers of keys and values use DRAM addresses. Their pages have been allocated."""
        if not accesses or self._virtual:
            return plan
        moves = [isinstance(piece, Transfer) and piece.role is Role.KV for piece in plan.pieces]
        at = np.flatnonzero(np.array(moves, bool)[plan.piece])
        if not len(at):
            return plan
        rows = {row.start: self._tables[row.table].get(row.start) for access in accesses for row in access.row_bytes()}
        row_starts = sorted(start for start, row in rows.items() if row)
        starts = np.array(row_starts, np.int64)
        row_index = np.searchsorted(starts, plan.dram[at], side="right") - 1
        offset = plan.dram[at] - starts[row_index] + starts[row_index] % PART_ALIGNMENT
        page_rows = [rows[start] or () for start in row_starts]
        lengths = [len(row) for row in page_rows]
        first = np.cumsum([0, *lengths[:-1]])
        pages = np.concatenate([np.asarray(row, np.int64) for row in page_rows])
        passed = np.array([self._passed.get(start, 0) for start in row_starts], np.int64)
        index = offset // self._page - passed[row_index]  # negative if a tile begins before the window
        entry = first[row_index] + np.maximum(0, index)
        dram = plan.dram.copy()
        dram[at] = DRAM_BASE + pages[entry] * self._page + offset % self._page
        moved = replace(plan, dram=dram)
        if not self._turn:
            return moved
        return self._split_transfers(moved, at, offset % self._page, first[row_index], index, pages)

    def _split_transfers(
        self, plan: Plan, at: Column, inside_page: Column, first: Column, index: Column, pages: Column
    ) -> Plan:
        """Split transfers over several pages into parts with the addresses that select DRAM channels. `first`: position
        in `pages` of the first page of the transfer's row; `index`: position of its page in the row."""
        indices: dict[Piece, int] = {piece: index for index, piece in enumerate(plan.pieces)}
        pieces, piece = list(plan.pieces), plan.piece.copy()
        steps = zip(at.tolist(), inside_page.tolist(), first.tolist(), index.tolist(), strict=True)
        for step, begin, row, page in steps:
            transfer = plan.pieces[piece[step]]
            assert isinstance(transfer, Transfer)
            last = (begin + transfer.payload - 1) // self._page
            if last < 1:
                continue
            parts = []
            for number in range(last + 1):
                low = begin if number == 0 else 0
                high = begin + transfer.payload - number * self._page
                address = (DRAM_BASE + int(pages[row + max(0, page + number)]) * self._page + low) % self._turn
                parts.append((address, min(high, self._page) - low))
            split = transfer._replace(parts=tuple(parts))
            if split not in indices:
                indices[split] = len(pieces)
                pieces.append(split)
            piece[step] = indices[split]
        return replace(plan, pieces=tuple(pieces), piece=piece)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot."""
        rows = sorted(
            [start, at, pages.tolist()] for at, table in enumerate(self._tables) for start, pages in table.items()
        )
        passed = sorted([start, count] for start, count in self._passed.items())
        return {"streams": rows, "passed": passed, "free": sorted(self._free), "fresh": self._next_page}

    def load_state(self, state: Any) -> None:
        """Restore a state. Raise StateError if a page belongs to two streams, or to none."""
        fields = Fields(state, "streams", "passed", "free", "fresh")
        self.reset()
        self._next_page = fields.integer("fresh", 0, self._pool)
        self._free = sorted(fields.integers("free", 0, LATEST))
        starts = set[int]()
        for index, item in enumerate(fields.sequence("streams")):
            with inside("streams", index):
                start, table, pages = sequence(item, 3)
                if type(start) is not int or start in starts or table not in range(len(TABLES)):
                    raise StateError("is no stream")
                starts.add(start)
                if not isinstance(pages, list) or not pages or not all(type(page) is int for page in pages):
                    raise StateError("has no pages")
                if not all(0 <= page < self._next_page for page in pages):
                    raise StateError("a page belongs to two streams, or to none")
                self._tables[table][start] = array("q", pages)
        for index, item in enumerate(fields.sequence("passed")):
            with inside("passed", index):
                start, count = sequence(item, 2)
                if type(start) is not int or start in self._passed or type(count) is not int or not 0 < count <= LATEST:
                    raise StateError("is no count of pages of a stream")
                self._passed[start] = count
        allocated = [page for streams in self._tables for pages in streams.values() for page in pages]
        if sorted([*self._free, *allocated]) != list(range(self._next_page)):
            raise StateError("a page belongs to two streams, or to none", "streams")
