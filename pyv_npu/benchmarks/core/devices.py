"""What an access to a device and an instruction of a user's own cost."""

import argparse
import statistics
import sys
from pathlib import Path

from pyv_npu.benchmarks.core.processes import run, runners
from pyv_npu.benchmarks.core.programs import DEVICES, SHORT
from pyv_npu.benchmarks.core.speeds import measure

ACCESSES = (
    "load", "store", "load, a device with line and events", "store, the same", "event of a device",
    "call of `read` by Python",
)  # fmt: skip
DECLARED = ("`expr=`", '`touches="nothing"`', '`touches="memory"`', "`device=`", "nothing")
"""What `own_parts` prints, in this order."""
OWN_PARTS = [sys.executable, "-m", "pyv_npu.benchmarks.core.own_parts"]


def devices(folder: Path, given: argparse.Namespace) -> None:
    """The cost of an access to a device, from two lengths of the same program."""
    print("\nAccesses to a device, with the loop around each\n\n| program | us of CPU | QEMU |\n|---|---|---|")
    sides = [side for side in runners(given.core) if side.name in ("ours", "QEMU")]
    for name, (full, accesses) in DEVICES.items():
        rounds = max(full // given.divide, 1)
        _, steady = measure(folder, sides, name, rounds, given.repeats)
        done = (rounds - max(rounds // SHORT, 1)) * accesses
        print(f"| {name} | {' | '.join(f'{seconds / max(done, 1) * 1e6:.3f}' for seconds in steady.cpu)} |", flush=True)
    command = [*OWN_PARTS, "device", str(max(20_000 // given.divide, 100))]
    runs = [run(command, folder / "cache").output.split() for _ in range(given.repeats + 1)][1:]
    print("\nA device in Python with methods of its own, without the loop\n\n| | us of CPU |\n|---|---|")
    for name, column in zip(ACCESSES, zip(*runs, strict=True), strict=True):
        print(f"| {name} | {min(map(float, column)):.3f} |", flush=True)


def custom(folder: Path, given: argparse.Namespace) -> None:
    """What an instruction of a user costs."""
    command = [*OWN_PARTS, "instruction", str(max(20_000 // given.divide, 100))]
    run(command, folder / "cache")
    runs = [run(command, folder / "cache").output.split() for _ in range(given.repeats)]
    print("\nA custom instruction\n\n| declared | us of CPU |\n|---|---|")
    for name, column in zip(DECLARED, zip(*runs, strict=True), strict=True):
        print(f"| {name} | {statistics.median(map(float, column)):.3f} |", flush=True)
