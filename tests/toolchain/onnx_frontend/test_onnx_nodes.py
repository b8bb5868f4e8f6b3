"""Every node test of the onnx package for the operators of the table: it passes, or its need is refused by name."""

import numpy as np
import pytest
from model_runs import execute
from onnx_nodes import FUNCTIONS, Case, cases

from npu_device.config import NpuConfig
from pyv_npu.workloads.checks import check
from toolchain.codegen import GRANULARITIES, Target
from toolchain.compiler import compile_model
from toolchain.errors import ModelError
from toolchain.onnx_frontend.table import OPERATORS
from toolchain.onnx_model.model import prepare

LARGE = 8192
"""Elements of an output from which tile by tile takes too long here."""


def passes(case: Case, granularity: str) -> bool:
    """Whether the test passes; False: it is refused. AssertionError: the result is wrong."""
    try:
        model = prepare(type(case.model).FromString(case.model.SerializeToString()), case.name)
        compiled = compile_model(model, Target(), granularity=granularity)
    except ModelError as error:
        assert "\n" not in str(error) and str(error).startswith(case.name)
        return False
    got = execute(compiled, NpuConfig(), case.inputs)
    for name, want in zip(compiled.graph.outputs, case.outputs, strict=True):
        assert got[name].shape == want.shape and got[name].dtype == want.dtype, f"{case.name}: {name}"
        near = want.dtype.kind == "f" and np.allclose(got[name], want, case.rtol, case.atol, equal_nan=True)
        assert near or check(got[name], want)["ok"], f"{case.name}: {name} differs"
    return True


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_node_test_passes_or_is_refused_by_name(operator: str) -> None:
    results = [passes(case, "macro") for case in cases()[operator]]
    assert any(results) or operator in REFUSED


@pytest.mark.parametrize("operator", OPERATORS)
def test_tile_by_tile_gives_the_same(operator: str) -> None:
    small = [case for case in cases()[operator] if sum(out.size for out in case.outputs) < LARGE]
    for case in small[:3]:
        passes(case, "tile")


@pytest.mark.parametrize("operator", FUNCTIONS)
def test_what_onnx_defines_by_other_operators_passes(operator: str) -> None:
    results = [passes(case, "macro") for case in cases()[operator]]
    assert any(results) and operator not in OPERATORS


REFUSED = ("CastLike", "CumSum", "GlobalLpPool", "STFT")
"""Operators of which every node test needs what is not supported: a type, or an input without elements; or that have
none. The last three are compared with onnxruntime (test_onnxruntime.py)."""


def test_granularities() -> None:
    assert GRANULARITIES == ("macro", "tile")
