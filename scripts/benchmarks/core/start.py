"""CPU time from the start of a process to its first instruction, and to native code."""

import argparse
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
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
    print(f"| total | {statistics.median(times[len(START)] for times in runs) * 1e3:.0f} |")
    print("\nFrom there to native code, in programs of more than 32,768 instructions\n\n| step | CPU ms |\n|---|---|")
    for name, seconds in zip(NATIVE, steps[-len(NATIVE) :], strict=True):
        print(f"| {name} | {seconds * 1e3:.0f} |", flush=True)
    if shutil.which(VALGRIND):
        _count_instructions()
    else:
        print(f"\nInstructions are not counted: install {VALGRIND}")


VALGRIND = "valgrind"
RUN = ("-m", "pyv_npu", "run", "hello")
MODULES = "import sys; from pyv_npu.cli import main; main(['run', 'hello']); print(*sys.modules, file=sys.stderr)"
IMPORT = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)"


def _count_instructions() -> None:
    """Count the host's instructions of `run hello` with native code from the cache, by what is imported."""
    process = subprocess.run([sys.executable, "-c", MODULES], capture_output=True, text=True, check=True)
    names = process.stderr.split()
    library = [name for name in names if name.partition(".")[0] in sys.stdlib_module_names and name != "__main__"]
    yaml = [name for name in names if name.partition(".")[0] in ("yaml", "_yaml")]
    product_modules = [name for name in names if name.partition(".")[0] in PRODUCT_PACKAGES]
    parts = {
        "the interpreter itself": ("-c", "pass"),
        "modules of Python's library": ("-c", IMPORT, *library),
        "PyYAML": ("-c", IMPORT, *library, *yaml),
        "modules of the product": ("-c", IMPORT, *library, *yaml, *product_modules),
        "the run: command line, configuration, platform, ELF, instructions, result, exit": RUN,
    }
    counts = [0, *map(_instructions, parts.values())]
    modules = ("", f"{len(library)} ", f"{len(yaml)} ", f"{len(product_modules)} ", "")
    print("\nMillions of instructions of the host\n\n| part | modules | instructions |\n|---|---|---|")
    for name, count, (before, after) in zip(parts, modules, pairwise(counts), strict=True):
        print(f"| {name} | {count}| {(after - before) / 1e6:.0f} |")
    print(f"| total | | {counts[-1] / 1e6:.0f} |", flush=True)


PRODUCT_PACKAGES = ("npu_device", "pyv_ext", "pyv_native", "pyv_npu", "toolchain", "pyv_npu_toolchain", "firmware")


def _instructions(arguments: Sequence[str]) -> int:
    """Count the instructions of a Python process."""
    tool = [VALGRIND, "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    process = subprocess.run([*tool, sys.executable, *arguments], capture_output=True, text=True, check=True)
    match = re.search(r"I +refs: +([\d,]+)", process.stderr)
    assert match is not None, process.stderr
    return int(match[1].replace(",", ""))
