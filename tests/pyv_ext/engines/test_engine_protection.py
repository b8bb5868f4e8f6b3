"""Native code while PMP forbids something: the same traps in the same cycles as in the reference."""

import random

import engine_choice
import hart_rig
import pytest
from engine_world import compare
from hart_rig import Rig
from native_forms import FORMS, NATIVE_FORMS

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import Clock
from pyv_ext.bus.memory import Ram
from pyv_ext.cores import make_engine
from pyv_ext.engines.engine import Engine
from pyv_ext.engines.fast.native import Native
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Isa
from pyv_ext.isa.csr_names import ADDRESSES
from pyv_ext.machine.csr import PMPADDR, PMPCFG
from pyv_ext.timing import CoreTiming

RAM, DATA = 0x8000_0000, 0x8000_4000
ISA = Isa("rv32imacu_zicsr_zifencei")


def code(*rows: tuple[str, dict[str, int]]) -> bytes:
    return b"".join(ISA.encode(name, **fields).to_bytes(4, "little") for name, fields in rows)


def csr(name: str, **fields: int) -> tuple[str, dict[str, int]]:
    return ("csrrs" if "rs1" not in fields else "csrrw"), {"csr": ADDRESSES[name], **fields}


HANDLER = code(
    csr("mepc", rd=30),
    ("addi", {"rd": 30, "rs1": 30, "imm": 4}),
    csr("mepc", rd=0, rs1=30),
    csr("mcause", rd=28),
    ("add", {"rd": 27, "rs1": 27, "rs2": 28}),
    csr("pmpaddr2", rd=29),
    csr("mscratch", rd=31),
    csr("mscratch", rd=0, rs1=29),
    csr("pmpaddr2", rd=0, rs1=31),
    ("mret", {}),
)
"""Goes on after the instruction, with another end of the region of data."""
USER = code(
    ("sw", {"rs1": 8, "rs2": 6, "imm": 0}),
    ("lw", {"rd": 7, "rs1": 8, "imm": 0x100}),
    ("sw", {"rs1": 8, "rs2": 7, "imm": 0x100}),
    ("addi", {"rd": 6, "rs1": 6, "imm": 1}),
    ("andi", {"rd": 5, "rs1": 6, "imm": 63}),
    ("lw", {"rd": 9, "rs1": 10, "imm": 0}),
    ("bne", {"rs1": 5, "rs2": 0, "imm": -24}),
    ("ecall", {}),
    ("sw", {"rs1": 10, "rs2": 6, "imm": 0x40}),
    ("jal", {"imm": -36}),
)


def machine(name: str) -> tuple[Hart, Engine]:
    """A task in user mode that may execute and read its code, and read and write the begin of its data."""
    bus = Bus(Clock(), CoreTiming(load=2, trap=3))
    bus.add_ram(Ram("ram", RAM, 0x1_0000))
    hart = Hart(ISA, bus.timing, bus.clock.records, reset_pc=RAM + 0x1000)
    bus.poke(RAM, HANDLER)
    bus.poke(RAM + 0x1000, USER)
    csrs = hart.csrs
    csrs.write(PMPCFG, 0x0B_0D_00)
    for region, edge in enumerate((RAM + 0x1000, DATA, DATA + 0x80)):
        csrs.write(PMPADDR + region, edge >> 2)
    csrs.mtvec, csrs.mscratch, hart.priv = RAM, DATA + 0x200 >> 2, 0
    hart.guard()
    hart.x[8], hart.x[10] = DATA, RAM + 0x1000
    return hart, make_engine(name, hart, bus)


@pytest.mark.parametrize("form", FORMS[1:], ids=str)
def test_a_task_in_user_mode(form, monkeypatch):
    form.choose(monkeypatch)
    (reference, defining), (native, engine) = machine("reference"), machine(form.engine)
    chance = random.Random(1)
    while reference.instret < 6000:
        until = reference.cycle + chance.choice((1, 2, 7, 300, chance.randint(1, 4001)))
        defining.run(until)
        engine.run(until)
        seen = [
            (hart.pc, hart.cycle, hart.instret, hart.traps, hart.priv, hart.csrs.mcause, hart.csrs.mtval, *hart.x[:32])
            for hart in (reference, native)
        ]
        assert seen[0] == seen[1]
    assert reference.traps > 30


def test_the_task_is_executed_by_native_code(monkeypatch):
    NATIVE_FORMS[1].choose(monkeypatch)
    done = []
    run = Native.run

    def counted(self, until):
        before = self._hart.instret
        run(self, until)
        done.append(self._hart.instret - before)

    monkeypatch.setattr(Native, "run", counted)
    hart, engine = machine("fast")
    engine.run(20_000)
    assert sum(done) > 0.9 * hart.instret


TASK = """
    task:
    sw x6,0(x8); lw x7,0x100(x8); addi x6,x6,1; amoadd.w x9,x6,(x8); andi x5,x6,7; bne x5,x0,task
    ecall
    lw x9,0(x10); amoswap.w x9,x6,(x11)
    {illegal}
    lr.w x9,(x8); sc.w x12,x6,(x8); csrrs x13,0x300,x0
    jal x0,task
"""
"""In user mode: calls, illegal instructions and forbidden accesses, some of atomics, between what is allowed."""
SERVE = """
    csrrw x31,0x340,x31
    csrrs x30,0x342,x0; blt x30,x0,line
    csrrs x30,0x341,x0; addi x30,x30,4; csrrw x0,0x341,x30
    addi x29,x29,1; andi x30,x29,3; bne x30,x0,back
    csrrs x28,0x300,x0; lui x30,2; addi x30,x30,-0x800; csrrs x0,0x300,x30; csrrsi x0,0x300,8
    csrrs x0,mcycle,x0; addi x27,x27,1; csrrci x0,0x300,8; csrrw x0,0x300,x28
    back:
    csrrw x31,0x340,x31; mret
    line:
    sw x0,0(x26); addi x25,x25,1; csrrw x31,0x340,x31; mret
"""
"""Goes on after what has trapped; every fourth time interrupts are let in meanwhile."""


def task(monkeypatch, form, *, locked, seed):
    """The rig of a task in user mode; `locked`: machine mode, too, may not access something."""
    monkeypatch.setattr(engine_choice, "NAME", form.engine)
    chance = random.Random(seed)
    cycles = sorted(chance.randrange(100_000) for _ in range(400))
    made = Rig(
        TASK.format(illegal="addi x0,x0,0"),
        handler=SERVE,
        isa=ISA.name,
        timing=CoreTiming(load=2, trap=3, irq=4),
        lines=[(cycle, 1 << chance.choice((3, 7, 11))) for cycle in cycles],
    )
    word = made.ram.u32[:64].tolist().index(0x13)
    made.ram.u32[word] = 0xFFFF_FFFF
    csrs, hart = made.hart.csrs, made.hart
    edges = (hart_rig.RAM, hart_rig.RAM + 0x400, hart_rig.DATA, hart_rig.DATA + 0x800, hart_rig.DATA + 0xC00)
    for region, edge in enumerate(edges):
        csrs.write(PMPADDR + region, edge >> 2)
    csrs.write(PMPCFG, 0x0B00_0D00)
    csrs.write(PMPCFG + 1, 0x88 if locked else 0x08)
    hart.x[8], hart.x[10], hart.x[11], hart.x[26] = hart_rig.DATA, hart_rig.RAM, hart_rig.DATA + 0x900, hart_rig.LINES
    csrs.mie, csrs.mstatus, hart.priv = 0x888, 0x80, 0
    hart.guard()
    return made


@pytest.mark.parametrize("locked", [False, True], ids=["user mode alone", "machine mode too"])
@pytest.mark.parametrize("form", FORMS[1:], ids=str)
def test_a_task_that_calls_is_interrupted_and_faults(form, locked, monkeypatch):
    form.choose(monkeypatch)
    native = task(monkeypatch, form, locked=locked, seed=1)
    reference = task(monkeypatch, FORMS[0], locked=locked, seed=1)
    chance = random.Random(2)
    while reference.hart.cycle < 30_000:
        until = reference.hart.cycle + chance.choice((1, 2, 3, 7, 300, chance.randint(1, 4001)))
        assert reference.engine.run(until) == native.engine.run(until)
        assert reference.state() == native.state()
    assert reference.hart.x[25] > 60  # interrupts
    assert reference.hart.x[27] > 60  # of four traps each


def test_calls_and_interrupts_do_not_leave_native_code(monkeypatch):
    form = NATIVE_FORMS[1]
    form.choose(monkeypatch)
    made = task(monkeypatch, form, locked=False, seed=1)
    slow = []
    original = Engine._execute_slow
    monkeypatch.setattr(
        Engine, "_execute_slow", lambda self, *given: slow.append(self.hart.pc) or original(self, *given)
    )
    made.engine.run(2000)
    slow.clear()
    made.engine.run(50_000)
    faults = [hart_rig.RAM + 4 * word for word in (7, 8, 12)]
    assert made.hart.traps > 1000
    assert {pc for pc in slow if pc < hart_rig.HANDLER} <= {*faults}
    assert len(slow) < made.hart.traps


@pytest.mark.parametrize("seed", range(500, 504))
def test_random_programs_while_pmp_forbids_this_or_that(seed, monkeypatch):
    NATIVE_FORMS[1].choose(monkeypatch)
    assert compare(("reference", "fast"), seed, 5000, protected=True, misaligned=seed % 2 == 0).traps > 20
