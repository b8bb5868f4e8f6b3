"""scripts/bench-core: the parts of the figures; docs/benchmarks.md explains them.

Needs riscv64-unknown-elf-gcc and qemu-system-riscv32; SPIKE=PATH adds Spike.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from pyv_npu.benchmarks.core.cliffs import cliffs
from pyv_npu.benchmarks.core.debugger import debugger
from pyv_npu.benchmarks.core.devices import custom, devices
from pyv_npu.benchmarks.core.profile import where
from pyv_npu.benchmarks.core.speeds import floating, single, speeds
from pyv_npu.benchmarks.core.start import start

PARTS = {
    "speeds": speeds, "single": single, "cliffs": cliffs, "floating": floating, "devices": devices, "custom": custom,
    "debugger": debugger, "start": start, "where": where,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench-core", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="of every measurement; medians are printed")
    parser.add_argument("--core", default="fast", help="the engine to measure")
    parser.add_argument("--divide", type=int, default=1, metavar="N", help="the rounds of every program, to try it out")
    parser.add_argument("--only", choices=PARTS, help="one part of the figures")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for name, part in PARTS.items():
            if given.only in (None, name):
                part(Path(scratch), given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
