"""timeline.csv: what each unit did from when to when, made from the event stream as the run goes (specification 40).

| what | unit | start, end |
|---|---|---|
| name of an opcode | the engine that worked on it | begin and end of the work |
| ACCEPT | frontend | start of the fetch, in the queue |
| STALL | frontend | what held an accepted command back (its cause) began and ended |
| BARRIER | frontend | opened, closed |
| any other event | where it happened | the same cycle twice |

Rows come in the order in which things end. What is unfinished at the end of the run has no end.
"""

import csv
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npu_device.abi.errors import TicketError
from npu_device.abi.opcodes import Opcode
from npu_device.events import Cause, Kind, Refusal, What
from pyv_npu.report.folder import replacing

_FIELDS = ("cycle", "unit", "what", "ticket", "tile", "bytes", "aux")

_BEGIN = frozenset((What.DMA_BEGIN, What.TE_BEGIN, What.VE_BEGIN))
_END = frozenset((What.DMA_END, What.TE_END, What.VE_END))
_CAUSES: dict[int, type[Refusal | TicketError]] = {What.REJECT: Refusal, What.ERROR: TicketError}
_OPCODE = 0xFF
_ONLY = {Kind.FRONTEND: "frontend", Kind.CORE: "core", Kind.L2: "l2"}
"""Units of which there is one."""


class Row(NamedTuple):
    """One thing that a unit did."""

    unit: str
    what: str
    ticket: int
    tile: int
    stream: int | None
    """None: not known, or none."""
    start: int
    end: int | None
    """None: unfinished."""
    bytes: int | None
    cause: str
    layer: str
    """Of the model; empty for other programs."""


class _Open(NamedTuple):
    """Something that began and has not ended."""

    unit: str
    what: str
    ticket: int
    tile: int
    start: int


class Timeline:
    """Makes rows while events come in; holds only what is under way.

    Give `events` to `EventStream.subscribe`, flush the stream at the end, then call `finish`.
    """

    def __init__(self, put: Callable[[Row], None], layers: Sequence[str] = ()) -> None:
        """`put` is given each row; `layers`: the layer of each command, in the order of acceptance."""
        self._put = put
        self._layers = iter(layers)
        self._busy: dict[int, _Open] = {}
        """By unit code: an engine works on one command at a time."""
        self._barriers: dict[tuple[int, int], deque[_Open]] = {}
        """By ticket and scope, the oldest first."""
        self._streams: dict[int, int] = {}
        """Of tickets in flight."""
        self._layer: dict[int, str] = {}
        """Of tickets in flight."""
        self._stalls: dict[int, list[tuple[Cause, int]]] = {}
        """By ticket: causes and their cycles, in order, until the command is ready."""

    def finish(self) -> None:
        """The run is over: rows for what is unfinished."""
        for began in [*self._busy.values(), *(item for queue in self._barriers.values() for item in queue)]:
            self._row(began, None)

    def events(self, batch: np.ndarray[Any, Any]) -> None:
        """Take note of a batch of event records."""
        for record in zip(*(batch[name].tolist() for name in _FIELDS), strict=True):
            self._event(*record)

    def _event(self, cycle: int, unit: int, what: int, ticket: int, tile: int, size: int, aux: int) -> None:
        where = _unit(unit)
        if what in _BEGIN:
            self._busy[unit] = _Open(where, _opcode(aux), ticket, tile, cycle)
        elif what in _END:
            began = self._busy.pop(unit, _Open(where, What(what).name, ticket, tile, cycle))
            self._row(began, cycle, size)
        elif what == What.BARRIER_OPEN:
            self._barriers.setdefault((ticket, aux), deque()).append(_Open(where, "BARRIER", ticket, tile, cycle))
        elif what == What.BARRIER_CLOSE:
            self._close_barrier((ticket, aux), _Open(where, "BARRIER", ticket, tile, cycle), cycle)
        elif what == What.ACCEPT:
            self._layer[ticket] = next(self._layers, "")
            self._row(_Open(where, "ACCEPT", ticket, tile, size), cycle)
        elif what == What.STALL and unit >> 8 == Kind.BANK:
            self._row(_Open(where, What.STALL.name, ticket, tile, cycle), cycle + size, cause=Cause(aux).name)
        elif what == What.STALL:
            self._stalls.setdefault(ticket, []).append((Cause(aux), size))
        else:
            if what == What.READY:
                self._ready(where, cycle, ticket, aux)
            codes = _CAUSES.get(what)
            cause = "" if codes is None else codes(aux).name
            self._row(_Open(where, What(what).name, ticket, tile, cycle), cycle, cause=cause)
            if what in (What.DONE, What.ERROR):
                self._streams.pop(ticket, None)
                self._layer.pop(ticket, None)

    def _ready(self, where: str, cycle: int, ticket: int, stream: int) -> None:
        """All causes are gone now; the last one ended last."""
        self._streams[ticket] = stream
        stalls = self._stalls.pop(ticket, [])
        start = cycle - sum(cycles for _, cycles in stalls)
        for cause, cycles in stalls:
            self._row(_Open(where, What.STALL.name, ticket, 0, start), start + cycles, cause=cause.name)
            start += cycles

    def _close_barrier(self, key: tuple[int, int], unopened: _Open, cycle: int) -> None:
        queue = self._barriers.get(key)
        self._row(queue.popleft() if queue else unopened, cycle)
        if not queue:
            self._barriers.pop(key, None)

    def _row(self, began: _Open, end: int | None, size: int | None = None, cause: str = "") -> None:
        unit, what, ticket, tile, start = began
        stream, layer = self._streams.get(ticket), self._layer.get(ticket, "")
        self._put(Row(unit, what, ticket, tile, stream, start, end, size, cause.lower(), layer))


def rows(batches: Iterable[np.ndarray[Any, Any]], layers: Sequence[str] = ()) -> list[Row]:
    """The rows of recorded events."""
    made: list[Row] = []
    timeline = Timeline(made.append, layers)
    for batch in batches:
        timeline.events(batch)
    timeline.finish()
    return made


@contextmanager
def timeline_csv(path: Path, layers: Sequence[str] = ()) -> Iterator[Timeline]:
    """Writes timeline.csv, which appears when the block ends."""
    with replacing(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        timeline = Timeline(writer.writerow, layers)
        yield timeline
        timeline.finish()


def _unit(code: int) -> str:
    kind = Kind(code >> 8)
    return _ONLY.get(kind) or f"{kind.name.lower()}{code & 0xFF}"


def _opcode(aux: int) -> str:
    return Opcode(aux & _OPCODE).name
