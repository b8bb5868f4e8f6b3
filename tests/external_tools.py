"""Programs from outside that tests use, the Debian package of each, and the one way to skip a test that misses one."""

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from pyv_npu.engines.build import build
from toolchain.errors import CompilerError, ToolchainError

GCC = "riscv64-unknown-elf-gcc"
PICOLIBC = "picolibc"
QEMU = "qemu-system-riscv32"
GDB = "gdb-multiarch"

_BINUTILS = "binutils-riscv64-unknown-elf"
_TOOLS = ("as", "ld", "objcopy", "objdump", "readelf", "addr2line", "nm")

DEBIAN = {
    GCC: "gcc-riscv64-unknown-elf",
    **{f"riscv64-unknown-elf-{tool}": _BINUTILS for tool in _TOOLS},
    PICOLIBC: "picolibc-riscv64-unknown-elf",
    QEMU: "qemu-system-misc",
    GDB: "gdb-multiarch",
    **{f"{tool}-16": "mlir-16-tools" for tool in ("mlir-opt", "mlir-cpu-runner", "mlir-translate")},
    "llc-16": "llvm-16",
    "readelf": "binutils",
    "chromium": "chromium",
    "chromedriver": "chromium-driver",
}
"""Tool -> the package of Debian that has it."""


@cache
def found(tool: str) -> bool:
    """Whether this machine has the tool; picolibc is one that the compiler has to find."""
    if tool != PICOLIBC:
        return shutil.which(tool) is not None
    if not found(GCC):
        return False
    asked = subprocess.run([GCC, "-print-file-name=picolibc.specs"], capture_output=True, text=True, check=True)
    return asked.stdout.strip() != "picolibc.specs"


def missing(*tools: str) -> str:
    """Which of the tools are not here, and how to get them; "" if all are."""
    absent = [tool for tool in tools if not found(tool)]
    packages = dict.fromkeys(DEBIAN[tool] for tool in absent)
    return f"needs {', '.join(absent)}: apt-get install {' '.join(packages)}" if absent else ""


def needs(*tools: str) -> pytest.MarkDecorator:
    """Skips a test, and says why, where one of the tools is missing."""
    reason = missing(*tools)
    return pytest.mark.skipif(bool(reason), reason=reason)


def need(*tools: str) -> None:
    """Skips the running test where one of the tools is missing."""
    if reason := missing(*tools):
        pytest.skip(reason)


def built_or_skip(kind: str, folder: Path, *size: int) -> None:
    """Builds an engine outside; skips the test where a tool for it is missing."""
    try:
        build(kind, folder, *size)
    except CompilerError:
        raise
    except ToolchainError as error:
        pytest.skip(str(error))
