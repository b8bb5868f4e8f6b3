"""What `--report` writes once a run or a comparison is over, made from its `Result`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyv_native.files import write_bytes
from pyv_npu.config import Effective, with_values
from pyv_npu.report.report import write_report
from pyv_npu.report.run_folder import RunFolder
from pyv_npu.report.timeline import write_latency_csv, write_timeline
from pyv_npu.result import Comparison, Result
from pyv_npu.tables import summary

NOTE = "the note of the ELF"
"""The origin of a value that changed between the command line and the run."""


def write_run(folder: RunFolder, result: Result[Any], text: str) -> None:
    """Everything that the report of a run holds; `text` is its summary."""
    used = _used(folder, result)
    folder.finish(result.json, text, used)
    _write_files(folder.folder, result)
    if result.events is not None:
        write_lines(folder.folder, result)
        write_report(folder.folder, [result], used)


def write_comparison(folder: RunFolder, both: Comparison, text: str, pictures: Mapping[str, str]) -> None:
    """Everything that the report of a comparison holds; `pictures`: of its sweeps."""
    used = _used(folder, both.loose)
    folder.finish(both.json, text, used)
    _write_files(folder.folder, both.loose)
    for mode, run in both.runs.items():
        write_lines(folder.folder / mode, run)
    write_report(folder.folder, list(both.runs.values()), used, both.json, pictures)


def write_half(folder: RunFolder, loose: Result[Any]) -> None:
    """The report of a comparison that was interrupted before its second run began."""
    used = _used(folder, loose)
    head = "interrupted in the first run: there is nothing to compare it with\n\n"
    folder.finish({"schema": 1, "loose": loose.json, "tight": None}, head + summary(loose), used)
    _write_files(folder.folder, loose)
    write_lines(folder.folder / "loose", loose)
    write_report(folder.folder, [loose], used)
    folder.partial = True


def _used(folder: RunFolder, run: Result[Any]) -> Effective:
    """The configuration with what the program asked for; `npu.mode` stays as it was given."""
    given = folder.effective
    return given.adopt(with_values(run.config, {"npu.mode": given.config.npu.mode}), NOTE)


def _write_files(folder: Path, run: Result[Any]) -> None:
    """What the workload has of its own."""
    for name, data in run.detail.files(run).items():
        write_bytes(folder / name, data)


def write_lines(folder: Path, run: Result[Any]) -> None:
    """A line per piece of work; on the core a line per submission."""
    folder.mkdir(parents=True, exist_ok=True)
    errors = () if run.core is None else run.core.log
    write_timeline(folder / "timeline.csv", run.spans, run.layer_names, errors)
    if run.core is not None:
        write_latency_csv(folder / "latency.csv", run.core.latency.submissions, run.core.program)
