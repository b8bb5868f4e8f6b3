"""GNU tools and QEMU as oracles; tests skip visibly where one is missing."""

import subprocess
from pathlib import Path

from external_tools import QEMU, need

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


def gnu(tool: str, *arguments: str | Path) -> str:
    """The output of a tool of the RISC-V GNU toolchain."""
    need(PREFIX + tool)
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
    need(QEMU)
    command = [QEMU, "-M", "virt", "-bios", "none", "-display", "none", "-monitor", "none", "-serial", "stdio"]
    done = subprocess.run(
        [*command, *flags, "-kernel", str(elf)], capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL
    )
    return done.stdout, done.returncode
