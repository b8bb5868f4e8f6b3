"""CPU time of our process by activity."""

import argparse
import json
import sys
from pathlib import Path

from benchmarks.core.processes import run
from benchmarks.core.programs import FULL_ROUNDS, build

GROUPS = {
    "start-up, configuration, result": ("",),
    "first instructions, by closures": ("pyv_ext/engines/", ">:step"),
    "CSRs, devices, traps": ("engines/steps.py", "pyv_ext/bus/bus.py", "pyv_ext/bus/window.py"),
    "decoding": ("engines/code.py", "engines/fast/entries.py", "pyv_ext/isa/"),
    "translating: choosing blocks, writing IR": ("engines/fast/", "pyv_native/ir.py"),
    "translating: LLVM, or its code from the cache": ("llvmlite/", "pyv_native/c"),
    "native code": ("engines/fast/native.py:run",),
}
"""Activity -> substrings of `file:function`; the last matching activity counts."""

SAMPLER = """
import collections, json, signal, sys, time
charged, last = collections.Counter(), 0.0
def sample(number, frame):
    global last
    now, before = time.process_time(), last
    charged[f"{frame.f_code.co_filename}:{frame.f_code.co_name}"] += now - before
    last = now
signal.signal(signal.SIGPROF, sample)
signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
from pyv_npu.cli import main
out, sys.stdout = sys.stdout, open("/dev/null", "w")
main(["run", sys.argv[1], "--core", sys.argv[2]])
signal.setitimer(signal.ITIMER_PROF, 0)
print(json.dumps(charged), file=out)
"""
"""Sampling profiler: every millisecond of CPU time, charges the time since the last sample to the current function."""


def profile(folder: Path, args: argparse.Namespace) -> None:
    """Sample the second of two runs of each program."""
    names = list(FULL_ROUNDS)
    print(f"\nWhere our time goes, in CPU seconds\n\n| | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}")
    columns = []
    for name in names:
        elf = build(folder, name, max(FULL_ROUNDS[name] // args.divide, 1))
        command = [sys.executable, "-c", SAMPLER, str(elf), args.core]
        second = [run(command, folder / "cache") for _ in range(2)][-1]
        columns.append(by_group(json.loads(second.output)))
    for group in GROUPS:
        print(f"| {group} | {' | '.join(f'{column[group]:.2f}' for column in columns)} |")


def by_group(seconds_of: dict[str, float]) -> dict[str, float]:
    """Sum the seconds of functions by activity."""
    sums = dict.fromkeys(GROUPS, 0.0)
    for function, seconds in seconds_of.items():
        sums[[group for group, parts in GROUPS.items() if any(part in function for part in parts)][-1]] += seconds
    return sums
