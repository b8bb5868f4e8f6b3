"""What report.html says: the sections of one run or two, with the figures of result.json."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyv_npu.config import Config, Effective
from pyv_npu.config.schema import flatten, keys_of
from pyv_npu.observe.analysis.model import Analysis
from pyv_npu.observe.latency.percentiles import Distribution
from pyv_npu.report import page, tokens
from pyv_npu.report.page import Cell, Details, Gantt, Heading, Note, Pair, Part, Picture, Section, Table, Tile, number
from pyv_npu.report.pictures import CAUSES, TOP, Analyses, Runs, meaning
from pyv_npu.result import agrees, checks
from pyv_npu.tables import COMPARED, FIGURES, OPEN_LOOP, heading, headline, key_heading, notes, ratios

Sweep = Mapping[str, Any]
Pictures = Mapping[str, str]
"""File name -> SVG text."""

TIME_PICTURES = ("utilization.svg", "queue_depth.svg", "te_idle.svg", "barrier_wait.svg", "scratchpad.svg")
BOUNDS = {
    "compute": "engines",
    "dram": "DRAM",
    "noc": "NoC",
    "spm": "scratchpad ports",
    "critical_path": "critical path",
}


def write_page(
    runs: Runs,
    configs: Mapping[str, Config],
    effective: Effective,
    pictures: Pictures,
    gantts: Mapping[str, Any],
    comparison: Mapping[str, Any] | None,
    analyses: Analyses,
    sites: Mapping[str, Sequence[tuple[str, Distribution]]],
) -> str:
    """The document. All by the name of the run; `comparison` has `ratio` and `same_results`, None for one run;
    `sites`: function and source line of call sites, with cycles from start to accepted."""
    run = next(iter(runs.values()))
    subtitle = (
        f"preset {run['preset']}, core {run['core'] or 'none'}, {run['sim_level']}, "
        f"{effective.config.npu.clock_hz / 1e6:g} MHz; times are core cycles"
    )
    sweeps: Sequence[Sweep] = (comparison or {}).get("sweeps", ())
    hint = Note("Wheel: zoom. Drag: move. The pointer shows ticket and cycles.", "muted")
    sections = [
        Section("tokens", "Tokens", _tokens(runs)),
        *_of_model(analyses, pictures),
        Section("latency", "Submission latency", [*_latency(runs), *_drawn(pictures, "latency_cdf.svg")]),
        Section("stages", "Stages and reasons", [*_drawn(pictures, "stages.svg", "reasons.svg"), *_reasons(runs)]),
        Section("sites", "Where the program submits", _sites(sites)),
        Section("sweeps", "Sweeps and break-even", [part for sweep in sweeps for part in _sweep(sweep, pictures)]),
        Section("time", "Over time", [*_drawn(pictures, *TIME_PICTURES), *_banks(runs, pictures)]),
        Section("gantt", "Gantt", [hint, *(Gantt(*item) for item in gantts.items())]),
        Section("runs", "The runs", [_counters(runs)]),
        Section("parameters", "Parameters", [*_differences(configs), _parameters(effective)]),
    ]
    title = f"{run['program']}: {' against '.join(runs)}"
    return page.render(title, [Note(subtitle, "muted"), *_partial(runs)], _tiles(comparison, runs), sections)


def _drawn(pictures: Pictures, *names: str) -> list[Picture]:
    return [Picture(pictures[name]) for name in names if name in pictures]


def _partial(runs: Runs) -> list[Note]:
    """What a reader must know of runs that did not come to their end."""
    return [
        Note(f"{name} did not come to its end ({run['stop_reason']}): its figures are those up to cycle "
             f"{run['cycles']:,}.", "warning")
        for name, run in runs.items()
        if run["stop_reason"] != "exit"
    ]  # fmt: skip


def _tiles(comparison: Mapping[str, Any] | None, runs: Runs) -> list[Tile]:
    tiles = []
    if comparison is not None:
        for key, text in ratios(comparison["ratio"]).items():
            tiles.append(Tile(f"ratio.{key}", number(comparison["ratio"][key]), f"{text}, loose / tight"))
        tiles.append(Tile("same_results", "yes" if comparison["same_results"] else "NO", "same results in both modes"))
    for mode, run in runs.items():
        tiles.append(Tile(f"{mode}.cycles", number(run["cycles"]), f"cycles, {mode}"))
        if any(check["ok"] is not None for check in checks(run)):
            good = "yes" if agrees(run) else "NO"
            tiles.append(Tile(f"{mode}.correct", good, f"outputs as the ONNX reference, {mode}"))
    return tiles


# -- submissions ---------------------------------------------------------------------------------------------------


def _latency(runs: Runs) -> list[Part]:
    rows = []
    for name in (*OPEN_LOOP, *COMPARED):
        for mode, run in runs.items():
            stage = (run["latency"] or {"stages": {}})["stages"].get(name)
            if stage is not None:
                figures = [Cell(number(stage[each]), f"{mode}.{name}.{each}") for each in (*FIGURES, "mean")]
                rows.append([Cell(name), Cell(mode, kind=mode), *figures, Cell(meaning(name), kind="text")])
    heads = ("stage", "mode", "N", "P50", "P95", "P99", "min", "max", "mean", "from, to")
    return [Table(heads, rows), *(Note(note, "muted") for note in notes(runs))] if rows else []


def _sites(sites: Mapping[str, Sequence[tuple[str, Distribution]]]) -> list[Part]:
    rows = []
    for mode, found in sites.items():
        for place, cycles in found:
            figures = (len(cycles), cycles.p50, cycles.values[-1])
            rows.append([Cell(place, kind="text"), Cell(mode, kind=mode), *(Cell(number(each)) for each in figures)])
    return [Table(("function, source line", "mode", "N", "start to accepted, P50", "max"), rows)] if rows else []


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


def _sweep(sweep: Sweep, pictures: Pictures) -> list[Part]:
    columns = [(mode, figure) for figure in sweep["figures"] for mode in ("loose", "tight")]
    rows = [
        [Cell(number(point["value"])),
         *(Cell(number(point[mode][figure]), f"sweep.{sweep['key']}.{point['value']}.{mode}.{figure}")
           for mode, figure in columns)]
        for point in sweep["points"]
    ]  # fmt: skip
    heads = [key_heading(sweep["key"]), *(f"{mode}: {heading(figure)}" for mode, figure in columns)]
    return [Pair(_drawn(pictures, *sweep["pictures"])), Table(heads, rows), *map(Note, sweep["findings"])]


def _tokens(runs: Runs) -> list[Part]:
    rows = [
        [Cell(step.name), Cell(str(step.makes)),
         *(Cell(number(cycles), f"{name}.step.{index}")
           for name, cycles in zip(tokens.timed(runs), step.cycles, strict=True)),
         *([Cell(step.ratio)] if step.cycles[1:] else [])]
        for index, step in enumerate(tokens.steps(runs))
    ]  # fmt: skip
    return [Table(tokens.heads(runs), rows)] if rows else []


# -- the model -----------------------------------------------------------------------------------------------------


def _of_model(analyses: Analyses, pictures: Pictures) -> list[Section]:
    bars = [f"bottlenecks_{name}.svg" for name in analyses]
    top = [_top(name, analysis) for name, analysis in analyses.items() if analysis.bottlenecks]
    bounds = [_bounds(name, analysis) for name, analysis in analyses.items()]
    layers = [part for name, analysis in analyses.items() for part in _layers(name, analysis)]
    return [
        Section("bottlenecks", "Bottlenecks", [*_drawn(pictures, *bars), *top, *bounds]),
        Section("roofline", "Roofline", _drawn(pictures, "roofline.svg")),
        Section("layers", "Layers", layers),
    ]


def _top(name: str, analysis: Analysis) -> Table:
    whole = max(analysis.explanation.makespan, 1)
    rows = [
        [Cell(str(rank), f"{name}.top.{rank}.rank"), Cell(layer, kind="text"), Cell(CAUSES[cause], kind="text"),
         Cell(number(cycles), f"{name}.top.{rank}"), Cell(f"{100 * cycles / whole:.1f} %")]
        for rank, (layer, cause, cycles) in enumerate(analysis.bottlenecks[:TOP], 1)
    ]  # fmt: skip
    return Table((f"top {len(rows)}, {name}", "layer", "cause", "core cycles", "of the makespan"), rows)


def _bounds(name: str, analysis: Analysis) -> Table:
    explained = analysis.explanation
    whole = max(explained.makespan, 1)
    causes = sorted(explained.causes.items(), key=lambda item: -item[1])
    figures = [
        *((f"lower bound: {BOUNDS[bound]}", f"bound.{bound}", cycles) for bound, cycles in explained.bounds.items()),
        *((CAUSES[cause], f"cause.{cause}", cycles) for cause, cycles in causes),
        ("makespan: cycle 0 to the last completion", "makespan", explained.makespan),
    ]
    rows = [
        [Cell(text), Cell(number(cycles), f"{name}.{key}"), Cell(f"{100 * cycles / whole:.1f} %")]
        for text, key, cycles in figures
    ]
    return Table((f"NPU, {name}", "core cycles", "of the makespan"), rows)


def _layers(name: str, analysis: Analysis) -> list[Part]:
    heads = (
        "layer", "operations", "commands", "first cycle", "end", "active cycles", "TE busy", "VE busy", "DMA busy",
        "DRAM bytes read", "written", "MACs", "ops/byte", "ops/cycle", "main cause", "of the makespan",
    )  # fmt: skip
    rows = []
    makespan = max(analysis.explanation.makespan, 1)
    for layer in analysis.layers:
        worst = max(layer.chain, key=lambda cause: layer.chain[cause]) if layer.chain else None
        figures = {
            "commands": layer.commands, "start": layer.start, "end": layer.end, "active": layer.active,
            **{f"{kind}_busy": busy for kind, busy in layer.busy.items()},
            "dram_read": layer.read, "dram_written": layer.written, "macs": layer.macs,
        }  # fmt: skip
        rows.append(
            [Cell(layer.name, kind="text"), Cell(" ".join(layer.operations), kind="text"),
             *(Cell(number(value), f"{name}.layer.{layer.name}.{figure}") for figure, value in figures.items()),
             Cell("-" if layer.intensity is None else f"{layer.intensity:,.2f}"), Cell(f"{layer.rate:,.1f}"),
             Cell("-" if worst is None else CAUSES[worst], kind="text"),
             Cell(f"{100 * sum(layer.chain.values()) / makespan:.1f} %")]
        )  # fmt: skip
    note = "Active: cycles in which an engine worked for the layer. Busy: summed over the engines of a kind."
    return [Heading(name), Table(heads, rows), Note(note, "muted")]


# -- the runs ------------------------------------------------------------------------------------------------------


def _banks(runs: Runs, pictures: Pictures) -> Sequence[Part]:
    maps = _drawn(pictures, *(f"{kind}_{mode}.svg" for kind in ("banks", "conflicts") for mode in runs))
    return maps or [Note("No scratchpad bank was busy in these runs.", "muted")]


def _counters(runs: Runs) -> Table:
    counted = {mode: run["npu"] for mode, run in runs.items() if run["npu"] is not None}
    names = list(next(iter(counted.values()), ()))
    rows = [
        [Cell(name), *(Cell(number(run.get(name)), f"{mode}.{name}") for mode, run in runs.items())]
        for name in ("cycles", "instret", "stop_reason", "exit_code", "events_sha256")
    ]
    rows += [
        [Cell(name), *(Cell(_counter(counted[mode][name]), f"{mode}.npu.{name}") for mode in runs)] for name in names
    ]
    return Table(["", *runs], rows)


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
                 *(Cell(number(c.npu.queue.command_size if c.npu.mode == "loose" else c.npu.queue.size))
                   for c in configs.values())])  # fmt: skip
    return [Note("What differs between the runs:"), Table(["key", *configs], rows)]


def _parameters(effective: Effective) -> Details:
    values, rows = flatten(effective.config), []
    for path, key in keys_of(Config).items():
        origin = effective.origins.get(path) or f"default: {key.rule.get('source', 'preset pyv')}"
        rows.append([Cell(path), Cell(key.show(values[path])), Cell(key.unit, kind="text"),
                     Cell(str(key.rule["meaning"]), kind="text"), Cell(origin, kind="text")])  # fmt: skip
    table = Table(("key", "value", "unit", "meaning", "where it comes from"), rows)
    return Details(f"every parameter with its provenance ({len(rows)})", table)
