"""The LLVM form of every expression of the table against its Python form."""

import ctypes
from itertools import product

import pytest

from pyv_ext.engines.lowering import ExpressionLowering, declarations
from pyv_ext.isa import Isa, OpClass
from pyv_ext.isa.expressions import evaluator
from pyv_native.compiler import make_compiler
from pyv_native.ir import Ir

ISA = Isa("rv32imac_zicsr_zifencei_zba_zbb_zbc_zbs")
ROWS = [row for row in ISA.rows if row.expr]
EDGES = (0, 1, 2, 15, 31, 32, 33, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x1_0000, 0x55AA_1234, 0x7FFF_FFFF)
OPERANDS = (*EDGES, *(0xFFFF_FFFF - edge for edge in EDGES))
GIVEN = {"a": "%a", "b": "%b", "pc": "%pc", "old": "%old"}


def function(name, row):
    ir = Ir()
    ir.block("entry")
    lower = ExpressionLowering(ir, ISA.xlen)
    if row.kind is OpClass.BRANCH:
        value = ir.value(f"zext i1 {lower.condition(row.expr, GIVEN)} to i32")
    else:
        value = lower.value(row.expr, GIVEN)
    ir.do(f"ret i32 {value}")
    return ir.text(f"i32 @{name}(i32 %a, i32 %b, i32 %pc, i32 %old)")


@pytest.fixture(scope="module")
def native():
    """One module with a function for each expression."""
    expressions = {row.expr: row for row in ROWS}
    texts = [function(f"f{number}", row) for number, row in enumerate(expressions.values())]
    names = [f"f{number}" for number in range(len(expressions))]
    code = make_compiler().load(declarations(ISA.xlen) + "\n".join(texts), *names)
    kind = ctypes.CFUNCTYPE(*[ctypes.c_uint32] * 5)
    functions = {expr: kind(code.address(f"f{number}")) for number, expr in enumerate(expressions)}
    return functions, code


@pytest.mark.parametrize("expr", sorted({row.expr for row in ROWS}), ids=lambda expr: expr[:40])
def test_both_forms_agree(expr, native):
    python, compiled = evaluator(expr, ISA.xlen), native[0][expr]
    for a, b in product(OPERANDS, OPERANDS):
        pc, old = (a ^ b) & ~1, (a + 3 * b) & 0xFFFF_FFFF
        assert compiled(a, b, pc, old) == int(python(a, b, pc, old)), (hex(a), hex(b))


@pytest.mark.parametrize("expr", ["a ** b", "a // b", "S(a) < b", "f(a)"])
def test_what_is_not_in_the_dialect_is_refused(expr):
    ir = Ir()
    ir.block("entry")
    with pytest.raises(ValueError, match=r"keep to the dialect of pyv_ext.isa.expressions"):
        ExpressionLowering(ir, 32).value(expr, GIVEN)
