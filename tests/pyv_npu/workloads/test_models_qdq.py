"""QDQ graphs: products on integers with one requantization, as onnx.reference computes them with floats."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_runs import execute, run_compiled
from onnx import TensorProto, helper, numpy_helper
from shares import draws

from npu_device.config import NpuConfig
from pyv_npu.config import Config, with_values
from pyv_npu.workloads import ia
from pyv_npu.workloads.checks import compare
from pyv_npu.workloads.data import random_inputs
from toolchain.codegen import Target
from toolchain.compiler import Compiled, compile_model
from toolchain.ir.operations import PRODUCTS
from toolchain.onnx_frontend import import_model
from toolchain.onnx_model.model import prepare

ONNX = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "int4": TensorProto.INT4, "uint4": TensorProto.UINT4}


class Quantized:
    """A QDQ model under construction."""

    def __init__(self, seed: int, activation: str = "int8", weights: str = "int8") -> None:
        self.random = np.random.default_rng(seed)
        self.activation, self.weights = activation, weights
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []

    def constant(self, values: Any, kind: str = "") -> str:
        name = f"c{len(self.initializers)}"
        if kind in ("int4", "uint4"):
            values = np.asarray(values).astype(getattr(ml_dtypes, kind))
        self.initializers.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def through(self, name: str, scale: float, zero: int) -> str:
        """Quantized and dequantized."""
        kind = np.dtype(self.activation)
        zero += 128 if kind == np.uint8 else 0
        parameters = self.constant(np.float32(scale)), self.constant(kind.type(zero))
        return self.node("DequantizeLinear", self.node("QuantizeLinear", name, *parameters), *parameters)

    def weight(self, shape: Sequence[int], axis: int, scale: float) -> tuple[str, Any]:
        """(dequantized, scales) with one scale per element of the axis."""
        signed = not self.weights.startswith("u")
        top = {"4": 7 if signed else 15, "8": 127 if signed else 255}[self.weights[-1]]
        values = self.random.integers(-top if signed else 0, top + 1, shape)
        scales = self.random.uniform(0.5, 1.5, shape[axis]).astype(np.float32) * np.float32(scale / top)
        zeros = np.zeros(shape[axis]) if signed else np.full(shape[axis], (top + 1) // 2)
        kind = np.dtype(self.weights) if "8" in self.weights else np.int64
        names = [self.constant(values.astype(kind), self.weights), self.constant(scales)]
        names.append(self.constant(zeros.astype(kind), self.weights))
        return self.node("DequantizeLinear", *names, axis=axis), scales

    def bias(self, count: int, scales: Any) -> str:
        codes = self.random.integers(-200, 200, count).astype(np.int32)
        return self.node("DequantizeLinear", self.constant(codes), self.constant(scales.astype(np.float32)), axis=0)

    def model(self, shape: Sequence[int], output: str, result: Sequence[int]) -> Any:
        kind = TensorProto.FLOAT if not output.startswith("quantize") else ONNX[self.activation]
        self.nodes.append(helper.make_node("Identity", [output], ["y"], name="last"))
        graph = helper.make_graph(
            self.nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", kind, result)], self.initializers,
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def last_codes(b: Quantized, name: str, scale: float) -> str:
    kind = np.dtype(b.activation)
    return b.node("QuantizeLinear", name, b.constant(np.float32(scale)), b.constant(kind.type(3)))


def dense(operator: str, seed: int, activation: str, weights: str, relu: bool) -> Any:
    """Two layers; the second ends in codes."""
    b = Quantized(seed, activation, weights)
    x, scale, k = b.through("x", 1 / 64, 1), 1 / 64, 48
    for n in (33, 10):
        transposed = operator == "Gemm"
        w, scales = b.weight((n, k) if transposed else (k, n), 0 if transposed else 1, 1.0)
        bias = b.bias(n, scales * np.float32(scale))
        if operator == "Gemm":
            x = b.node("Gemm", x, w, bias, transB=1)
        else:
            x = b.node("Add", b.node("MatMul", x, w), bias)
        x = b.node("Relu", x) if relu else x
        scale, k = 1 / 16, n
        x = b.through(x, scale, -2) if n == 33 else last_codes(b, x, 1 / 2)
    return b.model((7, 48), x, (7, 10))


def image(seed: int, activation: str, weights: str, relu: bool) -> Any:
    b = Quantized(seed, activation, weights)
    w, scales = b.weight((5, 3, 3, 3), 0, 1.0)
    x = b.node(
        "Conv", b.through("x", 1 / 64, 5), w, b.bias(5, scales * np.float32(1 / 64)), pads=[1] * 4, strides=[2, 1]
    )
    x = b.node("Relu", x) if relu else x
    return b.model((2, 3, 8, 7), last_codes(b, x, 1 / 8), (2, 5, 4, 7))


def compiled(proto: Any) -> Compiled:
    return compile_model(prepare(proto, "m"), Target())


def assert_near(model: Compiled, seed: int) -> None:
    inputs = random_inputs(model, seed)
    outputs, codes = ia.observed(model, NpuConfig(), inputs)
    made = compare(model, outputs, inputs, codes)
    assert made.codes["ok"] and all(check["ok"] for check in made.outputs.values()), made


@given(
    st.sampled_from(["Gemm", "MatMul", "Conv"]), st.integers(0, 1000), st.sampled_from(["int8", "uint8"]),
    st.sampled_from(list(ONNX)), st.booleans(),
)  # fmt: skip
@settings(max_examples=draws(40), deadline=None, derandomize=True)
def test_products_are_integer_products(operator: str, seed: int, activation: str, weights: str, relu: bool) -> None:
    proto = (
        image(seed, activation, weights, relu)
        if operator == "Conv"
        else dense(operator, seed, activation, weights, relu)
    )
    model = compiled(proto)
    assert_near(model, seed)
    graph = model.graph
    products = [layer for layer in graph.layers if layer.op_type in PRODUCTS]
    kinds = {graph.tensors[name].dtype.name.lower() for layer in products for name in layer.inputs[:2]}
    assert kinds == {activation, weights}
    assert {graph.tensors[layer.outputs[0]].dtype.name.lower() for layer in products} == {activation}
    functions = [layer.text("function") for layer in graph.layers if layer.op_type == "ELTWISE"]
    assert functions == ["QUANT"], "the input's; every other step is in an epilogue"


def block(seed: int, activation: str, second: str, relu: bool, first: int) -> Any:
    """A convolution whose input is added to its result."""
    b = Quantized(seed, activation)
    x = b.through("x", 1 / 64, 7)
    w, scales = b.weight((3, 3, 3, 3), 0, 1.0)
    y = b.node("Conv", x, w, b.bias(3, scales * np.float32(1 / 64)), pads=[1] * 4)
    y = b.node("Add", *((x, y), (y, x))[first])
    b.activation = second
    return b.model((2, 3, 6, 5), last_codes(b, b.node("Relu", y) if relu else y, 1 / 16), (2, 3, 6, 5))


@given(st.integers(0, 1000), st.sampled_from(["int8", "uint8"]), st.booleans(), st.integers(0, 1))
@settings(max_examples=draws(15), deadline=None, derandomize=True)
def test_a_residual_of_the_results_type_is_in_the_epilogue(seed: int, kind: str, relu: bool, first: int) -> None:
    model = compiled(block(seed, kind, kind, relu, first))
    assert_near(model, seed)
    operations = [layer.op_type for layer in model.graph.layers if layer.op_type != "COPY"]
    assert operations == ["ELTWISE", "CONV2D_T"]


def test_a_residual_of_another_type_is_added_to_a_float_result() -> None:
    model = compiled(block(1, "int8", "uint8", True, 0))
    assert_near(model, 1)
    assert [layer.text("function") for layer in model.graph.layers if layer.op_type == "ELTWISE"].count("QUANT") == 2


def test_a_bias_behind_a_residual_is_not_lost() -> None:
    b = Quantized(3)
    x, (w, _) = b.through("x", 1 / 64, 0), b.weight((16, 16), 1, 1.0)
    y = b.node("Add", b.node("MatMul", x, w), x)
    y = b.node("Add", y, b.constant(np.arange(16, dtype=np.float32)))
    assert_near(compiled(b.model((5, 16), last_codes(b, y, 1 / 4), (5, 16))), 2)


def test_int4_weights_take_half_the_bytes_of_int8() -> None:
    sizes = {}
    for weights in ("int8", "int4"):
        graph = compiled(dense("Gemm", 1, "int8", weights, True)).graph
        sizes[weights] = [graph.tensors[layer.inputs[1]].size for layer in graph.layers if layer.op_type in PRODUCTS]
    assert sizes == {"int8": [33 * 48, 10 * 33], "int4": [33 * 24, 10 * 17]}


def test_without_a_quantizer_behind_it_a_product_is_float() -> None:
    b = Quantized(4)
    w, scales = b.weight((48, 10), 1, 1.0)
    y = b.node("Relu", b.node("Gemm", b.through("x", 1 / 64, 0), w, b.bias(10, scales / np.float32(64))))
    model = compiled(b.model((7, 48), y, (7, 10)))
    product = next(layer for layer in model.graph.layers if layer.op_type in PRODUCTS)
    assert product.text("activation") == "RELU" and product.text("epilogue") == "bias+scale"
    assert model.graph.tensors[product.outputs[0]].dtype.name == "FP32"
    assert_near(model, 0)


@pytest.mark.parametrize("operator", ["Gemm", "MatMul", "Conv"])
def test_a_bias_between_two_steps_is_added_to_a_float_result(operator: str) -> None:
    b = Quantized(5)
    conv = operator == "Conv"
    w, _ = b.weight((4, 3, 3, 3) if conv else (27, 4), 0 if conv else 1, 1.0)
    bias = b.constant(b.random.standard_normal(4).astype(np.float32))
    x = b.through("x", 1 / 64, 0)
    x = b.node("Add", bias, b.node("MatMul", x, w)) if operator == "MatMul" else b.node(operator, x, w, bias)
    y = last_codes(b, b.node("Relu", x), 1 / 16)
    model = compiled(b.model((1, 3, 6, 6) if conv else (5, 27), y, (1, 4, 4, 4) if conv else (5, 4)))
    product = next(layer for layer in model.graph.layers if layer.op_type in PRODUCTS)
    assert model.graph.tensors[product.outputs[0]].dtype.name == "FP32"
    assert {model.graph.tensors[name].dtype.name for name in product.inputs[:2]} == {"INT8"}
    assert_near(model, 3)


def test_what_has_no_integer_form_stays_float() -> None:
    """Scales along k, two zero points, a product that two nodes read."""
    b = Quantized(6)
    w, _ = b.weight((48, 10), 0, 1.0)
    x = b.through("x", 1 / 64, 0)
    y = b.node("MatMul", x, w)
    total = b.node("Add", b.node("Relu", y), y)
    model = compiled(b.model((7, 48), total, (7, 10)))
    assert {
        model.graph.tensors[n].dtype.name for la in model.graph.layers if la.op_type in PRODUCTS for n in la.inputs
    } == {"FP32"}
    assert_near(model, 1)


def test_fused_and_unfused_agree() -> None:
    proto = dense("Gemm", 9, "int8", "int8", True)
    fused, plain = (import_model(prepare(proto, "m"), fuse=fuse) for fuse in (True, False))
    assert len(fused.layers) < len(plain.layers)
    assert {plain.tensors[layer.inputs[0]].dtype.name for layer in plain.layers if layer.op_type in PRODUCTS} == {
        "FP32"
    }


def test_loose_tight_and_ia_are_equal_with_int4_weights() -> None:
    model = compiled(dense("MatMul", 2, "uint8", "int4", True))
    expected = execute(model, NpuConfig(), random_inputs(model, 1))
    for mode in ("loose", "tight"):
        result = run_compiled(with_values(Config(), {"npu.mode": mode, "run.seed": 1}), model)
        assert result.correct
        assert all(result.detail.outputs[name].tobytes() == values.tobytes() for name, values in expected.items())
