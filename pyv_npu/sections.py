"""Sections of a result, from which terminal text, pages, CSV files and notebooks are rendered.

Docstrings of the parts describe their rendering in a page and on a terminal.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pyv_npu.text import MISSING, WIDTH, columns, lines_of, wrap
from pyv_npu.units import number, quantity, scale_of

MAX_ROWS = 40
"""Maximum rows of a table on a terminal."""
COLUMN_DECIMALS = 4
"""Decimals of a column with a unit prefix; a copy of the table has all digits."""
WIDEST, LONG = 132, 48
"""Maximum width of a table on a terminal, and of its cells, in characters: a table beyond both is written row by
row."""


class Note(NamedTuple):
    """Paragraph; `kind`: "muted", "warning" or empty."""

    text: str
    kind: str = ""


class Heading(NamedTuple):
    """Heading within a section."""

    text: str


class Verdict(NamedTuple):
    """Main conclusions, the first text of a page."""

    sentences: Sequence[str]


class Facts(NamedTuple):
    """Names with texts, a line each."""

    rows: Sequence[tuple[str, str]]


class Chart(NamedTuple):
    """Vega-Lite chart of a page, with the name of its file."""

    name: str
    title: str
    caption: str
    spec: Mapping[str, Any]


class Cell(NamedTuple):
    """Cell of a table with attributes: `name` identifies it in the page, `kind` "text" aligns it like text, "depth1"
    indents it, `link` is a path relative to the page, `value` is the key by which its column is sorted."""

    text: str
    name: str = ""
    kind: str = ""
    link: str = ""
    value: float | None = None


Value = Cell | str | int | float | None
"""Content of a cell. Columns of text are left-aligned; a number has the format of `pyv_npu.units` and the unit of its
column; None is an empty cell."""


class Table(NamedTuple):
    """Table; a terminal shows its first rows."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Value]]
    units: Sequence[str] = ()
    """Units of the columns, empty without a unit; a column of seconds, bytes or rates has a common prefix."""
    file: str = ""
    """CSV file in the folder of a report, with the table's heads and values without prefix."""
    figures: str = ""
    """Format of cells' names in the page, from cells of the row and the head: "{1}.{0}.{head}"; not for first cells."""


class Details(NamedTuple):
    """Table that a page folds and a terminal omits."""

    summary: str
    table: Table


class OverTime(NamedTuple):
    """Runs on one time axis, drawn by page/gantt.js."""

    charts: Mapping[str, Any]
    """Run -> chart, a result of `pyv_npu.report.figures.gantt_chart`."""


Part = Note | Heading | Verdict | Facts | Chart | Table | Details | OverTime


class Tile(NamedTuple):
    """Key figure of the first screen; `name` identifies it in the page, `text` describes it."""

    name: str
    value: str
    text: str


class Section(NamedTuple):
    """Section of a result; its name is the anchor in the page."""

    name: str
    title: str
    parts: Sequence[Part]


# -- cells -------------------------------------------------------------------------------------------------------------


class TableLayout(NamedTuple):
    """Formatted table, common to all renderers."""

    units: Sequence[str]
    """Units of the columns, with their prefixes."""
    rows: Sequence[Sequence[Cell]]
    text: Sequence[bool]
    """Whether each column is text."""
    heads: Sequence[str]
    """Headers with the units."""
    bare: Sequence[str]
    """Headers with the units without prefix, for a copy of the table."""


def layout(table: Table) -> TableLayout:
    """Format the cells of a table, with one prefix per column."""
    units = [*table.units, *[""] * (len(table.heads) - len(table.units))]
    scales = [scale_of([row[at] for row in table.rows if isinstance(row[at], int | float)], unit)  # type: ignore[misc]
              for at, unit in enumerate(units)]  # fmt: skip
    heads = [f"{head} ({scale.unit})" if scale.unit else head for head, scale in zip(table.heads, scales, strict=True)]

    words = [at > 0 and all(map(_is_text, (row[at] for row in table.rows))) for at in range(len(table.heads))]

    def cell(row: Sequence[Value], at: int) -> Cell:
        value = row[at]
        if isinstance(value, Cell):
            return value
        name = table.figures if at else ""
        name = name and name.format(*map(plain, row), head=table.heads[at].lower())
        if isinstance(value, str):
            return Cell(value, name, kind="text" if words[at] else "")
        if value is None:
            return Cell(MISSING, name)
        if units[at] == "share":
            return Cell(quantity(value, "share").removesuffix(" %"), name)
        if scales[at].factor == 1:
            return Cell(number(value), name)
        return Cell(number(round(value / scales[at].factor, COLUMN_DECIMALS)), name, value=value)

    bare = [f"{head} ({unit})" if scale.factor != 1 and unit != "share" else heading
            for head, heading, unit, scale in zip(table.heads, heads, units, scales, strict=True)]  # fmt: skip
    rows = [[cell(row, at) for at in range(len(row))] for row in table.rows]
    text = [bool(rows) and all(row[at].kind == "text" for row in rows) for at in range(len(table.heads))]
    return TableLayout([scale.unit for scale in scales], rows, text, heads, bare)


def _is_text(value: Value) -> bool:
    return isinstance(value, str) or (isinstance(value, Cell) and value.kind == "text")


def plain(value: Value) -> object:
    """Return the unformatted value of a cell."""
    if isinstance(value, Cell):
        return value.text if value.value is None else value.value
    return value


def parts_of(sections: Iterable[Section]) -> Iterator[Part]:
    """Yield the parts of all sections."""
    for section in sections:
        yield from section.parts


def csv_tables(sections: Iterable[Section]) -> dict[str, Table]:
    """Return file of a report -> its table."""
    return {part.file: part for part in parts_of(sections) if isinstance(part, Table) and part.file}


# -- terminal ----------------------------------------------------------------------------------------------------------


def as_text(sections: Iterable[Section], rows: int = MAX_ROWS) -> str:
    """Format sections for a terminal, with at most `rows` rows of each table and without charts."""
    blocks = list[str]()
    for section in sections:
        lines = list[str]()
        for part in section.parts:
            text = _text(part, rows)
            gap = lines and text and isinstance(part, Table | Facts | Heading)
            lines += [""] if gap else []
            lines += [text] if text else []
        if lines:
            blocks.append("\n".join([*([section.title] if section.title else []), *lines]))
    return "\n\n".join(blocks) + "\n"


def _text(part: Part, rows: int) -> str:
    match part:
        case Note(text, _) | Heading(text):
            return "\n".join(wrap(text))
        case Verdict(sentences):
            return "\n".join(line for sentence in sentences for line in wrap(sentence))
        case Facts(facts) if facts:
            return lines_of("", facts)
        case Table() if part.rows:
            more = f"\nand {len(part.rows) - rows:,} more rows" if len(part.rows) > rows else ""
            return _table_text(part._replace(rows=part.rows[:rows])) + more
    return ""


def _table_text(table: Table) -> str:
    units, rows, text, _, _ = layout(table)
    cells = [[f"{'  ' * int(cell.kind[5:])}{cell.text}" if cell.kind.startswith("depth") else cell.text for cell in row]
             for row in rows]  # fmt: skip
    table_columns = columns(table.heads, cells, text, units)
    prose = max((len(cell.text) for row in rows for cell in row), default=0) > LONG
    if not prose or max(map(len, table_columns.splitlines())) <= WIDEST:
        return table_columns
    return "\n\n".join(
        "\n".join(
            line for head, unit, cell in zip(table.heads, units, row, strict=True)
            for line in wrap(f"{head}: {cell} {unit}", WIDTH, "  ") if cell not in ("", MISSING)
        )
        for row in cells
    )  # fmt: skip
