"""Native functions of floating point with all exceptions and rounding modes, against the definition in integers."""

import ctypes
import random
from functools import cache
from itertools import product

import engine_choice
import numpy as np
import pytest
from hart_rig import Rig
from work_count import calls

from pyv_ext.engines.fast import floating
from pyv_ext.isa import Isa
from pyv_ext.isa.formats import BOX
from pyv_ext.isa.row import InstructionDef
from pyv_ext.machine import slots
from pyv_ext.machine.state import HartState
from pyv_native.compiler import Compiler
from pyv_native.loader import NativeCode
from pyv_native.records import WORD, layout

WORDS = layout(HartState).size // WORD
"""Words of the record of a hart."""
ISA = Isa("rv32imafd_zicsr")
COMPILER = Compiler(None)
FUSED = COMPILER.fused
ROWS = [row for row in ISA.rows if row.floating and floating.has_strict(row, fused=FUSED)]
MODES = range(4)
"""RNE, RTZ, RDN, RUP."""
pytestmark = pytest.mark.skipif(not ROWS, reason="functions of x86-64")

SINGLES = [
    0, 1, 0x7FFFFF, 0x800000, 0x800001, 0x3F800000, 0x3F800001, 0x3F7FFFFF, 0x40490FDB, 0x4B7FFFFF, 0x4B000000,
    0x3F000000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FC00001, 0x4F000000, 0x4F7FFFFF, 0x33800000,
    0x00FFFFFF,
]  # fmt: skip
DOUBLES = [
    0, 1, (1 << 52) - 1, 1 << 52, (1 << 52) + 1, 1023 << 52, (1023 << 52) + 1, (1023 << 52) - 1,
    0x400921FB54442D18, 0x41DFFFFFFFC00000, 0x41E0000000000000, 0x41EFFFFFFFE00000, 0x3FE0000000000000,
    0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000, 0x7FF0000000000001, 0x7FF8000000000000, 0x7FF8000000000001,
    0x36A0000000000000, 0x380FFFFFFFFFFFFF, 0x47EFFFFFF0000000,
]  # fmt: skip
OPERANDS = {
    "s": [BOX | sign | bits for sign in (0, 1 << 31) for bits in SINGLES],
    "d": [sign | bits for sign in (0, 1 << 63) for bits in DOUBLES],
    "w": [0, 1, 7, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x00FFFFFF, 0x01000001, 0x7FFFFFC0, 0x7FFFFF80, 0xFFFFFF81],
}
"""42 numbers of each format, and integers."""


@cache
def code(row: InstructionDef) -> NativeCode:
    text = floating.float_functions([row]).replace("define internal", "define")
    return COMPILER.load("", lambda: text, f"strict.{row.name}")


def function(row: InstructionDef) -> "ctypes._CFuncPtr":
    address = code(row).address(f"strict.{row.name}")
    u64 = ctypes.c_uint64
    return ctypes.CFUNCTYPE(u64, u64, u64, u64, ctypes.c_uint32, ctypes.c_void_p)(address)


def cases(row: InstructionDef) -> list[tuple[int, ...]]:
    """Operands: all pairs of the 42 numbers, or some of the triples; singles that are not boxed, and random ones."""
    chance = random.Random(row.name)
    kind = row.name.split(".")[-1][:1]
    known = OPERANDS[kind]
    count = 3 if row.format.rs3 else 2 if row.format.rs2 else 1
    found = (
        list(product(known, repeat=count)) if count < 3 else [tuple(chance.choices(known, k=3)) for _ in range(1200)]
    )
    box = {"s": BOX, "d": 0, "w": 0}[kind]
    bits = 64 if kind == "d" else 32
    found += [tuple(box | chance.getrandbits(bits) for _ in range(count)) for _ in range(200)]
    if kind == "s":
        found += [tuple(chance.choice(known) & 0xFFFF_FFFF_7FFF_FFFF for _ in range(count)) for _ in range(20)]
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_results_and_exceptions_are_those_of_the_definition(row: InstructionDef) -> None:
    call, x = function(row), np.zeros(WORDS, np.uint64)
    compute = row.compute
    assert compute is not None
    modes = MODES if row.format.imm is not None else (0,)
    every = cases(row)
    for mode in modes:
        for operands in every if mode == 0 else every[::3]:
            a, b, c = (*operands, 0, 0)[:3]
            x[slots.FFLAGS], x[slots.FS] = 0, 1
            value = call(a, b, c, mode, x.ctypes.data)
            flags = int(x[slots.FFLAGS])
            assert (value, flags) == compute(a, b, c, mode), (row.name, mode, [hex(each) for each in operands])
            assert x[slots.FS] == (3 if flags else 1)


PROGRAM = """
    li x5,0x2000
    csrrs x0,mstatus,x5
    fdiv.s f1,f0,f0,rne
    li x6,0x800003
    fmv.w.x f2,x6
    li x6,0x3f000000
    fmv.w.x f3,x6
    loop:
    fadd.s f4,f1,f2,dyn
    fmul.s f5,f2,f3,rne
    fdiv.s f6,f2,f3,rtz
    flt.s x7,f1,f2
    fcvt.w.s x8,f1,rup
    jal x0,loop
"""


def test_none_of_it_takes_the_slow_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a loop over NaN, subnormal numbers and a static rounding mode, once it is warm."""
    monkeypatch.setattr(engine_choice, "NAME", "fast")
    rig = Rig(PROGRAM, isa="rv32imafd_zicsr")
    rig.engine.run(300_000)
    assert calls(lambda: rig.engine.run(600_000)) < 200
    assert (rig.x[7], rig.x[8], rig.hart.x[slots.FFLAGS]) == (0, 0x7FFFFFFF, 0b10011)


def test_the_rounding_mode_of_the_host_stays() -> None:
    row = next(row for row in ROWS if row.name == "fadd.d")
    x = np.zeros(WORDS, np.uint64)
    one, tiny = 1023 << 52, 1 << 52
    assert function(row)(one, tiny, 0, 3, x.ctypes.data) == one + 1
    assert floating.host_agrees()
