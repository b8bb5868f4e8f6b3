"""Host of a benchmark: speed, processes and their memory, required programs."""

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
"""Environment of measured processes: this checkout, with bytecode caching as for an installed package, and one BLAS
thread, because idle BLAS threads consume CPU time."""
CALIBRATION = 0.21
"""CPU seconds of `calibrate` on our machine in November 2026. The machine of the peers is assumed to be as fast."""
DEBIAN = {
    "qemu-system-riscv32": "qemu-system-misc",
    "gdb-multiarch": "gdb-multiarch",
    "npm": "npm",
    "node": "nodejs",
}
"""Program -> its Debian package."""

P = ParamSpec("P")
T = TypeVar("T")


def calibrate() -> float:
    """Return the CPU seconds of a fixed loop, a measure of the host's speed."""
    start = time.process_time()
    total = 0
    for index in range(4_000_000):
        total = (total * 31 + index) & 0xFFFF_FFFF
    return time.process_time() - start


def peak_memory() -> int:
    """Return the peak memory of this process in MiB. Not ru_maxrss, which Linux inherits from the parent."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    return int(match[1]) // 1024 if match else 0


def isolated(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a module-level function in a new process, without our imports and memory."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


def cpu_seconds(child: subprocess.Popen[str], output: IO[str] | None = None) -> float:
    """Wait for a process and return its CPU seconds, user and system. Exit with its output if it fails."""
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        command = " ".join(cast(Sequence[str], child.args))
        sys.exit(f"{command}: exit code {child.returncode}\n{rewound(output) if output else ''}".rstrip())
    return usage.ru_utime + usage.ru_stime


def rewound(file: IO[str]) -> str:
    """Read a file from its beginning."""
    file.seek(0)
    return file.read()


def missing(*programs: str) -> str:
    """Return which programs are missing, with the command that installs them; "" if none."""
    absent = [program for program in programs if shutil.which(program) is None]
    packages = dict.fromkeys(DEBIAN[program] for program in absent)
    return f"needs {', '.join(absent)}: sudo apt-get install {' '.join(packages)}" if absent else ""


def need(*programs: str) -> None:
    """Raise UsageError if a program is not installed."""
    if reason := missing(*programs):
        raise UsageError(reason)
