"""Every pass that runs by default saves cycles: of a model that needs it, on the NPU model."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from npu_device.config import DramConfig, NpuConfig
from pyv_npu.config.shape_file import shape_of
from pyv_npu.workloads.compiled import target_of
from pyv_npu.workloads.timing import run_commands
from toolchain.compiler import compile_model
from toolchain.decoders.builtin import compile_shape
from toolchain.decoders.shapes import Job
from toolchain.examples import EXAMPLES
from toolchain.examples.builder import Builder
from toolchain.onnx_model.model import prepare
from toolchain.passes import PASSES

ONE_ENGINE = replace(NpuConfig(), te=replace(NpuConfig().te, count=1))


def cycles(proto: Any, config: NpuConfig, passes: str) -> int:
    compiled = compile_model(prepare(proto, "m"), target_of(config), passes=passes)
    return run_commands(compiled.commands, config).cycles


def two_branches() -> Any:
    """A product that nothing waits for, then one that a long chain waits for."""
    sizes = {"first": 512, "second": 256}
    weights = [numpy_helper.from_array(np.ones((256, n), np.float32), f"w_{name}") for name, n in sizes.items()]
    nodes = [helper.make_node("MatMul", ["x", f"w_{name}"], [name]) for name in sizes]
    last = "second"
    for index in range(4):
        nodes.append(helper.make_node("Softmax", [last], [f"s{index}"]))
        last = f"s{index}"
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [256, size]) for name, size in
               (("first", 512), (last, 256))]  # fmt: skip
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [256, 256])
    graph = helper.make_graph(nodes, "branches", [given], outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def pointwise() -> Any:
    """A convolution that is faster on three engines than on four."""
    b = Builder()
    return b.model("m", [1, 32, 28, 28], b.node("Conv", "x", b.weight(576, 32, 1, 1)), [1, 576, 28, 28])


MODELS: dict[str, tuple[Any, NpuConfig]] = {name: (EXAMPLES["cnn"], NpuConfig()) for name in PASSES} | {
    "placement": (EXAMPLES["gemm"], NpuConfig()),
    "schedule": (two_branches, ONE_ENGINE),
    "engines": (pointwise, replace(NpuConfig(), te=replace(NpuConfig().te, count=4))),
    "clusters": (EXAMPLES["gemm"], replace(NpuConfig(), clusters=2, te=replace(NpuConfig().te, count=1))),
}


@pytest.mark.parametrize("passes", ["all", "-placement", "-prefetch", "-tiling", "none"])
@pytest.mark.parametrize("size", [32_768, 262_144])
def test_tiles_fit_small_scratchpads_whatever_passes_run(size: int, passes: str) -> None:
    default = NpuConfig()
    config = replace(default, spm=replace(default.spm, size=size), te=replace(default.te, acc_bytes=4096))
    for name in ("cnn", "decoder"):
        assert cycles(EXAMPLES[name](), config, passes) > 0  # the device refuses nothing


@pytest.mark.parametrize("name", [name for name in PASSES if name not in ("quantization", "kv-forwarding")])
def test_a_model_takes_longer_without_the_pass(name: str) -> None:
    proto, config = MODELS[name]
    assert cycles(proto(), config, "all") < cycles(proto(), config, f"-{name}")


@pytest.mark.parametrize("requests", [1, 64])  # activations in the scratchpad, or in DRAM
def test_a_token_takes_longer_when_its_own_keys_are_read_back(requests: int) -> None:
    config = replace(NpuConfig(), dram=DramConfig(size=256_000_000_000))
    job = Job(shape_of("mistral-7b"), layers=1, t_max=256, requests=requests)
    seen = []
    for passes in ("all", "-kv-forwarding"):
        made = compile_shape(job, target_of(config), 1, passes)
        seen.append(run_commands(made.commands, config, memory=made.position(200)))
    chip, back = seen
    assert chip.cycles < back.cycles
    assert chip.counters is not None and back.counters is not None
    row = 2 * 8 * 128 // 2 * requests  # keys and values of 8 heads, 4 bits
    aligned = back.counters["dram_bytes_read"] - chip.counters["dram_bytes_read"]
    assert aligned == row  # one row per head and layer less
    assert chip.counters["dram_bytes_written"] == back.counters["dram_bytes_written"]
