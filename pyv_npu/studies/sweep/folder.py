"""Folder of a sweep: a record for each executed point, by its address, and the table of all points."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from pyv_native.files import MAX_RESULT, check_input, draft_of, write_text
from pyv_npu import manifest
from pyv_npu.csv_table import write_csv
from pyv_npu.errors import BadInputError, UsageError
from pyv_npu.report.folder import check_holds_only
from pyv_npu.studies.sweep.point import SCHEMA, Record
from pyv_npu.studies.sweep.table import SHORT, Table
from toolchain.errors import require_extra

POINTS, REPORTS, LOCK = "points", "reports", ".lock"
SWEEP, CSV, PARQUET, PAGE = "sweep.json", "table.csv", "table.parquet", "report.html"
FILES = frozenset((POINTS, REPORTS, LOCK, SWEEP, CSV, PARQUET, PAGE, manifest.FILE))


class SweepFolder:
    """Folder that contains a sweep or is empty."""

    def __init__(self, place: Path) -> None:
        """UsageError when the folder contains other files."""
        self.place = place
        self._points = place / POINTS
        check_holds_only(place, FILES, "--output", "a sweep")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder for this process. UsageError when another process has locked it."""
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

    def keep(self, address: str, record: Record) -> None:
        """Write the record of a point, with its address and a hash of both."""
        document = {**record, "address": address, "sha256": _digest(record, address)}
        write_text(self._file(address), json.dumps(document, separators=(",", ":")) + "\n")

    def record(self, address: str) -> Record | None:
        """Return the record of a point; None if the point was not run or its file is truncated. BadInputError: the
        record was changed."""
        path = self._file(address)
        if not path.exists():
            return None
        try:
            return read_point(path)
        except ValueError:
            return None

    def report(self, address: str) -> Path:
        """Return the folder for the report of a point."""
        return self.place / REPORTS / address[:SHORT]

    def link(self, address: str) -> str:
        """Return the path of a point's page, or of its record without a report; empty if the point was not run."""
        page = self.report(address) / PAGE
        file = page if page.is_file() else self._file(address)
        return str(file.relative_to(self.place)) if file.is_file() else ""

    def write(self, document: Mapping[str, Any], table: Table, page: str) -> None:
        """Write the description of the sweep, its table and its page."""
        write_text(self.place / SWEEP, json.dumps(document, indent=2) + "\n")
        write_csv(self.place / CSV, table.heads, table.cells)
        write_text(self.place / PAGE, page)

    def write_parquet(self, heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
        """Write table.parquet and return its path. MissingExtraError: pyarrow is not installed; the file of an
        earlier sweep is removed in any case."""
        path = self.place / PARQUET
        path.unlink(missing_ok=True)
        with require_extra("parquet", PARQUET):
            import pyarrow
            from pyarrow import parquet
        columns = [_to_column([row[index] for row in rows]) for index in range(len(heads))]
        with draft_of(path) as draft:
            parquet.write_table(pyarrow.table(dict(zip(heads, columns, strict=True))), draft)
        return path

    def tables(self) -> list[Path]:
        """Return the files beside the points."""
        return [path for name in (SWEEP, CSV, PARQUET, PAGE) if (path := self.place / name).is_file()]

    def _file(self, address: str) -> Path:
        return self._points / f"{address}.json"


def read_point(path: Path) -> Record:
    """Read the record of a point. OSError, ValueError: no file, or of another format; BadInputError: it was changed."""
    check_input(path, MAX_RESULT)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise ValueError("no record of a point")
    address, digest = record.pop("address", None), record.pop("sha256", None)
    if address != path.stem or digest != _digest(record, path.stem):
        raise BadInputError(f"{path}: was changed after its run; remove it, and the same sweep runs the point again")
    return record


def _digest(record: Record, address: str) -> str:
    """Return the SHA-256 of a record and the address of its point."""
    return sha256(json.dumps([address, record], sort_keys=True).encode()).hexdigest()


def changed_points(folder: Path) -> list[str]:
    """Return a line for each point of a sweep whose file has changed; [] for another folder."""
    lines = []
    for path in sorted((folder / POINTS).glob("*.json")):
        try:
            read_point(path)
        except (OSError, ValueError, BadInputError):
            lines.append(f"{POINTS}/{path.name}: is not as it was written")
    return lines


def _to_column(values: Sequence[Any]) -> Sequence[Any]:
    """Convert a column to one type: text if some values are no numbers or exceed 64 bits."""
    kinds = {type(value) for value in values if value is not None}
    narrow = all(-(1 << 63) <= value < 1 << 63 for value in values if type(value) is int)
    if kinds <= {str} or (kinds <= {int} and narrow):
        return values
    if kinds <= {int, float} and narrow:
        return [None if value is None else float(value) for value in values]
    return [None if value is None else str(value) for value in values]
