"""Records of an issue stage in a buffer: free lists, operands of commands, and dependencies of a command list."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np

from npu_device.decode.command import Command
from npu_device.memory.region import OPERAND_WORDS
from npu_device.reservation import accumulators, barriers, commands, hazards, pieces, results, scheduler, tickets
from npu_device.reservation.state import (
    BUCKETS,
    DOMAINS,
    ISSUE_CAPACITIES,
    MAX_OPERANDS,
    PIECE_BUCKETS,
    STREAMS,
    Access,
    Dependency,
    Entry,
    Epoch,
    Issue,
    PendingBarrier,
    Span,
    Ticket,
    TilePiece,
)
from pyv_native.arena import Arena
from pyv_native.emitter import Definition
from pyv_native.module import Linkage, NativeModule
from pyv_native.records import WORD, layout

FUNCTIONS: tuple[Definition, ...] = (
    commands.restore, scheduler.mark_ready,
    scheduler.enqueue_released, barriers.block_domains, barriers.open_domains, barriers.append_epoch,
    barriers.append_barrier, hazards.add_hazards, hazards.end_hazards, tickets.enter_ticket,
    tickets.copy_ended, tickets.restore_ended, tickets.ticket_code, tickets.set_command, pieces.add_piece,
    pieces.clear_pieces, results.block_class,
    results.store, results.overlaps, results.forward_all, results.move_size, results.sample_move,
    accumulators.open_accumulators, accumulators.find_sum, accumulators.check_sum, accumulators.choose_engine,
    accumulators.count_free, accumulators.bind_sum, accumulators.split_span,
)  # fmt: skip
"""Functions of an issue stage that Python calls."""
LINKAGE = Linkage(
    hazards.report_dependency, scheduler.flush_events, commands.write_status, commands.log_failure,
    commands.observe_submission, results.report_write, results.write_result,
)  # fmt: skip
OPERAND_BYTES = OPERAND_WORDS * WORD
CHUNK = MAX_OPERANDS * OPERAND_BYTES
MIN_RECORDS = 64
"""Minimum growth of a free list in records."""
CLASS_LISTS = "heaps", "ready", "request_bits", "kinds", "unit_clusters", "unit_indices"
"""Lists of the issue stage by unit class."""
_LISTS = {
    Entry: "entries", Access: "accesses", Dependency: "dependencies", Epoch: "epochs", PendingBarrier: "barriers",
    Ticket: "tickets", TilePiece: "pieces", Span: "spans",
}  # fmt: skip
"""Record type of each free list -> its name."""
_LIST_FUNCTIONS = (
    barriers.open_domains, hazards.add_hazards, accumulators.open_accumulators, accumulators.find_sum,
    accumulators.check_sum, accumulators.choose_engine, accumulators.count_free, accumulators.bind_sum,
)  # fmt: skip

_NEXT = layout(Entry).fields["next"].word
"""Word of the link to the next entry."""

Calls = Mapping[Definition, Callable[..., int]]


@cache
def _list_calls() -> Calls:
    """Return the functions for dependencies and sums of a command list, with the issue stage as root."""
    module = NativeModule(_LIST_FUNCTIONS, Issue, linkage=LINKAGE)
    return {function: module.entry(function) for function in _LIST_FUNCTIONS}


class IssueBuffer:
    """Records of the issue stage in an arena, and its functions."""

    def __init__(self, arena: Arena, calls: Calls, allocate: Callable[[int], int]) -> None:
        """`arena`: its root is the issue stage, or has it as `issue`. `allocate`: allocates bytes of the arena."""
        self.arena, self._calls, self._allocate = arena, calls, allocate
        self._inner = hasattr(arena.root, "issue")
        self.totals = dict.fromkeys(_LISTS, 0)
        """Number of records by type, in use or free."""
        issue = self.issue
        self._root = (issue.offset,) if self._inner else ()
        root, fields = issue.offset // WORD, layout(Issue).fields
        self._spare = {record: root + fields[f"spare_{name}"].word for record, name in _LISTS.items()}
        self._free = {record: root + fields[f"free_{name}"].word for record, name in _LISTS.items()}
        """Words with the length (`_spare`) and the first record (`_free`) of each free list."""
        self._operands = issue.operands.offset
        issue.domains.resize(DOMAINS)
        issue.streams.resize(STREAMS)
        issue.buckets.resize(BUCKETS)
        issue.piece_buckets.resize(PIECE_BUCKETS)
        self._extend(Epoch, DOMAINS)
        self.call(barriers.open_domains)

    def call(self, function: Definition, *arguments: int) -> int:
        """Call a function of the issue stage."""
        return self._calls[function](self.arena, *self._root, *arguments)

    @property
    def issue(self) -> Any:
        """View of the issue stage."""
        return self.arena.root.issue if self._inner else self.arena.root

    def reserve(self, record: type, count: int) -> None:
        """Extend a free list unless it has at least `count` records."""
        if self.arena.words[self._spare[record]] < count:
            self._extend(record, count)

    def _extend(self, record: type, count: int) -> None:
        """Extend a free list by at least `count` records and at least a quarter of their total."""
        count = max(count, self.totals[record] // 4, MIN_RECORDS)
        self.totals[record] += count
        fields, size = layout(record)
        first = self._allocate(size * count)
        words, head = self.arena.words, self._free[record]
        table = np.frombuffer(words, np.int64, count * size // WORD, first).reshape(count, size // WORD)
        table[:] = 0
        links = table[:, fields["next"].word]
        links[:] = np.arange(first + size, first + size * count + 1, size)
        links[-1], words[head] = words[head], first
        words[self._spare[record]] += count

    def new_entry(self) -> int:
        """Allocate an entry. Return its offset."""
        self.reserve(Entry, 1)
        words, head = self.arena.words, self._free[Entry]
        entry = words[head]
        words[head] = words[entry // WORD + _NEXT]
        words[self._spare[Entry]] -= 1
        return entry

    def add_operands(self, entry: int, words: bytes) -> None:
        """Reserve accesses and dependencies for the operands of `entry`. All chunks but the last are added to it; the
        last remains in `issue.operands`."""
        count = len(words) // OPERAND_BYTES
        self.reserve(Access, count)
        self.reserve(Dependency, 2 * hazards.LISTED * count)
        arena, first = self.arena, self._operands + WORD
        for at in range(0, len(words), CHUNK):
            if at:
                self.call(hazards.add_hazards, entry)
            part = words[at : at + CHUNK]
            arena.bytes[first : first + len(part)] = part
            arena.words[self._operands // WORD] = len(part) // WORD


def list_buffer(engines: int = 0) -> IssueBuffer:
    """Return a standalone issue stage, for the dependencies of a command list, or the sums of `engines` engines."""
    arena = Arena(Issue, ISSUE_CAPACITIES | {"accumulators": engines})
    return IssueBuffer(arena, _list_calls(), arena.allocate)


class Dependencies:
    """Dependencies between the commands of a list, none of which retires."""

    def __init__(self) -> None:
        self._buffer = list_buffer()
        self._waits: tuple[set[int], set[int]] = set(), set()
        slot = LINKAGE.slots[hazards.report_dependency]
        self._buffer.arena.link_callback(slot, hazards.report_dependency, self._report)
        self._buffer.issue.reporting = True

    def _report(self, number: int, at_end: int) -> int:
        self._waits[not at_end].add(number)
        return 0

    def add(self, command: Command) -> tuple[set[int], set[int]]:
        """Return the numbers of the earlier commands whose end, and whose retirement, a command waits for.

        Of several with the same bytes only the latest is included, since it waits for the others.
        """
        self._waits = set(), set()
        buffer = self._buffer
        entry = buffer.new_entry()
        buffer.add_operands(entry, command.operands())
        buffer.arena.view(Entry, entry).number = command.number
        buffer.call(hazards.add_hazards, entry)
        return self._waits


def iterate(first: Any, link: str = "next") -> Iterator[Any]:
    """Iterate over views of the records of a linked list."""
    while first is not None:
        yield first
        first = getattr(first, link)
