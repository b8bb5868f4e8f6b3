"""Stamps and reasons of submissions, in bulk, from what the stamp book has noted (docs/latency.md)."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.trace.events import What
from npu_device.trace.records import Batch
from npu_device.trace.spans import among, first_begins
from pyv_npu.observe.latency.rows import COLUMN, NONE, WIDTH, Reason, Rows, Submissions, Table

Integers = NDArray[np.int64]

_STAMPING = among((What.ACCEPT, What.DONE, What.ERROR))
_NEVER = np.iinfo(np.int64).max


def stamping(batch: Batch) -> Batch:
    """The event records that stamp a submission."""
    return batch[_STAMPING[batch["what"]] | first_begins(batch)]


class Evidence(NamedTuple):
    """What was noted besides the rows; columns as in `StampBook`."""

    validate: int
    interrupting: Table
    external: Table
    handlers: Table
    seen_all: Table
    seen_one: Table


def completed(book: Rows, accepted: Table, evidence: Evidence) -> Submissions:
    """The accepted rows, in the order of acceptance, with everything that is known of them."""
    at = accepted.column("row")
    rows = book.matrix()[at // WIDTH]
    column = {name: rows[:, index] for name, index in COLUMN.items()}
    _message(column, evidence.validate)
    _interrupts(column, np.isin(at, evidence.interrupting.column("row")) & (column["t4"] != NONE), evidence)
    _notices(column, evidence)
    return Submissions(rows)


def _message(column: dict[str, Integers], validate: int) -> None:
    """Complete the reasons: what the message took on its way, and in the front end."""
    arrival, fetch_start = column["arrival"], column["fetch_start"]
    way, tight = arrival - column["leave"], column["tight"] != 0
    column[Reason.ISSUE][tight], column[Reason.BUS][~tight] = way[tight], way[~tight]
    column[Reason.FULL_WAIT][:] = fetch_start - arrival
    column[Reason.FETCH][:] = column["t2"] - validate - fetch_start
    column[Reason.VALIDATE][:] = validate


def _interrupts(column: dict[str, Integers], chosen: NDArray[np.bool_], evidence: Evidence) -> None:
    """t5: when mip shows the completion; t6: the first handler from then on."""
    cycles, level = evidence.external.column("cycle"), evidence.external.column("level") != 0
    t4, rises = column["t4"][chosen], np.flatnonzero(level)
    index = np.searchsorted(cycles, t4, side="right")
    up = np.append(level, False)[index - 1]
    t5 = np.where(up, t4, _at(cycles[rises], np.searchsorted(rises, index)))
    handlers = evidence.handlers.column("start")
    t6 = _at(handlers, np.searchsorted(handlers, t5))
    column["t5"][chosen], column["t6"][chosen] = t5, np.where(t5 == NONE, NONE, t6)


def _notices(column: dict[str, Integers], evidence: Evidence) -> None:
    """t7: the end of the first read that told firmware. A handler that was running by then is not the t6."""
    t4, t6, t7 = column["t4"], column["t6"], column["t7"]
    looks, ends = (evidence.seen_all.column(name) for name in ("look", "end"))
    order = np.argsort(looks, kind="stable")  # of registers and of CSRs
    all_at = np.searchsorted(looks[order], t4)
    found = np.stack([t7, _at(ends[order], all_at), _told(evidence.seen_one, column["ticket"], t4)])
    first = np.where(found == NONE, _NEVER, found).min(axis=0)
    done = t4 != NONE
    t7[done] = np.where(first == _NEVER, NONE, first)[done]
    t6[done & (t7 != NONE) & (t6 > t7)] = NONE


def _told(seen_one: Table, ticket: Integers, t4: Integers) -> Integers:
    """The end of the first read from t4 on that showed this ticket done."""
    tickets, looks, ends = (seen_one.column(name) for name in ("ticket", "look", "end"))
    order = np.lexsort((looks, tickets))
    tickets, looks, ends = tickets[order], looks[order], ends[order]
    names = tickets[np.diff(tickets, prepend=NONE) != 0]  # np.unique would import numpy.ma
    cycles = 1 + max(looks.max(initial=0), t4.max(initial=0))
    keys = np.searchsorted(names, tickets) * cycles + looks
    at = np.searchsorted(keys, np.searchsorted(names, ticket) * cycles + t4)
    return np.where(_at(tickets, at) == ticket, _at(ends, at), NONE)


def _at(values: Integers, index: Integers) -> Integers:
    """`values[index]`, NONE behind the last one."""
    return np.append(values, NONE)[index]
