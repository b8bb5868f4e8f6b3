"""What a run costs while GDB waits for it to end."""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pyv_npu.benchmarks.core.processes import ENV, run, runners
from pyv_npu.benchmarks.core.programs import DEVICES, FULL_ROUNDS, SHORT, build
from pyv_npu.benchmarks.core.speeds import TICK

GDB = "gdb-multiarch"


def debugger(folder: Path, given: argparse.Namespace) -> None:
    """What a run costs while GDB waits for it to end, next to one without GDB; GDB's own time is not counted."""
    ours, cache = runners(given.core)[0].command, folder / "cache"
    print("\nUnder GDB, without a stop\n\n| program | CPU s | with GDB | ratio |\n|---|---|---|---|")
    for name, rounds in (FULL_ROUNDS | {name: full for name, (full, _) in DEVICES.items()}).items():
        elf = str(build(folder, name, max(rounds // SHORT // given.divide, 1)))
        run([*ours, elf], cache)
        pairs = [(run([*ours, elf], cache).cpu, run_with_gdb([*ours, "--gdb", "0", elf], elf, cache))
                 for _ in range(given.repeats)]  # fmt: skip
        alone, debugged = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"| {name} | {alone:.2f} | {debugged:.2f} | {debugged / max(alone, TICK):.2f} |", flush=True)


def run_with_gdb(command: Sequence[str], elf: str, cache: Path) -> float:
    """CPU seconds of a run that GDB lets go on to its end."""
    env = ENV | {"PYV_NPU_CACHE": str(cache)}
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env)
    assert child.stderr is not None
    port = child.stderr.readline().rpartition(":")[2].strip()
    script = ("set confirm off", f"target remote :{port}", "continue")
    subprocess.run([GDB, "-nx", "-batch", *(part for line in script for part in ("-ex", line)), elf],
                   check=True, capture_output=True)  # fmt: skip
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{' '.join(command)}: exit code {child.returncode}")
    return usage.ru_utime + usage.ru_stime
