"""The native subset (see `native`) to LLVM IR: one function. Locals are values that blocks hand on to others."""

import ast
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from npu_device.abi.errors import NpuDeviceError
from pyv_jit.ir import Ir

WORD = "i64"
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Lt: "slt", ast.LtE: "sle", ast.Gt: "sgt", ast.GtE: "sge", ast.Eq: "eq", ast.NotEq: "ne",
}  # fmt: skip
_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "sdiv", ast.Mod: "srem",
    ast.LShift: "shl", ast.RShift: "ashr", ast.BitAnd: "and", ast.BitOr: "or",
}  # fmt: skip


class Function(NamedTuple):
    """A function of a module: its source, what it may name, and of each parameter whether it is an array."""

    module: str
    node: ast.FunctionDef
    constants: Mapping[str, int]
    arrays: tuple[bool, ...]


class Lowering:
    """Makes the IR of one function, which may call the others."""

    def __init__(self, function: Function, functions: Mapping[str, Function]) -> None:
        self._function = function
        self._functions = functions
        self._constants = function.constants
        self._ir = Ir()
        self._ended = False
        """Whether the current block has come to its end."""
        names = [argument.arg for argument in function.node.args.args]
        self._arrays = {name for name, array in zip(names, function.arrays, strict=True) if array}
        self._locals = dict.fromkeys(_assigned(function.node.body), "0")
        """Name -> its value at this place; 0 before the first."""
        self._locals |= {name: f"%{name}" for name in names if name not in self._arrays}
        self._parameters = ", ".join(f"{'ptr noalias' if name in self._arrays else WORD} %{name}" for name in names)
        self.called: dict[str, None] = {}
        """The functions that it calls; those left out that are ruled out by what is known."""

    def text(self, *, public: bool) -> str:
        """The definition. NpuDeviceError, with module and line, where the source leaves the subset."""
        node = self._function.node
        self._ir.block("entry")
        self._body(node.body)
        if not self._ended:
            self._return("0")
        return self._ir.text(f"{'' if public else 'internal '}{WORD} @{node.name}({self._parameters})")

    def _fail(self, node: ast.AST) -> NpuDeviceError:
        line, text = getattr(node, "lineno", 0), ast.unparse(node)
        return NpuDeviceError(
            f"{self._function.module}, line {line}: {text!r} is outside the native subset: rewrite it"
        )

    # -- statements --------------------------------------------------------------------------------------------

    def _body(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            if self._ended:
                return
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Expr):
            if not isinstance(node.value, ast.Constant):  # a docstring
                self._value(node.value)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            self._assign(node.targets[0], self._value(node.value))
        elif isinstance(node, ast.AugAssign):
            target = node.target
            self._assign(target, self._operate(node, node.op, self._load(target), self._value(node.value)))
        elif isinstance(node, ast.Return):
            self._return("0" if node.value is None else self._value(node.value))
        elif isinstance(node, ast.If):
            self._if(node)
        elif isinstance(node, ast.While) and not node.orelse:
            self._while(node)
        else:
            raise self._fail(node)

    def _return(self, value: str) -> None:
        self._ir.do(f"ret {WORD} {value}")
        self._ended = True

    def _assign(self, target: ast.expr, value: str) -> None:
        if isinstance(target, ast.Name):
            self._locals[target.id] = value
        elif isinstance(target, ast.Subscript):
            self._ir.store(WORD, value, self._element(target))
        else:
            raise self._fail(target)

    def _begin(self, label: str) -> None:
        self._ir.block(label)
        self._ended = False

    def _join(self, label: str, names: list[str]) -> None:
        """Begin a block that is given the values of these locals."""
        self._locals |= zip(names, self._ir.block(label, *[WORD] * len(names)), strict=True)
        self._ended = False

    def _goto(self, label: str, names: list[str]) -> None:
        """End the block, unless it has ended already."""
        if not self._ended:
            self._ir.goto(label, [self._locals[name] for name in names])
        self._ended = True

    def _if(self, node: ast.If) -> None:
        known = self._known(node.test)
        if known is not None:
            self._body(node.body if known else node.orelse)
            return
        then, other, after = (self._ir.fresh() for _ in range(3))
        names = _assigned([*node.body, *node.orelse])
        self._branch(node.test, then, other)
        before, reached = dict(self._locals), False
        for label, body in ((then, node.body), (other, node.orelse)):
            self._begin(label)
            self._locals = dict(before)
            self._body(body)
            reached = reached or not self._ended
            self._goto(after, names)
        if reached:
            self._join(after, names)

    def _while(self, node: ast.While) -> None:
        head, body, after = (self._ir.fresh() for _ in range(3))
        names = _assigned(node.body)
        self._goto(head, names)
        self._join(head, names)
        self._branch(node.test, body, after)
        before = dict(self._locals)
        self._begin(body)
        self._body(node.body)
        self._goto(head, names)
        self._begin(after)
        self._locals = before

    # -- conditions --------------------------------------------------------------------------------------------

    def _known(self, test: ast.expr) -> bool | None:
        """Whether a condition holds, where that is known."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            known = self._known(test.operand)
            return None if known is None else not known
        if isinstance(test, ast.BoolOp):
            decides = isinstance(test.op, ast.Or)
            for operand in test.values:
                known = self._known(operand)
                if known is None or known is decides:
                    return known
            return not decides
        value = self._constant(test)
        return None if value is None else bool(value)

    def _branch(self, test: ast.expr, yes: str, no: str) -> None:
        """End the block in one of two others, looking at no more of the condition than Python does."""
        known = self._known(test)
        if known is not None:
            self._ir.goto(yes if known else no)
        elif isinstance(test, ast.BoolOp):
            for operand in test.values[:-1]:
                more = self._ir.fresh()
                self._branch(operand, *((more, no) if isinstance(test.op, ast.And) else (yes, more)))
                self._ir.block(more)
            self._branch(test.values[-1], yes, no)
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self._branch(test.operand, no, yes)
        else:
            self._ir.branch(self._flag(test), (yes, ()), (no, ()))
        self._ended = True

    def _flag(self, test: ast.expr) -> str:
        """A condition of one part, as an i1."""
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in _COMPARE:
            left, right = self._value(test.left), self._value(test.comparators[0])
            return self._ir.value(f"icmp {_COMPARE[type(test.ops[0])]} {WORD} {left}, {right}")
        return self._ir.value(f"icmp ne {WORD} {self._value(test)}, 0")

    # -- expressions -------------------------------------------------------------------------------------------

    def _value(self, node: ast.expr) -> str:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return str(int(node.value))
        if isinstance(node, ast.Name | ast.Subscript | ast.Attribute):
            return self._load(node)
        if isinstance(node, ast.BinOp):
            return self._operate(node, node.op, self._value(node.left), self._value(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self._ir.value(f"sub {WORD} 0, {self._value(node.operand)}")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            return self._call(node, node.func.id)
        if isinstance(node, ast.IfExp):
            return self._choose(node.test, node.body, node.orelse)
        if isinstance(node, ast.Compare):
            return self._ir.value(f"zext i1 {self._flag(node)} to {WORD}")
        if isinstance(node, ast.BoolOp) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
            return self._choose(node, ast.Constant(1), ast.Constant(0))
        raise self._fail(node)

    def _choose(self, test: ast.expr, one: ast.expr, other: ast.expr) -> str:
        known = self._known(test)
        if known is not None:
            return self._value(one if known else other)
        yes, no, after = (self._ir.fresh() for _ in range(3))
        self._branch(test, yes, no)
        for label, node in ((yes, one), (no, other)):
            self._ir.block(label)
            self._ir.goto(after, [self._value(node)])
        self._ended = False
        (chosen,) = self._ir.block(after, WORD)
        return chosen

    def _call(self, node: ast.Call, name: str) -> str:
        if name in ("min", "max") and len(node.args) == 2:
            left, right = (self._value(argument) for argument in node.args)
            first = self._ir.value(f"icmp {'sle' if name == 'min' else 'sge'} {WORD} {left}, {right}")
            return self._ir.value(f"select i1 {first}, {WORD} {left}, {WORD} {right}")
        function = self._functions.get(name)
        if function is None or len(function.arrays) != len(node.args):
            raise self._fail(node)
        self.called[name] = None
        given = []
        for argument, array in zip(node.args, function.arrays, strict=True):
            if array:
                if not isinstance(argument, ast.Name) or argument.id not in self._arrays:
                    raise self._fail(node)
                given.append(f"ptr %{argument.id}")
            else:
                given.append(f"{WORD} {self._value(argument)}")
        return self._ir.value(f"call {WORD} @{name}({', '.join(given)})")

    def _operate(self, node: ast.AST, op: ast.operator, left: str, right: str) -> str:
        if type(op) not in _BINARY:
            raise self._fail(node)
        return self._ir.value(f"{_BINARY[type(op)]} {WORD} {left}, {right}")

    def _constant(self, node: ast.expr) -> int | None:
        """The value of an expression that always has the same."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, int) else None
        if isinstance(node, ast.Name):
            return None if node.id in self._locals else self._constants.get(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return self._constants.get(f"{node.value.id}.{node.attr}")
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Attribute):
            return self._constants.get(ast.unparse(node))
        return None

    def _load(self, node: ast.expr) -> str:
        constant = self._constant(node)
        if constant is not None:
            return str(int(constant))
        if isinstance(node, ast.Subscript):
            return self._ir.load(WORD, self._element(node))
        if isinstance(node, ast.Name) and node.id in self._locals:
            return self._locals[node.id]
        raise self._fail(node)

    def _element(self, node: ast.Subscript) -> str:
        if not isinstance(node.value, ast.Name) or node.value.id not in self._arrays:
            raise self._fail(node)
        return self._ir.value(f"getelementptr {WORD}, ptr %{node.value.id}, {WORD} {self._value(node.slice)}")


def _assigned(body: Iterable[ast.stmt]) -> list[str]:
    """The names that statements assign to, in order."""
    names = (
        node.id
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    return list(dict.fromkeys(names))
