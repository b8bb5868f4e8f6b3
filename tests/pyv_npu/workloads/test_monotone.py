"""Sweeps of layers and models are monotone: more bandwidth, more engines or more scratchpad cost no cycles, and with
`compiler.objective: energy` more scratchpad costs no traffic."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
from shares import slow

from pyv_npu.config import Config, load
from pyv_npu.workloads.compiled import mapping_of, target_of
from pyv_npu.workloads.timing import run_commands
from toolchain.compiler import compile_model
from toolchain.examples import EXAMPLES
from toolchain.examples.builder import Builder
from toolchain.onnx_model.model import prepare

NEAR = 1.01
SLOW_DRAM = 25_600_000_000
SPM = tuple(1 << bits for bits in range(19, 24))
AXES = {
    "bandwidth": ("npu.dram.bytes_per_second", tuple(12_800_000_000 << bits for bits in range(5)), {}),
    "engines": ("npu.te.count", (1, 2, 4, 8), {}),
    "scratchpad": ("npu.spm.size", SPM, {}),
    "scratchpad, slow DRAM": ("npu.spm.size", SPM, {"npu.dram.bytes_per_second": SLOW_DRAM}),
    "scratchpad, tiles of 64": ("npu.spm.size", SPM, {"compiler.tile": "64"}),
}  # fmt: skip
"""Key, ascending values, other keys."""


def convolution(cin: int, cout: int, size: int, kernel: int) -> Any:
    b = Builder()
    y = b.node("Conv", "x", b.weight(cout, cin, kernel, kernel), pads=[kernel // 2] * 4)
    return b.model("m", [1, cin, size, size], y, [1, cout, size, size])


LAYERS: dict[str, Callable[[], Any]] = {
    "kernel": partial(convolution, 64, 64, 56, 3), "pointwise": partial(convolution, 256, 64, 56, 1),
    "deep": partial(convolution, 256, 256, 14, 3), "wide": partial(EXAMPLES["gemm"], 384, 3072, 768),
    "cube": partial(EXAMPLES["gemm"], 512, 512, 512),
}  # fmt: skip
MODELS = ("decoder", "resnet18_int8", "mobilenet_v2", "mobilenet_v2_int8")
SOURCES = {name: cache(make) for name, make in (LAYERS | EXAMPLES).items()}


def run(name: str, keys: dict[str, object]) -> tuple[int, int]:
    """Cycles of a layer or model, and its bytes of DRAM."""
    config: Config = load([], None, keys).config
    model = compile_model(prepare(SOURCES[name](), name), target_of(config.npu, mapping_of(config)))
    ran = run_commands(model.commands, config.npu)
    assert ran.counters is not None
    return ran.cycles, ran.counters["dram_bytes_read"] + ran.counters["dram_bytes_written"]


def worst(figures: list[int]) -> float:
    """The largest figure over the least before it."""
    return max(each / min(figures[: i + 1]) for i, each in enumerate(figures[1:]))


LARGE = "wide", "cube"
"""Layers whose sweeps take long: the default suite varies the scratchpad alone."""


@pytest.mark.parametrize(
    ("name", "axis"),
    [
        pytest.param(name, axis, marks=(pytest.mark.slow,) * (name in LARGE and axis != "scratchpad"))
        for name in LAYERS
        for axis in AXES
    ],
)
def test_more_costs_no_cycles(name: str, axis: str) -> None:
    key, values, others = AXES[axis]
    cycles = [run(name, {key: value, **others})[0] for value in values]
    assert worst(cycles) <= NEAR, cycles


@pytest.mark.slow
@pytest.mark.parametrize("rate", [12_800_000_000, 51_200_000_000, 102_400_000_000])
@pytest.mark.parametrize("name", MODELS)
def test_more_scratchpad_costs_a_model_no_cycles(name: str, rate: int) -> None:
    """Banks grow with the scratchpad, and with them what engines read and write at the same time in one: with 8 MiB
    ResNet-18 in int8 takes 1.1 % more than with 4 (docs/mapping.md)."""
    cycles = [run(name, {"npu.spm.size": size, "npu.dram.bytes_per_second": rate})[0] for size in SPM[:-1]]
    assert worst(cycles) <= NEAR, cycles


@pytest.mark.slow
@pytest.mark.parametrize("size", [1 << 21, 1 << 23])
@pytest.mark.parametrize("name", MODELS)
def test_more_engines_cost_a_model_no_cycles(name: str, size: int) -> None:
    cycles = [run(name, {"npu.spm.size": size, "npu.te.count": count})[0] for count in (1, 2, 3, 4)]
    assert worst(cycles) <= NEAR, cycles


def test_loads_that_share_banks_with_reads_are_not_taken_for_free() -> None:
    """Weights of small tiles pass quickly enough at 409.6 GB/s, but the engine reads in the banks that they fill."""
    cycles = [
        run("kernel", {"npu.spm.size": 1_695_744, "npu.dram.bytes_per_second": rate,
                       "npu.noc.bytes_per_second": rate * 5 // 2})[0]
        for rate in (204_800_000_000, 409_600_000_000)
    ]  # fmt: skip
    assert worst(cycles) <= NEAR, cycles


@pytest.mark.parametrize("name", [*(name for name in LAYERS if name not in LARGE), *slow(*LARGE)])
def test_more_scratchpad_costs_no_traffic(name: str) -> None:
    moved = [run(name, {"npu.spm.size": size, "compiler.objective": "energy"})[1] for size in SPM]
    assert worst(moved) <= NEAR and moved[-1] < moved[0], moved
