"""The native subset to LLVM IR: one function. Locals are values that blocks hand on to others.

A record is the index of its first word, a list that of its length; both count from `%base`.
"""

import ast
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from npu_device.abi.errors import NpuDeviceError
from npu_device.native.records import Inner, ListOf, Shape, Word, layout
from pyv_jit.ir import Ir

WORD = "i64"
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Lt: "slt", ast.LtE: "sle", ast.Gt: "sgt", ast.GtE: "sge", ast.Eq: "eq", ast.NotEq: "ne",
    ast.Is: "eq", ast.IsNot: "ne",
}  # fmt: skip
_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "sdiv", ast.Mod: "srem",
    ast.LShift: "shl", ast.RShift: "ashr", ast.BitAnd: "and", ast.BitOr: "or",
}  # fmt: skip


class Function(NamedTuple):
    """A function of a module: its source, what it may name, and the shapes of its parameters and its result."""

    module: str
    node: ast.FunctionDef
    constants: Mapping[str, int]
    known: Mapping[str, int]
    """Fields, as Record.field, that always have a value."""
    root: type | None
    """The record that stands at `%base`; it is not passed."""
    parameters: Mapping[str, Shape]
    result: Shape

    def passed(self) -> list[str]:
        """The parameters without the root record."""
        return [name for name, shape in self.parameters.items() if shape != Word(self.root or object)]


class Loop(NamedTuple):
    """Labels of a loop's blocks."""

    head: str
    """Here the test is; `continue` goes here."""
    body: str
    done: str
    """Where the test goes that fails."""
    after: str
    """`break` goes here."""
    names: list[str]
    """The locals that its blocks hand on."""
    locals: dict[str, str]
    """At the head."""


class Lowering:
    """Makes the IR of one function, which may call the others."""

    def __init__(self, function: Function, functions: Mapping[str, Function]) -> None:
        self._function = function
        self._functions = functions
        self._ir = Ir()
        self._ended = False
        """Whether the current block has come to its end."""
        self._loops: list[Loop] = []
        self._shapes = dict(function.parameters)
        """Of locals that have been assigned."""
        self._locals = dict.fromkeys([*_assigned(function.node.body), *function.parameters], "0")
        """Name -> its value at this place; 0 before the first."""
        self._locals |= {name: f"%arg.{name}" for name in function.passed()}
        self.called: dict[str, None] = {}
        """The functions that it calls; those left out that are ruled out by what is known."""

    def text(self, *, public: bool) -> str:
        """The definition. NpuDeviceError, with module and line, where the source leaves the subset."""
        node = self._function.node
        self._ir.block("entry")
        self._body(node.body)
        if not self._ended:
            self._return("0")
        parameters = ", ".join(["ptr %base", *(f"{WORD} %arg.{name}" for name in self._function.passed())])
        return self._ir.text(f"{'' if public else 'internal '}{WORD} @{node.name}({parameters})")

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
            self._assign(node.targets[0], self._value(node.value), self._shape(node.value))
        elif isinstance(node, ast.AugAssign):
            target = node.target
            self._assign(target, self._operate(node, node.op, self._value(target), self._value(node.value)), Word())
        elif isinstance(node, ast.Return):
            self._return("0" if node.value is None else self._value(node.value))
        elif isinstance(node, ast.If):
            self._if(node)
        elif isinstance(node, ast.While) and not node.orelse:
            self._while(node)
        elif isinstance(node, ast.For) and not node.orelse and isinstance(node.target, ast.Name):
            self._for(node, node.target.id)
        elif isinstance(node, ast.Continue | ast.Break):  # Python has them in loops only
            loop = self._loops[-1]
            self._goto(loop.head if isinstance(node, ast.Continue) else loop.after, loop.names)
        elif isinstance(node, ast.Delete) and len(node.targets) == 1:
            self._truncate(node.targets[0])
        else:
            raise self._fail(node)

    def _return(self, value: str) -> None:
        self._ir.do(f"ret {WORD} {value}")
        self._ended = True

    def _assign(self, target: ast.expr, value: str, shape: Shape) -> None:
        if isinstance(target, ast.Name):
            self._locals[target.id] = value
            if shape != Word() or target.id not in self._shapes:
                self._shapes[target.id] = shape
        elif isinstance(target, ast.Attribute | ast.Subscript) and isinstance(self._stored(target), Word):
            self._ir.store(WORD, value, self._pointer(self._place(target)))
        else:
            raise self._fail(target)

    def _truncate(self, target: ast.expr) -> None:
        """`del items[length:]`."""
        if not isinstance(target, ast.Subscript) or not isinstance(target.slice, ast.Slice):
            raise self._fail(target)
        lower, upper, step = target.slice.lower, target.slice.upper, target.slice.step
        if lower is None or upper is not None or step is not None:
            raise self._fail(target)
        self._ir.store(WORD, self._value(lower), self._pointer(self._list(target.value)[0]))

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
        loop = self._begin_loop(_assigned(node.body))
        self._branch(node.test, loop.body, loop.done)
        self._begin(loop.body)
        self._end_loop(loop, node.body)

    def _for(self, node: ast.For, target: str) -> None:
        """Over a range, whose bounds are computed once, or over a list, whose length may change."""
        bounds = self._bounds(node.iter)
        items = None if bounds else self._list(node.iter)
        counter = f".{node.lineno}"
        self._locals[counter], stop = bounds or ("0", "")
        loop = self._begin_loop([counter, *_assigned([node])])
        now = self._locals[counter]
        if items:
            stop = self._ir.load(WORD, self._pointer(items[0]))
        self._ir.branch(self._ir.value(f"icmp slt {WORD} {now}, {stop}"), (loop.body, ()), (loop.done, ()))
        self._begin(loop.body)
        self._locals[counter] = self._plus(now, 1)
        self._locals[target], self._shapes[target] = now, Word()
        if items:
            place = self._item(*items, now)
            stands = isinstance(items[1].item, Inner)
            self._locals[target] = place if stands else self._ir.load(WORD, self._pointer(place))
            self._shapes[target] = Word(items[1].item.record)
        self._end_loop(loop, node.body)

    def _begin_loop(self, names: list[str]) -> Loop:
        head, body, done, after = (self._ir.fresh() for _ in range(4))
        self._goto(head, names)
        self._join(head, names)
        return Loop(head, body, done, after, names, dict(self._locals))

    def _end_loop(self, loop: Loop, body: Iterable[ast.stmt]) -> None:
        """The body, which has begun, and what follows the loop."""
        self._loops.append(loop)
        self._body(body)
        self._goto(loop.head, loop.names)
        self._loops.pop()
        self._begin(loop.done)
        self._locals = dict(loop.locals)
        self._goto(loop.after, loop.names)
        self._join(loop.after, loop.names)

    def _bounds(self, node: ast.expr) -> tuple[str, str] | None:
        """First value and end of a range; None if it is none."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id != "range":
            return None
        if node.keywords or len(node.args) not in (1, 2):
            raise self._fail(node)
        first, *rest = (self._value(argument) for argument in node.args)
        return (first, rest[0]) if rest else ("0", first)

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
        if isinstance(test, ast.Compare):
            if len(test.ops) > 1 or type(test.ops[0]) not in _COMPARE:
                raise self._fail(test)
            left, right = self._value(test.left), self._value(test.comparators[0])
            return self._ir.value(f"icmp {_COMPARE[type(test.ops[0])]} {WORD} {left}, {right}")
        value = self._value(test)
        if isinstance(self._shape(test), ListOf):
            value = self._ir.load(WORD, self._pointer(value))
        return self._ir.value(f"icmp ne {WORD} {value}, 0")

    # -- expressions -------------------------------------------------------------------------------------------

    def _value(self, node: ast.expr) -> str:
        constant = self._constant(node)
        if constant is not None:
            return str(constant)
        if isinstance(node, ast.Name) and node.id in self._locals:
            return self._locals[node.id]
        if isinstance(node, ast.Attribute | ast.Subscript):
            place = self._place(node)
            return self._ir.load(WORD, self._pointer(place)) if isinstance(self._stored(node), Word) else place
        if isinstance(node, ast.BinOp):
            return self._operate(node, node.op, self._value(node.left), self._value(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self._ir.value(f"sub {WORD} 0, {self._value(node.operand)}")
        if isinstance(node, ast.Call) and not node.keywords:
            return self._call(node)
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

    def _call(self, node: ast.Call) -> str:
        if isinstance(node.func, ast.Attribute):
            return self._change(node, node.func)
        name = ast.unparse(node.func)
        if name in ("min", "max") and len(node.args) == 2:
            left, right = (self._value(argument) for argument in node.args)
            first = self._ir.value(f"icmp {'sle' if name == 'min' else 'sge'} {WORD} {left}, {right}")
            return self._ir.value(f"select i1 {first}, {WORD} {left}, {WORD} {right}")
        if name == "len" and len(node.args) == 1:
            return self._ir.load(WORD, self._pointer(self._list(node.args[0])[0]))
        function = self._functions.get(name)
        if function is None or len(function.parameters) != len(node.args):
            raise self._fail(node)
        self.called[name] = None
        passed = function.passed()
        given = (self._value(one) for one, of in zip(node.args, function.parameters, strict=True) if of in passed)
        return self._ir.value(f"call {WORD} @{name}({', '.join(['ptr %base', *(f'{WORD} {one}' for one in given)])})")

    def _change(self, node: ast.Call, method: ast.Attribute) -> str:
        """`items.clear()`, `items.append(word)` or `items.extend((word, ...))`."""
        at, shape = self._list(method.value)
        values = node.args
        if method.attr == "extend" and len(values) == 1 and isinstance(values[0], ast.Tuple):
            values = values[0].elts
        elif (method.attr, len(values)) not in (("append", 1), ("clear", 0)):
            raise self._fail(node)
        if not isinstance(shape.item, Word):
            raise self._fail(node)
        given = [self._value(value) for value in values]
        length = self._ir.load(WORD, self._pointer(at)) if given else "0"
        last = self._item(at, shape, length)
        for index, value in enumerate(given):
            self._ir.store(WORD, value, self._pointer(last, index))
        self._ir.store(WORD, self._plus(length, len(given)), self._pointer(at))
        return "0"

    def _operate(self, node: ast.AST, op: ast.operator, left: str, right: str) -> str:
        if type(op) not in _BINARY:
            raise self._fail(node)
        return self._ir.value(f"{_BINARY[type(op)]} {WORD} {left}, {right}")

    def _constant(self, node: ast.expr) -> int | None:
        """The value of an expression that always has the same."""
        if isinstance(node, ast.Constant):
            return int(node.value or 0) if node.value is None or isinstance(node.value, int) else None
        if isinstance(node, ast.Name):
            return None if node.id in self._locals else self._function.constants.get(node.id)
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id not in self._locals:
                return self._function.constants.get(f"{node.value.id}.{node.attr}")
            return self._function.known.get(f"{getattr(self._record(node.value), '__name__', None)}.{node.attr}")
        return None

    # -- records and lists -------------------------------------------------------------------------------------

    def _shape(self, node: ast.expr) -> Shape:
        """What the value of an expression is: an integer, a reference to a record, or a list."""
        if isinstance(node, ast.Name):
            return self._shapes.get(node.id, Word())
        if isinstance(node, ast.Attribute | ast.Subscript) and self._constant(node) is None:
            stored = self._stored(node)
            return Word(stored.record) if isinstance(stored, Inner) else stored
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self._functions:
            return self._functions[node.func.id].result
        if isinstance(node, ast.IfExp):
            return max(self._shape(node.body), self._shape(node.orelse), key=lambda shape: shape != Word())
        return Word()

    def _record(self, node: ast.expr) -> type | None:
        """The record class of an expression."""
        shape = self._shape(node)
        return shape.record if isinstance(shape, Word) else None

    def _stored(self, node: ast.Attribute | ast.Subscript) -> Shape:
        """The shape of a field or an item."""
        if isinstance(node, ast.Subscript):
            return self._list_shape(node.value).item
        record = self._record(node.value)
        if record is None or node.attr not in layout(record).fields:
            raise self._fail(node)
        return layout(record).fields[node.attr].shape

    def _place(self, node: ast.Attribute | ast.Subscript) -> str:
        """The first word of a field or an item."""
        if isinstance(node, ast.Subscript):
            return self._item(*self._list(node.value), self._value(node.slice))
        stored, owner = self._stored(node), self._value(node.value)
        place = self._plus(owner, layout(self._record(node.value) or object).fields[node.attr].offset)
        if isinstance(stored, ListOf) and not stored.capacity:
            return self._plus(owner, self._ir.load(WORD, self._pointer(place)))
        return place

    def _list_shape(self, node: ast.expr) -> ListOf:
        shape = self._shape(node)
        if not isinstance(shape, ListOf):
            raise self._fail(node)
        return shape

    def _list(self, node: ast.expr) -> tuple[str, ListOf]:
        return self._value(node), self._list_shape(node)

    def _item(self, at: str, shape: ListOf, index: str) -> str:
        """The first word of an item of the list at a word."""
        size = shape.item.size
        return self._plus(self._plus(at, 1), self._ir.value(f"mul {WORD} {index}, {size}") if size > 1 else index)

    def _plus(self, word: str, more: str | int) -> str:
        try:
            return str(int(word) + int(more))
        except ValueError:
            return word if more in (0, "0") else self._ir.value(f"add {WORD} {word}, {more}")

    def _pointer(self, word: str, more: int = 0) -> str:
        return self._ir.value(f"getelementptr {WORD}, ptr %base, {WORD} {self._plus(word, more)}")


def _assigned(body: Iterable[ast.stmt]) -> list[str]:
    """The names that statements assign to, in order."""
    names = (
        node.id
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    return list(dict.fromkeys(names))
