"""The native form of every operation of floating point against arithmetic in integers, which defines them.

Where the native form does not leave, its value is that, and nothing is raised but what is set already.
"""

import ctypes
import random
import struct
from collections.abc import Iterator
from itertools import islice

import pytest
from random_floats import encodings

from pyv_ext.engines.fast import floating
from pyv_ext.engines.fast.floating import Floating, FloatOperation
from pyv_ext.isa import Isa, OpClass
from pyv_ext.isa.formats import BOX, F0
from pyv_ext.isa.softfloat import DOUBLE, NX, RNE, RTZ, SINGLE, UF
from pyv_native.compiler import make_compiler
from pyv_native.ir import Ir

ISA = Isa("rv32gc")
COMPILER = make_compiler()
OPERATIONS = [
    one for one in floating.operations(ISA.rows, fused=COMPILER.fused)
    if one.row.op_class is OpClass.FLOAT and not one.strict
]  # fmt: skip
TIMES = 1500


def function(name: str, operation: FloatOperation) -> str:
    """`f(rs1, rs2, rs3, fflags, where the value goes) -> whether it leaves`."""
    ir = Ir()
    ir.block("entry")
    sticky = ir.value("trunc i64 %flags to i1")
    fields = [field for field in ("rs1", "rs2", "rs3") if getattr(operation.row.format, field)]
    operands = [f"%{field}" for field in fields]
    if operation.row.format.rs1 is not None and operation.row.format.rs1.base < F0:
        operands = [ir.value("trunc i64 %rs1 to i32")]
    floats = Floating(ir, lambda: "%flags", fused=COMPILER.fused, sticky=sticky)
    value = floats.value(operation, operands, ("leave", ()))
    kind = "i32" if operation.row.format.rd is not None and operation.row.format.rd.base < F0 else "i64"
    ir.store("i64", "0", "%to")
    ir.store(kind, value, "%to")
    ir.do("ret i64 0")
    ir.block("leave")
    ir.do("ret i64 1")
    return ir.text(f"i64 @{name}(i64 %rs1, i64 %rs2, i64 %rs3, i64 %flags, ptr %to)")


@pytest.fixture(scope="module")
def native():
    texts = [function(f"f{number}", one) for number, one in enumerate(OPERATIONS)]
    names = [f"f{number}" for number in range(len(OPERATIONS))]
    code = COMPILER.load("", lambda: floating.declarations() + "\n".join(texts), *names)
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_uint64] * 4, ctypes.c_void_p)
    return {one: kind(code.address(f"f{number}")) for number, one in enumerate(OPERATIONS)}, code


def registers(chance: random.Random) -> Iterator[int]:
    """Of edges and of plain numbers, some of which are small integers: these give exact results."""
    singles, doubles = encodings(SINGLE, chance), encodings(DOUBLE, chance)
    while True:
        plain = chance.choice([chance.randint(-40, 40) * 0.25, chance.uniform(-1e3, 1e3), chance.uniform(-1, 1)])
        yield BOX | next(singles)
        yield next(doubles)
        yield BOX | struct.unpack("<I", struct.pack("<f", plain))[0]
        yield struct.unpack("<Q", struct.pack("<d", plain))[0]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.row.name + "-rtz" * one.towards_zero)
def test_agrees_with_the_definition(operation: FloatOperation, native) -> None:
    compute, call = operation.row.compute, native[0][operation]
    assert compute is not None
    chance = random.Random(operation.row.name)
    given = registers(chance)
    double = operation.row.name.split(".")[-1] == "d"
    to = ctypes.c_uint64()
    taken = {0: 0, NX: 0, NX | UF: 0}
    for turn in range(TIMES):
        if turn % 2:
            operands = list(islice(given, 4))
        else:
            operands = list(islice((each for each in given if (each >= BOX) != double), 3))
        chance.shuffle(operands)
        if operation.row.format.rs1 is not None and operation.row.format.rs1.base < F0:
            operands[0] = operands[0] >> chance.randrange(32) & 0xFFFF_FFFF
        flags = list(taken)[turn // 2 % 3]
        if call(*operands[:3], flags, ctypes.byref(to)):
            continue
        taken[flags] += 1
        value, raised = compute(*operands[:3], RTZ if operation.towards_zero else RNE)
        assert to.value == value, [hex(each) for each in operands]
        assert not raised & ~flags, [hex(each) for each in operands]
    assert min(taken[NX], taken[NX | UF]) > TIMES // 24, "it leaves for the slow path nearly always"
    assert taken[0] > TIMES // 300, "it leaves for the slow path nearly always while NX is not set"


def test_every_row_of_floating_point_has_a_native_form() -> None:
    rows = {one.row.name for one in floating.operations(ISA.rows, fused=True)}
    assert rows == {row.name for row in ISA.rows if row.floating}


def test_a_host_that_rounds_otherwise_executes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert floating.host_agrees()
    monkeypatch.setattr(floating, "host_agrees", lambda: False)
    assert floating.operations(ISA.rows, fused=True) == ()
