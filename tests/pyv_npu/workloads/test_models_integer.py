"""INT64 in models: shape arithmetic is compiled away, indices and positions are INT32 on the device."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from npu_device.config import NpuConfig
from pyv_npu.cli import main
from pyv_npu.workloads import ia
from pyv_npu.workloads.checks import compare
from pyv_npu.workloads.data import random_inputs, to_device
from toolchain.codegen import Target
from toolchain.compiler import Compiled, compile_model
from toolchain.onnx_model.model import prepare

FLOAT, INT64, UINT8 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.UINT8


def model(nodes: list[Any], inputs: dict[str, tuple[int, list[int]]], outputs: dict[str, Any], **weights: Any) -> Any:
    def values(named: dict[str, tuple[int, list[int]]]) -> list[Any]:
        return [helper.make_tensor_value_info(name, *what) for name, what in named.items()]

    graph = helper.make_graph(
        nodes, "g", values(inputs), values(outputs), [numpy_helper.from_array(v, k) for k, v in weights.items()]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def embedding() -> Any:
    """Words and positions looked up and added; the sum reshaped by the arithmetic of its own shape."""
    random = np.random.default_rng(1)
    nodes = [
        helper.make_node("Gather", ["words", "ids"], ["w"]),
        helper.make_node("Shape", ["ids"], ["s"]),
        helper.make_node("Gather", ["s", "one"], ["length"]),
        helper.make_node("Range", ["zero", "length", "one"], ["positions"]),
        helper.make_node("Gather", ["table", "positions"], ["p"]),
        helper.make_node("Add", ["w", "p"], ["sum"]),
        helper.make_node("Unsqueeze", ["length", "axis"], ["rows"]),
        helper.make_node("Concat", ["rows", "minus"], ["flat"], axis=0),
        helper.make_node("Reshape", ["sum", "flat"], ["y"]),
    ]
    return model(
        nodes, {"ids": (INT64, [2, 5])}, {"y": (FLOAT, [5, 16])},
        words=random.random((11, 8), np.float32), table=random.random((7, 8), np.float32), zero=np.array(0),
        one=np.array(1), axis=np.array([0]), minus=np.array([-1]),
    )  # fmt: skip


def dynamic_quantization() -> Any:
    """As exporters write dynamically quantized layers: integer product, scales applied behind it."""
    weights = np.random.default_rng(2).integers(-127, 128, (32, 6)).astype(np.int8)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["q", "weights", "zero"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["wide"], to=FLOAT),
        helper.make_node("Mul", ["scale", "factor"], ["both"]),
        helper.make_node("Mul", ["wide", "both"], ["y"]),
    ]
    return model(
        nodes, {"x": (FLOAT, [4, 32])}, {"y": (FLOAT, [4, 6])}, weights=weights, factor=np.array([0.01], np.float32)
    )


def dynamic_convolution() -> Any:
    """The same with an image: its padding holds the zero point that the run finds."""
    weights = np.random.default_rng(3).integers(0, 256, (5, 3, 3, 3)).astype(np.uint8)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        helper.make_node("ConvInteger", ["q", "weights", "zero", "middle"], ["sum"], pads=[1, 0, 2, 1], strides=[2, 1]),
        helper.make_node("Cast", ["sum"], ["wide"], to=FLOAT),
        helper.make_node("Mul", ["wide", "scale"], ["y"]),
    ]
    return model(
        nodes,
        {"x": (FLOAT, [2, 3, 6, 5])},
        {"y": (FLOAT, [2, 5, 4, 4])},
        weights=weights,
        middle=np.array(120, np.uint8),
    )


def compiled(proto: Any) -> Compiled:
    return compile_model(prepare(proto, "m"), Target())


@pytest.mark.parametrize("make", [embedding, dynamic_quantization, dynamic_convolution])
def test_models_with_integers_agree_with_the_reference(make: Any) -> None:
    made = compiled(make())
    for seed in range(3):
        inputs = random_inputs(made, seed)
        outputs, codes = ia.observed(made, NpuConfig(), inputs)
        compared = compare(made, outputs, inputs, codes)
        assert all(check["ok"] for check in compared.outputs.values()), compared
        assert not compared.codes or compared.codes["ok"], compared


def test_random_indices_stay_within_their_table_and_have_onnx_type() -> None:
    ids = random_inputs(compiled(embedding()), 0)["ids"]
    assert ids.dtype == np.int64 and ids.min() >= 0 and ids.max() < 11
    assert compiled(embedding()).graph.index_bound("ids") == 11
    assert compiled(dynamic_quantization()).graph.index_bound("x") is None


def test_shape_arithmetic_makes_no_command() -> None:
    graph = compiled(embedding()).graph
    assert [layer.op_type for layer in graph.layers] == ["GATHER", "ELTWISE"]


def test_both_modes_run_lookups(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(embedding(), path)
    assert main(["compare", str(path)]) == 0


def test_an_int64_that_does_not_fit_is_named() -> None:
    with pytest.raises(Exception, match="input ids: 4294967296 does not fit INT32, which the device has for INT64"):
        to_device(compiled(embedding()), "ids", np.array([[1 << 32, 1, 2, 3, 4]] * 2))


def test_a_constant_index_beyond_the_axis_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [helper.make_node("Gather", ["x", "at"], ["y"], name="n", axis=1)]
    proto = model(nodes, {"x": (FLOAT, [2, 3])}, {"y": (FLOAT, [2])}, at=np.array(3))
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    assert main(["run", str(path)]) == 65
    error = capsys.readouterr().err
    assert "node n (Gather, opset 18): index 3: the axis has 3 elements, indices are -3..2" in error
