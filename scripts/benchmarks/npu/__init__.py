"""Cycles, CPU seconds and memory of the NPU model without a core, beside ONNXim, SCALE-Sim and ZigZag.

Each workload has a process of its own: timing only, with the hash of events (docs/npu-timing.md).
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from benchmarks.host import isolated, peak_memory
from benchmarks.npu import workloads
from benchmarks.peers import C1, LLAMA_FINISH, ONNXIM, PEERS, cpu_scale, scaled_peers
from benchmarks.runner import name_in
from npu_device.config import DramConfig, NpuConfig, TimedDramConfig
from pyv_npu.config import load
from pyv_npu.workloads.timing import run_commands
from toolchain.backend import Program

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
FOUR_CLUSTERS = "GEMM 1024, 4 clusters"
WORKLOADS[FOUR_CLUSTERS] = lambda config: workloads.product(config, 1024, (512, 512, 128))
"""A quarter of the result per cluster, k in steps of the array size."""
TIMED = {"GEMM 4096, 32 x DDR4": ("ddr4-3200", 32), "GEMM 4096, HBM3": ("hbm3", 32)}
"""Workloads with a timed DRAM instead of the configured one: (device, channels)."""
WORKLOADS |= dict.fromkeys(TIMED, WORKLOADS["GEMM 4096"])
LIMITS = {"GEMM 1024": 1.0, FOUR_CLUSTERS: 5.0, "GEMM 4096": 1.0, "ResNet-18": 10.0}
"""Maximum deviation of cycles from ONNXim in percent."""
STAGE_LIMIT = 5.0
CPU_LIMITS = {
    "GEMM 4096": 1.0, **dict.fromkeys(TIMED, 1.0), "ResNet-18": 0.5, "Llama prefill 512": 2.0, "Llama decode 511": 0.5,
}  # fmt: skip
"""Limit in CPU seconds on the machine of the peers."""


class WorkloadFigures(NamedTuple):
    """Figures of a workload. CPU seconds include compilation of the workload, not of the simulator."""

    cycles: int
    cpu_s: float
    memory_mb: int
    events: int
    stages: list[tuple[str, int]]
    """Layers and their finish cycles."""


def measure(name: str, config: str) -> WorkloadFigures:
    """Compile and time a workload in this process."""
    npu = load([config]).config.npu
    if name == DEFAULT:
        npu = NpuConfig(dram=DramConfig(size=1 << 30))
    if name == FOUR_CLUSTERS:
        npu = replace(npu, clusters=4)
    if name in TIMED:
        device, channels = TIMED[name]
        timed = TimedDramConfig(device=device)
        npu = replace(npu, dram=replace(npu.dram, model="timed", channels=channels, interleave=256, timed=timed))
    run_commands(workloads.product(npu, 128).commands, npu)  # compiles or loads native code
    start = time.process_time()
    run = run_commands(WORKLOADS[name](npu).commands, npu)
    cpu = time.process_time() - start
    stages = [(layer.layer, layer.cycle) for layer in run.layers]
    return WorkloadFigures(run.cycles, cpu, peak_memory(), run.events.count, stages)


def table(config: str, names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the report."""
    latency = load([config]).config.npu.dram.latency
    scale = cpu_scale()
    source, peers = scaled_peers(scale)
    yield f"configuration {config}; npu.dram.latency {latency} is calibrated, all else is given"
    yield f"peers: {source}"
    yield ""
    yield f"{'tool':<24}{'workload':<21}{'cycles':>12}{'CPU s':>9}{'MB':>7}{'events':>10}"
    results: dict[str, WorkloadFigures] = {}
    for name in names:
        ours = results[name] = isolated(measure, name, config)
        yield _row("PyV-NPU", name, ours.cycles, ours.cpu_s, ours.memory_mb, ours.events)
        for peer in peers:
            if peer.workload == name:
                yield _row(peer.tool, name, peer.cycles, peer.cpu_s, peer.memory_mb, None)
    yield ""
    yield from _differences(results)
    yield ""
    yield f"{'CPU seconds':<36}{'ours':>12}{'limit':>12}"
    for name, figures in results.items():
        if name in CPU_LIMITS:
            yield f"{name:<36}{figures.cpu_s:>12.2f}{CPU_LIMITS[name] * scale:>12.2f}"


def _row(tool: str, name: str, cycles: int | None, cpu: float | None, memory: int | None, events: int | None) -> str:
    cells = (
        "-" if cycles is None else f"{cycles:,}",
        "-" if cpu is None else f"{cpu:.2f}",
        memory or "-",
        events or "-",
    )
    return f"{tool:<24}{name:<21}{cells[0]:>12}{cells[1]:>9}{cells[2]:>7}{cells[3]:>10}"


def _differences(results: dict[str, WorkloadFigures]) -> Iterator[str]:
    yield f"{'against ' + ONNXIM:<36}{'ours':>12}{'theirs':>12}{'':>10}{'limit':>8}"
    for peer in PEERS:
        if peer.tool == ONNXIM and peer.workload in results and peer.cycles:
            yield _difference(peer.workload, results[peer.workload].cycles, peer.cycles, LIMITS.get(peer.workload))
    if "Llama prefill 100" in results:
        for (name, cycles), theirs in zip(results["Llama prefill 100"].stages, LLAMA_FINISH, strict=True):
            yield _difference(f"  prefill 100: {name} finished", cycles, theirs, STAGE_LIMIT)


def _difference(name: str, ours: int, theirs: int, limit: float | None) -> str:
    percent = 100 * (ours - theirs) / theirs
    allowed = "" if limit is None else f"{limit:>6.0f} %"
    return f"{name:<36}{ours:>12,}{theirs:>12,}{percent:>8.2f} %{allowed:>8}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workloads", nargs="*", type=name_in(WORKLOADS), metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--config", default=C1, help="configuration of the device")


def run(args: argparse.Namespace) -> None:
    """Print each line as soon as its workload is measured."""
    for line in table(args.config, args.workloads or list(WORKLOADS)):
        print(line, flush=True)
