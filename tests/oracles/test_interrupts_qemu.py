"""What makes an interrupt pending and enabled, right before a WFI or another instruction: traps as QEMU takes them.

The handler counts, takes the sources back, and goes on behind the instruction, as a WFI would wait for ever then.
"""

import random
import subprocess
from itertools import islice
from pathlib import Path

import pytest
from external_tools import GCC, needs
from lockstep import WITH_C, lockstep
from native_forms import FORMS, Form
from qemu import needs_qemu
from random_programs import CODE, DATA, Program
from shares import slow
from spike import differences, elf_file, needs_spike, our_log, spike_log

from pyv_ext.isa import Isa

pytestmark = needs(GCC)

START = """
    .option norelax
    j main
    .balign 4
handler:
    csrr t0, mepc
    lhu t1, 0(t0)
    andi t1, t1, 3
    addi t1, t1, -3
    seqz t1, t1
    slli t1, t1, 1
    addi t1, t1, 2
    add t0, t0, t1
    csrw mepc, t0
    csrr s1, mcause
    addi s0, s0, 1
    li t0, 0x2000000
    sw zero, 0(t0)
    li t0, 0x2004004
    li t1, -1
    sw t1, 0(t0)
    csrw mie, zero
    mret
main:
    la t0, handler
    csrw mtvec, t0
    li t0, 0x2004004
    li t1, -1
    sw t1, 0(t0)
    sw zero, -4(t0)
"""
END = """
    li t0, 0x100000
    li t1, 0x7777
    sw t1, 0(t0)
    wfi
    j .
"""
TIMER = "li t0, 0x2004000\n sw zero, 4(t0)"
SOFTWARE = "li t0, 0x2000000\n li t1, 1\n sw t1, 0(t0)"
RAISE = {"timer": TIMER, "software": SOFTWARE, "both": f"{TIMER}\n {SOFTWARE}"}
ALL, MIE = 0x88, 8
SET_MIE = f"li t2, {ALL}\n csrw mie, t2"
ENABLE = {
    "csrsi mstatus": f"csrci mstatus, {MIE}\n {{raised}}\n {SET_MIE}\n csrsi mstatus, {MIE}",
    "csrs mstatus": f"csrci mstatus, {MIE}\n {{raised}}\n {SET_MIE}\n li t3, {MIE}\n csrs mstatus, t3",
    "csrw mstatus": f"csrci mstatus, {MIE}\n {{raised}}\n {SET_MIE}\n li t3, 0x1888\n csrw mstatus, t3",
    "csrw mie": f"csrw mie, zero\n csrsi mstatus, {MIE}\n {{raised}}\n {SET_MIE}",
    "csrs mie": f"csrw mie, zero\n csrsi mstatus, {MIE}\n {{raised}}\n li t2, {ALL}\n csrs mie, t2",
    "mret": f"csrci mstatus, {MIE}\n {{raised}}\n {SET_MIE}\n li t3, 0x1880\n csrw mstatus, t3\n la t3, 1f\n"
            " csrw mepc, t3\n mret\n .balign 4\n1:",
    "store": f"{SET_MIE}\n csrsi mstatus, {MIE}\n {{raised}}",
}  # fmt: skip
"""Ways to come to an interrupt that is pending and enabled; `raised` makes it pending."""
NEXT = ("wfi", "addi s2, s2, 1", "c.addi s2, 1", "lw s2, 0(s3)", "csrr s2, mip")


def assembled(folder: Path, *pieces: str) -> Program:
    """The program, compared from `main`'s last instruction on."""
    zero = (f"li x{register}, 0" for register in range(1, 32))  # QEMU's boot ROM leaves something
    text = "\n".join((START, *zero, f"li s3, {DATA:#x}\nnop\ngo:", *pieces, "over:", END))
    source, made, image = folder / "a.S", folder / "a.elf", folder / "a.bin"
    source.write_text(text)
    flags = [
        "-march=rv32imac_zicsr",
        "-mabi=ilp32",
        "-nostdlib",
        "-nostartfiles",
        f"-Wl,-Ttext={CODE:#x},-n,--no-relax",
    ]
    subprocess.run([GCC, *flags, str(source), "-o", str(made)], check=True, capture_output=True)
    subprocess.run(["riscv64-unknown-elf-objcopy", "-O", "binary", str(made), str(image)], check=True)
    names = subprocess.run(["riscv64-unknown-elf-nm", str(made)], check=True, capture_output=True, text=True).stdout
    symbols = {parts[2]: int(parts[0], 16) for parts in map(str.split, names.splitlines()) if len(parts) == 3}
    return Program(Isa(WITH_C), image.read_bytes(), bytes(64), symbols["go"], symbols["over"])


def pieces(seed: int, ways: tuple[str, ...], following: tuple[str, ...]) -> list[str]:
    """Each way, before each instruction, in a random order; of two stores the first would trap."""
    chance = random.Random(seed)
    found = [(way, raised, after) for way in ways for raised in RAISE.values() for after in following]
    found = [item for item in found if item[:2] != ("store", RAISE["both"])]
    chance.shuffle(found)
    return [f"{ENABLE[way].format(raised=raised)}\n{after}\n nop\n csrw mie, zero" for way, raised, after in found]


@needs_qemu
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("share", [3, *slow(1)], ids="one in {}".format)
def test_traps_are_those_of_qemu(share: int, form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    form.choose(monkeypatch)
    found = pieces(1, tuple(ENABLE), NEXT)[::share]
    result = lockstep(assembled(tmp_path, *found), form.engine)
    assert result.causes.total() == len(found)


@needs_spike
def test_traps_are_those_of_spike(tmp_path: Path) -> None:
    """Without stores, which Spike's CLINT takes note of later."""
    ways = tuple(way for way in ENABLE if way != "store")
    program = assembled(tmp_path, *pieces(2, ways, NEXT))
    path = elf_file(tmp_path / "program.elf", CODE, {CODE: program.code, DATA: program.data})
    end = f" {program.end:#010x} ("
    ours = list(our_log(path, WITH_C, 200_000))
    ours = list(islice(ours, next(number for number, line in enumerate(ours) if end in line)))
    assert differences(ours, spike_log(path, WITH_C)) == []
