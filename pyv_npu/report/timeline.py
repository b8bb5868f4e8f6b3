"""timeline.csv: what each unit did from when to when, made from the event stream during the run (docs/results.md).

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
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npu_device.abi.errors import TicketError
from npu_device.abi.opcodes import Opcode
from npu_device.trace.events import Cause, Kind, Refusal, What
from pyv_npu.report.folder import replacing

_FIELDS = ("cycle", "unit", "what", "ticket", "tile", "bytes", "aux")

_NAMES = {int(what): what.name for what in What}
_STALLED_BY = {int(cause): cause.name.lower() for cause in Cause}
_OPCODES = {int(opcode): opcode.name for opcode in Opcode}
_CAUSES: dict[int, type[Refusal | TicketError]] = {What.REJECT: Refusal, What.ERROR: TicketError}
_OPCODE = 0xFF
_Taker = Callable[[int, int, int, int, int, int, int], None]
"""Takes note of a record: cycle, unit, what, ticket, tile, bytes, aux."""
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
        self._stalls: dict[int, list[tuple[str, int]]] = {}
        """By ticket: causes and their cycles, in order, until the command is ready."""
        takers: dict[int, _Taker] = {
            **dict.fromkeys((What.DMA_BEGIN, What.TE_BEGIN, What.VE_BEGIN), self._begin),
            **dict.fromkeys((What.DMA_END, What.TE_END, What.VE_END), self._end),
            **dict.fromkeys((What.DONE, What.ERROR), self._completed),
            What.BARRIER_OPEN: self._opens,
            What.BARRIER_CLOSE: self._closes,
            What.ACCEPT: self._accept,
            What.STALL: self._stall,
            What.READY: self._ready,
        }
        self._takers = tuple(takers.get(what, self._instant) for what in range(max(What) + 1))
        """By code of the event."""

    def finish(self) -> None:
        """The run is over: rows for what is unfinished."""
        for began in [*self._busy.values(), *(item for queue in self._barriers.values() for item in queue)]:
            self._row(*began, None)

    def events(self, batch: np.ndarray[Any, Any]) -> None:
        """Take note of a batch of event records."""
        takers = self._takers
        for cycle, unit, what, ticket, tile, size, aux in zip(*(batch[name].tolist() for name in _FIELDS), strict=True):
            takers[what](cycle, unit, what, ticket, tile, size, aux)

    def _begin(self, cycle: int, unit: int, what: int, ticket: int, tile: int, size: int, aux: int) -> None:
        self._busy[unit] = _Open(_unit(unit), _OPCODES[aux & _OPCODE], ticket, tile, cycle)

    def _end(self, cycle: int, unit: int, what: int, ticket: int, tile: int, size: int, aux: int) -> None:
        began = self._busy.pop(unit, None) or _Open(_unit(unit), _NAMES[what], ticket, tile, cycle)
        self._row(*began, cycle, size)

    def _opens(self, cycle: int, unit: int, what: int, ticket: int, tile: int, size: int, aux: int) -> None:
        queue = self._barriers.setdefault((ticket, aux), deque())
        queue.append(_Open(_unit(unit), "BARRIER", ticket, tile, cycle))

    def _closes(self, cycle: int, unit: int, what: int, ticket: int, tile: int, size: int, aux: int) -> None:
        queue = self._barriers.get((ticket, aux))
        began = queue.popleft() if queue else _Open(_unit(unit), "BARRIER", ticket, tile, cycle)
        self._row(*began, cycle)
        if not queue:
            self._barriers.pop((ticket, aux), None)

    def _accept(self, cycle: int, unit: int, what: int, ticket: int, tile: int, size: int, aux: int) -> None:
        self._layer[ticket] = next(self._layers, "")
        self._row(_unit(unit), "ACCEPT", ticket, tile, size, cycle)

    def _stall(self, cycle: int, unit: int, what: int, ticket: int, tile: int, size: int, aux: int) -> None:
        if unit >> 8 == Kind.BANK:
            self._row(_unit(unit), "STALL", ticket, tile, cycle, cycle + size, None, _STALLED_BY[aux])
        else:
            self._stalls.setdefault(ticket, []).append((_STALLED_BY[aux], size))

    def _ready(self, cycle: int, unit: int, what: int, ticket: int, tile: int, size: int, aux: int) -> None:
        """All causes are gone now; the last one ended last."""
        where = _unit(unit)
        self._streams[ticket] = aux
        stalls = self._stalls.pop(ticket, ())
        start = cycle - sum(cycles for _, cycles in stalls)
        for cause, cycles in stalls:
            self._row(where, "STALL", ticket, 0, start, start + cycles, None, cause)
            start += cycles
        self._row(where, "READY", ticket, tile, cycle, cycle)

    def _instant(self, cycle: int, unit: int, what: int, ticket: int, tile: int, size: int, aux: int) -> None:
        codes = _CAUSES.get(what)
        cause = "" if codes is None else codes(aux).name.lower()
        self._row(_unit(unit), _NAMES[what], ticket, tile, cycle, cycle, None, cause)

    def _completed(self, cycle: int, unit: int, what: int, ticket: int, tile: int, size: int, aux: int) -> None:
        self._instant(cycle, unit, what, ticket, tile, size, aux)
        self._streams.pop(ticket, None)
        self._layer.pop(ticket, None)

    def _row(
        self,
        unit: str,
        what: str,
        ticket: int,
        tile: int,
        start: int,
        end: int | None,
        size: int | None = None,
        cause: str = "",
    ) -> None:
        stream, layer = self._streams.get(ticket), self._layer.get(ticket, "")
        self._put(Row(unit, what, ticket, tile, stream, start, end, size, cause, layer))


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


@cache
def _unit(code: int) -> str:
    kind = Kind(code >> 8)
    return _ONLY.get(kind) or f"{kind.name.lower()}{code & 0xFF}"
