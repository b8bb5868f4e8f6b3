"""Latency of submissions: stages, placement of the device, reasons, sweeps, parameters; cycles of tokens."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pyv_npu.config import Config
from pyv_npu.config.schema import keys_of
from pyv_npu.result import Runs, headline, stage_of
from pyv_npu.sections import Cell, Note, Part, Table, Value
from pyv_npu.text import MISSING
from pyv_npu.units import number

COMPARED = ("t_submit", "t_submit_prebuilt", "core_busy", "queue_wait", "execute", "notify")
OPEN_LOOP = ("response", "arrival_wait")
"""First stages of the table for an open-loop load (docs/latency.md)."""
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


def stages_of(runs: Runs) -> Iterable[tuple[str, str, Mapping[str, Any]]]:
    """Yield (stage, run, order statistics) of the stages with samples."""
    for name in (*OPEN_LOOP, *COMPARED):
        for mode, run in runs.items():
            if stage := stage_of(run, name):
                yield name, mode, stage


def stages(runs: Runs) -> list[Part]:
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
    """Return sentences about submissions outside the table, and about its empty cells."""
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


def placement(placed: Mapping[str, Any]) -> list[Part]:
    """Return a row for the preset and for each distance that is equal in both modes."""
    rows: list[list[Value]] = []
    names = {"preset": "as the preset", "near": "near: loose as tight", "far": "far: tight as loose"}
    for key, name in names.items():
        row = placed[key]
        distance = [row.get(part) for part in ("there", "back", "fetch")]
        rows.append([name, *distance, row["loose"], row["tight"], row["loose"] - row["tight"]])
    heads = ("device", "way there", "way back", "fetch", "loose p50", "tight p50", "loose - tight")
    preset, near, far = (f"{row['loose'] - row['tight']:,}" for row in (placed[key] for key in names))
    text = f"Of {preset} cycles of difference {near} remain with both near, {far} with both far; the rest is placement."
    return [Table(heads, rows, file="placement.csv", figures="placement.{0}.{head}"), Note(text, "muted")]


REASONS = {"t_submit": "reasons", "t_submit_prebuilt": "reasons_prebuilt"}
"""Stage -> key of its reasons."""


def reasons(runs: Runs) -> list[Part]:
    """Return a row for each reason; empty if no submission has a start."""
    stage = headline(runs)
    key = REASONS[stage]
    spent = {mode: run["latency"][key] for mode, run in runs.items() if stage_of(run, stage)}
    counts = {mode: stage_of(runs[mode], stage)["n"] for mode in spent}
    names = dict.fromkeys(name for cycles in spent.values() for name in cycles)
    rows = [[name, *(cycles.get(name, 0) / counts[mode] for mode, cycles in spent.items()),
             *(cycles.get(name, 0) for cycles in spent.values())]
            for name in names if any(cycles.get(name) for cycles in spent.values())]  # fmt: skip
    heads = ("reason", *(f"{mode}, mean" for mode in spent), *(f"{mode}, cycles" for mode in spent))
    text = f"The reasons add up to {stage}: their mean for a submission, and their cycles summed over submissions."
    return [Table(heads, rows, file="reasons.csv", figures="reasons.{0}.{head}"), Note(text, "muted")] if rows else []


def sweep_parts(sweep: Mapping[str, Any]) -> list[Part]:
    """Return the table of a sweep, a row for each value and mode, and its findings."""
    key, figures = sweep["key"], sweep["figures"]
    rows = [[str(point["value"]), mode, *(point[mode][figure] for figure in figures)]
            for point in sweep["points"] for mode in ("loose", "tight")]  # fmt: skip
    units = ["", "", *map(sweep["units"].get, figures)]
    table = Table((key_heading(key), "mode", *figures), rows, units=units, figures=f"sweep.{key}.{{0}}.{{1}}.{{head}}")
    return [table, *map(Note, sweep["findings"])]


def key_unit(key: str) -> str:
    """Return the unit of a swept key, empty without a unit."""
    return keys_of(Config)[key].unit if key in keys_of(Config) else ""


def key_heading(key: str) -> str:
    """Return a swept key with its unit."""
    return f"{key} ({key_unit(key)})" if key_unit(key) else key


def latency_parameters(config: Config) -> list[tuple[str, str]]:
    """Return the parameters that determine the latency, in core cycles."""
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
    """Describe the capacity of the queues in each mode, with a warning if the device queues differ."""
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


def tokens(runs: Runs) -> list[Part]:
    """Return a row for the prompt and each token of a conversation."""
    timed = [name for name, run in runs.items() if run.get("cycles_by_step")]
    rows: list[list[Value]] = []
    for step in token_steps(runs):
        cycles = [step[name] for name in timed]
        rows.append([step["step"], str(step["makes"]), *cycles, *([cycles[0] / cycles[1]] if cycles[1:] else [])])
    heads = ("step", "makes token", *(f"{name} cycles" for name in timed), *([" / ".join(timed)] if timed[1:] else []))
    return [Table(heads, rows, file="tokens.csv", figures="{0}.{head}")] if rows else []


def token_steps(runs: Runs) -> list[dict[str, Any]]:
    """Return the steps of runs of one conversation: its prompt and each token after it, with the cycles of the runs
    with time."""
    timed = {name: run for name, run in runs.items() if "generate" in run and run.get("cycles_by_step")}
    generated = next((run["generate"] for run in timed.values()), None)
    if generated is None:
        return []
    count = len(generated["prompt"])
    names = [f"prompt of {count}", *(f"token {at}" for at in range(count, len(generated["tokens"]) - 1))]
    cycles = zip(*(run["cycles_by_step"] for run in timed.values()), strict=True)
    return [{"step": name, "makes": makes, **dict(zip(timed, step, strict=True))}
            for name, makes, step in zip(names, generated["tokens"][count:], cycles, strict=True)]  # fmt: skip
