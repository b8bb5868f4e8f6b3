"""The page of one or more served workloads: what users saw, side by side, and what happened over time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyv_npu.report.charts import Line, Range, lines, ranges
from pyv_npu.report.page import Cell, Note, Pair, Part, Picture, Section, Table, Tile, number, render
from pyv_npu.serving.figures import FIGURES, times_of
from pyv_npu.serving.server import LedgerRow

if TYPE_CHECKING:
    from pyv_npu.serving.study import ServedWorkload

COLOURS = ("#1f6fb4", "#c2571a", "#2c8a4b", "#8a4bb0", "#b03a5b", "#5b6770", "#9a7b0f", "#0f8b8d")
MOST_POINTS = 400
"""Of a distribution."""
WINDOWS = 120
"""Parts of the time of a run."""
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
        Section("distributions", "Distributions", _distributions(runs, labels)),
        Section("time", "Over time", _over_time(runs, labels)),
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
    """A row for each figure, a column for each run; where users wait, as a drawing too."""
    rows = [[Cell(text, kind="text"), *cells] for text, cells in _rows(runs, labels)]
    parts: list[Part] = [Table(("figure", *labels), rows)]
    pictures = []
    for name in ("ttft", "tpot", "e2e"):
        bars = []
        for at, (run, label) in enumerate(zip(runs, labels, strict=True)):
            found = run.figures[f"{name}_ns"]
            if found:
                marks = {key.upper(): int(found[key]) // 1000 for key in ("p50", "p90", "p99")}
                bars.append(Range(label, COLOURS[at % len(COLOURS)], marks["P50"], marks["P99"], marks))
        if bars:
            pictures.append(Picture(ranges(name.upper(), "P50, P90 and P99 of all requests", bars, "microseconds")))
    return [*parts, *(Pair(pictures[at : at + 2]) for at in range(0, len(pictures), 2))]


def _rows(runs: "Sequence[ServedWorkload]", labels: Sequence[str]) -> Iterator[tuple[str, list[Cell]]]:
    def cells(key: str, value: Callable[["ServedWorkload"], str]) -> list[Cell]:
        return [Cell(value(run), f"{label}.{key}") for run, label in zip(runs, labels, strict=True)]

    def time(name: str, key: str) -> Callable[["ServedWorkload"], str]:
        def value(run: "ServedWorkload") -> str:
            found = run.figures[f"{name}_ns"]
            return f"{found[key] / 1e6:,.2f}" if found else "-"

        return value

    def goodput(run: "ServedWorkload") -> str:
        found = run.figures["goodput"]
        return "-" if found is None else f"{found:,.4f}"

    yield "tokens/s", cells("throughput", lambda run: f"{run.figures['output_tokens_per_second']:,.2f}")
    yield "goodput (requests/s)", cells("goodput", goodput)
    for name in FIGURES:
        for key in ("mean", "p50", "p99"):
            text = f"{name.upper()} {key if key == 'mean' else key.upper()} (ms)"
            yield text, cells(f"{name}.{key}", time(name, key))
    for text, key in (
        ("preemptions", "preemptions"), ("of these, swapped", "swaps"), ("cycles of swaps", "swap_cycles"),
        ("requests that run, at most", "most_running"), ("blocks in use, at most", "most_blocks"),
    ):  # fmt: skip
        yield text, cells(key, lambda run, key=key: number(run.figures[key]))  # type: ignore[misc]
    if any(run.control is not None for run in runs):
        yield (
            "control, share of TPOT",
            cells("control", lambda run: "-" if run.control is None else f"{run.control:.3%}"),
        )
    yield "blocks there are", cells("blocks", lambda run: number(run.serving.scheduler.blocks))
    yield "keys and values of a token (bytes)", cells("kv_bytes", lambda run: number(run.serving.kv_bytes.token))


class Window(NamedTuple):
    """A part of a run's time."""

    middle: float
    """Seconds."""
    running: int
    """Requests, waiting ones and blocks: the most of its steps."""
    waiting: int
    blocks: int
    tokens: float
    """Per second, of the steps that began in it."""
    moved: float
    """Tokens of keys and values that were read and written, per second."""
    swapped: float
    """Tokens that were copied to swap space or back, per second."""


def windows(ledger: Sequence[LedgerRow], hz: int) -> list[Window]:
    """A run in at most WINDOWS parts of equal time; those without a step are idle."""
    if not ledger:
        return []
    first, end = ledger[0].start, ledger[-1].end
    count = min(WINDOWS, len(ledger))
    size = max(1, -(-(end - first) // count))
    groups: list[list[LedgerRow]] = [[] for _ in range(count)]
    for row in ledger:
        groups[min(count - 1, (row.start - first) // size)].append(row)
    made = []
    for at, rows in enumerate(groups):
        tokens = sum(row.tokens for row in rows)
        moved = sum(count + context for row in rows for _, count, context in row.scheduled)
        swapped = sum(sum(row.swapped_tokens) for row in rows)
        running, waiting, blocks = (max((value(row) for row in rows), default=0) for value in _MOST)
        made.append(
            Window(
                (first + at * size + size // 2) / hz,
                running,
                waiting,
                blocks,
                tokens * hz / size,
                moved * hz / size,
                swapped * hz / size,
            )
        )
    return made


_MOST: tuple[Callable[[LedgerRow], int], ...] = (
    lambda row: row.running,
    lambda row: row.waiting,
    lambda row: row.blocks,
)


def _share_of_blocks(one: Window, run: "ServedWorkload") -> float:
    return 100 * one.blocks / run.serving.scheduler.blocks


def _over_time(runs: "Sequence[ServedWorkload]", labels: Sequence[str]) -> list[Part]:
    pictures: list[Picture] = []
    idle: list[Part] = []
    parts = [windows(run.run.ledger, run.hz) for run in runs]
    most = f"the most in each of {WINDOWS} parts of the time"
    mean = f"mean of each of {WINDOWS} parts of the time"
    series: tuple[tuple[str, str, str, Callable[[Window, ServedWorkload], float]], ...] = (
        ("Requests that run", most, "requests", lambda one, run: one.running),
        ("Requests that wait", most, "requests", lambda one, run: one.waiting),
        ("Blocks in use", most, "% of those there are", _share_of_blocks),
        ("Tokens", f"prompts and answers; {mean}", "tokens/s", lambda one, run: one.tokens),
        ("Keys and values moved", mean, "GB/s", lambda one, run: one.moved * run.serving.kv_bytes.token / 1e9),
        ("Copied to swap space and back", mean, "GB/s",
         lambda one, run: one.swapped * run.serving.kv_bytes.token / 1e9),
    )  # fmt: skip
    for title, caption, unit, value in series:
        curves = [
            Line(label, COLOURS[at % len(COLOURS)], [(one.middle, value(one, run)) for one in parts[at]])
            for at, (run, label) in enumerate(zip(runs, labels, strict=True))
        ]
        if any(y for curve in curves for _, y in curve.points):
            pictures.append(Picture(lines(title, caption, curves, "seconds", unit)))
        else:
            idle.append(Note(f"{title}: none at any time.", "muted"))
    return [*idle, *(Pair(pictures[at : at + 2]) for at in range(0, len(pictures), 2))]


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
            "simulated whole (pyv-npu docs serving).",
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
