"""Results as text for people, made from the JSON objects of docs/results.md, "JSON". Cycles are core cycles."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyv_npu.config import Config, Effective
from pyv_npu.config.schema import flatten, keys_of
from pyv_npu.result import SAME_RESULTS, SHOWN_ERRORS, Comparison, Result
from pyv_npu.text import MISSING, columns, lines_of, wrapped

Run = Mapping[str, Any]

COMPARED = ("t_submit", "t_submit_prebuilt", "core_busy", "queue_wait", "execute", "notify")
OPEN_LOOP = ("response", "arrival_wait")
"""Lead the table where work arrived by itself (docs/latency.md)."""
MEANING = {
    "response": "arrival to accepted",
    "arrival_wait": "arrival to start",
    "t_submit": "start of npu_submit to accepted",
    "t_submit_prebuilt": "the same, descriptor in memory",
    "core_busy": "start of npu_submit to core free",
    "queue_wait": "accepted to started",
    "execute": "started to done",
    "notify": "done to firmware knows",
}
FIGURES = ("n", "p50", "p95", "p99", "min", "max")
ALL_FIGURES = ("n", "p50", "p95", "p99", "p99_9", "p99_99", "min", "max")
"""Those of the page."""
RATIOS = {"t_submit_p50": "t_submit P50", "t_submit_p99": "t_submit P99", "core_busy_p50": "core_busy P50"}
WHOLE = {"cycles": "whole run"}
RATIOS_PREBUILT = {"t_submit_prebuilt_p50": "t_submit_prebuilt P50"}
"""Where every descriptor lay in memory, as those of a model do."""
TITLES = {
    "t_submit": "T_submit",
    "core_per_command": "Core time of a submission",
    "submit_per_compute": "T_submit / T_comp",
    "response": "Response: arrival to accepted",
    "rejected": "Rejected submissions",
}
SHOWN_FIRINGS = 5
UNITS = {
    "t_submit": "core cycles",
    "core_per_command": "core cycles",
    "submit_per_compute": "ratio",
    "response": "core cycles",
    "rejected": "commands",
}
"""What a sweep shows of each run. t_submit and response are means; core_per_command is the core time in submit
functions over the commands, where overlapping calls count once; submit_per_compute is the sum of t_submit over the busy
cycles of tensor and vector engines."""


def summary(result: Result[Any]) -> str:
    """A run as text: what the core did, then what its workload is about."""
    own = result.detail.text(result)
    if "energy" in result.json:
        from pyv_npu.observe.analysis import energy  # with NumPy, which most firmware does without

        own += f"\n{lines_of('energy and area, an estimate', energy.lines(result.json['energy']))}\n"
    if result.core is None:
        return own
    found = result.core.findings
    alone = {result.name: result.without_firmware}
    return render_run(result.json, result.config, alone) + "".join(
        f"\n{part}" for part in (own, "" if found is None else found.text) if part
    )


def summary_of_both(both: Comparison, config: Config) -> str:
    """A comparison as text; `config`: that of both runs."""
    own = both.loose.detail.compared(both.loose, both.tight)[1]
    alone = dict.fromkeys(both.runs, both.tight.without_firmware)  # a device without firmware has no mode
    return (f"{own}\n" if own else "") + render_compare(both.json, config, alone)


Alone = Mapping[str, int | None]
"""What the commands of a run take without firmware, by mode."""
NONE_ALONE: Alone = {}


def render_run(run: Run, config: Config, alone: Alone = NONE_ALONE) -> str:
    """Summary, stages and reasons of one run."""
    blocks = [_summary(run, config), *_cycles({run["mode"]: run}, alone)]
    blocks += [*([faults(run["faults"])] if "faults" in run else []), parameters(config)]
    if run["latency"] is not None:
        blocks += [_stages({run["mode"]: run}), *_reasons({run["mode"]: run})]
    return "\n\n".join(blocks) + "\n"


def faults(found: Mapping[str, Any]) -> str:
    """What injected faults led to."""
    rows = [("outcome", f"{found['outcome']}: {found['meaning']}")]
    if found["detected_by"]:
        rows.append(("noticed by", ", ".join(found["detected_by"])))
    if found["cycles_lost"] is not None:
        rows.append(("cycles lost", f"{found['cycles_lost']:,} of {found['cycles_without']:,}"))
    for one in found["injected"]:
        rows.append(("fault", f"{one['name']}: {one['fault']}" if one["name"] else one["fault"]))
        fired = one["fired"]
        rows += [("", f"cycle {firing['cycle']:,}: {firing['what']}") for firing in fired[:SHOWN_FIRINGS]]
        if not fired or len(fired) > SHOWN_FIRINGS:
            rows.append(("", f"and {len(fired) - SHOWN_FIRINGS:,} times more" if fired else "it never acted"))
    for entry in found["recovered"]:
        waited = entry["cycle"] - entry["since"]
        rows.append(("driver", f"cycle {entry['cycle']:,}: {entry['text']}, after {waited:,} cycles without progress"))
    if found["recoveries"] > len(found["recovered"]):
        rows.append(("", f"and {found['recoveries'] - len(found['recovered']):,} recoveries more"))
    return lines_of("injected faults, against the run without them", rows)


def render_compare(result: Mapping[str, Any], config: Config, alone: Alone = NONE_ALONE) -> str:
    """Loose and tight side by side."""
    modes = {mode: result[mode] for mode in ("loose", "tight")}
    blocks = [_head(result["loose"], "loose against tight", config), _totals(modes), *_cycles(modes, alone)]
    blocks.append(parameters(config))
    blocks += [lines_of(f"{mode}: engines outside", rows) for mode, run in modes.items() if (rows := outside(run))]
    if any(run["latency"] is not None for run in modes.values()):
        blocks += [_stages(modes), *_reasons(modes)]
    blocks += [_sweep(sweep) for sweep in result.get("sweeps", ())]
    for mode, run in modes.items():
        if "sanitizer" in run:
            count = len(run["sanitizer"]["findings"])
            blocks.append(f"{mode}: sanitizer: {count or 'no'} finding{'s' * (count != 1)}")
    same = SAME_RESULTS[result["same_results"]]
    blocks.append("\n".join([*_ratios(result["ratio"], result.get("phases")), f"same results in both modes: {same}"]))
    return "\n\n".join(blocks) + "\n"


def parameters(config: Config) -> str:
    """The numbers that decide the table, with the preset that they started from."""
    timing, npu = config.core.timing, config.npu
    return lines_of(
        f"parameters: preset {config.preset}, in core cycles",
        [
            ("MMIO", f"write {timing.mmio_write} busy + {timing.mmio_one_way} one way, read {timing.mmio_read}, "
                     f"{timing.posted_depth} posted stores in flight"),
            ("custom", f"request {timing.custom}, response {timing.custom_response}"),
            ("front end", f"fetch {npu.frontend.fetch_loose} loose / {npu.frontend.fetch_tight} tight, "
                          f"validate {npu.frontend.validate}"),
            ("interrupt", f"{timing.irq_fast if config.core.fast_irq else timing.irq} to the handler, "
                          f"+ {timing.plic} through the PLIC; route {config.platform.irq}"),
            ("queue", queues(config)),
        ],
    )  # fmt: skip


def queues(config: Config) -> str:
    """How many commands each mode holds, with a warning where the device holds other numbers of them."""
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
    """Every key that is not at its declared default, with its source."""
    values, keys = flatten(effective.config), keys_of(Config)
    rows = []
    for path, origin in effective.origins.items():
        unit = f" {keys[path].unit}" if keys[path].unit not in ("", "address") else ""
        rows.append((path, f"{keys[path].show(values[path])}{unit} -- {origin}"))
    return lines_of("where the parameters come from (all others are at their defaults, see run.yaml)", rows) + "\n"


def _head(run: Run, mode: str, config: Config) -> str:
    clock = config.npu.clock_hz / 1e6
    return f"{run['program']}: {mode}, core {run['core']}, {run['sim_level']}, {clock:g} MHz"


def _summary(run: Run, config: Config) -> str:
    npu, host = run["npu"], run["host"]
    code = "" if run["exit_code"] is None else f", exit code {run['exit_code']}"
    rows = [
        ("stopped", f"{run['stop_reason']}{code}"),
        ("core", f"{run['cycles']:,} cycles, {run['instret']:,} instructions, {_per_cycle(run)} per cycle"),
        ("NPU", f"{npu['submitted']:,} commands submitted, {npu['accepted']:,} accepted, {npu['completed']:,} "
                f"completed ({npu['errors']:,} with errors), {npu['rejected']:,} rejected"),
        ("", f"queue depth at most {npu['queue_depth_max']:,} commands, waited for barriers "
             f"{npu['barrier_wait']:,} cycles"),
        ("", f"DRAM {npu['dram_bytes_read']:,} bytes read, {npu['dram_bytes_written']:,} bytes written"),
        *_l2(npu),
        *_ticket_errors(run),
        ("busy", ", ".join(_busy(npu, name, run["cycles"]) for name in ("te", "ve", "dma"))),
        *outside(run),
        ("host", f"{host['cpu_s']:.2f} CPU seconds, {host['mips'] or 0:.2f} million instructions per CPU second"),
    ]  # fmt: skip
    return lines_of(_head(run, run["mode"], config), rows)


def outside(run: Run) -> list[tuple[str, str]]:
    """Engines outside, at CA_FULL."""
    made, host = run.get("external"), run["host"]
    if made is None:
        return []
    checked = "checked against the numpy kernels" if made["checked"] else "not checked"
    return [
        (
            "outside",
            f"{made['engines']} x {made['name']}: {made['steps']:,} steps, {made['cycles']:,} cycles, {checked}",
        ),
        ("", f"{host['link_round_trips']:,} round trips of the link, {host['link_seconds']:.2f} seconds"),
    ]


def _cycles(modes: Mapping[str, Run], alone: Alone) -> list[str]:
    """Which figure counts which cycles; nothing where nothing was submitted."""
    if not any(run.get("cycles_parts") for run in modes.values()):
        return []
    from pyv_npu.verdict import cycles_table

    rows = [
        ["  " * line.depth + line.name, *(MISSING if each is None else f"{each:,}" for each in line.cycles.values())]
        for line in cycles_table(modes, {mode: alone.get(mode) for mode in modes})
    ]  # fmt: skip
    return [columns(["cycles", *modes], rows)]


def _ticket_errors(run: Run) -> list[tuple[str, str]]:
    shown = [
        ("error", f"ticket {each['ticket']}: {each['code']}, {each.get('reason') or each['text']}; "
                  f"submitted at {each['submitted_at'] or 'an unknown place'}")
        for each in run.get("ticket_errors", ())
    ]  # fmt: skip
    more = run["npu"]["errors"] - len(shown) if shown else 0
    return [*shown, *([("", f"and {more:,} more")] if more > 0 else [])]


def error_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The first `SHOWN_ERRORS` of a run's `npu.error_log`, a line each, and how many more there are."""
    lines = [
        f"ticket {row['ticket']}, {row['opcode'] or 'no opcode'}, cycle {row['cycle']:,}: {row['reason']}; "
        f"submitted at {row['submitted_at'] or 'an unknown place'}"
        for row in rows[:SHOWN_ERRORS]
    ]
    more = len(rows) - len(lines)
    return [*lines, *([f"and {more:,} more"] if more else [])]


def _l2(npu: Mapping[str, Any]) -> list[tuple[str, str]]:
    l2 = npu.get("l2")
    if l2 is None:
        return []
    return [("L2", f"{l2['hits']:,} lines hit, {l2['misses']:,} missed, {l2['write_backs']:,} written back, "
                   f"{l2['stale']:,} read stale")]  # fmt: skip


def _totals(modes: Mapping[str, Run]) -> str:
    rows = []
    for mode, run in modes.items():
        code = "" if run["exit_code"] is None else f" {run['exit_code']}"
        npu = run["npu"]
        rows.append((mode, f"{run['stop_reason']}{code}, {run['cycles']:,} cycles, {run['instret']:,} instructions; "
                           f"{npu['accepted']:,} commands accepted, {npu['rejected']:,} rejected, "
                           f"{npu['errors']:,} errors, queue depth at most {npu['queue_depth_max']:,}"))  # fmt: skip
    return lines_of("", rows)


def _busy(npu: Mapping[str, Any], name: str, cycles: int) -> str:
    shares = [f"{100 * busy / cycles:.1f}" for busy in npu[f"{name}_busy"]] if cycles else []
    return f"{name.upper()} {' '.join(shares) or MISSING} %"


def _per_cycle(run: Run) -> str:
    return f"{run['instret'] / run['cycles']:.3f}" if run["cycles"] else MISSING


def _stages(modes: Mapping[str, Run]) -> str:
    names = list(COMPARED)
    if any(_stage(run, "response") for run in modes.values()):
        names = [*OPEN_LOOP, *names]
    rows = []
    for name in names:
        stages = [_stage(run, name) for run in modes.values()]
        if any(stages):
            rows.append([name, *(_figure(stage, figure) for stage in stages for figure in FIGURES)])
    heads = ["core cycles", *(figure.upper() if figure[0] == "p" else figure for _ in modes for figure in FIGURES)]
    legend = "; ".join(f"{row[0]}: {MEANING[row[0]]}" for row in rows)
    return "\n".join([columns(heads, rows, tuple(modes)), *wrapped(legend), *notes(modes)])


def _stage(run: Run, name: str) -> Mapping[str, Any]:
    return (run["latency"] or {"stages": {}})["stages"].get(name) or {}


def _figure(stage: Mapping[str, Any], figure: str) -> str:
    value = stage.get(figure)
    return MISSING if value is None else f"{value:,}"


def notes(modes: Mapping[str, Run]) -> list[str]:
    """How many submissions are not in the table, and what its gaps mean."""
    notes = []
    for mode, run in modes.items():
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
    stages = [_stage(run, name) for run in modes.values() for name in COMPARED]
    if any(stage and stage["p99"] is None for stage in stages):
        notes.append("P99 needs at least 100 submissions")
    return notes


def headline(modes: Mapping[str, Run]) -> tuple[str, str]:
    """(stage, key of its reasons) that describe the runs: of descriptors that were written, if there are any."""
    written = any(_stage(run, "t_submit") for run in modes.values())
    return ("t_submit", "reasons") if written else ("t_submit_prebuilt", "reasons_prebuilt")


def ratios(ratio: Mapping[str, float | None]) -> dict[str, str]:
    """Keys of `ratio` that describe the runs, with their texts."""
    written = any(ratio.get(key) is not None for key in RATIOS)
    prebuilt = any(ratio.get(key) is not None for key in RATIOS_PREBUILT)
    return {**(RATIOS_PREBUILT if prebuilt and not written else RATIOS), **WHOLE}


def _reasons(modes: Mapping[str, Run]) -> list[str]:
    """The table of reasons; none where no submission has a beginning that was found."""
    stage, key = headline(modes)
    present = {mode: run for mode, run in modes.items() if _stage(run, stage)}
    if not present:
        return []
    names = list(dict.fromkeys(name for run in present.values() for name in run["latency"][key]))
    sums = {mode: run["latency"][key] for mode, run in present.items()}
    counts = {mode: _stage(run, stage)["n"] for mode, run in present.items()}
    rows = [
        [name, *(f"{sums[mode].get(name, 0) / counts[mode]:,.2f}" for mode in present)]
        for name in names
        if any(sums[mode].get(name) for mode in present)
    ]
    rows.append([stage, *(f"{sum(sums[mode].values()) / counts[mode]:,.2f}" for mode in present)])
    return [columns(["mean core cycles by reason", *present], rows)]


def _sweep(sweep: Mapping[str, Any]) -> str:
    rows = [
        [
            str(point["value"]),
            *(_value(point[mode][figure]) for mode in ("loose", "tight") for figure in sweep["figures"]),
        ]
        for point in sweep["points"]
    ]
    units = [key_unit(sweep["key"]), *(2 * [UNITS[figure] for figure in sweep["figures"]])]
    table = columns([sweep["key"], *(2 * sweep["figures"])], rows, ("loose", "tight"), units)
    return "\n".join([table, *sweep["findings"]])


def _value(value: float | int | None) -> str:
    return MISSING if value is None else f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


def _ratios(ratio: Mapping[str, float | None], phases: Mapping[str, Any] | None) -> list[str]:
    shown = ratios(ratio)
    parts = (f"{text} {MISSING if ratio[key] is None else f'{ratio[key]:.2f}'}" for key, text in shown.items())
    lines = wrapped(f"loose / tight: {', '.join(parts)} (above 1: loose takes longer)")
    if phases is not None:
        parts = (f"{text} {spread_text(phases['spread'][key])}" for key, text in shown.items())
        lines += wrapped(f"over {len(phases['args']) + 1} phases: {', '.join(parts)}")
    return lines


def spread_text(spread: Sequence[float] | None) -> str:
    """Lowest and highest ratio of the phases, and which way they point."""
    if spread is None:
        return MISSING
    low, high = spread
    way = "loose longer" if low > 1 else "tight longer" if high < 1 else "neither longer in all"
    return f"{low:.2f} to {high:.2f} ({way})"


# -- sweeps ------------------------------------------------------------------------------------------------------------


def heading(figure: str) -> str:
    """The figure with its unit, as tables have it."""
    return f"{figure} ({UNITS[figure]})"


def key_unit(key: str) -> str:
    """The unit of a swept key, empty where it has none."""
    return keys_of(Config)[key].unit if key in keys_of(Config) else ""


def key_heading(key: str) -> str:
    """The swept key with its unit."""
    return f"{key} ({key_unit(key)})" if key_unit(key) else key
