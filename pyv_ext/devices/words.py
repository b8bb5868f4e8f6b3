"""Devices whose state is 64-bit words and whose registers are short programs over them: one text for Python, which
executes it as written here, and for native code.

A program is lines `name = expression`, and maybe a last line that is its result. Names are the words of the device,
inputs, or values of lines before. Expressions have integers, + - * // & | ^ ~ << >>, comparisons (1 or 0), and
`x if c else y`, of which both sides are computed. All values are 0..2^64-1 and wrap around; nothing is divided by 0.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

WORD64 = (1 << 64) - 1
NOW, VALUE = "now", "value"
"""Inputs of a program: a cycle, and what is stored."""

Execute = Callable[["memoryview[int]", int, int], int]
"""`execute(words, now, value) -> result`, 0 where the program has none."""


class NativeForm(NamedTuple):
    """What native code needs of a device to serve its registers of 4 bytes."""

    names: Sequence[str]
    """Of the words."""
    loads: Mapping[int, str]
    """Offset -> what is read in cycle `now`. No load changes a word."""
    stores: Mapping[int, str]
    """Offset -> what a store of `value` does that is seen from the start of cycle `now` on."""
    settle: str
    """After a store, or when `due` has come: what follows from the words at the start of cycle `now`."""
    due: str
    """The word that is the cycle of the next event."""
    lines: str
    """The bits of mip that the device drives."""
    mask: int
    """Which these are."""
    quiet: frozenset[int]
    """Offsets of loads after which nothing is told to the clock: registers that are stable."""


def new_words(names: Sequence[str]) -> "memoryview[int]":
    """The words of a device, all 0; their buffer stays where it is."""
    return memoryview(bytearray(8 * len(names))).cast("Q")


def statements(program: str) -> list[ast.stmt]:
    """The lines of a program."""
    return ast.parse(program).body


def compiled(program: str, names: Sequence[str]) -> Execute:
    """The Python form of a program over the words `names`."""
    tree = _ToPython(names).visit(ast.parse(program))
    if not tree.body or not isinstance(tree.body[-1], ast.Expr):
        tree.body.append(ast.Expr(ast.Constant(0)))
    tree.body[-1] = ast.Return(tree.body[-1].value)
    header = ast.parse(f"def execute(words, {NOW}, {VALUE}): pass").body[0]
    assert isinstance(header, ast.FunctionDef)
    header.body = tree.body
    scope: dict[str, Execute] = {}
    exec(compile(ast.fix_missing_locations(ast.Module([header], [])), "<program of a device>", "exec"), scope)
    return scope["execute"]


class _ToPython(ast.NodeTransformer):
    def __init__(self, names: Sequence[str]) -> None:
        self._numbers = {name: number for number, name in enumerate(names)}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        number = self._numbers.get(node.id)
        if number is None:
            return node
        return ast.Subscript(ast.Name("words", ast.Load()), ast.Constant(number), node.ctx)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        wraps = isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.LShift)
        return ast.BinOp(node, ast.BitAnd(), ast.Constant(WORD64)) if wraps else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return ast.BinOp(node.operand, ast.BitXor(), ast.Constant(WORD64))
