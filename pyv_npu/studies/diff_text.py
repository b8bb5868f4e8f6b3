"""Sections of the difference of two results, for a terminal and a page."""

from pyv_npu.report.page import render as render_page
from pyv_npu.sections import Cell, Note, Part, Section, Table, Value, Verdict, as_text
from pyv_npu.studies.diff import Difference, FigureChange
from pyv_npu.studies.diff_charts import latency_parts, time_parts
from pyv_npu.text import MISSING
from pyv_npu.units import number

SHOWN = 20
"""Maximum rows of a table in the text; the page and the JSON have all."""
HEADS = ("A", "B", "change", "of A")
UNITS = ("", "", "", "", "share")


def render(difference: Difference) -> str:
    """Format the difference for a terminal."""
    return as_text([Section("head", "", _head(difference)), *_sections(difference)], SHOWN)


def page(difference: Difference) -> str:
    """Render the document: as `render`, with distributions of the submission latency and timelines of both runs."""
    settings, causes, changes = _sections(difference)
    charts = [
        Section("latency", "Submission latency, core cycles", latency_parts(difference)),
        Section("time", "Over time", time_parts(difference)),
    ]
    return render_page("Difference of two results", _head(difference), (), [settings, causes, *charts, changes])


def _head(difference: Difference) -> list[Part]:
    names = [f"{side}: {loaded.name}" for side, loaded in (("A", difference.before), ("B", difference.after))]
    return [Verdict([difference.sentence]), *(Note(text, "muted") for text in names)]


def _sections(difference: Difference) -> list[Section]:
    settings = [
        (f"{setting.kind} {setting.name}", _plain(setting.before), _plain(setting.after))
        for setting in difference.settings
    ]
    causes = [
        Table((_name(breakdown.run, breakdown.name), *HEADS),
              [*(_row(part, part.figure) for part in breakdown.parts), _row(breakdown.total, "total")], units=UNITS)
        for breakdown in difference.breakdowns
    ]  # fmt: skip
    ranked = sorted(difference.changes, key=lambda change: -abs(change.share if change.share is not None else 1e9))
    changes = [_row(change, _name(change.run, change.figure)) for change in ranked]
    return [
        Section("settings", "Settings that differ", [Table(("setting", "A", "B"), settings)] if settings else []),
        Section("causes", "Causes of the changes", causes),
        Section("figures", "Figures that changed",
                [Table(("figure", *HEADS), changes, UNITS)] if changes else []),
    ]  # fmt: skip


def _name(run: str, name: str) -> str:
    return f"{run}: {name}" if run else name


def _row(change: FigureChange, name: str) -> list[Value]:
    return [name, change.before, change.after, Cell(_format_signed(change.delta), value=change.delta), change.share]


def _format_signed(value: float) -> str:
    return ("+" if value > 0 else "") + number(value)


def _plain(value: object) -> str:
    text = MISSING if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
