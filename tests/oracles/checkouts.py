"""Test suites of RISC-V International for the hart, from checkouts that environment variables name.

Nothing of theirs is in this repository: tests skip visibly where a checkout or the compiler is missing. Programs are
built into a temporary folder.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from external_tools import GCC, missing

FLAGS = (
    "-static",
    "-mcmodel=medany",
    "-fvisibility=hidden",
    "-nostdlib",
    "-nostartfiles",
    "-Wl,--no-warn-rwx-segments",
)


class Suite(NamedTuple):
    """A checkout, if there is one."""

    variable: str
    url: str
    marker: str
    """A folder that a complete checkout has."""

    @property
    def folder(self) -> Path | None:
        path = os.environ.get(self.variable)
        return Path(path) if path and (Path(path) / self.marker).is_dir() else None

    @property
    def missing(self) -> str:
        """Why tests that need the suite cannot run, or ""."""
        if reason := missing(GCC):
            return reason
        if self.folder is None:
            return f"{self.variable} names no checkout: git clone --recurse-submodules {self.url}, set {self.variable}"
        return ""


RISCV_TESTS = Suite("RISCV_TESTS", "https://github.com/riscv-software-src/riscv-tests", "env/p")
RISCV_ARCH_TEST = Suite(
    "RISCV_ARCH_TEST", "https://github.com/riscv-non-isa/riscv-arch-test", "riscv-test-suite/rv32i_m"
)


def build(source: Path, target: Path, march: str, includes: Sequence[Path], script: Path, *flags: str) -> Path:
    """The executable `target` from one assembly file of a suite; the test fails with the compiler's own words."""
    abi = "lp64" if march.startswith("rv64") else "ilp32"
    command = [GCC, f"-march={march}", f"-mabi={abi}", *FLAGS, *(f"-I{folder}" for folder in includes), f"-T{script}"]
    done = subprocess.run([*command, *flags, source, "-o", target], capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.fail(f"{source}: {done.stderr}", pytrace=False)
    return target
