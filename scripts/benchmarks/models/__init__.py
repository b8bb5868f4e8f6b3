"""CPU time of ResNet-18 from ONNX: compiler, timing alone, a run with real numbers; other simulators.

Each measurement has a process of its own and is printed with its limit (docs/models.md).
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.host import isolated, peak_memory
from benchmarks.models import splits
from benchmarks.peers import C1, ONNXIM, cpu_scale, scaled_peers
from pyv_native.files import check_output, write_text
from pyv_npu.config import load
from pyv_npu.errors import UsageError
from pyv_npu.sections import as_text
from pyv_npu.workloads.compiled import target_of
from pyv_npu.workloads.data import random_inputs
from pyv_npu.workloads.firmware import run_program
from pyv_npu.workloads.model import CompiledModel
from pyv_npu.workloads.timing import run_commands
from toolchain.compiler import compile_model
from toolchain.examples.networks import resnet18
from toolchain.onnx_model.model import prepare

WORKLOAD = "ResNet-18"
LIMITS = {"compile": 5.0, "timing": 0.5, "numbers": 10.0}
"""Limits in CPU seconds."""
CYCLES_LIMIT = 10.0
"""Maximum deviation from ONNXim in percent."""
MEMORY_LIMIT = 1024
"""Limit in MiB."""


class TimingFigures(NamedTuple):
    """Figures of compilation and of timing without a core."""

    compile_s: float
    timing_s: float
    cycles: int
    memory: int
    causes: dict[str, int]
    """Cycles by cause."""


class FirmwareFigures(NamedTuple):
    """Figures of a run with real numbers."""

    cpu_s: float
    cycles: int
    memory: int


def time_alone(config: str) -> TimingFigures:
    """Compile in fp16, and time at CA_HYBRID without a core on the device of a configuration."""
    settings = load([config]).config
    proto = resnet18(kind="float16")
    start = time.process_time()
    compiled = compile_model(prepare(proto, WORKLOAD), target_of(settings.npu))
    ready = time.process_time()
    cycles = run_commands(compiled.commands, settings.npu).cycles
    end = time.process_time()
    explanation = run_commands(compiled.commands, settings.npu, explained=True).explanation
    assert explanation is not None
    causes: dict[str, Any] = explanation.to_json()["causes"]
    return TimingFigures(ready - start, end - ready, cycles, peak_memory(), causes)


def run_with_numbers() -> FirmwareFigures:
    """Run the fp32 image by firmware on the core of the default device, without the reference."""
    config = load().config
    compiled = compile_model(prepare(resnet18(), WORKLOAD), target_of(config.npu))
    start = time.process_time()
    program = CompiledModel(compiled, random_inputs(compiled, config.run.seed)).program()
    cycles = run_program(config, program, config.run.args).json["cycles"]
    return FirmwareFigures(time.process_time() - start, cycles, peak_memory())


def table(config: str) -> Iterator[str]:
    """Yield the lines of the report."""
    source, peers = scaled_peers(cpu_scale())
    peers = [peer for peer in peers if peer.workload == WORKLOAD]
    timing, numbers = isolated(time_alone, config), isolated(run_with_numbers)
    yield f"{'ResNet-18 from ONNX':<44}{'measured':>14}{'limit':>10}"
    yield _row("compile, fp16, CPU s", f"{timing.compile_s:.2f}", f"{LIMITS['compile']:.1f}")
    yield _row(f"timing only, CA_HYBRID, {config}, CPU s", f"{timing.timing_s:.2f}", f"{LIMITS['timing']:.1f}")
    yield _row("real numbers through firmware, fp32, CPU s", f"{numbers.cpu_s:.2f}", f"{LIMITS['numbers']:.1f}")
    yield _row("largest process, MiB", str(max(timing.memory, numbers.memory)), str(MEMORY_LIMIT))
    for peer in peers:
        if peer.tool == ONNXIM and peer.cycles:
            percent = 100 * (timing.cycles - peer.cycles) / peer.cycles
            yield _row(f"cycles, {config}", f"{timing.cycles:,}", "")
            yield _row(f"  against {peer.tool}, {peer.cycles:,}", f"{percent:+.2f} %", f"{CYCLES_LIMIT:.0f} %")
    yield _row("cycles, defaults, fp32, with the core", f"{numbers.cycles:,}", "")
    yield ""
    yield f"peers: {source}"
    for peer in peers:
        if peer.cpu_s is not None:
            yield f"  {peer.tool:<24}{peer.cpu_s:>9.2f} CPU s{peer.memory_mb or 0:>8} MB"
    yield ""
    yield "where the cycles went"
    for cause, cycles in sorted(timing.causes.items(), key=lambda item: -item[1]):
        if cycles:
            yield f"  {cause:<16}{cycles:>12,}{100 * cycles / timing.cycles:>8.1f} %"


def _row(title: str, measured: str, limit: str) -> str:
    return f"{title:<44}{measured:>14}{limit:>10}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", default=C1, help="configuration of the device that is timed")
    parser.add_argument(
        "--only", choices=splits.STUDIES,
        help="splits: cycles of models by engines and by clusters; resources: cycles of gemm, ResNet-18 and layers of "
             "llama2-7b by engines, DMA channels, banks and bandwidth",
    )  # fmt: skip
    parser.add_argument("--page", type=Path, metavar="FILE", help="draw what --only measures on one HTML page")


def run(args: argparse.Namespace) -> None:
    """Print the tables; with --page also draw them."""
    load([args.config])
    if args.page and not args.only:
        raise UsageError(f"--page {args.page}: draws a study; add --only {' or '.join(splits.STUDIES)}")
    if not args.only:
        for line in table(args.config):
            print(line, flush=True)
        return
    if args.page:
        check_output(args.page)
    measured = []
    for section in splits.sections(args.only):
        measured.append(section)
        print(as_text([section]), flush=True)
    print(splits.LEGEND)
    if args.page:
        write_text(args.page, splits.page(args.only, measured))
