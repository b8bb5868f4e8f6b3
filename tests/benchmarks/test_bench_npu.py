"""The NPU model and ONNXim's configuration C1 (docs/npu-timing.md): cycles within the limits, memory bounded."""

import pytest

from benchmarks import npu
from benchmarks.host import isolated
from benchmarks.npu import WorkloadFigures, workloads
from benchmarks.peers import C1, LLAMA_FINISH, ONNXIM, PEERS
from npu_device.config import NpuConfig
from pyv_npu.workloads.timing import run_commands

THEIRS = {peer.workload: peer.cycles for peer in PEERS if peer.tool == ONNXIM}


def measure(name: str) -> WorkloadFigures:
    """Measures a workload in a process of its own."""
    return isolated(npu.measure, name, C1)


@pytest.mark.parametrize("name", ["GEMM 1024", "GEMM 1024, 4 clusters", "GEMM 4096", "ResNet-18"])
def test_cycles_are_onnxims_within_the_limit(name: str) -> None:
    theirs = THEIRS[name]
    assert theirs is not None
    assert abs(measure(name).cycles - theirs) <= theirs * npu.LIMITS[name] / 100


def test_every_stage_of_a_llama_layer_finishes_within_five_percent() -> None:
    stages = measure("Llama prefill 100").stages
    for (name, cycles), theirs in zip(stages, LLAMA_FINISH, strict=True):
        assert abs(cycles - theirs) <= theirs * npu.STAGE_LIMIT / 100, name


@pytest.mark.parametrize("name", [npu.DEFAULT, "Llama prefill 512", "Llama decode 511"])
def test_memory_stays_bounded(name: str) -> None:
    """Times are left to `scripts/bench npu`: machines are shared, and a benchmark is no test."""
    assert measure(name).memory_mb < 300


def test_events_grow_with_the_tiles() -> None:
    counts = {}
    for size in (512, 1024):
        program = workloads.product(NpuConfig(), size, (128, 128, 64), 1)
        counts[size] = run_commands(program.commands, NpuConfig()).events.count / (size**3)
    assert counts[1024] == pytest.approx(counts[512], rel=0.05)


def test_the_table_prints_ours_beside_the_peers() -> None:
    lines = "\n".join(npu.table(C1, ["GEMM 1024"]))
    assert "PyV-NPU" in lines
    assert "67,284" in lines
    assert "calibrated" in lines
