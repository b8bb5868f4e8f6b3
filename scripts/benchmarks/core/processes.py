"""Processes that run a program, and the CPU seconds of each.

The programs run on our engine, on QEMU's `virt` machine without and with -icount shift=0, and on Spike if the
environment variable SPIKE names it. The sides run alternately. Every figure is the median of the CPU seconds, user and
system, of whole processes. Ours runs warm, with native code from earlier runs, and cold, with an empty cache. The
upper bound is the same C source compiled for the host, if it has a compiler.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from benchmarks.host import ENV, cpu_seconds, need, rewound
from pyv_npu.errors import UsageError
from toolchain.gnu import MARCH

QEMU = "qemu-system-riscv32"
QEMU_OPTIONS = ["-M", "virt", "-bios", "none", "-display", "none", "-monitor", "none", "-serial", "null"]
SPIKE_SOURCE = "https://github.com/riscv-software-src/riscv-isa-sim"
INSTALL_SPIKE = f"git clone {SPIKE_SOURCE} && cd riscv-isa-sim && ./configure && make, then SPIKE=$PWD/spike"


class ProcessRun(NamedTuple):
    """CPU seconds and output of a process."""

    cpu: float
    output: str


class Side(NamedTuple):
    """Simulator or host, and the command that runs an ELF on it."""

    name: str
    command: list[str]
    spike: bool = False
    cold: bool = False
    """Whether every run starts with an empty cache."""
    first: bool = False
    """Whether every run is the first of its program, with a cache filled by other programs."""
    compiler: str = ""
    """Compiler for a native build on the host; "" for simulators."""


def run(command: Sequence[str], code_cache: Path) -> ProcessRun:
    """Run a process, which must exit with 0, with a cache folder for native code."""
    env = ENV | {"PYV_NPU_CACHE": str(code_cache)}
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=sys.stderr, env=env, text=True
        )
        return ProcessRun(cpu_seconds(child, output), rewound(output))


def run_cold(command: Sequence[str]) -> ProcessRun:
    """Run a process with an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        return run(command, Path(folder))


def run_first(command: Sequence[str], code_cache: Path) -> ProcessRun:
    """Run a process with a copy of a cache, which remains unchanged."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(code_cache, folder, dirs_exist_ok=True)
        return run(command, Path(folder))


@cache
def host_sides() -> list[Side]:
    """Return the host as a side, if it has a compiler."""
    compiler = shutil.which("gcc")
    if compiler is None:
        print("the host is not measured: sudo apt-get install gcc", file=sys.stderr)
        return []
    return [Side("host", [], compiler=compiler)]


@cache
def spike() -> str:
    """Return the executable of Spike; "" if SPIKE is unset."""
    path = os.environ.get("SPIKE", "")
    if not path:
        print(f"Spike is not measured: {INSTALL_SPIKE}", file=sys.stderr)
    elif shutil.which(path) is None:
        raise UsageError(f"SPIKE={path}: no such program: {INSTALL_SPIKE}")
    return path


def our_command(core: str, march: str = MARCH) -> list[str]:
    """Return the command that runs an ELF on our platform. `march`: ISA of the hart, if it differs from the preset."""
    command = [sys.executable, "-m", "pyv_npu", "run", "--json", "--core", core]
    return command if march == MARCH else [*command, "--set", f"core.isa={march}_zicsr_zifencei"]


OUR_SIDES = 2
"""Number of leading sides that are ours: warm and cold."""


def sides(core: str, march: str = MARCH) -> list[Side]:
    """Return ours, QEMU and Spike."""
    need(QEMU)
    ours, qemu = our_command(core, march), [QEMU, *QEMU_OPTIONS]
    result = [
        Side("ours", ours),
        Side("ours, cold", ours, cold=True),
        Side("QEMU", [*qemu, "-kernel"]),
        Side("QEMU -icount", [*qemu, "-icount", "shift=0", "-kernel"]),
    ]
    if path := spike():
        result.append(Side("Spike", [path, f"--isa={march}_zicsr_zifencei", "-m0x80000000:0x8000000"], spike=True))
    return result
