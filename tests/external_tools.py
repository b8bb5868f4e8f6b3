"""External programs of tests, their Debian packages, and the skip of tests without them."""

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
"""Tool -> its Debian package."""


@cache
def found(tool: str) -> bool:
    """Return whether a tool is installed; picolibc must be found by the compiler."""
    if tool != PICOLIBC:
        return shutil.which(tool) is not None
    if not found(GCC):
        return False
    asked = subprocess.run([GCC, "-print-file-name=picolibc.specs"], capture_output=True, text=True, check=True)
    return asked.stdout.strip() != "picolibc.specs"


def missing(*tools: str) -> str:
    """Return which tools are missing and how to install them; "" if none."""
    absent = [tool for tool in tools if not found(tool)]
    packages = dict.fromkeys(DEBIAN[tool] for tool in absent)
    return f"needs {', '.join(absent)}: apt-get install {' '.join(packages)}" if absent else ""


def needs(*tools: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test with a reason if a tool is missing."""
    reason = missing(*tools)
    return pytest.mark.skipif(bool(reason), reason=reason)


def need(*tools: str) -> None:
    """Skip the running test if a tool is missing."""
    if reason := missing(*tools):
        pytest.skip(reason)


def built_or_skip(kind: str, folder: Path, *size: int) -> None:
    """Build an external engine; skip the test if a tool is missing."""
    try:
        build(kind, folder, *size)
    except CompilerError:
        raise
    except ToolchainError as error:
        pytest.skip(str(error))
