"""The folder of a sweep: a record for each point that was run, by its address, and the table over them."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyv_native.files import MAX_RESULT, check_input, draft_of, write_text
from pyv_npu.errors import UsageError
from pyv_npu.report.folder import check_holds_only, write_csv
from pyv_npu.studies.sweep.point import SCHEMA, Record
from toolchain.errors import require_extra

POINTS, LOCK = "points", ".lock"
SWEEP, CSV, PARQUET, PAGE = "sweep.json", "table.csv", "table.parquet", "report.html"
FILES = frozenset((POINTS, LOCK, SWEEP, CSV, PARQUET, PAGE))


class SweepFolder:
    """A folder that holds a sweep, or nothing yet."""

    def __init__(self, place: Path) -> None:
        """UsageError where there is something else in the place."""
        self.place = place
        self._points = place / POINTS
        check_holds_only(place, FILES, "--output", "a sweep")

    @contextmanager
    def held(self) -> Iterator[None]:
        """The folder is this process's own. UsageError where another one writes into it."""
        self._points.mkdir(parents=True, exist_ok=True)
        with (self.place / LOCK).open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.seek(0)
                raise UsageError(
                    f"--output {self.place}: process {lock.read().strip() or '?'} runs a sweep in it; wait, or name "
                    "another folder"
                ) from None
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            yield

    def has(self, address: str) -> bool:
        """Whether a point was run before."""
        return self._file(address).is_file()

    def keep(self, address: str, record: Record) -> None:
        """Write the record of a point."""
        write_text(self._file(address), json.dumps(record, separators=(",", ":")) + "\n")

    def record(self, address: str) -> Record | None:
        """The record of a point; None where it was not run, or its file is none of ours."""
        try:
            check_input(self._file(address), MAX_RESULT)
            record = json.loads(self._file(address).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        return record if isinstance(record, dict) and record.get("schema") == SCHEMA else None

    def describe(self, document: Mapping[str, Any]) -> None:
        """Say what the sweep is."""
        write_text(self.place / SWEEP, json.dumps(document, indent=2) + "\n")

    def write_csv(self, heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
        """Writes table.csv and returns its path."""
        write_csv(self.place / CSV, heads, rows)
        return self.place / CSV

    def write_parquet(self, heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
        """Writes table.parquet and returns its path. MissingExtraError: pyarrow is not installed; that of an earlier
        sweep is removed."""
        path = self.place / PARQUET
        path.unlink(missing_ok=True)
        with require_extra("parquet", PARQUET):
            import pyarrow
            from pyarrow import parquet
        columns = [_typed([row[index] for row in rows]) for index in range(len(heads))]
        with draft_of(path) as draft:
            parquet.write_table(pyarrow.table(dict(zip(heads, columns, strict=True))), draft)
        return path

    def write_page(self, text: str) -> None:
        """report.html."""
        write_text(self.place / PAGE, text)

    def _file(self, address: str) -> Path:
        return self._points / f"{address}.json"


def _typed(values: Sequence[Any]) -> Sequence[Any]:
    """A column of one type: words where not all are numbers, or some have more than 64 bits."""
    kinds = {type(value) for value in values if value is not None}
    narrow = all(-(1 << 63) <= value < 1 << 63 for value in values if type(value) is int)
    if (kinds <= {int} and narrow) or kinds <= {str}:
        return values
    if kinds <= {int, float}:
        return [None if value is None else float(value) for value in values]
    return [None if value is None else str(value) for value in values]
