"""A self-contained HTML page: its parts, and the templates of page/ that show them. Nothing is loaded from anywhere."""

from collections.abc import Sequence
from importlib import resources
from typing import Any, NamedTuple

from pyv_npu.text import MISSING


class Note(NamedTuple):
    """A paragraph; `kind`: "muted", "warning" or empty."""

    text: str
    kind: str = ""


class Heading(NamedTuple):
    """Within a section."""

    text: str


class Picture(NamedTuple):
    """A drawing."""

    svg: str


class Pair(NamedTuple):
    """Pictures side by side."""

    pictures: Sequence[Picture]


class Cell(NamedTuple):
    """Of a table; `name` makes a figure findable in the page, `kind` "text" aligns it like text."""

    text: str
    name: str = ""
    kind: str = ""


class Table(NamedTuple):
    """Heads of columns of text are aligned like the text."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    @property
    def columns(self) -> list[tuple[str, str]]:
        """(head, its kind)."""
        kinds = [cell.kind if cell.kind == "text" else "" for row in self.rows[:1] for cell in row]
        return list(zip(self.heads, [*kinds, *[""] * (len(self.heads) - len(kinds))], strict=True))


class Details(NamedTuple):
    """A table that is folded."""

    summary: str
    table: Table


class Gantt(NamedTuple):
    """The chart of a run that page/gantt.js draws."""

    name: str
    chart: Any


Part = Note | Heading | Picture | Pair | Table | Details | Gantt


class Tile(NamedTuple):
    """One of the figures at the top."""

    name: str
    value: str
    text: str


class Section(NamedTuple):
    """A part of the page that its navigation names."""

    name: str
    title: str
    parts: Sequence[Part]


def render(title: str, head: Sequence[Part] = (), tiles: Sequence[Tile] = (), sections: Sequence[Section] = ()) -> str:
    """The page; a section without parts is left out."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # a run without a report does not need it
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("pyv_npu.report", "page"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["kind"] = lambda part: type(part).__name__
    folder = resources.files("pyv_npu.report") / "page"
    style, script = (Markup((folder / name).read_text(encoding="utf-8")) for name in ("style.css", "gantt.js"))
    return environment.get_template("report.html").render(
        title=title, head=head, tiles=tiles, sections=[section for section in sections if section.parts],
        style=style, script=script,
    )  # fmt: skip


def number(value: Any) -> str:
    """A figure as the page shows it."""
    if value is None:
        return MISSING
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return f"{value:,}" if isinstance(value, int) else str(value)
