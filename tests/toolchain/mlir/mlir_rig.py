"""A module compiled, run at IA, and compared with onnx.reference and with MLIR's own lowering."""

from pathlib import Path
from typing import Any

import numpy as np
from mlir_runner import run
from numpy.typing import NDArray

from npu_device.config import NpuConfig
from pyv_npu.workloads import ia
from pyv_npu.workloads.checks import check, compare
from pyv_npu.workloads.data import random_inputs
from toolchain.codegen import Target
from toolchain.compiler import Compiled, compile_model
from toolchain.ir.graph import Graph
from toolchain.mlir.importer import import_source
from toolchain.mlir.text.source import MlirSource


def compiled(text: str, name: str = "case.mlir", granularity: str = "macro") -> Compiled:
    return compile_model(import_source(MlirSource(text, name)), Target(), granularity=granularity)


def outputs(model: Compiled, seed: int = 1) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """(inputs, outputs at IA), equal to onnx.reference within the tolerance of models."""
    inputs = random_inputs(model, seed)
    made, codes = ia.observed(model, NpuConfig(), inputs)
    for name, found in compare(model, made, inputs, codes).outputs.items():
        assert found["ok"], (name, found)
    return inputs, dict(made)


def assert_as_mlir(text: str, inputs: dict[str, NDArray[Any]], made: dict[str, NDArray[Any]]) -> None:
    """The outputs are those of mlir-cpu-runner: integers bit for bit."""
    for (name, got), want in zip(made.items(), run(text, inputs, list(made.values())), strict=True):
        found = check(np.asarray(got), want)
        assert found["ok"], (name, found)


def assert_equal(found: Graph, graph: Graph) -> None:
    assert (found.name, found.inputs, found.outputs) == (graph.name, graph.inputs, graph.outputs)
    assert list(found.tensors.items()) == list(graph.tensors.items())
    assert found.layers == graph.layers
    assert found.constants.keys() == graph.constants.keys()
    for name, values in graph.constants.items():
        again = found.constants[name]
        assert (again.dtype, again.shape, again.tobytes()) == (values.dtype, values.shape, values.tobytes())


PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.mlir"))
