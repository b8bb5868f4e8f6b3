"""Timestamps and reasons of submissions, completed in bulk from the recorder's evidence (docs/latency.md)."""

import numpy as np
from numpy.typing import NDArray

from pyv_npu.observe.latency.rows import COLUMN, NONE, Reason
from pyv_npu.observe.latency.spilled import Table
from pyv_npu.observe.latency.state import EXTERNAL_LEVEL, HANDLER_START, LOOK, TICKET_LOOK

Integers = NDArray[np.int64]

_NEVER = np.iinfo(np.int64).max


class Evidence:
    """Evidence that completes rows. Arrays that are indexed by the result of a search end with NONE."""

    def __init__(self, validate: int, evidence: Table) -> None:
        """`evidence`: of a recorder; later rows are ignored."""
        self._validate = validate
        self._changes, level, _ = evidence.select(EXTERNAL_LEVEL)
        self._up = np.append(level != 0, False)
        self._rises = np.flatnonzero(level)
        self._rising = _ended(self._changes[self._rises])
        handlers, *_ = evidence.select(HANDLER_START)
        self._handlers = _ended(handlers)
        looks, ends, _ = evidence.select(LOOK)
        order = np.argsort(looks, kind="stable")  # reads of registers and of CSRs are not in order
        self._looks, self._ends = looks[order], _ended(ends[order])
        looks, ends, tickets = evidence.select(TICKET_LOOK)
        order = np.lexsort((looks, tickets))
        tickets = tickets[order]
        self._tickets, self._ticket_ends = _ended(tickets), _ended(ends[order])
        self._names = tickets[np.diff(tickets, prepend=NONE) != 0]  # np.unique would import numpy.ma
        self._cycles = 2 + int(looks.max(initial=0))
        self._keys = np.searchsorted(self._names, tickets) * self._cycles + looks[order]

    def complete(self, rows: Integers) -> Integers:
        """Complete accepted rows in place, and return them."""
        column = {name: rows[:, index] for name, index in COLUMN.items()}
        self._complete_reasons(column)
        self._complete_interrupts(column, (column["interrupting"] != 0) & (column["t4"] != NONE))
        self._complete_notices(column)
        return rows

    def _complete_reasons(self, column: dict[str, Integers]) -> None:
        """Write the cycles of the message between core and device, and in the front end."""
        arrival, fetch_start = column["arrival"], column["fetch_start"]
        way, tight = arrival - column["leave"], column["tight"] != 0
        column[Reason.ISSUE][tight], column[Reason.BUS][~tight] = way[tight], way[~tight]
        column[Reason.FULL_WAIT][:] = fetch_start - arrival
        column[Reason.FETCH][:] = column["t2"] - self._validate - fetch_start
        column[Reason.VALIDATE][:] = self._validate

    def _complete_interrupts(self, column: dict[str, Integers], selection: NDArray[np.bool_]) -> None:
        """Write t5, the cycle in which mip shows the completion, and t6, the start of the first handler after it."""
        t4 = column["t4"][selection]
        index = np.searchsorted(self._changes, t4, side="right")
        t5 = np.where(self._up[index - 1], t4, self._rising[np.searchsorted(self._rises, index)])
        t6 = self._handlers[np.searchsorted(self._handlers[:-1], t5)]
        column["t5"][selection], column["t6"][selection] = t5, np.where(t5 == NONE, NONE, t6)

    def _complete_notices(self, column: dict[str, Integers]) -> None:
        """Write t7, the end of the first read that shows the completion; remove a t6 after it."""
        t4, t6, t7 = column["t4"], column["t6"], column["t7"]
        register_reads = self._ends[np.searchsorted(self._looks, t4)]
        reads = np.stack([t7, register_reads, self._ticket_reads(column["ticket"], t4)])
        first = np.where(reads == NONE, _NEVER, reads).min(axis=0)
        is_complete = t4 != NONE
        t7[is_complete] = np.where(first == _NEVER, NONE, first)[is_complete]
        t6[is_complete & (t7 != NONE) & (t6 > t7)] = NONE

    def _ticket_reads(self, ticket: Integers, t4: Integers) -> Integers:
        """Return the end of the first read from t4 on that shows the ticket done."""
        keys = np.searchsorted(self._names, ticket) * self._cycles + np.minimum(t4, self._cycles - 1)
        at = np.searchsorted(self._keys, keys)
        return np.where(self._tickets[at] == ticket, self._ticket_ends[at], NONE)


def _ended(values: Integers) -> Integers:
    """Append NONE to the values."""
    return np.append(values, NONE)
