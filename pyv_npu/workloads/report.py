"""What the report of a model's run holds beside that of any run: IR, commands, inputs, outputs, layers."""

import io
from typing import Any

import numpy as np

from pyv_npu.report.folder import write_bytes
from pyv_npu.report.report import Shown, shown
from pyv_npu.report.run_folder import RunFolder
from pyv_npu.report.timeline import write_timeline
from pyv_npu.tables import render_run
from pyv_npu.workloads.data import Tensors
from pyv_npu.workloads.files import write_listing
from pyv_npu.workloads.run import ModelResult
from pyv_npu.workloads.text import render_model
from toolchain.compiler import Compiled

NOTE = "the model's image"
"""Who changed a value between the user and the run."""


def render_result(result: ModelResult) -> str:
    """A run as text."""
    text = render_model(result.json)
    return text if result.run is None else render_run(result.json, result.run.config) + "\n" + text


def write_model_report(folder: RunFolder, result: ModelResult, text: str) -> None:
    """Everything that a report of the run holds; `text` is its summary."""
    effective = folder.effective
    used = effective if result.run is None else effective.adopt(result.run.config, NOTE)
    folder.finish(result.json, text, used)
    write_listing(result.compiled, folder.folder, result.config)
    write_bytes(folder.folder / "outputs.npz", archive(result.outputs))
    if result.run is not None:
        from pyv_npu.report.report import write_report

        write_report(folder.folder, [shown(result.run, result.compiled.commands)], used)
    elif result.listed is not None:
        _write_list(folder, Shown.of(result.json, result.config, [result.records], result.compiled.commands))


def write_list_report(folder: RunFolder, run: Shown, text: str, compiled: Compiled | None = None) -> None:
    """The report of commands that ran without a core; `compiled`: the model that they are of."""
    folder.finish(run.json, text, folder.effective)
    if compiled is not None:
        write_listing(compiled, folder.folder, folder.effective.config)
    _write_list(folder, run)


def _write_list(folder: RunFolder, run: Shown) -> None:
    from pyv_npu.report.report import write_report

    names = () if run.analysis is None else run.analysis.names
    write_timeline(folder.folder / "timeline.csv", run.spans, names)
    write_report(folder.folder, [run], folder.effective)


def archive(tensors: Tensors) -> bytes:
    """A .npz file; types that numpy does not have by itself are written as float32."""
    file = io.BytesIO()
    plain: dict[str, Any] = {
        name: values if values.dtype.isbuiltin == 1 else values.astype(np.float32) for name, values in tensors.items()
    }
    np.savez(file, **plain)
    return file.getvalue()
