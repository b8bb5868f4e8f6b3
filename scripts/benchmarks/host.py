"""Host of a benchmark: its speed, processes and their memory, the programs of others that it needs."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import IO, ParamSpec, TypeVar, cast

from pyv_npu.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
ENV = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
ENV["PYTHONPATH"] = str(ROOT)
ENV["OPENBLAS_NUM_THREADS"] = "1"
"""Environment of measured processes: they run this checkout, and Python keeps bytecode, as of an installed package.
BLAS has one thread: a second one that waits for work burns CPU time."""
CALIBRATION = 0.21
"""CPU seconds of `calibrate` on our machine in November 2026; that of the peers is assumed to be equal."""
DEBIAN = {
    "qemu-system-riscv32": "qemu-system-misc",
    "gdb-multiarch": "gdb-multiarch",
    "npm": "npm",
    "node": "nodejs",
}
"""Program -> the package of Debian that has it."""

P = ParamSpec("P")
T = TypeVar("T")


def calibrate() -> float:
    """Returns the CPU seconds of a fixed loop: the reciprocal of the host's speed."""
    start = time.process_time()
    total = 0
    for index in range(4_000_000):
        total = (total * 31 + index) & 0xFFFF_FFFF
    return time.process_time() - start


def peak_memory() -> int:
    """Returns the peak memory of this process in MiB. Linux carries ru_maxrss over from the parent: it is of no use."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    return int(match[1]) // 1024 if match else 0


def isolated(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls a function of a module in a new process, so that it starts with neither our imports nor our memory."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


def cpu_seconds(child: subprocess.Popen[str], output: IO[str] | None = None) -> float:
    """Waits for a process and returns its CPU seconds, user and system; if it fails, ends with its output."""
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        command = " ".join(cast(Sequence[str], child.args))
        sys.exit(f"{command}: exit code {child.returncode}\n{rewound(output) if output else ''}".rstrip())
    return usage.ru_utime + usage.ru_stime


def rewound(file: IO[str]) -> str:
    """Reads a file from its beginning."""
    file.seek(0)
    return file.read()


def missing(*programs: str) -> str:
    """Says which programs are not installed, with the command that installs them; "" if all are."""
    absent = [program for program in programs if shutil.which(program) is None]
    packages = dict.fromkeys(DEBIAN[program] for program in absent)
    return f"needs {', '.join(absent)}: sudo apt-get install {' '.join(packages)}" if absent else ""


def need(*programs: str) -> None:
    """Ends with one line if one of the programs is not installed."""
    if reason := missing(*programs):
        raise UsageError(reason)
