"""report.html of one run or two: their sections with charts, layers, call sites, time and parameters."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyv_npu.config import Config, Effective
from pyv_npu.config.schema import flatten, keys_of
from pyv_npu.observe.analysis.model import Analysis
from pyv_npu.observe.latency.percentiles import Distribution
from pyv_npu.report import layers, memory, page, pictures
from pyv_npu.result import Runs
from pyv_npu.run_sections.totals import counters
from pyv_npu.sections import Chart, Details, Note, OverTime, Part, Section, Table, Value, Verdict
from pyv_npu.verdict import key_figures, sentences


class ObservedRun(NamedTuple):
    """Runs of a page, with what result.json does not hold; all by the name of the run."""

    runs: Runs
    configs: Mapping[str, Config]
    analyses: Mapping[str, Analysis]
    sites: Mapping[str, Sequence[tuple[str, Distribution]]]
    """Function and source line of call sites, with cycles from start to accepted."""
    gantts: Mapping[str, Any]
    distributions: Sequence[Chart]


def extended(sections: Sequence[Section], observed: ObservedRun, sweeps: Sequence[Part]) -> list[Section]:
    """Adds to the sections of a result the charts and tables that only its page has; `sweeps`: charts."""
    run, config = next(iter(observed.runs.values())), next(iter(observed.configs.values()))
    charts: dict[str, Sequence[Part]] = {
        "latency": observed.distributions,
        "stages": pictures.reasons(observed.runs),
        "sweeps": sweeps,
    }
    total, *rest = (each for each in sections if each.name != "host")
    shown = [each._replace(parts=[*charts.get(each.name, ()), *each.parts]) for each in rest]
    front = next(
        (at for at, each in enumerate(shown) if each.name in ("tokens", "faults", "energy", "latency")), len(shown)
    )
    shown[front:front] = [
        *layers.of_model(observed.analyses, config, run["program"]),
        Section("traffic", "Traffic", memory.traffic(observed.runs, observed.analyses)),
        Section("kv", "Keys and values", memory.keys_and_values(observed.runs)),
    ]
    end = next((at for at, each in enumerate(shown) if each.name == "parameters"), len(shown))
    title = "The run" if len(observed.runs) == 1 else "The runs"
    shown[end:end] = [
        Section("sites", "Call sites", _sites(observed.sites)),
        Section("time", "Over time", [OverTime(observed.gantts)]),
        total._replace(title=title, parts=[*total.parts, counters(observed.runs)]),
    ]
    return shown


def write_page(
    sections: Sequence[Section], observed: ObservedRun, effective: Effective, comparison: Mapping[str, Any] | None
) -> str:
    """Writes the document; `sections`: those of `extended`; `comparison` has `ratio`, None for one run."""
    run = next(iter(observed.runs.values()))
    subtitle = (
        f"preset {run['preset']}, core {run['core'] or 'none'}, {run['sim_level']}, "
        f"{effective.config.npu.clock_hz / 1e6:g} MHz; cycles are core cycles"
    )
    causes = {name: layers.causes(analysis) for name, analysis in observed.analyses.items()}
    verdict = sentences(observed.runs, causes)
    total = next(each for each in sections if each.name == "run")
    warnings = [part for part in total.parts if isinstance(part, Note) and part.kind == "warning"]
    head: list[Part] = [Note(subtitle, "muted"), *warnings, *([Verdict(verdict)] if verdict else [])]
    body = [each._replace(parts=[part for part in each.parts if part not in head and not isinstance(part, Verdict)])
            for each in sections if each.name != "parameters"]  # fmt: skip
    entries = [part for each in sections if each.name == "parameters" for part in each.parts]
    body.append(Section("parameters", "Parameters", [*entries, *_differences(observed.configs), parameters(effective)]))
    tiles = key_figures(observed.runs, observed.configs, observed.analyses, comparison)
    return page.render(f"{run['program']}: {' against '.join(observed.runs)}", head, tiles, body)


def _sites(sites: Mapping[str, Sequence[tuple[str, Distribution]]]) -> list[Part]:
    rows = [(place, mode, len(cycles), cycles.p50, cycles.max)
            for mode, places in sites.items() for place, cycles in places]  # fmt: skip
    heads = ("function, source line", "mode", "n", "start to accepted, P50 (core cycles)", "max (core cycles)")
    return [Table(heads, rows)] if rows else []


def _differences(configs: Mapping[str, Config]) -> list[Part]:
    if len(configs) < 2:
        return []
    flat = {mode: flatten(config) for mode, config in configs.items()}
    keys = [key for key in keys_of(Config) if len({str(values[key]) for values in flat.values()}) > 1]
    rows: list[list[Value]] = [[key, *(str(values[key]) for values in flat.values())] for key in keys]
    rows.append(["custom instructions", *(", ".join(each.custom_enabled) or "none" for each in configs.values())])
    rows.append(["commands in the device queue", *(each.npu.device_queue for each in configs.values())])
    return [Note("Keys in which the runs differ:"), Table(["key", *configs], rows)]


def parameters(effective: Effective) -> Details:
    """Returns every key with its value, unit, meaning and origin."""
    values = flatten(effective.config)
    rows = [(path, key.show(values[path]), key.unit, str(key.rule["meaning"]),
             effective.origins.get(path) or f"default: {key.rule.get('source', 'preset pyv')}")
            for path, key in keys_of(Config).items()]  # fmt: skip
    table = Table(("key", "value", "unit", "meaning", "origin"), rows)
    return Details(f"every parameter with its provenance ({len(rows)})", table)
