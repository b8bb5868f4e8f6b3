"""latency.csv: one line per submission, its stamps and where its cycles went."""

import csv
from pathlib import Path

from pyv_ext.elf import Program
from pyv_npu.observe.latency.rows import NONE, STAMPS, Reason, Submissions
from pyv_npu.report.folder import replacing

_FACTS = ("number", "mode", "prebuilt", "ticket", "error", "function", "source")
COLUMNS = (*_FACTS, *STAMPS, *(reason.value for reason in Reason))
"""Stamps are cycle numbers, reasons are cycles; an empty field is a stamp that was not seen. `function` and `source`
say where the program submitted, as far as its file tells."""
_MODES = ("loose", "tight")


def write_latency_csv(path: Path, submissions: Submissions, program: Program | None = None) -> None:
    """Submissions of a program in the order of acceptance."""
    columns: list[list[object]] = [list(range(len(submissions)))]
    columns.append([_MODES[tight] for tight in submissions.column("tight").tolist()])
    places = _places(submissions, program)
    for name in COLUMNS[len(columns) :]:
        if name in places:
            columns.append(places[name])
            continue
        values = submissions.column(name).tolist()
        columns.append([None if cycle == NONE else cycle for cycle in values] if name in STAMPS else values)
    with replacing(path) as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        rows.writerows(zip(*columns, strict=True))


def _places(submissions: Submissions, program: Program | None) -> dict[str, list[object]]:
    """The columns `function` and `source`."""
    sites = submissions.column("call_site").tolist()
    functions = {site: program and program.function_at(site) for site in set(sites)}
    lines = {site: program and program.line_of(site) for site in set(sites)}
    return {
        "function": [found and found.name for found in map(functions.get, sites)],
        "source": [lines[site] and str(lines[site]) for site in sites],
    }
