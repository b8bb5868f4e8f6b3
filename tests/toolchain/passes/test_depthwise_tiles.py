"""Convolutions with groups: the channels of several groups move together."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import draws

from npu_device.abi.opcodes import BITS, DataType
from npu_device.config import NpuConfig
from npu_device.operations.windows import Windows
from pyv_npu.workloads.compiled import target_of
from pyv_npu.workloads.timing import TimingRun, run_commands
from toolchain.backend import compile_layers
from toolchain.ir.data_types import NUMPY
from toolchain.ir.graph import Graph, LayerIR, Role, TensorIR


def depthwise(channels: int, size: int, taps: int, stride: int, kind: DataType, groups: int = 0) -> Graph:
    """A convolution with one group per channel if `groups` is 0."""
    pad, groups = taps // 2, groups or channels
    shape = Windows(1, size, size, taps, taps, stride, stride, 1, 1, pad, pad, pad, pad)
    weights = (taps, taps, channels // groups, channels)
    tensors = {
        "x": TensorIR("x", Role.ACTIVATION, (1, size, size, channels), kind),
        "w": TensorIR("w", Role.WEIGHT, weights, kind),
        "y": TensorIR("y", Role.ACTIVATION, (1, shape.p, shape.q, channels), kind),
    }
    attributes = {**shape._asdict(), "cin": channels, "cout": channels, "groups": groups}
    layer = LayerIR("conv", "CONV2D_T", ("x", "w"), ("y",), attributes)
    return Graph("depthwise", tensors, [layer], {"w": np.ones(weights, NUMPY[kind])}, ("x",), ("y",))


def run(graph: Graph, config: NpuConfig, *, measured: bool = True) -> TimingRun:
    """Without `measure_cost`, tiles that a layer has are kept."""
    target = target_of(config)
    return run_commands(compile_layers(graph, target if measured else target._replace(measured=None)).commands, config)


def moved(timed: TimingRun) -> int:
    """Bytes of operands that crossed the pins of the DRAM."""
    assert timed.counters is not None
    return timed.counters["dram_bytes_read"] + timed.counters["dram_bytes_written"]


MOBILENET_V2 = [
    (32, 112, 1), (96, 112, 2), (144, 56, 1), (144, 56, 2), (192, 28, 1), (192, 28, 2), (384, 14, 1), (576, 14, 1),
    (576, 14, 2), (960, 7, 1),
]  # fmt: skip
"""(channels, size, stride) of its depthwise convolutions; Sandler et al. 2018, table 2."""


@pytest.mark.parametrize(("channels", "size", "stride"), MOBILENET_V2)
def test_traffic_is_that_of_the_tensors(channels: int, size: int, stride: int) -> None:
    graph = depthwise(channels, size, 3, stride, DataType.FP32)
    config = NpuConfig()
    timed = run(graph, config)
    needed = sum(tensor.size for tensor in graph.tensors.values())
    assert moved(timed) <= 1.2 * needed
    target = target_of(config)
    rate = min(target.dram_rate, target.channels * target.channel_rate)
    assert timed.cycles <= 1.5 * needed / rate


@settings(max_examples=draws(15), deadline=None)
@given(
    st.integers(1, 130), st.integers(3, 40), st.sampled_from((3, 5)), st.integers(1, 2),
    st.sampled_from((DataType.FP32, DataType.FP16)), st.sampled_from((1 << 15, 1 << 18, 1 << 21)),
)  # fmt: skip
def test_any_shape_fits_its_scratchpad(
    channels: int, size: int, taps: int, stride: int, kind: DataType, spm: int
) -> None:
    config = NpuConfig()
    graph = depthwise(channels, size, taps, stride, kind)
    assert run(graph, replace(config, spm=replace(config.spm, size=spm))).cycles > 0  # the device refuses nothing


@pytest.mark.parametrize("kind", ["roofline", "systolic_ws", "systolic_os", "systolic_ws_pipe", "chained_ve"])
def test_every_engine_does_all_products(kind: str) -> None:
    """Groups together take fewer cycles than groups one by one."""
    config = NpuConfig()
    config = replace(config, te=replace(config.te, kind=kind))
    graph = depthwise(64, 14, 3, 1, DataType.FP32)
    one_by_one = replace(graph, layers=[graph.layers[0].having(tile=(196, 1, 9), buffers=1)])
    assert run(graph, config).cycles < run(one_by_one, config, measured=False).cycles


def test_groups_of_several_channels() -> None:
    graph = depthwise(256, 28, 3, 1, DataType.FP32, groups=32)
    needed = sum(prod(one.shape) * BITS[one.dtype] // 8 for one in graph.tensors.values())
    assert moved(run(graph, NpuConfig())) <= 1.2 * needed
