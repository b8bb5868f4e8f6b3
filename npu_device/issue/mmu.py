"""The MMU of the DMA: pages of encoded keys and values, allocated when they are touched (docs/oaken.md, "Pages").

Commands name virtual addresses, those of an `EncodedCache`: of each layer, request and side the rows of the streams
that its codec has. A page of DRAM belongs to one row. Numbers stay where commands say; what is translated is where
transfers go: to which rows and channels of DRAM.
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
from npu_device.kv_quant.storage import PART_ALIGNMENT, KvAccess
from npu_device.operations.checks import DescriptorError
from npu_device.operations.limits import POOL_KEY
from npu_device.trace.events import Kind, Role, What, unit_code
from npu_device.trace.stream import EventStream
from pyv_native.state import LATEST, Fields, StateError, inside, listed

TABLES = tuple(table.name.lower() for table in PageTable)
UNIT = unit_code(Kind.KV_MMU, 0)


class Mmu:
    """Tables and pool of one device."""

    def __init__(self, config: NpuConfig, events: EventStream | None = None) -> None:
        """`events`: is told when pages are taken or given back."""
        self._events = events
        self._page = config.kv_quant.page_bytes
        given = config.kv_quant.pool_pages
        self._pool = config.dram.size // self._page if given is None else given
        self._virtual = config.l2.enabled
        """An L2 is indexed by virtual addresses, so that transfers keep theirs."""
        self._turn = 0
        """Bytes after which DRAM channels come round again; 0: there is one."""
        if config.dram.channels > 1:
            self._turn = config.dram.channels * config.dram.interleave
        self.reset()

    def reset(self) -> None:
        """Free all pages."""
        self._tables: tuple[dict[int, array[int]], ...] = tuple({} for _ in TABLES)
        """Virtual address of the first byte of a stream -> numbers of pages of DRAM, in the order of the stream. A long
        run has a million streams: 8 bytes a page, and no objects."""
        self._free: list[int] = []
        """Pages that were given back, a heap."""
        self._fresh = 0
        """The first page that was never taken."""

    @property
    def used(self) -> int:
        """Pages that belong to a stream."""
        return self._fresh - len(self._free)

    def tables(self) -> dict[str, int]:
        """Pages by table."""
        return {name: sum(map(len, one.values())) for name, one in zip(TABLES, self._tables, strict=True)}

    # -- allocation --------------------------------------------------------------------------------------------

    def begin(self, cycle: int, ticket: int, accesses: Sequence[KvAccess]) -> None:
        """A command starts: the pages that it touches are there, and pages behind what it appends are given back.
        DescriptorError, with nothing changed, where the pool has too few."""
        wanted: list[tuple[int, int, int]] = []
        needed = surplus = 0
        for access in accesses:
            for start, table, size in access.row_bytes():
                count = -(-(start % PART_ALIGNMENT + size) // self._page) if size else 0
                held = len(self._tables[table].get(start, ()))
                count = count if access.new else max(count, held)
                needed += max(0, count - held)
                surplus += max(0, held - count)
                if count != held:
                    wanted.append((start, table, count))
        free = self._pool - self.used + surplus
        if needed > free:
            raise DescriptorError(
                TicketError.KV_PAGES,
                f"keys and values need {needed} more pages of {self._page} bytes, {free} of {self._pool} are free: "
                f"raise {POOL_KEY}",
            )
        for start, table, count in wanted:
            pages = self._tables[table].setdefault(start, array("q"))
            for page in pages[count:]:
                heappush(self._free, page)
            del pages[count:]
        for start, table, count in wanted:
            pages = self._tables[table][start]
            pages.extend([self._take() for _ in range(count - len(pages))])
            if not pages:
                del self._tables[table][start]
        if wanted and self._events is not None:
            self._events.emit(cycle, UNIT, What.PAGES, ticket, surplus, self.used, needed)

    def _take(self) -> int:
        """Take the lowest free page."""
        if self._free:
            return heappop(self._free)
        self._fresh += 1
        return self._fresh - 1

    # -- translation -------------------------------------------------------------------------------------------

    def translated(self, plan: Plan, accesses: Sequence[KvAccess]) -> Plan:
        """Return a plan whose transfers of keys and values go where their pages are; these have been touched."""
        if not accesses or self._virtual:
            return plan
        moves = [isinstance(piece, Transfer) and piece.role is Role.KV for piece in plan.pieces]
        at = np.flatnonzero(np.array(moves, bool)[plan.piece])
        if not len(at):
            return plan
        rows = {start: self._tables[table].get(start) for access in accesses for start, table, _ in access.row_bytes()}
        known = sorted(start for start, row in rows.items() if row)
        starts = np.array(known, np.int64)
        which = np.searchsorted(starts, plan.dram[at], side="right") - 1
        offset = plan.dram[at] - starts[which] + starts[which] % PART_ALIGNMENT
        held = [rows[start] or () for start in known]
        lengths = [len(row) for row in held]
        first = np.cumsum([0, *lengths[:-1]])
        pages = np.concatenate([np.asarray(row, np.int64) for row in held])
        entry = first[which] + offset // self._page
        dram = plan.dram.copy()
        dram[at] = DRAM_BASE + pages[entry] * self._page + offset % self._page
        moved = replace(plan, dram=dram)
        return self._scattered(moved, at, offset % self._page, entry, pages) if self._turn else moved

    def _scattered(self, plan: Plan, at: Column, inside_page: Column, entry: Column, pages: Column) -> Plan:
        """Transfers over several pages know which bytes are where: the channels of DRAM see it."""
        made: dict[Piece, int] = {piece: index for index, piece in enumerate(plan.pieces)}
        pieces, piece = list(plan.pieces), plan.piece.copy()
        for step, begin, row in zip(at.tolist(), inside_page.tolist(), entry.tolist(), strict=True):
            one = plan.pieces[piece[step]]
            assert isinstance(one, Transfer)
            last = (begin + one.payload - 1) // self._page
            if last < 1:
                continue
            parts = []
            for number in range(last + 1):
                low = begin if number == 0 else 0
                high = begin + one.payload - number * self._page
                address = (DRAM_BASE + int(pages[row + number]) * self._page + low) % self._turn
                parts.append((address, min(high, self._page) - low))
            changed = one._replace(parts=tuple(parts))
            if changed not in made:
                made[changed] = len(pieces)
                pieces.append(changed)
            piece[step] = made[changed]
        return replace(plan, pieces=tuple(pieces), piece=piece)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of a snapshot."""
        rows = sorted(
            [start, at, pages.tolist()] for at, one in enumerate(self._tables) for start, pages in one.items()
        )
        return {"streams": rows, "free": sorted(self._free), "fresh": self._fresh}

    def load_state(self, state: Any) -> None:
        """StateError where a page belongs to two, or to none."""
        fields = Fields(state, "streams", "free", "fresh")
        self.reset()
        self._fresh = fields.integer("fresh", 0, self._pool)
        self._free = sorted(fields.integers("free", 0, LATEST))
        starts = set[int]()
        for index, item in enumerate(fields.listed("streams")):
            with inside("streams", index):
                start, table, pages = listed(item, 3)
                if type(start) is not int or start in starts or table not in range(len(TABLES)):
                    raise StateError("is no stream")
                starts.add(start)
                if not isinstance(pages, list) or not pages or not all(type(page) is int for page in pages):
                    raise StateError("has no pages")
                if not all(0 <= page < self._fresh for page in pages):
                    raise StateError("a page belongs to two streams, or to none")
                self._tables[table][start] = array("q", pages)
        taken = [page for one in self._tables for pages in one.values() for page in pages]
        if sorted([*self._free, *taken]) != list(range(self._fresh)):
            raise StateError("a page belongs to two streams, or to none", "streams")
