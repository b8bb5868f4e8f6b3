"""`pyv-npu doctor`: list the tools and packages found on this machine, and how to install the missing ones."""

import argparse
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pyv_ext.cores import DEFAULT_ENGINE
from pyv_ext.pyv_adapter import loader, pinned
from pyv_native.code_cache import OFF, VARIABLE, Usage, code_cache
from pyv_npu.boot import shipped_programs
from pyv_npu.cli.shared.output import OK, TOOLCHAIN, Call, diagnose, show
from pyv_npu.text import as_json
from pyv_npu.versions import MISSING, dependencies, installed_version

PYTHON = (3, 11)


class ToolCheck(NamedTuple):
    """One line of the `doctor` report."""

    name: str
    found: str
    """Version or path; empty if missing."""
    remedy: str
    required: bool = False

    @property
    def state(self) -> str:
        """State of the tool: "ok", "MISSING" (required) or "absent" (optional)."""
        return "ok" if self.found else "MISSING" if self.required else "absent"


class Tool(NamedTuple):
    command: str
    debian: str
    purpose: str


TOOLS = (
    Tool("riscv64-unknown-elf-gcc", "gcc-riscv64-unknown-elf", "builds firmware"),
    Tool("riscv64-unknown-elf-objdump", "binutils-riscv64-unknown-elf", "reference of the instruction table in tests"),
    Tool("qemu-system-riscv32", "qemu-system-misc", "reference of the core in tests"),
    Tool("gdb-multiarch", "gdb-multiarch", "debugs firmware"),
    Tool("mlir-opt-16", "mlir-16-tools", "reference of MLIR modules in tests"),
    Tool("mlir-translate-16", "mlir-16-tools", "compile --submit generated"),
    Tool("llc-16", "llvm-16", "compile --submit generated"),
)
EXTRAS = {
    "mlir": "MLIR modules, code that submits commands",
    "cluster": "sweeps on a Dask cluster",
    "fmu": "export-fmu",
    "assembler": "asm --check",
    "notebook": "to_dataframe of results",
    "parquet": "tables of sweeps as Parquet",
}
"""Extra of pyproject.toml -> purpose, except those for the development of PyV-NPU."""
PICOLIBC = Path("/usr/lib/picolibc/riscv64-unknown-elf")
"""Folder of Debian's picolibc-riscv64-unknown-elf."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clear-cache", action="store_true", help="remove the compiled code that is kept, no checks")
    parser.add_argument("--json", action="store_true", help="the checks as one JSON object")


def execute(args: argparse.Namespace, call: Call) -> int:
    if args.clear_cache:
        return clear_cache()
    checks = list(list_checks())
    width = max(len(check.name) for check in checks)
    if args.json:
        show(as_json({"schema": 1, "checks": [{"state": check.state, **check._asdict()} for check in checks]}))
    else:
        for check in checks:
            show(f"{check.state:7}  {check.name:{width}}  {check.found or check.remedy}")
    broken = [check.name for check in checks if check.required and not check.found]
    if broken:
        diagnose(f"cannot run firmware without {', '.join(broken)}")
    return TOOLCHAIN if broken else OK


def list_checks() -> Iterator[ToolCheck]:
    """Yield the checks, required ones first."""
    minimum = ".".join(map(str, PYTHON))
    version = platform.python_version() if sys.version_info >= PYTHON else ""
    yield ToolCheck("Python", version, f"Python {minimum} or later is needed", required=True)
    for name in dependencies():
        yield ToolCheck(name, _version(name), f"python -m pip install {name}", required=True)
    for extra, purpose in EXTRAS.items():
        for name in dependencies(extra):
            yield ToolCheck(name, _version(name), f"pip install 'pyv-npu[{extra}]' ({purpose})")
    yield ToolCheck("--core", f"{DEFAULT_ENGINE} is the default", "")
    yield ToolCheck("native code", *native_code())
    shipped = len(shipped_programs())
    yield ToolCheck("firmware", f"{shipped} programs" if shipped else "", "pyv-npu build-firmware DIR builds it")
    for tool in TOOLS:
        yield ToolCheck(
            tool.command, shutil.which(tool.command) or "", f"apt-get install {tool.debian} ({tool.purpose})"
        )
    yield ToolCheck("Py-V", *py_v())
    picolibc = str(PICOLIBC) if PICOLIBC.is_dir() else ""
    yield ToolCheck("picolibc", picolibc, "apt-get install picolibc-riscv64-unknown-elf (C library of firmware)")


def _version(name: str) -> str:
    version = installed_version(name)
    return "" if version == MISSING else version


def native_code() -> tuple[str, str]:
    """Return folder and size of the code cache, or why it is disabled."""
    cache = code_cache()
    if cache is None:
        return "", f"not kept: {VARIABLE} is {OFF!r}, or there is no home directory: set it to a folder"
    reason = cache.write_refusal()
    return ("", f"not kept: {reason}") if reason else (f"{cache.folder}: {amount(cache.usage())}", "")


def amount(usage: Usage) -> str:
    return f"{usage.files} files, {usage.bytes / 1024:.0f} KiB"


def clear_cache() -> int:
    cache = code_cache()
    if cache is None:
        show("no native code is kept")
    else:
        show(f"removed from {cache.folder}: {amount(cache.clear())}")
    return OK


def py_v() -> tuple[str, str]:
    """Return the path of Py-V for `--core pyv`, or the command that installs it."""
    missing = loader.missing()
    if missing is not None:
        return "", missing
    folder = loader.folder()
    if loader.home():
        return f"{folder} ({loader.HOME})", ""
    return f"{folder} (commit {pinned.COMMIT[:7]}, {pinned.COMMAND})" if folder == str(pinned.copy()) else folder, ""
