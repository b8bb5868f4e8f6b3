"""Polling: time jumps over turns that change nothing, and nothing else differs; registers that keep their values."""

import random

import engine_choice
import pytest
from hart_rig import DATA, LINES, RAM, Rig, assemble
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import draws

from pyv_ext.bus.memory import Ram
from pyv_ext.devices.clint import Clint
from pyv_ext.devices.plic import Plic
from pyv_ext.devices.uart import Uart
from pyv_ext.engines import polling
from pyv_ext.timing import CoreTiming

pytestmark = pytest.mark.usefixtures("each_engine")

MOST = polling.WORTH
MTI, MEI = 1 << 7, 1 << 11
STATUS = 0x4200_0000
SPM = 0x5000_0000
TIMINGS = (
    CoreTiming(),
    CoreTiming(mmio_read=30, mmio_write=2, mmio_one_way=12, load=2, irq=4, near_extra=2, taken=3),
    CoreTiming(mmio_read=9, mmio_one_way=60, posted_depth=2, jump=5, branch=2),
)


class Status:
    """Word 0 counts the events of a schedule, and each writes a flag to memory; word 4 is what was written there."""

    name = "status"
    size = 0x1000
    irq = False

    def __init__(self, schedule):
        self.count = self.scratch = 0
        self.reads = 0
        self._schedule = sorted(schedule)

    def connect(self, master):
        self._memory = master

    def accepts(self, offset, size, write):
        return size == 4 and offset in (0, 4)

    def stable(self, offset, size):
        return True

    def read(self, offset, size, now):
        self.reads += 1
        return self.scratch if offset else self.count

    def write(self, offset, size, value, now):
        self.scratch = value

    def next_event(self):
        return self._schedule[0] if self._schedule else None

    def advance(self, now):
        while self._schedule and self._schedule[0] <= now:
            self._schedule.pop(0)
            self.count += 1
            self._memory.poke(DATA, self.count.to_bytes(4, "little"))


class Liar(Status):
    """A register that changes without an event."""

    def read(self, offset, size, now):
        return now >> 6


HANDLER_TEXT = """
addi x31,x31,1
lw x30,0(x29)
sw x0,0(x29)
mret
"""

PROGRAM = """
again:
lw x5,0({pointer})
{filler}
beq x5,x6,again
addi x6,x5,0
addi x7,x7,1
sw x7,4(x12)
jal x0,again
"""

FILLERS = (
    "addi x0,x0,0", "lw x8,4(x12)", "andi x9,x5,7", "lbu x8,1(x10)", "jal x9,4", "sw x9,64(x10)",
    "csrrs x9,mip,x0", "csrrs x9,mcycle,x0", "lw x8,0(x13)", "fence rw,rw",
)  # fmt: skip


def machine(program, schedule, lines, timing, device=Status, engine=None):
    name = engine_choice.NAME
    if engine is not None:
        engine_choice.NAME = engine
    try:
        rig = Rig(program, handler=HANDLER_TEXT, lines=lines, timing=timing)
    finally:
        engine_choice.NAME = name
    rig.status = device(schedule)
    rig.bus.add_device(STATUS, rig.status)
    rig.spm = Ram("spm", SPM, 0x1000, near=True)
    rig.bus.add_ram(rig.spm)
    for register, value in ((10, DATA), (12, STATUS), (13, SPM), (29, LINES)):
        rig.hart.x[register] = value
    rig.hart.csrs.mie, rig.hart.csrs.mstatus = MTI | MEI, 0x1888
    return rig


@pytest.fixture(autouse=True)
def frequent_checks(monkeypatch):
    monkeypatch.setattr(polling, "MIN_INTERVAL", 16)
    monkeypatch.setattr(polling, "MAX_INTERVAL", 64)
    monkeypatch.setattr(polling, "WORTH", 0)


def seen(rig):
    return (*rig.state(), rig.status.count, rig.status.scratch, bytes(rig.spm.u8))


@settings(max_examples=draws(40), deadline=None, derandomize=True)
@given(st.data())
def test_polling_equals_the_reference(data):
    """Same pc, registers, cycles and counts at any budgets, with interrupts and events in the midst of it."""
    pick = data.draw
    filler = "\n".join(pick(st.lists(st.sampled_from(FILLERS), max_size=3)))
    program = PROGRAM.format(pointer=pick(st.sampled_from(("x12", "x10"))), filler=filler)
    cycles = st.integers(1, 3000)
    schedule = pick(st.lists(cycles, max_size=4))
    lines = [(at, pick(st.sampled_from((0, MTI, MEI)))) for at in pick(st.lists(cycles, max_size=4, unique=True))]
    timing = pick(st.sampled_from(TIMINGS))
    rig = machine(program, schedule, lines, timing)
    reference = machine(program, schedule, lines, timing, engine="reference")
    until = 0
    chance = random.Random(pick(st.integers(0, 99)))
    while until < 5000:
        until += chance.choice((1, 2, 3, 17, 400, 1500))
        assert rig.engine.run(until) is reference.engine.run(until) is None
        assert seen(rig) == seen(reference)


def test_a_long_wait_is_jumped_over(request):
    """A turn of lw and beq takes 2 cycles in the cycle contract; that many turns cannot be executed."""
    if engine_choice.NAME == "reference":
        pytest.skip("the reference executes every turn")
    event = 10**15
    rig = machine("again:; lw x5,0(x12); beq x5,x0,again; end:; jal x0,end", [event], [], CoreTiming())
    assert rig.engine.run(event - 1) is None
    assert (rig.hart.instret, rig.status.reads < 20_000) == (event - 1, True)
    rig.engine.run(event + 5)
    assert rig.x[5] == 1
    assert rig.hart.pc == RAM + 8


def test_a_spin_is_jumped_over():
    if engine_choice.NAME == "reference":
        pytest.skip("the reference executes every turn")
    rig = machine("end:; jal x0,end", [], [], CoreTiming())
    rig.engine.run(10**15 + 1)
    assert rig.hart.instret == 10**15 + 1


def test_a_guard_sees_every_access():
    rig = machine("again:; lw x5,0(x12); beq x5,x0,again", [], [], CoreTiming())
    accesses = []
    rig.bus.guards.append(lambda address, size, write: accesses.append(address))
    rig.engine.run(1000)
    assert accesses == [STATUS] * 500


def test_a_register_that_changes_without_an_event_is_found():
    """Its device says that it is stable; then the engines differ."""
    if engine_choice.NAME == "reference":
        pytest.skip("the reference reads every time")
    program = "again:; lw x5,0(x12); beq x5,x6,again; addi x6,x5,0; addi x7,x7,1; jal x0,again"
    rigs = [machine(program, [], [], CoreTiming(), Liar, engine) for engine in (engine_choice.NAME, "reference")]
    for rig in rigs:
        rig.engine.run(200_000)
    assert rigs[0].x[7] != rigs[1].x[7]


# -- what the shipped devices declare --------------------------------------------------------------------------


@pytest.mark.parametrize("device", [Uart(), Clint(), Plic()], ids=lambda device: device.name)
def test_stable_registers_of_the_devices_keep_their_values(device):
    """Whenever they are read, until the next event."""
    size = 1 if isinstance(device, Uart) else 4
    offsets = [at for at in range(0, min(device.size, 0x20_0008), size) if device.accepts(at, size, False)]
    stable = [at for at in offsets if device.stable(at, size)]
    assert stable
    assert len(stable) < len(offsets)
    for at in stable:
        values = {device.read(at, size, now) for now in (0, 1, 1000, 10**9)}
        assert len(values) == 1, at


# -- other memories --------------------------------------------------------------------------------------------


def test_a_transfer_into_the_scratchpad_is_seen_by_the_next_load():
    program = "again:; lw x5,0(x13); addi x6,x6,1; blt x6,x7,again; sw x6,8(x13); end:; jal x0,end"
    rig = machine(program, [], [], TIMINGS[1])
    rig.hart.x[7] = 500
    rig.engine.run(300)
    assert rig.x[5] == 0
    rig.bus.poke(SPM, b"\x34\x12\0\0")
    rig.engine.run(rig.hart.cycle + 10)
    assert rig.x[5] == 0x1234
    rig.engine.run(10_000)
    assert rig.spm.read(SPM + 8, 4) == 500


def test_stores_to_code_in_the_scratchpad_are_executed():
    """A loop in the scratchpad overwrites an instruction of its own in each turn."""
    rig = machine("jalr x0,0(x13)", [], [], CoreTiming())
    body = "again:; lw x5,0(x14); sw x5,16(x13); lw x5,4(x14); sw x5,20(x13); addi x6,x6,1; addi x6,x6,1; jal x0,again"
    rig.bus.poke(SPM, assemble(rig.isa, body, SPM))
    rig.bus.poke(SPM + 0x100, assemble(rig.isa, "addi x6,x6,5; addi x7,x7,1"))
    rig.hart.x[14] = SPM + 0x100
    rig.engine.run(1 + 7 * 100)
    assert (rig.x[6], rig.x[7]) == (500, 100)


@pytest.mark.parametrize("distance", [MOST // 4, 4 * MOST])
def test_short_waits_are_executed(monkeypatch, distance):
    """A check takes longer than native code takes for the turns up to an event that is near."""
    monkeypatch.setattr(polling, "WORTH", MOST)
    tried, original = [], polling.PollingDetection.skip

    def skip(self, limit):
        tried.append(limit)
        return original(self, limit)

    monkeypatch.setattr(polling.PollingDetection, "skip", skip)
    events = range(distance, 5 * distance, distance)
    rig = machine(PROGRAM.format(pointer="x12", filler=""), events, [], CoreTiming())
    rig.engine.run(events[-1])
    assert bool(tried) == (distance > MOST and engine_choice.NAME != "reference")


def test_engines_differ_where_a_skip_is_wrong(monkeypatch):
    """Jumping one turn too far is found."""
    if engine_choice.NAME == "reference":
        pytest.skip("the reference executes every turn")
    original = polling.PollingDetection.skip

    def far(self, limit):
        return original(self, limit + 100)

    monkeypatch.setattr(polling.PollingDetection, "skip", far)
    rigs = []
    for engine in (engine_choice.NAME, "reference"):
        rig = machine(PROGRAM.format(pointer="x12", filler=""), [997, 2111], [(1503, MTI)], TIMINGS[1], engine=engine)
        rig.engine.run(5000)
        rigs.append(seen(rig))
    assert rigs[0] != rigs[1]
