"""latency.csv: one line per submission, its stamps and where its cycles went."""

import csv
from pathlib import Path

from pyv_npu.observe.latency.rows import NONE, STAMPS, Reason, Submissions
from pyv_npu.report.folder import replacing

COLUMNS = ("number", "mode", "prebuilt", "ticket", "error", *STAMPS, *(reason.value for reason in Reason))
"""Stamps are cycle numbers, reasons are cycles; an empty field is a stamp that was not seen."""
_MODES = ("loose", "tight")


def write_latency_csv(path: Path, submissions: Submissions) -> None:
    """Submissions in the order of acceptance."""
    columns: list[list[object]] = [list(range(len(submissions)))]
    columns.append([_MODES[tight] for tight in submissions.column("tight").tolist()])
    for name in COLUMNS[len(columns) :]:
        values = submissions.column(name).tolist()
        columns.append([None if cycle == NONE else cycle for cycle in values] if name in STAMPS else values)
    with replacing(path) as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        rows.writerows(zip(*columns, strict=True))
