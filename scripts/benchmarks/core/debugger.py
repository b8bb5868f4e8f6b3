"""Cost of a run under GDB."""

import argparse
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.core.processes import our_command, run
from benchmarks.core.programs import DEVICES, FULL_ROUNDS, SHORT, build
from benchmarks.core.speeds import TICK
from benchmarks.host import ENV, cpu_seconds, need

GDB = "gdb-multiarch"


def debugger(folder: Path, args: argparse.Namespace) -> None:
    """Compare uninterrupted runs under GDB with runs without it. The CPU time of GDB itself is not counted."""
    need(GDB)
    ours, code_cache = our_command(args.core), folder / "cache"
    print("\nUnder GDB, without a stop\n\n| program | CPU s | with GDB | ratio |\n|---|---|---|---|")
    for name, rounds in (FULL_ROUNDS | {name: full for name, (full, _) in DEVICES.items()}).items():
        elf = str(build(folder, name, max(rounds // SHORT // args.divide, 1)))
        run([*ours, elf], code_cache)
        pairs = [
            (run([*ours, elf], code_cache).cpu, run_with_gdb([*ours, "--gdb", "0", elf], elf, code_cache))
            for _ in range(args.repeats)
        ]
        alone, debugged = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"| {name} | {alone:.2f} | {debugged:.2f} | {debugged / max(alone, TICK):.2f} |", flush=True)


def run_with_gdb(command: Sequence[str], elf: str, code_cache: Path) -> float:
    """Return the CPU seconds of a run that GDB continues to its end."""
    env = ENV | {"PYV_NPU_CACHE": str(code_cache)}
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env)
    assert child.stderr is not None
    port = child.stderr.readline().rpartition(":")[2].strip()
    script = ("set confirm off", f"target remote :{port}", "continue")
    subprocess.run([GDB, "-nx", "-batch", *(part for line in script for part in ("-ex", line)), elf],
                   check=True, capture_output=True)  # fmt: skip
    return cpu_seconds(child)
