"""What stock Py-V does wrong, and that the extended core does it right (docs/py-v.md lists it for upstream).

Each program runs on both from address 0. When a test of stock behaviour fails, Py-V has been corrected: then the
correction here, and its line in the docs, can go.
"""

from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import pytest
from hart_rig import assemble
from pyv_found import EVALUATIONS, MISSING

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import Clock
from pyv_ext.bus.memory import Ram
from pyv_ext.engines.engine import Engine
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Isa
from pyv_ext.timing import CoreTiming

if MISSING is not None:
    pytest.skip(MISSING, allow_module_level=True)

from pyv.isa import IllegalInstructionException
from pyv.models.singlecycle import SingleCycleModel
from pyv.port import Output
from pyv.simulator import Simulator, _EventQueue
from pyv.stages import BranchUnit

from pyv_ext.pyv_adapter.isolation import OrderedEvents, OwnSimulator
from pyv_ext.pyv_adapter.stages import Branch

ISA = Isa("rv32im_zicsr_zifencei")
HANDLER = 0x100


@pytest.fixture(autouse=True)
def clean_stock() -> Iterator[None]:
    """Py-V keeps its parts in class-level lists."""
    Simulator.clear()
    yield
    Simulator.clear()


def stock(program: str, cycles: int) -> Any:
    """A stock model that has executed `cycles` instructions of the program."""
    with redirect_stdout(StringIO()):
        model = SingleCycleModel()
    code = assemble(ISA, program, 0)
    model.core.mem.mem[:] = [0x13, 0, 0, 0] * (len(model.core.mem.mem) // 4)
    model.core.mem.mem[: len(code)] = list(code)
    model.run(cycles + 1)
    return model


def ours(evaluation: str, program: str, cycles: int) -> Engine:
    """The extended core after as many cycles; its traps go to HANDLER."""
    bus = Bus(Clock(), CoreTiming())
    ram = Ram("ram", 0, 0x2000)
    bus.add_ram(ram)
    bus.poke(0, assemble(ISA, program, 0))
    hart = Hart(ISA, bus.timing, bus.clock.records)
    hart.csrs.mtvec = HANDLER
    engine = EVALUATIONS[evaluation](hart, bus)
    assert engine.run(cycles + 1) is None
    return engine


both = pytest.mark.parametrize("evaluation", EVALUATIONS)


@both
@pytest.mark.parametrize(
    ("program", "register", "wrong", "right"),
    [
        pytest.param("li x1,-2; li x2,-1; slt x3,x1,x2", 3, 0, 1, id="slt of two negative numbers"),
        pytest.param("li x1,-1; li x2,-2; slt x3,x1,x2", 3, 1, 0, id="slt of two negative numbers, turned round"),
        pytest.param("li x1,-2; addi x0,x0,0; addi x0,x0,0; slti x3,x1,-1", 3, 0, 1, id="slti of two negative numbers"),
        pytest.param("li x1,32; addi x0,x0,0; addi x0,x0,0; jalr x3,0(x1)", 3, 32, 20, id="jalr links its target"),
        pytest.param(
            "li x1,0x80; sb x1,512(x0); lb x2,512(x0); lbu x3,512(x0)", 3, 0xFFFFFF80, 0x80, id="lbu after lb, stale"
        ),
        pytest.param("li x1,0x7C; csrrw x0,mtvec,x1; csrrs x3,mtvec,x0", 3, 0x70, 0x7C, id="mtvec loses bits 3 and 2"),
    ],
)
def test_a_register_gets_the_right_value(evaluation: str, program: str, register: int, wrong: int, right: int) -> None:
    count = program.count(";") + 1 + program.count("li ")
    assert stock(program, count).core.regf.regs[register] == wrong
    assert ours(evaluation, program, count).hart.x[register] == right


@both
@pytest.mark.parametrize("fence", ["fence rw,rw", "fence.i"])
def test_a_fence_retires(evaluation: str, fence: str) -> None:
    program = f"{fence}; addi x1,x0,7"
    with pytest.raises(IllegalInstructionException):
        stock(program, 2)
    assert ours(evaluation, program, 2).hart.x[1] == 7


@both
@pytest.mark.parametrize(
    ("program", "error", "cause"),
    [
        pytest.param(".word 0x00003003", "Illegal f3", 2, id="load with funct3 3"),
        pytest.param(".word 0x00007023", "Illegal f3", 2, id="store with funct3 7"),
        pytest.param(".word 0x00002063", "take_branch", 2, id="branch with funct3 2"),
        pytest.param(".word 0xFFFFFFFF", "Illegal instruction", 2, id="no instruction"),
        pytest.param("ebreak", None, 3, id="ebreak does nothing"),
        pytest.param("jal x1,6", "Target instruction address misaligned", 0, id="misaligned target"),
        pytest.param("lw x1,1(x0)", None, 4, id="misaligned load succeeds"),
        pytest.param("lui x1,16; lw x1,0(x1)", None, 5, id="unmapped load reads 0"),
        pytest.param("csrrs x1,0x7c0,x0", None, 2, id="unknown CSR reads 0"),
    ],
)
def test_a_program_error_is_a_trap(evaluation: str, program: str, error: str | None, cause: int) -> None:
    count = program.count(";") + 1
    if error is None:
        assert stock(program, count).core.csr_unit.read(0x342) == 0
    else:
        with pytest.raises(Exception, match=error):
            stock(program, count)
    hart = ours(evaluation, program, count).hart
    assert (hart.csrs.mcause, hart.csrs.mepc, hart.pc) == (cause, 4 * count - 4, HANDLER)


@both
def test_a_trap_goes_to_the_base_whatever_the_mode_in_mtvec(evaluation: str) -> None:
    program = f"addi x1,x0,{HANDLER + 1}; csrrw x0,mtvec,x1; ecall"
    with pytest.raises(IllegalInstructionException, match=f"PC = {HANDLER + 1:#010x}"):  # half of a nop
        stock(program, 3)
    assert ours(evaluation, program, 3).hart.pc == HANDLER


@both
def test_a_jump_to_itself_reads_the_register_that_it_has_written(evaluation: str) -> None:
    program = "addi x1,x0,8; addi x2,x0,4; jalr x1,0(x1); addi x3,x0,9"  # stock links the target, which hides it
    model = stock(program, 3)
    model.core.regf.regs[1] = 12
    model.sim.run(3, reset_regs=False)
    assert model.readPC() == 8
    engine = ours(evaluation, program, 4)
    assert (engine.hart.pc, engine.hart.x[1]) == (12, 12)


@both
def test_a_load_sees_what_dma_has_written_since_the_same_load_before(evaluation: str) -> None:
    program = "lw x1,512(x0); lw x2,512(x0); lw x3,512(x0)"
    model = stock(program, 1)  # it has evaluated the second load too
    model.core.mem.mem[512] = 5
    model.sim.run(2, reset_regs=False)
    assert model.core.regf.regs[3] != 5
    engine = ours(evaluation, program, 1)
    engine.bus.poke(512, b"\5")
    engine.run(4)
    assert list(engine.hart.x[1:4]) == [0, 5, 5]


def test_the_pc_wraps() -> None:
    for kind, wrapped in ((BranchUnit, False), (Branch, True)):
        simulator = OwnSimulator()
        with simulator.building():
            unit = kind()
            driver = Output(int)
            unit.pc_i << driver
            simulator.addObj(unit)
            simulator.init()
            driver.write(0xFFFF_FFFC)
        simulator.settle()
        assert unit.npc_o.read() == (0 if wrapped else 1 << 32)


def test_events_of_one_cycle_keep_their_order() -> None:
    shuffled, ordered = _EventQueue(), OrderedEvents()
    for queue in (shuffled, ordered):
        for number in range(40):
            queue.add_event(1, lambda number=number: number)
    fetched = [[queue.get_next_event()[2]() for _ in range(40)] for queue in (shuffled, ordered)]
    assert fetched[0] != list(range(40))
    assert fetched[1] == list(range(40))
    assert OwnSimulator()._event_queue.next_event_time() == -1
