"""Convolutions and pools of all shapes: CONV2D_T, GEMM_T and POOL commands checked against onnx.reference."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from shares import draws

from npu_device.abi.opcodes import Opcode
from npu_device.config import NpuConfig
from pyv_npu.workloads import ia
from pyv_npu.workloads.checks import compare
from pyv_npu.workloads.data import random_inputs
from toolchain.codegen import Target
from toolchain.compiler import Compiled, compile_model
from toolchain.onnx_model.model import prepare
from toolchain.onnx_model.reference import reference
from toolchain.passes import PASSES

ROWS = settings(max_examples=draws(60), deadline=None, derandomize=True, database=None)


class Net:
    """A chain of nodes from x, with random weights."""

    def __init__(self, shape: list[int], kind: str = "float32") -> None:
        self.kind, self.shape = np.dtype(kind), shape
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.last = "x"
        self._random = np.random.default_rng(3)

    def weight(self, *shape: int) -> str:
        values = self._random.uniform(-1, 1, shape).astype(self.kind)
        self.weights.append(numpy_helper.from_array(values, f"w{len(self.weights)}"))
        return f"w{len(self.weights) - 1}"

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        self.last = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [self.last], name=self.last, **attributes))
        return self.last

    def compiled(self, passes: str = "all", granularity: str = "macro") -> Compiled:
        code = helper.np_dtype_to_tensor_dtype(self.kind)
        graph = helper.make_graph(
            self.nodes, "net", [helper.make_tensor_value_info("x", code, self.shape)],
            [helper.make_tensor_value_info(self.last, code, [f"d{axis}" for axis in range(len(self.shape))])],
            self.weights,
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        return compile_model(prepare(model, "net"), Target(), passes=passes, granularity=granularity)


def assert_correct(model: Compiled) -> None:
    inputs = random_inputs(model, 1)
    outputs, codes = ia.observed(model, NpuConfig(), inputs)
    for name, check in compare(model, outputs, inputs, codes).outputs.items():
        assert check["ok"], (name, check)


def opcodes(model: Compiled) -> list[Opcode]:
    return [Opcode(command.descriptor.opcode) for command in model.commands]


small = st.integers(1, 3)


@ROWS
@given(
    st.integers(1, 2), st.sampled_from([(1, 1), (2, 2), (4, 4), (2, 1)]), st.integers(1, 2),
    st.lists(small, min_size=2), st.lists(small, min_size=2), st.lists(small, min_size=2),
    st.lists(st.integers(0, 2), min_size=4, max_size=4),
    st.integers(1, 2), st.sampled_from(["macro", "tile"]),
)  # fmt: skip
def test_convolutions_of_all_shapes(
    batch: int, per_group: tuple[int, int], groups: int, kernel: list[int], strides: list[int], dilations: list[int],
    pads: list[int], rank: int, granularity: str,
) -> None:  # fmt: skip
    cin, cout = per_group[0] * groups, per_group[1] * groups
    net = Net([batch, cin, *[9, 7][:rank]])
    assume(all((k - 1) * d < size for k, d, size in zip(kernel, dilations, net.shape[2:], strict=False)))
    weights = net.weight(cout, per_group[0], *kernel[:rank])
    net.add(
        "Conv", "x", weights, net.weight(cout), group=groups, strides=strides[:rank], dilations=dilations[:rank],
        pads=[*pads[:rank], *pads[2 : 2 + rank]],
    )  # fmt: skip
    model = net.compiled(granularity=granularity)
    assert_correct(model)
    if granularity == "macro":
        sizes, borders = {groups, *kernel[:rank], *strides[:rank]}, (*pads[:rank], *pads[2 : 2 + rank])
        product = Opcode.GEMM_T if sizes == {1} and not any(borders) else Opcode.CONV2D_T
        assert set(opcodes(model)) & {Opcode.CONV2D_T, Opcode.GEMM_T} == {product}
    else:
        assert all(command.block is None for command in model.commands)


@ROWS
@given(
    st.sampled_from(["MaxPool", "AveragePool"]), st.lists(small, min_size=2), st.lists(small, min_size=2),
    st.integers(0, 1), st.booleans(), st.booleans(), st.integers(1, 3), st.sampled_from(["macro", "tile"]),
)  # fmt: skip
def test_pools_of_all_shapes(
    operator: str, kernel: list[int], strides: list[int], pad: int, ceil: bool, counted: bool, rank: int,
    granularity: str,
) -> None:  # fmt: skip
    net = Net([2, 3, *[9, 7, 5][:rank]])
    kernel, strides = [*kernel, 2][:rank], [*strides, 1][:rank]
    assume(pad < min(kernel))
    assume(not (ceil and operator == "AveragePool"))  # the reference's are wrong; the node tests of onnx have some
    more = {"count_include_pad": int(counted)} if operator == "AveragePool" else {}
    net.add(operator, "x", kernel_shape=kernel, strides=strides, pads=[pad] * 2 * rank, ceil_mode=int(ceil), **more)
    model = net.compiled(granularity=granularity)
    assume(has_reference(model))
    assert_correct(model)


def has_reference(model: Compiled) -> bool:
    """Whether onnx 1.23's reference can be used: it fails, or makes another shape than its own inference, for some
    windows that begin behind the image."""
    try:
        wanted = reference(model.model, random_inputs(model, 1))
    except IndexError:
        return False
    return all(values.shape == model.graph.tensors[name].shape for name, values in wanted.items())


def residual_block(batch: int, kind: str = "float32") -> Net:
    """Two convolutions with batch normalization around a shortcut that is a convolution too, then the mean."""
    net = Net([batch, 4, 8, 8], kind)

    def conv(x: str, size: int) -> str:
        weights = net.weight(6, 4 if x == "x" else 6, size, size)
        y = net.add("Conv", x, weights, net.weight(6), pads=[size // 2] * 4)
        positive = numpy_helper.from_array(np.linspace(0.5, 1.5, 6).astype(net.kind), f"p{len(net.nodes)}")
        net.weights.append(positive)
        return net.add("BatchNormalization", y, net.weight(6), net.weight(6), net.weight(6), positive.name)

    inner = net.add("Relu", conv("x", 3))
    total = net.add("Relu", net.add("Add", conv(inner, 3), conv("x", 1)))
    net.add("GlobalAveragePool", net.add("MaxPool", total, kernel_shape=[2, 2], strides=[2, 2]))
    return net


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("left_out", ["", *PASSES])
def test_a_residual_block_without_each_pass(left_out: str, batch: int) -> None:
    assert_correct(residual_block(batch).compiled("all" if not left_out else f"-{left_out}"))


@pytest.mark.parametrize("granularity", ["macro", "tile"])
def test_a_residual_block_in_half_precision(granularity: str) -> None:
    assert_correct(residual_block(2, "float16").compiled(granularity=granularity))


@pytest.mark.parametrize("batch", [1, 3])
def test_a_residual_block_is_one_command_per_convolution(batch: int) -> None:
    """One copy brings the input to channels last; bias, normalization, addition and activation have no command."""
    wanted = [Opcode.COPY, Opcode.CONV2D_T, Opcode.CONV2D_T, Opcode.GEMM_T, Opcode.POOL, Opcode.REDUCE]
    assert sorted(opcodes(residual_block(batch).compiled())) == sorted(wanted)


@pytest.mark.parametrize("batch", [1, 2])
def test_concatenated_channels_stay_last(batch: int) -> None:
    """As in DenseNet: what was and what is new, side by side, go on."""
    net = Net([batch, 4, 6, 6])
    seen = net.add("Conv", "x", net.weight(4, 4, 1, 1))
    for channels in (4, 8, 12):
        grown = net.add("Relu", net.add("Conv", seen, net.weight(4, channels, 3, 3), pads=[1] * 4))
        seen = net.add("Concat", seen, grown, axis=1)
    net.add("GlobalAveragePool", seen)
    model = net.compiled()
    assert_correct(model)
    assert opcodes(model).count(Opcode.COPY) == 1 + 2 * 3, "the input, and the two parts of each concatenation"


def test_images_too_large_for_the_device_words_become_products() -> None:
    net = Net([1, 1, 70_000])
    net.add("Conv", "x", net.weight(1, 1, 3), strides=[2])
    model = net.compiled()
    assert Opcode.CONV2D_T not in opcodes(model)
    assert_correct(model)


def test_a_volume_is_a_product_of_patches() -> None:
    net = Net([1, 2, 4, 4, 4])
    net.add("Conv", "x", net.weight(3, 2, 2, 2, 2), net.weight(3))
    assert_correct(net.compiled())
