"""The timer of supervisor mode (Sstc) against QEMU: who may access stimecmp, STIP by it and by software, interrupts."""

import subprocess
from pathlib import Path

import pytest
from bare_machine import BareMachine
from external_tools import GCC, needs
from native_forms import FORMS, Form
from qemu import FINISHER, RESET, Qemu, needs_qemu

from pyv_ext import elf

pytestmark = needs(GCC)

LOG, LOG_SIZE = 0x8040_0000, 128
PROGRAM = f"""
    .option norvc
#if __riscv_xlen == 64
#define SET(low) li t6, low; csrw stimecmp, t6
#else
#define SET(low) li t6, -1; csrw stimecmp, t6; li t6, low; srai t5, t6, 31; csrw stimecmph, t5; csrw stimecmp, t6
#endif
#define NOTE(register) sw register, 0(s11); addi s11, s11, 4
#define IN_MACHINE_MODE la s0, 9f; ecall; 9:
#define RETURN la t0, 9f; csrw mepc, t0; mret; 9:
#define IN_SUPERVISOR_MODE li t0, 0x1800; csrc mstatus, t0; li t0, 0x800; csrs mstatus, t0; RETURN
    li s11, {LOG:#x}
    li t0, 0x2004004
    li t1, -1
    sw t1, 0(t0)
    csrw pmpaddr0, t1
    li t0, 0x1f
    csrw pmpcfg0, t0
    la t0, mhandler
    csrw mtvec, t0
    la t0, shandler
    csrw stvec, t0
    li t0, 0x222
    csrw mideleg, t0
    csrw mcounteren, zero
    SET(-1)
    IN_SUPERVISOR_MODE
    csrr t1, stimecmp           # illegal: neither TM nor STCE
    IN_MACHINE_MODE
    li t6, 1
    slli t6, t6, __riscv_xlen - 1
    STCE_SET
    IN_SUPERVISOR_MODE
    csrw stimecmp, zero         # illegal: TM is 0
    IN_MACHINE_MODE
    li t0, 2
    csrw mcounteren, t0
    IN_SUPERVISOR_MODE
    SET(0)
    csrr t1, sip
    NOTE(t1)
    SET(-1)
    csrr t1, sip
    NOTE(t1)
    li s1, 0
    li s2, 5
    rdtime t6
    addi t6, t6, 400
    ARM
    li t0, 0x20
    csrw sie, t0
    csrsi sstatus, 2
1:  wfi
    bne s1, s2, 1b
    csrci sstatus, 2
    NOTE(s1)
    IN_MACHINE_MODE
    SET(-1)
    li t0, 0x20
    csrs mip, t0                # STIP is the timer's
    csrr t1, mip
    and t1, t1, t0
    NOTE(t1)
    SET(0)
    csrc mip, t0
    csrr t1, mip
    and t1, t1, t0
    NOTE(t1)
    SET(-1)
    STCE_CLEAR
    csrc mip, t0
    csrs mip, t0                # STIP is software's
    csrr t1, mip
    and t1, t1, t0
    NOTE(t1)
    li s11, {LOG + LOG_SIZE:#x}
    li t0, {FINISHER:#x}
    li t1, {RESET:#x}
    sw t1, 0(t0)
    j .
    .balign 4
mhandler:
    csrr t3, mcause
    NOTE(t3)
    addi t3, t3, -9
    beqz t3, 2f
    csrr t3, mepc
    addi t3, t3, 4
    csrw mepc, t3
    mret
2:  csrw mepc, s0
    li t3, 0x1800
    csrs mstatus, t3
    mret
    .balign 4
shandler:
    csrr t3, scause
    NOTE(t3)
    addi s1, s1, 1
    bne s1, s2, 3f
    csrw sie, zero
3:  rdtime t6
    addi t6, t6, 200
    ARM
    sret
"""
NARROW = {"STCE_SET": "csrs menvcfgh, t6", "STCE_CLEAR": "li t6, 1; slli t6, t6, 31; csrc menvcfgh, t6",
          "ARM": "csrw stimecmph, zero; csrw stimecmp, t6"}  # fmt: skip
WIDE = {"STCE_SET": "csrs menvcfg, t6", "STCE_CLEAR": "li t6, 1; slli t6, t6, 63; csrc menvcfg, t6",
        "ARM": "csrw stimecmp, t6"}  # fmt: skip


@needs_qemu
@pytest.mark.parametrize("xlen", [32, 64])
def test_the_timer_is_that_of_qemu(xlen: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PROGRAM
    for name, code in (WIDE if xlen == 64 else NARROW).items():
        text = text.replace(name, code)
    source, program = tmp_path / "a.S", tmp_path / "a.elf"
    source.write_text(text)
    abi = "lp64" if xlen == 64 else "ilp32"
    command = [GCC, f"-march=rv{xlen}ima_zicsr", f"-mabi={abi}", "-nostdlib", "-nostartfiles", "-Wl,-Ttext=0x80000000"]
    subprocess.run([*command, "-Wl,--no-warn-rwx-segments", "-Wl,-e0x80000000", source, "-o", program], check=True)
    with Qemu("-kernel", str(program), compressed=False, supervisor=True, xlen=xlen, sstc=True) as machine:
        machine.start()
        machine.finish()
        theirs = machine.memory(LOG, LOG_SIZE)
    for form in FORMS:
        with monkeypatch.context() as patch:
            form.choose(patch)
            assert ours(program, xlen, form) == theirs, form
    notes = [int.from_bytes(theirs[at : at + 4], "little") for at in range(0, LOG_SIZE, 4)]
    supervisor_timer = 1 << xlen - 1 | 5
    assert notes[:2] == [2, 9] and notes.count(supervisor_timer & 0xFFFF_FFFF) == 5 + (xlen == 64) and 0x20 in notes


def ours(program: Path, xlen: int, form: Form) -> bytes:
    machine = BareMachine(f"rv{xlen}imasu_zicsr_zifencei_sstc", engine=form.engine)
    machine.load(elf.read_elf(program))
    machine.run(1_000_000)
    data = machine.bus.peek(LOG, LOG_SIZE)
    assert data is not None
    return data
