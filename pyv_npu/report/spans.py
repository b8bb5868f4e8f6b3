"""What each unit did from when to when, and how many commands waited: arrays made from the records of a run."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.trace.events import FRONTEND, RECORD, Cause, EventStream, Kind, What
from pyv_npu.observe.latency.rows import NONE, Integers, Submissions

Records = NDArray[Any]

_BEGIN = (What.DMA_BEGIN, What.TE_BEGIN, What.VE_BEGIN)
_END = (What.DMA_END, What.TE_END, What.VE_END)
UNITS = (Kind.TE, Kind.VE, Kind.DMA)


class Spans(NamedTuple):
    """[start, end) in core cycles of each thing on a lane, by start; arrays of one length."""

    start: Integers
    end: Integers
    ticket: Integers

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, int]]) -> "Spans":
        """From (start, end, ticket) in any order."""
        return cls.sorted(*np.array(sorted(rows), dtype=np.int64).reshape(-1, 3).T)

    @classmethod
    def sorted(cls, start: Integers, end: Integers, ticket: Integers) -> "Spans":
        order = np.argsort(start, kind="stable")
        return cls(start[order], end[order], ticket[order])


def all_records(events: EventStream) -> Records:
    """The records of a stream that keeps them, as one array."""
    batches = list(events.kept())
    return np.concatenate(batches) if batches else np.empty(0, dtype=RECORD)


def core_spans(submissions: Submissions) -> Spans:
    """The core in its submit function: t0 to t1."""
    t0, t1, ticket = (submissions.column(name) for name in ("t0", "t1", "ticket"))
    order = np.lexsort((ticket, t1, t0))
    order = order[(t0[order] != NONE) & (t1[order] != NONE)]
    return Spans(t0[order], t1[order], ticket[order])


def unit_spans(records: Records, kind: Kind, end: int) -> dict[int, Spans]:
    """Code of each engine of a kind that worked -> its work; what is unfinished lasts to `end`."""
    mine = records[records["unit"] >> 8 == kind]
    return {int(unit): _pairs(mine[mine["unit"] == unit], end) for unit in np.unique(mine["unit"])}


def _pairs(records: Records, end: int) -> Spans:
    """Begin and end belong together by ticket and tile; equal ones in order."""
    begins, ends = (records[np.isin(records["what"], codes)] for codes in (_BEGIN, _END))
    keys = np.concatenate([(each["ticket"].astype(np.uint64) << 32) | each["tile"] for each in (begins, ends)])
    _, names = np.unique(keys, return_inverse=True)
    parts = (names[: len(begins)], names[len(begins) :])
    one, other = (part.astype(np.int64) * (len(keys) + 1) + _occurrence(part) for part in parts)
    _, first, last = np.intersect1d(one, other, assume_unique=True, return_indices=True)
    stop = np.full(len(begins), end, dtype=np.int64)
    stop[first] = ends["cycle"][last]
    return Spans.sorted(begins["cycle"].astype(np.int64), stop, begins["ticket"].astype(np.int64))


def _occurrence(names: NDArray[Any]) -> Integers:
    """How many equal ones stand before each."""
    order = np.argsort(names, kind="stable")
    ordered, at = names[order], np.arange(len(names))
    begins = np.ones(len(names), dtype=bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    result = np.empty(len(names), dtype=np.int64)
    result[order] = at - np.maximum.accumulate(np.where(begins, at, 0))
    return result


def queue_spans(records: Records, end: int) -> Spans:
    """Each command between acceptance and its first work, or its end when it needs no engine."""
    accepted = records[records["what"] == What.ACCEPT]
    starts = records[np.isin(records["what"], (*_BEGIN, What.DONE, What.ERROR))]
    tickets, where = np.unique(starts["ticket"], return_index=True)
    stop = np.full(len(accepted), end, dtype=np.int64)
    if len(tickets):
        at = np.minimum(np.searchsorted(tickets, accepted["ticket"]), len(tickets) - 1)
        found = tickets[at] == accepted["ticket"]
        stop[found] = starts["cycle"][where[at[found]]]
    return Spans.sorted(accepted["cycle"].astype(np.int64), stop, accepted["ticket"].astype(np.int64))


def barrier_spans(records: Records) -> Spans:
    """Accepted commands that only a barrier held back. The stalls of a command follow each other up to READY."""
    front = records[(records["what"] == What.STALL) & (records["unit"] == FRONTEND)]
    later = np.zeros(len(front), dtype=np.int64)
    if len(front) > 1:
        same = front["ticket"][1:] == front["ticket"][:-1]
        later[:-1] = np.where(same, front["bytes"][1:], 0)
    end = front["cycle"].astype(np.int64) - later
    chosen = front["aux"] == Cause.BARRIER
    start = end - front["bytes"].astype(np.int64)
    return Spans.sorted(start[chosen], end[chosen], front["ticket"][chosen].astype(np.int64))


def conflict_spans(records: Records) -> dict[int, Spans]:
    """Code of each scratchpad bank -> what its accesses lengthened steps by, from the begin of each step."""
    mine = records[(records["unit"] >> 8 == Kind.BANK) & (records["what"] == What.STALL)]
    found = {}
    for unit in np.unique(mine["unit"]):
        rows = mine[mine["unit"] == unit]
        start = rows["cycle"].astype(np.int64)
        found[int(unit)] = Spans.sorted(start, start + rows["bytes"].astype(np.int64), rows["ticket"].astype(np.int64))
    return found


def bank_spans(records: Records) -> dict[int, Spans]:
    """Code of each scratchpad bank -> its busy port cycles, each record's just before the record."""
    mine = records[(records["unit"] >> 8 == Kind.BANK) & (records["what"] != What.STALL)]
    found = {}
    for unit in np.unique(mine["unit"]):
        rows = mine[mine["unit"] == unit]
        end = rows["cycle"].astype(np.int64)
        found[int(unit)] = Spans.sorted(end - rows["bytes"].astype(np.int64), end, rows["ticket"].astype(np.int64))
    return found
