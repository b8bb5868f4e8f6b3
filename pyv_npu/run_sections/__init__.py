"""Sections of a run or of a comparison, from the JSON objects of docs/results.md. Cycles are core cycles."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyv_npu.config import Config
from pyv_npu.result import Comparison, Result, Runs, agrees
from pyv_npu.run_sections import findings, latency, totals
from pyv_npu.sections import Facts, Note, Part, Section, as_text


def run_sections(result: Result[Any]) -> list[Section]:
    """Return the sections of a run."""
    sections = sections_of({result.name: result.json}, result.config, {result.name: result.without_firmware})
    return _with_details(sections, result.detail.sections(result))


def comparison_sections(comparison: Comparison, config: Config) -> list[Section]:
    """Return the sections of a comparison; `config`: of both runs."""
    cycles = dict.fromkeys(comparison.runs, comparison.tight.without_firmware)  # equal in both modes without firmware
    runs = {mode: run.json for mode, run in comparison.runs.items()}
    details = comparison.loose.detail.compared(comparison.loose, comparison.tight)[1]
    return _with_details(sections_of(runs, config, cycles, comparison.json), details)


def summary(result: Result[Any]) -> str:
    """Format a run for a terminal."""
    return as_text(run_sections(result))


def _with_details(sections: list[Section], details: Sequence[Section]) -> list[Section]:
    """Insert the sections of the workload after the first section."""
    return [*sections[:1], *details, *sections[1:]]


def sections_of(
    runs: Runs, config: Config, without_firmware: Mapping[str, int | None] | None = None,
    comparison: Mapping[str, Any] | None = None,
) -> list[Section]:  # fmt: skip
    """Return the sections of one run or two. `without_firmware`: mode -> cycles of the commands; `comparison`: JSON
    object of both runs."""
    sections = [
        Section("run", _head(runs, config), [*_problems(runs, comparison), *totals.totals(runs, comparison)]),
        Section("host", "", [] if comparison is not None else totals.host(runs)),
        Section("cycles", "Core cycles by phase", totals.cycles(runs, config, without_firmware or {})),
        Section("tokens", "Tokens", latency.tokens(runs)),
        Section("faults", "Injected faults, against the run without them", findings.faults(runs)),
        Section("energy", "Energy and area, an estimate", totals.energy_estimate(runs)),
        Section("latency", "Submission latency, core cycles", latency.stages(runs)),
        Section("placement", "Submission latency at equal distances, core cycles",
                latency.placement(placed) if (placed := (comparison or {}).get("placement")) else []),
        Section("stages", "Core cycles of a submission by reason", latency.reasons(runs)),
        Section("outside", "External engines", totals.external_engines(runs)),
        Section("errors", "Error tickets", findings.errors(runs)),
        Section("sanitizer", "Sanitizer", findings.sanitizer(runs)),
        Section("sweeps", "Sweeps and break-even",
                [part for sweep in (comparison or {}).get("sweeps", ()) for part in latency.sweep_parts(sweep)]),
    ]  # fmt: skip
    if any(run["core"] is not None for run in runs.values()):
        facts = Facts(latency.latency_parameters(config))
        sections.append(Section("parameters", f"Parameters in core cycles: preset {config.preset}", [facts]))
    return [section for section in sections if section.parts]


def _head(runs: Runs, config: Config) -> str:
    run = next(iter(runs.values()))
    core = "timing only" if run["core"] is None and run["cycles"] is not None else f"core {run['core'] or 'none'}"
    modes = run["mode"] if len(runs) == 1 else " against ".join(runs)
    timing = ["timing only"] * run.get("timing_only", False)
    words = [*([modes] if modes else []), core, *timing, run["sim_level"], f"{config.npu.clock_hz / 1e6:g} MHz"]
    return f"{run['program']}: {', '.join(words)}"


def _problems(runs: Runs, comparison: Mapping[str, Any] | None) -> list[Part]:
    """Return warnings about runs that were cut and about wrong results."""
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
