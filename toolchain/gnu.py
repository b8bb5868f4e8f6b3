"""Builds firmware with riscv64-unknown-elf-gcc and picolibc (specification 30, "Build on Debian 12")."""

import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from npu_device.abi.instructions import CUSTOM_OPCODES, DEFAULT_SLOT
from toolchain.errors import ToolchainError
from toolchain.firmware_catalog import APPLICATIONS, HEADERS, LINKER_SCRIPT, RUNTIME_SOURCES, application

COMPILER = "riscv64-unknown-elf-gcc"
PACKAGES = "gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf"
"""Debian's names."""

LIBRARY_FLAGS = ("--specs=picolibc.specs",)
COMPILE_FLAGS = (
    "-march=rv32im_zicsr_zifencei", "-mabi=ilp32", "-std=c99", "-O2", "-ffreestanding", *LIBRARY_FLAGS,
    "-Wall", "-Wextra", "-Werror", "-fno-common", "-ffunction-sections", "-fdata-sections",
)  # fmt: skip
LINK_FLAGS = (
    "-march=rv32im", "-mabi=ilp32", *LIBRARY_FLAGS, "-nostartfiles", "-static", f"-T{LINKER_SCRIPT}",
    "-Wl,--gc-sections,--nmagic,--fatal-warnings",
)  # fmt: skip
"""The march without its suffixes: with them, gcc 12 links the wrong multilib."""

MANIFEST = "manifest.json"


class Compiler(NamedTuple):
    """A compiler that was found."""

    path: str
    version: str
    """As it prints it, packaging included: equal versions give equal bytes."""


def find_compiler() -> Compiler:
    """The cross compiler; ToolchainError says how to get it."""
    path = shutil.which(COMPILER)
    if path is None:
        raise ToolchainError(f"{COMPILER} is not on the PATH: it builds firmware; apt-get install {PACKAGES}")
    lines = [_run([path, "--version"]).splitlines()[0], _run([path, "-Wl,--version"]).splitlines()[0]]
    return Compiler(path, "; ".join(lines))


def firmware_folder() -> Path:
    """Where the sources and the prebuilt programs of this package are."""
    spec = find_spec("firmware")
    if spec is None or not spec.submodule_search_locations:
        raise ToolchainError("package firmware is missing: install pyv-npu again")
    return Path(spec.submodule_search_locations[0])


def build(
    out: Path,
    names: Iterable[str] | None = None,
    *,
    slot: int = DEFAULT_SLOT,
    debug: bool = True,
) -> list[Path]:
    """Compile the named programs (default: all) into `out`/NAME.elf, with a manifest; return the paths.

    `slot` is the opcode slot of the custom instructions, `debug` keeps line information. Without it equal compilers
    give equal bytes anywhere. Raises ToolchainError: no compiler, unknown name, or the compiler's own message.
    """
    wanted = tuple(dict.fromkeys(names)) if names is not None else tuple(row.name for row in APPLICATIONS)
    for name in wanted:
        if application(name) is None:
            known = ", ".join(row.name for row in APPLICATIONS)
            raise ToolchainError(f"{name}: no such program; there are {known}")
    if not 0 <= slot < len(CUSTOM_OPCODES):
        raise ToolchainError(f"opcode slot {slot}: must be 0..{len(CUSTOM_OPCODES) - 1}")
    compiler = find_compiler()
    folder = firmware_folder()
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    extra = [f"-DNPU_CUSTOM_SLOT={slot}", f"-ffile-prefix-map={folder}=firmware", *(["-g"] if debug else [])]
    with tempfile.TemporaryDirectory() as scratch:
        runtime = [_compile(compiler, folder, source, Path(scratch), extra) for source in RUNTIME_SOURCES]
        elfs = [_program(compiler, folder, name, runtime, Path(scratch), extra, out, debug) for name in wanted]
    text = json.dumps(manifest(compiler, folder, elfs), indent=2) + "\n"
    (out / MANIFEST).write_text(text, encoding="utf-8")
    return elfs


def manifest(compiler: Compiler, folder: Path, elfs: Sequence[Path]) -> dict[str, Any]:
    """What the programs were made with and from."""
    return {
        "compiler": compiler.version,
        "compile_flags": list(COMPILE_FLAGS),
        "link_flags": list(LINK_FLAGS),
        "sources": source_hashes(folder),
        "programs": {elf.stem: {"sha256": _sha256(elf), "bytes": elf.stat().st_size} for elf in elfs},
    }


def source_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file that goes into a program, by path relative to `folder`."""
    kinds = (".c", ".h", ".S", ".ld")
    places = (HEADERS, "lib", "apps")
    found = sorted(path for place in places for path in (folder / place).rglob("*") if path.suffix in kinds)
    return {path.relative_to(folder).as_posix(): _sha256(path) for path in found}


def _program(
    compiler: Compiler,
    folder: Path,
    name: str,
    runtime: Sequence[Path],
    scratch: Path,
    extra: Sequence[str],
    out: Path,
    debug: bool,
) -> Path:
    row = application(name)
    assert row is not None
    objects = [_compile(compiler, folder, source, scratch, extra) for source in row.sources]
    elf = out / f"{name}.elf"
    strip = [] if debug else ["-Wl,--strip-debug"]
    _run([compiler.path, *LINK_FLAGS, *strip, *map(str, (*runtime, *objects)), "-o", str(elf)], folder)
    return elf


def _compile(compiler: Compiler, folder: Path, source: str, scratch: Path, extra: Sequence[str]) -> Path:
    made = scratch / (source.replace("/", "_") + ".o")
    _run([compiler.path, *COMPILE_FLAGS, *extra, f"-I{HEADERS}", "-c", source, "-o", str(made)], folder)
    return made


def _run(command: Sequence[str], folder: Path | None = None) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolchainError(f"{Path(command[0]).name} failed with {done.returncode}:\n{done.stderr.strip()}")
    return done.stdout


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
