"""Interrupts and WFI: priority, enables, and the exact cycle of the cycle contract."""

import pytest
from hart_rig import HANDLER, LINES, RAM, Rig, Trace, assemble

from pyv_ext.engines.core import StopReason
from pyv_ext.timing import CoreTiming

pytestmark = pytest.mark.usefixtures("each_engine")

MSI, MTI, MEI = 1 << 3, 1 << 7, 1 << 11
ALL = MSI | MTI | MEI
SPIN = "spin:; jal x0,spin"
HANDLE = "addi x31,x31,1\nspin:; jal x0,spin"


def rig_with_interrupts(program, lines, *, mie=ALL, enabled=True, **options):
    rig = Rig(program, lines=lines, **options)
    rig.hart.csrs.mie = mie
    rig.hart.csrs.mstatus |= 8 if enabled else 0
    rig.engine.tracers = (Trace(),)
    return rig


def test_a_line_raised_at_the_start_of_a_cycle_squashes_the_instruction_of_that_cycle():
    rig = rig_with_interrupts("addi x1,x1,1\n" * 20, [(7, MTI)], handler=HANDLE)
    rig.engine.run(9)
    assert rig.x[1] == 7
    assert rig.engine.tracers[0].traps == [(RAM + 28, 7, 0, 7, 8, True)]
    assert rig.engine.tracers[0].retired[-1] == (HANDLER, 8, 9, "addi")
    csrs = rig.hart.csrs
    assert (csrs.mepc, csrs.mcause, csrs.mtval, csrs.mstatus) == (RAM + 28, 0x8000_0007, 0, 0x1880)
    assert rig.hart.instret == 8


def test_the_entry_costs_irq_cycles_and_a_long_instruction_is_not_cut():
    rig = rig_with_interrupts("div x1,x1,x1\n" * 9, [(5, MTI)], timing=CoreTiming(div=33, irq=4))
    rig.engine.run(34)
    assert rig.engine.tracers[0].traps == [(RAM + 4, 7, 0, 33, 37, True)]


@pytest.mark.parametrize(
    ("levels", "mie", "cause"),
    [(ALL, ALL, 11), (MSI | MTI, ALL, 3), (MTI, ALL, 7), (ALL, MSI | MTI, 3), (ALL, MTI, 7), (MEI, ALL, 11)],
)
@pytest.mark.parametrize("vectored", [0, 1])
def test_priority_is_external_software_timer(levels, mie, cause, vectored):
    rig = rig_with_interrupts(SPIN, [(5, levels)], mie=mie)
    rig.hart.csrs.mtvec |= vectored
    rig.engine.run(6)
    assert rig.hart.csrs.mcause == 0x8000_0000 | cause
    assert rig.hart.pc == HANDLER + 4 * cause * vectored


@pytest.mark.parametrize(("mie", "enabled"), [(0, True), (MSI, True), (ALL, False)])
def test_what_is_not_enabled_does_not_interrupt(mie, enabled):
    rig = rig_with_interrupts(SPIN, [(5, MTI)], mie=mie, enabled=enabled)
    rig.engine.run(50)
    assert rig.hart.traps == 0
    assert rig.hart.csrs.mip == MTI


@pytest.mark.parametrize("enable", ["csrrw x0,mie,x1", "csrrs x0,mstatus,x2"])
def test_enabling_a_pending_interrupt_takes_it_before_the_next_instruction(enable):
    rig = Rig(f"{enable}\naddi x3,x0,1", lines=[(0, MTI)])
    rig.hart.csrs.mie, rig.hart.csrs.mstatus = (0, 8) if "mie" in enable else (MTI, 0)
    rig.hart.x[1], rig.hart.x[2] = MTI, 8
    rig.steps(2)
    assert (rig.hart.csrs.mepc, rig.hart.x[3], rig.hart.cycle) == (RAM + 4, 0, 2)


def test_mret_into_a_pending_interrupt_executes_nothing_in_between():
    rig = rig_with_interrupts("addi x1,x1,1\n" * 9, [(3, MTI)], handler="addi x31,x31,1\nmret")
    rig.engine.run(20)
    assert rig.x[1] == 3
    assert rig.x[31] == 6
    assert rig.hart.csrs.mepc == RAM + 12


def test_a_store_that_lowers_the_line_is_seen_by_the_next_instruction():
    handler = "li x5,0x41000000\nsw x0,0(x5)\nmret"
    rig = rig_with_interrupts("addi x1,x1,1\n" * 9, [(3, MEI)], handler=handler)
    rig.engine.run(12)
    assert rig.hart.traps == 1
    assert rig.x[1] == 7


def test_a_store_that_raises_a_line_interrupts_the_next_instruction():
    rig = rig_with_interrupts("li x5,0x41000000\nli x6,128\nsw x6,0(x5)\naddi x1,x0,1", [])
    rig.engine.run(7)
    assert (rig.hart.csrs.mepc, rig.x[1]) == (RAM + 20, 0)


def test_an_interrupt_goes_before_a_fault_of_the_same_instruction():
    rig = rig_with_interrupts("addi x1,x1,1\n.word 0", [(1, MTI)])
    rig.engine.run(2)
    assert (rig.hart.csrs.mcause, rig.hart.csrs.mepc) == (0x8000_0007, RAM + 4)


NOWHERE = 0x7000_0000


@pytest.mark.parametrize(
    ("line", "pc", "cause"), [(4, RAM + 16, 0x8000_0007), (5, NOWHERE, 0x8000_0007), (6, NOWHERE, 1)]
)
@pytest.mark.parametrize("traced", [False, True])
def test_an_interrupt_goes_before_the_fetch_fault_of_an_indirect_jump_to_nowhere(line, pc, cause, traced):
    """The jump retires in cycle 5: an interrupt of this boundary comes first, one of the next cycle too late."""
    rig = rig_with_interrupts(f"li x5,{NOWHERE}\naddi x1,x1,1\naddi x1,x1,1\njalr x6,0(x5)", [(line, MTI)])
    if not traced:
        rig.engine.tracers = ()
    rig.engine.run(9)
    csrs = rig.hart.csrs
    assert (csrs.mepc, csrs.mcause, csrs.mtval, rig.hart.traps) == (pc, cause, NOWHERE * (cause == 1), 1)


# -- WFI -------------------------------------------------------------------------------------------------------


def test_wfi_retires_in_the_cycle_after_the_line_and_the_next_instruction_is_squashed():
    rig = rig_with_interrupts("addi x1,x1,1\nwfi\naddi x2,x2,1", [(100, MTI)], handler=HANDLE)
    rig.engine.run(104)
    assert rig.engine.tracers[0].retired[:2] == [(RAM, 0, 1, "addi"), (RAM + 4, 1, 101, "wfi")]
    assert rig.engine.tracers[0].traps == [(RAM + 8, 7, 0, 101, 102, True)]
    assert (rig.x[2], rig.x[31], rig.hart.csrs.mepc) == (0, 1, RAM + 8)
    assert rig.lines.log == [("advance", 100)]


def test_wfi_costs_its_class_once_something_is_pending():
    rig = rig_with_interrupts("wfi\naddi x1,x0,1", [(100, MTI)], timing=CoreTiming(wfi=3, irq=5), enabled=False)
    rig.engine.run(104)
    assert rig.engine.tracers[0].retired == [(RAM, 0, 103, "wfi"), (RAM + 4, 103, 104, "addi")]


def test_wfi_wakes_without_the_global_enable_but_not_without_the_enable_of_the_line():
    rig = rig_with_interrupts("wfi\n" + SPIN, [(50, MTI), (90, MTI | MSI)], mie=MSI, enabled=False)
    rig.engine.run(200)
    assert rig.engine.tracers[0].retired[0] == (RAM, 0, 91, "wfi")
    assert rig.hart.traps == 0


@pytest.mark.parametrize("line", [0, 1])
def test_an_interrupt_that_is_pending_comes_before_a_wfi(line):
    """Only a WFI that waits retires before it."""
    rig = rig_with_interrupts("addi x1,x1,1\nwfi\naddi x2,x2,1", [(line, MTI)])
    rig.engine.run(3)
    assert rig.engine.tracers[0].traps == [(RAM + 4 * line, 7, 0, line, line + 1, True)]
    assert all(name != "wfi" for _, _, _, name in rig.engine.tracers[0].retired)
    assert rig.hart.csrs.mepc == RAM + 4 * line


ENABLES = (
    "csrrsi x0,mstatus,8",
    "li x5,8; csrrs x0,mstatus,x5",
    "li x5,0x1888; csrrw x0,mstatus,x5",
    "li x5,0x80; csrrw x0,mie,x5",
    "li x5,0x80; csrrs x0,mie,x5",
    "li x5,0x8000001c; csrrw x0,mepc,x5; li x5,0x1880; csrrw x0,mstatus,x5; mret",
)


@pytest.mark.parametrize("code", [*ENABLES, "li x5,0x41000000; li x6,0x80; sw x6,0(x5)"])
@pytest.mark.parametrize("traced", [False, True])
def test_what_makes_an_interrupt_pending_and_enabled_is_followed_by_it(code, traced):
    """CSR writes, mret and stores to a device: a WFI right after them is not executed first."""
    store = code.startswith("li x5,0x41")
    rig = rig_with_interrupts(f"{code}; wfi; wfi", [] if store else [(0, MTI)], handler=HANDLE)
    csrs = rig.hart.csrs
    csrs.mie, csrs.mstatus = (0 if ",mie," in code else ALL), (8 if store or ",mie," in code else 0)
    if not traced:
        rig.engine.tracers = ()
    rig.engine.run(100)
    wfi = RAM + len(assemble(rig.isa, code))
    assert (csrs.mcause, csrs.mepc, rig.hart.traps) == (0x8000_0007, wfi, 1)


def test_wfi_with_nothing_ever_pending_is_a_deadlock():
    rig = rig_with_interrupts("addi x1,x1,1\nwfi", [(9, 0)])
    stop = rig.engine.run(10**9)
    assert stop.reason is StopReason.DEADLOCK
    assert stop.text == f"deadlock at pc {RAM + 4:#010x}: no event is left"
    assert rig.hart.instret == 1


def test_a_waiting_hart_stops_exactly_at_the_limit():
    rig = rig_with_interrupts("wfi", [(1000, MTI)])
    assert rig.engine.run(17) is None
    assert (rig.hart.cycle, rig.hart.waiting is not None, rig.hart.pc) == (17, True, RAM)
    assert rig.lines.log == []
    assert rig.engine.step() is None
    assert (rig.hart.cycle, rig.hart.pc, rig.hart.instret) == (1001, RAM + 4, 1)


def test_step_takes_an_interrupt_as_a_step_of_its_own():
    rig = rig_with_interrupts("addi x1,x1,1\n" * 3, [(1, MTI)])
    rig.steps(2)
    assert (rig.hart.pc, rig.hart.instret) == (HANDLER, 1)


def test_a_line_set_by_the_host_ends_a_wait_that_no_event_would_end():
    rig = rig_with_interrupts("wfi\n" + SPIN, [(1000, 0)])
    rig.engine.run(20)
    rig.hart.csrs.mip = MEI
    rig.engine.run(22)
    assert rig.engine.tracers[0].retired == [(RAM, 0, 21, "wfi")]
    assert rig.hart.csrs.mcause == 0x8000_000B


def test_lines_can_be_read_by_loads():
    rig = rig_with_interrupts(f"li x5,{LINES}\nlw x6,0(x5)", [(1, MSI)], enabled=False)
    rig.engine.run(3)
    assert rig.x[6] == MSI


STRAY = "li x5,{:#x}\n addi x1,x0,1\n addi x1,x0,1\n addi x1,x0,1\n addi x1,x0,1\n jalr x0,0(x5)"
"""Jumps away in cycle 6."""


@pytest.mark.parametrize("target", [0, 0x2000_0000, LINES, RAM - 4, RAM + 0x10_0000])
@pytest.mark.parametrize("due", range(4, 10))
def test_an_interrupt_comes_before_a_fetch_fault(target, due):
    """Where a jump to nowhere and the line fall on the same cycle, before and after it; untraced, in bursts."""
    rig = rig_with_interrupts(STRAY.format(target), [(due, MTI)], handler=HANDLE)
    rig.engine.tracers = ()
    rig.engine.run(100)
    csrs = rig.hart.csrs
    assert (csrs.mcause, csrs.mepc) == {True: (1, target), False: (0x8000_0007, target if due == 7 else RAM + 4 * due)}[
        due > 7
    ]
    assert rig.hart.traps == 1


@pytest.mark.parametrize("until", range(5, 12))
def test_a_fetch_fault_waits_for_the_budget(until):
    """Split at each cycle: the fault is taken in its own, which takes three."""
    rig = Rig(STRAY.format(0x2000_0000), timing=CoreTiming(trap=3))
    rig.engine.run(until)
    assert rig.hart.cycle == (until if until <= 7 else max(until, 10))
    assert rig.hart.traps == (until > 7)
