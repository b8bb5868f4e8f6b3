"""Native code while PMP forbids something: the same traps in the same cycles as in the reference."""

import random

import pytest
from engine_world import compare
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
    hart = Hart(ISA, bus.timing, reset_pc=RAM + 0x1000)
    bus.poke(RAM, HANDLER)
    bus.poke(RAM + 0x1000, USER)
    pmp, csrs = hart.csrs.pmp, hart.csrs
    pmp.write_cfg(0, 0x0B_0D_00)
    for region, edge in enumerate((RAM + 0x1000, DATA, DATA + 0x80)):
        pmp.write_addr(region, edge >> 2)
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


@pytest.mark.parametrize("seed", range(500, 504))
def test_random_programs_while_pmp_forbids_this_or_that(seed, monkeypatch):
    NATIVE_FORMS[1].choose(monkeypatch)
    assert compare(("reference", "fast"), seed, 5000, protected=True, misaligned=seed % 2 == 0).traps > 20
