"""Layers cut into parts for several clusters: the same results, and never more cycles."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from model_runs import run_compiled
from shares import slow_rows

from npu_device.config import NpuConfig
from pyv_npu.config import load
from pyv_npu.workloads.compiled import target_of
from pyv_npu.workloads.timing import run_commands
from toolchain.codegen import Command
from toolchain.compiler import compile_model
from toolchain.examples import EXAMPLES
from toolchain.examples.builder import Builder
from toolchain.onnx_model.model import prepare


def faster_in_parts(commands: Sequence[Command]) -> int:
    """A device on which every cut saves time."""
    return (1 << 24) // len({command.descriptor.cluster for command in commands})


FAST = {"npu.dram.bytes_per_second": 4_000_000_000_000, "npu.noc.bytes_per_second": 4_000_000_000_000}
"""The DRAM does not limit: every layer that can be cut is."""
CASES = [
    ("cnn", 4, {}), ("cnn_int8", 4, {}), ("decoder", 4, {}), ("decoder_int8", 3, {}),
    ("gemm_fp16", 2, {}), ("separable", 4, {}),
    *slow_rows(("resnet18", 3, {"size": 64}), ("mobilenet_v2_int8", 4, {"size": 64})),
]  # fmt: skip


def separable() -> Any:
    """A depthwise convolution between pointwise ones, and the sum with what came before."""
    b = Builder()
    first = b.node("Conv", "x", b.weight(64, 16, 1, 1))
    depthwise = b.node("Conv", first, b.weight(64, 1, 3, 3), group=64, pads=[1] * 4)
    last = b.node("Add", "x", b.node("Conv", b.node("Relu", depthwise), b.weight(16, 64, 1, 1)))
    return b.model("separable", [1, 16, 28, 28], last, [1, 16, 28, 28])


MODELS = EXAMPLES | {"separable": separable}


@pytest.mark.parametrize(("name", "clusters", "shape"), CASES)
def test_parts_give_the_result_of_the_whole(name: str, clusters: int, shape: dict[str, int]) -> None:
    config = load([], None, {**FAST, "npu.clusters": clusters, "run.sim_level": "IA"}).config
    everywhere = target_of(config.npu)._replace(measured=faster_in_parts)
    compiled = compile_model(prepare(MODELS[name](**shape), name), everywhere)
    used = {command.descriptor.cluster for command in compiled.commands}
    assert len(used) > 1
    assert run_compiled(config, compiled, {}).correct


def test_parts_run_through_firmware() -> None:
    config = load([], None, {**FAST, "npu.clusters": 2}).config
    compiled = compile_model(prepare(EXAMPLES["cnn"](), "cnn"), target_of(config.npu))
    assert run_compiled(config, compiled, {}).correct


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
def test_more_clusters_are_never_slower(name: str) -> None:
    """Within 1 %."""
    proto, found = EXAMPLES[name](), []
    for clusters in (1, 2, 3, 4):
        config = replace(NpuConfig(), clusters=clusters)
        compiled = compile_model(prepare(proto, name), target_of(config))
        found.append(run_commands(compiled.commands, config).cycles)
    assert all(more <= fewer * 1.01 for fewer, more in pairwise(found)), found
    assert found[1] <= (0.6 if name == "resnet18" else 0.97) * found[0]
