"""Expression dialect of the instruction table, and its Python back end.

An expression is built from operands, constants, integer operators (+ - * & | ^ ~ << >>), comparisons (1 or 0),
`x if c else y` and the functions below. Every operand is an integer 0..2^XLEN-1. A value ends in `& M`. Rows use
only forms whose low XLEN bits, after that mask, do not depend on the width in which they are evaluated, if it is
2·XLEN bits or more: unbounded Python integers and wrapping integers of 2·XLEN bits have the same result.

Operands: `a` register rs1, `b` register rs2 or else the immediate, `pc`, `old` the previous value of memory or CSR.
Constants: `M` = 2^XLEN - 1, `XLEN`, `SHIFT` = XLEN - 1, `BYTES` = 0x01 in every byte.
Functions: `S(v)` the signed view of a register value; `W(v)` the low 32 bits of a value, with their sign; `QUOT(x, y)`
x / y rounded towards zero, -1 when y = 0;
`REM(x, y)` = x - y·QUOT(x, y), x when y = 0; of register values, `CLZ` leading zeros, `CTZ` trailing zeros
(XLEN of zero), `CPOP` ones, `BSWAP` the bytes reversed.
"""

from collections.abc import Callable, Mapping
from functools import cache

OPERANDS = ("a", "b", "pc", "old")
_WORD, _SIGN = 0xFFFF_FFFF, 0x8000_0000
"""Mask and sign of a word."""


def constants(xlen: int) -> dict[str, int]:
    """Return the named constants for a register width."""
    mask = (1 << xlen) - 1
    return {"M": mask, "XLEN": xlen, "SHIFT": xlen - 1, "BYTES": mask // 255}


def functions(xlen: int) -> dict[str, Callable[..., int]]:
    """Return the Python form of each function except S and W, which `python_source` expands inline."""
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


def _parts(expr: str) -> list[str]:
    """Split an expression into text between words, and words, alternately."""
    parts, in_word = [""], False
    for letter in expr:
        if (letter.isalnum() or letter == "_") is not in_word:
            parts.append("")
            in_word = not in_word
        parts[-1] += letter
    return parts


def operands(expr: str) -> list[str]:
    """Return the operands that an expression mentions, once for each mention, in order."""
    return [word for word in _parts(expr)[1::2] if word in OPERANDS]


def python_source(expr: str, xlen: int, names: Mapping[str, str]) -> str:
    """Return Python for an expression, each operand in `names` replaced by its Python text, a name or a subscript.

    Functions other than S and W are called by their names.
    """
    replacements = {**constants(xlen), **names}
    views = {"S": f") ^ {1 << xlen - 1}) - {1 << xlen - 1})", "W": f") & {_WORD} ^ {_SIGN}) - {_SIGN})"}
    output, opened, view = [], [], ""
    for index, part in enumerate(_parts(expr)):
        if part in views:
            view = views[part]
        elif index % 2:
            output.append(str(replacements.get(part, part)))
        else:
            for letter in part:
                if letter == "(":
                    opened.append(view)
                    output.append("(((" if view else "(")
                    view = ""
                elif letter == ")":
                    output.append(opened.pop() or ")")
                else:
                    output.append(letter)
    return "".join(output)


@cache
def evaluator(expr: str, xlen: int) -> Callable[[int, int, int, int], int]:
    """Compile an expression to a function of (a, b, pc, old)."""
    source = f"lambda {', '.join(OPERANDS)}: {python_source(expr, xlen, {})}"
    result: Callable[[int, int, int, int], int] = eval(source, functions(xlen))
    return result
