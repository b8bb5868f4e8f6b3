"""Programs of C that use their host, and how our platform and QEMU run them."""

import subprocess
from pathlib import Path
from typing import NamedTuple

from external_tools import GCC, QEMU

from pyv_npu.config import load
from pyv_npu.platform import Platform

LINK = [
    "-march=rv32im", "-mabi=ilp32", "-O1", "--specs=picolibc.specs", "--oslib=semihost", "--crt0=semihost",
    *(f"-Wl,--defsym=__{name}={value:#x}" for name, value in (
        ("flash", 0x8000_0000), ("flash_size", 0x10_0000), ("ram", 0x8010_0000), ("ram_size", 0x10_0000))),
]  # fmt: skip
LIMIT = 20_000_000
SECONDS = 30


class Ran(NamedTuple):
    code: int | None
    output: str


def build(folder: Path, source: str) -> Path:
    """An ELF with picolibc's start-up code, console and files for semihosting."""
    (folder / "main.c").write_text(source)
    command = [GCC, *LINK, str(folder / "main.c"), "-o", str(folder / "main.elf")]
    subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
    return folder / "main.elf"


def platform(image: Path, folder: Path | None, **settings: object) -> Platform:
    keys = {
        "semihosting.console": True,
        "npu.mode": "loose",
        "npu.dram.size": 16 << 20,
        "run.max_cycles": LIMIT,
    } | settings
    if folder is not None:
        keys["semihosting.folder"] = str(folder)
    machine = Platform(load(overrides=keys).config)
    machine.load(image)
    return machine


def ours(image: Path, folder: Path | None, **settings: object) -> Ran:
    machine = platform(image, folder, **settings)
    return Ran(machine.run().code, machine.console.text)


def qemu(image: Path, folder: Path, arguments: str = "") -> Ran:
    words = "".join(f",arg={word}" for word in arguments.split())
    done = subprocess.run(
        [QEMU, "-M", "virt", "-bios", "none", "-nographic", "-monitor", "none", "-serial", "none",
         "-chardev", "stdio,id=c", "-semihosting-config", f"enable=on,target=native,chardev=c{words}",
         "-kernel", str(image)],
        cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    return Ran(done.returncode, done.stdout.decode())
