"""CSV tables, safe against formula injection in spreadsheets."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from pyv_native.files import write_text

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_cell(value: object) -> object:
    """Return a cell that no spreadsheet interprets as a formula: text that begins like one gets an apostrophe, unless
    it is a number."""
    if isinstance(value, str) and value.startswith(_FORMULA) and len(value) > 1:
        try:
            float(value)
        except ValueError:
            return f"'{value}"
    return value


def csv_text(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Format a table as CSV."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(csv_cell, heads))
    writer.writerows([csv_cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return file.getvalue()


def write_csv(path: Path, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write a table, atomically; write nothing for a table without rows."""
    if not rows:
        return
    write_text(path, csv_text(heads, rows))
