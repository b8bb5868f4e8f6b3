"""Totals of runs: counters, cycles by phase, ratios of a comparison, energy and external engines."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyv_npu.config import Config
from pyv_npu.result import SAME_RESULTS, Run, Runs, agrees, checks, submission_of
from pyv_npu.sections import Cell, Details, Facts, Heading, Note, Part, Table, Value, Verdict
from pyv_npu.text import MISSING
from pyv_npu.units import duration, number, quantity

RATIOS = {"t_submit_p50": "t_submit P50", "t_submit_p99": "t_submit P99", "core_busy_p50": "core_busy P50"}
RUN_CYCLES = {"cycles": "whole run"}
RATIOS_PREBUILT = {"t_submit_prebuilt_p50": "t_submit_prebuilt P50"}
"""Texts for runs whose descriptors are all prebuilt in memory, such as those of a model."""
BUSY = {"te_busy": "TE busy", "ve_busy": "VE busy", "dma_busy": "DMA busy"}
COUNTERS = (
    ("commands submitted", "submitted"), ("commands accepted", "accepted"), ("commands completed", "completed"),
    ("commands with errors", "errors"), ("commands rejected", "rejected"), ("queue depth, at most", "queue_depth_max"),
    ("cycles of waiting for barriers", "barrier_wait"), ("DRAM read (bytes)", "dram_bytes_read"),
    ("DRAM written (bytes)", "dram_bytes_written"),
)  # fmt: skip
L2 = (("L2 hits (lines)", "hits"), ("L2 misses (lines)", "misses"), ("L2 write-backs (lines)", "write_backs"),
      ("L2 reads of stale lines", "stale"))  # fmt: skip
PARTS = {"units_pj": "unit", "roles_pj": "role", "area_mm2": "area", "layers_pj": "layer"}
"""Key of the object `energy` of a run -> group of rows."""


def totals(runs: Runs, comparison: Mapping[str, Any] | None) -> list[Part]:
    """Return a column for each run, without figures that no run has and without those of an unused NPU."""
    all_runs = runs.values()
    npus = [run["npu"] or {} for run in all_runs]
    l2 = [npu.get("l2") or {} for npu in npus]
    active = any(npu.get("submitted") or npu.get("completed") for npu in npus)
    compared = any(check["ok"] is not None for run in all_runs for check in checks(run))
    rows: dict[str, list[Value]] = {
        "stopped": [None if run["core"] is None else _stop(run) for run in all_runs],
        "run (core cycles)": [run["cycles"] for run in all_runs],
        "instructions": [run["instret"] for run in all_runs],
        "instructions per cycle": [
            None if run["instret"] is None or not run["cycles"] else run["instret"] / run["cycles"] for run in all_runs
        ],
        **{name: [npu.get(key) for npu in npus] for name, key in (COUNTERS if active else COUNTERS[:1])},
        **{name: [counters.get(key) for counters in l2] for name, key in L2},
        **{f"{name} (%)": [_busy(run, key) for run in all_runs] for key, name in BUSY.items() if active},
        "outputs as the reference": [("yes" if agrees(run) else "NO") if compared else None for run in all_runs],
        "cycles saved per submission by generated code": [
            (submission_of(run) or {}).get("saved_per_command") for run in all_runs
        ],
    }
    cells = [[name, *values] for name, values in rows.items() if any(value is not None for value in values)]
    parts: list[Part] = [Table(["", *runs], cells, figures="{head}.{0}")]
    if comparison is not None:
        parts.append(Facts([*_ratios(comparison["ratio"], comparison.get("phases")),
                            ("same results in both modes", SAME_RESULTS[comparison["same_results"]])]))  # fmt: skip
    return parts


def host(runs: Runs) -> list[Part]:
    """Return the CPU time of the host, for terminals only, as it varies between equal runs."""
    host = next(iter(runs.values())).get("host") or {}
    texts = (("cpu_s", "CPU seconds"), ("mips", "million instructions per CPU second"))
    texts_of_host = [f"{number(host[key])} {text}" for key, text in texts if host.get(key) is not None]
    return [Facts([("host", ", ".join(texts_of_host))])] if texts_of_host else []


def _stop(run: Run) -> str:
    return run["stop_reason"] + ("" if run["exit_code"] is None else f", exit code {run['exit_code']}")


def _busy(run: Run, key: str) -> str | None:
    """Format the utilization of each engine of a kind in per cent."""
    busy, cycles = (run["npu"] or {}).get(key), run["cycles"]
    return " ".join(f"{100 * engine_cycles / cycles:.1f}" for engine_cycles in busy) if busy and cycles else None


def counters(runs: Runs) -> Details:
    """Return every counter of the NPU, and the hash of the events."""
    counted = {mode: run["npu"] or {} for mode, run in runs.items()}
    names = [name for name in next(iter(counted.values())) if name != "error_log"]
    rows: list[list[Value]] = [
        ["events_sha256", *(Cell(run["events_sha256"] or MISSING, kind="hash") for run in runs.values())]
    ]
    rows += [[name, *(_counter(npu_counters.get(name)) for npu_counters in counted.values())] for name in names]
    return Details(f"every counter ({len(rows)})", Table(["", *runs], rows, figures="{head}.npu.{0}"))


def _counter(value: Any) -> Value:
    if isinstance(value, list):
        return " ".join(map(number, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {number(part)}" for name, part in value.items())
    return value if isinstance(value, int | float) else None


def _ratios(ratio: Mapping[str, float | None], phases: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return rows of loose divided by tight: above 1, loose takes longer."""
    rows = []
    for key, text in ratios(ratio).items():
        spread = (
            "" if phases is None else f"; over {len(phases['args']) + 1} phases {spread_text(phases['spread'][key])}"
        )
        rows.append((f"loose / tight, {text}", (MISSING if ratio[key] is None else f"{ratio[key]:.2f}") + spread))
    return rows


def ratios(ratio: Mapping[str, float | None]) -> dict[str, str]:
    """Return the keys of `ratio` that describe the runs, with their texts."""
    has_ratio = any(ratio.get(key) is not None for key in RATIOS)
    prebuilt = any(ratio.get(key) is not None for key in RATIOS_PREBUILT)
    return {**(RATIOS_PREBUILT if prebuilt and not has_ratio else RATIOS), **RUN_CYCLES}


def spread_text(spread: Sequence[float] | None) -> str:
    """Format the lowest and the highest ratio of the phases, and the slower mode."""
    if spread is None:
        return MISSING
    low, high = spread
    way = "loose longer" if low > 1 else "tight longer" if high < 1 else "neither longer in all"
    return f"{low:.2f} to {high:.2f} ({way})"


def cycles(runs: Runs, config: Config, without_firmware: Mapping[str, int | None]) -> list[Part]:
    """Return core cycles and their time; empty if nothing was submitted. `without_firmware`: mode -> cycles of the
    commands."""
    parts = {mode: run.get("cycles_parts") for mode, run in runs.items()}
    if not any(parts.values()):
        return []
    from pyv_npu.verdict import sentences  # firmware that submits nothing has no verdict

    def part(name: str) -> dict[str, int | None]:
        return {mode: None if values is None else values[name] for mode, values in parts.items()}

    def row(name: str, counts: Mapping[str, int | None], depth: int = 0) -> list[Value]:
        times = (Cell(duration(cycle_count, config.npu.clock_hz), value=cycle_count) for cycle_count in counts.values())
        return [Cell(name, kind=f"depth{depth}" if depth else ""), *counts.values(), *times]

    before, work = part("before_submission"), part("work")
    rows = [
        row("whole run: start of the core to exit", {mode: run["cycles"] for mode, run in runs.items()}),
        row("before the first submission", before, 1),
        row("first submission to last completion", work, 1),
    ]
    if any(cycles is not None for cycles in without_firmware.values()):  # 0 if all layers are kernels on the core
        total = {mode: without_firmware.get(mode) for mode in runs}
        kernels = {mode: kernel_cycles(run) for mode, run in runs.items()}
        rows.append(row("the same commands without firmware", total, 2))
        rows += [row("kernels on the core", kernels, 2)] if any(kernels.values()) else []
        rows.append(row("added by submitting them", _sum(_sum(work, total, -1), kernels, -1), 2))
    rows.append(row("after the last completion", part("after_completion"), 1))
    rows.append(row("NPU makespan: cycle 0 to the last completion", _sum(before, work, 1)))
    verdict = [] if any(without_firmware.values()) else sentences(runs, {})
    note = "The phases add up to the whole run. Without firmware: the NPU has all commands in cycle 0."
    table = Table(("", *runs, *(f"{mode}, time" for mode in runs)), rows, figures="{head}.cycles.{0}")
    return [*([Verdict(verdict)] if verdict else []), table, Note(note, "muted")]


def kernel_cycles(run: Run) -> int:
    """Return the core cycles of a run's kernels."""
    return int((run["npu"] or {}).get("core_kernels", {}).get("cycles", 0))


def _sum(first: Mapping[str, int | None], second: Mapping[str, int | None], sign: int) -> dict[str, int | None]:
    """Return first plus or minus second, None if either is unknown."""
    pairs = {mode: (cycles, second.get(mode)) for mode, cycles in first.items()}
    return {mode: None if a is None or b is None else a + sign * b for mode, (a, b) in pairs.items()}


def energy_estimate(runs: Runs) -> list[Part]:
    """Return energy by unit, tensor role and layer, and area; empty if commands are unknown."""
    energies = {mode: run["energy"] for mode, run in runs.items() if run.get("energy")}
    if not energies:
        return []
    from pyv_npu.observe.analysis import energy  # imports NumPy, which most firmware does not need

    parts: list[Part] = []
    for mode, estimate in energies.items():
        parts += [*([Heading(mode)] if len(energies) > 1 else []), Facts(energy.lines(estimate))]
    tables = {mode: energy.tables(estimate) for mode, estimate in energies.items()}
    rows: list[list[Value]] = []
    for key, group in {"totals": "total", **PARTS}.items():
        for name in dict.fromkeys(name for parts_table in tables.values() for name in parts_table[key]):
            values = {mode: parts_table[key].get(name, (0.0, "")) for mode, parts_table in tables.items()}
            cells = (Cell(quantity(*value), f"{mode}.energy.{key}.{name}", value=value[0])
                     for mode, value in values.items())  # fmt: skip
            rows.append([group, Cell(name, kind="text"), *cells])
    text = "Counts of events times a table: an estimate, no measurement. Layers: without leakage, core and descriptors."
    table = Table(("", "part", *energies), rows)
    return [*parts, Note(text, "muted"), Details(f"every unit, role, part and layer ({len(rows)})", table)]


def external_engines(runs: Runs) -> list[Part]:
    """Return the external engines, and the host time of the link; empty below CA_FULL."""
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
