"""Inputs on which `--precision int8` observes the ranges of a model: files that are given, else random numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pyv_npu.models.data import Values, complete_inputs, random_inputs, read_inputs
from toolchain.ir.graph import Graph
from toolchain.onnx_frontend import OnnxModel, import_model

RUNS = 4
"""Random inputs, of the seeds behind the run's own."""


class _Imported(NamedTuple):
    model: OnnxModel
    graph: Graph


def samples(model: OnnxModel, files: Sequence[Path], seed: int) -> list[dict[str, Values]]:
    """One set of inputs per file, or `RUNS` random ones. BadInputError for a file that has no arrays, UsageError for
    arrays that do not fit the model."""
    interface = _Imported(model, import_model(model))
    if files:
        return [complete_inputs(interface, seed, read_inputs(path)) for path in files]
    return [random_inputs(interface, seed + 1 + run) for run in range(RUNS)]
