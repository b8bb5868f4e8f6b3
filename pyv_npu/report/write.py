"""Files of the report of a run or of a comparison, with report.html."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from npu_device.trace.events import unit_counts
from npu_device.trace.spans import UNITS as ENGINES
from pyv_native.files import write_bytes, write_text
from pyv_npu.config import Effective, with_values
from pyv_npu.csv_table import write_csv
from pyv_npu.observe.analysis.metrics import Metric, metrics
from pyv_npu.observe.latency.rows import Submissions
from pyv_npu.report.figures import Series, gantt_chart, lanes, series, write_series_csv
from pyv_npu.report.pictures import cumulative, distribution_steps
from pyv_npu.report.run_folder import RunFolder
from pyv_npu.report.run_page import extended, write_page
from pyv_npu.report.timeline import write_latency_csv, write_timeline
from pyv_npu.result import Comparison, Result
from pyv_npu.run_sections import comparison_sections, run_sections, summary
from pyv_npu.sections import Part, Section, csv_tables, plain

NOTE = "the note of the ELF"
"""Origin of values that the program's requirements change."""


def write_run(folder: RunFolder, result: Result[Any], text: str) -> None:
    """Write the report of a run; `text` is its summary."""
    effective = _effective_config(folder, result)
    folder.finish(result.json, text, effective)
    _write_files(folder.folder, result)
    if result.events is not None:
        write_lines(folder.folder, result)
        write_report(folder.folder, [result], run_sections(result), effective)


def write_comparison(folder: RunFolder, comparison: Comparison, text: str, charts: Sequence[Part]) -> None:
    """Write the report of a comparison; `charts`: charts of its sweeps."""
    effective = _effective_config(folder, comparison.loose)
    folder.finish(comparison.json, text, effective)
    _write_files(folder.folder, comparison.loose)
    for mode, run in comparison.runs.items():
        write_lines(folder.folder / mode, run)
    sections = comparison_sections(comparison, comparison.loose.config)
    write_report(folder.folder, list(comparison.runs.values()), sections, effective, comparison.json, charts)


def write_half(folder: RunFolder, loose: Result[Any]) -> None:
    """Write the report of a comparison that was interrupted before its second run."""
    effective = _effective_config(folder, loose)
    head = "interrupted in the first run: there is nothing to compare it with\n\n"
    folder.finish({"schema": 1, "loose": loose.json, "tight": None}, head + summary(loose), effective)
    _write_files(folder.folder, loose)
    write_lines(folder.folder / "loose", loose)
    write_report(folder.folder, [loose], run_sections(loose), effective)
    folder.partial = True


def _effective_config(folder: RunFolder, run: Result[Any]) -> Effective:
    """Return the configuration with the program's requirements; `npu.mode` is that of the command line."""
    effective = folder.effective
    return effective.adopt(with_values(run.config, {"npu.mode": effective.config.npu.mode}), NOTE)


def _write_files(folder: Path, run: Result[Any]) -> None:
    """Write the files of the workload."""
    for name, data in run.detail.files(run).items():
        write_bytes(folder / name, data)


def write_lines(folder: Path, run: Result[Any]) -> None:
    """Write timeline.csv and, for a run on the core, latency.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    errors = () if run.core is None else run.core.log
    write_timeline(folder / "timeline.csv", run.spans, run.layer_names, errors)
    if run.core is not None:
        write_latency_csv(folder / "latency.csv", run.core.latency.submissions, run.core.program)


# -- the page and its tables -------------------------------------------------------------------------------------------


def write_report(
    folder: Path,
    results: Sequence[Result[Any]],
    sections: Sequence[Section],
    effective: Effective,
    comparison: Mapping[str, Any] | None = None,
    sweep_charts: Sequence[Part] = (),
) -> None:
    """Write report.html and the CSV files of one run or two; `comparison`: JSON object of both; `sweep_charts`: charts
    of its sweeps."""
    binned = {result.name: _series(result) for result in results}
    latencies = {result.name: result.core.latency for result in results if result.core is not None}
    run = results[0].json
    curves = cumulative(latencies, f"{run['program']}, preset {run['preset']}")
    gantts = {result.name: _gantt(result, binned[result.name]) for result in results}
    contents = extended(sections, results, {"latency": curves, "sweeps": sweep_charts}, gantts)
    for name, table in csv_tables(contents).items():
        write_csv(folder / name, table.heads, [list(map(plain, row)) for row in table.rows])
    steps = [(mode, stage, *step) for mode, stage, steps in distribution_steps(latencies) for step in steps]
    write_csv(folder / "latency_cdf.csv", ("mode", "stage", "cycles", "submissions_at_most"), steps)
    write_series_csv(folder / "series.csv", binned)
    _write_sweeps(folder / "sweeps.csv", (comparison or {}).get("sweeps", ()))
    _write_metrics(folder / "metrics.csv", results)
    write_text(folder / "report.html", write_page(contents, results, effective, comparison))


def _series(run: Result[Any]) -> Series:
    occupancy = None if run.analysis is None else run.analysis.scratchpad
    return series(run.spans, _engines(run), occupancy)


def _engines(run: Result[Any]) -> dict[str, int]:
    """Return kind -> number of engines in all clusters."""
    npu = run.config.npu
    return {kind.name.lower(): unit_counts(npu)[kind] * npu.clusters for kind in ENGINES}


def _gantt(run: Result[Any], binned: Series) -> dict[str, Any]:
    names, waits = ((), ()) if run.analysis is None else (run.analysis.names, run.analysis.waits)
    assert run.cycles is not None, "a report shows runs with time"
    tables = lanes(run.spans, Submissions() if run.core is None else run.core.latency.submissions)
    tickets = run.spans.commands["ticket"]
    return gantt_chart(tables, run.cycles, tickets, names, binned, _engines(run), waits, run.config.npu.clock_hz)


def _write_sweeps(path: Path, sweeps: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        (sweep["key"], point["value"], mode, figure, point[mode][figure], sweep["units"][figure])
        for sweep in sweeps
        for point in sweep["points"]
        for mode in ("loose", "tight")
        for figure in sweep["figures"]
    ]
    write_csv(path, ("key", "value", "mode", "figure", "result", "unit"), rows)


def _write_metrics(path: Path, results: Sequence[Result[Any]]) -> None:
    rows = [
        (run.name, *metric)
        for run in results
        if run.analysis is not None
        for metric in metrics(run.analysis, run.json, run.config, run.spans)
    ]
    write_csv(path, ("run", *Metric._fields), rows)
