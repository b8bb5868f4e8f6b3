"""What report.html says: the sections of one run or two, with the figures of result.json."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyv_npu.config import Config, Effective
from pyv_npu.config.schema import flatten, keys_of
from pyv_npu.observe.analysis import energy
from pyv_npu.observe.latency.percentiles import Distribution
from pyv_npu.report import layers, memory, page, pictures, tokens
from pyv_npu.report.charts import Chart
from pyv_npu.report.page import (
    Cell,
    Details,
    Note,
    OverTime,
    Part,
    Section,
    Table,
    Tile,
    Verdict,
)
from pyv_npu.report.pictures import Analyses, Runs
from pyv_npu.result import SAME_RESULTS, SHOWN_ERRORS, agrees, checks, submission_of
from pyv_npu.tables import (
    ALL_FIGURES,
    COMPARED,
    MEANING,
    OPEN_LOOP,
    heading,
    headline,
    key_heading,
    notes,
)
from pyv_npu.units import duration, number, quantity
from pyv_npu.verdict import cycles_table, key_figures, sentences

Sweep = Mapping[str, Any]


class Drawn(NamedTuple):
    """Charts of what result.json has not."""

    distributions: Sequence[Chart]
    over_time: Sequence[Chart]
    sweeps: Mapping[str, Sequence[Part]]
    """By the key that is swept."""


def write_page(
    runs: Runs,
    configs: Mapping[str, Config],
    effective: Effective,
    drawn: Drawn,
    gantts: Mapping[str, Any],
    comparison: Mapping[str, Any] | None,
    analyses: Analyses,
    sites: Mapping[str, Sequence[tuple[str, Distribution]]],
    alone: Mapping[str, int | None],
) -> str:
    """The document. All by the name of the run; `comparison` has `ratio` and `same_results`, None for one run;
    `sites`: function and source line of call sites, with cycles from start to accepted;
    `alone`: what the commands of a run take without firmware."""
    run = next(iter(runs.values()))
    subtitle = (
        f"preset {run['preset']}, core {run['core'] or 'none'}, {run['sim_level']}, "
        f"{effective.config.npu.clock_hz / 1e6:g} MHz; times are core cycles"
    )
    sweeps: Sequence[Sweep] = (comparison or {}).get("sweeps", ())
    sections = [
        Section("cycles", "Where the cycles lie", _cycles(runs, alone, configs)),
        Section("tokens", "Tokens", _tokens(runs)),
        Section("faults", "Injected faults", _faults(runs)),
        *layers.of_model(analyses, effective.config, run["program"]),
        Section("traffic", "Traffic", memory.traffic(runs, analyses)),
        Section("kv", "Keys and values", memory.keys_and_values(runs)),
        Section("energy", "Energy and area, an estimate", _energy(runs)),
        Section("latency", "Submission latency", [*_latency(runs), *drawn.distributions]),
        Section("stages", "Stages and reasons", [*pictures.stages(runs), *pictures.reasons(runs), *_reasons(runs)]),
        Section("sites", "Where the program submits", _sites(sites)),
        Section("outside", "Engines outside", _outside(runs)),
        Section("errors", "Error tickets", _errors(runs)),
        Section("sanitizer", "Sanitizer", _sanitizer(runs)),
        Section("sweeps", "Sweeps and break-even", [part for sweep in sweeps for part in _sweep(sweep, drawn.sweeps)]),
        Section("time", "Over time", [OverTime(gantts)]),
        Section("series", "Engines, queue and scratchpad", drawn.over_time),
        Section("runs", "The runs", [_counters(runs, comparison)]),
        Section("parameters", "Parameters", [*_differences(configs), parameters(effective)]),
    ]
    title = f"{run['program']}: {' against '.join(runs)}"
    causes = {name: layers.causes(analysis) for name, analysis in analyses.items()}
    said = sentences(runs, causes)
    head: list[Part] = [
        Note(subtitle, "muted"),
        *_partial(runs),
        *_problems(comparison, runs),
        *([Verdict(said)] if said else []),
    ]
    tiles = [Tile(*figure) for figure in key_figures(runs, configs, analyses, comparison)]
    return page.render(title, head, tiles, sections)


def _cycles(runs: Runs, alone: Mapping[str, int | None], configs: Mapping[str, Config]) -> list[Part]:
    """Core cycles, and the time that they take."""
    rows = [
        [Cell(line.name, kind=f"depth{line.depth}" if line.depth else ""),
         *(Cell(number(line.cycles[mode]), f"{mode}.{line.key}") for mode in runs),
         *(Cell(duration(line.cycles[mode], configs[mode].npu.clock_hz), value=line.cycles[mode]) for mode in runs)]
        for line in cycles_table(runs, alone)
    ]  # fmt: skip
    note = "The three parts add up to the whole run. Without firmware: the NPU has all commands in cycle 0."
    heads = ("core cycles", *runs, *(f"{mode}, time" for mode in runs))
    return [Table(heads, rows), Note(note, "muted")] if rows else []


def _partial(runs: Runs) -> list[Note]:
    """What a reader must know of runs that did not come to their end."""
    return [
        Note(f"{name} did not come to its end ({run['stop_reason']}): its figures are those up to cycle "
             f"{run['cycles']:,}.", "warning")
        for name, run in runs.items()
        if run["stop_reason"] != "exit"
    ]  # fmt: skip


def _problems(comparison: Mapping[str, Any] | None, runs: Runs) -> list[Note]:
    """Results that are not as they should be."""
    wrong = [Note(f"{mode}: the outputs differ from the ONNX reference", "warning")
             for mode, run in runs.items() if not agrees(run)]  # fmt: skip
    if comparison is not None and comparison["same_results"] is False:
        wrong.append(Note("the modes left different results", "warning"))
    return wrong


ENERGY = (("total", "totals"), ("unit", "units_pj"), ("role", "roles_pj"), ("area", "area_mm2"), ("layer", "layers_pj"))
"""Groups of rows about energy, and the keys of their figures."""


def _energy(runs: Runs) -> list[Part]:
    """Energy by unit, tensor role and layer, and area; nothing where commands are not known."""
    found = {mode: energy.tables(run["energy"]) for mode, run in runs.items() if run.get("energy")}
    if not found:
        return []
    rows: dict[str, list[list[Cell]]] = {}
    for group, key in ENERGY:
        names = dict.fromkeys(name for tables in found.values() for name in tables[key])
        for name in names:
            values = {mode: tables[key].get(name, (0.0, "")) for mode, tables in found.items()}
            cells = [Cell(quantity(*value), f"{mode}.energy.{key}.{name}", value=value[0])
                     for mode, value in values.items()]  # fmt: skip
            rows.setdefault("layer" if group == "layer" else "", []).append(
                [Cell(group, kind="text"), Cell(name, kind="text"), *cells]
            )
    first = next(run["energy"] for run in runs.values() if run.get("energy"))
    note = (f"Counts of events times the table {first['table']} ({first['technology']}): an estimate, no measurement. "
            "Layers: without leakage, core and descriptors.")  # fmt: skip
    heads = ("", "part", *found)
    layers = Details(f"every layer ({len(rows['layer'])})", Table(heads, rows["layer"], tools=True))
    return [Table(heads, rows[""]), Note(note, "muted"), layers]


# -- submissions ---------------------------------------------------------------------------------------------------


def _latency(runs: Runs) -> list[Part]:
    rows = []
    for name in (*OPEN_LOOP, *COMPARED):
        for mode, run in runs.items():
            stage = (run["latency"] or {"stages": {}})["stages"].get(name)
            if stage is not None:
                figures = [Cell(number(stage[each]), f"{mode}.{name}.{each}") for each in ALL_FIGURES]
                figures.append(Cell(page.mean(stage["mean"]), f"{mode}.{name}.mean"))
                interval = stage["ci95"]["p95"]
                figures.append(Cell("-" if interval is None else " to ".join(map(number, interval))))
                rows.append([Cell(name), Cell(mode, kind=mode), *figures, Cell(MEANING[name], kind="text")])
    tails = ("P50", "P95", "P99", "P99.9", "P99.99")
    heads = ("stage", "mode", "N", *tails, "min", "max", "mean", "P95 within", "from, to")
    return [Table(heads, rows), *(Note(note, "muted") for note in notes(runs))] if rows else []


def _sites(sites: Mapping[str, Sequence[tuple[str, Distribution]]]) -> list[Part]:
    rows = []
    for mode, found in sites.items():
        for place, cycles in found:
            figures = (len(cycles), cycles.p50, cycles.max)
            rows.append([Cell(place, kind="text"), Cell(mode, kind=mode), *(Cell(number(each)) for each in figures)])
    return [Table(("function, source line", "mode", "N", "start to accepted, P50", "max"), rows)] if rows else []


def _errors(runs: Runs) -> list[Part]:
    """The first error tickets of each run with their reasons, and how many more there are."""
    parts: list[Part] = []
    for mode, run in runs.items():
        log = (run["npu"] or {}).get("error_log", ())
        rows = [
            [Cell(str(row["ticket"])), Cell(mode, kind=mode), Cell(row["opcode"] or "none", kind="text"),
             Cell(number(row["cycle"])), Cell(row["name"], kind="text"), Cell(row["reason"], kind="text"),
             Cell(row["submitted_at"] or "an unknown place", kind="text")]
            for row in log[:SHOWN_ERRORS]
        ]  # fmt: skip
        if rows:
            parts.append(Table(("ticket", "mode", "operation", "cycle", "code", "reason", "submitted at"), rows))
        if len(log) > len(rows):
            parts.append(Note(f"{mode}: and {len(log) - len(rows):,} more", "muted"))
    return parts


def _outside(runs: Runs) -> list[Part]:
    """What ran in place of tensor engines, and the host time of the link; nothing below CA_FULL."""
    rows = []
    for name, run in runs.items():
        made, host = run.get("external"), run["host"]
        if made is not None:
            cells = ("engines", "rows", "columns", "steps", "cycles")
            rows.append([
                Cell(name, kind="text"), Cell(made["name"], kind="text"),
                *(Cell(number(made[key]), f"{name}.external.{key}") for key in cells),
                Cell("yes" if made["checked"] else "no", kind="text"),
                Cell(number(host["link_round_trips"])), Cell(f"{host['link_seconds']:.2f}"),
            ])  # fmt: skip
    heads = ("run", "engine", "engines", "rows", "columns", "steps", "cycles", "checked", "round trips", "host seconds")
    note = "Cycles are the engine's own, of all steps. Host seconds are those of waiting for answers of the link."
    return [Table(heads, rows), Note(note, "muted")] if rows else []


def _sanitizer(runs: Runs) -> list[Part]:
    """Findings, each with its sides; a note where a run was looked at and nothing was found."""
    rows, parts = [], list[Part]()
    for name, run in runs.items():
        if "sanitizer" not in run:
            continue
        found = run["sanitizer"]["findings"]
        if not found:
            parts.append(Note(f"{name}: no findings", "muted"))
        for each in found:
            sides = (each["first"], each["second"])
            words = [f"{side['what']}, cycle {side['cycle']:,}: {side['place'] or 'the device'}" for side in sides]
            cells = (each["rule"], name, *words, f"{each['address']:#010x}", each["symbol"] or "", each["remedy"])
            rows.append([*(Cell(text, kind="text") for text in cells), Cell(number(each["count"]))])
    heads = ("rule", "run", "first", "second", "address", "variable", "remedy", "times")
    return [*parts, *([Table(heads, rows)] if rows else [])]


def _reasons(runs: Runs) -> list[Part]:
    stage, key = headline(runs)
    reasons = {mode: run["latency"][key] for mode, run in runs.items() if run["latency"] is not None}
    names = list(dict.fromkeys(name for cycles in reasons.values() for name in cycles))
    rows = [
        [Cell(name), *(Cell(number(reasons[mode][name]), f"{mode}.{key}.{name}") for mode in reasons)]
        for name in names
        if any(cycles[name] for cycles in reasons.values())
    ]
    totals = [Cell(number(sum(cycles.values())), f"{mode}.{key}") for mode, cycles in reasons.items()]
    heads = ["cycles by reason, summed over submissions", *reasons]
    return [Table(heads, [*rows, [Cell(stage), *totals]])] if rows else []


def _sweep(sweep: Sweep, charts: Mapping[str, Sequence[Part]]) -> list[Part]:
    columns = [(mode, figure) for figure in sweep["figures"] for mode in ("loose", "tight")]
    rows = [
        [Cell(number(point["value"])),
         *(Cell(number(point[mode][figure]), f"sweep.{sweep['key']}.{point['value']}.{mode}.{figure}")
           for mode, figure in columns)]
        for point in sweep["points"]
    ]  # fmt: skip
    heads = [key_heading(sweep["key"]), *(f"{mode}: {heading(figure)}" for mode, figure in columns)]
    return [*charts[sweep["key"]], Table(heads, rows), *map(Note, sweep["findings"])]


def _tokens(runs: Runs) -> list[Part]:
    rows = [
        [Cell(step.name), Cell(str(step.makes)),
         *(Cell(number(cycles), f"{name}.step.{index}")
           for name, cycles in zip(tokens.timed(runs), step.cycles, strict=True)),
         *([Cell(step.ratio)] if step.cycles[1:] else [])]
        for index, step in enumerate(tokens.steps(runs))
    ]  # fmt: skip
    return [Table(tokens.heads(runs), rows)] if rows else []


# -- the runs ------------------------------------------------------------------------------------------------------


def _faults(runs: Runs) -> list[Part]:
    """What acted, and what it led to."""
    parts: list[Part] = []
    for name, run in runs.items():
        found = run.get("faults")
        if found is None:
            continue
        parts.append(Note(f"{name}: {found['outcome']}, {found['meaning']}"))
        acted = [
            (firing["cycle"], one["name"] or one["fault"], firing["what"])
            for one in found["injected"]
            for firing in one["fired"]
        ]
        noticed = [(entry["cycle"], "driver", entry["text"]) for entry in found["recovered"]]
        rows = [
            [Cell(f"{cycle:,}"), Cell(who, kind="text"), Cell(what, kind="text")]
            for cycle, who, what in sorted([*acted, *noticed])
        ]
        parts.append(Table(["core cycle", "fault or driver", "what"], rows))
    return parts


HASH = {"events_sha256": "hash"}
"""Rows of letters without end, which may break anywhere."""


def _counters(runs: Runs, comparison: Mapping[str, Any] | None) -> Table:
    counted = {mode: run["npu"] for mode, run in runs.items() if run["npu"] is not None}
    names = list(next(iter(counted.values()), ()))
    rows = [
        [Cell(name), *(Cell(number(run.get(name)), f"{mode}.{name}", HASH.get(name, "")) for mode, run in runs.items())]
        for name in ("cycles", "instret", "stop_reason", "exit_code", "events_sha256")
    ]
    if any(check["ok"] is not None for run in runs.values() for check in checks(run)):
        right = [Cell("yes" if agrees(run) else "NO", f"{mode}.correct") for mode, run in runs.items()]
        rows.append([Cell("outputs as the ONNX reference"), *right])
    if comparison is not None:
        same = SAME_RESULTS[comparison["same_results"]]
        rows.append([Cell("same results in both modes"), Cell(same, "same_results"), *[Cell("")] * (len(runs) - 1)])
    if any(submission_of(run) for run in runs.values()):
        spent = {mode: submission_of(run) for mode, run in runs.items()}
        cells = [
            Cell(f"{each['saved_per_command']:.1f}" if each else "", f"{mode}.saved") for mode, each in spent.items()
        ]
        rows.append([Cell("core cycles saved per submission by generated code"), *cells])
    for name in ("te_busy", "ve_busy", "dma_busy") if counted else ():
        busy = {mode: _busy(counted[mode][name], runs[mode]["cycles"]) for mode in runs}
        rows.append(
            [Cell(f"{name}, % of the run"), *(Cell(text, f"{mode}.{name}.share") for mode, text in busy.items())]
        )
    rows += [
        [Cell(name), *(Cell(_counter(counted[mode][name]), f"{mode}.npu.{name}") for mode in runs)] for name in names
    ]
    return Table(["", *runs], rows)


def _busy(cycles: Sequence[int], whole: int | None) -> str:
    """Utilization of each engine."""
    return " ".join(quantity(each / whole, "share") for each in cycles) if whole else ""


def _counter(value: Any) -> str:
    return " ".join(number(each) for each in value) if isinstance(value, list) else number(value)


def _differences(configs: Mapping[str, Config]) -> list[Part]:
    if len(configs) < 2:
        return []
    flat = {mode: flatten(config) for mode, config in configs.items()}
    keys = [key for key in keys_of(Config) if len({str(values[key]) for values in flat.values()}) > 1]
    rows = [[Cell(key), *(Cell(str(values[key])) for values in flat.values())] for key in keys]
    rows.append([Cell("custom instructions"),
                 *(Cell(", ".join(config.custom_enabled) or "none") for config in configs.values())])  # fmt: skip
    rows.append([Cell("commands in the device queue"),
                 *(Cell(number(c.npu.device_queue))
                   for c in configs.values())])  # fmt: skip
    return [Note("What differs between the runs:"), Table(["key", *configs], rows)]


def parameters(effective: Effective) -> Details:
    """Every key with its value, unit, meaning and origin."""
    values, rows = flatten(effective.config), []
    for path, key in keys_of(Config).items():
        origin = effective.origins.get(path) or f"default: {key.rule.get('source', 'preset pyv')}"
        rows.append([Cell(path), Cell(key.show(values[path])), Cell(key.unit, kind="text"),
                     Cell(str(key.rule["meaning"]), kind="text"), Cell(origin, kind="text")])  # fmt: skip
    table = Table(("key", "value", "unit", "meaning", "where it comes from"), rows)
    return Details(f"every parameter with its provenance ({len(rows)})", table)
