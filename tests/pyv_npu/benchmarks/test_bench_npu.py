"""The NPU model and ONNXim's configuration C1 (docs/npu-timing.md): cycles within the limits, memory bounded."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from npu_device.config import NpuConfig
from pyv_npu.benchmarks import bench, workloads
from pyv_npu.benchmarks.peers import LLAMA_FINISH, ONNXIM, PEERS
from pyv_npu.workloads.timing import run_commands

ROOT = Path(__file__).resolve().parent.parent.parent.parent
C1 = bench.C1
THEIRS = {peer.workload: peer.cycles for peer in PEERS if peer.tool == ONNXIM}


def measured(name: str) -> dict[str, Any]:
    """One workload in a process of its own."""
    command = [sys.executable, "-m", "pyv_npu.benchmarks.bench", "--one", name, "--config", C1]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=120)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("name", ["GEMM 1024", "GEMM 4096", "ResNet-18"])
def test_cycles_are_onnxims_within_the_limit(name: str) -> None:
    theirs = THEIRS[name]
    assert theirs is not None
    assert abs(measured(name)["cycles"] - theirs) <= theirs * bench.LIMITS[name] / 100


def test_every_stage_of_a_llama_layer_finishes_within_five_percent() -> None:
    stages = measured("Llama prefill 100")["stages"]
    for (name, cycles), theirs in zip(stages, LLAMA_FINISH, strict=True):
        assert abs(cycles - theirs) <= theirs * bench.STAGE_LIMIT / 100, name


@pytest.mark.parametrize("name", [bench.DEFAULT, "Llama prefill 512", "Llama decode 511"])
def test_memory_stays_bounded(name: str) -> None:
    """The times are scripts/bench-npu's to tell: machines are shared, and a benchmark is no test."""
    assert measured(name)["memory_mb"] < 300


def test_events_grow_with_the_tiles() -> None:
    counts = {}
    for size in (512, 1024):
        program = workloads.product(NpuConfig(), size, (128, 128, 64), 1)
        counts[size] = run_commands(program.commands, NpuConfig()).events.count / (size**3)
    assert counts[1024] == pytest.approx(counts[512], rel=0.05)


def test_the_table_prints_ours_beside_the_peers() -> None:
    lines = "\n".join(bench.table(C1, ["GEMM 1024"]))
    assert "PyV-NPU" in lines
    assert "67,284" in lines
    assert "calibrated" in lines
