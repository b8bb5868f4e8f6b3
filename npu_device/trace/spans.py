"""Table of spans: the work of each unit with begin and end, paired from the records of the event stream.

| what | start, end | aux |
|---|---|---|
| DMA_BEGIN, TE_BEGIN, VE_BEGIN | begin and end of a step of an engine | of the begin: opcode and flags |
| ACCEPT | start of the fetch, acceptance | ring index |
| STALL of the front end | the delay of an accepted command | `Cause` |
| STALL of a bank or engine | from the start of the lengthened step, for the stalled cycles | `Cause` |
| STALL of a DMA channel | the last cycles of the transfer, as many as its KV engine adds | `Cause` |
| QUANTIZE, DEQUANTIZE | the work of a KV engine on a transfer | cycles of the row |
| CORE | begin and end of the work that a CORE command reports | cycles from its begin to the event |
| BARRIER_OPEN | opened, closed | scope and index |
| any other | the cycle of the event, twice | of the event |

Rows are in the order of the records that end them. A soft reset ends the steps of the commands that it stops.
"""

from collections import deque
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu_device.trace.events import BEGINS, ENDS, FRONTEND, Cause, Kind, Record, Running, What
from npu_device.trace.records import RECORD, Batch

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Table = NDArray[Any]
"""Array of SPAN."""

UNITS = (Kind.TE, Kind.VE, Kind.DMA)
"""Kinds of engines."""
OPCODE = 0xFF
"""Mask of the opcode in `aux` of a step."""
UNFINISHED = np.iinfo(np.int64).max
"""`end` of a span that lasts longer than the run."""
NONE = -1
"""Value of `number` and `stream` for none; `tile` has no such value."""

SPAN = np.dtype(
    [
        ("unit", "<u2"),
        ("what", "<u2"),
        ("ticket", "<u4"),
        ("tile", "<u4"),
        ("start", "<i8"),
        ("end", "<i8"),
        ("bytes", "<u8"),  # of a step: payload
        ("aux", "<u4"),
        ("moved", "<u4"),  # of a transfer: aligned bytes in DRAM
        ("number", "<i8"),  # of the command, in the order of acceptance
        ("stream", "<i4"),
        ("first", "<i8"),  # number of the record that begins it
        ("last", "<i8"),  # number of the record that ends it
    ]
)
"""Type of a row."""


def among(kinds: Collection[What]) -> Flags:
    """Return for each kind of event whether it is in `kinds`."""
    return np.isin(np.arange(max(What) + 1), list(kinds))


IS_BEGIN, _IS_END, _IS_STEP = among(BEGINS), among(ENDS), among((*BEGINS, *ENDS))
_PAIRED = among((*BEGINS, *ENDS, What.BARRIER_OPEN, What.BARRIER_CLOSE))
"""Events whose rows need two records."""


# -- steps ---------------------------------------------------------------------------------------------------------


def steps(records: Batch, running: Running, number: int = 0) -> Table:
    """Return the steps that end in `records`, and update `running`. `number`: index of the first record in the stream.

    A unit executes one step at a time, so an end matches the previous begin. A command that ends with an error ends its
    steps, because a reset has stopped them.
    """
    positions = np.flatnonzero(_IS_STEP[records["what"]])
    positions = positions[np.argsort(records["unit"][positions], kind="stable")]
    events = records[positions]
    ends, unit = _IS_END[events["what"]], events["unit"]
    paired = np.zeros(len(events), dtype=np.bool_)
    paired[1:] = ends[1:] & ~ends[:-1] & (unit[1:] == unit[:-1])
    last = np.flatnonzero(paired)
    unpaired = ~paired
    unpaired[last - 1] = False
    errors = _errors(records, number)
    singles: list[tuple[int, Record, int, Record]] = []

    def stop(code: int) -> None:
        """End the step of a unit if its command has ended with an error since its begin."""
        first, begin = running[code]
        for index, error in errors.get(begin[3], ()):
            if index > first:
                singles.append((first, begin, index, (*error[:5], 0, 0)))
                del running[code]
                return

    for position in np.flatnonzero(unpaired).tolist():
        index, record = number + int(positions[position]), events[position].item()
        code = record[1]
        if ends[position]:
            singles.append((*running.pop(code, (index, record)), index, record))
        else:
            if code in running:
                stop(code)
            running[code] = index, record
    for code in list(running) if errors else ():
        stop(code)
    rows = _rows(events[last - 1], positions[last - 1] + number, positions[last] + number)
    _close(rows, events[last])
    if singles:
        first, begin, final, end = zip(*singles, strict=True)
        single_rows = _rows(np.array(list(begin), RECORD), np.array(first), np.array(final))
        _close(single_rows, np.array(list(end), RECORD))
        rows = np.concatenate([rows, single_rows])
    return rows[np.argsort(rows["last"])]


def _errors(records: Batch, number: int) -> dict[int, list[tuple[int, Record]]]:
    """Return the numbers and records of errors, by ticket."""
    errors: dict[int, list[tuple[int, Record]]] = {}
    for index in np.flatnonzero(records["what"] == What.ERROR).tolist():
        record = records[index].item()
        errors.setdefault(record[3], []).append((number + index, record))
    return errors


def _rows(begins: Batch, first: Integers, last: Integers) -> Table:
    """Return a row of length 0 and without a command for each record."""
    rows = np.zeros(len(begins), SPAN)
    for name in ("unit", "what", "ticket", "tile", "bytes", "aux"):
        rows[name] = begins[name]
    rows["start"] = rows["end"] = begins["cycle"]
    rows["number"] = rows["stream"] = NONE
    rows["first"], rows["last"] = first, last
    return rows


def _close(rows: Table, ends: Batch) -> None:
    """Set the fields that come from the records that end steps."""
    rows["end"], rows["bytes"], rows["moved"] = ends["cycle"], ends["bytes"], ends["aux"]


# -- table ---------------------------------------------------------------------------------------------------------


class SpanBuilder:
    """Builder of rows from records in order; it stores only open spans."""

    def __init__(self) -> None:
        self._count = 0
        """Number of records so far."""
        self._running: Running = {}
        self._barriers: dict[tuple[int, int], deque[tuple[int, Record]]] = {}
        """Open barriers by ticket and scope, oldest first."""
        self._pending = np.empty(0, RECORD)
        """Stalls whose command is not ready yet."""
        self._accepted = 0
        self._commands = np.empty(0, _IN_FLIGHT)
        """Commands in flight, sorted by ticket."""

    def take(self, records: Batch) -> Table:
        """Return the rows that end in these records."""
        records = np.concatenate([self._pending, records]) if len(self._pending) else records
        split = len(records)
        while split and records["what"][split - 1] == What.STALL and records["unit"][split - 1] == FRONTEND:
            split -= 1
        records, self._pending = records[:split], records[split:]
        numbers = self._count + np.arange(split)
        single_events = np.flatnonzero(~_PAIRED[records["what"]])
        events = _rows(records[single_events], numbers[single_events], numbers[single_events])
        _stretch(events)
        rows = np.concatenate([events, steps(records, self._running, self._count), self._closed_barriers(records)])
        rows = rows[np.argsort(rows["last"], kind="stable")]
        self._name(rows, records)
        self._count += split
        return rows

    def finish(self) -> Table:
        """Return the rows of spans that are open at the end of the run."""
        open_spans = sorted(
            [*self._running.values(), *(barrier for queue in self._barriers.values() for barrier in queue)]
        )
        first = np.array([number for number, _ in open_spans], np.int64)
        rows = _rows(
            np.array([record for _, record in open_spans], RECORD), first, np.full(len(open_spans), UNFINISHED)
        )
        rows["end"], rows["bytes"] = UNFINISHED, 0
        self._name(rows, np.empty(0, RECORD))
        return rows

    @property
    def open(self) -> int:
        """Number of open spans."""
        return len(self._running) + len(self._barriers) + len(self._pending) + len(self._commands)

    def _closed_barriers(self, records: Batch) -> Table:
        closed = []
        selection = (records["what"] == What.BARRIER_OPEN) | (records["what"] == What.BARRIER_CLOSE)
        for index in np.flatnonzero(selection).tolist():
            number, record = self._count + index, records[index].item()
            key = record[3], record[6]
            if record[2] == What.BARRIER_OPEN:
                self._barriers.setdefault(key, deque()).append((number, record))
                continue
            queue = self._barriers.get(key)
            closed.append((*(queue.popleft() if queue else (number, record)), number, record[0]))
            if not queue:
                self._barriers.pop(key, None)
        if not closed:
            return np.empty(0, SPAN)
        first, opened, last, end = zip(*closed, strict=True)
        rows = _rows(np.array(list(opened), RECORD), np.array(first), np.array(last))
        rows["what"], rows["end"] = What.BARRIER_OPEN, end
        return rows

    def _name(self, rows: Table, records: Batch) -> None:
        """Set the command's number in each row from its acceptance to its end, and its stream from READY on."""
        self._note(records)
        index, matches = self._find(rows["ticket"], rows["last"])
        if not matches.any():
            return
        commands, last = self._commands[index], rows["last"]
        matches &= last <= commands["done"]
        rows["number"][matches] = commands["number"][matches]
        before_ready = (rows["what"] == What.STALL) & (rows["unit"] == FRONTEND)
        matches &= (commands["ready"] <= last) | before_ready
        rows["stream"][matches] = commands["stream"][matches]
        self._commands = self._commands[self._commands["done"] == UNFINISHED]

    def _note(self, records: Batch) -> None:
        """Update the commands in flight. `_name` removes those that end here once the rows have their numbers."""
        event_kinds, tickets = records["what"], records["ticket"]
        accepted = np.flatnonzero(event_kinds == What.ACCEPT)
        additions = np.zeros(len(accepted), _IN_FLIGHT)
        additions["ticket"], additions["accept"] = tickets[accepted], accepted + self._count
        additions["number"] = self._accepted + np.arange(len(accepted))
        additions["stream"], additions["ready"], additions["done"] = NONE, UNFINISHED, UNFINISHED
        self._accepted += len(accepted)
        commands = np.concatenate([self._commands, additions])
        self._commands = commands[np.lexsort((commands["accept"], commands["ticket"]))]
        for column, selection in (
            ("ready", event_kinds == What.READY),
            ("done", (event_kinds == What.DONE) | (event_kinds == What.ERROR)),
        ):
            positions = np.flatnonzero(selection)
            index, matches = self._find(tickets[positions], positions + self._count)
            self._commands[column][index[matches]] = positions[matches] + self._count
            if column == "ready":
                self._commands["stream"][index[matches]] = records["aux"][positions[matches]]

    def _find(self, tickets: NDArray[np.uint32], numbers: Integers) -> tuple[Integers, Flags]:
        """Return the last command with each ticket accepted up to a record number, and whether it exists."""
        commands = self._commands
        if not len(commands):
            return np.zeros(len(tickets), np.int64), np.zeros(len(tickets), np.bool_)

        def key(ticket: NDArray[np.uint32], number: Integers) -> Integers:
            return ticket.astype(np.int64) << 31 | np.clip(number - self._count + 1, 0, (1 << 31) - 1)

        index = np.searchsorted(key(commands["ticket"], commands["accept"]), key(tickets, numbers), side="right") - 1
        index = np.maximum(index, 0)
        return index, (commands["ticket"][index] == tickets) & (commands["accept"][index] <= numbers)


_IN_FLIGHT = np.dtype(
    [("ticket", "<u4"), ("number", "<i8"), ("stream", "<i4"), ("accept", "<i8"), ("ready", "<i8"), ("done", "<i8")]
)
"""Type of a command between acceptance and end; the last three are record numbers."""


def _stretch(rows: Table) -> None:
    """Set the length of events that report it."""
    accepted = rows["what"] == What.ACCEPT
    rows["start"][accepted] = rows["bytes"][accepted]
    stalls = np.flatnonzero(rows["what"] == What.STALL)
    step = rows["unit"][stalls] != FRONTEND
    length = rows["bytes"][stalls].astype(np.int64)
    late_stalls = step & (rows["aux"][stalls] >= Cause.QUANTIZE)
    rows["start"][stalls[late_stalls]] -= length[late_stalls]
    rows["end"][stalls[step & ~late_stalls]] += length[step & ~late_stalls]
    converted = np.flatnonzero((rows["what"] == What.QUANTIZE) | (rows["what"] == What.DEQUANTIZE))
    rows["start"][converted] -= rows["aux"][converted].astype(np.int64)
    core_events = np.flatnonzero(rows["what"] == What.CORE)
    rows["start"][core_events] -= rows["aux"][core_events].astype(np.int64)
    rows["end"][core_events] = rows["start"][core_events] + rows["bytes"][core_events].astype(np.int64)
    front, length = stalls[~step], length[~step]
    if len(front):  # the stalls of a command are contiguous, and the last ends at READY
        later = np.zeros(len(front), np.int64)
        same = rows["ticket"][front][1:] == rows["ticket"][front][:-1]
        later[:-1] = np.where(same, length[1:], 0)
        rows["end"][front] -= later
        rows["start"][front] = rows["end"][front] - length
