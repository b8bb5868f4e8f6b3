"""Everything that `--report` writes once the runs are over: CSV files, pictures and report.html."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from npu_device.trace.spans import Table
from pyv_npu.config import Effective
from pyv_npu.observe.analysis.metrics import Metric, metrics
from pyv_npu.observe.latency.rows import Submissions
from pyv_npu.observe.latency.table import Latency
from pyv_npu.report import model_parts, tokens
from pyv_npu.report.folder import replacing, write_text
from pyv_npu.report.gantt import chart, lanes, picture
from pyv_npu.report.latency_cdf import curves, draw
from pyv_npu.report.page import Sweep, page
from pyv_npu.report.pictures import Runs, all_pictures
from pyv_npu.report.series import Series, series, write_series_csv
from pyv_npu.report.shown import Shown
from pyv_npu.studies.sweep_figures import UNITS


def write_report(
    folder: Path,
    results: Sequence[Shown],
    effective: Effective,
    comparison: Mapping[str, Any] | None = None,
    sweep_pictures: Mapping[str, str] | None = None,
) -> None:
    """One run or two; `comparison` is the result of both, its sweeps have pictures of their own."""
    sweeps: Sequence[Sweep] = (comparison or {}).get("sweeps", ())
    runs: Runs = {result.name: result.json for result in results}
    binned = {result.name: _series(result) for result in results}
    analyses = {result.name: result.analysis for result in results if result.analysis is not None}
    npu, program = results[0].config.npu, results[0].json["program"]
    about_model = model_parts.pictures(analyses, results[0].config, program)
    pictures = {**about_model, **all_pictures(runs, binned, npu.spm.size * npu.clusters), **(sweep_pictures or {})}
    latencies = {result.name: result.latency for result in results if result.latency is not None}
    if drawn := curves(latencies):
        pictures["latency_cdf.svg"] = draw(drawn, f"{program}, preset {results[0].json['preset']}")
    lanes_of = {result.name: _lanes(result) for result in results}
    for result in results:
        title = f"{program}: {result.name}"
        pictures[f"gantt_{result.name}.svg"] = picture(lanes_of[result.name], result.cycles, title)
    for name, text in pictures.items():
        write_text(folder / name, text)
    _write_cdf(folder / "latency_cdf.csv", latencies)
    _write_stages(folder / "stages.csv", runs)
    _write_reasons(folder / "reasons.csv", runs)
    write_series_csv(folder / "series.csv", binned)
    _write_sweeps(folder / "sweeps.csv", sweeps)
    _write(folder / "tokens.csv", tokens.CSV_HEADS, tokens.csv_rows(runs))
    _write_metrics(folder / "metrics.csv", results)
    configs = {result.name: result.config for result in results}
    gantts = {result.name: _gantt(result, lanes_of[result.name]) for result in results}
    first = [*tokens.section(runs), *model_parts.sections(analyses, pictures)]
    write_text(folder / "report.html", page(runs, configs, effective, pictures, gantts, comparison, sweeps, first))


def _series(run: Shown) -> Series:
    held = None if run.analysis is None else run.analysis.scratchpad
    return series(run.spans, run.engines, held)


def _lanes(run: Shown) -> dict[str, Table]:
    return lanes(run.spans, Submissions.of(()) if run.latency is None else run.latency.submissions)


def _gantt(run: Shown, shown: Mapping[str, Table]) -> dict[str, Any]:
    names = () if run.analysis is None else run.analysis.names
    return chart(shown, run.cycles, run.spans.commands["ticket"], names)


def _write(path: Path, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    if not rows:
        return
    with replacing(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(heads)
        writer.writerows(rows)


def _write_cdf(path: Path, latencies: Mapping[str, Latency]) -> None:
    rows = [(curve.mode, curve.stage, *step) for curve in curves(latencies) for step in curve.steps]
    _write(path, ("mode", "stage", "cycles", "submissions_at_most"), rows)


def _write_stages(path: Path, runs: Runs) -> None:
    figures = ("n", "p50", "p95", "p99", "min", "max", "mean")
    rows = [
        (mode, name, *(stage[figure] for figure in figures))
        for mode, run in runs.items()
        for name, stage in (run["latency"] or {"stages": {}})["stages"].items()
        if stage is not None
    ]
    _write(path, ("mode", "stage", *figures), rows)


def _write_reasons(path: Path, runs: Runs) -> None:
    rows = [
        (mode, *item) for mode, run in runs.items() for item in (run["latency"] or {"reasons": {}})["reasons"].items()
    ]
    _write(path, ("mode", "reason", "cycles"), rows)


def _write_sweeps(path: Path, sweeps: Sequence[Sweep]) -> None:
    rows = [
        (sweep["key"], point["value"], mode, figure, point[mode][figure], UNITS[figure])
        for sweep in sweeps
        for point in sweep["points"]
        for mode in ("loose", "tight")
        for figure in sweep["figures"]
    ]
    _write(path, ("key", "value", "mode", "figure", "result", "unit"), rows)


def _write_metrics(path: Path, results: Sequence[Shown]) -> None:
    rows = [
        (run.name, *metric)
        for run in results
        if run.analysis is not None
        for metric in metrics(run.analysis, run.json, run.config, run.spans)
    ]
    _write(path, ("run", *Metric._fields), rows)
