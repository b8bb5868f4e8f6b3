"""What each instruction costs: classes, MMIO, posted stores, fences."""

import pytest
from hart_rig import DATA, PORT, RAM, Rig, Trace

from pyv_ext.bus.clock import Clock
from pyv_ext.bus.memory import Ram
from pyv_ext.hart.hart import Hart
from pyv_ext.timing import CoreTiming

pytestmark = pytest.mark.usefixtures("each_engine")

PRIMES = CoreTiming(
    alu=2,
    mul=3,
    div=5,
    load=7,
    store=11,
    branch=13,
    taken=17,
    jump=19,
    csr=23,
    fence=29,
    near_extra=31,
    mmio_read=37,
    mmio_write=41,
)

COSTS = [
    ("addi x1,x0,1", 2),
    ("lui x1,5", 2),
    ("auipc x1,5", 2),
    ("c.addi x1,3", 2),
    ("sh1add x1,x1,x1", 2),
    ("rev8 x1,x1", 2),
    ("mul x1,x1,x1", 3),
    ("mulhsu x1,x1,x1", 3),
    ("div x1,x1,x1", 5),
    ("remu x1,x1,x1", 5),
    ("lw x1,0(x10)", 7),
    ("lb x0,1(x10)", 7),
    ("lr.w x1,(x10)", 7),
    ("amoadd.w x1,x1,(x10)", 7),
    ("sh x1,0(x10)", 11),
    ("sc.w x1,x1,(x10)", 11),
    ("cbo.clean (x10)", 11),
    ("bne x0,x0,8", 13),
    ("beq x0,x0,8", 17),
    ("c.beqz x8,8", 17),
    ("jal x1,8", 19),
    ("jalr x1,0(x11)", 19),
    ("mret", 19),
    ("csrrs x1,mcycle,x0", 23),
    ("csrrw x1,mscratch,x0", 23),
    ("fence rw,rw", 29),
    ("fence iorw,iorw", 29),
    ("fence.tso", 29),
    ("fence.i", 29),
    ("lw x1,0(x13)", 38),
    ("sw x1,0(x13)", 42),
    ("lw x1,0(x12)", 37),
    ("sw x1,0(x12)", 41),
]


@pytest.mark.parametrize(("instruction", "cycles"), COSTS, ids=lambda v: str(v))
@pytest.mark.parametrize("traced", [False, True])
def test_cost(instruction, cycles, traced):
    rig = Rig(instruction, timing=PRIMES)
    for register, value in ((10, DATA), (11, RAM), (12, PORT), (13, 0x4100_0000)):
        rig.hart.x[register] = value
    rig.hart.csrs.mepc = RAM
    rig.engine.tracers = (Trace(),) if traced else ()
    rig.engine.run(1)
    assert (rig.hart.cycle, rig.hart.instret) == (cycles, 1)
    if traced:
        assert rig.engine.tracers[0].retired == [(RAM, 0, cycles, instruction.split()[0])]


def test_reset_cycles_delay_the_first_instruction():
    hart = Hart(Rig().isa, CoreTiming(), Clock().records, reset_pc=RAM, reset_cycles=1)
    assert hart.cycle == 1


def test_a_device_acts_one_way_after_the_start_and_its_wait_is_added():
    rig = Rig("lw x1,4(x12)\nlw x2,4(x12)", timing=CoreTiming(mmio_read=20, mmio_one_way=8))
    rig.hart.x[12] = PORT
    rig.port.wait = 5
    rig.engine.run(50)
    assert rig.port.log[:2] == [("read", 4, 8), ("read", 4, 33)]


def test_posted_stores_pipeline_and_a_fence_with_o_waits_for_them():
    program = "sw x1,0(x12)\nsw x1,4(x12)\nfence {},rw\naddi x2,x0,1"
    for predecessors, end in (("o", 62), ("rw", 3), ("iorw", 62), ("i", 3)):
        rig = Rig(program.format(predecessors), timing=CoreTiming(mmio_one_way=60))
        rig.hart.x[12] = PORT
        rig.engine.tracers = (Trace(),)
        rig.engine.run(100)
        assert [end for _, _, end, _ in rig.engine.tracers[0].retired[:4]] == [1, 2, end, end + 1]
        assert rig.port.log == [("write", 0, 0, 60), ("write", 4, 0, 61)]


def test_a_fence_after_the_stores_have_arrived_costs_its_class():
    rig = Rig("sw x1,0(x12)\ndiv x1,x1,x1\nfence o,o", timing=CoreTiming(mmio_one_way=5, div=33, fence=2))
    rig.hart.x[12] = PORT
    rig.steps(3)
    assert rig.hart.cycle == 36


def test_the_ninth_posted_store_waits_for_the_first():
    rig = Rig("sw x1,0(x12)\n" * 9, timing=CoreTiming(mmio_one_way=60))
    rig.hart.x[12] = PORT
    rig.engine.tracers = (Trace(),)
    rig.engine.run(100)
    assert [end for _, _, end, _ in rig.engine.tracers[0].retired[6:9]] == [7, 8, 62]


def test_a_store_from_x0_and_narrow_stores_write_only_their_bytes():
    rig = Rig(
        "li x1,0x11223344; sw x1,0(x10); sb x0,1(x10); li x2,0xaabbccdd; sh x2,2(x10);"
        "lw x3,0(x10); lbu x4,3(x10); lh x5,2(x10); lhu x6,2(x10); lb x7,3(x10)"
    )
    rig.hart.x[10] = DATA
    rig.steps(12)
    assert rig.x[3:8] == [0xCCDD_0044, 0xCC, 0xFFFF_CCDD, 0xCCDD, 0xFFFF_FFCC]


def test_addresses_wrap_around():
    rig = Rig("lw x1,-4(x10)\nli x11,-4\nlw x2,0(x11)")
    rig.hart.x[10] = 0
    rig.steps(1)
    assert (rig.hart.csrs.mcause, rig.hart.csrs.mtval) == (5, 0xFFFF_FFFC)


# -- atomics ---------------------------------------------------------------------------------------------------


def test_sc_succeeds_once_after_lr_of_the_same_word():
    rig = Rig("lr.w x1,(x10)\nsc.w x2,x11,(x10)\nsc.w x3,x12,(x10)\nlr.w x1,(x10)\nsc.w x4,x12,(x13)\nlw x5,0(x10)")
    rig.hart.x[10], rig.hart.x[11], rig.hart.x[12], rig.hart.x[13] = DATA, 0x8000_0001, 7, DATA + 4
    rig.steps(6)
    assert rig.x[1:6] == [0x8000_0001, 0, 1, 1, 0x8000_0001]


def test_amos_give_back_the_old_word_even_into_their_operand():
    rig = Rig("amoadd.w x1,x1,(x10)\namomax.w x0,x2,(x10)\namoswap.w x3,x0,(x10)")
    rig.hart.x[1], rig.hart.x[2], rig.hart.x[10] = 5, 0xFFFF_FFFF, DATA
    rig.bus.poke(DATA, (0x8000_0000).to_bytes(4, "little"))
    rig.steps(3)
    assert rig.x[:4] == [0, 0x8000_0000, 0xFFFF_FFFF, 0xFFFF_FFFF]
    assert rig.bus.peek(DATA, 4) == bytes(4)


def test_a_write_by_another_breaks_the_reservation():
    rig = Rig("lr.w x1,(x10)\nsc.w x2,x11,(x10)")
    rig.hart.x[10] = DATA
    rig.steps(1)
    rig.bus.poke(DATA, b"\1")
    rig.steps(1)
    assert rig.x[2] == 1
    assert rig.bus.peek(DATA, 4) == b"\1\0\0\0"


def test_atomics_work_on_memory_beside_the_first_and_on_code_pages():
    rig = Rig("lr.w x1,(x10)\nsc.w x2,x10,(x10)\namoor.w x3,x0,(x10)", timing=CoreTiming(near_extra=5))
    rig.bus.add_ram(Ram("spm", 0x5000_0000, 0x1000, near=True))
    rig.hart.x[10] = 0x5000_0000
    rig.steps(3)
    assert (rig.x[1:4], rig.hart.cycle) == ([0, 0, 0x5000_0000], 18)


def test_a_trap_gives_the_reservation_up():
    rig = Rig("lr.w x1,(x10)\necall\nsc.w x2,x11,(x10)", handler="addi x12,x12,8; csrrw x0,mepc,x12; mret")
    rig.hart.x[10], rig.hart.x[12] = DATA, RAM
    rig.steps(6)
    assert rig.x[2] == 1
