"""The difference of two results, as text and as a page."""

from collections.abc import Sequence

from pyv_npu.report.page import Cell, Heading, Note, Part, Section, Table
from pyv_npu.report.page import render as render_page
from pyv_npu.studies.diff import Breakdown, Change, Difference
from pyv_npu.studies.diff_charts import latency_parts, time_parts
from pyv_npu.text import MISSING, columns, wrapped

SHOWN = 20
"""Figures that the text shows; the page and the JSON have all."""
HEADS = ("figure", "A", "B", "change", "of A")


def render(found: Difference) -> str:
    """One sentence, what was set otherwise, what the changes consist of, and the figures that changed most."""
    blocks = ["\n".join(wrapped(found.sentence)), f"A: {found.before.name}\nB: {found.after.name}"]
    if found.settings:
        rows = [[f"{one.kind} {one.name}", _plain(one.before), _plain(one.after)] for one in found.settings]
        blocks.append(columns(["what differs", "A", "B"], rows))
    blocks += [columns([_title(one), *HEADS[1:]], _cells(one)) for one in found.breakdowns]
    if found.changes:
        ranked = sorted(found.changes, key=lambda one: -abs(one.share if one.share is not None else 1e9))
        rows = [_row(one, _name(one)) for one in ranked[:SHOWN]]
        more = f"\n{len(ranked):,} figures changed; --json has all" if len(ranked) > SHOWN else ""
        blocks.append(columns(HEADS, rows) + more)
    return "\n\n".join(blocks) + "\n"


def _title(one: Breakdown) -> str:
    return f"{one.run}: {one.name}" if one.run else one.name


def _name(change: Change) -> str:
    return f"{change.run}: {change.figure}" if change.run else change.figure


def _cells(one: Breakdown) -> list[list[str]]:
    return [*(_row(part, part.figure) for part in one.parts), _row(one.total, "total")]


def _row(change: Change, name: str) -> list[str]:
    return [name, *(_number(value) for value in (change.before, change.after)), _number(change.delta, "+"),
            MISSING if change.share is None else f"{change.share:+.2%}"]  # fmt: skip


def _number(value: int | float, sign: str = "") -> str:
    return format(value, f"{sign},.6g" if isinstance(value, float) else f"{sign},")


def _plain(value: object) -> str:
    text = MISSING if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def page(found: Difference) -> str:
    """The document: the same, with the distributions of the submission latency over each other, and both over time."""
    differ = [[Cell(f"{one.kind} {one.name}", kind="text"), Cell(_plain(one.before)), Cell(_plain(one.after))]
              for one in found.settings]  # fmt: skip
    causes: list[Part] = []
    for one in found.breakdowns:
        causes += [Heading(_title(one)), _table(_cells(one))]
    changed = [_row(one, _name(one)) for one in found.changes]
    sections = [
        Section("settings", "What was set otherwise", [Table(("", "A", "B"), differ)] if differ else []),
        Section("causes", "What the changes consist of", causes),
        Section("latency", "Submission latency", latency_parts(found)),
        Section("time", "Over time", time_parts(found)),
        Section("figures", "Every figure that changed", [_table(changed, True)]),
    ]
    head = [Note(found.sentence), Note(f"A: {found.before.name}", "muted"), Note(f"B: {found.after.name}", "muted")]
    return render_page("Difference of two results", head, (), sections)


def _table(rows: Sequence[Sequence[str]], tools: bool = False) -> Table:
    return Table(HEADS, [[Cell(text) for text in row] for row in rows], tools=tools)
