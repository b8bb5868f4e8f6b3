"""Sections of a served workload: latencies of users, the server over time, and the page."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyv_npu.config import Effective
from pyv_npu.report.charts import Line, distributions, line_view, link_views
from pyv_npu.report.page import render
from pyv_npu.report.run_page import parameters
from pyv_npu.sections import Cell, Chart, Facts, Note, Part, Section, Table, Tile, Value, Verdict
from pyv_npu.serving.figures import ATTAINMENT, FIGURES, PERCENTILES, preemptions_text
from pyv_npu.serving.server import LedgerRow
from pyv_npu.units import number, quantity, scale_of

if TYPE_CHECKING:
    from pyv_npu.serving.study import ServedWorkload

WINDOWS = 120
"""Maximum number of intervals in charts over time."""
MAX_ROWS = 1000
"""Maximum rows of the table of requests."""
FAR = 3
"""Multiple of the longest time beyond which a limit is not drawn."""
BUSY = 0.9
"""Share of blocks in use from which blocks are named as the limit; our choice."""


def page(run: "ServedWorkload", effective: Effective) -> str:
    """Render the document; `effective`: the configuration with its origins."""
    workload = run.serving.workload
    sections = [
        *serving_sections(run),
        Section("distributions", "Distributions", _distributions(run)),
        Section("time", "Over time", _over_time(run)),
        Section("requests", "Requests", _requests(run)),
        Section("trust", "Step times", _trust(run)),
        Section("parameters", "Machine and parameters", [_server(run), parameters(effective)]),
    ]
    subject = f"{workload.name}: {len(workload.requests):,} requests, {workload.form}"
    head: list[Part] = [Note(subject, "muted"), Verdict(sentences(run))]
    return render(f"{run.serving.shape.name}: serving", head, _tiles(run), sections)


def _server(run: "ServedWorkload") -> Facts:
    """Return model, device and limits of the scheduler."""
    serving, npu = run.serving, run.serving.npu
    return Facts([
        ("model", serving.shape.name),
        ("layers", number(run.layers)),
        ("weights", f"{serving.weight_bits} bits"),
        ("keys and values", serving.kv.name),
        ("engines", f"{npu.clusters * npu.te.count} tensor engines at {run.run.clock_hz / 1e6:,g} MHz"),
        ("DRAM", f"{quantity(npu.dram.size, 'bytes')}, {quantity(npu.dram.rate, 'bytes/s')}"),
        ("scheduler", "host" if serving.core is None else f"firmware, {serving.core.npu.mode}"),
        *((name.replace("_", " "), {True: "yes", False: "no"}[value] if isinstance(value, bool) else number(value))
          for name, value in vars(serving.scheduler).items()),
    ])  # fmt: skip


def serving_sections(run: "ServedWorkload") -> list[Section]:
    """Return the sections of a run for terminal and page: facts, latencies, trials of rates."""
    figures, config, workload = run.figures, run.serving.scheduler, run.serving.workload
    omitted = f", failed calls left out: {workload.omitted:,}" if workload.omitted else ""
    facts = [
        ("requests", f"{figures['requests']:,} of {workload.name}, {figures['refused']:,} refused{omitted}"),
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
    heads = ("time", "mean", *(f"P{percentile}" for percentile in PERCENTILES))
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
    share_text = f"{figures['good_requests']:,} of {figures['requests']:,} meet {limits}"
    return f"{number(figures['goodput'])} requests/s: {share_text}"


def _overload(figures: Mapping[str, Any]) -> str:
    arrive, answered = number(figures["offered_per_second"]), number(figures["requests_per_second"])
    text = f"{arrive} requests/s arrive, {answered} are answered: later ones wait ever longer"
    return f"{text}; a lower rate, or more capacity"


def _limits_of_rate(run: "ServedWorkload") -> str:
    """Describe the highest good rate, and the rate that is too high."""
    overload = min((trial.rate, trial.problem) for trial in run.trials if trial.problem)
    capacity = f"{number(run.capacity)} requests/s with {ATTAINMENT:.0%} within the limits"
    return f"{capacity}; at {number(overload[0])}: {overload[1]}"


def _control(run: "ServedWorkload") -> str:
    control, core = run.run.control, run.serving.core
    mode = "" if core is None else f"{core.npu.mode}: "
    parts = ", ".join(f"{name} {control[name]:,}" for name in ("schedule", "allocate", "submit"))
    tpot = "" if control["tpot_share"] is None else f", {control['tpot_share']:.3%} of TPOT"
    return f"{mode}{control['per_step']:,.0f} cycles a step, {control['share']:.3%} of the time{tpot} ({parts})"


def _checked(run: "ServedWorkload") -> str:
    if run.worst is None:
        return "no step"
    text = f"{len(run.checks)} steps, simulated whole: error at most {run.worst:.2%}"
    return text if run.bend is None else f"{text}; of layers that are not simulated {abs(run.bend):.2%}"


def sentences(run: "ServedWorkload") -> list[str]:
    """Return sentences: whether the limits are met, the bottleneck, and a remedy."""
    figures = run.figures
    good, count = figures["good_requests"], figures["requests"]
    limits = ", ".join(f"{name.upper()} {quantity(value / 1e9, 's')}" for name, value in figures["slo_ns"].items())
    ttft, tpot = (quantity(_seconds(run, name, "p99"), "s") for name in ("ttft", "tpot"))
    tails = f"P99 of TTFT is {ttft}, of TPOT {tpot}"
    text = f"{good:,} of {count:,} requests meet {limits}; {tails}." if limits else f"{tails}; --slo sets limits."
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
    sentences = [text, f"{answered} requests/s are answered{load}; {limit}."]
    if run.capacity is not None:
        sentences.append(f"the capacity within these limits is {number(run.capacity)} requests/s.")
    return sentences


def _tiles(run: "ServedWorkload") -> list[Tile]:
    """Return goodput, TTFT and TPOT at P99, and the load."""
    figures = run.figures
    rate = "goodput" if figures["slo_ns"] else "requests_per_second"
    tiles = [Tile("goodput", number(figures[rate]), f"{rate.split('_')[0]}, requests/s")]
    tiles += [Tile(f"{name}.p99", quantity(_seconds(run, name, "p99"), "s"), f"{name.upper()} P99")
              for name in ("ttft", "tpot")]  # fmt: skip
    offered = figures["offered_per_second"]
    load = f"of {number(offered)} requests/s offered, " if offered is not None else "requests/s, "
    busy = f"{load}{quantity(figures['busy'], 'share')} of the time in steps"
    return [*tiles, Tile("load", number(figures["requests_per_second"]), busy)]


def _seconds(run: "ServedWorkload", name: str, key: str) -> float | None:
    times = run.figures[f"{name}_ns"]
    return times[key] / 1e9 if times else None


class Window(NamedTuple):
    """Interval of a run's time."""

    middle: float
    """Time of the middle, s."""
    running: int
    """Maximum number of running requests over the interval's steps; so for `waiting` and `blocks`."""
    waiting: int
    blocks: int
    tokens: float
    """Tokens per second of the steps that begin in the interval."""
    moved: float
    """Tokens of keys and values read and written, per second."""
    swapped: float
    """Tokens copied to or from swap space, per second."""


def windows(ledger: Sequence[LedgerRow], hz: int) -> list[Window]:
    """Split a run into at most WINDOWS equal intervals; an interval without a step is idle."""
    if not ledger:
        return []
    first, end = ledger[0].start, ledger[-1].end
    count = min(WINDOWS, len(ledger))
    size = max(1, -(-(end - first) // count))
    groups: list[list[LedgerRow]] = [[] for _ in range(count)]
    for row in ledger:
        groups[min(count - 1, (row.start - first) // size)].append(row)
    parts = []
    for at, rows in enumerate(groups):
        tokens = sum(row.tokens for row in rows)
        key_count = sum(count + context for row in rows for _, count, context in row.scheduled)
        swapped = sum(sum(row.swapped_tokens) for row in rows)
        most = (max((getattr(row, name) for row in rows), default=0) for name in ("running", "waiting", "blocks"))
        rates = (amount * hz / size for amount in (tokens, key_count, swapped))
        parts.append(Window((first + at * size + size // 2) / hz, *most, *rates))
    return parts


def _over_time(run: "ServedWorkload") -> list[Part]:
    """Return small multiples over one axis of seconds; series that are always 0 are listed in a sentence."""
    parts, token = windows(run.run.ledger, run.run.clock_hz), run.serving.kv_bytes.token
    blocks = run.serving.scheduler.blocks
    series: tuple[tuple[str, str, Callable[[Window], float]], ...] = (
        ("requests that run", "requests", lambda part: part.running),
        ("requests that wait", "requests", lambda part: part.waiting),
        ("blocks in use", "% of all", lambda part: 100 * part.blocks / blocks),
        ("tokens of prompts and answers", "tokens/s", lambda part: part.tokens),
        ("keys and values moved", "GB/s", lambda part: part.moved * token / 1e9),
        ("copied to swap space and back", "GB/s", lambda part: part.swapped * token / 1e9),
    )
    views: list[Mapping[str, Any]] = []
    idle = []
    for title, unit, value in series:
        curve = Line(run.serving.kv.name, [(part.middle, value(part)) for part in parts])
        if any(y for _, y in curve.points):
            view = line_view([curve], "time (s)", unit, height=140, heading=title, linear=True)
            views.append({**view, "name": f"view{len(views)}"})
        else:
            idle.append(title)
    caption = f"each in {WINDOWS} parts of the time: requests and blocks at most, rates on average"
    charts: list[Part] = [Chart("over_time", "The server over time", caption, link_views(views))] if views else []
    return [*charts, *([Note(f"None at any time: {', '.join(idle)}.", "muted")] if idle else [])]


def _distributions(run: "ServedWorkload") -> list[Part]:
    """Return the cumulative distribution of each latency, with its limit."""
    parts: list[Part] = []
    for name in ("ttft", "tpot", "e2e"):
        seconds = sorted(value / 1e9 for times in run.run.times if (value := getattr(times, name)) is not None)
        scale = scale_of(seconds, "s")
        ordered = [value / scale.factor for value in seconds]
        curve = Line(name.upper(), [(value, 100 * (at + 1) / len(ordered)) for at, value in enumerate(ordered)])
        limit = run.figures["slo_ns"].get(name)
        at = None if limit is None else limit / 1e9 / scale.factor
        is_far = at is not None and at > FAR * max(ordered, default=0)
        caption = "cumulative requests"
        if at is not None:
            caption += f"; the {'limit' if is_far else 'line is the limit'}, {number(at)} {scale.unit}"
            caption += ", is far to the right" if is_far else ""
        x, y = f"{name.upper()} ({scale.unit})", "requests (%)"
        parts.append(distributions(f"cdf_{name}", name.upper(), caption, [curve], x, y, None if is_far else at))
    return parts


def _requests(run: "ServedWorkload") -> list[Part]:
    heads = ("request", "in", "out", "arrival", "TTFT", "TPOT", "E2E", "preemptions")
    units = ("", "tokens", "tokens", "s", "s", "s", "s", "")
    rows = []
    for record, times in zip(run.run.served[:MAX_ROWS], run.run.times, strict=False):
        request, arrival = record.request, record.arrival / run.run.clock_hz
        seconds = [time and time / 1e9 for time in (times.ttft, times.tpot, times.e2e)]
        rows.append([str(request.id), request.input_toks, request.output_toks, arrival, *seconds, record.preemptions])
    more = f" The first {MAX_ROWS:,} are here." if len(run.run.served) > MAX_ROWS else ""
    text = f"All of it is in requests.csv, every step in steps.csv.{more}"
    return [Note(text, "muted"), Table(heads, rows, units)]


def _trust(run: "ServedWorkload") -> list[Part]:
    text = ("The cycles of a step are put together from simulations at CA_HYBRID of its parts. These steps were then "
            "simulated whole (pyv-npu docs serving).")  # fmt: skip
    rows: list[list[Value]] = [[str(check[0]), *check[1:-2], check.simulated, check.estimate, check.error]
                               for check in run.checks]  # fmt: skip
    heads = ("step", "requests", "tokens", "layers simulated", "cycles simulated", "cycles used", "error")
    units = [*[""] * 6, "share"]
    return [Note(text, "muted"), Table(heads, rows, units=units)] if rows else []
