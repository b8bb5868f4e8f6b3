"""ResNet-18 as an ONNX model: compiled, timed without numbers, and run with real numbers through firmware.

Each measurement has a process of its own and is printed with its limit and with the peers' figures that
`peers` records.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyv_npu.benchmarks.host import calibrate, peak_memory
from pyv_npu.benchmarks.peers import CALIBRATION, ONNXIM, PEERS, RECORDED
from pyv_npu.config import load

CONFIG = "onnxim-c1"
WORKLOAD = "ResNet-18"
LIMITS = {"compile": 5.0, "timing": 0.5, "numbers": 10.0}
"""CPU seconds."""
CYCLES_LIMIT = 10.0
"""Percent from ONNXim."""
MEMORY_LIMIT = 1024
"""MiB."""


def compile_and_time(config: str) -> dict[str, Any]:
    """fp16 on the device of a configuration, at CA_HYBRID without a core."""
    from pyv_npu.workloads.compiled import target_of
    from pyv_npu.workloads.timing import run_commands
    from toolchain.compiler import compile_model
    from toolchain.examples.networks import resnet18
    from toolchain.onnx_model.model import prepare

    settings = load([config]).config
    proto = resnet18(kind="float16")
    began = time.process_time()
    compiled = compile_model(prepare(proto, WORKLOAD), target_of(settings.npu))
    ready = time.process_time()
    made = run_commands(compiled.commands, settings.npu)
    ended = time.process_time()
    explained = run_commands(compiled.commands, settings.npu, explained=True).explanation
    assert explained is not None
    return {
        "compile": ready - began, "timing": ended - ready, "cycles": made.cycles, "events": made.events.count,
        "commands": len(compiled.commands), "memory": peak_memory(), "explanation": explained.to_json(),
    }  # fmt: skip


def numbers() -> dict[str, Any]:
    """fp32 on the default device: the image runs through firmware on the core; the reference is not computed."""
    from pyv_npu.workloads.compiled import target_of
    from pyv_npu.workloads.data import random_inputs
    from pyv_npu.workloads.firmware import run_program
    from pyv_npu.workloads.model import CompiledModel
    from toolchain.compiler import compile_model
    from toolchain.examples.networks import resnet18
    from toolchain.onnx_model.model import prepare

    config = load().config
    compiled = compile_model(prepare(resnet18(), WORKLOAD), target_of(config.npu))
    began = time.process_time()
    program = CompiledModel(compiled, random_inputs(compiled, config.run.seed)).program()
    outcome = run_program(config, program, config.run.args)
    return {
        "numbers": time.process_time() - began, "cycles": outcome.json["cycles"], "memory": peak_memory(),
        "exit_code": outcome.json["exit_code"],
    }  # fmt: skip


STEPS: dict[str, Callable[[str], dict[str, Any]]] = {
    "timing": compile_and_time, "numbers": lambda config: numbers(),
}  # fmt: skip


def table(config: str) -> Iterator[str]:
    """The lines of the report."""
    scale = calibrate() / CALIBRATION
    found = {}
    for step in STEPS:
        command = [sys.executable, "-m", "pyv_npu.benchmarks.models", "--one", step, "--config", config]
        found[step] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    timed, real = found["timing"], found["numbers"]
    yield f"{'ResNet-18 from ONNX':<44}{'measured':>14}{'limit':>10}"
    yield _row("compile, fp16, CPU s", f"{timed['compile']:.2f}", f"{LIMITS['compile']:.1f}")
    yield _row(f"timing only, CA_HYBRID, {config}, CPU s", f"{timed['timing']:.2f}", f"{LIMITS['timing']:.1f}")
    yield _row("real numbers through firmware, fp32, CPU s", f"{real['numbers']:.2f}", f"{LIMITS['numbers']:.1f}")
    yield _row("largest process, MiB", str(max(timed["memory"], real["memory"])), str(MEMORY_LIMIT))
    for peer in PEERS:
        if peer.workload == WORKLOAD and peer.tool == ONNXIM and peer.cycles:
            percent = 100 * (timed["cycles"] - peer.cycles) / peer.cycles
            yield _row(f"cycles, {config}", f"{timed['cycles']:,}", "")
            yield _row(f"  against {peer.tool}, {peer.cycles:,}", f"{percent:+.2f} %", f"{CYCLES_LIMIT:.0f} %")
    yield _row("cycles, defaults, fp32, with the core", f"{real['cycles']:,}", "")
    yield ""
    yield f"peers: figures of {RECORDED}, CPU seconds scaled by {scale:.2f} to this host"
    for peer in PEERS:
        if peer.workload == WORKLOAD and peer.cpu_s is not None:
            yield f"  {peer.tool:<24}{peer.cpu_s * scale:>9.2f} CPU s{peer.memory_mb or 0:>8} MB"
    yield ""
    yield "where the cycles went"
    for cause, cycles in sorted(timed["explanation"]["causes"].items(), key=lambda item: -item[1]):
        if cycles:
            yield f"  {cause:<16}{cycles:>12,}{100 * cycles / timed['cycles']:>8.1f} %"


def _row(what: str, measured: str, limit: str) -> str:
    return f"{what:<44}{measured:>14}{limit:>10}"


def main() -> int:
    parser = argparse.ArgumentParser(description="ResNet-18 from ONNX, its limits and other simulators")
    parser.add_argument("--config", default=CONFIG, help="configuration of the device that is timed")
    parser.add_argument("--one", choices=STEPS, help="one measurement, here, as JSON")
    parser.add_argument("--only", choices=("splits",), help="cycles by the number of engines and of clusters")
    args = parser.parse_args()
    lines: Iterable[str] = [json.dumps(STEPS[args.one](args.config))] if args.one else table(args.config)
    if args.only:
        from pyv_npu.benchmarks import splits

        lines = splits.table()
    for line in lines:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
