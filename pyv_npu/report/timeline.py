"""timeline.csv and latency.csv (docs/results.md). timeline.csv is the table of spans with names.

| what | unit | start, end |
|---|---|---|
| name of an opcode | engine of the work | begin and end of the work |
| ACCEPT | frontend | start of the fetch, entry into the queue |
| STALL | frontend | begin and end of a delay of an accepted command, with its cause |
| BARRIER | frontend | opened, closed |
| ERROR | frontend, or the engine | the same cycle twice; its cause is the code and the reason in words |
| any other event | unit of the event | the same cycle twice |

Rows are in the order of their ends. A row that is open at the end of the run has no end.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.abi.errors import TicketError
from npu_device.abi.opcodes import Opcode
from npu_device.issue.retirement import ErrorEntry
from npu_device.trace.events import BEGINS, ENDS, Cause, Kind, Refusal, What, unit_index, unit_kind
from npu_device.trace.run_spans import Spans
from npu_device.trace.spans import NONE, OPCODE, UNFINISHED, Flags, Table, among
from pyv_ext.elf import Program
from pyv_native.files import replacing
from pyv_npu.csv_table import csv_cell
from pyv_npu.observe.latency.rows import NONE as UNSEEN
from pyv_npu.observe.latency.rows import STAMPS, Reason, Submissions

_NAMES = np.full(max(What) + 1, "", object)
_NAMES[[*What]] = [event.name for event in What]
_NAMES[[What.BARRIER_OPEN, What.BARRIER_CLOSE]] = "BARRIER"
_OPCODES = np.full(OPCODE + 1, "", object)
_OPCODES[[*Opcode]] = [opcode.name for opcode in Opcode]
_CAUSES: dict[int, type[Cause | Refusal | TicketError]] = {
    What.STALL: Cause,
    What.REJECT: Refusal,
    What.ERROR: TicketError,
}
_ONLY = {Kind.FRONTEND: "frontend", Kind.CORE: "core", Kind.L2: "l2"}
"""Kinds with a single unit -> its name."""


class TimelineRow(NamedTuple):
    """Work of a unit between two cycles."""

    unit: str
    what: str
    ticket: int
    tile: int
    stream: int | None
    """Stream; None: unknown, or none."""
    start: int
    end: int | None
    """End; None: unfinished."""
    bytes: int | None
    cause: str
    layer: str
    """Layer of the model; empty for other programs."""


Reasons = Mapping[tuple[int, int], str]
"""(cycle, ticket) of an error -> its reason in words."""


def named(table: Table, layers: Sequence[str], reasons: Reasons | None = None) -> Iterable[TimelineRow]:
    """Return the rows of the table with names in place of codes; `layers`: of each command, in acceptance order."""
    layer_names = np.array([*layers, ""], object)
    events, aux, number = table["what"], table["aux"], table["number"]
    is_step, is_finished = among(BEGINS)[events], table["last"] != UNFINISHED
    names = _NAMES[events]
    names[is_step] = _OPCODES[aux[is_step] & OPCODE]
    causes = np.full(len(table), "", object)
    for kind, codes in _CAUSES.items():
        selected = np.flatnonzero(events == kind)
        causes[selected] = [codes(code).name.lower() for code in aux[selected].tolist()]
    for row in np.flatnonzero(events == What.ERROR).tolist():
        reason = (reasons or {}).get((int(table["start"][row]), int(table["ticket"][row])))
        causes[row] += "" if reason is None else f": {reason}"
    columns = (
        [unit_name(unit) for unit in table["unit"].tolist()],
        names.tolist(),
        table["ticket"].tolist(),
        table["tile"].tolist(),
        _column_where(table["stream"] != NONE, table["stream"]),
        table["start"].tolist(),
        _column_where(is_finished, table["end"]),
        _column_where(is_finished & among((*BEGINS, *ENDS))[events], table["bytes"]),
        causes.tolist(),
        layer_names[np.where(number < len(layers), number, NONE)].tolist(),
    )
    return map(TimelineRow._make, zip(*columns, strict=True))


def _column_where(mask: Flags, values: NDArray[Any]) -> list[int | None]:
    """Return the values selected by `mask`, with None in place of all others."""
    entries = values.astype(object)
    entries[~mask] = None
    return entries.tolist()


def write_timeline(path: Path, spans: Spans, layers: Sequence[str] = (), errors: Iterable[ErrorEntry] = ()) -> None:
    """Write timeline.csv of a whole run; `errors`: error log of the device."""
    reasons = {(entry.cycle, entry.ticket): entry.reason for entry in errors}
    layers = [str(csv_cell(layer)) for layer in layers]
    with replacing(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(TimelineRow._fields)
        writer.writerows(named(spans.rows, layers, reasons))


@cache
def unit_name(code: int) -> str:
    """Return the name of the unit with this code: te0, bank3, frontend."""
    kind = Kind(unit_kind(code))
    return _ONLY.get(kind) or f"{kind.name.lower()}{unit_index(code)}"


def open_rows(table: Table) -> list[tuple[int, int]]:
    """Return (cycle, number of open rows) at each change."""
    table = table[table["end"] > table["start"]]
    cycles = np.concatenate([table["start"], table["end"]])
    steps = np.repeat([1, -1], len(table))
    times, index = np.unique(cycles, return_inverse=True)
    depth = np.cumsum(np.bincount(index, weights=steps, minlength=len(times))).astype(np.int64)
    return list(zip(times.tolist(), depth.tolist(), strict=True))


# -- latency.csv ---------------------------------------------------------------------------------------------------

_FACTS = ("number", "mode", "prebuilt", "ticket", "error", "function", "source")
LATENCY_COLUMNS = (*_FACTS, *STAMPS, *(reason.value for reason in Reason))
"""Columns of latency.csv. Timestamps are cycle numbers, empty if not observed; reasons are cycles. `function` and
`source` are the location of the submission, if the program has symbols and line numbers."""
_MODES = ("loose", "tight")


def write_latency_csv(path: Path, submissions: Submissions, program: Program | None = None) -> None:
    """Write the submissions of a program in the order of acceptance."""
    with replacing(path) as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(LATENCY_COLUMNS)
        first = 0
        for chunk in submissions.chunks():
            part = Submissions(partial(iter, (chunk,)))
            rows.writerows(zip(*latency_columns(part, program, first), strict=True))
            first += len(chunk)


def latency_columns(submissions: Submissions, program: Program | None = None, first: int = 0) -> list[list[object]]:
    """Return the columns of latency.csv, None for unknown values; numbers begin at `first`."""
    columns: list[list[object]] = [list(range(first, first + len(submissions)))]
    columns.append([_MODES[tight] for tight in submissions.column("tight").tolist()])
    sites = _sites(submissions, program)
    for name in LATENCY_COLUMNS[len(columns) :]:
        if name in sites:
            columns.append(sites[name])
            continue
        values = submissions.column(name).tolist()
        columns.append([None if cycle == UNSEEN else cycle for cycle in values] if name in STAMPS else values)
    return columns


def _sites(submissions: Submissions, program: Program | None) -> dict[str, list[object]]:
    """Return the columns `function` and `source`."""
    sites = submissions.column("call_site").tolist()
    functions = {site: program and program.function_at(site) for site in set(sites)}
    lines = {site: program and program.line_of(site) for site in set(sites)}
    return {
        "function": [location and csv_cell(location.name) for location in map(functions.get, sites)],
        "source": [lines[site] and csv_cell(str(lines[site])) for site in sites],
    }
