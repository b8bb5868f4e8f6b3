"""Mutants: small changes of a module's text, each of which a test should detect.

The operators are those of mutation testing (Offutt et al., "An experimental determination of sufficient mutant
operators", 1996): comparisons, arithmetic, logic, constants, deleted statements. Messages, annotations and decorators
are not mutated.
"""

import ast
from collections.abc import Iterator
from typing import NamedTuple

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr,
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}


class Mutant(NamedTuple):
    """Module with one change."""

    line: int
    function: int
    """First line of the changed function, decorators included; 0 outside functions."""
    text: str
    """Line of the source."""
    before: str
    after: str
    source: str
    """Text of the module with the change."""


def mutants(source: str) -> list[Mutant]:
    """List all mutants of a module in source order."""
    tree = ast.parse(source)
    data = source.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    result = []
    for node, text, function in _changes(tree, 0):
        assert node.end_lineno and node.end_col_offset is not None
        begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        changed = data[:begin] + text.encode() + data[end:]
        before = " ".join(data[begin:end].decode().split())
        whole = data[starts[node.lineno - 1] : starts[node.lineno]].decode().strip()
        result.append(Mutant(node.lineno, function, whole, before, text, changed.decode()))
    return sorted(result, key=lambda mutant: (mutant.line, mutant.before, mutant.after))


def _changes(node: ast.AST, function: int) -> Iterator[tuple[ast.expr | ast.stmt, str, int]]:
    """Yield (syntax tree node, replacement text, first line of its function)."""
    if isinstance(node, ast.FunctionDef):
        function = function or min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    if isinstance(node, ast.expr | ast.stmt):
        for text in _texts(node):
            yield node, text, function
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _unchanged(child) and not _is_unknown_size(node, child):
                yield from _changes(child, function)


def _is_unknown_size(node: ast.AST, child: ast.AST) -> bool:
    """Return whether a part of a node is the -1 of a reshape, for which any negative number is equivalent."""
    is_reshape = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "reshape"
    return is_reshape and isinstance(child, ast.UnaryOp) and isinstance(child.op, ast.USub)


def _unchanged(node: ast.AST) -> bool:
    """Return whether a node is not mutated: errors, messages, imports, docstrings, code for type checkers."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return text or isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom)


def _texts(node: ast.AST) -> Iterator[str]:
    """Yield the replacement texts of a node."""
    match node:
        case ast.Compare(left, [operator, *more], right) if type(operator) in COMPARISONS:
            changed: ast.expr = ast.Compare(left, [COMPARISONS[type(operator)](), *more], right)
            yield f"({ast.unparse(changed)})"
        case ast.BinOp(left, operation, other) if type(operation) in ARITHMETIC and not _is_type(node):
            yield f"({ast.unparse(ast.BinOp(left, ARITHMETIC[type(operation)](), other))})"
        case ast.BoolOp(logic, values):
            opposite = ast.Or() if isinstance(logic, ast.And) else ast.And()
            yield f"({ast.unparse(ast.BoolOp(opposite, values))})"
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield f"({ast.unparse(operand)})"
        case ast.Constant(bool() as value):
            yield str(not value)
        case ast.Constant(int() as value):
            yield str(value + 1)
        case ast.Call(ast.Name(name), arguments, keywords) if name in CALLS and len(arguments) + len(keywords) > 0:
            yield ast.unparse(ast.Call(ast.Name(CALLS[name]), arguments, keywords))
        case ast.Expr(ast.Call()) | ast.AugAssign():
            yield "pass"


def _is_type(node: ast.BinOp) -> bool:
    """Return whether an operation is a type expression such as `int | None`."""
    names = {"int", "str", "bool", "float", "bytes", "None"}
    return isinstance(node.op, ast.BitOr) and any(ast.unparse(part) in names for part in (node.left, node.right))
