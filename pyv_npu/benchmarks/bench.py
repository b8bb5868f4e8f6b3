"""Runs the workloads, each in a process of its own, and compares them with the peers."""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from npu_device.config import DramConfig, NpuConfig
from pyv_npu.benchmarks import workloads
from pyv_npu.benchmarks.host import calibrate, peak_memory
from pyv_npu.benchmarks.peers import CALIBRATION, LLAMA_FINISH, ONNXIM, PEERS, RECORDED
from pyv_npu.config import load
from pyv_npu.workloads.timing import run_commands
from toolchain.backend import Program

C1 = "onnxim-c1"
DEFAULT = "GEMM 4096, defaults"
WORKLOADS: dict[str, Callable[[NpuConfig], Program]] = {
    "GEMM 1024": lambda config: workloads.product(config, 1024),
    "GEMM 2048": lambda config: workloads.product(config, 2048),
    "GEMM 4096": lambda config: workloads.product(config, 4096),
    DEFAULT: lambda config: workloads.product(config, 4096, (128, 128, 64), 1),
    "ResNet-18": workloads.resnet18,
    "Llama prefill 100": lambda config: workloads.llama_layer(config, 100, 100),
    "Llama prefill 512": lambda config: workloads.llama_layer(config, 512, 512),
    "Llama decode 511": lambda config: workloads.llama_layer(config, 1, 512),
}
LIMITS = {"GEMM 1024": 1.0, "GEMM 4096": 1.0, "ResNet-18": 10.0}
"""Percent by which cycles may differ from ONNXim's."""
STAGE_LIMIT = 5.0


def run_one(name: str, config: str) -> dict[str, Any]:
    """Cycles, CPU seconds (compiling the workload and the loop included), memory; timing only, hash on."""
    npu = load([config]).config.npu
    if name == DEFAULT:
        npu = NpuConfig(dram=DramConfig(size=1 << 30))
    began = time.process_time()
    run = run_commands(WORKLOADS[name](npu).commands, npu)
    return {
        "cycles": run.cycles,
        "cpu_s": time.process_time() - began,
        "memory_mb": peak_memory(),
        "events": run.events.count,
        "events_sha256": run.events.hexdigest(),
        "stages": [[finished.layer, finished.cycle] for finished in run.layers],
    }


def table(config: str, names: list[str]) -> Iterator[str]:
    """The lines of the report."""
    scale = calibrate() / CALIBRATION
    latency = load([config]).config.npu.dram.latency
    yield f"configuration {config}; npu.dram.latency {latency} is calibrated, all else is given"
    yield f"peers: figures of {RECORDED}, CPU seconds scaled by {scale:.2f} to this host"
    yield ""
    yield f"{'tool':<24}{'workload':<21}{'cycles':>12}{'CPU s':>9}{'MB':>7}{'events':>10}"
    ours: dict[str, dict[str, Any]] = {}
    for name in names:
        command = [sys.executable, "-m", "pyv_npu.benchmarks.bench", "--one", name, "--config", config]
        made = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        ours[name] = made
        yield _row("PyV-NPU", name, made["cycles"], made["cpu_s"], made["memory_mb"], made["events"])
        for peer in PEERS:
            if peer.workload == name:
                cpu = None if peer.cpu_s is None else peer.cpu_s * scale
                yield _row(peer.tool, name, peer.cycles, cpu, peer.memory_mb, None)
    yield ""
    yield from _differences(ours)


def _row(tool: str, name: str, cycles: int | None, cpu: float | None, memory: int | None, events: int | None) -> str:
    cells = (
        "-" if cycles is None else f"{cycles:,}",
        "-" if cpu is None else f"{cpu:.2f}",
        memory or "-",
        events or "-",
    )
    return f"{tool:<24}{name:<21}{cells[0]:>12}{cells[1]:>9}{cells[2]:>7}{cells[3]:>10}"


def _differences(ours: dict[str, dict[str, Any]]) -> Iterator[str]:
    yield f"{'against ' + ONNXIM:<36}{'ours':>12}{'theirs':>12}{'':>10}{'limit':>8}"
    for peer in PEERS:
        if peer.tool == ONNXIM and peer.workload in ours and peer.cycles:
            yield _difference(peer.workload, ours[peer.workload]["cycles"], peer.cycles, LIMITS.get(peer.workload))
    if "Llama prefill 100" in ours:
        for (name, cycles), theirs in zip(ours["Llama prefill 100"]["stages"], LLAMA_FINISH, strict=True):
            yield _difference(f"  prefill 100: {name} finished", cycles, theirs, STAGE_LIMIT)


def _difference(name: str, mine: int, theirs: int, limit: float | None) -> str:
    percent = 100 * (mine - theirs) / theirs
    allowed = "" if limit is None else f"{limit:>6.0f} %"
    return f"{name:<36}{mine:>12,}{theirs:>12,}{percent:>8.2f} %{allowed:>8}"


def main() -> int:
    parser = argparse.ArgumentParser(description="the NPU model and other simulators")
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--config", default=C1, help="configuration of the device")
    parser.add_argument("--one", choices=WORKLOADS, help="run one workload here and print it as JSON")
    args = parser.parse_args()
    if args.one:
        sys.stdout.write(json.dumps(run_one(args.one, args.config)) + "\n")
        return 0
    unknown = [name for name in args.workloads if name not in WORKLOADS]
    if unknown:
        parser.error(f"no workload {unknown[0]}: choose of {', '.join(WORKLOADS)}")
    for line in table(args.config, args.workloads or list(WORKLOADS)):
        sys.stdout.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
