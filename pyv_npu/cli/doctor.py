"""`pyv-npu doctor`: what this machine has of what the package can use, and how to get the rest."""

import argparse
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pyv_npu.cli import console, exit_codes

NAME = "doctor"
HELP = "check this machine: packages, firmware, tools"

PYTHON = (3, 11)


class Check(NamedTuple):
    """One line of the answer."""

    name: str
    found: str
    """Version or place; empty: missing."""
    remedy: str
    required: bool = False


class Tool(NamedTuple):
    command: str
    debian: str
    purpose: str


TOOLS = (
    Tool("riscv64-unknown-elf-gcc", "gcc-riscv64-unknown-elf", "builds firmware"),
    Tool("riscv64-unknown-elf-objdump", "binutils-riscv64-unknown-elf", "judges the instruction table in tests"),
    Tool("qemu-system-riscv32", "qemu-system-misc", "judges the core in tests"),
    Tool("gdb-multiarch", "gdb-multiarch", "debugs firmware"),
)
OPTIONAL = {"llvmlite": "native code for the core and for large models: without it they are slower, results the same"}
"""Packages that `pip install` brings along, but that all works without."""
PICOLIBC = Path("/usr/lib/picolibc/riscv64-unknown-elf")
"""Where Debian's picolibc-riscv64-unknown-elf keeps its files."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """None of its own."""


def execute(args: argparse.Namespace) -> int:
    checks = list(everything())
    width = max(len(check.name) for check in checks)
    for check in checks:
        state = "ok" if check.found else "MISSING" if check.required else "absent"
        console.result(f"{state:7}  {check.name:{width}}  {check.found or check.remedy}")
    broken = [check.name for check in checks if check.required and not check.found]
    if broken:
        console.talk(f"cannot run firmware without {', '.join(broken)}")
    return exit_codes.TOOLCHAIN if broken else exit_codes.OK


def everything() -> Iterator[Check]:
    """Required things first."""
    from importlib import metadata
    from importlib.util import find_spec

    from pyv_ext.engines import default_engine
    from pyv_npu.programs import shipped_programs
    from pyv_npu.versions import MISSING, dependencies, versions

    installed = versions()
    wanted = ".".join(map(str, PYTHON))
    version = installed["python"] if sys.version_info >= PYTHON else ""
    yield Check("Python", version, f"Python {wanted} or later is needed", required=True)
    for name in dependencies():
        found = "" if installed[name] == MISSING else installed[name]
        if name not in OPTIONAL:
            yield Check(name, found, f"python -m pip install {name}", required=True)
    for name, purpose in OPTIONAL.items():
        found = metadata.version(name) if find_spec(name) is not None else ""
        yield Check(name, found, f"python -m pip install {name} ({purpose})")
    yield Check("--core", f"{default_engine()} is the default", "")
    shipped = len(shipped_programs())
    yield Check("firmware", f"{shipped} programs" if shipped else "", "pyv-npu build-firmware DIR builds it")
    for tool in TOOLS:
        yield Check(tool.command, shutil.which(tool.command) or "", f"apt-get install {tool.debian} ({tool.purpose})")
    yield Check("Py-V", *py_v())
    picolibc = str(PICOLIBC) if PICOLIBC.is_dir() else ""
    yield Check("picolibc", picolibc, "apt-get install picolibc-riscv64-unknown-elf (C library of firmware)")


def py_v() -> tuple[str, str]:
    """Where Py-V is, for `--core pyv`; else what to do."""
    from pyv_ext.pyv_core import loader

    missing = loader.missing()
    return (loader.folder(), "") if missing is None else ("", missing)
