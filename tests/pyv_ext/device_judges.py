"""GNU tools and QEMU as judges; tests skip visibly where one is missing."""

import shutil
import subprocess
from pathlib import Path

import pytest

PREFIX = "riscv64-unknown-elf-"
GCC_FLAGS = (
    "-march=rv32im_zicsr_zifencei",
    "-mabi=ilp32",
    "-nostdlib",
    "-static",
    "-ffreestanding",
    "-O1",
    "-Wall",
    "-Werror",
)
GNU_PACKAGES = "gcc-riscv64-unknown-elf binutils-riscv64-unknown-elf"
QEMU = "qemu-system-riscv32"


def need(tool: str, package: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is missing: apt-get install {package}")


def gnu(tool: str, *arguments: str | Path) -> str:
    """The output of a tool of the RISC-V GNU toolchain."""
    need(PREFIX + tool, GNU_PACKAGES)
    command = [PREFIX + tool, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def build(folder: Path, source: str, *flags: str, suffix: str = ".S") -> Path:
    """An executable made from one source text; its code starts at 0x8000_0000, where QEMU's hart does."""
    text, elf = folder / f"source{suffix}", folder / "program.elf"
    text.write_text(source)
    gnu("gcc", *GCC_FLAGS, "-Wl,--nmagic,--no-relax,-Ttext=0x80000000,--no-warn-rwx-segments", *flags, "-o", elf, text)
    return elf


def qemu(elf: Path, *flags: str) -> tuple[str, int]:
    """What the program prints on QEMU's `virt` machine, and its exit code."""
    need(QEMU, "qemu-system-misc")
    command = [QEMU, "-M", "virt", "-bios", "none", "-display", "none", "-monitor", "none", "-serial", "stdio"]
    done = subprocess.run(
        [*command, *flags, "-kernel", str(elf)], capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL
    )
    return done.stdout, done.returncode
