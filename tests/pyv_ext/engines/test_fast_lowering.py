"""The LLVM form of every expression of the table against its Python form."""

import ctypes
from functools import cache
from itertools import product

import pytest

from pyv_ext.engines.lowering import ExpressionLowering, declarations
from pyv_ext.isa import Isa, OpClass
from pyv_ext.isa.expressions import evaluator
from pyv_native.compiler import make_compiler
from pyv_native.ir import Ir

ISAS = {xlen: Isa(f"rv{xlen}imac_zicsr_zifencei_zba_zbb_zbc_zbs") for xlen in (32, 64)}
ROWS = {(xlen, row.expr): row for xlen, isa in ISAS.items() for row in isa.rows if row.expr}
EDGES = (0, 1, 2, 15, 31, 32, 33, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x1_0000, 0x55AA_1234, 0x7FFF_FFFF)
WIDE_EDGES = (*EDGES[:8], 63, 0x8000_0000, 0xFFFF_FFFF, 1 << 32, 0x55AA_1234_8765_4321, (1 << 63) - 1)
GIVEN = {"a": "%a", "b": "%b", "pc": "%pc", "old": "%old"}


def operands(xlen):
    edges = EDGES if xlen == 32 else WIDE_EDGES
    return (*edges, *((1 << xlen) - 1 - edge for edge in edges))


def function(name, xlen, row):
    ir, word = Ir(), f"i{xlen}"
    ir.block("entry")
    lower = ExpressionLowering(ir, xlen)
    if row.op_class is OpClass.BRANCH:
        value = ir.value(f"zext i1 {lower.condition(row.expr, GIVEN)} to {word}")
    else:
        value = lower.value(row.expr, GIVEN)
    ir.do(f"ret {word} {value}")
    return ir.text(f"{word} @{name}({word} %a, {word} %b, {word} %pc, {word} %old)")


@cache
def native(xlen):
    """One module with a function for each expression."""
    rows = {expr: row for (width, expr), row in ROWS.items() if width == xlen}
    texts = [function(f"f{number}", xlen, row) for number, row in enumerate(rows.values())]
    names = [f"f{number}" for number in range(len(rows))]
    code = make_compiler().load("", lambda: declarations(xlen) + "\n".join(texts), *names)
    kind = ctypes.CFUNCTYPE(*[ctypes.c_uint32 if xlen == 32 else ctypes.c_uint64] * 5)
    functions = {expr: kind(code.address(f"f{number}")) for number, expr in enumerate(rows)}
    return functions, code


@pytest.mark.parametrize(("xlen", "expr"), sorted(ROWS), ids=lambda part: str(part)[:40])
def test_both_forms_agree(xlen, expr):
    python, compiled = evaluator(expr, xlen), native(xlen)[0][expr]
    for a, b in product(operands(xlen), operands(xlen)):
        pc, old = (a ^ b) & ~1, (a + 3 * b) & (1 << xlen) - 1
        assert compiled(a, b, pc, old) == int(python(a, b, pc, old)), (hex(a), hex(b))


@pytest.mark.parametrize("expr", ["a ** b", "a // b", "S(a) < b", "f(a)"])
def test_what_is_not_in_the_dialect_is_refused(expr):
    ir = Ir()
    ir.block("entry")
    with pytest.raises(ValueError, match=r"keep to the dialect of pyv_ext.isa.expressions"):
        ExpressionLowering(ir, 32).value(expr, GIVEN)
