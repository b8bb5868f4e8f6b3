"""Everything that `--report` writes once the runs are over: CSV files, pictures and report.html."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyv_npu.config import Effective
from pyv_npu.latency.table import Latency
from pyv_npu.report.folder import replacing, write_text
from pyv_npu.report.gantt import chart, lanes
from pyv_npu.report.latency_cdf import curves, draw
from pyv_npu.report.page import Sweep, page
from pyv_npu.report.pictures import Runs, all_pictures
from pyv_npu.report.series import series, write_series_csv
from pyv_npu.report.spans import all_records

if TYPE_CHECKING:
    from pyv_npu.results import RunResult


def write_report(
    folder: Path,
    results: Mapping[str, "RunResult"],
    effective: Effective,
    comparison: Mapping[str, Any] | None = None,
    sweep_pictures: Mapping[str, str] | None = None,
) -> None:
    """`results` by mode, one or two; `comparison` is the result of both, its sweeps have pictures of their own."""
    sweeps: Sequence[Sweep] = (comparison or {}).get("sweeps", ())
    runs: Runs = {mode: result.json for mode, result in results.items()}
    records = {mode: all_records(result.events) for mode, result in results.items()}
    binned = {mode: series(records[mode], _engines(run), run["cycles"]) for mode, run in runs.items()}
    gantts = {
        mode: chart(lanes(records[mode], result.latency.submissions, result.json["cycles"]), result.json["cycles"])
        for mode, result in results.items()
    }
    pictures = {**all_pictures(runs, binned), **(sweep_pictures or {})}
    latencies = {mode: result.latency for mode, result in results.items()}
    if drawn := curves(latencies):
        first = next(iter(runs.values()))
        pictures["latency_cdf.svg"] = draw(drawn, f"{first['program']}, preset {first['preset']}")
    for name, text in pictures.items():
        write_text(folder / name, text)
    _write_cdf(folder / "latency_cdf.csv", latencies)
    _write_stages(folder / "stages.csv", runs)
    _write_reasons(folder / "reasons.csv", runs)
    write_series_csv(folder / "series.csv", binned)
    _write_sweeps(folder / "sweeps.csv", sweeps)
    configs = {mode: result.config for mode, result in results.items()}
    write_text(folder / "report.html", page(runs, configs, effective, pictures, gantts, comparison, sweeps))


def _engines(run: Mapping[str, Any]) -> dict[str, int]:
    return {name: len(run["npu"][f"{name}_busy"]) for name in ("te", "ve", "dma")}


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
        (sweep["key"], point["value"], mode, figure, point[mode][figure])
        for sweep in sweeps
        for point in sweep["points"]
        for mode in ("loose", "tight")
        for figure in sweep["figures"]
    ]
    _write(path, ("key", "value", "mode", "figure", "result"), rows)
