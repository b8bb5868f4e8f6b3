"""The meaning of each row against formulations of another kind, and against wrapping 64-bit arithmetic."""

import ast
import math
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from shares import draws

from pyv_ext.isa import EXTENSIONS, Isa, OpClass
from pyv_ext.isa.expression_tree import parse
from pyv_ext.isa.expressions import OPERANDS, constants, evaluator, functions, operands, python_source

ISA = Isa("rv32imac_zicsr_zifencei_zba_zbb_zbc_zbs")
ROWS = [row for row in ISA.rows if row.expr]
SECOND = 1 << 32

EDGES = (0, 1, 2, 31, 32, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF)
registers = st.one_of(st.sampled_from(EDGES), st.integers(0, 0xFFFFFFFF))


def signed(v):
    return int(np.uint32(v).view(np.int32))


def bits(v):
    return format(v, "032b")


def unsigned(v):
    return int(v) % SECOND


def divide(x, y):
    return math.trunc(Fraction(x, y)) if y else None


def rotate(text, n):
    return int(text[n % 32 :] + text[: n % 32], 2)


def with_bit(v, n, bit):
    text = list(bits(v))
    text[31 - n % 32] = bit
    return int("".join(text), 2)


def flip(bit):
    return "1" if bit == "0" else "0"


def per_bit(a, b, rule):
    return int("".join(rule(p, q) for p, q in zip(bits(a), bits(b), strict=True)), 2)


def both(p, q):
    return "1" if p == q == "1" else "0"


def either(p, q):
    return "1" if "1" in (p, q) else "0"


def differ(p, q):
    return "1" if p != q else "0"


def carry_less(a, b):
    """The 63 coefficients of a product of polynomials over GF(2)."""
    return "".join(str(n % 2) for n in np.convolve([int(p) for p in bits(a)], [int(q) for q in bits(b)]))


MEANINGS = {
    "add": lambda a, b: unsigned(a + b),
    "sub": lambda a, b: unsigned(a - b),
    "sll": lambda a, b: int((bits(a) + "0" * (b % 32))[-32:], 2),
    "srl": lambda a, b: a // 2 ** (b % 32),
    "sra": lambda a, b: unsigned(math.floor(Fraction(signed(a), 2 ** (b % 32)))),
    "slt": lambda a, b: int(signed(a) < signed(b)),
    "sltu": lambda a, b: int(a < b),
    "xor": lambda a, b: per_bit(a, b, differ),
    "or": lambda a, b: per_bit(a, b, either),
    "and": lambda a, b: per_bit(a, b, both),
    "mul": lambda a, b: unsigned(signed(a) * signed(b)),
    "mulh": lambda a, b: unsigned(signed(a) * signed(b) // SECOND),
    "mulhsu": lambda a, b: unsigned(signed(a) * b // SECOND),
    "mulhu": lambda a, b: a * b // SECOND,
    "div": lambda a, b: 0xFFFFFFFF if b == 0 else unsigned(divide(signed(a), signed(b))),
    "divu": lambda a, b: 0xFFFFFFFF if b == 0 else divide(a, b),
    "rem": lambda a, b: a if b == 0 else unsigned(int(math.fmod(signed(a), signed(b)))),
    "remu": lambda a, b: a if b == 0 else int(math.fmod(a, b)),
    "sh1add": lambda a, b: unsigned(2 * a + b),
    "sh2add": lambda a, b: unsigned(4 * a + b),
    "sh3add": lambda a, b: unsigned(8 * a + b),
    "andn": lambda a, b: per_bit(a, b, lambda p, q: both(p, flip(q))),
    "orn": lambda a, b: per_bit(a, b, lambda p, q: either(p, flip(q))),
    "xnor": lambda a, b: per_bit(a, b, lambda p, q: flip(differ(p, q))),
    "clz": lambda a, b: (bits(a) + "1").index("1"),
    "ctz": lambda a, b: (bits(a)[::-1] + "1").index("1"),
    "cpop": lambda a, b: bits(a).count("1"),
    "max": lambda a, b: unsigned(max(signed(a), signed(b))),
    "maxu": lambda a, b: max(a, b),
    "min": lambda a, b: unsigned(min(signed(a), signed(b))),
    "minu": lambda a, b: min(a, b),
    "sext.b": lambda a, b: unsigned(np.uint8(a & 0xFF).view(np.int8)),
    "sext.h": lambda a, b: unsigned(np.uint16(a & 0xFFFF).view(np.int16)),
    "zext.h": lambda a, b: a % 65536,
    "rol": lambda a, b: rotate(bits(a), b % 32),
    "ror": lambda a, b: rotate(bits(a), -(b % 32)),
    "orc.b": lambda a, b: int.from_bytes(bytes(255 if byte else 0 for byte in a.to_bytes(4, "big")), "big"),
    "rev8": lambda a, b: int(np.uint32(a).byteswap()),
    "bclr": lambda a, b: with_bit(a, b, "0"),
    "bset": lambda a, b: with_bit(a, b, "1"),
    "binv": lambda a, b: with_bit(a, b, flip(bits(a)[31 - b % 32])),
    "clmul": lambda a, b: int(carry_less(a, b)[-32:], 2),
    "clmulh": lambda a, b: int(carry_less(a, b)[:-32], 2),
    "clmulr": lambda a, b: int(carry_less(a, b)[:-31], 2),
    "bext": lambda a, b: int(bits(a)[31 - b % 32]),
    "lui": lambda a, b: b,
    "beq": lambda a, b: bits(a) == bits(b),
    "bne": lambda a, b: bits(a) != bits(b),
    "blt": lambda a, b: np.uint32(a).view(np.int32) < np.uint32(b).view(np.int32),
    "bge": lambda a, b: np.uint32(a).view(np.int32) >= np.uint32(b).view(np.int32),
    "bltu": lambda a, b: bits(a) < bits(b),
    "bgeu": lambda a, b: bits(a) >= bits(b),
    "jalr": lambda a, b: unsigned(a + b) // 2 * 2,
}
"""By mnemonic; immediate forms mean the same with b the immediate."""

WITH_PC = {"auipc": lambda pc, b: unsigned(pc + b), "jal": lambda pc, b: unsigned(pc + b)}

WITH_OLD = {
    "amoadd.w": MEANINGS["add"],
    "amoswap.w": lambda old, b: b,
    "amoxor.w": MEANINGS["xor"],
    "amoor.w": MEANINGS["or"],
    "amoand.w": MEANINGS["and"],
    "amomin.w": MEANINGS["min"],
    "amomax.w": MEANINGS["max"],
    "amominu.w": MEANINGS["minu"],
    "amomaxu.w": MEANINGS["maxu"],
    "csrrw": lambda old, x: x,
    "csrrs": MEANINGS["or"],
    "csrrc": MEANINGS["andn"],
}


def meaning(name):
    """The reference of a row as a function of (a, b, pc, old)."""
    for order in (".aqrl", ".aq", ".rl"):
        name = name.removesuffix(order)
    if name in WITH_PC:
        return lambda a, b, pc, old: WITH_PC[name](pc, b)
    register_form = {"slti": "slt", "sltiu": "sltu", "rori": "ror"}.get(name, name.removesuffix("i"))
    for key in (name, register_form):
        if key in MEANINGS:
            return lambda a, b, pc, old: MEANINGS[key](a, b)
        if key in WITH_OLD:
            # csrrwi and its like take the immediate, which is b; the others a register
            return lambda a, b, pc, old: WITH_OLD[key](old, a if name in ("csrrw", "csrrs", "csrrc") else b)
    raise KeyError(name)


@pytest.mark.parametrize("row", [row for row in ROWS if row.length == 4], ids=lambda row: row.name)
def test_each_row_means_what_the_manual_says(row):
    ours, reference = evaluator(row.expr, 32), meaning(row.name)

    @settings(max_examples=60, deadline=None, database=None, derandomize=True)
    @given(registers, registers, registers, registers)
    @example(0x80000000, 0xFFFFFFFF, 0, 0)
    @example(0x80000000, 0, 0xFFFFFFFC, 0x80000000)
    @example(0xFFFFFFFF, 0xFFFFFFFF, 0, 0xFFFFFFFF)
    def agree(a, b, pc, old):
        assert ours(a, b, pc, old) == reference(a, b, pc, old)

    agree()


WORDS = [row for row in Isa("rv64im_zbb").rows if row.xlen == 64 and row.expr and re.fullmatch(r"[a-z]+w", row.name)]


@pytest.mark.parametrize("row", WORDS, ids=lambda row: row.name)
def test_a_row_on_words_is_that_of_32_bits_with_its_sign(row):
    ours, reference = evaluator(row.expr, 64), meaning(row.name.removesuffix("w"))

    @settings(max_examples=60, deadline=None, database=None, derandomize=True)
    @given(registers, registers, registers, registers)
    @example(0x80000000, 0xFFFFFFFF, 0, 1)
    @example(0, 0, 1, 1)
    def agree(a, b, upper, other):
        words = ours(upper << 32 | a, other << 32 | b, 0, 0)
        assert words == signed(reference(a, b, 0, 0)) % (1 << 64)

    agree()


@pytest.mark.parametrize("row", [row for row in ISA.rows if row.length == 2], ids=lambda row: row.name)
def test_compressed_rows_are_rows_of_the_base_set(row):
    assert any(
        (row.op_class, row.expr, row.size, row.signed, row.timing)
        == (other.op_class, other.expr, other.size, other.signed, other.timing)
        for other in EXTENSIONS["i"]
    )


# -- the dialect -----------------------------------------------------------------------------------------------


def wrap(value):
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


OPERATIONS = {
    ast.Add: lambda x, y: x + y,
    ast.Sub: lambda x, y: x - y,
    ast.Mult: lambda x, y: x * y,
    ast.BitAnd: lambda x, y: x & y,
    ast.BitOr: lambda x, y: x | y,
    ast.BitXor: lambda x, y: x ^ y,
    ast.LShift: lambda x, y: x << y,
    ast.RShift: lambda x, y: x >> y,
    ast.Eq: lambda x, y: x == y,
    ast.NotEq: lambda x, y: x != y,
    ast.Lt: lambda x, y: x < y,
    ast.LtE: lambda x, y: x <= y,
    ast.Gt: lambda x, y: x > y,
    ast.GtE: lambda x, y: x >= y,
    ast.USub: lambda x: -x,
    ast.Invert: lambda x: ~x,
}


class Wrapping:
    """Evaluates an expression as 64-bit two's complement does, with arithmetic right shifts."""

    def __init__(self, **values):
        self.values = {**constants(32), **values}
        self.functions = functions(32)

    def __call__(self, node):
        match node:
            case ast.Constant(value=int(value)):
                return value
            case ast.Name(id=name):
                return self.values[name]
            case ast.BinOp(left=left, op=operation, right=right):
                amount = self(right)
                if isinstance(operation, ast.LShift | ast.RShift):
                    assert 0 <= amount < 64, "a shift that 64-bit machines do not define"
                return wrap(OPERATIONS[type(operation)](self(left), amount))
            case ast.UnaryOp(op=operation, operand=operand):
                return wrap(OPERATIONS[type(operation)](self(operand)))
            case ast.Compare(left=left, ops=[operation], comparators=[right]):
                return int(OPERATIONS[type(operation)](self(left), self(right)))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self(body) if self(test) else self(orelse)
            case ast.Call(func=ast.Name(id="S"), args=[value]):
                return signed(self(value))
            case ast.Call(func=ast.Name(id="W"), args=[value]):
                return signed(self(value) % SECOND)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return self.functions[name](*map(self, arguments))
        raise AssertionError(f"not in the dialect: {ast.dump(node)}")


@pytest.mark.parametrize("expr", sorted({row.expr for row in ROWS}))
@settings(max_examples=draws(60), deadline=None, database=None, derandomize=True)
@given(st.tuples(registers, registers, registers, registers))
@example((0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF))
@example((0x80000000, 0xFFFFFFFF, 0, 0))
def test_wrapping_64_bit_arithmetic_gives_the_same(expr, values):
    operands = dict(zip(OPERANDS, values, strict=True))
    assert evaluator(expr, 32)(*values) == Wrapping(**operands)(parse(expr))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_values_end_in_a_mask_and_conditions_compare(row):
    if row.op_class is OpClass.BRANCH:
        assert isinstance(parse(row.expr), ast.Compare)
    else:
        value = evaluator(row.expr, 32)(0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
        assert 0 <= value < SECOND and type(value) is int
        tree = parse(row.expr)
        assert isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitAnd)


def test_the_width_is_a_parameter_of_the_table():
    assert evaluator(ISA.by_name["sra"].expr, 64)(1 << 63, 63, 0, 0) == (1 << 64) - 1
    assert evaluator(ISA.by_name["mulhu"].expr, 64)((1 << 64) - 1, (1 << 64) - 1, 0, 0) == (1 << 64) - 2
    assert evaluator(ISA.by_name["orc.b"].expr, 64)(0x0100_0000_0000_8000, 0, 0, 0) == 0xFF00_0000_0000_FF00
    assert evaluator(ISA.by_name["clz"].expr, 64)(1, 0, 0, 0) == 63


def test_operands_and_source_of_an_expression():
    assert operands("(a if S(a) < S(b) else b) & M") == ["a", "a", "b", "b"]
    assert (
        python_source("(S(a) >> b) & M", 32, {"a": "x[1]", "b": "imm"})
        == "((((x[1]) ^ 2147483648) - 2147483648) >> imm) & 4294967295"
    )
