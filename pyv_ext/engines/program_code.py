"""The IR of programs of devices (`pyv_ext.devices.programs`)."""

import ast
from collections.abc import Sequence

from pyv_ext.devices.programs_python import statements
from pyv_native.ir import Ir

_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "udiv",
    ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor", ast.LShift: "shl", ast.RShift: "lshr",
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "ult", ast.LtE: "ule", ast.Gt: "ugt", ast.GtE: "uge",
}  # fmt: skip


class Lowered:
    """Programs over the words of a device in IR, one after the other; words are written by `save`."""

    def __init__(self, ir: Ir, names: Sequence[str], words: str) -> None:
        """`names`: of the words; `words`: the pointer to them."""
        self._ir = ir
        self._numbers = {name: number for number, name in enumerate(names)}
        self._words = words
        self.values: dict[str, str] = {}
        self._changed: dict[str, None] = {}

    def execute(self, program: str, **given: str) -> str:
        """The result of a program with these inputs, an i64."""
        self.values.update(given)
        result = "0"
        for line in statements(program):
            match line:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.values[name] = self._value(value)
                    if name in self._numbers:
                        self._changed[name] = None
                case ast.Expr(value=value):
                    result = self._value(value)
                case _:
                    raise ValueError(f"{ast.unparse(line)!r} is no line of a program: see pyv_ext.devices.programs")
        return result

    def save(self) -> None:
        """Write the words that have changed."""
        for name in self._changed:
            self._ir.store("i64", self.values[name], self._words, 8 * self._numbers[name])

    def _value(self, node: ast.expr) -> str:
        ir = self._ir
        match node:
            case ast.Constant(value=int(number)):
                return str(number if number < 1 << 63 else number - (1 << 64))
            case ast.Name(id=name):
                if name not in self.values:
                    self.values[name] = ir.load("i64", self._words, 8 * self._numbers[name])
                return self.values[name]
            case ast.BinOp(left=left, op=op, right=right):
                one, two = self._value(left), self._value(right)
                return ir.value(f"{_OPERATORS[type(op)]} i64 {one}, {two}")
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                return ir.value(f"xor i64 {self._value(operand)}, -1")
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                one, two = self._value(left), self._value(right)
                flag = ir.value(f"icmp {_COMPARISONS[type(op)]} i64 {one}, {two}")
                return ir.value(f"zext i1 {flag} to i64")
            case ast.IfExp(test=test, body=body, orelse=other):
                flag = ir.value(f"icmp ne i64 {self._value(test)}, 0")
                one, two = self._value(body), self._value(other)
                return ir.value(f"select i1 {flag}, i64 {one}, i64 {two}")
        raise ValueError(f"{ast.unparse(node)!r} has no native form: see pyv_ext.devices.programs")
