"""Inputs on which `--precision int8` observes the ranges of a model: files that are given, else random numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pyv_npu.errors import UsageError
from pyv_npu.workloads.data import Values, complete_inputs, random_inputs, read_inputs
from toolchain.decoders.decoder import IDS, Decoder
from toolchain.ir.graph import Graph
from toolchain.onnx_frontend import OnnxModel, import_model

RUNS = 4
"""Random inputs, of the seeds behind the run's own."""


PROMPT = 16
"""Tokens of a random prompt."""


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


def prompts(decoder: Decoder, files: Sequence[Path], seed: int) -> list[list[int]]:
    """The input_ids of each file, or `RUNS` random prompts. BadInputError for a file that has no arrays, UsageError for
    arrays that are no tokens of the decoder."""
    if not files:
        seeds = range(seed + 1, seed + 1 + RUNS)
        return [np.random.default_rng(one).integers(0, decoder.vocab, PROMPT).tolist() for one in seeds]
    return [_tokens(decoder, path) for path in files]


def _tokens(decoder: Decoder, path: Path) -> list[int]:
    ids = read_inputs(path).get(IDS)
    if ids is None or ids.size == 0 or ids.dtype.kind not in "iu" or not 0 <= ids.min() <= ids.max() < decoder.vocab:
        raise UsageError(f"--calibration {path}: must hold {IDS}, tokens of 0..{decoder.vocab - 1}")
    return [int(token) for token in ids.reshape(-1)]
