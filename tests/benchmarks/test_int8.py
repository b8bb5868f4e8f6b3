"""`scripts/bench int8` on a small model."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks import int8, runner


def two_products() -> onnx.ModelProto:
    random = np.random.default_rng(3)
    weights = [
        numpy_helper.from_array((random.standard_normal((64, 64)) / 8).astype(np.float32), name) for name in "vw"
    ]
    nodes = [helper.make_node("MatMul", ["x", "v"], ["h"]), helper.make_node("Relu", ["h"], ["r"]),
             helper.make_node("MatMul", ["r", "w"], ["y"])]  # fmt: skip
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, (64, 64))] for name in "xy"]
    return helper.make_model(
        helper.make_graph(nodes, "two", *ends, weights), opset_imports=[helper.make_opsetid("", 17)], ir_version=10
    )


def test_figures_are_those_of_both_quantizations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(two_products(), tmp_path / "two.onnx")
    figures = int8.measure(tmp_path / "two.onnx", tmp_path)
    assert figures.floats == 0 and 0 < figures.cycles_int8 < figures.cycles
    assert figures.theirs - 1 < figures.ours < 60 and figures.theirs > 20
    assert runner.main(["int8", str(tmp_path / "two.onnx")]) == (figures.cycles_int8 > figures.cycles / 2)
    assert f"{figures.cycles:,}" in capsys.readouterr().out


def test_signal_to_error_is_of_all_elements() -> None:
    assert int8.signal_to_error([np.full(9, 10.0), np.full(1, 10.0)], [np.full(9, 10.0), np.zeros(1)]) == 10
    assert int8.signal_to_error([np.ones(2)], [np.ones(2)]) == float("inf")
