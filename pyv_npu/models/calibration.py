"""Inputs on which `--precision int8` observes the ranges of a model: files that are given, else random numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pyv_npu.errors import BadInputError
from pyv_npu.models.data import Values, complete_inputs, random_inputs
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
        return [complete_inputs(interface, seed, _arrays(path)) for path in files]
    return [random_inputs(interface, seed + 1 + run) for run in range(RUNS)]


def _arrays(path: Path) -> dict[str, Values]:
    try:
        with np.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except (OSError, ValueError, AttributeError, EOFError):
        raise BadInputError(f"--calibration {path}: no .npz of an array per input: write it by numpy.savez") from None
