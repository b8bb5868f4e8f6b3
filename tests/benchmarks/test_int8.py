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


def test_figures_are_those_of_both_quantizations(tmp_path: Path) -> None:
    onnx.save(two_products(), tmp_path / "two.onnx")
    figures = int8.measure(tmp_path / "two.onnx", tmp_path)
    assert figures.floats == 0 and 0 < figures.cycles_int8 < figures.cycles
    assert figures.theirs - 1 < figures.ours < 60 and figures.theirs > 20


@pytest.mark.parametrize(
    ("figures", "code"),
    [
        (int8.Figures(0, 1000, 500, 30.0, 31.0), 0), (int8.Figures(1, 1000, 500, 30.0, 31.0), 1),
        (int8.Figures(0, 1000, 501, 30.0, 31.0), 1), (int8.Figures(0, 1000, 500, 29.9, 31.0), 1),
    ],
)  # fmt: skip
def test_a_missed_limit_is_an_exit_code(
    figures: int8.Figures, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(int8, "measure", lambda path, folder: figures)
    assert runner.main(["int8", "two.onnx"]) == code
    assert f"two                       {figures.floats}        1,000" in capsys.readouterr().out


def test_signal_to_error_is_of_all_elements() -> None:
    assert int8.signal_to_error([np.full(9, 10.0), np.full(1, 10.0)], [np.full(9, 10.0), np.zeros(1)]) == 10
    assert int8.signal_to_error([np.ones(2)], [np.ones(2)]) == float("inf")
