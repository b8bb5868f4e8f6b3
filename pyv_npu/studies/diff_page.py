"""Sections of the difference of two results, for a terminal and a page, with charts: latency distributions, and units
on one time axis.

The data of the charts comes from the folders of the results: latency_cdf.csv, and the timelines of the pages.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyv_native.files import MAX_DATA, check_input
from pyv_npu.errors import BadInputError
from pyv_npu.report.charts import Line, distributions
from pyv_npu.report.page import render as render_page
from pyv_npu.report.vega import gantts_of
from pyv_npu.sections import Cell, Note, OverTime, Part, Section, Table, Value, Verdict, as_text
from pyv_npu.studies.diff import Difference, FigureChange, LoadedResult
from pyv_npu.text import MISSING
from pyv_npu.units import number

PAGE, CDF = "report.html", "latency_cdf.csv"
SIDES = "AB"
MAX_CHARTS = 8
MARKS = (("min", 0.0), ("p50", 50.0), ("p95", 95.0), ("p99", 99.0), ("max", 100.0))
LATEST = 2**62
"""Largest valid number of cycles."""

Steps = list[tuple[int, int]]
"""(cycles, number of submissions that take at most that), ascending."""


def cumulative(path: Path) -> dict[str, dict[str, Steps]]:
    """Read the distributions of a latency_cdf.csv, by run and stage. BadInputError, one line."""
    table: dict[str, dict[str, Steps]] = {}
    try:
        check_input(path, MAX_DATA)
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                steps = table.setdefault(row["mode"], {}).setdefault(row["stage"], [])
                step = _cycle(row["cycles"]), _cycle(row["submissions_at_most"])
                if steps and not (step[0] > steps[-1][0] and step[1] > steps[-1][1]):
                    raise ValueError(f"{row['stage']} does not ascend at {step[0]}")
                steps.append(step)
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise _wrong(path, error) from None
    return table


def _cycle(text: str | None) -> int:
    if text is None:
        raise ValueError("a line has no number there")
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= LATEST):
        raise ValueError(f"{text[:40]!r} is no whole number from 0 on")
    return int(text)


def _wrong(path: Path, error: Exception) -> BadInputError:
    reason = error.strerror if isinstance(error, OSError) else error
    reason = f"has no column {error}" if isinstance(error, KeyError) else reason
    reason = "is no text" if isinstance(error, UnicodeError) else reason
    return BadInputError(f"{path}: {reason}; make the report again, or name its result.json for a diff without charts")


def _entry_of_run(table: Mapping[str, Any], name: str) -> Any:
    """Return the entry of a run; in a result of one run, the first entry, which is named after its mode."""
    return table.get(name) if name else next(iter(table.values()), None)


def latency_parts(difference: Difference) -> list[Part]:
    """Draw a chart for each run and stage in both results."""
    parts: list[Part] = []
    tables = [_table(loaded) for loaded in (difference.before, difference.after)]
    for name in difference.common:
        stages = [_curves(loaded, table, name)
                for loaded, table in zip((difference.before, difference.after), tables, strict=True)]  # fmt: skip
        for stage in stages[0]:
            if stage in stages[1]:
                end = max(curves[stage][1][-1][0] for curves in stages)  # all submissions of the slower run
                lines = [
                    Line(f"{side} ({curves[stage][0]})", [*curves[stage][1], (end, 100.0)], side)
                    for side, curves in zip(SIDES, stages, strict=True)
                ]
                caption = f"{name}: {stage}" if name else stage
                parts.append(distributions(f"latency_{name}_{stage}", "Cumulative submissions", caption, lines))
    more = [Note(f"{len(parts) - MAX_CHARTS:,} more are not drawn", "muted")] if len(parts) > MAX_CHARTS else []
    return [*parts[:MAX_CHARTS], *more]


def _table(loaded: LoadedResult) -> dict[str, dict[str, Steps]]:
    path = None if loaded.folder is None else loaded.folder / CDF
    return cumulative(path) if path is not None and path.exists() else {}


def _curves(
    loaded: LoadedResult, table: Mapping[str, Mapping[str, Steps]], name: str
) -> dict[str, tuple[str, Sequence[tuple[float, float]]]]:
    """Return distributions by stage: number of submissions, and (cycles, per cent of submissions that take at most
    that). A result without a folder has only the percentiles of its JSON object."""
    steps: Mapping[str, Steps] | None = _entry_of_run(table, name)
    if steps is not None:
        return {
            stage: (f"n = {of[-1][1]:,}", [(cycles, 100 * rank / of[-1][1]) for cycles, rank in of])
            for stage, of in steps.items() if of[-1][1]
        }  # fmt: skip
    stages = (loaded.runs[name].get("latency") or {}).get("stages") or {}
    return {
        stage: (f"n = {points['n']:,}, percentiles only",
                [(points[key], share) for key, share in MARKS if points[key] is not None])
        for stage, points in stages.items() if points and all(key in points for key, _ in MARKS)
    }  # fmt: skip


def time_parts(difference: Difference) -> list[Part]:
    """Show the timelines of the common runs on one axis, A above B."""
    charts: dict[str, Any] = {}
    pages = [_gantts(loaded) for loaded in (difference.before, difference.after)]
    for name in difference.common:
        for side, gantts in zip(SIDES, pages, strict=True):
            chart = _entry_of_run(gantts, name)
            if chart is not None:
                charts[f"{side} {name}".strip()] = chart
    words = "A and B have one time axis. A command that is chosen in one is chosen in all, by its ticket."
    return [Note(words, "muted"), OverTime(charts)] if charts else []


def _gantts(loaded: LoadedResult) -> dict[str, Any]:
    path = None if loaded.folder is None else loaded.folder / PAGE
    if path is None or not path.exists():
        return {}
    try:
        check_input(path, MAX_DATA)
        return gantts_of(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _wrong(path, error) from None


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
