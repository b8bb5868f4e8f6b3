"""Speed of firmware on the core, beside QEMU, Spike and the host; costs of devices, GDB and the start.

Needs riscv64-unknown-elf-gcc, qemu-system-riscv32 and for one part gdb-multiarch; SPIKE=PATH adds Spike.
docs/benchmarks.md explains the figures.
"""

import argparse
import tempfile
from pathlib import Path

from benchmarks.core.cliffs import cliffs
from benchmarks.core.debugger import debugger
from benchmarks.core.devices import custom, devices
from benchmarks.core.profile import profile
from benchmarks.core.speeds import floating, single, speeds
from benchmarks.core.start import start
from benchmarks.runner import positive
from pyv_npu.config import load

PARTS = {
    "speeds": speeds, "single": single, "cliffs": cliffs, "floating": floating, "devices": devices, "custom": custom,
    "debugger": debugger, "start": start, "profile": profile,
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=positive, default=5, help="of every measurement; medians are printed")
    parser.add_argument("--core", default="fast", help="the engine to measure")
    parser.add_argument("--divide", type=positive, default=1, metavar="N", help="divide the rounds of every program")
    parser.add_argument("--only", choices=PARTS, help="one part of the figures")


def run(args: argparse.Namespace) -> None:
    """Print the tables of one part or of all."""
    load(overrides={"core.engine": args.core})
    with tempfile.TemporaryDirectory() as folder:
        for name, part in PARTS.items():
            if args.only in (None, name):
                part(Path(folder), args)
