"""External engines that ship as sources, and their build (docs/co-simulation-link.md)."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from npu_device.external.client import MANIFEST
from pyv_native.files import write_text
from pyv_npu.errors import BadInputError
from toolchain.errors import CompilerError, ToolchainError

SOURCES = Path(__file__).resolve().parent / "sources"
TEMPLATE = Path(__file__).resolve().parent / "template.py"
ENGINE = "engine"
MOST = 128
"""Maximum rows or columns of an array."""
SYSTEMC_HEADER = "systemc.h"


class EngineType(NamedTuple):
    """Type of engine that can be built."""

    text: str
    packages: str
    """Debian packages of its tools."""


KINDS = {
    "rtl": EngineType("an output-stationary array in SystemVerilog, behind Verilator", "verilator g++ make"),
    "systemc": EngineType("the same array as a SystemC module with a TLM-2.0 socket", "libsystemc-dev g++"),
    "python": EngineType("a template in Python, for an engine of one's own", "none"),
}


def build(kind: str, folder: Path, rows: int = 16, columns: int = 16) -> Path:
    """Build an engine into a folder, for `npu.te.external`. Return the path of its manifest.

    ToolchainError when a tool is missing or fails, BadInputError for an invalid size.
    """
    for name, size in (("rows", rows), ("columns", columns)):
        if not 1 <= size <= MOST:
            raise BadInputError(f"--{name} {size}: an array has 1 to {MOST}")
    if kind == "python" and (rows, columns) != (16, 16):
        raise BadInputError(f"--rows {rows} --columns {columns}: the template is 16 x 16; change it in engine.py")
    if kind == "rtl":
        _need("verilator", "g++", "make", kind=kind)
    elif kind == "systemc":
        _need("g++", kind=kind)
        _need_systemc()
    folder.mkdir(parents=True, exist_ok=True)
    arguments = [ENGINE]
    if kind == "rtl":
        _rtl(folder, rows, columns)
    elif kind == "systemc":
        _systemc(folder, rows, columns)
    else:
        shutil.copyfile(TEMPLATE, folder / "engine.py")
        arguments = [sys.executable, "engine.py"]
    manifest = folder / MANIFEST
    write_text(manifest, json.dumps({"arguments": arguments}) + "\n")
    return manifest


def _rtl(folder: Path, rows: int, columns: int) -> None:
    objects = (folder / "obj").resolve()
    flags = f"-O2 -std=c++17 -DROWS={rows} -DCOLUMNS={columns} -I{SOURCES}"
    _run(
        "verilator", "--cc", "--exe", "--build", "-O3", "--x-assign", "0", "--trace", "--timescale", "1ns/1ns",
        f"-GROWS={rows}", f"-GCOLUMNS={columns}", "-CFLAGS", flags, "--Mdir", str(objects), "--top-module", "array",
        "-o", str(folder.resolve() / ENGINE), str(SOURCES / "array.sv"), str(SOURCES / "rtl.cpp"),
    )  # fmt: skip
    shutil.rmtree(objects)


def _systemc(folder: Path, rows: int, columns: int) -> None:
    _run(
        "g++", "-O2", "-std=c++17", f"-DROWS={rows}", f"-DCOLUMNS={columns}", f"-I{SOURCES}",
        str(SOURCES / "systemc.cpp"), "-lsystemc", "-o", str(folder.resolve() / ENGINE),
    )  # fmt: skip


def _need(*tools: str, kind: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            raise ToolchainError(f"{tool}: is not there; engine {kind} needs apt-get install {KINDS[kind].packages}")


def _need_systemc() -> None:
    text = f"#include <{SYSTEMC_HEADER}>\n"
    result = subprocess.run(["g++", "-E", "-x", "c++", "-"], input=text, capture_output=True, text=True, check=False)
    if result.returncode:
        packages = KINDS["systemc"].packages
        raise ToolchainError(f"{SYSTEMC_HEADER}: is not there; engine systemc needs apt-get install {packages}")


def _run(*command: str) -> None:
    _check_command(command, subprocess.run(command, capture_output=True, text=True, check=False))


def _check_command(command: Sequence[str], result: "subprocess.CompletedProcess[str]") -> None:
    if result.returncode:
        raise CompilerError(
            f"{command[0]}: exit code {result.returncode}", result.stderr.strip() or result.stdout.strip()
        )
