"""Code that changes, hooks, tracers, stops, single steps and speed."""

import pytest
from hart_rig import DATA, LINES, PORT, RAM, Rig, Trace, assemble

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import Clock
from pyv_ext.bus.memory import Ram
from pyv_ext.engines.core import Stop, StopReason
from pyv_ext.engines.engine import Engine
from pyv_ext.errors import PyvExtError
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Isa
from pyv_ext.machine.traps import Cause
from pyv_ext.timing import CoreTiming

pytestmark = pytest.mark.usefixtures("each_engine")

ADDI_2 = 0x0020_0093
"""addi x1,x0,2"""


# -- code that changes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("store", "offset"), [("sw", 0), ("sh", 2), ("sb", 2)])
def test_a_store_into_code_that_has_run_takes_effect(store, offset):
    rig = Rig(f"again:; addi x1,x0,1; addi x2,x2,1; addi x3,x0,2; {store} x11,{offset}(x10); bne x2,x3,again")
    rig.hart.x[10], rig.hart.x[11] = RAM, ADDI_2 >> 8 * offset
    rig.engine.run(10)
    assert rig.x[1:4] == [2, 2, 2]


@pytest.mark.parametrize(("offset", "half", "changed"), [(2, 0x0213, (1, 1)), (4, 0x0020, (2, 0))])
def test_overwriting_either_half_of_an_unaligned_instruction_is_noticed(offset, half, changed):
    rig = Rig(f"again:; c.addi x5,1; addi x1,x0,1; addi x2,x2,1; sh x11,{offset}(x10); addi x3,x0,2; bne x2,x3,again")
    rig.hart.x[10], rig.hart.x[11] = RAM, half
    rig.engine.run(12)
    assert (rig.x[1], rig.x[4]) == changed


def test_a_write_by_a_bus_master_into_code_takes_effect():
    rig = Rig("again:\naddi x1,x0,1\njal x0,again")
    rig.engine.run(10)
    rig.bus.poke(RAM, ADDI_2.to_bytes(4, "little") * 2000)
    rig.engine.run(12)
    assert rig.x[1] == 2


def test_fence_i_drops_what_was_decoded():
    rig = Rig("again:\naddi x1,x0,1\nfence.i\njal x0,again")
    rig.engine.run(1)
    rig.ram.u32[0] = ADDI_2  # behind the bus's back
    rig.engine.run(4)
    assert rig.x[1] == 2


def test_data_beside_code_is_stored():
    rig = Rig("sw x10,0x100(x10)\nlw x1,0x100(x10)")
    rig.hart.x[10] = RAM
    rig.steps(2)
    assert rig.x[1] == RAM


def test_code_runs_from_memory_beside_the_first():
    rig = Rig("jalr x0,0(x10)")
    rom = Ram("rom", 0x1000, 0x1000, writable=False)
    rig.bus.add_ram(rom)
    rom.u8[0:8] = assemble(rig.isa, "addi x1,x0,9\nsw x1,0(x10)")
    rig.hart.x[10] = 0x1000
    rig.steps(3)
    assert (rig.x[1], rig.hart.csrs.mcause, rig.hart.csrs.mepc) == (9, 7, 0x1004)


# -- inline caches ---------------------------------------------------------------------------------------------


ACCESSES = (
    (DATA, 2, 0, LINES, 4, 0),
    (PORT, 30, 0, PORT + 16, 2, 0),
    (DATA + 64, 2, 0, 0x100, 1, Cause.STORE_FAULT),
    (LINES, 5, 0, LINES, 4, 0),
    (PORT + 16, 30, 0, DATA + 2, 1, Cause.MISALIGNED_STORE),
    (0x100, 1, Cause.LOAD_FAULT, DATA, 1, 0),
    (LINES, 5, 0, PORT, 2, 0),
    (DATA + 2, 1, Cause.MISALIGNED_LOAD, DATA + 64, 1, 0),
)
"""Address, cycles and mcause of a load, and the same of a store."""


def test_an_access_follows_its_address():
    """One load and one store reach memory, two devices and unmapped addresses in turn, with the costs of each."""
    timing = CoreTiming(load=2, mmio_read=30, mmio_write=2, mmio_one_way=12, near_extra=3)
    rig = Rig("lw x1,0(x10); sw x2,0(x11)", handler="addi x31,x31,1; mret", timing=timing)

    def one(pc, register, address):
        """Cycles and mcause of one instruction."""
        rig.hart.pc, rig.hart.x[register], rig.hart.csrs.mcause = pc, address, 0
        start = rig.hart.cycle
        rig.engine.run(start + 1)
        return rig.hart.cycle - start, rig.hart.csrs.mcause

    for load, *loaded, store, cycles, cause in ACCESSES:
        assert one(RAM, 10, load) == tuple(loaded)
        assert one(RAM + 4, 11, store) == (cycles, cause)


def test_a_csr_exists_from_when_its_window_is_added():
    class Window:
        addresses = frozenset({0x800})

        def read(self, address, now):
            return 5

        def write(self, address, value, now, written):
            pass

    rig = Rig("again:; csrrs x1,0x800,x0; jal x0,again", handler=f"li x5,{RAM}; csrrw x0,mepc,x5; mret")
    rig.engine.run(30)
    assert (rig.hart.csrs.mcause, rig.x[1]) == (2, 0)
    traps = rig.hart.traps
    rig.hart.csrs.add_window(Window())
    rig.engine.run(60)
    assert rig.x[1] == 5
    assert rig.hart.traps - traps <= 1


# -- hooks and tracers -----------------------------------------------------------------------------------------


def test_a_hook_runs_right_before_each_execution_and_costs_nothing():
    rig = Rig("again:\naddi x1,x1,1\nc.addi x2,1\njal x0,again")
    seen = []

    def hook(hart):
        seen.append((hart.pc, hart.cycle, hart.instret, hart.x[1]))

    rig.engine.run(6)
    rig.engine.code.add_hook(RAM + 4, hook)
    rig.engine.code.add_hook(RAM + 0x3000, hook)
    rig.engine.run(12)
    assert seen == [(RAM + 4, 7, 7, 3), (RAM + 4, 10, 10, 4)]
    assert (rig.hart.cycle, rig.x[2]) == (12, 4)
    rig.engine.code.remove_hook(RAM + 4, hook)
    rig.engine.run(18)
    assert len(seen) == 2


def test_removing_what_is_not_there_is_refused():
    with pytest.raises(PyvExtError, match="no such hook at 0x80000000: remove what add_hook was given"):
        Rig().engine.code.remove_hook(RAM, print)


def test_a_hook_does_not_run_for_an_instruction_that_an_interrupt_squashes():
    rig = Rig("addi x1,x1,1\naddi x1,x1,1\nmret", lines=[(1, 128)])
    rig.hart.csrs.mie, rig.hart.csrs.mstatus = 128, 0x1888
    seen = []
    rig.engine.code.add_hook(RAM + 4, lambda hart: seen.append(hart.cycle))
    rig.engine.run(10)
    assert seen == []


def test_a_hook_runs_once_for_an_instruction_that_waits():
    rig = Rig("wfi", lines=[(20, 0), (30, 128)])
    rig.hart.csrs.mie = 128
    seen = []
    rig.engine.code.add_hook(RAM, lambda hart: seen.append(hart.cycle))
    rig.engine.run(31)
    assert seen == [0]


def test_hooks_survive_changes_of_code():
    rig = Rig("again:\naddi x1,x0,1\nfence.i\njal x0,again")
    seen = []
    rig.engine.code.add_hook(RAM, lambda hart: seen.append(hart.cycle))
    rig.engine.run(7)
    assert seen == [0, 3, 6]


def test_a_tracer_set_by_a_hook_sees_that_instruction_and_one_cleared_does_not():
    rig = Rig("again:\naddi x1,x1,1\nlw x2,0(x10)\nsw x2,4(x11)\njal x0,again")
    rig.hart.x[10], rig.hart.x[11] = DATA, PORT
    trace = Trace()
    rig.engine.code.add_hook(RAM + 4, lambda hart: rig.engine.add_tracer(trace))
    rig.engine.code.add_hook(RAM + 12, lambda hart: rig.engine.remove_tracer(trace))
    rig.engine.run(8)
    assert trace.retired == [(RAM + 4, 1, 2, "lw"), (RAM + 8, 2, 3, "sw"), (RAM + 4, 5, 6, "lw"), (RAM + 8, 6, 7, "sw")]


def test_tracing_changes_nothing():
    program = "again:\naddi x1,x1,1\nmul x2,x1,x1\nsw x2,0(x10)\nlw x3,0(x10)\nsw x3,0(x11)\nbne x1,x12,again\necall"
    states = []
    for tracers in ((), (Trace(),)):
        rig = Rig(program, timing=CoreTiming(mul=4, load=2, mmio_write=5, mmio_one_way=40))
        rig.hart.x[10], rig.hart.x[11], rig.hart.x[12] = DATA, PORT, 20
        rig.engine.tracers = tracers
        rig.engine.run(1000)
        states.append(rig.state())
    assert states[0] == states[1]


# -- stops -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", StopReason)
def test_a_stop_ends_the_run_after_the_current_instruction(reason):
    """After it the run may go on, but not after an exit."""
    rig = Rig("addi x1,x0,1\nsw x1,0(x11)\naddi x1,x0,2")
    rig.hart.x[11] = PORT
    wanted = Stop(reason, 3)
    rig.port.on_write = lambda value: rig.engine.stop(wanted)
    assert rig.engine.run(100) is wanted
    assert (rig.x[1], rig.hart.instret) == (1, 2)
    exits = reason is StopReason.EXIT
    assert rig.engine.run(3) is rig.engine.step() is (wanted if exits else None)
    assert rig.x[1] == (1 if exits else 2)


def test_a_posted_store_stops_the_run_when_it_arrives():
    rig = Rig("sw x1,0(x11)\nagain:\njal x0,again", timing=CoreTiming(mmio_one_way=30))
    rig.hart.x[11] = PORT
    rig.port.on_write = lambda value: rig.engine.stop(Stop(StopReason.EXIT, 0))
    assert rig.engine.run(100).reason is StopReason.EXIT
    assert rig.hart.cycle == 31


def test_the_first_stop_wins():
    rig = Rig()
    rig.engine.stop(Stop(StopReason.EXIT, 1))
    rig.engine.stop(Stop(StopReason.EXIT, 2))
    assert rig.engine.run(10).code == 1


def test_an_engine_needs_memory():
    bus = Bus(Clock(), CoreTiming())
    with pytest.raises(PyvExtError, match="must be plain RAM: add_ram it before making an engine"):
        Engine(Hart(Isa("rv32i"), CoreTiming(), bus.clock.records), bus)


def test_two_harts_in_one_process_share_nothing():
    first, second = Rig("addi x1,x0,1\nspin:; jal x0,spin"), Rig("addi x1,x0,2\nspin:; jal x0,spin", isa="rv32i")
    first.engine.run(5)
    second.engine.run(5)
    assert (first.x[1], second.x[1]) == (1, 2)
