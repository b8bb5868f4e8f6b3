"""Expressions of the instruction table as trees, and the check of users' expressions."""

import ast
from collections.abc import Callable, Sequence

from pyv_ext.isa.expressions import OPERANDS, constants


def parse(expr: str) -> ast.expr:
    """Return the syntax tree of an expression."""
    return ast.parse(expr, mode="eval").body


def is_unsigned(node: ast.expr) -> bool:
    """Check for a value that is known to be 0..2^XLEN-1: an operand, or a masked value."""
    match node:
        case ast.BinOp(op=ast.BitAnd(), right=ast.Constant() | ast.Name(id="M")):
            return True
    return isinstance(node, ast.Name) and node.id in OPERANDS


def is_signed(node: ast.expr) -> bool:
    """Check for a signed view."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("S", "W")


def is_plain_division(node: ast.Call) -> bool:
    """Check for a division whose low bits are those of a division in the width of a register: of two unsigned register
    values, or of two signed views."""
    return all(map(is_unsigned, node.args)) or all(map(is_signed, node.args))


Interval = tuple[int, int]

_COMPARED = (ast.Eq, ast.NotEq, ast.Lt, ast.GtE, ast.Gt)


def check(expr: str, xlen: int, names: Sequence[str]) -> Interval:
    """Return the range of `expr` without overflow. ValueError if `expr` & M may differ between back ends, or is not in
    the dialect. `names`: its operands.

    A value whose low bits alone matter may overflow 2·XLEN bits; an operand of a right shift, division or comparison
    may not.
    """
    try:
        tree = parse(expr)
    except SyntaxError as error:
        raise ValueError(f"is no expression ({error.msg})") from None
    return _Check(xlen, names).narrow(tree)


class _Check:
    """Range analysis of values, for both widths in which back ends compute them."""

    def __init__(self, xlen: int, operands: Sequence[str]) -> None:
        self._xlen = xlen
        self._operands = operands
        self._constants = constants(xlen)
        self._register = 0, (1 << xlen) - 1
        self._wide = -1 << 2 * xlen - 1, (1 << 2 * xlen - 1) - 1

    def narrow(self, node: ast.expr) -> Interval:
        """Return the range of a node of which only the low bits matter."""
        match node:
            case ast.UnaryOp(op=ast.Invert() | ast.USub(), operand=operand):
                low, high = self.narrow(operand)
                return (~high, ~low) if isinstance(node.op, ast.Invert) else (-high, -low)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if isinstance(op, _COMPARED):
                self._check_comparison(left, right)
                return 0, 1
            case ast.IfExp(test=ast.Compare() as test, body=body, orelse=other):
                self.narrow(test)
                first, second = self.narrow(body), self.narrow(other)
                return min(first[0], second[0]), max(first[1], second[1])
        return self._value(node, self.narrow)

    def exact(self, node: ast.expr) -> Interval:
        """Return the range of a node that is computed in twice the width."""
        interval = self._value(node, self.exact)
        return self._require_within(node, interval, self._wide, f"may exceed {2 * self._xlen} bits")

    def _value(self, node: ast.expr, part: Callable[[ast.expr], Interval]) -> Interval:
        match node:
            case ast.Constant(value=int(number)) if not isinstance(number, bool):
                return self._require_within(node, (number, number), self._register, "is no register value")
            case ast.Name(id=name) if name in self._constants:
                return self._constants[name], self._constants[name]
            case ast.Name(id=name) if name in self._operands:
                return self._register
            case ast.BinOp(left=left, op=ast.RShift(), right=count):
                low, high = self.exact(left)
                min_count, highest = self._count(count)
                return min(low >> min_count, low >> highest), max(high >> min_count, high >> highest)
            case ast.BinOp(left=left, op=ast.LShift(), right=count):
                low, high = part(left)
                min_count, highest = self._count(count)
                return min(low << min_count, low << highest), max(high << min_count, high << highest)
            case ast.BinOp(left=left, op=op, right=right):
                return self._operator(node, op, part(left), part(right))
            case ast.Call(func=ast.Name(id="S"), args=[operand], keywords=[]):
                self._is_register(operand)
                return -1 << self._xlen - 1, (1 << self._xlen - 1) - 1
            case ast.Call(func=ast.Name(id="W"), args=[operand], keywords=[]):
                self.narrow(operand)
                return -1 << 31, (1 << 31) - 1
            case ast.Call(func=ast.Name(id="CLZ" | "CTZ" | "CPOP" | "BSWAP" as name), args=[operand], keywords=[]):
                self._is_register(operand)
                return self._register if name == "BSWAP" else (0, self._xlen)
            case ast.Call(func=ast.Name(id="QUOT" | "REM"), args=[left, right], keywords=[]):
                if self._xlen > 32 and (part == self.exact or not is_plain_division(node)):
                    raise ValueError(
                        f"{ast.unparse(node)!r}: divide operands, or S() by S(), and use no more than the low bits"
                    )
                first, second = self.exact(left), self.exact(right)
                highest = max(map(abs, (*first, *second, 1)))
                return -highest, highest
        raise ValueError(f"{ast.unparse(node)!r} is not in the dialect here: see pyv_ext.isa.expressions")

    def _operator(self, node: ast.expr, op: ast.operator, first: Interval, second: Interval) -> Interval:
        match op:
            case ast.Add():
                return first[0] + second[0], first[1] + second[1]
            case ast.Sub():
                return first[0] - second[1], first[1] - second[0]
            case ast.Mult():
                products = [x * y for x in first for y in second]
                return min(products), max(products)
            case ast.BitAnd() if min(first[0], second[0]) >= 0:
                return 0, min(first[1], second[1])
            case ast.BitAnd() if max(first[0], second[0]) >= 0:
                return 0, first[1] if first[0] >= 0 else second[1]
            case ast.BitAnd() | ast.BitOr() | ast.BitXor():
                bits = max(value.bit_length() for value in (*first, *second))
                return (0 if min(first[0], second[0]) >= 0 else -1 << bits), (1 << bits) - 1
        raise ValueError(f"{ast.unparse(node)!r}: no such operator in the dialect: see pyv_ext.isa.expressions")

    def _check_comparison(self, left: ast.expr, right: ast.expr) -> None:
        signed = [isinstance(side, ast.Call) and ast.unparse(side.func) == "S" for side in (left, right)]
        if signed[0] != signed[1]:
            raise ValueError(f"{ast.unparse(left)!r} and {ast.unparse(right)!r}: compare registers, or S() with S()")
        for side in (left, right):
            if signed[0]:
                self.narrow(side)
            else:
                self._is_register(side)

    def _count(self, node: ast.expr) -> Interval:
        return self._require_within(node, self.exact(node), (0, self._xlen - 1), f"shifts by 0..{self._xlen - 1} only")

    def _is_register(self, node: ast.expr) -> None:
        self._require_within(node, self.narrow(node), self._register, "must be a register value: end it with & M")

    @staticmethod
    def _require_within(node: ast.expr, interval: Interval, allowed: Interval, problem: str) -> Interval:
        if not allowed[0] <= interval[0] <= interval[1] <= allowed[1]:
            raise ValueError(f"{ast.unparse(node)!r} {problem}")
        return interval
