"""The core log has what a tracer sees, in every engine, and native code is not left for it."""

import pytest
from hart_rig import INTERRUPTED, PORT, RAM, UNEVEN, Rig
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import draws

from pyv_ext.errors import PyvExtError
from pyv_ext.isa import OpClass
from pyv_ext.machine.state import LOG, SUBMIT_FUNCTIONS, LogKind

pytestmark = pytest.mark.usefixtures("each_engine")

LINE = 64
PROGRAM = f"""{INTERRUPTED}
again:
addi x1,x1,1
sw x1,0(x10)
sw x1,4(x10)
mul x2,x1,x1
sw x2,64(x10)
amoadd.w x2,x1,(x10)
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
KINDS = (LogKind.STORES, LogKind.FENCE, LogKind.LOAD, LogKind.STORE, LogKind.TRAP, LogKind.MRET)
lines_of_devices = st.lists(st.tuples(st.integers(1, 3000), st.sampled_from((0, 1 << 7, 1 << 11))), max_size=6)
strides = st.lists(st.integers(1, 900), max_size=6)


class Reader:
    """Stores and fences in a row are one, wherever a chunk ends."""

    def __init__(self):
        self.rows = []

    def add(self, kind, start, cycles, pc=0, address=0, value=0):
        last = self.rows[-1] if self.rows else None
        if kind in (LogKind.STORES, LogKind.FENCE) and last and (last[0], last[4]) == (kind, address):
            start, cycles = last[1], last[2] + cycles
            self.rows.pop()
        self.rows.append((kind, start, cycles, pc, address, value))

    def read(self, rows):
        for start, cycles, pc, address, value, kind in rows:
            self.add(LogKind(kind), start, cycles, pc, address, value)


class Tracer(Reader):
    """Sees every instruction, and makes of each what the log should have."""

    def __init__(self, rig):
        super().__init__()
        self._hart = rig.engine.hart

    def retire(self, pc, start, end, instruction):
        kind, x = instruction.row.op_class, self._hart.x
        address = int(x[instruction.rs1]) + instruction.imm
        if kind is OpClass.FENCE:
            self.add(LogKind.FENCE, start, end - start)
        elif kind is OpClass.XRET:
            self.add(LogKind.MRET, start, end - start)
        elif kind is OpClass.STORE and address >= RAM:
            self.add(LogKind.STORES, start, end - start, address=address & -LINE)
        elif kind is OpClass.STORE:
            self.add(LogKind.STORE, start, end - start, pc, address, int(x[instruction.rs2]))
        elif kind is OpClass.LOAD:
            self.add(LogKind.LOAD, start, end - start, pc, address, int(x[instruction.rd]))

    def trap(self, pc, cause, value, start, end, interrupt):
        self.add(LogKind.TRAP, start, end - start, pc, 0, cause | interrupt << 31)


def rig(lines):
    return Rig(PROGRAM, handler=HANDLER, lines=lines, timing=UNEVEN)


@settings(max_examples=draws(40), deadline=None, derandomize=True, database=None)
@given(lines_of_devices, strides)
def test_the_log_has_what_a_tracer_sees(lines, strides):
    one, other, reader = rig(lines), rig(lines), Reader()
    tracer = Tracer(one)
    one.engine.add_tracer(tracer)
    other.clock.log.subscribe(reader.read, KINDS)
    for stride in (*strides, 900):
        for machine in (one, other):
            assert machine.engine.run(machine.hart.cycle + stride) is None
        assert one.state() == other.state()
    other.clock.log.read()
    assert reader.rows == tracer.rows
    assert len(reader.rows) > 10


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_switched_by_itself(kind):
    some, all_of = Reader(), Reader()
    for reader, kinds in ((some, (kind,)), (all_of, KINDS)):
        machine = rig([(cycle, 1 << 7) for cycle in range(100, 900, 200)])
        machine.clock.log.subscribe(reader.read, kinds)
        machine.engine.run(2000)
        machine.clock.log.read()
    wanted = Reader()
    for row in all_of.rows:
        if row[0] is kind:
            wanted.add(*row)
    assert some.rows == wanted.rows and some.rows


def test_interrupts_alone_are_logged_where_traps_are_not():
    """As the traps that they are, though native code is translated then."""
    alone, all_of = Reader(), Reader()
    for reader, kinds in ((alone, (LogKind.HANDLER,)), (all_of, (LogKind.HANDLER, LogKind.TRAP))):
        machine = rig([(cycle, 1 << 7) for cycle in range(100, 9000, 200)])
        machine.clock.log.subscribe(reader.read, kinds)
        machine.engine.run(20_000)
        machine.clock.log.read()
    assert {row[0] for row in all_of.rows} == {LogKind.TRAP} and len(all_of.rows) > 20
    assert [row[1:] for row in alone.rows] == [row[1:] for row in all_of.rows if row[5] >> 31]


def test_a_full_log_is_read(monkeypatch):
    machine, reader, chunks = rig([]), Reader(), []
    machine.clock.log.subscribe(reader.read, KINDS)
    machine.clock.log.subscribe(lambda rows: chunks.append(len(rows)))
    machine.engine.run(60_000)
    assert chunks and set(chunks) == {LOG}
    machine.clock.log.read()
    starts = [row[1] for row in reader.rows]
    assert starts == sorted(starts) and len(starts) == sum(chunks)


def test_native_code_is_not_left_for_it(request):
    """Python executes what returns from a trap."""
    if "fast" not in request.node.callspec.id:
        pytest.skip("about the engine fast")
    machine = rig([(cycle, 1 << 7) for cycle in range(1000, 40_000, 1000)])
    machine.clock.log.subscribe(lambda rows: None, KINDS)
    machine.engine.run(20_000)
    native, executed = machine.engine._native, set()
    call, entered = native._call, []
    native._call = lambda: entered.append(machine.hart.cycle) or call()
    execute = native._execute_slow

    def counted(tried, marked):
        executed.add(machine.engine.code.at(machine.hart.pc).instruction.name)
        return execute(tried, marked)

    native._execute_slow = counted
    machine.engine._polling.remaining = 1 << 30
    traps = machine.hart.traps
    machine.engine.run(40_000)
    assert machine.hart.traps - traps > 10
    assert len(entered) == 1 and executed == {"mret"}


def test_a_run_goes_on_after_an_exception():
    """What an observer raises comes out of `run`."""
    machine, fails = rig([]), [True]

    def observe(rows):
        if fails.pop():
            raise ZeroDivisionError

    machine.bus.log(machine.port)
    machine.clock.log.subscribe(observe, at_once=True)
    with pytest.raises(ZeroDivisionError):
        machine.engine.run(800)
    fails[:] = [False] * 1000
    assert machine.engine.run(machine.hart.cycle + 400) is None


# -- submit functions ----------------------------------------------------------------------------------------------

SUBMITTING = f"""
li x10,{RAM + 0x4000}
li x11,{PORT}
li x2,{RAM + 0x8000}
again:
sw x0,256(x10)
jal x1,submit
sw x0,320(x10)
addi x5,x5,1
jal x1,refused
addi x5,x5,1
jal x0,again
refused:
sw x5,64(x10)
jalr x0,0(x1)
submit:
sw x5,0(x10)
sw x5,0(x11)
jalr x0,0(x1)
"""
AGAIN = RAM + 0x18
CALLS = {"submit": (RAM + 0x3C, AGAIN + 8), "refused": (RAM + 0x34, AGAIN + 0x14)}


def submitting():
    machine, reader = Rig(SUBMITTING, timing=UNEVEN), Reader()
    machine.bus.log(machine.port)
    machine.clock.log.follow_submissions([pc for pc, _ in CALLS.values()], KINDS, PORT)
    for pc, _ in CALLS.values():
        machine.engine.mark(pc)
    machine.clock.log.subscribe(reader.read)
    return machine, reader


def test_a_submission_is_followed_from_its_function_to_what_comes_after_its_doorbell():
    """Stores outside are not logged; those after a function that hands nothing over are, up to the next that does."""
    machine, reader = submitting()
    machine.engine.run(40_000)
    machine.clock.log.read()
    rows = [(kind, pc, address) for kind, _, _, pc, address, _ in reader.rows]
    (entry, back), (other, after) = CALLS.values()
    data = RAM + 0x4000
    submit = [(LogKind.ENTER, entry, back), (LogKind.STORES, 0, data), (LogKind.STORE, entry + 4, PORT)]
    submit += [(LogKind.RETURN, back, 0)]
    refused = [(LogKind.ENTER, other, after), (LogKind.STORES, 0, data + 64), (LogKind.RETURN, after, 0)]
    refused += [(LogKind.STORES, 0, data + 256)]
    turn = submit + refused
    assert len(rows) > 4000
    assert rows == (turn * len(rows))[: len(rows)]
    over = [value for kind, _, _, pc, _, value in reader.rows if kind is LogKind.RETURN]
    assert over == ([1, 0] * len(over))[: len(over)]


def test_marks_ask_python_for_nothing(request):
    if "fast" not in request.node.callspec.id:
        pytest.skip("about the engine fast")
    machine, reader = submitting()
    machine.engine.run(20_000)
    slow, native = [], machine.engine._native
    execute = native._execute_slow
    native._execute_slow = lambda *given: slow.append(machine.hart.pc) or execute(*given)
    before = len(reader.rows)
    machine.engine.run(60_000)
    assert slow == [] and len(reader.rows) > before + 4000


def test_too_many_submit_functions_are_refused():
    machine = Rig(SUBMITTING, timing=UNEVEN)
    with pytest.raises(PyvExtError, match="257 submit functions: at most 256 are followed; name fewer"):
        machine.clock.log.follow_submissions(range(0, 4 * SUBMIT_FUNCTIONS + 4, 4), KINDS, PORT)
