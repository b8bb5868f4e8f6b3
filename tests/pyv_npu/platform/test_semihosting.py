"""Programs that end by semihosting, on our platform and, as the reference, on QEMU."""

import subprocess
from pathlib import Path

import pytest
from external_tools import GCC, QEMU, needs

from pyv_ext import elf
from pyv_ext.cores import DEFAULT_ENGINE
from pyv_ext.engines.core import StopReason
from pyv_npu.config import load
from pyv_npu.platform import Platform

CALL = "slli zero, zero, 31\n ebreak\n srai zero, zero, 7\n"
CASES = [
    ("li a0, 0x18\n li a1, 0x20026\n", "", 0),
    ("li a0, 0x18\n li a1, 0x20023\n", "", 1),
    ("li a0, 0x20\n la a1, block\n", ".word 0x20026, 37", 37),
    ("li a0, 0x20\n la a1, block\n", ".word 0x20024, 37", 1),
]


def build(folder: Path, operation: str, block: str, handler: str = "j .") -> Path:
    source = folder / "end.S"
    # The linker relaxes nothing and the call stays within a page, as semihosting demands.
    source.write_text(
        f".option norvc\n.option norelax\n.globl _start\n_start:\n la t0, handler\n csrw mtvec, t0\n {operation}"
        f" .balign 16\n {CALL} j .\n .balign 16\nhandler: {handler}\n .balign 64\nblock: {block}\n"
    )
    out = folder / "end.elf"
    flags = ["-march=rv32im_zicsr", "-mabi=ilp32", "-nostdlib", "-nostartfiles", "-Wl,-n,-Ttext=0x80000000"]
    subprocess.run([GCC, *flags, str(source), "-o", str(out)], check=True, capture_output=True)
    return out


@needs(GCC)
@pytest.mark.parametrize("core", ["reference", DEFAULT_ENGINE])
@pytest.mark.parametrize(("operation", "block", "code"), CASES)
def test_the_program_ends(tmp_path: Path, core: str, operation: str, block: str, code: int) -> None:
    platform = Platform(load(overrides={"core.engine": core}).config)
    platform.load(elf.read_elf(build(tmp_path, operation, block)))
    stop = platform.run(until=10_000)
    assert (stop.reason, stop.code) == (StopReason.EXIT, code)


@needs(GCC, QEMU)
@pytest.mark.parametrize(("operation", "block", "code"), CASES)
def test_qemu_ends_alike(tmp_path: Path, operation: str, block: str, code: int) -> None:
    image = build(tmp_path, operation, block)
    command = [QEMU, "-M", "virt", "-bios", "none", "-display", "none", "-semihosting", "-kernel", str(image)]
    assert subprocess.run(command, timeout=30, stdin=subprocess.DEVNULL, check=False).returncode == code


@needs(GCC)
def test_another_operation_finds_no_host_and_traps(tmp_path: Path) -> None:
    finish = "li t1, 0x100000\n csrr t2, mcause\n slli t2, t2, 16\n li t3, 0x3333\n or t2, t2, t3\n sw t2, 0(t1)\n"
    image = build(tmp_path, "li a0, 0x04\n la a1, block\n", '.asciz "text"', finish)
    platform = Platform(load().config)
    platform.load(elf.read_elf(image))
    stop = platform.run(until=10_000)
    assert (stop.reason, stop.code) == (StopReason.EXIT, 3)
