"""Sections of one or more served workloads: figures of their users, the server over time, and the page."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyv_npu.config import Effective
from pyv_npu.report.charts import Line, Range, distributions, line_view, link_views, ranges
from pyv_npu.report.page import render
from pyv_npu.report.run_page import parameters
from pyv_npu.sections import Cell, Chart, Facts, Note, Part, Section, Table, Tile, Value, Verdict
from pyv_npu.serving.figures import FIGURES, PERCENTILES, preemptions_text, times_of
from pyv_npu.serving.server import LedgerRow
from pyv_npu.units import number, quantity, scale_of

if TYPE_CHECKING:
    from pyv_npu.serving.study import ServedWorkload

WINDOWS = 120
"""Parts of the time of a run."""
MAX_ROWS = 1000
"""Rows of the table of requests."""
FAR = 3
"""Times of the longest time beyond which a limit is not drawn."""
BUSY = 0.9
"""Share of the time in steps, or of the blocks in use, from which it is called the limit. Chosen by us."""


def page(
    runs: "Sequence[ServedWorkload]", names: Sequence[str] = (), failed: Mapping[str, str] | None = None,
    effective: Effective | None = None,
) -> str:  # fmt: skip
    """The document; `names`: what tells the runs apart, `failed`: by name why others did not come about, `effective`:
    the configuration that all have."""
    rows = list((failed or {}).items())
    refused = Section("failed", "Points that cannot serve", [Table(("run", "reason"), rows)] if rows else [])
    if not runs:
        return render("serving", [Note("nothing could serve the workload", "warning")], [], [refused])
    labels = list(names) or [run.serving.kv.name for run in runs]
    first = runs[0]
    sections = [
        *(serving_sections(first) if len(runs) == 1 else [Section("figures", "Figures", _figures(runs, labels))]),
        Section("distributions", "Distributions", _distributions(runs, labels)),
        Section("time", "Over time", _over_time(runs, labels)),
        Section("trust", "Step times", _trust(runs, labels)),
        refused,
        Section(
            "parameters",
            "Machine and parameters",
            [_server(runs, labels), *([] if effective is None else [parameters(effective)])],
        ),
    ]
    if len(runs) == 1:
        sections.insert(-3, Section("requests", "Requests", _requests(first)))
    workload = first.serving.workload
    said = [text for run, label in zip(runs, labels, strict=True)
            for text in sentences(run, label if len(runs) > 1 else "")]  # fmt: skip
    about = f"{workload.name}: {len(workload.requests):,} requests, {workload.form}"
    head: list[Part] = [Note(about, "muted"), Verdict(said)]
    return render(f"{first.serving.shape.name}: serving", head, _tiles(runs, labels), sections)


def _server(runs: "Sequence[ServedWorkload]", labels: Sequence[str]) -> Table:
    """Model, device and limits of the scheduler: a column for each run."""

    def row(name: str, value: Callable[["ServedWorkload"], str]) -> list[Cell]:
        return [Cell(name, kind="text"), *(Cell(value(run)) for run in runs)]

    rows = [
        row("model", lambda run: f"{run.serving.shape.name}, {run.layers} layers"),
        row("bits of weights", lambda run: str(run.serving.weight_bits)),
        row("keys and values", lambda run: run.serving.kv.name),
        row("clock", lambda run: f"{run.hz / 1e6:,g} MHz"),
        row("tensor engines", lambda run: str(run.serving.npu.clusters * run.serving.npu.te.count)),
        row("DRAM", lambda run: quantity(run.serving.npu.dram.size, "bytes")),
        row("DRAM bandwidth", lambda run: quantity(run.serving.npu.dram.rate, "bytes/s")),
        row("scheduler", lambda run: "host" if run.serving.core is None else f"firmware, {run.serving.core.npu.mode}"),
    ]
    for field in type(runs[0].serving.scheduler).__dataclass_fields__:
        rows.append(row(field, lambda run, field=field: str(getattr(run.serving.scheduler, field))))  # type: ignore[misc]
    return Table(("", *labels), rows)


def serving_sections(run: "ServedWorkload") -> list[Section]:
    """Returns the sections of a run for terminal and page: facts, times of its users, rates that were tried."""
    figures, config, workload = run.figures, run.serving.scheduler, run.serving.workload
    facts = [
        ("requests", f"{figures['requests']:,} of {workload.name}, {figures['refused']:,} refused"),
        ("tokens", f"{figures['input_tokens']:,} in, {figures['output_tokens']:,} out"),
        ("time", f"{quantity(figures['seconds'], 's')}, {quantity(figures['busy'], 'share')} of it in steps"),
        ("throughput", f"{number(figures['output_tokens_per_second'])} tokens/s, "
         f"{number(figures['requests_per_second'])} requests/s"),
        ("goodput", _goodput(figures)),
        *([("warning", _overload(figures))] if figures["overload"] else []),
        *([("capacity", _limits_of_rate(run))] if run.trials else []),
        ("steps", f"{figures['steps']:,} of {figures['tokens_per_step']:,.1f} tokens; at most "
         f"{figures['most_running']:,} requests run, {figures['most_waiting']:,} wait"),
        ("blocks", f"{figures['most_blocks']:,} of {config.blocks:,} in use at most, of {config.block_size} tokens"),
        ("preemptions", preemptions_text(figures)),
        *([("firmware", _control(run))] if run.run.control else []),
        *([("prefix cache", f"{figures['reused_tokens']:,} tokens were found")] if figures["reused_tokens"] else []),
        ("step times", f"from {run.simulated} simulations of parts and steps, linear between them"),
        ("checked", _checked(run)),
    ]  # fmt: skip
    heads = ("time", "mean", *(f"P{each}" for each in PERCENTILES))
    rows: list[list[Value]] = [
        [name.upper(), *(Cell(quantity(value / 1e9, "s"), value=value / 1e9) for value in times.values())]
        for name in FIGURES if (times := figures[f"{name}_ns"])
    ]  # fmt: skip
    users = Table(heads, rows)
    title = f"{run.serving.shape.name} serves, CA_HYBRID: KV {run.serving.kv.name}, {config.policy}"
    heads = ("offered", "within the limits", "goodput", "TTFT P99", "TPOT P99", "problem")
    trials = [[trial.rate, trial.attainment, trial.goodput,
               *(time and time / 1e9 for time in (trial.ttft_p99_ns, trial.tpot_p99_ns)), trial.problem or "none"]
              for trial in run.trials]  # fmt: skip
    units = ("requests/s", "share", "requests/s", "s", "s", "")
    return [
        Section("figures", title, [Facts(facts), users]),
        Section("capacity", "Rates that were tried", [Table(heads, trials, units=units)] if trials else []),
    ]


def _goodput(figures: Mapping[str, Any]) -> str:
    if figures["goodput"] is None:
        return "no limits: --slo ttft=2s,tpot=100ms"
    limits = ", ".join(f"{name} {quantity(limit / 1e9, 's')}" for name, limit in figures["slo_ns"].items())
    good = f"{figures['good_requests']:,} of {figures['requests']:,} meet {limits}"
    return f"{number(figures['goodput'])} requests/s: {good}"


def _overload(figures: Mapping[str, Any]) -> str:
    arrive, answered = number(figures["offered_per_second"]), number(figures["requests_per_second"])
    text = f"{arrive} requests/s arrive, {answered} are answered: later ones wait ever longer"
    return f"{text}; a lower rate, or more capacity"


def _limits_of_rate(run: "ServedWorkload") -> str:
    """Describes the highest good rate, and the rate that is too high."""
    beyond = min((trial.rate, trial.problem) for trial in run.trials if trial.problem)
    capacity = f"{number(run.capacity)} requests/s with {run.attainment:.0%} within the limits"
    return f"{capacity}; at {number(beyond[0])}: {beyond[1]}"


def _control(run: "ServedWorkload") -> str:
    spent, core = run.run.control, run.serving.core
    mode = "" if core is None else f"{core.npu.mode}: "
    parts = ", ".join(f"{name} {spent[name]:,}" for name in ("schedule", "allocate", "submit"))
    tpot = "" if spent["tpot_share"] is None else f", {spent['tpot_share']:.3%} of TPOT"
    return f"{mode}{spent['per_step']:,.0f} cycles a step, {spent['share']:.3%} of the time{tpot} ({parts})"


def _checked(run: "ServedWorkload") -> str:
    if run.worst is None:
        return "no step"
    text = f"{len(run.checks)} steps, simulated whole: error at most {run.worst:.2%}"
    return text if run.bend is None else f"{text}; of layers that are not simulated {abs(run.bend):.2%}"


def sentences(run: "ServedWorkload", label: str = "") -> list[str]:
    """Returns whether the limits are met, what limits the server, and what to change."""
    figures, of = run.figures, f"{label}: " if label else ""
    good, count = figures["good_requests"], figures["requests"]
    limits = ", ".join(f"{name.upper()} {quantity(value / 1e9, 's')}" for name, value in figures["slo_ns"].items())
    ttft, tpot = (quantity(_ns(run, name, "p99"), "s") for name in ("ttft", "tpot"))
    seen = f"P99 of TTFT is {ttft}, of TPOT {tpot}"
    met = f"{good:,} of {count:,} requests meet {limits}; {seen}." if limits else f"{seen}; --slo sets limits."
    offered, answered = figures["offered_per_second"], number(figures["requests_per_second"])
    load = "" if offered is None else f" of {number(offered)} offered"
    blocks = figures["most_blocks"] / run.serving.scheduler.blocks
    if figures["preemptions"] or blocks >= BUSY:
        limit = f"blocks of keys and values limit it ({quantity(blocks, 'share')} in use, {figures['preemptions']:,} "
        limit += "preemptions): more DRAM or narrower keys and values (--kv) first"
    elif figures["overload"]:
        limit = "the load exceeds the capacity: fewer requests per second, or a faster device"
    else:
        waiting = figures["most_waiting"]
        limit = f"up to {waiting:,} of them wait at a time" if waiting else "none of them waits for another"
        if offered is not None and run.capacity is None:
            limit += "; --find-rate says how many it could answer"
    sentences = [f"{of}{met}", f"{of}{answered} requests/s are answered{load}; {limit}."]
    if run.capacity is not None:
        sentences.append(f"{of}the capacity within these limits is {number(run.capacity)} requests/s.")
    return sentences


def _tiles(runs: "Sequence[ServedWorkload]", labels: Sequence[str]) -> list[Tile]:
    """Goodput, TTFT and TPOT at P99, and the load, of the best run in each."""

    def best(value: Callable[["ServedWorkload"], float]) -> tuple["ServedWorkload", str]:
        at = min(range(len(runs)), key=lambda index: value(runs[index]))
        return runs[at], f", {labels[at]}" if len(runs) > 1 else ""

    rate = "goodput" if runs[0].figures["slo_ns"] else "requests_per_second"
    most, of_most = best(lambda run: -(run.figures[rate] or 0))
    tiles = [Tile("goodput", number(most.figures[rate]), f"{rate.split('_')[0]}, requests/s{of_most}")]
    for name in ("ttft", "tpot"):
        run, of = best(lambda run, name=name: _ns(run, name, "p99") or 1e18)  # type: ignore[misc]
        tiles.append(Tile(f"{name}.p99", quantity(_ns(run, name, "p99"), "s"), f"{name.upper()} P99{of}"))
    figures = most.figures
    offered = figures["offered_per_second"]
    load = f"of {number(offered)} requests/s offered, " if offered is not None else "requests/s, "
    tiles.append(Tile("load", number(figures["requests_per_second"]),
                      f"{load}{quantity(figures['busy'], 'share')} of the time in steps{of_most}"))  # fmt: skip
    return tiles


def _ns(run: "ServedWorkload", name: str, key: str) -> float | None:
    """A figure of a time, in seconds."""
    found = run.figures[f"{name}_ns"]
    return found[key] / 1e9 if found else None


def _figures(runs: "Sequence[ServedWorkload]", labels: Sequence[str]) -> list[Part]:
    """A row for each figure, a column for each run; where there are several, what users wait for as charts too."""
    rows = [[Cell(text, kind="text"), *cells] for text, cells in _rows(runs, labels)]
    parts: list[Part] = [Table(("figure", *labels), rows)]
    for name in ("ttft", "tpot", "e2e") if len(runs) > 1 else ():
        marks = {label: {key.upper(): _ns(run, name, key) or 0.0 for key in ("p50", "p90", "p99")}
                 for run, label in zip(runs, labels, strict=True) if run.figures[f"{name}_ns"]}  # fmt: skip
        if marks:
            scale = scale_of([mark["P99"] for mark in marks.values()], "s")
            bars = []
            for label, mark in marks.items():
                scaled = {key: value / scale.factor for key, value in mark.items()}
                bars.append(Range(label, label, scaled["P50"], scaled["P99"], scaled))
            parts.append(
                ranges(name, name.upper(), "P50, P90 and P99 of all requests", bars, f"{name.upper()} ({scale.unit})")
            )
    return parts


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
    """Small multiples over one axis of seconds; what never happens is a sentence."""
    parts = [windows(run.run.ledger, run.hz) for run in runs]
    series: tuple[tuple[str, str, Callable[[Window, ServedWorkload], float]], ...] = (
        ("requests that run", "requests", lambda one, run: one.running),
        ("requests that wait", "requests", lambda one, run: one.waiting),
        ("blocks in use", "% of all", _share_of_blocks),
        ("tokens of prompts and answers", "tokens/s", lambda one, run: one.tokens),
        ("keys and values moved", "GB/s", lambda one, run: one.moved * run.serving.kv_bytes.token / 1e9),
        ("copied to swap space and back", "GB/s", lambda one, run: one.swapped * run.serving.kv_bytes.token / 1e9),
    )
    views: list[Mapping[str, Any]] = []
    idle = []
    for title, unit, value in series:
        curves = [
            Line(label, [(one.middle, value(one, run)) for one in windows_of])
            for windows_of, run, label in zip(parts, runs, labels, strict=True)
        ]
        if any(y for curve in curves for _, y in curve.points):
            view = line_view(curves, "time (s)", unit, height=140, heading=title)
            views.append({**view, "name": f"view{len(views)}"})
        else:
            idle.append(title)
    caption = f"each in {WINDOWS} parts of the time: requests and blocks at most, rates on average"
    found: list[Part] = [Chart("over_time", "The server over time", caption, link_views(views))] if views else []
    return [*found, *([Note(f"None at any time: {', '.join(idle)}.", "muted")] if idle else [])]


def _distributions(runs: "Sequence[ServedWorkload]", labels: Sequence[str]) -> list[Part]:
    """Cumulative requests over each time, with its limit."""
    parts: list[Part] = []
    for name in ("ttft", "tpot", "e2e"):
        seen = [[value / 1e9 for one in run.run.served
                 if (value := getattr(times_of(one, run.hz), name)) is not None] for run in runs]  # fmt: skip
        scale = scale_of([value for values in seen for value in values], "s")
        curves = []
        for values, label in zip(seen, labels, strict=True):
            ordered = sorted(value / scale.factor for value in values)
            points: list[tuple[float | str, float]] = [
                (value, 100 * (at + 1) / len(ordered)) for at, value in enumerate(ordered)
            ]
            curves.append(Line(label, points))
        limit = runs[0].figures["slo_ns"].get(name)
        at = None if limit is None else limit / 1e9 / scale.factor
        longest = max((point[0] for curve in curves for point in curve.points[-1:]), default=0)
        far = at is not None and at > FAR * float(longest)
        caption = "cumulative requests"
        if at is not None:
            caption += f"; the {'limit' if far else 'line is the limit'}, {number(at)} {scale.unit}"
            caption += ", is far to the right" if far else ""
        x, y = f"{name.upper()} ({scale.unit})", "requests (%)"
        parts.append(distributions(f"cdf_{name}", name.upper(), caption, curves, x, y, None if far else at))
    return parts


def _requests(run: "ServedWorkload") -> list[Part]:
    heads = ("request", "in", "out", "arrival", "TTFT", "TPOT", "E2E", "preemptions")
    units = ("", "tokens", "tokens", "s", "s", "s", "s", "")
    rows = []
    for each in run.run.served[:MAX_ROWS]:
        times, request = times_of(each, run.hz), each.request
        seconds = [time and time / 1e9 for time in (times.ttft, times.tpot, times.e2e)]
        rows.append([str(request.id), request.input_toks, request.output_toks, each.arrival / run.hz, *seconds,
                     each.preemptions])  # fmt: skip
    more = f" The first {MAX_ROWS:,} are here." if len(run.run.served) > MAX_ROWS else ""
    text = f"All of it is in requests.csv, every step in steps.csv.{more}"
    return [Note(text, "muted"), Table(heads, rows, True, units)]


def _trust(runs: "Sequence[ServedWorkload]", labels: Sequence[str]) -> list[Part]:
    text = ("The cycles of a step are put together from simulations at CA_HYBRID of its parts. These steps were then "
            "simulated whole (pyv-npu docs serving).")  # fmt: skip
    rows: list[list[Value]] = [[label, *each[:-2], each.simulated, each.used, each.error]
                               for run, label in zip(runs, labels, strict=True) for each in run.checks]  # fmt: skip
    heads = ("run", "step", "requests", "tokens", "layers simulated", "cycles simulated", "cycles used", "error")
    units = [*[""] * 7, "share"]
    return [Note(text, "muted"), Table(heads, rows, units=units)] if rows else []
