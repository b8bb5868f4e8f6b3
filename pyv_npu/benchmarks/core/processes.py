"""Whole processes that run a program, and the CPU seconds of each.

The programs run on our engine, on QEMU's `virt` machine, plain and with -icount shift=0, and on Spike where the
environment variable SPIKE names it. They take turns; every figure is the median of CPU seconds, user and system, of
whole processes. Ours runs twice: warm, with the native code that runs before have kept, and cold, with an empty cache.
The limit is the same C source compiled for this machine by its own compiler, where there is one.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from toolchain.gnu import MARCH

ENV = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Of all that is measured: Python keeps what it has compiled, as it does where a package is installed."""
QEMU = ["qemu-system-riscv32", "-M", "virt", "-bios", "none", "-display", "none", "-monitor", "none", "-serial", "null"]


class Ran(NamedTuple):
    cpu: float
    output: str


class Runner(NamedTuple):
    """One side: a name and how it runs an ELF."""

    name: str
    command: list[str]
    spike: bool = False
    cold: bool = False
    """Every run finds an empty cache."""
    first: bool = False
    """Every run is the first of its program, with what runs of another one have kept."""
    compiler: str = ""
    """Of the host: the program is compiled by it, and runs by itself."""


def run(command: Sequence[str], cache: Path) -> Ran:
    """CPU seconds and output of a process that must exit with 0; native code is kept in the folder `cache`."""
    env = ENV | {"PYV_NPU_CACHE": str(cache)}
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=sys.stderr, env=env)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        if child.returncode:
            sys.exit(f"{' '.join(command)}: exit code {child.returncode}\n{out.read()}")
        return Ran(usage.ru_utime + usage.ru_stime, out.read())


def run_cold(command: Sequence[str]) -> Ran:
    """The same with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        return run(command, Path(cache))


def run_first(command: Sequence[str], kept: Path) -> Ran:
    """The same with a copy of the folder `kept`, to which nothing is added."""
    with tempfile.TemporaryDirectory() as cache:
        shutil.copytree(kept, cache, dirs_exist_ok=True)
        return run(command, Path(cache))


def limit() -> list[Runner]:
    """The same C source, compiled for the host."""
    compiler = shutil.which("gcc")
    return [] if compiler is None else [Runner("host", [], compiler=compiler)]


OURS = 2
"""So many of the runners are ours."""


def runners(core: str, march: str = MARCH) -> list[Runner]:
    """Ours first: warm and cold. `march`: of the hart, where it is not that of the preset."""
    isa = f"{march}_zicsr_zifencei"
    ours = [sys.executable, "-m", "pyv_npu", "run", "--json", "--core", core]
    ours += [] if march == MARCH else ["--set", f"core.isa={isa}"]
    found = [
        Runner("ours", ours),
        Runner("ours, cold", ours, cold=True),
        Runner("QEMU", [*QEMU, "-kernel"]),
        Runner("QEMU -icount", [*QEMU, "-icount", "shift=0", "-kernel"]),
    ]
    if "SPIKE" in os.environ:
        options = [f"--isa={isa}", "-m0x80000000:0x8000000"]
        found.append(Runner("Spike", [os.environ["SPIKE"], *options], spike=True))
    return found
