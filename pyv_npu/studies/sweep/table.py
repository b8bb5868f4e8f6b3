"""Table of a sweep: a row for each point and mode, readable by pandas and DuckDB."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyv_npu.studies.sweep.axes import Values
from pyv_npu.studies.sweep.figures import Cell, Figure, at
from pyv_npu.studies.sweep.point import Record

POINT, MODE, STOP, EXIT, ERROR, ADDRESS = "point", "mode", "stop_reason", "exit_code", "error", "address"

SHORT = 16
"""Number of leading characters of an address in the table."""


@dataclass(frozen=True)
class Row:
    """Point of a sweep."""

    point: int
    """Number from 1, as in `--point`."""
    values: Values
    address: str
    """Address of the job; empty: the point cannot be run for the reason in `problem`."""
    problem: str = ""
    costs: Mapping[str, int | float] = field(default_factory=dict)
    """Costs of the device."""


@dataclass(frozen=True)
class Table:
    """Table of the points."""

    axes: tuple[str, ...]
    figures: Mapping[str, Figure]
    rows: Sequence[Mapping[str, Cell]]

    @property
    def heads(self) -> list[str]:
        return [POINT, *self.axes, *self.figures, STOP, EXIT, ERROR, ADDRESS]

    @property
    def cells(self) -> list[list[Cell]]:
        return [[row[head] for head in self.heads] for row in self.rows]

    @property
    def good(self) -> list[Mapping[str, Cell]]:
        """Rows without an error."""
        return [row for row in self.rows if not row[ERROR]]

    @property
    def named(self) -> list[str]:
        """Names of the figures with a value in some row."""
        return [name for name in self.figures if any(row[name] is not None for row in self.rows)]

    def without(self, figures: Sequence[str]) -> "Table":
        """Return the table without some figures."""
        figures_left = {name: figure for name, figure in self.figures.items() if name not in figures}
        return Table(self.axes, figures_left, self.rows)

    def varied(self, axis: str) -> list[Cell]:
        """Return the distinct values of an axis in the order of the table."""
        return list(dict.fromkeys(row[axis] for row in self.rows))


def table(
    axes: Sequence[str], figures: Mapping[str, Figure], rows: Sequence[Row], record: Callable[[str], Record | None]
) -> Table:
    """Build the table from the records of all rows. Axes whose values are all integers become numeric."""
    integers = {name for name in axes if all(is_integer(row.values.get(name, "")) for row in rows)}
    cells: list[Mapping[str, Cell]] = []
    for row in rows:
        values: dict[str, Cell] = {}
        for name in axes:
            text = row.values.get(name)
            values[name] = int(text, 0) if name in integers and text is not None else text
        entry: Record = (record(row.address) or {"error": "was not run"}) if row.address else {"error": row.problem}
        fields = {**entry, "costs": row.costs}
        cells.append(
            {
                POINT: row.point, **values, **{name: figure.of(fields) for name, figure in figures.items()},
                STOP: at(fields, "result.stop_reason"), EXIT: at(fields, "result.exit_code"),
                ERROR: _error(fields), ADDRESS: row.address[:SHORT] or None,
            }
        )  # fmt: skip
    return Table(tuple(axes), figures, cells)


def _error(record: Record) -> str | None:
    """Return the reason why the figures of a row are missing or invalid; None for a good row."""
    if "error" in record:
        return str(record["error"])
    result: Mapping[str, Any] = record["result"]
    if not record["derived"]["correct"]:
        return str(record["derived"]["difference"])
    if result["stop_reason"] != "exit":
        return str(result["stop_text"] or result["stop_reason"])
    return f"exit code {result['exit_code']}" if result["exit_code"] else None


def is_integer(text: str) -> bool:
    """Checks whether a text is a whole number, in any notation of Python."""
    try:
        int(text, 0)
    except ValueError:
        return False
    return True
