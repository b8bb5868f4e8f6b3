"""The cycle contract (docs/core-timing.md), sentence by sentence, for every engine: cycles are written out by hand."""

from collections.abc import Callable
from functools import partial

import pytest
from compared_machines import ComparedMachine
from hart_rig import assemble
from pyv_found import EVALUATIONS, MISSING, MakesEngine
from pyv_world import DATA, DISTURBER, HANDLER, ISA, NOP, RAM, Event, Image, custom_instructions, side

from pyv_ext.cores import make_engine
from pyv_ext.isa import Instruction, Isa

MTI, MEI = 1 << 7, 1 << 11
ADDI_X1 = 0x0010_8093
"""addi x1,x1,1"""
INTERRUPTS = "csrrw x0,mie,x31; csrrsi x0,mstatus,8"
"""Two cycles that enable what x31 says."""

ENGINES: dict[str, MakesEngine] = {
    **{name: partial(make_engine, name) for name in ("reference", "fast")},
    **EVALUATIONS,
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> MakesEngine:
    if request.param in EVALUATIONS and MISSING is not None:
        pytest.skip(MISSING)
    return ENGINES[request.param]


class Seen:
    """What an engine has done: (mnemonic, cycle, next cycle) and (cause, cycle, cycle of the handler)."""

    def __init__(self) -> None:
        self.retired: list[tuple[str, int, int]] = []
        self.traps: list[tuple[int, int, int]] = []

    def retire(self, pc: int, start: int, end: int, instruction: Instruction) -> None:
        self.retired.append((instruction.name, start, end))

    def trap(self, pc: int, cause: int, value: int, start: int, end: int, interrupt: bool) -> None:
        self.traps.append((int(cause), start, end))


World = tuple[ComparedMachine, Seen]
Start = Callable[..., World]


@pytest.fixture
def start(engine: MakesEngine) -> Start:
    """Makes a world with a program at RAM (registers: x5 DATA, x6 DISTURBER, x7 RAM, x31 MTI and MEI) and runs it."""

    def make(
        program: str, until: int, *events: Event, handler: str = "spin:; jal x0,spin", trace: bool = True
    ) -> World:
        isa = Isa(ISA, custom_instructions([]))
        nops = NOP.to_bytes(4, "little") * 8
        memory = {RAM: assemble(isa, program) + nops, HANDLER: assemble(isa, handler, HANDLER) + nops}
        registers = {5: DATA, 6: DISTURBER, 7: RAM, 31: MTI | MEI}
        world, seen = side("world", engine, Image(memory, registers, events)), Seen()
        if trace:
            world.engine.add_tracer(seen)
        assert world.engine.run(until) is None
        return world, seen

    return make


def test_cycle_0_is_a_bubble_and_instruction_n_executes_in_cycle_n_plus_1(start: Start) -> None:
    world, _ = start(
        "csrrs x1,mcycle,x0; csrrs x2,minstret,x0; csrrs x3,mcycle,x0; csrrs x4,minstret,x0", 5, trace=False
    )
    hart = world.engine.hart
    assert list(hart.x[1:5]) == [1, 1, 3, 3]
    assert (hart.pc, hart.cycle, hart.instret) == (RAM + 16, 5, 4)


def test_every_instruction_takes_one_cycle(start: Start) -> None:
    program = "mul x1,x5,x5; div x1,x5,x5; lw x1,0(x6); sw x0,16(x6); lw x1,0(x5); sb x1,0(x5); fence rw,rw; fence.i; "
    program += "csrrw x1,mscratch,x1; jal x0,4; beq x0,x0,4; bne x0,x0,4; jalr x1,48(x7); mixes x1,x5,x5"
    _, seen = start(program, 14)
    assert [(begin, end) for _, begin, end in seen.retired] == [(n, n + 1) for n in range(1, 14)]


def test_writes_are_seen_in_the_next_cycle(start: Start) -> None:
    world, _ = start(
        "addi x1,x0,9; sw x1,0(x5); lw x2,0(x5); csrrw x0,mscratch,x2; csrrs x3,mscratch,x0; add x4,x3,x3", 7
    )
    assert list(world.engine.hart.x[1:5]) == [9, 9, 9, 18]


def test_a_synchronous_trap_costs_its_own_cycle_only(start: Start) -> None:
    world, seen = start("addi x0,x0,0; ecall", 5, handler="csrrs x1,mcycle,x0; csrrs x2,minstret,x0; addi x0,x0,0")
    assert seen.traps == [(11, 2, 3)]
    assert (world.engine.hart.x[1], world.engine.hart.x[2]) == (3, 2)


def test_a_line_raised_at_edge_k_squashes_the_next_and_the_handler_starts_in_k_plus_2(start: Start) -> None:
    k = 4
    world, seen = start(f"{INTERRUPTS}; addi x1,x0,1; addi x1,x0,2; addi x1,x0,3", k + 2, Event(k + 1, 0, MEI))
    hart = world.engine.hart
    assert seen.traps == [(11, k + 1, k + 2)]
    assert (hart.x[1], hart.csrs.mepc, hart.pc, hart.cycle) == (2, RAM + 4 * k, HANDLER, k + 2)


def test_from_wfi_the_handler_starts_in_k_plus_3(start: Start) -> None:
    k = 7
    world, seen = start(f"{INTERRUPTS}; wfi; addi x1,x0,1", k + 3, Event(k + 1, 0, MEI))
    assert seen.retired[-1] == ("wfi", 3, k + 2)
    assert seen.traps == [(11, k + 2, k + 3)]
    assert (world.engine.hart.csrs.mepc, world.engine.hart.x[1]) == (RAM + 12, 0)


@pytest.mark.parametrize("raised", [2, 3, 6])
def test_wfi_goes_on_when_an_interrupt_is_pending_even_with_mie_clear(start: Start, raised: int) -> None:
    _, seen = start("csrrw x0,mie,x31; wfi; addi x1,x0,1", 9, Event(raised, 0, MEI))
    assert seen.retired[1:3] == [("wfi", 2, max(raised, 2) + 1), ("addi", max(raised, 2) + 1, max(raised, 2) + 2)]
    assert seen.traps == []


def test_what_is_not_ready_for_n_cycles_takes_n_plus_1(start: Start) -> None:
    world, seen = start("waits_for_a_cycle x1,x0,x0; addi x2,x1,0", 9)  # ready in cycle 7, not in 1..6
    assert seen.retired == [("waits_for_a_cycle", 1, 8), ("addi", 8, 9)]
    assert list(world.engine.hart.x[1:3]) == [7, 7]


def test_an_interrupt_breaks_a_stall_which_restarts(start: Start) -> None:
    world, seen = start(f"{INTERRUPTS}; waits_for_an_event x1,x0,x0", 8, Event(6, 0, MEI))
    assert seen.traps == [(11, 3, 7)]
    assert world.engine.hart.csrs.mepc == RAM + 8
    assert [entry[-1] for entry in world.journal if entry[0] == "waits_for_an_event"] == [False]


def test_without_mie_nothing_but_the_answer_ends_a_stall(start: Start) -> None:
    _, seen = start("csrrw x0,mie,x31; waits_for_an_event x1,x0,x0", 8, Event(6, 0, MEI))
    assert seen.retired[1] == ("waits_for_an_event", 2, 7)


@pytest.mark.parametrize("trace", [True, False])
@pytest.mark.parametrize(("between", "executed"), [("", 1), ("addi x0,x0,0; ", 0)])
def test_a_store_is_not_seen_by_the_next_instruction(start: Start, trace: bool, between: str, executed: int) -> None:
    program = f"li x2,{NOP}; sw x2,{12 + 4 * bool(between)}(x7); {between}addi x1,x1,1; addi x3,x0,1"
    world, _ = start(program, 6 + bool(between), trace=trace)
    assert (world.engine.hart.x[1], world.engine.hart.x[3]) == (executed, 1)
    assert world.engine.bus.rams[0].u32[3 + bool(between)] == NOP


def test_what_is_fetched_again_is_what_was_stored(start: Start) -> None:
    program = f"li x2,{NOP}; sw x2,12(x7); spin:; jal x0,spin; addi x1,x0,1"  # the jump is executed once
    world, _ = start(program, 7)
    assert world.engine.hart.x[1] == 1


def test_a_squashed_instruction_is_fetched_again(start: Start) -> None:
    program = f"li x2,{NOP}; {INTERRUPTS}; sw x2,20(x7); addi x1,x1,1; addi x3,x0,1"
    world, seen = start(program, 11, Event(6, 0, MEI), handler="sw x0,28(x6); mret")
    assert seen.traps == [(11, 6, 7)]
    assert (world.engine.hart.x[1], world.engine.hart.x[3]) == (0, 1)


def test_dma_at_an_edge_is_seen_by_the_next_instruction(start: Start) -> None:
    world, _ = start(
        "addi x1,x0,1; lw x1,0(x5); addi x2,x0,1; addi x3,x0,1",
        5,
        Event(2, DATA, 77),
        Event(3, RAM + 8, ADDI_X1),
    )
    assert list(world.engine.hart.x[1:4]) == [78, 0, 1]


@pytest.mark.parametrize(
    ("program", "first", "later"),
    [
        pytest.param(".word 0xffffffff", 11, 2, id="illegal"),
        pytest.param("ebreak", 11, 3, id="ebreak"),
        pytest.param("ecall", 11, 11, id="ecall"),
        pytest.param("lw x1,1(x5)", 11, 4, id="misaligned load"),
        pytest.param("sw x1,8(x6)", 11, 7, id="store that faults"),
        pytest.param("jal x1,2", 11, 0, id="misaligned target"),
        pytest.param("traps x1,x0,x0", 11, 24, id="custom trap"),
    ],
)
def test_an_interrupt_goes_before_every_trap(start: Start, program: str, first: int, later: int) -> None:
    world, seen = start(f"{INTERRUPTS}; {program}", 8, Event(3, 0, MEI), handler="sw x0,28(x6); mret")
    assert [cause for cause, *_ in seen.traps[:2]] == [first, later]
    assert seen.traps[0][1:] == (3, 4)
    assert seen.traps[1][1:] == (6, 7)
    accesses = [entry for entry in world.journal if entry[0] in ("read", "write") and entry[1] != 28]
    assert len(accesses) == program.startswith("sw")  # what was squashed had no effect


def test_a_fetch_fault_is_of_the_target_and_after_an_interrupt(start: Start) -> None:
    world, seen = start(f"{INTERRUPTS}; jalr x1,0(x0)", 8, Event(4, 0, MEI), handler="sw x0,28(x6); mret")
    assert seen.traps == [(11, 4, 5), (1, 7, 8)]
    csrs = world.engine.hart.csrs
    assert (csrs.mepc, csrs.mtval, world.engine.hart.x[1]) == (0, 0, RAM + 12)


def test_a_trap_kills_the_write_of_its_instruction(start: Start) -> None:
    for program in ("jal x1,2", "jalr x1,2(x7)", "lw x1,2(x5)", "lhu x1,1(x5)", "lw x1,8(x6)", "lw x1,0(x0)"):
        world, seen = start(f"addi x1,x0,5; {program}", 3)
        assert len(seen.traps) == 1
        assert world.engine.hart.x[1] == 5, program
