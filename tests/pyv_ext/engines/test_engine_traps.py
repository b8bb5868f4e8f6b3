"""Every synchronous trap with exact mepc, mtval and cycles; mret; the trap loop."""

import pytest
from hart_rig import DATA, HANDLER, PORT, RAM, Rig

from pyv_ext.engines.core import StopReason
from pyv_ext.timing import CoreTiming

pytestmark = pytest.mark.usefixtures("each_engine")

ADD = 0x0000_0033
NO_C = "rv32im_zicsr_zifencei"
EBREAK = 0x0010_0073

CASES = [
    # (isa, instructions before, the trapping instruction, cause, mtval)
    (NO_C, "", "jal x1,6", 0, RAM + 6),
    (NO_C, "li x2,0x80000102", "jalr x1,0(x2)", 0, RAM + 0x102),
    (NO_C, "li x2,0x80000103", "jalr x2,0(x2)", 0, RAM + 0x102),
    (NO_C, "", "beq x0,x0,-2", 0, RAM - 2),
    (NO_C, "", ".word 0xffffffff", 2, 0xFFFF_FFFF),
    (NO_C, "", ".word 0", 2, 0),
    (NO_C, "", ".word 0xabcd0001", 2, 0x0001),
    (NO_C, "", ".word 0x5c31408b", 2, 0x5C31_408B),
    (NO_C, "", "ebreak", 3, RAM),
    (NO_C, "", "ecall", 11, 0),
    (NO_C, "li x2,0x80004001", "lh x1,0(x2)", 4, DATA + 1),
    (NO_C, "li x2,0x80004002", "lw x1,0(x2)", 4, DATA + 2),
    (NO_C, "li x2,0x10000001", "lw x1,0(x2)", 4, 0x1000_0001),
    (NO_C, "li x2,0x10000000", "lbu x1,0(x2)", 5, 0x1000_0000),
    (NO_C, "li x2,0x80100000", "lw x0,0(x2)", 5, 0x8010_0000),
    (NO_C, "li x2,0x40000000", "lb x1,3(x2)", 5, PORT + 3),
    (NO_C, "li x2,0x40000000", "lw x1,8(x2)", 5, PORT + 8),
    (NO_C, "li x2,0x80004003", "sh x2,0(x2)", 6, DATA + 3),
    (NO_C, "li x2,0x80004003", "sw x2,0(x2)", 6, DATA + 3),
    (NO_C, "li x2,0xfffffffc", "sw x2,0(x2)", 7, 0xFFFF_FFFC),
    (NO_C, "li x2,0x40000000", "sb x2,0(x2)", 7, PORT),
    (NO_C, "li x2,0x40000000", "sw x2,8(x2)", 7, PORT + 8),
    (NO_C, "", "csrrw x1,0x7c0,x0", 2, 0x7C00_10F3),
    (NO_C, "", "csrrw x1,mhartid,x0", 2, 0xF140_10F3),
    (NO_C, "li x2,1", "csrrs x1,cycle,x2", 2, 0xC001_20F3),
    (NO_C, "", "csrrwi x1,marchid,0", 2, 0xF120_50F3),
    (NO_C, "", "csrrs x1,satp,x0", 2, 0x1800_20F3),
    ("rv32imac_zicsr", "", ".word 0x00019002", 3, RAM),  # c.ebreak
    ("rv32imac_zicsr", "li x2,0x80004002", "lr.w x1,(x2)", 4, DATA + 2),
    ("rv32imac_zicsr", "li x2,0x80004002", "sc.w x1,x2,(x2)", 6, DATA + 2),
    ("rv32imac_zicsr", "li x2,0x80004001", "amoadd.w x1,x2,(x2)", 6, DATA + 1),
    ("rv32imac_zicsr", "li x2,0x40000000", "lr.w x1,(x2)", 5, PORT),
    ("rv32imac_zicsr", "li x2,0x40000000", "sc.w x1,x2,(x2)", 7, PORT),
    ("rv32imac_zicsr", "li x2,0x40000000", "amoswap.w x1,x2,(x2)", 7, PORT),
    ("rv32i_zicbom", "li x2,0x10000000", "cbo.flush (x2)", 7, 0x1000_0000),
]


@pytest.mark.parametrize(("isa", "before", "trapping", "cause", "mtval"), CASES, ids=lambda v: str(v)[:32])
def test_trap(isa, before, trapping, cause, mtval):
    timing = CoreTiming(trap=5)
    rig = Rig(f"{before}\n{trapping}", isa=isa, timing=timing)
    rig.hart.csrs.mstatus |= 1 << 3
    prefix = 2 * bool(before)
    rig.steps(prefix)
    registers, cycle = rig.x, rig.hart.cycle
    rig.steps(1)
    hart, csrs = rig.hart, rig.hart.csrs
    at = RAM + 4 * prefix
    expected_mtval = at if cause == 3 else mtval
    assert (csrs.mcause, csrs.mepc, csrs.mtval) == (cause, at, expected_mtval)
    assert csrs.mstatus == 0x1880
    assert (hart.pc, hart.instret, hart.cycle, hart.traps) == (HANDLER, prefix, cycle + 5, 1)
    assert rig.x == registers


def test_a_fetch_where_nothing_answers_faults_at_the_target():
    rig = Rig("li x2,0x10000000\njalr x1,0(x2)")
    rig.steps(4)
    assert (rig.hart.csrs.mcause, rig.hart.csrs.mepc, rig.hart.csrs.mtval) == (1, 0x1000_0000, 0x1000_0000)
    assert rig.hart.x[1] == RAM + 12


def test_a_fetch_from_a_device_faults():
    rig = Rig("li x2,0x40000000\njalr x1,0(x2)")
    rig.steps(4)
    assert (rig.hart.csrs.mcause, rig.hart.csrs.mtval, rig.port.log) == (1, PORT, [])


def test_a_fetch_fault_of_the_second_half_names_it():
    rig = Rig("li x2,0x800ffffe\njalr x1,0(x2)")
    rig.bus.poke(0x800F_FFFE, b"\x13\x00")
    rig.steps(4)
    assert (rig.hart.csrs.mcause, rig.hart.csrs.mepc, rig.hart.csrs.mtval) == (1, 0x800F_FFFE, 0x8010_0000)


def test_branches_not_taken_to_misaligned_targets_do_not_trap():
    rig = Rig("beq x0,x0,4\nbne x0,x0,2\naddi x1,x0,1", isa="rv32i")
    rig.steps(3)
    assert rig.hart.x[1] == 1


def test_compressed_targets_are_aligned_with_c():
    rig = Rig("jal x1,6\n.word 0x05050001")
    rig.steps(2)
    assert (rig.hart.x[10], rig.hart.pc) == (1, RAM + 8)


def test_misaligned_memory_accesses_are_allowed_by_the_switch():
    program = "li x2,0x80004ffd\nli x3,0x89abcdef\nsw x3,0(x2)\nlw x4,0(x2)\nlh x5,1(x2)\nlw x6,0x101(x7)"
    rig = Rig(program, misaligned=True)
    rig.hart.x[7] = PORT
    rig.steps(7)
    assert (rig.hart.x[4], rig.hart.x[5]) == (0x89AB_CDEF, 0xFFFF_ABCD)
    rig.steps(1)
    assert (rig.hart.csrs.mcause, rig.hart.csrs.mtval) == (4, PORT + 0x101)


def test_misaligned_accesses_across_the_end_of_memory_fault():
    rig = Rig("li x2,0x800ffffe\nsw x2,0(x2)", misaligned=True)
    rig.steps(3)
    assert (rig.hart.csrs.mcause, rig.hart.csrs.mtval) == (6, 0x800F_FFFE)


def test_mret_returns_and_restores_the_interrupt_enable():
    rig = Rig(
        "csrrsi x0,mstatus,8\necall\naddi x1,x0,7", handler="csrrs x5,mepc,x0\naddi x5,x5,4\ncsrrw x0,mepc,x5\nmret"
    )
    rig.steps(7)
    assert (rig.hart.x[1], rig.hart.csrs.mstatus) == (7, 0x1888)
    assert rig.hart.instret == 6


def test_traps_ignore_the_vectored_mode():
    rig = Rig("ecall")
    rig.hart.csrs.mtvec = HANDLER | 1
    rig.steps(1)
    assert rig.hart.pc == HANDLER


def test_a_guest_without_a_handler_stops_with_the_trap_loop_and_its_origin():
    rig = Rig("addi x1,x0,1\n.word 0xffffffff")
    rig.hart.csrs.mtvec = 0
    stop = rig.engine.run(1000)
    assert stop.reason is StopReason.TRAP_LOOP
    assert stop.text == (
        "trap loop at pc 0x00000000: cause 1 (instruction access fault), mtval 0x00000000; "
        "it began at pc 0x80000004: cause 2 (illegal instruction), mtval 0xffffffff"
    )
    assert (rig.hart.instret, rig.hart.traps) == (1, 2)


@pytest.mark.parametrize(
    ("isa", "code", "says"),
    [
        (
            "rv32im_zicsr",
            "csrrw x0,satp,x0",
            "0x18001073 (csrrw zero,satp,zero: a CSR of supervisor mode, which this hart lacks)",
        ),
        (
            "rv32im_zicsr",
            "csrrw x0,medeleg,x0",
            "0x30201073 (csrrw zero,medeleg,zero: a CSR of supervisor mode, which this hart lacks)",
        ),
        ("rv32im_zicsr", "csrrw x0,mvendorid,x0", "0xf1101073 (csrrw zero,mvendorid,zero)"),
        ("rv32imu_zicsr", "csrrw x5,mstatus,x0", "0x300012f3 (csrrw t0,mstatus,zero)"),
        ("rv32i_zicsr", ".word 0x02c58533", "0x02c58533 (mul a0,a1,a2: extension m, which rv32i_zicsr lacks)"),
        ("rv32ic_zicsr", ".word 0x00016108", "0x00006108 (c.flw fa0,0(a0): extension f, which rv32ic_zicsr lacks)"),
        ("rv32i_zicsr", ".word 0", "0x00000000"),
    ],
)
def test_a_trap_loop_says_what_the_illegal_word_means(isa, code, says):
    rig = Rig(code, isa=isa)
    rig.hart.csrs.mtvec = 0
    rig.hart.priv = 0 if "u" in isa else 3
    text = rig.engine.run(1000).text
    assert text.endswith(f"it began at pc {RAM:#010x}: cause 2 (illegal instruction), mtval {says}")


def test_a_handler_that_traps_at_its_first_instruction_is_a_trap_loop():
    rig = Rig("ecall", handler="ebreak")
    stop = rig.engine.run(1000)
    assert stop.text.startswith(
        f"trap loop at pc {HANDLER:#010x}: cause 3 (breakpoint), mtval {HANDLER:#010x}; it began"
    )


def test_the_same_trap_again_after_progress_is_no_loop():
    rig = Rig("again:; ecall\njal x0,again", handler="csrrwi x0,mscratch,1\nmret")
    assert rig.engine.run(1000) is None
    assert rig.hart.traps == 334


@pytest.mark.parametrize(("access", "cause"), [("lw x5,2(x11)", 4), ("sw x5,2(x11)", 6)])
def test_devices_are_accessed_aligned_where_memory_need_not_be(access, cause):
    rig = Rig(access, misaligned=True)
    rig.hart.x[11] = PORT
    rig.engine.run(10)
    assert (rig.hart.csrs.mcause, rig.hart.csrs.mtval, rig.port.log) == (cause, PORT + 2, [])
