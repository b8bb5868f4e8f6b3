"""CPU time of runs with `run.sanitize` over runs without.

Runs alternate; the minimum CPU time of each is used (docs/reliability.md).
"""

import argparse
import time

from benchmarks.runner import positive
from pyv_npu.config import load
from pyv_npu.workloads.firmware import run_program

PROGRAMS = ("submit_latency", "submit_load", "gemm", "irq_completion", "fault_queue_full")
SANITIZERS: tuple[tuple[str, ...], ...] = ((), ("boundary",), ("memory",))


def ratios(program: str, mode: str, repeats: int) -> str:
    """Return a line with the CPU time of a program in a mode and the ratios with sanitizers."""
    best: dict[tuple[str, ...], float] = {}
    for _ in range(repeats):
        for sanitize in SANITIZERS:
            config = load(overrides={"npu.mode": mode, "run.sanitize": sanitize}).config
            start = time.process_time()
            run_program(config, program)
            cpu = time.process_time() - start
            best[sanitize] = min(cpu, best.get(sanitize, cpu))
    base = best.pop(())
    text = ", ".join(f"{names[0]} {cpu / base:.2f}" for names, cpu in best.items())
    return f"{base:.3f} CPU s without; with {text} times that"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"default: {', '.join(PROGRAMS)}")
    parser.add_argument("--repeats", type=positive, default=3, help="of every measurement (default %(default)s)")


def run(args: argparse.Namespace) -> None:
    """Print a line for each program and mode."""
    for program in args.programs or PROGRAMS:
        for mode in ("loose", "tight"):
            print(f"{program} {mode}: {ratios(program, mode, args.repeats)}", flush=True)
