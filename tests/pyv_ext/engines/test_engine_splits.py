"""A run may be cut anywhere, traced or not: same state, same device calls, same instructions."""

from itertools import pairwise

import pytest
from hart_rig import DATA, LINES, PORT, Rig, Trace
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import draws

from pyv_ext.protocols import CustomInstruction, Retry, Stall, Trap, Value
from pyv_ext.timing import CoreTiming

pytestmark = pytest.mark.usefixtures("each_engine")

MTI, MEI = 1 << 7, 1 << 11
BODY = (
    "addi x1,x1,3",
    "mul x2,x1,x1",
    "div x3,x2,x1",
    "sw x2,8(x10)",
    "lw x4,8(x10)",
    "sw x2,0(x11)",
    "lw x5,0(x11)",
    "lw x5,8(x11)",
    "lw x0,1(x10)",
    "sb x0,0(x11)",
    "fence o,o",
    "fence rw,rw",
    "wfi",
    "mac x6,x1,x2",
    "mac x0,x0,x0",
    "csrrs x7,mcycle,x0",
    "csrrw x8,minstret,x1",
    "csrrsi x0,mstatus,8",
    "csrrci x0,mstatus,8",
    "csrrw x0,0x7c0,x0",
    "amoadd.w x9,x1,(x10)",
    "c.addi x1,1",
    "beq x1,x2,8",
    "bne x1,x2,8",
    "ecall",
    "ebreak",
)
HANDLER = """
csrrs x30,mcause,x0
blt x30,x0,interrupt
csrrs x30,mepc,x0
addi x30,x30,4
csrrw x0,mepc,x30
mret
interrupt:
sw x0,0(x29)
mret
"""
LIMIT = 700

TIMINGS = (
    CoreTiming(),
    CoreTiming(mul=4, div=33, load=2, irq=4, mmio_read=30, mmio_write=2, mmio_one_way=12, custom=3, wfi=2, trap=3),
    CoreTiming(csr=4, near_extra=2, mmio_read=9, mmio_one_way=60, posted_depth=2, fence=2, taken=3, jump=2),
)


def moody(asked):
    """A custom instruction whose answer depends on the cycle in which it is asked."""

    def handle(operands):
        asked.append((operands.pc, operands.now, operands.resumed, operands.rs1))
        choices = (Value(1), Value(2, 4), Stall(), Stall(operands.now + 5), Retry(3), Trap(24), operands.now)
        return choices[operands.now % 7]

    return CustomInstruction("mac", 0x5C00000B, 0xFE00707F, "rd,rs1,rs2", handle)


def machine(program, lines, timing):
    asked = []
    rig = Rig(program, handler=HANDLER, lines=lines, timing=timing, custom=[moody(asked)])
    rig.asked = asked
    for register, value in ((10, DATA), (11, PORT), (29, LINES)):
        rig.hart.x[register] = value
    rig.hart.csrs.mie, rig.hart.csrs.mstatus = MTI | MEI, 0x1888
    return rig


programs = st.lists(st.sampled_from(BODY), min_size=1, max_size=25).map(
    lambda body: "\n".join(("again:", *body, "addi x0,x0,0", "addi x0,x0,0", "jal x0,again"))
)
events = st.lists(st.tuples(st.integers(0, LIMIT), st.sampled_from((0, MTI, MEI, MTI | MEI))), max_size=12)
budgets = st.lists(st.one_of(st.integers(1, 9), st.integers(1, 300)), min_size=1, max_size=12)


@settings(max_examples=draws(100), deadline=None, derandomize=True, database=None)
@given(programs, events, st.sampled_from(TIMINGS), budgets, st.booleans())
def test_any_split_gives_the_same(program, lines, timing, slices, tracing):
    whole = machine(program, lines, timing)
    stop = whole.engine.run(LIMIT)

    cut = machine(program, lines, timing)
    trace = Trace()
    until, index, cut_stop = 0, 0, None
    while until < LIMIT and cut_stop is None:
        until = min(until + slices[index % len(slices)], LIMIT)
        cut.engine.tracers = (trace,) if tracing and index % 2 else ()
        cut_stop = cut.engine.run(until)
        index += 1

    assert cut_stop == stop
    assert cut.state() == whole.state()
    assert cut.asked == whole.asked


@settings(max_examples=draws(60), deadline=None, derandomize=True, database=None)
@given(programs, events, st.sampled_from(TIMINGS))
def test_single_steps_give_the_same(program, lines, timing):
    stepped = machine(program, lines, timing)
    stop = None
    while stepped.hart.cycle < LIMIT and stop is None:
        stop = stepped.engine.step()
    whole = machine(program, lines, timing)
    assert whole.engine.run(stepped.hart.cycle if stop is None else LIMIT) == stop
    assert stepped.state() == whole.state()
    assert stepped.asked == whole.asked


@settings(max_examples=draws(60), deadline=None, derandomize=True, database=None)
@given(programs, events, st.sampled_from(TIMINGS))
def test_a_trace_tiles_the_time_line(program, lines, timing):
    """Each instruction starts where the one before ended or trapped, and each is counted."""
    rig = machine(program, lines, timing)
    trace = Trace()
    rig.engine.add_tracer(trace)
    rig.engine.run(LIMIT)
    spans = sorted([item[1:3] for item in trace.retired] + [item[3:5] for item in trace.traps])
    assert all(end == start for (_, end), (start, _) in pairwise([(0, 0), *spans]))
    assert (len(trace.retired), len(trace.traps)) == (rig.hart.instret, rig.hart.traps)


def test_a_run_may_end_at_an_event_while_an_instruction_is_not_to_be_asked_yet():
    """The store arrives in cycle 8, the instruction after it is asked again in cycle 21."""

    def made():
        asked = []

        def handle(operands):
            asked.append(operands.now)
            return Value(7) if operands.resumed else Retry(20)

        custom = CustomInstruction("mac", 0x5C00000B, 0xFE00707F, "rd,rs1,rs2", handle)
        rig = Rig("sw x1,0(x11)\nmac x6,x1,x2\nwfi", timing=CoreTiming(mmio_one_way=8), custom=[custom])
        rig.hart.x[11] = PORT
        rig.asked = asked
        return rig

    whole = made()
    whole.engine.run(60)
    assert len(whole.asked) == 2
    for end in range(1, 25):
        cut = made()
        cut.engine.run(end)
        wait = cut.hart.waiting
        assert wait is None or wait.not_before <= wait.until
        cut.engine.run(60)
        assert (cut.state(), cut.asked) == (whole.state(), whole.asked)
