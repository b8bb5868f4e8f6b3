"""Functions of the native subset as LLVM IR. Locals are values that blocks take as parameters."""

import ast
from collections.abc import Iterable
from typing import NamedTuple

from pyv_native.emitter import I64, Context, SubsetFunction
from pyv_native.expressions import Expressions, targets
from pyv_native.ir import INLINE
from pyv_native.records import Inner, ListOf, Scalar, Shape


class Loop(NamedTuple):
    """Labels of the blocks of a loop."""

    head: str
    """Test, followed by `body` or `exhausted`."""
    body: str
    step: str
    """Target of `continue`."""
    exhausted: str
    after: str
    """Target of `break`."""
    names: list[str]
    """Locals that its blocks take as parameters."""
    locals: dict[str, str]
    """Values at the head."""


class Lowering(Expressions):
    """Lowering of a function to IR."""

    def __init__(self, function: SubsetFunction, context: Context) -> None:
        super().__init__(function, context)
        self._loops: list[Loop] = []

    def text(self, *, public: bool, inline: bool) -> str:
        """Return the function's definition; `inline`: into all callers. SubsetError, with module and line, if the
        source is outside the subset."""
        self._ir.block("entry")
        self._block(self._function.node.body)
        if not self._terminated:
            self._return("0")
        names = self._function.arguments(self._context.root)
        parameters = ", ".join(["ptr %base", *(f"{I64} %arg.{name}" for name in names)])
        signature = f"{'' if public else 'internal '}{I64} @{self._function.symbol}({parameters})"
        return self._ir.text(signature, f"nounwind {INLINE}" if inline else "nounwind")

    def _block(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            if self._terminated:
                return
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Pass):
            return
        if isinstance(node, ast.Expr):
            if not isinstance(node.value, ast.Constant):  # a docstring
                self._value(node.value)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            self._assign(node.targets[0], self._value(node.value), self._shape(node.value))
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, self._value(node.value), self._shape(node.value))
        elif isinstance(node, ast.AugAssign):
            self._update(node)
        elif isinstance(node, ast.Return):
            self._return("0" if node.value is None else self._value(node.value))
        elif isinstance(node, ast.If):
            self._if(node)
        elif isinstance(node, ast.While) and not node.orelse:
            self._while(node)
        elif isinstance(node, ast.For) and not node.orelse and isinstance(node.target, ast.Name):
            self._for(node, node.target.id)
        elif isinstance(node, ast.Continue | ast.Break):  # Python allows them in loops only
            loop = self._loops[-1]
            self._goto(loop.step if isinstance(node, ast.Continue) else loop.after, loop.names)
        elif isinstance(node, ast.Delete) and len(node.targets) == 1:
            self._delete(node.targets[0])
        else:
            raise self._error(node)

    def _return(self, value: str) -> None:
        self._ir.do(f"ret {I64} {value}")
        self._terminated = True

    def _assign(self, target: ast.expr, value: str, shape: Shape) -> None:
        if isinstance(target, ast.Name):
            previous = self._shapes.get(target.id)
            if previous not in (None, shape) and ListOf in (type(previous), type(shape)):
                raise self._error(target, "a name stands for one list; give the other one a name of its own")
            self._locals[target.id] = value
            if shape != Scalar() or previous is None:
                self._shapes[target.id] = shape
            return
        if isinstance(target, ast.Attribute | ast.Subscript):
            element = self._element_shape(target)
            if isinstance(element, Scalar):
                self._write(target, self._address(target), element.form, value)
                return
        raise self._error(target)

    def _update(self, node: ast.AugAssign) -> None:
        """Emit `x += e`: the target is evaluated once, before the operand."""
        target = node.target
        if isinstance(target, ast.Name):
            self._assign(target, self._operate(node, self._value(target), self._value(node.value)), Scalar())
            return
        element = self._element_shape(target)
        if not isinstance(element, Scalar) or element.record is not None:
            raise self._error(target)
        address = self._address(target)
        left = self._read(address, element.form)
        self._write(target, address, element.form, self._operate(node, left, self._value(node.value)))

    def _delete(self, target: ast.expr) -> None:
        """Emit `del items[a:b]` or `del items[a:]`."""
        if not isinstance(target, ast.Subscript) or not isinstance(target.slice, ast.Slice):
            raise self._error(target)
        lower, upper, step = target.slice.lower, target.slice.upper, target.slice.step
        shape = self._list_shape(target.value)
        if lower is None or step is not None or shape.fixed or not isinstance(shape.item, Scalar):
            raise self._error(target)
        offset, start = self._value(target.value), self._value(lower)
        length = self._load(offset)
        stop = length if upper is None else self._value(upper)
        self._require_order(target, start, stop, length)
        if upper is not None:
            self._move(offset, shape, stop, start, self._ir.value(f"sub {I64} {length}, {stop}"))
        count = self._ir.value(f"sub {I64} {stop}, {start}")
        self._store(offset, self._ir.value(f"sub {I64} {length}, {count}"))

    def _begin(self, label: str) -> None:
        self._ir.block(label)
        self._terminated = False

    def _join(self, label: str, names: list[str]) -> None:
        """Begin a block with these locals as its parameters."""
        self._locals |= zip(names, self._ir.block(label, *[I64] * len(names)), strict=True)
        self._terminated = False

    def _goto(self, label: str, names: list[str]) -> None:
        """Emit a jump to a label, unless the block has its terminator."""
        if not self._terminated:
            self._ir.goto(label, [self._locals[name] for name in names])
        self._terminated = True

    def _if(self, node: ast.If) -> None:
        constant = self._truth(node.test)
        if constant is not None:
            self._block(node.body if constant else node.orelse)
            return
        true_label, false_label, after = (self._ir.new_label() for _ in range(3))
        names = targets([*node.body, *node.orelse])
        self._branch(node.test, true_label, false_label)
        before, is_reachable = dict(self._locals), False
        for label, body in ((true_label, node.body), (false_label, node.orelse)):
            self._begin(label)
            self._locals = dict(before)
            self._block(body)
            is_reachable = is_reachable or not self._terminated
            self._goto(after, names)
        if is_reachable:
            self._join(after, names)

    def _while(self, node: ast.While) -> None:
        loop = self._begin_loop(targets(node.body))
        self._branch(node.test, loop.body, loop.exhausted)
        self._begin(loop.body)
        self._end_loop(loop, node.body, "", 0)

    def _for(self, node: ast.For, target: str) -> None:
        """Emit a loop over a range, whose bounds are evaluated once, or over a list, whose length may change."""
        bounds = self._range(node.iter)
        counter, increment = f".{node.lineno}.{node.col_offset}", 1
        if bounds is None:
            shape, offset = self._list_shape(node.iter), self._value(node.iter)
            self._locals[counter] = "0"
        else:
            self._locals[counter], stop, increment = bounds
        loop = self._begin_loop([counter, *targets([node])])
        index = self._locals[counter]
        if bounds is None:
            stop = self._length(offset, shape)
        test = self._ir.value(f"icmp {'slt' if increment > 0 else 'sgt'} {I64} {index}, {stop}")
        self._ir.branch(test, (loop.body, ()), (loop.exhausted, ()))
        self._begin(loop.body)
        self._locals[target], self._shapes[target] = index, Scalar()
        if bounds is None:
            item = self._item(offset, shape, index)
            inner = isinstance(shape.item, Inner)
            self._locals[target] = item if inner else self._read(item, shape.item.form)  # type: ignore[union-attr]
            self._shapes[target] = Scalar(shape.item.record)
        self._end_loop(loop, node.body, counter, increment)

    def _begin_loop(self, names: list[str]) -> Loop:
        head, body, step, exhausted, after = (self._ir.new_label() for _ in range(5))
        self._goto(head, names)
        self._join(head, names)
        return Loop(head, body, step, exhausted, after, names, dict(self._locals))

    def _end_loop(self, loop: Loop, body: Iterable[ast.stmt], counter: str, increment: int) -> None:
        """Emit the body, whose block has begun, the step of the counter, and the end of the loop."""
        self._loops.append(loop)
        self._block(body)
        self._goto(loop.step, loop.names)
        self._loops.pop()
        self._join(loop.step, loop.names)
        if counter:
            self._locals[counter] = self._add_offset(loop.locals[counter], increment)
        self._goto(loop.head, loop.names)
        self._begin(loop.exhausted)
        self._locals = dict(loop.locals)
        self._goto(loop.after, loop.names)
        self._join(loop.after, loop.names)

    def _range(self, node: ast.expr) -> tuple[str, str, int] | None:
        """Return (first value, end, step) of a range; None: the node is no range."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id != "range":
            return None
        if node.keywords or not 1 <= len(node.args) <= 3:
            raise self._error(node)
        step = self._constant(node.args[2]) if len(node.args) == 3 else 1
        if not step:
            raise self._error(node, "the step of a range is a constant other than 0")
        first, *bounds = (self._value(argument) for argument in node.args[:2])
        return (first, bounds[0], step) if bounds else ("0", first, step)
