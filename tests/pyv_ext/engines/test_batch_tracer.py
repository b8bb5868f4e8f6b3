"""A batch tracer learns the same as one that sees every instruction, and native code is not left for it."""

import pytest
from hart_rig import INTERRUPTED, UNEVEN, Rig
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import draws

from pyv_ext.engines.tracer import FENCE
from pyv_ext.isa import Kind

pytestmark = pytest.mark.usefixtures("each_engine")

LINE = 64
PROGRAM = f"""{INTERRUPTED}
again:
addi x1,x1,1
sw x1,0(x10)
sw x1,4(x10)
mul x2,x1,x1
sw x2,64(x10)
fence rw,rw
fence rw,rw
sw x2,0(x11)
fence iorw,iorw
lw x3,0(x11)
csrrs x4,minstret,x0
csrrw x0,mscratch,x4
csrrs x5,mcycle,x0
sb x5,1(x10)
andi x6,x1,7
sw x6,128(x10)
jal x0,again
"""
HANDLER = "sw x0,0(x12); sw x1,192(x10); csrrsi x0,mscratch,3; mret"
AGAIN, CLOSED = 0x8000_0028, 0x8000_0068


class Single:
    """Sees every instruction, and puts together what a batch tracer is told."""

    def __init__(self, rig):
        self._rig = rig
        self.told, self.end = [], 0

    def _note(self, what, start, cycles):
        if self.told and self.told[-1][0] == what:
            what, start, before = self.told.pop()
            cycles += before
        self.told.append((what, start, cycles))

    def _follows(self, start, end):
        assert self.end <= start < end
        self.end = end

    def retire(self, pc, start, end, instruction):
        self._follows(start, end)
        if instruction.row.kind is Kind.STORE:
            address = self._rig.hart.x[instruction.rs1] + instruction.imm
            self._note(address & -LINE, start, end - start)
        elif instruction.row.kind is Kind.FENCE:
            self._note(FENCE, start, end - start)

    def trap(self, pc, cause, value, start, end, interrupt):
        self._follows(start, end)
        self.told.append(("trap", pc, start, end))


class Batch(Single):
    def on_block(self, start, end, records):
        self._follows(start, end)
        for first, what, cycles in records:
            assert start <= first < end
            self._note(what, first, cycles)


def rig(lines, tracer, always):
    rig = Rig(PROGRAM, handler=HANDLER, lines=lines, timing=UNEVEN)
    looks = tracer(rig)

    def look(on):
        def hook(hart):
            rig.engine.tracer = looks if on else None
            looks.end = hart.cycle  # what comes before is not told

        return hook

    if always:
        rig.engine.tracer = looks
    else:
        rig.engine.add_hook(AGAIN, look(True))
        rig.engine.add_hook(CLOSED, look(False))
    return rig, looks


@settings(max_examples=draws(40), deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.tuples(st.integers(1, 3000), st.sampled_from((0, 1 << 7, 1 << 11))), max_size=6),
    st.lists(st.integers(1, 900), max_size=6),
    st.booleans(),
)
def test_both_are_told_the_same(lines, strides, always):
    (one, single), (other, batch) = rig(lines, Single, always), rig(lines, Batch, always)
    for stride in (*strides, 900):
        for machine in (one, other):
            assert machine.engine.run(machine.hart.cycle + stride) is None
        assert one.state() == other.state()
    assert single.told == batch.told
    assert len(single.told) > 10


def test_native_code_is_entered_once(request):
    """Events, devices, CSRs and hooks do not leave it: translating does, and the end."""
    if "fast" not in request.node.callspec.id:
        pytest.skip("about the engine fast")
    machine, _ = rig([(cycle, 0) for cycle in range(100, 40_000, 100)], Batch, always=False)
    machine.engine.run(20_000)
    native = machine.engine._native
    call, entered = native._call, []
    native._call = lambda: entered.append(machine.hart.cycle) or call()
    instret, events = machine.hart.instret, len(machine.lines.log)
    machine.engine._polling.due = 1 << 30
    machine.engine.run(40_000)
    assert len(machine.lines.log) - events == 200
    assert machine.hart.instret - instret > 4000
    assert len(entered) == 1


def test_csrs_and_interrupts_are_told_without_the_slow_path(request):
    """Python executes what ends a trap, and what waits."""
    if "fast" not in request.node.callspec.id:
        pytest.skip("about the engine fast")
    machine, batch = rig([(cycle, 1 << 7) for cycle in range(1000, 40_000, 1000)], Batch, always=True)
    machine.engine.run(20_000)
    native, code, executed = machine.engine._native, machine.engine.code, set()
    execute = native._upcalls._execute_slow

    def counted(tried, hooked):
        executed.add(code.at(machine.hart.pc).instruction.name)
        return execute(tried, hooked)

    native._upcalls._execute_slow = counted
    traps = machine.hart.traps
    machine.engine.run(40_000)
    assert machine.hart.traps - traps > 10
    assert executed == {"mret", "fence"}  # the one that waits for posted stores
    assert batch.end == machine.hart.cycle


def test_a_listener_may_set_a_tracer():
    """It is told of the interrupt that the listener was told of, and of what follows."""
    machine = Rig(PROGRAM, handler=HANDLER, lines=[(cycle, 1 << 7) for cycle in range(500, 5000, 500)], timing=UNEVEN)
    tracer, heard = Single(machine), []

    def listen(cause, cycle):
        heard.append(cycle)
        if len(heard) == 6:
            machine.engine.tracer = tracer
            tracer.end = machine.hart.cycle

    machine.hart.listen(listen)
    machine.engine.run(8000)
    assert len(heard) > 6
    assert tracer.told[0][0] == "trap"
    assert tracer.told[0][-1] == heard[5]
    assert len(tracer.told) > 10


def test_a_run_goes_on_after_an_exception():
    """What a device raises comes out of `run`."""
    machine, _ = rig([], Batch, always=True)

    def fail(value):
        raise ZeroDivisionError

    machine.engine.run(400)
    machine.port.on_write = fail
    with pytest.raises(ZeroDivisionError):
        machine.engine.run(800)
    machine.port.on_write = None
    assert machine.engine.run(machine.hart.cycle + 400) is None
