"""Supervisor mode against QEMU: random accesses of CSRs, traps that are delegated and not, and returns, in all modes.

Each handler writes what it finds in its CSRs behind the log pointer, and goes on behind the instruction. EBREAK, which
is not delegated, goes to the mode in a7; its mtval differs (docs/conformance.md).
"""

import random
import subprocess
from pathlib import Path

import pytest
from bare_machine import BareMachine
from external_tools import GCC, needs
from native_forms import FORMS, Form
from qemu import Qemu, needs_qemu
from shares import slow

from pyv_ext import elf

pytestmark = needs(GCC)

LOG, LOG_SIZE = 0x8040_0000, 1 << 16
ISA = "rv32imasu_zicsr_zifencei"
HANDLER = """
    .balign 4
{level}handler:
    csrr t3, {level}cause
    sw t3, 0(s11)
    csrr t4, {level}epc
    sw t4, 4(s11)
    csrr t5, {level}status
    sw t5, 8(s11)
    csrr t5, {level}tval
    addi t6, t3, -3
    snez t6, t6
    neg t6, t6
    and t5, t5, t6
    sw t5, 12(s11)
    addi s11, s11, 16
    bltz t3, 2f
    addi t4, t4, 4
    csrw {level}epc, t4
    {change}
    {level}ret
2:  {clear}
    {level}ret
"""
CHANGE = """
    addi t3, t3, -3
    bnez t3, 1f
    li t3, 0x1800
    csrc mstatus, t3
    slli t3, a7, 11
    csrs mstatus, t3
1:"""
START = f"""
    .option norvc
    .option norelax
    j main
{HANDLER.format(level="m", change=CHANGE, clear="csrci mie, 8; li t3, 0x222; csrc mip, t3")}
{HANDLER.format(level="s", change="", clear="csrci sip, 2; csrw sie, zero")}
main:
    li t0, 0x2004004
    li t1, -1
    sw t1, 0(t0)
    li s11, {LOG:#x}
    li t0, -1
    csrw pmpaddr0, t0
    li t0, 0x1f
    csrw pmpcfg0, t0
    la t0, mhandler
    csrw mtvec, t0
    la t0, shandler
    csrw stvec, t0
"""
END = f"""
    li a7, 3
    ebreak
    li s11, {LOG + LOG_SIZE:#x}
    li t0, 0x100000
    li t1, 0x7777
    sw t1, 0(t0)
    j .
"""
STATUS = (1 << 1, 1 << 3, 1 << 5, 1 << 7, 1 << 8, 1 << 20, 1 << 21, 1 << 22)
"""Fields of mstatus that are written. MXR and SUM mean nothing without translation; QEMU 7.2 keeps MPRV at mret."""
WRITES = {
    "mstatus": STATUS, "sstatus": (STATUS[0], STATUS[2], STATUS[4]), "mie": (2, 0x20, 0x200), "sie": (2, 0x20, 0x200),
    "mip": (2, 0x20, 0x200), "sip": (2, 0x20, 0x200), "mideleg": (2, 0x20, 0x200), "medeleg": (1 << 2, 1 << 8, 1 << 9),
    "sscratch": (5, 1 << 31), "mscratch": (5,), "scause": (9, 1 << 31), "stval": (1 << 30,), "sepc": (64, 256),
    "mcounteren": (1, 4), "scounteren": (1, 4), "mcause": (3,),
}  # fmt: skip
"""Registers, and the bits of them that are set and cleared."""
READS = (*WRITES, "stvec", "mtvec", "medeleg", "mideleg", "misa", "mhartid")


def fragment(chance: random.Random) -> str:
    """A few instructions that go on behind themselves in any mode."""
    kind = chance.randrange(10)
    if kind < 4:
        name = chance.choice(list(WRITES))
        bits = sum({chance.choice(WRITES[name]) for _ in range(chance.randint(1, 3))})
        return f"li t0, {bits:#x}\n csrr{chance.choice('scs')} t1, {name}, t0\n sw t1, 0(s11)\n addi s11, s11, 4"
    if kind < 6:
        return f"csrr t1, {chance.choice(READS)}\n sw t1, 0(s11)\n addi s11, s11, 4"
    if kind == 6:
        return f"li a7, {chance.choice((0, 1, 3))}\n ebreak"
    if kind == 7:
        return chance.choice(("ecall", ".4byte 0xffffffff", "sfence.vma", "csrr t2, instret", "csrw satp, zero"))
    level = chance.choice("sm")
    return f"la t0, 1f\n csrw {level}epc, t0\n {level}ret\n1: nop"


def image(folder: Path, seed: int) -> Path:
    """The ELF of a random program."""
    chance = random.Random(seed)
    zero = (f"li x{register}, 0" for register in range(1, 27))  # QEMU's boot ROM leaves something
    text = "\n".join((START, *zero, *(fragment(chance) for _ in range(400)), END))
    source, program = folder / "a.S", folder / "a.elf"
    source.write_text(text)
    flags = ["-march=rv32ima_zicsr_zifencei", "-mabi=ilp32", "-nostdlib", "-nostartfiles", "-Wl,-Ttext=0x80000000,-n"]
    subprocess.run([GCC, *flags, str(source), "-o", str(program)], check=True, capture_output=True)
    return program


@needs_qemu
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("seed", [1, *slow(*range(2, 23))])
def test_modes_are_those_of_qemu(seed: int, form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = image(tmp_path, seed)
    with Qemu("-kernel", str(program), compressed=False, supervisor=True) as qemu:
        qemu.start()
        qemu.finish()
        expected = qemu.memory(LOG, LOG_SIZE)
    form.choose(monkeypatch)
    machine = BareMachine(ISA, engine=form.engine)
    machine.load(elf.read_elf(program))
    machine.run(100_000)
    log = machine.bus.peek(LOG, LOG_SIZE)
    assert log is not None
    first = next((at for at in range(0, LOG_SIZE, 4) if log[at : at + 4] != expected[at : at + 4]), LOG_SIZE)
    assert log[: first + 4].hex(" ", 4) == expected[: first + 4].hex(" ", 4)
    assert expected.rstrip(b"\0").count(b"\0") != len(expected), "nothing is logged"
