"""CPU time from the start of a process to its first instruction, and to native code."""

import argparse
import statistics
import sys
from itertools import pairwise
from pathlib import Path

from benchmarks.core.processes import run_cold

PREPARE = """
from pyv_ext.engines.fast import engine
engine.WARM_UP = 0
cold, warm = Platform(config), Platform(config)
for platform in (cold, warm):
    platform.load(find_program('hello'))
"""
NATIVE = {
    "importing the translator": "import pyv_ext.engines.fast.native",
    "the interpreter, cold": "cold.run(until=10)",
    "the interpreter, warm": "warm.run(until=10)",
}
"""Further steps of a program with more than `WARM_UP` instructions. The cache is empty at first; uncached code is
compiled by LLVM."""

START = {
    "the interpreter itself": "",
    "importing the configuration": "from pyv_npu.config import load",
    "importing the platform": "from pyv_npu.platform import Platform; from pyv_npu.boot import find_program",
    "the configuration": "config = load().config",
    "the platform": "platform = Platform(config)",
    "the ELF": "platform.load(find_program('hello'))",
    "the first instruction": "platform.step()",
}
"""Steps from the start of a process to its first instruction."""


def start(folder: Path, args: argparse.Namespace) -> None:
    """Measure CPU time up to the first instruction, step by step, and the further steps of a longer program."""
    lines = ["from time import process_time", "times = []"]
    lines += [f"{code}\ntimes.append(process_time())" for code in (*START.values(), PREPARE, *NATIVE.values())]
    command = [sys.executable, "-c", "\n".join([*lines, "print(*times)"])]
    runs = [[0.0, *map(float, run_cold(command).output.split())] for _ in range(max(args.repeats, 5) + 1)][1:]
    steps = [statistics.median(after - before for before, after in step)
             for step in zip(*map(pairwise, runs), strict=True)]  # fmt: skip
    print("\nFrom the start of the process to the first instruction\n\n| step | CPU ms |\n|---|---|")
    for name, seconds in zip(START, steps, strict=False):
        print(f"| {name} | {seconds * 1e3:.0f} |")
    print(f"| together | {statistics.median(times[len(START)] for times in runs) * 1e3:.0f} |")
    print("\nFrom there to native code, in programs of more than 32,768 instructions\n\n| step | CPU ms |\n|---|---|")
    for name, seconds in zip(NATIVE, steps[-len(NATIVE) :], strict=True):
        print(f"| {name} | {seconds * 1e3:.0f} |", flush=True)
