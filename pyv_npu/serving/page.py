"""The page of one or more served workloads: what users saw, side by side, and what happened over time."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyv_npu.report.charts import Line, lines
from pyv_npu.report.page import Cell, Note, Pair, Part, Picture, Section, Table, Tile, number, render
from pyv_npu.serving.figures import FIGURES, times_of
from pyv_npu.serving.server import LedgerRow

if TYPE_CHECKING:
    from pyv_npu.serving.study import ServedWorkload

COLOURS = ("#1f6fb4", "#c2571a", "#2c8a4b", "#8a4bb0", "#b03a5b", "#5b6770", "#9a7b0f", "#0f8b8d")
MOST_POINTS = 400
"""Of a curve over time."""
MOST_ROWS = 1000
"""Of the table of requests."""


def page(runs: "Sequence[ServedWorkload]", names: Sequence[str] = (), failed: Mapping[str, str] | None = None) -> str:
    """The document; `names`: what tells the runs apart, `failed`: by name why others did not come about."""
    rows = [[Cell(name, kind="text"), Cell(why, kind="text")] for name, why in (failed or {}).items()]
    refused = Section("failed", "What cannot serve", [Table(("run", "why"), rows)] if rows else [])
    if not runs:
        return render("serving", [Note("nothing could serve the workload", "warning")], [], [refused])
    labels = list(names) or [run.serving.kv.name for run in runs]
    first = runs[0]
    sections = [
        Section("figures", "What users saw", _figures(runs, labels)),
        Section("time", "Over time", _over_time(runs, labels)),
        Section("distributions", "Distributions", _distributions(runs, labels)),
        Section("trust", "Step times", _trust(runs, labels)),
        refused,
    ]
    if len(runs) == 1:
        sections.insert(3, Section("requests", "Requests", _requests(first)))
    workload = first.serving.workload
    head = [Note(f"{workload.name}: {len(workload.requests):,} requests, {workload.form}", "muted")]
    return render(f"{first.serving.shape.name}: serving", head, _tiles(runs, labels), sections)


def _tiles(runs: "Sequence[ServedWorkload]", labels: Sequence[str]) -> list[Tile]:
    best = max(range(len(runs)), key=lambda at: runs[at].figures["output_tokens_per_second"])
    least = min(range(len(runs)), key=lambda at: _p50(runs[at], "ttft"))
    more = (lambda at: f", {labels[at]}") if len(runs) > 1 else (lambda at: "")
    made = runs[best].figures
    return [
        Tile("throughput", f"{made['output_tokens_per_second']:,.1f}", f"tokens per second{more(best)}"),
        Tile("ttft", f"{_p50(runs[least], 'ttft') / 1e6:,.1f}", f"ms TTFT P50{more(least)}"),
        Tile("requests", number(made["requests"]), f"requests, {made['refused']} refused"),
        Tile("steps", number(made["steps"]), f"steps{more(best)}"),
    ]


def _p50(run: "ServedWorkload", name: str) -> float:
    found = run.figures[f"{name}_ns"]
    return float(found["p50"]) if found else 0.0


def _figures(runs: "Sequence[ServedWorkload]", labels: Sequence[str]) -> list[Part]:
    rows = []
    for run, label in zip(runs, labels, strict=True):
        made = run.figures
        cells = [Cell(label, kind="text"), Cell(f"{made['output_tokens_per_second']:,.2f}", f"{label}.throughput"),
                 Cell("-" if made["goodput"] is None else f"{made['goodput']:,.4f}", f"{label}.goodput")]  # fmt: skip
        for name in FIGURES:
            found = made[f"{name}_ns"] or {}
            for key in ("mean", "p50", "p99"):
                text = f"{found[key] / 1e6:,.2f}" if found else "-"
                cells.append(Cell(text, f"{label}.{name}.{key}"))
        cells += [Cell(number(made[key]), f"{label}.{key}") for key in ("preemptions", "most_running", "most_blocks")]
        cells.append(Cell(number(run.serving.scheduler.blocks), f"{label}.blocks"))
        rows.append(cells)
    times = [f"{name.upper()} {key} (ms)" for name in FIGURES for key in ("mean", "P50", "P99")]
    heads = ["run", "tokens/s", "goodput (requests/s)", *times, "preemptions", "most running", "most blocks", "blocks"]
    return [Table(heads, rows, tools=len(rows) > 1)]


_SERIES: tuple[tuple[str, str, Callable[[LedgerRow], float]], ...] = (
    ("Requests that run", "requests", lambda row: row.running),
    ("Requests that wait", "requests", lambda row: row.waiting),
    ("Blocks in use", "blocks", lambda row: row.blocks),
    ("Tokens of a step", "tokens", lambda row: row.tokens),
)


def _over_time(runs: "Sequence[ServedWorkload]", labels: Sequence[str]) -> list[Part]:
    pictures = []
    for title, unit, value in _SERIES:
        curves = []
        for at, (run, label) in enumerate(zip(runs, labels, strict=True)):
            kept = thinned(run.run.ledger)
            points = [(row.start / run.hz, value(row)) for row in kept]
            curves.append(Line(label, COLOURS[at % len(COLOURS)], points))
        caption = f"at the begin of a step; at most {MOST_POINTS} steps of each run are drawn"
        pictures.append(Picture(lines(title, caption, curves, "seconds", unit)))
    bandwidth = []
    for at, (run, label) in enumerate(zip(runs, labels, strict=True)):
        token, points = run.serving.kv_bytes.token, []
        for row in thinned(run.run.ledger):
            moved = sum(tokens + context for _, tokens, context in row.scheduled) * token
            points.append((row.start / run.hz, moved * run.hz / (row.end - row.start) / 1e9))
        bandwidth.append(Line(label, COLOURS[at % len(COLOURS)], points))
    pictures.append(Picture(lines("Keys and values moved", "over the time of a step", bandwidth, "seconds", "GB/s")))
    return [Pair(pictures[at : at + 2]) for at in range(0, len(pictures), 2)]


def thinned(ledger: Sequence[LedgerRow]) -> list[LedgerRow]:
    """At most MOST_POINTS steps, evenly."""
    count = len(ledger)
    if count <= MOST_POINTS:
        return list(ledger)
    return [ledger[at * count // MOST_POINTS] for at in range(MOST_POINTS)]


def _distributions(runs: "Sequence[ServedWorkload]", labels: Sequence[str]) -> list[Part]:
    pictures = []
    for name in ("ttft", "tpot", "e2e"):
        curves = []
        for at, (run, label) in enumerate(zip(runs, labels, strict=True)):
            values = [getattr(times_of(one, run.hz), name) for one in run.run.served]
            ordered = sorted(value / 1e6 for value in values if value is not None)
            step = max(1, len(ordered) // MOST_POINTS)
            points = [(value, 100 * (index + 1) / len(ordered)) for index, value in enumerate(ordered)][::step]
            curves.append(Line(label, COLOURS[at % len(COLOURS)], points))
        pictures.append(Picture(lines(name.upper(), "cumulative requests", curves, "ms", "% of requests")))
    return [Pair(pictures[:2]), Pair(pictures[2:])]


def _requests(run: "ServedWorkload") -> list[Part]:
    heads = ("request", "in", "out", "arrival (ms)", "TTFT (ms)", "TPOT (ms)", "E2E (ms)", "preemptions")
    rows = []
    for one in run.run.served[:MOST_ROWS]:
        times, request = times_of(one, run.hz), one.request
        tpot = "-" if times.tpot is None else f"{times.tpot / 1e6:,.3f}"
        rows.append(
            [Cell(text) for text in (
                number(request.id), number(request.input_toks), number(request.output_toks),
                f"{one.arrival / run.hz * 1e3:,.3f}", f"{times.ttft / 1e6:,.3f}", tpot, f"{times.e2e / 1e6:,.3f}",
                number(one.preemptions),
            )]
        )  # fmt: skip
    more = f" The first {MOST_ROWS:,} are here." if len(run.run.served) > MOST_ROWS else ""
    return [Note(f"All of it is in requests.csv, every step in steps.csv.{more}", "muted"), Table(heads, rows, True)]


def _trust(runs: "Sequence[ServedWorkload]", labels: Sequence[str]) -> list[Part]:
    parts: list[Part] = [
        Note(
            "The cycles of a step are put together from simulations at CA_HYBRID of its parts. These steps were then "
            "simulated whole (docs/serving.md).",
            "muted",
        )
    ]
    rows = [
        [Cell(label, kind="text"), *(Cell(number(value)) for value in one[:-2]), Cell(f"{one.simulated:,}"),
         Cell(f"{one.used:,}"), Cell(f"{one.error:+.2%}")]
        for run, label in zip(runs, labels, strict=True)
        for one in run.checks
    ]  # fmt: skip
    heads = ("run", "step", "requests", "tokens", "layers simulated", "cycles simulated", "cycles used", "error")
    return [*parts, Table(heads, rows)] if rows else []
