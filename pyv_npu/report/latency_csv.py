"""latency.csv: one line per submission, its stamps and where its cycles went."""

import csv
from collections.abc import Iterable
from pathlib import Path

from pyv_npu.latency.submission import Reason, Submission
from pyv_npu.report.folder import replacing

STAMPS = ("t_arr", "t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7")
COLUMNS = ("number", "mode", "prebuilt", "ticket", "error", *STAMPS, *(reason.value for reason in Reason))
"""Stamps are cycle numbers, reasons are cycles; an empty field is a stamp that was not seen."""


def write_latency_csv(path: Path, submissions: Iterable[Submission]) -> None:
    """Submissions in the order of acceptance."""
    with replacing(path) as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        for number, submission in enumerate(submissions):
            rows.writerow(_row(number, submission))


def _row(number: int, submission: Submission) -> list[object]:
    return [
        number,
        "tight" if submission.tight else "loose",
        int(submission.prebuilt),
        submission.ticket,
        submission.error,
        *(getattr(submission, stamp) for stamp in STAMPS),
        *(submission.reasons.get(reason, 0) for reason in Reason),
    ]
