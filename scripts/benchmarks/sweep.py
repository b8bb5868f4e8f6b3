"""CPU seconds of a sweep on two workers over those of its runs alone.

By default 1,000 points of submit_latency with 200 commands, or 200 points of a llama2-7b decode over DRAM bandwidth,
bits of keys and values, and queue size. First only the runs, in sequence in one process, then
`pyv-npu sweep --workers 2` with all its processes (docs/studies.md).
"""

import argparse
import ctypes
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress

from benchmarks.host import ENV, ROOT
from benchmarks.runner import positive

WORKERS = 2
POINTS = {"submit_latency": 1000, "llama2-7b": 200}

RUNS_ALONE = """
import sys
from pyv_npu.cli import main
from pyv_npu.studies.sweep import folder, page, table
from pyv_npu.cli.verbs import sweep
folder.SweepFolder.keep = lambda self, address, record: None
sweep._answer = lambda *rest: 0
sys.exit(main(sys.argv[1:]))
"""
"""Script: runs of a sweep in one process, without storing or printing results."""
CHILD_SUBREAPER = 36
"""prctl option PR_SET_CHILD_SUBREAPER: orphaned descendants become children of this process."""


def command_line(program: str, points: int) -> list[str]:
    """Return the arguments of `pyv-npu` for a sweep of `points` points."""
    if program == "submit_latency":  # in both modes
        return ["sweep", program, f"core.timing.mmio_one_way=1:{max(points // 2, 1)}", "--arg", "n=200"]
    first, step = 25_600_000_000, 5_120_000_000
    last = first + step * (max(points // 20, 1) - 1)
    return ["sweep", program, f"npu.dram.bytes_per_second={first}:{last}:{step}", "qbits-kv=2,4,8,16",
            "npu.queue.command_size=4,8,16,32,64"]  # fmt: skip


def cpu_of_tree(command: Sequence[str]) -> float:
    """Return the CPU seconds of a command and all its descendants, orphaned ones included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.run([sys.executable, *command], cwd=ROOT, env=ENV, capture_output=True, text=True, check=False)
    if process.returncode:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}\n{process.stderr}".rstrip())
    with suppress(ChildProcessError):
        while True:
            os.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", nargs="?", choices=sorted(POINTS), default="submit_latency")
    parser.add_argument("--points", type=positive, metavar="N", help="default: 1000, of llama2-7b 200")


def run(args: argparse.Namespace) -> None:
    """Print both times and their ratio."""
    if ctypes.CDLL(None).prctl(CHILD_SUBREAPER, 1, 0, 0, 0):
        sys.exit("prctl cannot make this process the parent of what outlives its parent: it needs Linux")
    line = command_line(args.program, args.points or POINTS[args.program])
    with tempfile.TemporaryDirectory() as folder:
        alone = cpu_of_tree(["-c", RUNS_ALONE, *line, "-o", f"{folder}/alone"])
        sweep = cpu_of_tree(["-m", "pyv_npu", *line, "-o", f"{folder}/sweep", "--workers", str(WORKERS)])
    print(
        f"{' '.join(line)}: runs alone {alone:.1f} CPU s, "
        f"sweep on {WORKERS} workers {sweep:.1f} CPU s: {sweep / alone:.2f}x"
    )
