"""Operators written as primitives become one layer, which makes what onnxruntime makes of the primitives."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pyv_npu import Simulator
from toolchain.codegen import Target
from toolchain.compiler import compile_model
from toolchain.examples.builder import Builder
from toolchain.onnx_frontend.importer import import_model
from toolchain.onnx_model.model import prepare

ort = pytest.importorskip("onnxruntime")
ROWS, COLUMNS = 6, 32
PADDLE = 0.1666667
"""A sixth, in fp32 two steps above."""


def number(b: Builder, value: float) -> str:
    return b.constant(np.array(value, np.float32))


def swish(b: Builder) -> str:
    return b.node("Mul", b.node("Sigmoid", "x"), "x")


def swish_of_paddle(b: Builder) -> str:
    return b.node("Mul", "x", b.node("Sigmoid", b.node("Mul", "x", number(b, 1))))


def mish(b: Builder) -> str:
    return b.node("Mul", "x", b.node("Tanh", b.node("Softplus", "x")))


def _clipped(b: Builder) -> str:
    return b.node("Clip", b.node("Add", number(b, 3), "x"), number(b, 0), number(b, 6))


def hard_swish(b: Builder) -> str:
    return b.node("Div", b.node("Mul", "x", _clipped(b)), number(b, 6))


def hard_swish_by_a_sixth(b: Builder) -> str:
    return b.node("Mul", "x", b.node("Mul", _clipped(b), number(b, 1 / 6)))


def hard_swish_by_hard_sigmoid(b: Builder) -> str:
    return b.node("Mul", "x", b.node("HardSigmoid", "x", alpha=1 / 6, beta=0.5))


def hard_sigmoid(b: Builder) -> str:
    return b.node("Div", _clipped(b), number(b, 6))


def _erf(b: Builder) -> str:
    return b.node("Add", b.node("Erf", b.node("Div", "x", number(b, math.sqrt(2)))), number(b, 1))


def gelu_of_torch(b: Builder) -> str:
    return b.node("Mul", b.node("Mul", "x", _erf(b)), number(b, 0.5))


def gelu_of_tensorflow(b: Builder) -> str:
    return b.node("Mul", "x", b.node("Mul", number(b, 0.5), _erf(b)))


def gelu_of_halves(b: Builder) -> str:
    return b.node("Mul", b.node("Mul", number(b, 0.5), "x"), _erf(b))


def gelu_by_tanh(b: Builder) -> str:
    cubic = b.node("Mul", number(b, 0.044715), b.node("Pow", "x", number(b, 3)))
    inner = b.node("Mul", number(b, math.sqrt(2 / math.pi)), b.node("Add", "x", cubic))
    return b.node("Mul", b.node("Mul", number(b, 0.5), "x"), b.node("Add", number(b, 1), b.node("Tanh", inner)))


def _mean(b: Builder, x: str, axis: int = -1) -> str:
    return b.node("ReduceMean", x, b.constant(np.array([axis], np.int64)))


def _root(b: Builder, x: str, axis: int = -1) -> str:
    return b.node("Sqrt", b.node("Add", _mean(b, b.node("Pow", x, number(b, 2)), axis), number(b, 1e-5)))


def layer_norm(b: Builder) -> str:
    apart = b.node("Sub", "x", _mean(b, "x"))
    scaled = b.node("Mul", b.node("Div", apart, _root(b, apart)), b.positive(COLUMNS))
    return b.node("Add", scaled, b.weight(COLUMNS))


def layer_norm_with_two_differences(b: Builder) -> str:
    first, second = (b.node("Sub", "x", _mean(b, "x")) for _ in range(2))
    return b.node("Add", b.weight(COLUMNS), b.node("Mul", b.positive(COLUMNS), b.node("Div", first, _root(b, second))))


def layer_norm_without_bias(b: Builder) -> str:
    apart = b.node("Sub", "x", _mean(b, "x"))
    return b.node("Mul", b.node("Mul", apart, b.node("Reciprocal", _root(b, apart))), b.positive(COLUMNS))


def rms_norm(b: Builder) -> str:
    return b.node("Mul", b.positive(COLUMNS), b.node("Mul", "x", b.node("Reciprocal", _root(b, "x"))))


def rms_norm_by_division(b: Builder) -> str:
    return b.node("Mul", b.node("Mul", "x", b.node("Div", number(b, 1), _root(b, "x"))), b.positive(COLUMNS))


FORMS: list[tuple[Callable[[Builder], str], str, str]] = [
    (swish, "ELTWISE", "SILU"), (swish_of_paddle, "ELTWISE", "SILU"), (mish, "ELTWISE", "MISH"),
    (hard_swish, "ELTWISE", "HARD_SWISH"),
    (hard_swish_by_a_sixth, "ELTWISE", "HARD_SWISH"), (hard_swish_by_hard_sigmoid, "ELTWISE", "HARD_SWISH"),
    (hard_sigmoid, "ELTWISE", "HARD_SIGMOID"), (gelu_of_torch, "GELU", ""), (gelu_of_tensorflow, "GELU", ""),
    (gelu_of_halves, "GELU", ""), (gelu_by_tanh, "GELU", ""), (layer_norm, "LAYERNORM", "LAYER"),
    (layer_norm_with_two_differences, "LAYERNORM", "LAYER"), (layer_norm_without_bias, "LAYERNORM", "LAYER"),
    (rms_norm, "LAYERNORM", "RMS"), (rms_norm_by_division, "LAYERNORM", "RMS"),
]  # fmt: skip


def model(make: Callable[[Builder], str]) -> bytes:
    b = Builder()
    made: bytes = b.model("primitives", [ROWS, COLUMNS], make(b), [ROWS, COLUMNS]).SerializeToString()
    return made


@pytest.mark.parametrize(("make", "op", "function"), FORMS, ids=[make.__name__ for make, *_ in FORMS])
def test_primitives_are_one_layer(make: Callable[[Builder], str], op: str, function: str, tmp_path: Path) -> None:
    path = tmp_path / "primitives.onnx"
    path.write_bytes(model(make))
    layers = [layer for layer in import_model(prepare(onnx.load(path), "m")).layers if layer.op_type != "COPY"]
    assert [(layer.op_type, layer.text("function")) for layer in layers] == [(op, function)]
    x = (np.random.default_rng(3).standard_normal((ROWS, COLUMNS)) * 4).astype(np.float32)
    (expected,) = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    got = Simulator(path, level="IA").run({"x": x}).outputs["y"]
    assert np.abs(got - expected).max() <= 1e-5 * max(1, np.abs(expected).max())


def shared_inside(b: Builder) -> str:
    gate = b.node("Sigmoid", "x")
    return b.node("Add", b.node("Mul", "x", gate), gate)


def other_number(b: Builder) -> str:
    return b.node("Div", b.node("Mul", "x", _clipped(b)), number(b, 5.99))


def other_slope(b: Builder) -> str:
    """As Paddle writes a sixth."""
    return b.node("Mul", "x", b.node("HardSigmoid", "x", alpha=PADDLE, beta=0.5))


def other_axis(b: Builder) -> str:
    apart = b.node("Sub", "x", _mean(b, "x", axis=0))
    return b.node("Mul", b.node("Div", apart, _root(b, apart, axis=0)), b.positive(COLUMNS))


def other_operand(b: Builder) -> str:
    return b.node("Mul", b.node("Neg", "x"), b.node("Sigmoid", "x"))


@pytest.mark.parametrize("make", [shared_inside, other_number, other_slope, other_axis, other_operand])
def test_what_only_looks_alike_stays(make: Callable[[Builder], str], tmp_path: Path) -> None:
    path = tmp_path / "primitives.onnx"
    path.write_bytes(model(make))
    made = Simulator(path, level="IA").run()
    assert made.correct
    functions = {layer.text("function") for layer in import_model(prepare(onnx.load(path), "m")).layers}
    assert not functions & {"SILU", "HARD_SWISH", "LAYER", "RMS"}


@pytest.mark.parametrize("alpha", [PADDLE, 0.2, -0.3])
def test_a_gate_that_is_nearly_closed_has_the_slope_of_the_model(alpha: float, tmp_path: Path) -> None:
    path, b, slope = tmp_path / "gate.onnx", Builder(), float(np.float32(alpha))
    path.write_bytes(
        b.model("gate", [256], b.node("HardSigmoid", "x", alpha=alpha, beta=0.5), [256]).SerializeToString()
    )
    x = (np.linspace(-0.5, -0.4999, 256) / slope).astype(np.float32)
    want = np.clip(slope * x.astype(np.float64) + 0.5, 0, 1)
    (theirs,) = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    got = Simulator(path, level="IA").run({"x": x}).outputs["y"]
    limit = 2 * np.abs(theirs - want).max()
    assert np.abs(got - want).max() <= limit
    of_a_sixth = np.clip(x.astype(np.float64) / 6 + 0.5, 0, 1)
    assert np.abs(of_a_sixth - want).max() > limit


@pytest.mark.parametrize("alpha", [PADDLE, 0.2, 1 / 6])
def test_a_gate_behind_a_mean_is_two_products(alpha: float, tmp_path: Path) -> None:
    """Squeeze and excitation, with biases that are added: the slope of the gate is in the weights."""
    b, path = Builder(), tmp_path / "gate.onnx"
    squeezed = b.node(
        "Add", b.node("Conv", b.node("GlobalAveragePool", "x"), b.weight(8, 16, 1, 1)), b.weight(1, 8, 1, 1)
    )
    excited = b.node("Add", b.node("Conv", b.node("Relu", squeezed), b.weight(16, 8, 1, 1)), b.weight(1, 16, 1, 1))
    gate = b.node("HardSigmoid", excited, alpha=alpha, beta=0.5)
    path.write_bytes(b.model("gate", [1, 16, 6, 6], gate, [1, 16, 1, 1]).SerializeToString())
    layers = compile_model(prepare(onnx.load(path), "m"), Target()).graph.layers
    assert [(one.op_type, one.text("activation")) for one in layers] == [
        ("REDUCE", ""), ("GEMM_T", "RELU"), ("GEMM_T", "HARD_SIGMOID")
    ]  # fmt: skip
    x = np.random.default_rng(4).standard_normal((1, 16, 6, 6)).astype(np.float32)
    (expected,) = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    assert np.abs(Simulator(path, level="IA").run({"x": x}).outputs["y"] - expected).max() <= 1e-6


def test_an_output_of_the_user_stays() -> None:
    nodes = [helper.make_node("Sigmoid", ["x"], ["gate"]), helper.make_node("Mul", ["x", "gate"], ["y"])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "gate", "y")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [numpy_helper.from_array(np.zeros(1), "unused")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    assert [layer.text("function") for layer in import_model(prepare(proto, "m")).layers] == ["SIGMOID", "MUL"]
