"""The LLVM back end of the expression dialect (`pyv_ext.isa.expressions`).

A value is computed in the width of a register if its low bits do not depend on higher bits, else in twice that width,
which the dialect guarantees to suffice.
"""

import ast
from collections.abc import Mapping
from functools import cache

from pyv_ext.isa.expression_tree import is_plain_division, is_signed, is_unsigned, parse
from pyv_ext.isa.expressions import OPERANDS, constants
from pyv_native.ir import Ir

_WRAPPING: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
    ast.LShift: "shl",
}
"""Operators whose low result bits depend only on the low bits of their operands."""

_COUNTS = {
    "CLZ": "ctlz.{0}({0} {1}, i1 false)",
    "CTZ": "cttz.{0}({0} {1}, i1 false)",
    "CPOP": "ctpop.{0}({0} {1})",
    "BSWAP": "bswap.{0}({0} {1})",
}
"""Functions of one register that are LLVM intrinsics."""

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.GtE: "ge",
    ast.Gt: "gt",
}


def declarations(xlen: int) -> str:
    """Return declarations of the intrinsics that lowered expressions use."""
    word = f"i{xlen}"
    lines = [f"declare {word} @llvm.{name}.{word}({word}, i1)" for name in ("ctlz", "cttz")]
    lines += [f"declare {word} @llvm.{name}.{word}({word})" for name in ("ctpop", "bswap")]
    lines += [f"declare {word} @llvm.fshr.{word}({word}, {word}, {word})"]
    return "\n".join(lines) + "\n"


class ExpressionLowering:
    """Lowering of expressions to IR of one function. Operands are IR values of a register's width, by name."""

    def __init__(self, ir: Ir, xlen: int) -> None:
        self._ir = ir
        self._word = f"i{xlen}"
        self._wide = f"i{2 * xlen}"
        self._constants = constants(xlen)
        self._mask = (1 << xlen) - 1

    def value(self, expr: str, operands: Mapping[str, str]) -> str:
        """Emit the value of an expression, in the width of a register."""
        return self._narrow(_tree(expr), operands)

    def condition(self, expr: str, operands: Mapping[str, str]) -> str:
        """Emit a comparison, as an i1. ValueError for any other expression."""
        node = _tree(expr)
        if not isinstance(node, ast.Compare):
            raise _unknown(node)
        return self._flag(node, operands)

    def _narrow(self, node: ast.expr, operands: Mapping[str, str]) -> str:
        """Emit the low bits of a node's value."""
        ir, word = self._ir, self._word
        match node:
            case ast.Constant(value=int(number)):
                return str(_signed(number, self._mask))
            case ast.Name(id=name):
                return operands[name] if name in OPERANDS else str(_signed(self._constants[name], self._mask))
            case ast.BinOp(left=left, op=ast.BitAnd(), right=ast.Name(id="M")):
                return self._narrow(left, operands)
            case ast.BinOp(left=left, op=ast.RShift(), right=count) if is_unsigned(left):
                return ir.value(f"lshr {word} {self._narrow(left, operands)}, {self._narrow(count, operands)}")
            case ast.BinOp(left=left, op=ast.RShift(), right=count) if is_signed(left):
                return ir.value(f"ashr {word} {self._narrow(left, operands)}, {self._narrow(count, operands)}")
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _WRAPPING:
                low, high = self._narrow(left, operands), self._narrow(right, operands)
                return ir.value(f"{_WRAPPING[type(op)]} {word} {low}, {high}")
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                return ir.value(f"xor {word} {self._narrow(operand, operands)}, -1")
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return ir.value(f"sub {word} 0, {self._narrow(operand, operands)}")
            case ast.Compare():
                return ir.value(f"zext i1 {self._flag(node, operands)} to {word}")
            case ast.IfExp(test=ast.Compare() as test, body=body, orelse=other):
                then, otherwise = self._narrow(body, operands), self._narrow(other, operands)
                return ir.value(f"select i1 {self._flag(test, operands)}, {word} {then}, {word} {otherwise}")
            case ast.Call(func=ast.Name(id="S"), args=[operand]):
                return self._narrow(operand, operands)
            case ast.Call(func=ast.Name(id="W"), args=[operand]):
                value = self._narrow(operand, operands)
                return (
                    value
                    if word == "i32"
                    else ir.value(f"sext i32 {ir.value(f'trunc {word} {value} to i32')} to {word}")
                )
            case ast.Call(func=ast.Name(id="QUOT" | "REM" as name), args=[left, right]) if is_plain_division(node):
                sides = self._narrow(left, operands), self._narrow(right, operands)
                return self._division(name, word, *sides, signed=is_signed(left))
            case ast.Call(func=ast.Name(id=name), args=[operand]) if name in _COUNTS:
                return ir.value(f"call {word} @llvm." + _COUNTS[name].format(word, self._narrow(operand, operands)))
        return ir.value(f"trunc {self._wide} {self._exact(node, operands)} to {word}")

    def _exact(self, node: ast.expr, operands: Mapping[str, str]) -> str:
        """Emit a node's value in twice the width of a register."""
        ir, wide = self._ir, self._wide
        match node:
            case ast.Constant(value=int(number)):
                return str(number)
            case ast.Name(id=name) if name in self._constants:
                return str(self._constants[name])
            case ast.Name(id=name):
                return ir.value(f"zext {self._word} {operands[name]} to {wide}")
            case ast.BinOp(left=left, op=ast.RShift(), right=count):
                return ir.value(f"ashr {wide} {self._exact(left, operands)}, {self._exact(count, operands)}")
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _WRAPPING:
                return ir.value(
                    f"{_WRAPPING[type(op)]} {wide} {self._exact(left, operands)}, {self._exact(right, operands)}"
                )
            case ast.Call(func=ast.Name(id=name)) if name in _COUNTS:
                return ir.value(f"zext {self._word} {self._narrow(node, operands)} to {wide}")
            case ast.Call(func=ast.Name(id="S" | "W")):
                return ir.value(f"sext {self._word} {self._narrow(node, operands)} to {wide}")
            case ast.Call(func=ast.Name(id="QUOT" | "REM" as name), args=[left, right]):
                return self._division(
                    name, wide, self._exact(left, operands), self._exact(right, operands), signed=True
                )
        raise _unknown(node)

    def _division(self, name: str, word: str, left: str, right: str, *, signed: bool) -> str:
        """Emit a division in the type `word`, in which the host divides by 1 instead of 0 and -1."""
        ir, sign = self._ir, "s" if signed else "u"
        zero = ir.value(f"icmp eq {word} {right}, 0")
        negative = ir.value(f"icmp eq {word} {right}, -1") if signed else "false"
        special = ir.value(f"or i1 {zero}, {negative}") if signed else zero
        divisor = ir.value(f"select i1 {special}, {word} 1, {word} {right}")
        if name == "REM":
            result, by_zero = ir.value(f"{sign}rem {word} {left}, {divisor}"), left
        else:
            result, by_zero = ir.value(f"{sign}div {word} {left}, {divisor}"), "-1"
            if signed:
                result = ir.value(f"select i1 {negative}, {word} {ir.value(f'sub {word} 0, {left}')}, {word} {result}")
        return ir.value(f"select i1 {zero}, {word} {by_zero}, {word} {result}")

    def _flag(self, node: ast.Compare, operands: Mapping[str, str]) -> str:
        """Emit a comparison of two registers, or of two signed views of registers, as an i1."""
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                sign = "s" if is_signed(left) else "u"
                if type(op) in _COMPARISONS and is_signed(right) == is_signed(left):
                    name = _COMPARISONS[type(op)]
                    predicate = name if name in ("eq", "ne") else sign + name
                    sides = f"{self._narrow(left, operands)}, {self._narrow(right, operands)}"
                    return self._ir.value(f"icmp {predicate} {self._word} {sides}")
        raise _unknown(node)


@cache
def _tree(expr: str) -> ast.expr:
    return parse(expr)


def _signed(value: int, mask: int) -> int:
    """Return a constant as LLVM prints it: all ones are -1."""
    return value - mask - 1 if value > mask >> 1 else value


def _unknown(node: ast.expr) -> ValueError:
    return ValueError(f"no LLVM form for {ast.unparse(node)!r}: keep to the dialect of pyv_ext.isa.expressions")
