"""Bits of integers, and integers that are INT32 on the device: onnxruntime judges, onnx.reference where it has no
kernel."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_runs import execute
from onnx import TensorProto, helper
from onnxruntime_reference import agree, by_us, near, one_node

from npu_device.config import NpuConfig
from pyv_npu.errors import UsageError
from pyv_npu.workloads.data import complete_inputs, to_device
from toolchain.codegen import Target
from toolchain.compiler import compile_model
from toolchain.errors import ModelError
from toolchain.onnx_model.model import prepare
from toolchain.onnx_model.reference import evaluate

KINDS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64]
SHAPES = [((3, 5), (3, 5)), ((3, 5), (5,)), ((), (4,)), ((2, 3, 4), (3, 1))]


def numbers(kind: Any, shape: tuple[int, ...], seed: int) -> Any:
    """Of all that the device holds of a type, its limits among them."""
    limits = np.iinfo(kind)
    low, high = max(limits.min, -(1 << 31)), min(limits.max, (1 << 31) - 1)
    made = np.random.default_rng(seed).integers(low, high + 1, shape).astype(kind)
    made.reshape(-1)[:1] = low
    made.reshape(-1)[1:2] = high
    return made


def node(operator: str, inputs: dict[str, Any], kind: Any, **attributes: Any) -> Any:
    return one_node(operator, inputs, kinds=[helper.np_dtype_to_tensor_dtype(np.dtype(kind))], **attributes)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(["And", "Or", "Xor"]), st.sampled_from(KINDS), st.sampled_from(SHAPES), st.integers(0, 99))
def test_bits_of_two_integers(operator: str, kind: Any, shapes: Any, seed: int) -> None:
    inputs = {"a": numbers(kind, shapes[0], seed), "b": numbers(kind, shapes[1], seed + 1)}
    agree(node(f"Bitwise{operator}", inputs, kind), inputs)


@pytest.mark.parametrize("kind", KINDS)
def test_all_bits_turned(kind: Any) -> None:
    inputs = {"a": numbers(kind, (7, 3), 1)}
    agree(node("BitwiseNot", inputs, kind), inputs)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(["LEFT", "RIGHT"]), st.sampled_from([np.uint8, np.uint16, np.uint32]), st.booleans(),
       st.integers(0, 99))  # fmt: skip
def test_shifted_bits(direction: str, kind: Any, one: bool, seed: int) -> None:
    """By fewer places than there are bits: of more, ONNX says nothing."""
    bits = np.iinfo(kind).bits
    places = np.random.default_rng(seed).integers(0, bits, () if one else (4, 6)).astype(kind)
    inputs = {"a": numbers(kind, (4, 6), seed), "b": places}
    proto = node("BitShift", inputs, kind, direction=direction)
    got, _ = by_us(proto, inputs)
    near(got["y"], evaluate(proto, ["y"], inputs)["y"], 0, "y")
    if kind is not np.uint16:  # no kernel of onnxruntime
        agree(proto, inputs)


def test_what_was_shifted_beyond_int32_is_shifted_back() -> None:
    """The highest bit of UINT32 is no sign."""
    kind = TensorProto.UINT32
    steps = [helper.make_node("BitShift", ["a", "n"], ["t"], direction="LEFT"),
             helper.make_node("BitShift", ["t", "n"], ["y"], direction="RIGHT")]  # fmt: skip
    graph = helper.make_graph(steps, "g", [helper.make_tensor_value_info(name, kind, [40]) for name in "an"],
                              [helper.make_tensor_value_info("y", kind, [40])])  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=8)
    agree(proto, {"a": numbers(np.uint32, (40,), 2), "n": (np.arange(40) % 32).astype(np.uint32)})


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([*KINDS, np.bool_]), st.sampled_from([np.int16, np.uint16]), st.integers(0, 99))
def test_an_integer_becomes_a_short_one(source: Any, kind: Any, seed: int) -> None:
    values = numbers(source, (5, 8), seed) if source is not np.bool_ else np.arange(40).reshape(5, 8) % 3 == 0
    code = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    agree(node("Cast", {"a": values}, kind, to=code), {"a": values})


@pytest.mark.parametrize("target", [np.float32, np.int8, np.uint8, np.int32, np.int64, np.bool_])
@pytest.mark.parametrize("kind", [np.int16, np.uint16, np.uint32])
def test_a_short_integer_becomes_another_number(kind: Any, target: Any) -> None:
    inputs = {"a": numbers(kind, (5, 8), 3)}
    agree(node("Cast", inputs, target, to=helper.np_dtype_to_tensor_dtype(np.dtype(target))), inputs)


@pytest.mark.parametrize("kind", [np.int16, np.uint16])
@pytest.mark.parametrize("channels", [1, 3])
def test_codes_of_16_bits(kind: Any, channels: int) -> None:
    """As converters for phones write activations; beyond the range the codes saturate."""
    values = np.random.default_rng(2).normal(0, 60, (4, 3)).astype(np.float32)
    scale, zero = (
        np.array([0.001, 0.002, 0.004], np.float32),
        np.array([7, -30, 20] if kind is np.int16 else [32768, 0, 9]),
    )
    constants = {"s": scale[:channels].squeeze(), "z": zero[:channels].astype(kind).squeeze()}
    made = node("QuantizeLinear", {"x": values}, kind, opset=21, constants=constants)
    agree(made, {"x": values})
    values[0] = 3e38, -3e38, 1e9
    agree(made, {"x": values})
    codes = {"x": numbers(kind, (4, 3), 5)}
    agree(node("DequantizeLinear", codes, np.float32, opset=21, constants=constants), codes)


@pytest.mark.parametrize("kind", [np.int16, np.uint16, np.uint32])
def test_rows_of_a_table_of_short_integers(kind: Any) -> None:
    """onnx.reference judges: onnxruntime compares no short integers."""
    make, value = helper.make_node, helper.make_tensor_value_info
    number = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    nodes = [make("Gather", ["table", "i"], ["row"]), make("Max", ["row", "b"], ["m"]),
             make("Less", ["row", "b"], ["l"]), make("Where", ["l", "m", "row"], ["y"])]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [value("i", TensorProto.INT64, [4]), value("b", number, [4, 5])], [value("y", number, [4, 5])],
        [helper.make_tensor("table", number, [9, 5], numbers(kind, (9, 5), 1).reshape(-1))],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=8)
    inputs = {"i": np.array([8, 0, 3, 3]), "b": numbers(kind, (4, 5), 2)}
    got, _ = by_us(proto, inputs)
    near(got["y"], evaluate(proto, ["y"], inputs)["y"], 0, "y")


def test_arithmetic_of_short_integers_is_refused() -> None:
    inputs = {name: numbers(np.int16, (4,), 1) for name in "ab"}
    with pytest.raises(ModelError, match=r"data type INT16 of input 0 \(a\) is not supported"):
        by_us(node("Add", inputs, np.int16), inputs)


def test_an_input_beyond_int32_is_refused() -> None:
    values = np.array([1 << 31], np.uint32)
    compiled = compile_model(prepare(node("BitwiseNot", {"a": values}, np.uint32), "m"), Target())
    inputs = complete_inputs(compiled, 1, {"a": values})
    with pytest.raises(UsageError, match="a: 2147483648 does not fit INT32, which the device has for UINT32"):
        to_device(compiled, "a", inputs["a"])
    assert execute(compiled, NpuConfig(), {"a": values - np.uint32(1)})["y"].tolist() == [1 << 31]
