"""Custom instructions: values, stalls, retries, traps, interrupts while they wait, deadlock."""

import pytest
from hart_rig import HANDLER, RAM, Rig, Trace

from pyv_ext.engines.core import StopReason
from pyv_ext.protocols import CustomInstruction, Retry, Stall, Trap, Value
from pyv_ext.timing import CoreTiming

pytestmark = pytest.mark.usefixtures("each_engine")

MTI = 1 << 7
PROGRAM = "li x5,6\nli x6,7\nmac x7,x5,x6\naddi x8,x0,1\nspin:; jal x0,spin"
AT = RAM + 16
BEGINS = 4


class Scripted:
    """Answers with the given outcomes in turn, and keeps what it was asked."""

    def __init__(self, *outcomes, syntax="rd,rs1,rs2", ready=None, issue=None):
        self.outcomes = list(outcomes)
        self.asked = []
        self.row = CustomInstruction("mac", 0x5C00000B, 0xFE00707F, syntax, self.handle, ready, issue)

    def handle(self, operands):
        self.asked.append(operands)
        return self.outcomes.pop(0)


def run(script, until=100, *, lines=(), enabled=True, program=PROGRAM, **timing):
    rig = Rig(program, custom=[script.row], lines=lines, timing=CoreTiming(**timing))
    rig.hart.csrs.mie = MTI
    rig.hart.csrs.mstatus |= 8 if enabled else 0
    rig.engine.tracers = (Trace(),)
    rig.result = rig.engine.run(until)
    rig.mac = next((item for item in rig.engine.tracers[0].retired if item[3] == "mac"), None)
    return rig


def asked_at(script):
    return [(operands.now, operands.resumed) for operands in script.asked]


def test_operands_are_what_the_word_names():
    script = Scripted(Value(0x1_2345_6789))
    rig = run(script)
    operands = script.asked[0]
    assert operands[:6] == (AT, rig.isa.encode("mac", rd=7, rs1=5, rs2=6), 6, 7, BEGINS, operands.load)
    assert operands.load(RAM, 4) == bytes(rig.ram.u8[:4])
    assert operands.load(0, 4) is None
    assert rig.x[7] == 0x2345_6789
    assert rig.hart.instret > 5


@pytest.mark.parametrize(("outcome", "end"), [(42, 5), (Value(42), 5), (Value(42, 3), 8)])
def test_a_value_retires_after_its_cycles(outcome, end):
    script = Scripted(outcome)
    rig = run(script)
    assert rig.mac == (AT, BEGINS, end, "mac")
    assert rig.x[7] == 42


@pytest.mark.parametrize(("issue", "custom", "acts"), [(None, 1, 4), (None, 480, 483), (3, 9, 6), (0, 9, 4)])
def test_the_issue_cost_comes_before_the_action(issue, custom, acts):
    script = Scripted(Value(1, 2), issue=issue)
    rig = run(script, 1000, custom=custom)
    assert asked_at(script) == [(acts, False)]
    assert rig.mac == (AT, BEGINS, acts + 3, "mac")


def test_devices_have_come_as_far_as_the_action():
    script = Scripted(Value(), ready=lambda operands: rig.lines.log == [("advance", 13)], issue=10)
    rig = Rig(PROGRAM, custom=[script.row], lines=[(13, 0), (14, 0)])
    rig.engine.run(14)
    assert asked_at(script) == [(13, False)]


def test_a_form_without_rd_ignores_the_value():
    script = Scripted(Value(9), syntax="rs1,rs2")
    rig = run(script, program=PROGRAM.replace("mac x7,x5,x6", "mac x5,x6").replace("li x5,6", "li x1,6"))
    assert rig.x[0] == 0 and 9 not in rig.x


def test_writing_x0_leaves_it_zero():
    rig = run(Scripted(Value(9)), program=PROGRAM.replace("x7", "x0"))
    assert rig.x[0] == 0


def test_a_trap_changes_nothing_else():
    script = Scripted(Trap(24, 0x1234), issue=3)
    rig = run(script, 20, trap=2)
    assert rig.engine.tracers[0].traps == [(AT, 24, 0x1234, BEGINS, BEGINS + 4, False)]
    csrs = rig.hart.csrs
    assert (csrs.mcause, csrs.mtval, csrs.mepc, rig.x[7], rig.mac) == (24, 0x1234, AT, 0, None)


def test_a_stall_asks_again_at_each_event_and_pays_the_issue_once():
    script = Scripted(Stall(), Stall(), Value(5, 1), issue=2)
    rig = run(script, 100, lines=[(20, 0), (31, 0), (50, 0)])
    assert asked_at(script) == [(5, False), (20, True), (31, True)]
    assert rig.mac == (AT, BEGINS, 33, "mac")
    assert rig.hart.instret == 5 + (100 - 33)


def test_not_ready_for_n_cycles_takes_n_plus_one():
    script = Scripted(Stall(), Value())
    rig = run(script, 100, lines=[(BEGINS + 9, 0)])
    assert rig.mac[2] - rig.mac[1] == 9 + 1


def test_a_stall_is_asked_again_at_its_limit():
    script = Scripted(Stall(40), Stall(40), Value(-110))
    rig = run(script, 100, lines=[(20, 0), (60, 0)])
    assert asked_at(script) == [(4, False), (20, True), (40, True)]
    assert rig.x[7] == 0xFFFF_FFFF - 109


def test_a_limit_in_the_past_asks_again_in_the_next_cycle():
    script = Scripted(Stall(0), Value())
    run(script)
    assert asked_at(script) == [(4, False), (5, True)]


def test_a_retry_asks_again_after_its_cycles_whatever_happens_between():
    script = Scripted(Retry(10), Retry(), Value())
    rig = run(script, 100, lines=[(8, 0), (9, 0)])
    assert asked_at(script) == [(4, False), (14, True), (15, True)]
    assert rig.mac == (AT, BEGINS, 16, "mac")


def test_ready_false_stalls_without_asking_the_handler():
    level = []
    script = Scripted(Value(1), ready=lambda operands: bool(level))
    rig = Rig(PROGRAM, custom=[script.row], lines=[(20, 0), (30, 0)])
    rig.engine.run(25)
    assert script.asked == []
    level.append(1)
    rig.engine.run(40)
    assert asked_at(script) == [(30, True)]


@pytest.mark.parametrize("outcome", [Stall(), Stall(90), Retry(50)])
def test_an_interrupt_that_would_be_taken_breaks_the_wait(outcome):
    script = Scripted(outcome, Value(3))
    rig = run(script, 24, lines=[(20, MTI)], irq=4)
    assert rig.engine.tracers[0].traps == [(AT, 7, 0, BEGINS, 24, True)]
    assert (rig.hart.csrs.mepc, rig.hart.pc, rig.hart.waiting, len(script.asked)) == (AT, HANDLER, None, 1)


def test_after_an_interrupt_the_instruction_starts_anew():
    script = Scripted(Stall(), Value(3), issue=2)
    rig = Rig(PROGRAM, custom=[script.row], lines=[(20, MTI)], handler="li x5,0x41000000\nsw x0,0(x5)\nli x5,8\nmret")
    rig.hart.csrs.mie, rig.hart.csrs.mstatus = MTI, 0x1888
    rig.engine.run(40)
    assert asked_at(script) == [(5, False), (28, False)]
    assert [operands.rs1 for operands in script.asked] == [6, 8]


@pytest.mark.parametrize(("mie", "enabled"), [(MTI, False), (0, True)])
def test_an_interrupt_that_is_not_taken_breaks_nothing(mie, enabled):
    script = Scripted(Stall(), Stall(), Value(3))
    rig = Rig(PROGRAM, custom=[script.row], lines=[(20, MTI), (30, MTI)])
    rig.hart.csrs.mie, rig.hart.csrs.mstatus = mie, 0x1808 if enabled else 0x1800
    rig.engine.run(40)
    assert asked_at(script) == [(4, False), (20, True), (30, True)]
    assert rig.hart.traps == 0


def test_interrupt_goes_before_completion_in_the_same_cycle():
    script = Scripted(Stall(20), Value(3))
    rig = run(script, 22, lines=[(20, MTI)])
    assert (rig.hart.traps, len(script.asked), rig.x[7]) == (1, 1, 0)


def test_an_interrupt_pending_at_the_start_squashes_without_asking():
    script = Scripted(Value(3))
    run(script, 8, lines=[(BEGINS, MTI)])
    assert script.asked == []


def test_a_line_that_the_stalling_handler_raises_interrupts_in_the_next_cycle():
    def raise_and_stall(operands):
        rig.lines.levels = MTI
        return Stall()

    row = CustomInstruction("mac", 0x5C00000B, 0xFE00707F, "rd,rs1,rs2", raise_and_stall)
    rig = Rig(PROGRAM, custom=[row], lines=[(50, 0)])
    rig.hart.csrs.mie, rig.hart.csrs.mstatus = MTI, 0x1888
    rig.engine.tracers = (Trace(),)
    rig.engine.run(10)
    assert rig.engine.tracers[0].traps == [(AT, 7, 0, BEGINS, 6, True)]


def test_a_stall_that_nothing_can_end_is_a_deadlock():
    rig = run(Scripted(Stall()), 10**9)
    assert rig.result.reason is StopReason.DEADLOCK
    assert rig.result.text == f"deadlock at pc {AT:#010x}: no event is left"


def test_a_custom_trap_that_repeats_is_a_trap_loop():
    script = Scripted(Trap(24), Trap(24))
    rig = Rig("mac x0,x0,x0", custom=[script.row])
    rig.hart.csrs.mtvec = RAM
    stop = rig.engine.run(100)
    assert stop.text == f"trap loop at pc {RAM:#010x}: cause 24 (custom cause), mtval 0x00000000"
