"""The Py-V core has the face of an engine: hooks, traces, stops, the host's hand on the hart, and clear refusals."""

import compared_machines
import pytest
from compared_machines import Agreement, ComparedMachine, MachineDifference
from hart_rig import assemble
from pyv_found import EVALUATIONS, MISSING, MakesEngine
from pyv_programs import random_image
from pyv_world import DATA, DISTURBER, HANDLER, ISA, NOP, RAM, Event, Image, custom_instructions, side

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import Clock
from pyv_ext.bus.memory import Ram
from pyv_ext.cores import make_engine
from pyv_ext.engines.core import AccessStopped, Stop, StopReason
from pyv_ext.engines.engine import Engine
from pyv_ext.errors import PyvExtError
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Instruction, Isa
from pyv_ext.protocols import CustomInstruction
from pyv_ext.pyv_adapter.engine import PyvEngine
from pyv_ext.timing import CoreTiming

if MISSING is not None:
    pytest.skip(MISSING, allow_module_level=True)

COUNT = "again:; addi x1,x1,1; jal x0,again"
CODE = Isa(ISA, custom_instructions([]))


@pytest.fixture(params=EVALUATIONS)
def engine(request: pytest.FixtureRequest) -> MakesEngine:
    return EVALUATIONS[request.param]


def world(engine: MakesEngine, program: str, *events: Event, handler: str = "spin:; jal x0,spin") -> ComparedMachine:
    nops = NOP.to_bytes(4, "little") * 8
    memory = {RAM: assemble(CODE, program) + nops, HANDLER: assemble(CODE, handler, HANDLER) + nops}
    return side("world", engine, Image(memory, {5: DATA, 6: DISTURBER, 7: RAM}, events))


# -- hooks, traces, stops --------------------------------------------------------------------------------------


def test_a_hook_runs_right_before_its_instruction_and_may_change_registers(engine: MakesEngine) -> None:
    core = world(engine, COUNT).engine
    seen = []

    def hook(hart: Hart) -> None:
        seen.append((hart.pc, hart.cycle, hart.instret, hart.x[1]))
        hart.x[1] += 10

    core.code.add_hook(RAM, hook)
    core.run(6)
    assert seen == [(RAM, 1, 0, 0), (RAM, 3, 2, 11), (RAM, 5, 4, 22)]
    core.code.remove_hook(RAM, hook)
    core.run(8)
    assert core.hart.x[1] == 34


def test_a_hook_may_hold_the_run_before_its_instruction(engine: MakesEngine) -> None:
    core = world(engine, COUNT).engine
    stopped = Stop(StopReason.BREAKPOINT, text="here")
    core.code.add_hook(RAM + 4, lambda hart: stopped)
    assert core.run(50) is stopped
    assert (core.hart.pc, core.hart.cycle, core.hart.x[1]) == (RAM + 4, 2, 1)
    assert core.run(50) is stopped
    core.hart.pc = RAM
    assert core.run(50) is stopped
    assert (core.hart.pc, core.hart.cycle, core.hart.x[1]) == (RAM + 4, 3, 2)


@pytest.mark.parametrize("program", ["lw x2,0(x6); addi x3,x2,0", "sw x1,28(x6); addi x3,x1,0"])
def test_a_guard_holds_the_run_before_the_access(engine: MakesEngine, program: str) -> None:
    machine = world(engine, f"addi x1,x0,9; {program}")
    core, armed = machine.engine, [True]

    def guard(address: int, size: int, write: bool) -> None:
        if armed[0]:
            raise AccessStopped(Stop(StopReason.BREAKPOINT))

    core.bus.guards.append(guard)
    for _ in range(2):
        assert core.run(9) == Stop(StopReason.BREAKPOINT)
        assert (core.hart.pc, core.hart.cycle, machine.journal) == (RAM + 4, 2, [])
    armed[0] = False
    core.hart.x[1] = 5
    core.run(4)
    assert len(machine.journal) == 1
    assert core.hart.x[3] == (5 if "sw" in program else 1)


def test_an_instruction_that_is_held_is_the_one_that_was_fetched(engine: MakesEngine) -> None:
    core = world(engine, f"li x2,{NOP}; sw x2,12(x7); lw x1,0(x6); addi x3,x0,1").engine  # the lw is overwritten
    stopped = [AccessStopped(Stop(StopReason.BREAKPOINT))]

    def guard(address: int, size: int, write: bool) -> None:
        if stopped and not write:
            raise stopped.pop()

    core.bus.guards.append(guard)
    assert core.run(9) == Stop(StopReason.BREAKPOINT)
    core.run(6)
    assert (core.hart.x[1], core.hart.x[3]) == (1, 1)


def test_no_hook_for_a_squashed_instruction_and_one_for_a_waiting_one(engine: MakesEngine) -> None:
    program = "addi x1,x0,8; csrrw x0,mie,x1; csrrsi x0,mstatus,8; addi x1,x0,1; waits_for_a_cycle x2,x0,x0"
    core = world(engine, program, Event(4, 0, 8), handler="sw x0,28(x6); mret").engine
    seen = []
    for offset in (12, 16):
        core.code.add_hook(RAM + offset, lambda hart: seen.append((hart.pc - RAM, hart.cycle)))
    core.run(20)
    assert seen == [(12, 7), (16, 8)]


def test_a_tracer_sees_instructions_and_traps_with_their_cycles(engine: MakesEngine) -> None:
    seen: list[tuple[object, ...]] = []

    class Tracer:
        def retire(self, pc: int, start: int, end: int, instruction: Instruction) -> None:
            seen.append((pc - RAM, start, end, instruction.name))

        def trap(self, pc: int, cause: int, value: int, start: int, end: int, interrupt: bool) -> None:
            seen.append((pc - RAM, start, end, cause, value, interrupt))

    core = world(engine, "takes_time x1,x5,x7; lw x2,4(x6); traps x1,x5,x0", handler="addi x0,x0,0").engine
    core.hart.x[7] = 3
    core.add_tracer(Tracer())
    core.run(8)
    assert seen == [(0, 1, 5, "takes_time"), (4, 5, 7, "lw"), (8, 7, 8, 24, DATA, False)]


def test_a_stop_ends_the_run_after_the_current_instruction(engine: MakesEngine) -> None:
    core = world(engine, "sw x0,28(x6); addi x1,x0,1").engine
    wanted = Stop(StopReason.INTERRUPTED)
    core.bus.log(core.bus.windows[0].device)
    core.bus.clock.log.subscribe(lambda rows: core.stop(wanted), at_once=True)
    assert core.run(100) is wanted
    assert (core.hart.pc, core.hart.cycle, core.hart.x[1]) == (RAM + 4, 2, 0)
    assert core.run(3) is None
    assert core.hart.x[1] == 1


@pytest.mark.parametrize("program", ["wfi", "waits_for_an_event x1,x0,x0"])
def test_waiting_for_nothing_is_a_deadlock(engine: MakesEngine, program: str) -> None:
    stops = [world(make, program).engine.run(1000) for make in (engine, Engine)]
    assert stops[0] == stops[1]
    assert stops[0] is not None and stops[0].reason is StopReason.DEADLOCK


def test_a_trap_loop_is_found_and_leaves_the_hart_at_the_trap(engine: MakesEngine) -> None:
    ends = []
    for make in (engine, Engine):
        looping = world(make, "ecall", handler=".word 0")
        stops = [looping.engine.run(100), looping.engine.run(100), looping.engine.step()]
        assert stops[0] is not None and stops[0].reason is StopReason.TRAP_LOOP
        ends.append((stops, looping.state()))
    assert ends[0] == ends[1]


def test_an_exception_of_a_device_leaves_a_core_that_goes_on(engine: MakesEngine) -> None:
    core = world(engine, "addi x1,x1,1; lw x2,12(x6); addi x3,x2,0").engine
    broken = [True]

    def observe(rows: object) -> None:
        if broken.pop():
            raise ZeroDivisionError

    core.bus.log(core.bus.windows[0].device)
    core.bus.clock.log.subscribe(observe, at_once=True)
    with pytest.raises(ZeroDivisionError):
        core.run(9)
    assert core.hart.pc == RAM + 4
    broken[:] = [False]
    core.run(4)
    assert (core.hart.x[1], core.hart.x[3]) == (1, 2)


# -- the host's hand -------------------------------------------------------------------------------------------


def test_the_host_moves_the_pc_and_writes_registers_csrs_and_code(engine: MakesEngine) -> None:
    machine = world(engine, COUNT)
    core, hart = machine.engine, machine.engine.hart
    core.run(4)
    hart.pc, hart.x[1] = RAM, 100
    core.run(5)
    assert (hart.pc, hart.x[1], hart.cycle, hart.instret) == (RAM + 4, 101, 5, 4)
    core.bus.poke(RAM + 4, assemble(CODE, "addi x1,x1,7"))  # it has been fetched already
    core.run(6)
    assert (hart.pc, hart.x[1]) == (RAM + 8, 108)
    hart.csrs.mie, hart.csrs.mstatus = 8, 8
    hart.csrs.mip = 8
    core.run(7)
    assert (hart.pc, hart.csrs.mepc, hart.csrs.mcause) == (HANDLER, RAM + 8, 1 << 31 | 3)


def test_a_slice_may_end_right_after_a_store_to_the_next_instruction(engine: MakesEngine) -> None:
    core = world(engine, f"li x2,{NOP}; sw x2,12(x7); addi x1,x1,1; addi x3,x0,1").engine
    for cycle in range(2, 7):
        core.run(cycle)
    assert (core.hart.x[1], core.hart.x[3]) == (1, 1)


@pytest.mark.parametrize("cut", range(2, 7))
def test_the_state_moves_between_engines_at_any_cycle(engine: MakesEngine, cut: int) -> None:
    program = f"li x2,{NOP}; sw x2,12(x7); addi x1,x1,1; addi x3,x0,1"
    for first, second in ((Engine, engine), (engine, Engine)):
        old, new = world(first, program).engine, world(second, program).engine
        old.run(cut)
        new.hart.pc, new.hart.cycle, new.hart.instret = old.hart.pc, old.hart.cycle, old.hart.instret
        new.hart.x[:] = old.hart.x
        new.bus.rams[0].u8[:] = old.bus.rams[0].u8
        new.load_state(old.state())
        new.run(7)
        assert (new.hart.x[1], new.hart.x[3], new.hart.pc) == (1, 1, RAM + 24)


def test_code_runs_from_rom_and_from_memory_beside_the_core(engine: MakesEngine) -> None:
    code = assemble(CODE, "addi x1,x1,1; jalr x0,0(x2)")
    jump = assemble(CODE, "jalr x2,0(x3); addi x4,x0,1")
    for base in (0x1000, 0x5000_0000):
        core = side("world", engine, Image({RAM: jump, base: code}, {3: base})).engine
        core.run(5)
        assert (core.hart.x[1], core.hart.x[4]) == (1, 1)


def test_ram_reaches_to_the_end_of_the_address_space(engine: MakesEngine) -> None:
    bus = Bus(Clock(), CoreTiming())
    bus.add_ram(Ram("ram", 0x8000_0000, 0x8000_0000))
    bus.poke(0xFFFF_FFFC, assemble(Isa(ISA), "jal x1,0"))
    hart = Hart(Isa(ISA), CoreTiming(), bus.clock.records, reset_pc=0xFFFF_FFFC)
    core = engine(hart, bus)
    core.run(2)
    assert hart.x[1] == 0
    bus.poke(0xFFFF_FFFC, NOP.to_bytes(4, "little"))
    core.run(3)
    assert (hart.pc, hart.instret) == (0, 2)
    core.run(4)
    assert (hart.csrs.mcause, hart.csrs.mepc, hart.csrs.mtval) == (1, 0, 0)


# -- refusals --------------------------------------------------------------------------------------------------


def machine(isa: str = ISA, timing: CoreTiming | None = None) -> tuple[Hart, Bus]:
    bus = Bus(Clock(), timing or CoreTiming())
    bus.add_ram(Ram("ram", RAM, 0x1000))
    return Hart(Isa(isa), bus.timing, bus.clock.records, reset_pc=RAM), bus


@pytest.mark.parametrize("extension", ["a", "c", "u"])
def test_an_isa_that_the_core_does_not_have_is_refused(extension: str) -> None:
    isa = f"rv32im{extension}_zicsr"
    with pytest.raises(PyvExtError) as caught:
        make_engine("pyv", *machine(isa))
    assert str(caught.value) == (f"core pyv: ISA {isa}: it does not execute {extension}: use rv32im_zicsr_zifencei")


def test_another_timing_and_misaligned_accesses_are_refused() -> None:
    with pytest.raises(PyvExtError, match="an instruction per cycle, its bus too: use preset pyv, or another core"):
        PyvEngine(*machine(timing=CoreTiming(mmio_read=6)))
    with pytest.raises(PyvExtError, match="misaligned accesses trap: set"):
        PyvEngine(*machine(), misaligned=True)


@pytest.mark.parametrize("isa", ["rv32i", "rv32im", "rv32i_zicsr"])
def test_a_smaller_isa_makes_the_rest_illegal(engine: MakesEngine, isa: str) -> None:
    hart, bus = machine(isa)
    bus.poke(RAM, assemble(Isa(ISA), "mul x1,x0,x0; csrrs x1,mcycle,x0"))
    hart.csrs.mtvec = RAM + 4
    core = engine(hart, bus)
    core.run(2)
    assert (hart.traps, hart.csrs.mcause) == ((0, 0) if "m" in isa[4:] else (1, 2))
    core.run(3)
    assert hart.x[1] == (2 if "zicsr" in isa else 0)


def test_custom_instructions_of_any_opcode(engine: MakesEngine) -> None:
    hart, bus = machine()
    row = CustomInstruction("two", 0x5B, 0x707F, "rd,rs1,imm", lambda operands: operands.rs1 + (operands.word >> 20))
    hart = Hart(Isa(ISA, [row]), bus.timing, bus.clock.records, reset_pc=RAM)
    bus.poke(RAM, (0x5B | 1 << 7 | 40 << 20).to_bytes(4, "little"))
    engine(hart, bus).run(2)
    assert (hart.x[1], hart.csrs.read(0x301) >> 23 & 1) == (40, 1)


# -- lock-step -------------------------------------------------------------------------------------------------


def test_a_difference_is_shown_with_both_states() -> None:
    image = Image({RAM: assemble(CODE, "addi x1,x0,1; addi x2,x0,2; lw x3,0(x6)")}, {6: DISTURBER})
    other = Image({RAM: assemble(CODE, "addi x1,x0,1; addi x2,x0,3; lw x3,0(x6)")}, {6: DISTURBER})
    result = compared_machines.run(side("here", Engine, image), side("there", PyvEngine, other), 9, memory_every=99)
    assert isinstance(result, MachineDifference)
    assert result.cycle == 2
    text = str(result).splitlines()
    assert text[0] == "cycle 2: different sp"
    assert text[1].split() == ["here", "there"]
    assert next(line for line in text if line.startswith("sp ")).split() == ["sp", "0x2", "0x3", "<--"]
    assert len([line for line in text if line.endswith("<--")]) == 1


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda world: world.engine.bus.poke(DATA + 4, b"\1"), f"memory at {DATA + 4:#x} is 0x0 and 0x1"),
        (lambda world: world.journal.append("x"), "here has done None, there x"),
        (lambda world: world.engine.stop(Stop(StopReason.LIMIT, text="t")), "here stops with None, there with Stop("),
        (lambda world: setattr(world.engine.hart.csrs, "mip", 8), "different mip"),
    ],
)
def test_every_kind_of_difference_is_found(change, what: str) -> None:
    image = Image({RAM: assemble(CODE, COUNT)}, {})
    worlds = [side("here", Engine, image), side("there", Engine, image)]
    assert isinstance(compared_machines.run(*worlds, 5), Agreement)
    change(worlds[1])
    result = compared_machines.run(*worlds, 9)
    assert isinstance(result, MachineDifference)
    assert result.what.startswith(what)


def test_the_same_seed_is_the_same_program() -> None:
    assert random_image(5, 300) == random_image(5, 300) != random_image(6, 300)


def test_an_instruction_that_is_an_expression_takes_its_cycle() -> None:
    """Py-V's decoder does not know it: the system unit computes it."""
    row = CustomInstruction("own", 0x5C00_000B, 0xFE00_707F, "rd,rs1,rs2", expr="(a * 3 + b) & M")
    ends = []
    for name in ("reference", "pyv"):
        isa, timing, clock = Isa("rv32im_zicsr_zifencei", [row]), CoreTiming(), Clock()
        bus = Bus(clock, timing)
        bus.add_ram(Ram("ram", RAM, 0x1000))
        bus.poke(RAM, assemble(isa, "addi x5,x0,7\naddi x6,x0,-2\nown x7,x5,x6\nadd x8,x7,x7\nspin:; jal x0,spin"))
        hart = Hart(isa, timing, clock.records, reset_pc=RAM, reset_cycles=1)
        make_engine(name, hart, bus).run(10)
        ends.append((hart.pc, hart.cycle, hart.instret, list(hart.x[:32])))
    assert ends[0] == ends[1]
    assert ends[0][3][7:9] == [19, 38]
