"""Cycles of common networks stand in the relations that a compiler engineer expects."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from onnx import helper
from shares import slow

from npu_device.config import NpuConfig
from pyv_npu.workloads.compiled import target_of
from pyv_npu.workloads.timing import run_commands
from toolchain.compiler import Compiled, compile_model
from toolchain.examples import EXAMPLES
from toolchain.examples.builder import Builder
from toolchain.onnx_model.model import prepare

SIZE = 64
"""Of images, which keeps the tests short."""


DEVICE = NpuConfig()


def compiled(proto: Any, config: NpuConfig) -> Compiled:
    return compile_model(prepare(proto, "m"), target_of(config))


@cache
def example(name: str) -> Compiled:
    return compiled(EXAMPLES[name](size=SIZE), DEVICE)


def ran(model: Compiled, config: NpuConfig = DEVICE) -> int:
    return run_commands(model.commands, config).cycles


def cycles(proto: Any, config: NpuConfig = DEVICE) -> int:
    return ran(compiled(proto, config), config)


@pytest.mark.parametrize("name", ["mobilenet_v2", *slow("resnet18")])
def test_int8_takes_at_most_three_fifths_of_fp32(name: str) -> None:
    assert ran(example(f"{name}_int8")) <= 0.6 * ran(example(name))


@pytest.mark.parametrize("name", ["mobilenet_v2", "mobilenet_v2_int8"])
def test_clips_are_part_of_the_convolutions_before_them(name: str) -> None:
    layers = example(name).graph.layers
    assert not [layer for layer in layers if layer.text("function") == "CLIP"]
    assert sum(layer.text("activation") == "RELU6" for layer in layers) == (1 if name.endswith("int8") else 35)


def wide(activation: str) -> Any:
    """A product, and an activation as one operator or from primitives."""
    b = Builder()
    x = b.node("MatMul", "x", b.weight(256, 512))
    three, zero, six = (b.constant(np.array(value, np.float32)) for value in (3, 0, 6))
    made = {
        "HardSwish": lambda: b.node("HardSwish", x),
        "primitives": lambda: b.node("Div", b.node("Mul", x, b.node("Clip", b.node("Add", x, three), zero, six)), six),
        "Relu": lambda: b.node("Relu", x),
    }[activation]()
    return b.model("wide", [256, 256], made, [256, 512])


def test_an_activation_costs_the_same_however_it_is_written() -> None:
    assert cycles(wide("HardSwish")) == cycles(wide("primitives")) == cycles(wide("Relu"))


def norm(fused: bool, rows: int = 512, columns: int = 768) -> Any:
    b = Builder()
    scale, bias = b.positive(columns), b.weight(columns)
    if fused:
        y = b.node("LayerNormalization", "x", scale, bias)
    else:
        last, two, epsilon = (b.constant(np.array(v, t)) for v, t in (([-1], "i8"), (2, "f4"), (1e-5, "f4")))
        apart = b.node("Sub", "x", b.node("ReduceMean", "x", last))
        root = b.node("Sqrt", b.node("Add", b.node("ReduceMean", b.node("Pow", apart, two), last), epsilon))
        y = b.node("Add", b.node("Mul", b.node("Div", apart, root), scale), bias)
    return b.model("norm", [rows, columns], y, [rows, columns])


def test_layer_normalization_costs_the_same_however_it_is_written() -> None:
    assert cycles(norm(fused=False)) <= 1.1 * cycles(norm(fused=True))


def attention(fused: bool, heads: int = 8, length: int = 128, size: int = 64) -> Any:
    b, shape = Builder(), [1, heads, length, size]
    if fused:
        y = b.node("Attention", "x", "x", "x")
    else:
        scores = b.node("MatMul", "x", b.node("Transpose", "x", perm=[0, 1, 3, 2]))
        scores = b.node("Mul", scores, b.constant(np.array(size**-0.5, np.float32)))
        y = b.node("MatMul", b.node("Softmax", scores, axis=-1), "x")
    proto = b.model("attention", shape, y, shape)
    proto.opset_import[0].CopyFrom(helper.make_opsetid("", 23))
    return proto


def test_fused_attention_is_not_slower() -> None:
    assert cycles(attention(fused=True)) <= cycles(attention(fused=False))


@pytest.mark.parametrize("name", ["mobilenet_v2", *slow("resnet18")])
def test_a_second_engine_costs_nothing(name: str) -> None:
    proto = EXAMPLES[name](size=SIZE)
    found = [cycles(proto, replace(DEVICE, te=replace(DEVICE.te, count=count))) for count in (1, 2)]
    assert found[1] <= found[0]


# -- more engines ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "resnet18_int8", "mobilenet_v2"])
def test_more_tensor_engines_are_never_slower(name: str) -> None:
    """Within 1 %; engines that take the same image from its bank wait for each other, which the tiles know."""
    proto = EXAMPLES[name]()
    found = [cycles(proto, replace(DEVICE, te=replace(DEVICE.te, count=count))) for count in (1, 2, 4, 8)]
    assert all(more <= fewer * 1.01 for fewer, more in pairwise(found)), found
