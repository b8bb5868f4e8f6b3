"""The Python form of the programs of devices (`pyv_ext.devices.programs`), made from their text."""

import ast
from collections.abc import Sequence
from functools import cache

from pyv_ext.devices.programs import NOW, PLACE, VALUE, WORD64, Execute


def statements(program: str) -> list[ast.stmt]:
    """The lines of a program."""
    return ast.parse(program).body


@cache
def parsed(program: str, names: tuple[str, ...]) -> Execute:
    """The Python form of any program over the words `names`."""
    tree = _ToPython(names).visit(ast.parse(program))
    if not tree.body or not isinstance(tree.body[-1], ast.Expr):
        tree.body.append(ast.Expr(ast.Constant(0)))
    tree.body[-1] = ast.Return(tree.body[-1].value)
    header = ast.parse(f"def execute(words, {NOW}, {VALUE}, {PLACE}): pass").body[0]
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
