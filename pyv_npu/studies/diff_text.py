"""The difference of two results: one list of parts, shown as text and as a page."""

from pyv_npu.report.page import Cell, Note, Section, Table, as_text
from pyv_npu.report.page import render as render_page
from pyv_npu.studies.diff import Change, Difference
from pyv_npu.studies.diff_charts import latency_parts, time_parts
from pyv_npu.text import MISSING
from pyv_npu.units import number

SHOWN = 20
"""Rows of a table of the text; the page and the JSON have all."""
HEADS = ("A", "B", "change", "of A")


def render(found: Difference) -> str:
    """A sentence, what was set otherwise, what the changes consist of, and the figures that changed most."""
    return as_text([*_head(found), *_settings(found), *_causes(found), *_changes(found)], SHOWN)


def page(found: Difference) -> str:
    """The document: the same, with the distributions of the submission latency over each other, and both over time."""
    sections = [
        Section("settings", "What was set otherwise", _settings(found)),
        Section("causes", "What the changes consist of", _causes(found)),
        Section("latency", "Submission latency", latency_parts(found)),
        Section("time", "Over time", time_parts(found)),
        Section("figures", "Every figure that changed", _changes(found)),
    ]
    return render_page("Difference of two results", _head(found), (), sections)


def _head(found: Difference) -> list[Note]:
    names = [f"{side}: {loaded.name}" for side, loaded in (("A", found.before), ("B", found.after))]
    return [Note(found.sentence), *(Note(text, "muted") for text in names)]


def _settings(found: Difference) -> list[Table]:
    rows = [[Cell(f"{one.kind} {one.name}", kind="text"), Cell(_plain(one.before)), Cell(_plain(one.after))]
            for one in found.settings]  # fmt: skip
    return [Table(("what differs", "A", "B"), rows)] if rows else []


def _causes(found: Difference) -> list[Table]:
    return [
        Table((_name(one.run, one.name), *HEADS),
              [*(_row(part, part.figure) for part in one.parts), _row(one.total, "total")])
        for one in found.breakdowns
    ]  # fmt: skip


def _changes(found: Difference) -> list[Table]:
    """The figures that changed, the largest share first."""
    ranked = sorted(found.changes, key=lambda one: -abs(one.share if one.share is not None else 1e9))
    rows = [_row(one, _name(one.run, one.figure)) for one in ranked]
    return [Table(("figure", *HEADS), rows, tools=True)] if rows else []


def _name(run: str, name: str) -> str:
    return f"{run}: {name}" if run else name


def _row(change: Change, name: str) -> list[Cell]:
    sign = "+" if change.delta > 0 else ""
    cells = [number(change.before), number(change.after), sign + number(change.delta)]
    return [Cell(name), *map(Cell, cells), Cell(MISSING if change.share is None else f"{change.share:+.2%}")]


def _plain(value: object) -> str:
    text = MISSING if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
