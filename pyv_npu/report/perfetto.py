"""trace.perfetto-trace: a run for ui.perfetto.dev, one nanosecond of the trace for each core cycle.

Slices: the core in its submit functions, each engine, interrupt handlers up to the read of the result. Instants:
accepted, done. Counters: queue depth, busy engines of each kind. Arrows follow each submission: submit, accept, start,
done, handler. The encoding is a subset of Perfetto's TracePacket (protos/perfetto/trace).
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from npu_device.abi.opcodes import Kernel, Opcode
from npu_device.trace.events import Cause, What, unit_kind
from npu_device.trace.run_spans import Spans
from npu_device.trace.spans import OPCODE, UNITS, Table
from pyv_npu.observe.latency.rows import Submission
from pyv_npu.report.timeline import open_rows, unit_name

if TYPE_CHECKING:
    from pyv_npu.result import Result

PROCESS = 1
"""uuid of the process that contains all tracks, whose uuids follow."""
SEQUENCE = 1
_CONVERTED = ("start", "end", "what", "ticket")
_WORKED = ("start", "end", "tile", "ticket")


class TrackEventType(IntEnum):
    """TrackEvent.Type."""

    BEGIN = 1
    END = 2
    INSTANT = 3
    COUNTER = 4


class TrackEvent(NamedTuple):
    """TrackEvent; ordered by cycle, ends before begins."""

    cycle: int
    order: int
    """0: ends, 1: counters and instants, 2: begins."""
    track: int
    type: TrackEventType
    name: str = ""
    flow: int = 0
    """Submission whose arrow passes through the event; 0: none."""
    last: bool = False
    """Whether the arrow ends at the event."""
    value: int = 0


# -- the encoding ------------------------------------------------------------------------------------------------


Fields = Mapping[int, Any]
"""Message: field number -> integer, text, or message."""
FLOWS = (47, 48)
"""TrackEvent.flow_ids and terminating_flow_ids, whose integers have 64 bits instead of a variable length."""


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _encode(fields: Fields) -> bytes:
    """Encode a message."""
    out = bytearray()
    for number, value in fields.items():
        if number in FLOWS:
            out += _varint(number << 3 | 1) + struct.pack("<Q", value)
        elif isinstance(value, int):
            out += _varint(number << 3) + _varint(value)
        else:
            data = value.encode() if isinstance(value, str) else _encode(value)
            out += _varint(number << 3 | 2) + _varint(len(data)) + data
    return bytes(out)


def _packet(fields: Fields) -> bytes:
    """Encode an element of Trace.packet, with trusted_packet_sequence_id."""
    return _encode({1: {**fields, 10: SEQUENCE}})


def _track(uuid: int, name: str, unit: str | None) -> bytes:
    """Encode a track of the process, ordered by uuid; with `unit` it is a counter."""
    counter = {} if unit is None else {8: {6: unit}}
    return _packet({60: {1: uuid, 2: name, 5: PROCESS, **counter, 12: uuid}})


def _event(event: TrackEvent) -> bytes:
    body: dict[int, int | str] = {9: event.type, 11: event.track}
    if event.name:
        body[23] = event.name
    if event.type is TrackEventType.COUNTER:
        body[30] = event.value
    if event.flow:
        body[FLOWS[event.last]] = event.flow
    return _packet({8: event.cycle, 11: body})


# -- tracks ------------------------------------------------------------------------------------------------------


class Tracks(dict[str, int]):
    """Names of tracks -> uuids, in display order."""

    def __init__(self) -> None:
        self.units: dict[str, str] = {}
        """Units of counters."""

    def __missing__(self, name: str) -> int:
        return self.setdefault(name, PROCESS + 1 + len(self))

    def counter(self, name: str, unit: str) -> int:
        self.units[name] = unit
        return self[name]


def write_trace(folder: Path, result: "Result[Any]") -> None:
    """Write trace.perfetto-trace in a report."""
    tracks, spans, submissions = Tracks(), result.spans, result.latency.submissions
    events = [
        *_submissions(tracks, submissions),
        *_engines(tracks, spans, submissions),
        *_counter(tracks.counter("queue depth", "commands"), spans.queue),
    ]
    for kind in UNITS:
        rows = spans.steps[unit_kind(spans.steps["unit"]) == kind]
        if len(rows):
            events += _counter(tracks.counter(f"{kind.name} busy", "engines"), rows)
    for unit, rows in spans.kv_engines.items():
        for start, end, conversion, ticket in zip(*(rows[name].tolist() for name in _CONVERTED), strict=True):
            events += _slice(tracks[unit_name(unit)], start, end, f"{What(conversion).name} {ticket}")
    for start, end, kernel, ticket in zip(*(spans.core[name].tolist() for name in _WORKED), strict=True):
        events += _slice(tracks["core: kernels"], start, end, f"{Kernel(kernel).name} {ticket}")
    exposed = spans.select(What.STALL)
    exposed = exposed[exposed["aux"] >= Cause.QUANTIZE]
    if len(exposed):
        events += _counter(tracks.counter("KV engines exposed", "transfers"), exposed)
    paged = spans.select(What.PAGES)
    if len(paged):
        track = tracks.counter("KV pages", "pages")
        events += [TrackEvent(cycle, 1, track, TrackEventType.COUNTER, value=pages)
                   for cycle, pages in zip(paged["end"].tolist(), paged["bytes"].tolist(), strict=True)]  # fmt: skip
    events.sort(key=lambda event: event[:2])
    with (folder / "trace.perfetto-trace").open("wb") as file:
        file.write(_packet({60: {1: PROCESS, 3: {1: 1, 6: "PyV-NPU, 1 ns = 1 core cycle"}, 11: 3}}))
        file.writelines(_track(uuid, name, tracks.units.get(name)) for name, uuid in tracks.items())
        file.writelines(map(_event, events))


def _slice(track: int, start: int, end: int, name: str, flow: int = 0) -> Iterator[TrackEvent]:
    """Yield a slice, or an instant for a duration of 0, whose end would precede its begin in the file."""
    if end <= start:
        yield TrackEvent(start, 1, track, TrackEventType.INSTANT, name, flow)
        return
    yield TrackEvent(start, 2, track, TrackEventType.BEGIN, name, flow)
    yield TrackEvent(end, 0, track, TrackEventType.END)


def _submissions(tracks: Tracks, submissions: Sequence[Submission]) -> Iterator[TrackEvent]:
    core, accepted, completed, handler = (tracks[name] for name in ("core: submit", "accept", "done", "firmware knows"))
    shown: dict[int, int] = {}
    """t1 of a batch -> t0 of its slice: descriptors under one doorbell share a slice."""
    for flow, s in enumerate(submissions, 1):
        if s.t0 is not None and s.t1 is not None:
            if s.t1 in shown:
                yield TrackEvent(s.t0, 1, core, TrackEventType.INSTANT, f"stage {s.ticket}", flow)
            else:
                shown[s.t1] = s.t0
                yield from _slice(core, s.t0, s.t1, f"submit {s.ticket}", flow)
        if s.t2 is not None:
            yield TrackEvent(s.t2, 1, accepted, TrackEventType.INSTANT, f"accept {s.ticket}", flow)
        if s.t4 is not None:
            yield TrackEvent(s.t4, 1, completed, TrackEventType.INSTANT, f"done {s.ticket}", flow)
    yield from _notices(handler, submissions)


def _notices(track: int, submissions: Sequence[Submission]) -> Iterator[TrackEvent]:
    """Yield a slice for each handler, from its first instruction to its last ticket, and an instant for each
    ticket."""
    ends: dict[int, int] = {}
    for s in submissions:
        if s.t6 is not None and s.t7 is not None:
            ends[s.t6] = max(ends.get(s.t6, 0), s.t7)
    latest_end = 0
    for start, stop in sorted(ends.items()):
        begin = max(start, latest_end)  # handlers do not nest, so a slice begins after the end of the previous one
        if stop > begin:
            yield from _slice(track, begin, stop, "handler")
        latest_end = max(latest_end, stop)
    for flow, s in enumerate(submissions, 1):
        if s.t7 is not None:
            yield TrackEvent(s.t7, 1, track, TrackEventType.INSTANT, f"knows {s.ticket}", flow, True)


def _engines(tracks: Tracks, spans: Spans, submissions: Sequence[Submission]) -> Iterator[TrackEvent]:
    flows = {s.ticket: flow for flow, s in enumerate(submissions, 1)}
    for kind in UNITS:
        for unit, rows in spans.units(kind).items():
            row_ends: list[int] = []  # end of each row; overlapping work takes another row of the engine
            columns = (rows[name].tolist() for name in ("start", "end", "ticket", "aux"))
            for start, end, ticket, aux in zip(*columns, strict=True):
                row = next((row for row, end_of in enumerate(row_ends) if end_of <= start), len(row_ends))
                row_ends[row : row + 1] = [end]
                track = tracks[unit_name(unit) if row == 0 else f"{unit_name(unit)}, row {row + 1}"]
                name = f"{Opcode(aux & OPCODE).name} {ticket}"
                yield from _slice(track, start, end, name, flows.get(ticket, 0))


def _counter(track: int, rows: Table) -> Iterable[TrackEvent]:
    """Return the number of open rows at each change."""
    return [TrackEvent(cycle, 1, track, TrackEventType.COUNTER, value=value) for cycle, value in open_rows(rows)]
