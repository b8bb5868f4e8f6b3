"""Cost of an access to a device and of a custom instruction."""

import argparse
import statistics
from pathlib import Path

from benchmarks.core import extensions
from benchmarks.core.processes import sides
from benchmarks.core.programs import DEVICES, SHORT
from benchmarks.core.speeds import measure
from benchmarks.host import isolated

TURNS = 20_000
"""Iterations of a loop of `extensions`."""


def devices(folder: Path, args: argparse.Namespace) -> None:
    """Measure accesses to a built-in device by two lengths of the same program, and accesses to a device in Python."""
    print("\nAccesses to a device, with the loop around each\n\n| program | us of CPU | QEMU |\n|---|---|---|")
    compared = [side for side in sides(args.core) if side.name in ("ours", "QEMU")]
    for name, (full, accesses) in DEVICES.items():
        rounds = max(full // args.divide, 1)
        _, steady = measure(folder, compared, name, rounds, args.repeats)
        count = (rounds - max(rounds // SHORT, 1)) * accesses
        print(
            f"| {name} | {' | '.join(f'{seconds / max(count, 1) * 1e6:.3f}' for seconds in steady.cpu)} |", flush=True
        )
    turns, code_cache = max(TURNS // args.divide, 100), folder / "cache"
    runs = [isolated(extensions.device_costs, turns, code_cache) for _ in range(args.repeats + 1)][1:]
    print("\nA device in Python with methods of its own, without the loop\n\n| | us of CPU |\n|---|---|")
    for name in runs[0]:
        print(f"| {name} | {min(run[name] for run in runs) * 1e6:.3f} |", flush=True)


def custom(folder: Path, args: argparse.Namespace) -> None:
    """Measure a custom instruction with different declarations."""
    turns, code_cache = max(TURNS // args.divide, 100), folder / "cache"
    runs = [isolated(extensions.instruction_costs, turns, code_cache) for _ in range(args.repeats + 1)][1:]
    print("\nA custom instruction\n\n| declared | us of CPU |\n|---|---|")
    for name in runs[0]:
        print(f"| {name} | {statistics.median(run[name] for run in runs) * 1e6:.3f} |", flush=True)
