"""report.html: one page that works from disk, with the figures of result.json, the pictures and a Gantt chart."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyv_npu.config import Config, Effective
from pyv_npu.config.schema import flatten, keys_of
from pyv_npu.report.html import Cell, data, document, number, paragraph, section, table
from pyv_npu.report.pictures import Runs, meaning
from pyv_npu.studies.sweep_figures import heading, key_heading
from pyv_npu.tables import COMPARED, FIGURES, OPEN_LOOP, headline, notes, ratios
from pyv_npu.workloads.verdicts import passed, verdicts

Sweep = Mapping[str, Any]
TIME_PICTURES = ("utilization.svg", "queue_depth.svg", "te_idle.svg", "barrier_wait.svg", "scratchpad.svg")
Section = tuple[str, str, list[str]]
"""(id, heading, parts)."""


def page(
    runs: Runs,
    configs: Mapping[str, Config],
    effective: Effective,
    pictures: Mapping[str, str],
    gantts: Mapping[str, Any],
    comparison: Mapping[str, Any] | None,
    sweeps: Sequence[Sweep],
    first: Sequence[Section] = (),
) -> str:
    """The document. `runs` and `configs` by the name of the run; `comparison` has `ratio` and `same_results`, None for
    one run; `first`: sections that lead."""
    run = next(iter(runs.values()))
    title = f"{run['program']}: {' against '.join(runs)}"
    subtitle = (
        f"preset {run['preset']}, core {run['core'] or 'none'}, {run['sim_level']}, "
        f"{effective.config.npu.clock_hz / 1e6:g} MHz; times are core cycles"
    )
    parts: list[Section] = [
        *first,
        ("latency", "Submission latency", [_latency(runs), pictures.get("latency_cdf.svg", "")]),
        ("stages", "Stages and reasons",
         [pictures.get("stages.svg", ""), pictures.get("reasons.svg", ""), _reasons(runs)]),
        ("sweeps", "Sweeps and break-even", [_sweep(sweep, pictures) for sweep in sweeps]),
        ("time", "Over time", [*(pictures.get(name, "") for name in TIME_PICTURES), _banks(runs, pictures)]),
        ("gantt", "Gantt", [paragraph("Wheel: zoom. Drag: move. The pointer shows ticket and cycles.", "muted"),
                            *(_gantt(mode, chart) for mode, chart in gantts.items())]),
        ("runs", "The runs", [_counters(runs)]),
        ("parameters", "Parameters", [_differences(configs), _parameters(effective)]),
    ]  # fmt: skip
    shown = [(name, head, [part for part in inner if part]) for name, head, inner in parts]
    shown = [entry for entry in shown if entry[2]]
    links = " ".join(f'<a href="#{name}">{head}</a>' for name, head, _ in shown)
    head = [
        f"<h1>{title}</h1>",
        paragraph(subtitle, "muted"),
        _partial(runs),
        _tiles(comparison, runs),
        f"<nav>{links}</nav>",
    ]
    return document(title, "\n".join(head + [section(name, text, *inner) for name, text, inner in shown]))


def _partial(runs: Runs) -> str:
    """What a reader must know of runs that did not come to their end."""
    texts = [
        f"{name} did not come to its end ({run['stop_reason']}): its figures are those up to cycle {run['cycles']:,}."
        for name, run in runs.items()
        if run["stop_reason"] != "exit"
    ]
    return "".join(paragraph(text, "warning") for text in texts)


def _tiles(comparison: Mapping[str, Any] | None, runs: Runs) -> str:
    tiles = []
    if comparison is not None:
        for key, text in ratios(comparison["ratio"]).items():
            tiles.append((Cell(number(comparison["ratio"][key]), f"ratio.{key}"), f"{text}, loose / tight"))
        tiles.append(
            (Cell("yes" if comparison["same_results"] else "NO", "same_results"), "same results in both modes")
        )
    for mode, run in runs.items():
        tiles.append((Cell(number(run["cycles"]), f"{mode}.cycles"), f"cycles, {mode}"))
        if any(one["ok"] is not None for one in verdicts(run)):
            good = "yes" if passed(run) else "NO"
            tiles.append((Cell(good, f"{mode}.correct"), f"outputs as the ONNX reference, {mode}"))
    inner = (
        f'<div class="tile"><b data-figure="{cell.name}">{cell.text}</b><span>{text}</span></div>'
        for cell, text in tiles
    )
    return f'<div class="tiles">{"".join(inner)}</div>'


def _latency(runs: Runs) -> str:
    rows = []
    for name in (*OPEN_LOOP, *COMPARED):
        for mode, run in runs.items():
            stage = (run["latency"] or {"stages": {}})["stages"].get(name)
            if stage is not None:
                figures = [Cell(number(stage[each]), f"{mode}.{name}.{each}") for each in (*FIGURES, "mean")]
                rows.append([Cell(name), Cell(mode, kind=mode), *figures, Cell(meaning(name), kind="text")])
    heads = ("stage", "mode", "N", "P50", "P95", "P99", "min", "max", "mean", "from, to")
    return table(heads, rows) + "".join(paragraph(note, "muted") for note in notes(runs)) if rows else ""


def _reasons(runs: Runs) -> str:
    stage, key = headline(runs)
    found = {mode: run["latency"][key] for mode, run in runs.items() if run["latency"] is not None}
    names = list(dict.fromkeys(name for reasons in found.values() for name in reasons))
    rows = [
        [Cell(name), *(Cell(number(found[mode][name]), f"{mode}.{key}.{name}") for mode in found)]
        for name in names
        if any(reasons[name] for reasons in found.values())
    ]
    totals = [Cell(number(sum(reasons.values())), f"{mode}.{key}") for mode, reasons in found.items()]
    if not rows:
        return ""
    return table(["cycles by reason, summed over submissions", *found], [*rows, [Cell(stage), *totals]])


def _sweep(sweep: Sweep, pictures: Mapping[str, str]) -> str:
    rows = []
    for point in sweep["points"]:
        cells = [Cell(number(point["value"]))]
        for figure in sweep["figures"]:
            for mode in ("loose", "tight"):
                name = f"sweep.{sweep['key']}.{point['value']}.{mode}.{figure}"
                cells.append(Cell(number(point[mode][figure]), name))
        rows.append(cells)
    heads = [
        key_heading(sweep["key"]),
        *(f"{mode}: {heading(figure)}" for figure in sweep["figures"] for mode in ("loose", "tight")),
    ]
    drawn = (pictures[name] for name in sweep["pictures"] if name in pictures)
    return "\n".join([f'<div class="pair">{"".join(drawn)}</div>', table(heads, rows),
                      *(paragraph(text) for text in sweep["findings"])])  # fmt: skip


def _banks(runs: Runs, pictures: Mapping[str, str]) -> str:
    names = [f"{kind}_{mode}.svg" for kind in ("banks", "conflicts") for mode in runs]
    found = [pictures[name] for name in names if name in pictures]
    return "\n".join(found) if found else paragraph("No scratchpad bank was busy in these runs.", "muted")


def _gantt(mode: str, chart: Any) -> str:
    return (
        f'{data(f"gantt-{mode}", chart)}<div class="gantt" data-run="gantt-{mode}"><div class="bar">'
        f'<b class="{mode}">{mode}</b><button data-do="in">+</button><button data-do="out">&minus;</button>'
        f'<button data-do="all">all</button><output></output></div><canvas></canvas></div>'
    )


def _counters(runs: Runs) -> str:
    counted = {mode: run["npu"] for mode, run in runs.items() if run["npu"] is not None}
    names = list(next(iter(counted.values()), ()))
    rows = [
        [Cell(name), *(Cell(number(run.get(name)), f"{mode}.{name}") for mode, run in runs.items())]
        for name in ("cycles", "instret", "stop_reason", "exit_code", "events_sha256")
    ]
    rows += [
        [Cell(name), *(Cell(_counter(counted[mode][name]), f"{mode}.npu.{name}") for mode in runs)] for name in names
    ]
    return table(["", *runs], rows)


def _differences(configs: Mapping[str, Config]) -> str:
    if len(configs) < 2:
        return ""
    flat = {mode: flatten(config) for mode, config in configs.items()}
    keys = [key for key in keys_of(Config) if len({str(values[key]) for values in flat.values()}) > 1]
    rows = [[Cell(key), *(Cell(str(values[key])) for values in flat.values())] for key in keys]
    rows.append([Cell("custom instructions"),
                 *(Cell(", ".join(config.custom_enabled) or "none") for config in configs.values())])  # fmt: skip
    rows.append([Cell("commands in the device queue"),
                 *(Cell(number(c.npu.queue.command_size if c.npu.mode == "loose" else c.npu.queue.size))
                   for c in configs.values())])  # fmt: skip
    return paragraph("What differs between the runs:") + table(["key", *configs], rows)


def _parameters(effective: Effective) -> str:
    values, rows = flatten(effective.config), []
    for path, key in keys_of(Config).items():
        origin = effective.origins.get(path) or f"default: {key.rule.get('source', 'preset pyv')}"
        rows.append([Cell(path), Cell(key.show(values[path])), Cell(key.unit, kind="text"),
                     Cell(str(key.rule["meaning"]), kind="text"), Cell(origin, kind="text")])  # fmt: skip
    inner = table(("key", "value", "unit", "meaning", "where it comes from"), rows)
    return f"<details><summary>every parameter with its provenance ({len(rows)})</summary>{inner}</details>"


def _counter(value: Any) -> str:
    return " ".join(number(each) for each in value) if isinstance(value, list) else number(value)
