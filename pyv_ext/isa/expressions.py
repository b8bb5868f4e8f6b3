"""The dialect in which the instruction table states meanings, and its Python back end.

An expression is built from operands, constants, integer operators (+ - * & | ^ ~ << >>), comparisons (1 or 0),
`x if c else y` and the functions below. Every operand is an integer 0..2^XLEN-1. A value ends in `& M`. Rows keep to
forms whose low XLEN bits, after that mask, do not depend on the width of the machine that evaluates them, as long as
it has 2·XLEN bits or more: so unbounded Python integers and wrapping 64-bit integers agree to the bit for XLEN = 32.

Operands: `a` register rs1, `b` register rs2 or else the immediate, `pc`, `old` the previous value of memory or CSR.
Constants: `M` = 2^XLEN - 1, `XLEN`, `SHIFT` = XLEN - 1, `BYTES` = 0x01 in every byte.
Functions: `S(v)` the signed view of a register value; `QUOT(x, y)` x / y rounded towards zero, -1 when y = 0;
`REM(x, y)` = x - y·QUOT(x, y), x when y = 0; of register values, `CLZ` leading zeros, `CTZ` trailing zeros
(XLEN of zero), `CPOP` ones, `BSWAP` the bytes reversed.
"""

import ast
from collections.abc import Callable
from functools import cache

OPERANDS = ("a", "b", "pc", "old")


def constants(xlen: int) -> dict[str, int]:
    """The named constants for a register width."""
    mask = (1 << xlen) - 1
    return {"M": mask, "XLEN": xlen, "SHIFT": xlen - 1, "BYTES": mask // 255}


def functions(xlen: int) -> dict[str, Callable[..., int]]:
    """The Python form of each function but S, which is written out in place."""
    size = xlen // 8

    def quot(x: int, y: int) -> int:
        if y == 0:
            return -1
        return -(abs(x) // abs(y)) if (x < 0) != (y < 0) else abs(x) // abs(y)

    return {
        "QUOT": quot,
        "REM": lambda x, y: x - y * quot(x, y) if y else x,
        "CLZ": lambda v: xlen - v.bit_length(),
        "CTZ": lambda v: (v & -v).bit_length() - 1 if v else xlen,
        "CPOP": int.bit_count,
        "BSWAP": lambda v: int.from_bytes(v.to_bytes(size, "little"), "big"),
    }


def parse(expr: str) -> ast.expr:
    """The syntax tree of an expression."""
    return ast.parse(expr, mode="eval").body


def operands(expr: str) -> list[str]:
    """The operands that an expression mentions, once for each mention, in order."""
    found = [node for node in ast.walk(parse(expr)) if isinstance(node, ast.Name) and node.id in OPERANDS]
    return [node.id for node in sorted(found, key=lambda node: node.col_offset)]


class _ToPython(ast.NodeTransformer):
    def __init__(self, xlen: int, names: dict[str, str]) -> None:
        self.sign = 1 << xlen - 1
        self.constants = constants(xlen)
        self.names = {name: parse(text) for name, text in names.items()}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.constants:
            return ast.Constant(self.constants[node.id])
        return self.names.get(node.id, node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if not (isinstance(node.func, ast.Name) and node.func.id == "S"):
            return node
        flipped = ast.BinOp(node.args[0], ast.BitXor(), ast.Constant(self.sign))
        return ast.BinOp(flipped, ast.Sub(), ast.Constant(self.sign))


def python_source(expr: str, xlen: int, names: dict[str, str]) -> str:
    """Python for an expression, each operand in `names` replaced by the given Python text.

    Functions other than S are called by their names.
    """
    return ast.unparse(_ToPython(xlen, names).visit(parse(expr)))


@cache
def evaluator(expr: str, xlen: int) -> Callable[[int, int, int, int], int]:
    """A function of (a, b, pc, old) that computes an expression."""
    source = f"lambda {', '.join(OPERANDS)}: {python_source(expr, xlen, {})}"
    result: Callable[[int, int, int, int], int] = eval(source, functions(xlen))
    return result
