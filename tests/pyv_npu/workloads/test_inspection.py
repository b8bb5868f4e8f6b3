"""`pyv-npu check` names what a user gives: weights are none of it, wherever a file keeps them."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from pyv_npu.cli import main
from toolchain.onnx_model.file import SMALL

SIZES = [pytest.param(64, id="in the protobuf"), pytest.param(256, id="taken from the file")]
"""Rows and columns of the weights: those of 256 x 256 are above SMALL."""


def model_of(size: int, listed: bool) -> onnx.ModelProto:
    """x @ w, or as much of x where a branch says so; `listed`: w is among the inputs, as before IR version 4."""
    weights = np.random.default_rng(1).standard_normal((size, size)).astype(np.float32)
    shape = ["batch", size]
    product = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["b"])],
        "product", [], [helper.make_tensor_value_info("b", TensorProto.FLOAT, shape)],
    )  # fmt: skip
    same = helper.make_graph(
        [helper.make_node("Abs", ["x"], ["c"])],
        "same",
        [],
        [helper.make_tensor_value_info("c", TensorProto.FLOAT, shape)],
    )
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
        helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
    ]
    if listed:
        inputs.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, weights.shape))
    graph = helper.make_graph(
        [helper.make_node("If", ["flag"], ["y"], then_branch=product, else_branch=same)],
        "branches", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("outside", [False, True])
def test_inputs_are_those_of_onnxruntime(
    size: int, listed: bool, outside: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, model = tmp_path / "m.onnx", model_of(size, listed)
    assert (size * size * 4 > SMALL) == (size == 256)
    onnx.save(model, path, save_as_external_data=outside, location="w.bin", size_threshold=0)
    assert main(["check", str(path), "--json", "--shape", "batch=2", "--constant", "flag=1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["check", str(path), "--shape", "batch=2", "--constant", "w=1"]) == 65
    assert capsys.readouterr().out.endswith("\n--constant w: no such input; inputs are x, flag\n")
    session = onnxruntime.InferenceSession(path)
    kinds = {"tensor(float)": "FLOAT", "tensor(bool)": "BOOL"}
    expected = {
        f"input {value.name}": f"{kinds[value.type]}, shape [{', '.join(map(str, value.shape))}]"
        for value in session.get_inputs()
    }
    assert {row: text for row, text in found.items() if row.startswith("input ")} == expected
    assert found["operators"] == {"Abs": "1", "If": "1", "MatMul": "1", "Relu": "1"}
