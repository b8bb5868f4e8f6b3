"""report.html of one run or two: sections with charts, layers, call sites, timelines and parameters."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyv_npu.config import Config, Effective
from pyv_npu.config.schema import flatten, keys_of
from pyv_npu.observe.analysis.model import Analysis
from pyv_npu.report import layers, memory, page, pictures
from pyv_npu.result import Result
from pyv_npu.run_sections.totals import counters
from pyv_npu.sections import Details, Note, OverTime, Part, Section, Table, Tile, Value, Verdict
from pyv_npu.verdict import key_figures, sentences

MAX_PLACES = 20
"""Maximum number of a run's call sites on the page."""

Results = Sequence[Result[Any]]
"""One run or two."""


def extended(
    sections: Sequence[Section], results: Results, charts: Mapping[str, Sequence[Part]], gantts: Mapping[str, Any]
) -> list[Section]:
    """Return the sections of a result with the charts and tables that only its page has; `charts`: name of a section
    -> charts; `gantts`: run -> chart."""
    runs, analyses = {result.name: result.json for result in results}, _analyses(results)
    charts = {**charts, "stages": pictures.reasons(runs)}
    total, *rest = (section for section in sections if section.name != "host")
    contents = [section._replace(parts=[*charts.get(section.name, ()), *section.parts]) for section in rest]
    front = next(
        (at for at, section in enumerate(contents) if section.name in ("tokens", "faults", "energy", "latency")),
        len(contents),
    )
    contents[front:front] = [
        *layers.of_model(analyses, results[0].config, results[0].program),
        Section("traffic", "Traffic", memory.traffic(runs, analyses)),
        Section("kv", "Keys and values", memory.keys_and_values(runs)),
    ]
    end = next((at for at, section in enumerate(contents) if section.name == "parameters"), len(contents))
    title = "The run" if len(runs) == 1 else "The runs"
    contents[end:end] = [
        Section("sites", "Call sites", _sites(results)),
        Section("time", "Over time", [OverTime(gantts)]),
        total._replace(title=title, parts=[*total.parts, counters(runs)]),
    ]
    return contents


def first_screen(results: Results, comparison: Mapping[str, Any] | None = None) -> tuple[list[str], list[Tile]]:
    """Return the sentences and the key figures of the first screen; empty for runs without time."""
    runs, analyses = {result.name: result.json for result in results}, _analyses(results)
    if not all(run["cycles"] for run in runs.values()):
        return [], []
    causes = {name: layers.causes(analysis) for name, analysis in analyses.items()}
    configs = {result.name: result.config for result in results}
    return sentences(runs, causes), key_figures(runs, configs, analyses, comparison)


def write_page(
    sections: Sequence[Section], results: Results, effective: Effective, comparison: Mapping[str, Any] | None
) -> str:
    """Render the document; `sections`: result of `extended`; `comparison` has `ratio`, None for one run."""
    configs = {result.name: result.config for result in results}
    run = results[0].json
    subtitle = (
        f"preset {run['preset']}, core {run['core'] or 'none'}, {run['sim_level']}, "
        f"{effective.config.npu.clock_hz / 1e6:g} MHz; cycles are core cycles"
    )
    verdict, tiles = first_screen(results, comparison)
    total = next(section for section in sections if section.name == "run")
    warnings = [part for part in total.parts if isinstance(part, Note) and part.kind == "warning"]
    head: list[Part] = [Note(subtitle, "muted"), *warnings, *([Verdict(verdict)] if verdict else [])]
    body = [section._replace(parts=[part for part in section.parts
                                    if part not in head and not isinstance(part, Verdict)])
            for section in sections if section.name != "parameters"]  # fmt: skip
    entries = [part for section in sections if section.name == "parameters" for part in section.parts]
    body.append(Section("parameters", "Parameters", [*entries, *_differences(configs), parameters(effective)]))
    return page.render(f"{run['program']}: {' against '.join(configs)}", head, tiles, body)


def _analyses(results: Results) -> dict[str, Analysis]:
    return {result.name: result.analysis for result in results if result.analysis is not None}


def _sites(results: Results) -> list[Part]:
    """Return the call sites with most submissions: function, source line, and cycles from start to acceptance."""
    rows = [
        (core.program.place(site) or hex(site), result.name, len(cycles), cycles.p50, cycles.max)
        for result in results if (core := result.core) is not None
        for site, cycles in core.latency.by_call_site()[:MAX_PLACES]
    ]  # fmt: skip
    heads = ("function, source line", "mode", "n", "start to accepted, P50 (core cycles)", "max (core cycles)")
    return [Table(heads, rows)] if rows else []


def _differences(configs: Mapping[str, Config]) -> list[Part]:
    if len(configs) < 2:
        return []
    flat = {mode: flatten(config) for mode, config in configs.items()}
    keys = [key for key in keys_of(Config) if len({str(values[key]) for values in flat.values()}) > 1]
    rows: list[list[Value]] = [[key, *(str(values[key]) for values in flat.values())] for key in keys]
    rows.append(["custom instructions", *(", ".join(config.custom_enabled) or "none" for config in configs.values())])
    rows.append(["commands in the device queue", *(config.npu.device_queue for config in configs.values())])
    return [Note("Keys in which the runs differ:"), Table(["key", *configs], rows)]


def parameters(effective: Effective) -> Details:
    """Return every key with its value, unit, meaning and origin."""
    values = flatten(effective.config)
    rows = [(path, key.show(values[path]), key.unit, str(key.rule["meaning"]),
             effective.origins.get(path) or f"default: {key.rule.get('source', 'preset pyv')}")
            for path, key in keys_of(Config).items()]  # fmt: skip
    table = Table(("key", "value", "unit", "meaning", "origin"), rows)
    return Details(f"every parameter with its provenance ({len(rows)})", table)
