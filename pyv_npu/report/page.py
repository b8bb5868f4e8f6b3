"""A self-contained HTML page: its parts, and the templates of page/ that show them. Nothing is loaded from anywhere."""

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from itertools import groupby
from typing import Any, NamedTuple

from markupsafe import Markup

from pyv_npu.report.charts import Chart
from pyv_npu.report.vega import chart_name, library, themes
from pyv_npu.text import MISSING, columns, wrapped


class Note(NamedTuple):
    """A paragraph; `kind`: "muted", "warning" or empty."""

    text: str
    kind: str = ""


class Heading(NamedTuple):
    """Within a section."""

    text: str


class Charts(NamedTuple):
    """Charts side by side."""

    charts: Sequence[Chart]


class Verdict(NamedTuple):
    """What a reader should know first, a paragraph a sentence."""

    sentences: Sequence[str]


class Cell(NamedTuple):
    """Of a table; `name` makes a figure findable in the page, `kind` "text" aligns it like text, `link` is a path
    relative to the page."""

    text: str
    name: str = ""
    kind: str = ""
    link: str = ""
    value: float | None = None
    """By which its column is sorted, where the text has a prefix of a unit."""


class Table(NamedTuple):
    """Heads of columns of text are aligned like the text."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    tools: bool = False
    """Whether it can be filtered, however short it is."""
    units: Sequence[str] = ()
    """Of the columns; empty where there is none."""

    @property
    def columns(self) -> list[tuple[str, str]]:
        """(head with its unit, its kind)."""
        kinds = [cell.kind if cell.kind == "text" else "" for row in self.rows[:1] for cell in row]
        units = self.units or [""] * len(self.heads)
        named = [f"{head} ({unit})" if unit else head for head, unit in zip(self.heads, units, strict=True)]
        return list(zip(named, [*kinds, *[""] * (len(self.heads) - len(kinds))], strict=True))


class Details(NamedTuple):
    """A table that is folded."""

    summary: str
    table: Table


class OverTime(NamedTuple):
    """Runs on one time axis, as page/gantt.js draws them."""

    charts: Mapping[str, Any]
    """By the name of the run, as `pyv_npu.report.figures.gantt_chart` makes them."""


Part = Note | Heading | Chart | Charts | Verdict | Table | Details | OverTime


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

    environment = Environment(
        loader=PackageLoader("pyv_npu.report", "page"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["kind"] = lambda part: type(part).__name__
    folder = resources.files("pyv_npu.report") / "page"
    shown = [Section(one.name, one.title, _side_by_side(one.parts)) for one in sections if one.parts]
    drawn = any(isinstance(part, Charts) for one in shown for part in one.parts)
    style, theme, *scripts = (
        Markup((folder / name).read_text(encoding="utf-8"))
        for name in ("style.css", "theme.js", "tables.js", "gantt.js", "time.js", *(["charts.js"] if drawn else []))
    )
    return environment.get_template("report.html").render(
        title=title, head=head, tiles=tiles, sections=shown, style=style, theme=theme, scripts=scripts,
        vega=Markup(library()) if drawn else "", themes=Markup(themes()),
    )  # fmt: skip


def _side_by_side(parts: Sequence[Part]) -> list[Part]:
    """Charts that follow each other stand side by side where there is room."""
    found: list[Part] = []
    for charts, run in groupby(parts, lambda part: isinstance(part, Chart)):
        together = list(run)
        named = [part._replace(name=chart_name(part.name)) for part in together if isinstance(part, Chart)]
        found += [Charts(named)] if charts else together
    return found


def as_text(parts: Iterable[Part], rows: int) -> str:
    """Formats parts for a terminal: sentences, and at most `rows` rows of each table; charts are for pages."""
    blocks = list[str]()
    note = False
    for part in parts:
        if isinstance(part, Note | Heading):
            text = "\n".join(wrapped(part.text))
            if note:
                blocks[-1] += f"\n{text}"
            else:
                blocks.append(text)
        elif isinstance(part, Verdict):
            blocks.append("\n".join(line for sentence in part.sentences for line in wrapped(sentence)))
        elif isinstance(part, Table) and part.rows:
            shown = [[cell.text for cell in row] for row in part.rows[:rows]]
            more = f"\nand {len(part.rows) - rows:,} more rows" if len(part.rows) > rows else ""
            blocks.append(columns(part.heads, shown, (), part.units) + more)
        note = isinstance(part, Note) and part.kind == "muted"
    return "\n\n".join(blocks) + "\n"


def mean(value: float | None) -> str:
    """A mean or a rate: two decimals, like all others of the page."""
    return MISSING if value is None else f"{value:,.2f}"
