"""Sections of a run or of a comparison, from the JSON objects of docs/results.md. Cycles are core cycles."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pyv_npu.config import Config, Effective
from pyv_npu.config.schema import flatten, keys_of
from pyv_npu.result import SAME_RESULTS, SHOWN_ERRORS, Comparison, Result, agrees, checks, submission_of
from pyv_npu.sections import Cell, Details, Facts, Heading, Note, Part, Section, Table, Value, Verdict, as_text
from pyv_npu.text import MISSING, lines_of
from pyv_npu.units import duration, number, quantity

if TYPE_CHECKING:
    from pyv_npu.verdict import Line

Run = Mapping[str, Any]
Runs = Mapping[str, Run]
"""Run objects of the JSON schema, by the name of the run: its mode, without a core its level."""

COMPARED = ("t_submit", "t_submit_prebuilt", "core_busy", "queue_wait", "execute", "notify")
OPEN_LOOP = ("response", "arrival_wait")
"""Lead the table where work arrived by itself (docs/latency.md)."""
MEANING = {
    "response": "arrival to accepted",
    "arrival_wait": "arrival to start",
    "t_submit": "start of npu_submit to accepted",
    "t_submit_prebuilt": "as t_submit, of a descriptor in memory",
    "core_busy": "start of npu_submit to core free",
    "queue_wait": "accepted to started",
    "execute": "started to done",
    "notify": "done to firmware knows",
}
FIGURES = ("n", "p50", "p95", "p99", "p99_9", "p99_99", "min", "max", "mean")
RATIOS = {"t_submit_p50": "t_submit P50", "t_submit_p99": "t_submit P99", "core_busy_p50": "core_busy P50"}
WHOLE = {"cycles": "whole run"}
RATIOS_PREBUILT = {"t_submit_prebuilt_p50": "t_submit_prebuilt P50"}
"""Text for runs whose descriptors all lay in memory, as those of a model do."""
TITLES = {
    "t_submit": "T_submit",
    "core_per_command": "Core time of a submission",
    "submit_per_compute": "T_submit / T_comp",
    "response": "Response: arrival to accepted",
    "rejected": "Rejected submissions",
}
UNITS = {
    "t_submit": "core cycles",
    "core_per_command": "core cycles",
    "submit_per_compute": "ratio",
    "response": "core cycles",
    "rejected": "commands",
}
"""Figures of each run in a sweep. t_submit and response are means; core_per_command is the core time in submit
functions over the commands, where overlapping calls count once; submit_per_compute is the sum of t_submit over the busy
cycles of tensor and vector engines."""
SHOWN_FINDINGS = 10
SHOWN_FIRINGS = 5
BUSY = {"te_busy": "TE busy", "ve_busy": "VE busy", "dma_busy": "DMA busy"}


def run_sections(result: Result[Any]) -> list[Section]:
    """Returns the sections of a run."""
    sections = sections_of({result.name: result.json}, result.config, {result.name: result.without_firmware})
    return _with_details(sections, result.detail.sections(result))


def comparison_sections(both: Comparison, config: Config) -> list[Section]:
    """Returns the sections of a comparison; `config`: that of both runs."""
    alone = dict.fromkeys(both.runs, both.tight.without_firmware)  # a device without firmware has no mode
    runs = {mode: run.json for mode, run in both.runs.items()}
    details = both.loose.detail.compared(both.loose, both.tight)[1]
    return _with_details(sections_of(runs, config, alone, both.json), details)


def summary(result: Result[Any]) -> str:
    """Formats a run for a terminal."""
    return as_text(run_sections(result))


def _with_details(sections: list[Section], details: Sequence[Section]) -> list[Section]:
    """Puts the sections of the workload behind the first."""
    return [*sections[:1], *details, *sections[1:]]


Alone = Mapping[str, int | None]
"""Cycles of the commands of a run without firmware, by mode."""
NONE_ALONE: Alone = {}


def sections_of(
    runs: Runs, config: Config, alone: Alone = NONE_ALONE, comparison: Mapping[str, Any] | None = None
) -> list[Section]:
    """Returns the sections of one run or two; `comparison`: the JSON object of both."""
    sections = [
        Section("run", _head(runs, config), [*_problems(runs, comparison), *_totals(runs, comparison)]),
        Section("host", "", [] if comparison is not None else _host(runs)),
        Section("cycles", "Core cycles by phase", _cycles(runs, config, alone)),
        Section("tokens", "Tokens", _tokens(runs)),
        Section("faults", "Injected faults, against the run without them", _faults(runs)),
        Section("energy", "Energy and area, an estimate", _energy(runs)),
        Section("latency", "Submission latency, core cycles", _stages(runs)),
        Section("stages", "Core cycles of a submission by reason", _reasons(runs)),
        Section("outside", "External engines", _external(runs)),
        Section("errors", "Error tickets", _errors(runs)),
        Section("sanitizer", "Sanitizer", _sanitizer(runs)),
        Section("sweeps", "Sweeps and break-even",
                [part for sweep in (comparison or {}).get("sweeps", ()) for part in _sweep(sweep)]),
    ]  # fmt: skip
    if any(run["core"] is not None for run in runs.values()):
        sections.append(Section("parameters", f"Parameters: preset {config.preset}", [Facts(parameters(config))]))
    return [section for section in sections if section.parts]


def _head(runs: Runs, config: Config) -> str:
    run = next(iter(runs.values()))
    core = "timing only" if run["core"] is None and run["cycles"] is not None else f"core {run['core'] or 'none'}"
    modes = run["mode"] if len(runs) == 1 else " against ".join(runs)
    words = [*([modes] if modes else []), core, run["sim_level"], f"{config.npu.clock_hz / 1e6:g} MHz"]
    return f"{run['program']}: {', '.join(words)}"


def _problems(runs: Runs, comparison: Mapping[str, Any] | None) -> list[Part]:
    """Warnings about runs that were cut and results that are wrong."""
    parts: list[Part] = [
        Note(f"{name} did not come to its end ({run['stop_reason']}): its figures are those up to cycle "
             f"{run['cycles']:,}.", "warning")
        for name, run in runs.items() if run["stop_reason"] != "exit" and run["cycles"] is not None
    ]  # fmt: skip
    parts += [Note(f"{mode}: the outputs differ from the ONNX reference", "warning")
              for mode, run in runs.items() if not agrees(run)]  # fmt: skip
    if comparison is not None and comparison["same_results"] is False:
        parts.append(Note("the modes left different results", "warning"))
    return parts


# -- totals ------------------------------------------------------------------------------------------------------------


class _Total(NamedTuple):
    """A row of the table of totals."""

    name: str
    values: Sequence[Value]


def _totals(runs: Runs, comparison: Mapping[str, Any] | None) -> list[Part]:
    """A column for each run; figures that no run has are left out, and those of an NPU to which nothing was sent."""
    used = any((run["npu"] or {}).get("submitted") or (run["npu"] or {}).get("completed") for run in runs.values())
    rows = [_Total("stopped", [None if run["core"] is None else _stop(run) for run in runs.values()])]
    for name, key in (("cycles", "cycles"), ("instructions", "instret")):
        rows.append(_Total(name, [run[key] for run in runs.values()]))
    rows.append(_Total("instructions per cycle",
                       [None if run["instret"] is None else run["instret"] / run["cycles"] if run["cycles"] else None
                        for run in runs.values()]))  # fmt: skip
    for name, key in COUNTERS if used else COUNTERS[:1]:
        rows.append(_Total(name, [(run["npu"] or {}).get(key) for run in runs.values()]))
    l2 = [(run["npu"] or {}).get("l2") or {} for run in runs.values()]
    for name, key in L2 if any(l2) else ():
        rows.append(_Total(name, [each.get(key) for each in l2]))
    for key, name in BUSY.items() if used else ():
        rows.append(_Total(f"{name} (%)", [_busy(run, key) for run in runs.values()]))
    if any(check["ok"] is not None for run in runs.values() for check in checks(run)):
        rows.append(_Total("outputs as the reference", ["yes" if agrees(run) else "NO" for run in runs.values()]))
    saved = [(submission_of(run) or {}).get("saved_per_command") for run in runs.values()]
    rows.append(_Total("cycles saved per submission by generated code", saved))
    shown = [[row.name, *row.values] for row in rows if any(value is not None for value in row.values)]
    parts: list[Part] = [Table(["", *runs], shown, figures="{head}.{0}")]
    if comparison is not None:
        parts.append(Facts([*_ratios(comparison["ratio"], comparison.get("phases")),
                            ("same results in both modes", SAME_RESULTS[comparison["same_results"]])]))  # fmt: skip
    return parts


def _host(runs: Runs) -> list[Part]:
    """CPU time of the host, which differs from run to run: for terminals only."""
    host = next(iter(runs.values())).get("host") or {}
    texts = (("cpu_s", "CPU seconds"), ("mips", "million instructions per CPU second"))
    shown = [f"{number(host[key])} {text}" for key, text in texts if host.get(key) is not None]
    return [Facts([("host", ", ".join(shown))])] if shown else []


COUNTERS = (
    ("commands submitted", "submitted"), ("commands accepted", "accepted"), ("commands completed", "completed"),
    ("commands with errors", "errors"), ("commands rejected", "rejected"), ("queue depth, at most", "queue_depth_max"),
    ("cycles of waiting for barriers", "barrier_wait"), ("DRAM read (bytes)", "dram_bytes_read"),
    ("DRAM written (bytes)", "dram_bytes_written"),
)  # fmt: skip
L2 = (("L2 hits (lines)", "hits"), ("L2 misses (lines)", "misses"), ("L2 write-backs (lines)", "write_backs"),
      ("L2 reads of stale lines", "stale"))  # fmt: skip


def _stop(run: Run) -> str:
    return run["stop_reason"] + ("" if run["exit_code"] is None else f", exit code {run['exit_code']}")


def _busy(run: Run, key: str) -> str | None:
    """Formats the utilization of each engine of a kind in per cent."""
    busy, cycles = (run["npu"] or {}).get(key), run["cycles"]
    return " ".join(f"{100 * each / cycles:.1f}" for each in busy) if busy and cycles else None


def counters(runs: Runs) -> Details:
    """Returns every counter of the NPU, and the hash of the events."""
    counted = {mode: run["npu"] or {} for mode, run in runs.items()}
    names = [name for name in next(iter(counted.values())) if name != "error_log"]
    rows: list[list[Value]] = [
        ["events_sha256", *(Cell(run["events_sha256"] or MISSING, kind="hash") for run in runs.values())]
    ]
    rows += [[name, *(_counter(each.get(name)) for each in counted.values())] for name in names]
    return Details(f"every counter ({len(rows)})", Table(["", *runs], rows, figures="{head}.npu.{0}"))


def _counter(value: Any) -> Value:
    if isinstance(value, list):
        return " ".join(map(number, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {number(each)}" for name, each in value.items())
    return value if isinstance(value, int | float) else None


def _ratios(ratio: Mapping[str, float | None], phases: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Rows of loose over tight: above 1 loose takes longer."""
    rows = []
    for key, text in ratios(ratio).items():
        spread = (
            "" if phases is None else f"; over {len(phases['args']) + 1} phases {spread_text(phases['spread'][key])}"
        )
        rows.append((f"loose / tight, {text}", (MISSING if ratio[key] is None else f"{ratio[key]:.2f}") + spread))
    return rows


def ratios(ratio: Mapping[str, float | None]) -> dict[str, str]:
    """Returns the keys of `ratio` that describe the runs, with their texts."""
    written = any(ratio.get(key) is not None for key in RATIOS)
    prebuilt = any(ratio.get(key) is not None for key in RATIOS_PREBUILT)
    return {**(RATIOS_PREBUILT if prebuilt and not written else RATIOS), **WHOLE}


def spread_text(spread: Sequence[float] | None) -> str:
    """Formats the lowest and the highest ratio of the phases, and which way they point."""
    if spread is None:
        return MISSING
    low, high = spread
    way = "loose longer" if low > 1 else "tight longer" if high < 1 else "neither longer in all"
    return f"{low:.2f} to {high:.2f} ({way})"


def _cycles(runs: Runs, config: Config, alone: Alone) -> list[Part]:
    """Core cycles and their time; nothing where nothing was submitted."""
    if not any(run.get("cycles_parts") for run in runs.values()):
        return []
    from pyv_npu.verdict import cycles_table, sentences

    lines = cycles_table(runs, {mode: alone.get(mode) for mode in runs})
    said = sentences(runs, {}) if not any(alone.values()) else []
    heads = ("", *runs, *(f"{mode}, time" for mode in runs))
    note = "The phases add up to the whole run. Without firmware: the NPU has all commands in cycle 0."
    table = Table(heads, [_cycles_row(line, runs, config) for line in lines], figures="{head}.cycles.{0}")
    parts: list[Part] = [Verdict(said)] if said else []
    return [*parts, table, Note(note, "muted")] if lines else parts


def _cycles_row(line: "Line", runs: Runs, config: Config) -> list[Value]:
    times = [line.cycles[mode] for mode in runs]
    texts = [Cell(duration(cycles, config.npu.clock_hz), value=cycles) for cycles in times]
    return [Cell(line.name, kind=f"depth{line.depth}" if line.depth else ""), *times, *texts]


PARTS = {"units_pj": "unit", "roles_pj": "role", "area_mm2": "area", "layers_pj": "layer"}
"""Keys of the `energy` object of a run -> groups of rows."""


def _energy(runs: Runs) -> list[Part]:
    """Energy by unit, tensor role and layer, and area; nothing where commands are not known."""
    known = {mode: run["energy"] for mode, run in runs.items() if run.get("energy")}
    if not known:
        return []
    from pyv_npu.observe.analysis import energy  # with NumPy, which most firmware does without

    parts: list[Part] = []
    for mode, each in known.items():
        parts += [*([Heading(mode)] if len(known) > 1 else []), Facts(energy.lines(each))]
    tables = {mode: energy.tables(each) for mode, each in known.items()}
    rows: list[list[Value]] = []
    for key, group in {"totals": "total", **PARTS}.items():
        for name in dict.fromkeys(name for each in tables.values() for name in each[key]):
            values = {mode: each[key].get(name, (0.0, "")) for mode, each in tables.items()}
            cells = (Cell(quantity(*value), f"{mode}.energy.{key}.{name}", value=value[0])
                     for mode, value in values.items())  # fmt: skip
            rows.append([group, Cell(name, kind="text"), *cells])
    text = "Counts of events times a table: an estimate, no measurement. Layers: without leakage, core and descriptors."
    table = Table(("", "part", *known), rows, tools=True)
    return [*parts, Note(text, "muted"), Details(f"every unit, role, part and layer ({len(rows)})", table)]


# -- submissions -------------------------------------------------------------------------------------------------------


def _stage(run: Run, name: str) -> Mapping[str, Any]:
    return (run["latency"] or {"stages": {}})["stages"].get(name) or {}


def stages_of(runs: Runs) -> Iterable[tuple[str, str, Mapping[str, Any]]]:
    """Yields (stage, run, order statistics) of the stages that have samples."""
    for name in (*OPEN_LOOP, *COMPARED):
        for mode, run in runs.items():
            if stage := _stage(run, name):
                yield name, mode, stage


def _stages(runs: Runs) -> list[Part]:
    if all(run["latency"] is None for run in runs.values()):
        return []
    rows: list[list[Value]] = []
    for name, mode, stage in stages_of(runs):
        interval = (stage.get("ci95") or {}).get("p95")
        within = MISSING if interval is None else " to ".join(map(number, interval))
        rows.append([name, mode, *(stage.get(figure) for figure in FIGURES), Cell(within)])
    heads = ("stage", "mode", *FIGURES, "p95 95% CI")
    table = Table(heads, rows, file="stages.csv", figures="{1}.{0}.{head}")
    legend = "; ".join(f"{name}: {MEANING[name]}" for name in dict.fromkeys(str(row[0]) for row in rows))
    parts: list[Part] = [table, Note(legend, "muted")] if rows else []
    return [*parts, *(Note(note, "muted") for note in notes(runs))]


def notes(runs: Runs) -> list[str]:
    """Returns sentences about submissions that are not in the table, and about its gaps."""
    notes = []
    for mode, run in runs.items():
        latency = run["latency"]
        if latency is None:
            notes.append(f"{mode}: nothing was submitted")
            continue
        vanished = latency.get("n_lost", 0)
        lost = f"; {vanished} more were never accepted (soft reset, or an ignored doorbell)" if vanished else ""
        warmup = f", {latency['n_warmup']} left out as warm-up" if latency.get("n_warmup") else ""
        source = {"symbol": "the symbol npu_submit", "first_store": "the first store into the descriptor"}
        notes.append(
            f"{mode}: {latency['n_rejected']} rejected and {latency['n_errors']} with errors are not in the table"
            f"{warmup}{lost}; t0 is found by {source.get(latency['t0_source'], latency['t0_source'])}"
        )
    if any(stage["p99"] is None for _, _, stage in stages_of(runs)):
        notes.append("P99 needs at least 100 submissions")
    return notes


def headline(runs: Runs) -> tuple[str, str]:
    """Returns (stage, key of its reasons) that describe the runs: those of written descriptors, if there are any."""
    written = any(_stage(run, "t_submit") for run in runs.values())
    return ("t_submit", "reasons") if written else ("t_submit_prebuilt", "reasons_prebuilt")


def _reasons(runs: Runs) -> list[Part]:
    """A row for each reason; none where no submission has a beginning."""
    stage, key = headline(runs)
    spent = {mode: run["latency"][key] for mode, run in runs.items() if _stage(run, stage)}
    counts = {mode: _stage(runs[mode], stage)["n"] for mode in spent}
    names = dict.fromkeys(name for cycles in spent.values() for name in cycles)
    rows = [[name, *(cycles.get(name, 0) / counts[mode] for mode, cycles in spent.items()),
             *(cycles.get(name, 0) for cycles in spent.values())]
            for name in names if any(cycles.get(name) for cycles in spent.values())]  # fmt: skip
    heads = ("reason", *(f"{mode}, mean" for mode in spent), *(f"{mode}, cycles" for mode in spent))
    text = f"The reasons add up to {stage}: their mean for a submission, and their cycles summed over submissions."
    return [Table(heads, rows, file="reasons.csv", figures="reasons.{0}.{head}"), Note(text, "muted")] if rows else []


def _tokens(runs: Runs) -> list[Part]:
    """A row for the prompt and each token of a conversation."""
    timed = [name for name, run in runs.items() if run.get("cycles_by_step")]
    rows: list[list[Value]] = []
    for step in token_steps(runs):
        cycles = [step[name] for name in timed]
        rows.append([step["step"], str(step["makes"]), *cycles, *([cycles[0] / cycles[1]] if cycles[1:] else [])])
    heads = ("step", "makes token", *(f"{name} cycles" for name in timed), *([" / ".join(timed)] if timed[1:] else []))
    return [Table(heads, rows, file="tokens.csv", figures="{0}.{head}")] if rows else []


def token_steps(runs: Runs) -> list[dict[str, Any]]:
    """Returns the steps of runs of one conversation: its prompt, and each token behind it, with the cycles of the runs
    that have time."""
    timed = {name: run for name, run in runs.items() if "generate" in run and run.get("cycles_by_step")}
    generated = next((run["generate"] for run in timed.values()), None)
    if generated is None:
        return []
    count = len(generated["prompt"])
    names = [f"prompt of {count}", *(f"token {at}" for at in range(count, len(generated["tokens"]) - 1))]
    cycles = zip(*(run["cycles_by_step"] for run in timed.values()), strict=True)
    return [{"step": name, "makes": makes, **dict(zip(timed, step, strict=True))}
            for name, makes, step in zip(names, generated["tokens"][count:], cycles, strict=True)]  # fmt: skip


def error_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Formats the first `SHOWN_ERRORS` of a run's `npu.error_log`, a line each, and how many more there are."""
    lines = [
        f"ticket {row['ticket']}, {row['opcode'] or 'no opcode'}, cycle {row['cycle']:,}: {row['reason']}; "
        f"submitted at {row['submitted_at'] or 'an unknown place'}"
        for row in rows[:SHOWN_ERRORS]
    ]
    more = len(rows) - len(lines)
    return [*lines, *([f"and {more:,} more"] if more else [])]


def _errors(runs: Runs) -> list[Part]:
    """The first error tickets of each run with their reasons, and how many more there are."""
    rows: list[list[Value]] = []
    parts: list[Part] = []
    for mode, run in runs.items():
        npu = run["npu"] or {}
        log = npu.get("error_log", ())
        rows += [
            [str(row["ticket"]), mode, row["opcode"] or "none", row["cycle"], row["name"], row["reason"],
             row["submitted_at"] or "an unknown place"]
            for row in log[:SHOWN_ERRORS]
        ]  # fmt: skip
        more = max(npu.get("errors", 0), len(log)) - len(log[:SHOWN_ERRORS]) if log else 0
        parts += [Note(f"{mode}: and {more:,} more", "muted")] if more else []
    heads = ("ticket", "mode", "operation", "cycle", "code", "reason", "submitted at")
    return [Table(heads, rows), *parts] if rows else []


def _external(runs: Runs) -> list[Part]:
    """Engines in place of tensor engines, and the host time of the link; nothing below CA_FULL."""
    rows: list[list[Value]] = []
    notes = list[Part]()
    for name, run in runs.items():
        engine, host = run.get("external"), run.get("host") or {}
        if engine is not None:
            checked = "checked against the numpy kernels" if engine["checked"] else "not checked"
            notes.append(Note(f"{name}: external engines, {engine['engines']} x {engine['name']}: "
                              f"{engine['steps']:,} steps, {engine['cycles']:,} cycles, {checked}"))  # fmt: skip
            figures = [engine[key] for key in ("engines", "rows", "columns", "steps", "cycles")]
            rows.append([name, engine["name"], *figures, host["link_round_trips"], host["link_seconds"]])
    heads = ("run", "engine", "engines", "rows", "columns", "steps", "cycles", "round trips", "host seconds")
    note = "Cycles are those of the engine, of all steps. Host seconds are those of waiting for answers of the link."
    return [*notes, Table(heads, rows, figures="{0}.external.{head}"), Note(note, "muted")] if rows else []


def _sanitizer(runs: Runs) -> list[Part]:
    """Findings, each with its sides; a note where a run was checked and has none."""
    parts = list[Part]()
    for name, run in runs.items():
        findings = (run.get("sanitizer") or {}).get("findings", ())
        if "sanitizer" in run:
            parts.append(Note(f"{name}: {findings_headline(run['sanitizer'])}"))
        for at, each in enumerate(findings[:SHOWN_FINDINGS], 1):
            times = f" ({each['count']:,} times)" if each["count"] > 1 else ""
            end = each["address"] + each["bytes"]
            where = f"{each['address']:#010x}..{end:#010x}" + (f" ({each['symbol']})" if each["symbol"] else "")
            facts = [(side["what"], _side(side)) for side in (each["first"], each["second"])]
            facts += [("bytes", where), ("note", each["note"] or ""), ("remedy", each["remedy"])]
            parts += [Heading(f"{at}. {each['rule']}: {each['text']}{times}"),
                      Facts([fact for fact in dict.fromkeys(facts) if fact[1]])]  # fmt: skip
        if len(findings) > SHOWN_FINDINGS:
            parts.append(Note(f"{len(findings) - SHOWN_FINDINGS:,} more in result.json and in --json", "muted"))
    return parts


def findings_headline(sanitizer: Mapping[str, Any]) -> str:
    """Formats the number of findings of each rule."""
    findings, rules = sanitizer["findings"], dict[str, int]()
    for each in findings:
        rules[each["rule"]] = rules.get(each["rule"], 0) + each["count"]
    listed = ", ".join(f"{rule} {count}" for rule, count in rules.items())
    dropped = f"; {sanitizer['dropped']} more not kept" if sanitizer["dropped"] else ""
    count = f"{len(findings)} finding{'s' * (len(findings) != 1)} ({listed})" if findings else "no findings"
    return f"sanitizer: {count}{dropped}"


def _side(side: Mapping[str, Any]) -> str:
    pc = "" if side["pc"] is None else f", pc {side['pc']:#010x}"
    place = f" ({side['place']})" if side["place"] else ""
    ticket = "" if side["ticket"] is None else f", ticket {side['ticket']}"
    caller = f", called from {side['caller']}" if side["caller"] else ""
    return f"cycle {side['cycle']}{pc}{place}{ticket}{caller}"


def _faults(runs: Runs) -> list[Part]:
    """The effect of injected faults, and when they acted."""
    parts: list[Part] = []
    for name, run in runs.items():
        found = run.get("faults")
        if found is None:
            continue
        facts = [("outcome", f"{found['outcome']}: {found['meaning']}")]
        if found["detected_by"]:
            facts.append(("noticed by", ", ".join(found["detected_by"])))
        if found["cycles_lost"] is not None:
            facts.append(("cycles lost", f"{found['cycles_lost']:,} of {found['cycles_without']:,}"))
        rows: list[tuple[int, str, str]] = []
        for each in found["injected"]:
            facts.append(("fault", f"{each['name']}: {each['fault']}" if each["name"] else each["fault"]))
            fired = each["fired"]
            rows += [
                (firing["cycle"], each["name"] or each["fault"], firing["what"]) for firing in fired[:SHOWN_FIRINGS]
            ]
            if len(fired) > SHOWN_FIRINGS or not fired:
                more = f"and {len(fired) - SHOWN_FIRINGS:,} times more" if fired else "it never acted"
                facts.append(("", more))
        for entry in found["recovered"]:
            waited = entry["cycle"] - entry["since"]
            rows.append((entry["cycle"], "driver", f"{entry['text']}, after {waited:,} cycles without progress"))
        if found["recoveries"] > len(found["recovered"]):
            facts.append(("", f"and {found['recoveries'] - len(found['recovered']):,} recoveries more"))
        shown = [(f"{cycle:,}", *words) for cycle, *words in sorted(rows)]
        parts += [Heading(name), Facts(facts), Table(("core cycle", "fault or driver", "event"), shown)]
    return parts


# -- sweeps ------------------------------------------------------------------------------------------------------------


def _sweep(sweep: Mapping[str, Any]) -> list[Part]:
    key, figures = sweep["key"], sweep["figures"]
    rows = [[str(point["value"]), mode, *(point[mode][figure] for figure in figures)]
            for point in sweep["points"] for mode in ("loose", "tight")]  # fmt: skip
    units = ["", "", *(UNITS[figure] for figure in figures)]
    table = Table((key_heading(key), "mode", *figures), rows, units=units, figures=f"sweep.{key}.{{0}}.{{1}}.{{head}}")
    return [Heading(key), table, *map(Note, sweep["findings"])]


def key_unit(key: str) -> str:
    """Returns the unit of a key that is swept, empty where it has none."""
    return keys_of(Config)[key].unit if key in keys_of(Config) else ""


def key_heading(key: str) -> str:
    """Returns a key that is swept with its unit."""
    return f"{key} ({key_unit(key)})" if key_unit(key) else key


# -- parameters --------------------------------------------------------------------------------------------------------


def parameters(config: Config) -> list[tuple[str, str]]:
    """Returns the numbers that decide the latency, in core cycles."""
    timing, npu = config.core.timing, config.npu
    return [
        ("MMIO", f"write {timing.mmio_write} busy + {timing.mmio_one_way} one way, read {timing.mmio_read}, "
                 f"{timing.posted_depth} posted stores in flight"),
        ("custom", f"request {timing.custom}, response {timing.custom_response}"),
        ("front end", f"fetch {npu.frontend.fetch_loose} loose / {npu.frontend.fetch_tight} tight, "
                      f"validate {npu.frontend.validate}"),
        ("interrupt", f"{timing.irq_fast if config.core.fast_irq else timing.irq} to the handler, "
                      f"+ {timing.plic} through the PLIC; route {config.platform.irq}"),
        ("queue", queues(config)),
    ]  # fmt: skip


def queues(config: Config) -> str:
    """Describes how many commands each mode holds, with a warning where the device holds other numbers of them."""
    npu = config.npu
    loose, tight = (replace(npu, mode=mode).device_queue for mode in ("loose", "tight"))
    text = (f"loose: ring of {npu.queue.size:,} commands before {loose:,} in the device; tight: {tight:,} in the "
            f"device; when full: {npu.queue.full_policy}")  # fmt: skip
    if loose == tight:
        return text
    return (
        f"{text}. The device holds more commands in {'loose' if loose > tight else 'tight'} mode: "
        "a comparison of the modes compares storage too"
    )


def provenance(effective: Effective) -> str:
    """Lists every key that is not at its declared default, with its source."""
    values, keys = flatten(effective.config), keys_of(Config)
    rows = []
    for path, origin in effective.origins.items():
        unit = f" {keys[path].unit}" if keys[path].unit not in ("", "address") else ""
        rows.append((path, f"{keys[path].show(values[path])}{unit} -- {origin}"))
    return lines_of("where the parameters come from (all others are at their defaults, see run.yaml)", rows) + "\n"
