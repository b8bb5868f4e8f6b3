"""Expressions and conditions of the native subset as LLVM IR."""

import ast
from collections.abc import Iterable
from enum import IntEnum
from inspect import signature
from types import FunctionType

from pyv_native import intrinsics
from pyv_native.arena import LINKS, NULL_SIZE, ROOT, StatusCode, is_callback
from pyv_native.emitter import I64, Context, Definition, InstructionEmitter, SubsetFunction, is_root
from pyv_native.records import WORD, ListOf, Scalar, Shape, layout

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Lt: "slt", ast.LtE: "sle", ast.Gt: "sgt", ast.GtE: "sge", ast.Eq: "eq", ast.NotEq: "ne",
    ast.Is: "eq", ast.IsNot: "ne",
}  # fmt: skip
_LOADS = {intrinsics.load_u8: "i8", intrinsics.load_u16: "i16", intrinsics.load_u32: "i32", intrinsics.load_i64: I64}
_STORES = {
    intrinsics.store_u8: "i8", intrinsics.store_u16: "i16", intrinsics.store_u32: "i32", intrinsics.store_i64: I64
}  # fmt: skip
_CONVERSIONS = (intrinsics.u32, intrinsics.i32, intrinsics.unsigned_less, intrinsics.wrapping_sub)
_INTRINSICS = {*_CONVERSIONS, *_LOADS, *_STORES, intrinsics.call_native, intrinsics.copy_bytes}


class Expressions(InstructionEmitter):
    """Emitter of expressions: their values, and branches on them."""

    def __init__(self, function: SubsetFunction, context: Context) -> None:
        super().__init__(function, context)
        self._terminated = False
        """Whether the current block has its terminator."""
        self._shapes = dict(function.parameters)
        """Shapes of locals."""
        self._locals = dict.fromkeys([*targets(function.node.body), *function.parameters], "0")
        """Current value of each local by name; 0 before its first assignment."""
        for name, shape in function.parameters.items():
            self._locals[name] = str(ROOT) if is_root(shape, context.root) else f"%arg.{name}"
        self.callees: dict[Definition, None] = {}
        """Callees within the module, in order, without those in code that constants make dead."""

    # -- conditions ----------------------------------------------------------------------------------------------------

    def _truth(self, test: ast.expr) -> bool | None:
        """Return the outcome of a condition that constants decide; None for any other."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            operand_truth = self._truth(test.operand)
            return None if operand_truth is None else not operand_truth
        if isinstance(test, ast.BoolOp):
            decisive = isinstance(test.op, ast.Or)
            for operand in test.values:
                outcome = self._truth(operand)
                if outcome is None or outcome is decisive:
                    return outcome
            return not decisive
        value = self._constant(test)
        return None if value is None else bool(value)

    def _branch(self, test: ast.expr, if_true: str, if_false: str) -> None:
        """Emit a branch on a condition, with Python's short-circuit evaluation."""
        constant = self._truth(test)
        if constant is not None:
            self._ir.goto(if_true if constant else if_false)
        elif isinstance(test, ast.BoolOp):
            for operand in test.values[:-1]:
                proceed = self._ir.new_label()
                self._branch(operand, *((proceed, if_false) if isinstance(test.op, ast.And) else (if_true, proceed)))
                self._ir.block(proceed)
            self._branch(test.values[-1], if_true, if_false)
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self._branch(test.operand, if_false, if_true)
        elif isinstance(test, ast.Compare):
            left = self._value(test.left)
            for comparison, operand in zip(test.ops[:-1], test.comparators, strict=False):
                proceed, right = self._ir.new_label(), self._value(operand)
                self._ir.branch(self._compare(test, comparison, left, right), (proceed, ()), (if_false, ()))
                self._ir.block(proceed)
                left = right
            right = self._value(test.comparators[-1])
            self._ir.branch(self._compare(test, test.ops[-1], left, right), (if_true, ()), (if_false, ()))
        else:
            value = self._value(test)
            shape = self._shape(test)
            if isinstance(shape, ListOf):
                value = self._length(value, shape)
            self._ir.branch(self._ir.value(f"icmp ne {I64} {value}, 0"), (if_true, ()), (if_false, ()))
        self._terminated = True

    def _compare(self, node: ast.expr, comparison: ast.cmpop, left: str, right: str) -> str:
        """Emit a comparison as an i1."""
        if type(comparison) not in _COMPARE:
            raise self._error(node)
        return self._ir.value(f"icmp {_COMPARE[type(comparison)]} {I64} {left}, {right}")

    # -- values --------------------------------------------------------------------------------------------------------

    def _value(self, node: ast.expr) -> str:
        constant = self._constant(node)
        if constant is not None:
            if not LOWEST <= constant <= HIGHEST:
                raise self._error(node, "an integer has 64 bits")
            return str(constant)
        if isinstance(node, ast.Name) and node.id in self._locals:
            return self._locals[node.id]
        if isinstance(node, ast.Attribute | ast.Subscript):
            shape, address = self._element_shape(node), self._address(node)
            return self._read(address, shape.form) if isinstance(shape, Scalar) else address
        if isinstance(node, ast.BinOp):
            return self._operate(node, self._value(node.left), self._value(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self._arithmetic(node, "sub", "0", self._value(node.operand))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
            return self._ir.value(f"xor {I64} {self._value(node.operand)}, -1")
        if isinstance(node, ast.Call) and not node.keywords:
            return self._call(node)
        if isinstance(node, ast.IfExp):
            return self._choose(node.test, node.body, node.orelse)
        if isinstance(node, ast.BoolOp):
            return self._junction(node)
        if isinstance(node, ast.Compare) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
            return self._choose(node, ast.Constant(1), ast.Constant(0))
        raise self._error(node)

    def _choose(self, test: ast.expr, first: ast.expr, second: ast.expr) -> str:
        constant = self._truth(test)
        if constant is not None:
            return self._value(first if constant else second)
        if_true, if_false, after = (self._ir.new_label() for _ in range(3))
        self._branch(test, if_true, if_false)
        for label, node in ((if_true, first), (if_false, second)):
            self._ir.block(label)
            self._ir.goto(after, [self._value(node)])
        self._terminated = False
        (phi,) = self._ir.block(after, I64)
        return phi

    def _junction(self, node: ast.BoolOp) -> str:
        """Emit `a or b` or `a and b`: the value of the deciding operand, as in Python."""
        after = self._ir.new_label()
        for operand in node.values[:-1]:
            proceed = self._ir.new_label()
            if isinstance(self._shape(operand), ListOf):
                raise self._error(node, "use the length of the list")
            value = self._value(operand)
            targets = ((after, [value]), (proceed, ()))
            true_target, false_target = targets if isinstance(node.op, ast.Or) else targets[::-1]
            self._ir.branch(self._ir.value(f"icmp ne {I64} {value}, 0"), true_target, false_target)
            self._ir.block(proceed)
        self._ir.goto(after, [self._value(node.values[-1])])
        (phi,) = self._ir.block(after, I64)
        return phi

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> str:
        if isinstance(node.func, ast.Attribute):
            return self._change(node, node.func)
        name = ast.unparse(node.func)
        if name in ("min", "max") and len(node.args) > 1:
            return self._extreme(name, [self._value(argument) for argument in node.args])
        if name == "len" and len(node.args) == 1:
            shape = self._list_shape(node.args[0])
            return str(shape.capacity) if shape.fixed else self._load(self._value(node.args[0]))
        callee = self._function.names.get(name)
        if callee in _INTRINSICS and len(node.args) == len(signature(callee).parameters):
            return self._intrinsic(callee, [self._value(argument) for argument in node.args])
        if not isinstance(callee, FunctionType):
            raise self._error(node)
        if callee not in self._context.links and callee.__module__.partition(".")[0] not in self._context.packages:
            raise self._error(node, "call functions of the same package, or through a link")
        function = self._context.function(callee)
        if len(function.parameters) != len(node.args):
            raise self._error(node, f"{name} takes {len(function.parameters)} arguments")
        names = function.arguments(self._context.root)
        values = [
            self._argument(argument, function.parameters[parameter])
            for argument, parameter in zip(node.args, function.parameters, strict=True)
            if parameter in names
        ]
        slot = self._context.links.get(callee)
        if slot is None:
            self.callees[callee] = None
            arguments = ", ".join(["ptr %base", *(f"{I64} {value}" for value in values)])
            result = self._ir.value(f"call {I64} @{function.symbol}({arguments})")
        else:
            target = self._ir.value(f"load ptr, ptr {self._pointer(str(LINKS + WORD * slot))}, align 8")
            arguments = ", ".join(
                ([] if is_callback(callee) else ["ptr %base"]) + [f"{I64} {value}" for value in values]
            )
            result = self._ir.value(f"call {I64} {target}({arguments})")
        if self._context.checked or self._context.links:
            self._return_on_error()
        return result

    def _argument(self, node: ast.expr, shape: Shape) -> str:
        """Emit the value of an argument for a parameter of a shape."""
        actual = self._shape(node)
        if isinstance(shape, ListOf):
            is_match = isinstance(actual, ListOf) and not actual.fixed and actual.item == shape.item
            if not is_match:
                raise self._error(node, "the parameter is a list with a length of its own")
        return self._value(node)

    def _extreme(self, name: str, values: list[str]) -> str:
        extreme, *operands = values
        for value in operands:
            test = self._ir.value(f"icmp {'sle' if name == 'min' else 'sge'} {I64} {extreme}, {value}")
            extreme = self._ir.value(f"select i1 {test}, {I64} {extreme}, {I64} {value}")
        return extreme

    def _intrinsic(self, callee: Definition, values: list[str]) -> str:
        """Emit a function of `pyv_native.intrinsics`."""
        if callee is intrinsics.unsigned_less:
            test = self._ir.value(f"icmp ult {I64} {values[0]}, {values[1]}")
            return self._ir.value(f"zext i1 {test} to {I64}")
        if callee is intrinsics.wrapping_sub:
            return self._ir.value(f"sub {I64} {values[0]}, {values[1]}")
        if callee is intrinsics.u32:
            return self._ir.value(f"and {I64} {values[0]}, {intrinsics.U32}")
        if callee is intrinsics.i32:
            return self._ir.value(f"sext i32 {self._ir.value(f'trunc {I64} {values[0]} to i32')} to {I64}")
        pointer = self._ir.value(f"inttoptr {I64} {values[0]} to ptr")
        if callee is intrinsics.call_native:
            buffer = self._ir.value(f"inttoptr {I64} {values[1]} to ptr")
            arguments = ", ".join([f"ptr {buffer}", *(f"{I64} {value}" for value in values[2:])])
            return self._ir.value(f"call {I64} {pointer}({arguments})")
        if callee is intrinsics.copy_bytes:
            source = self._ir.value(f"inttoptr {I64} {values[1]} to ptr")
            self._ir.do(f"call void @llvm.memmove.p0.p0.i64(ptr {pointer}, ptr {source}, {I64} {values[2]}, i1 false)")
            return "0"
        if callee in _LOADS:
            value = self._ir.load(_LOADS[callee], pointer)
            return value if _LOADS[callee] == I64 else self._ir.value(f"zext {_LOADS[callee]} {value} to {I64}")
        ir_type = _STORES[callee]
        narrow = values[1] if ir_type == I64 else self._ir.value(f"trunc {I64} {values[1]} to {ir_type}")
        self._ir.store(ir_type, narrow, pointer)
        return "0"

    def _change(self, node: ast.Call, method: ast.Attribute) -> str:
        """Emit `items.clear()`, `.append(item)`, `.extend((item, ...))` or `.insert(index, item)`."""
        shape, values = self._list_shape(method.value), node.args
        if method.attr == "extend" and len(values) == 1 and isinstance(values[0], ast.Tuple):
            values = values[0].elts
        elif (method.attr, len(values)) not in (("append", 1), ("clear", 0), ("insert", 2)):
            raise self._error(node)
        if not isinstance(shape.item, Scalar) or shape.fixed or self._is_parameter(method.value):
            raise self._error(node, "only a field that holds integers or references, with a length, grows")
        offset = self._value(method.value)
        if method.attr == "clear":
            self._store(offset, "0")
            return "0"
        operands = [self._value(value) for value in values]
        length = self._load(offset)
        items = operands if method.attr != "insert" else operands[1:]
        total = self._add_offset(length, len(items))
        capacity = str(shape.capacity) if shape.capacity is not None else self._load(self._add_offset(offset, -WORD))
        fits, full, after = (self._ir.new_label() for _ in range(3))
        self._ir.branch(self._ir.value(f"icmp sle {I64} {total}, {capacity}"), (fits, ()), (full, ()))
        self._ir.block(full)
        self._record_error(node, StatusCode.CAPACITY, total, capacity)
        if self._context.checked:
            self._ir.do(f"ret {I64} 0")
        else:
            self._ir.goto(after)
        self._ir.block(fits)
        index = length
        if method.attr == "insert":
            index = operands[0]
            self._require_order(node, index, length, length)
            self._move(offset, shape, index, self._add_offset(index, 1), self._ir.value(f"sub {I64} {length}, {index}"))
        start = self._item(offset, shape, index)
        for position, value in enumerate(items):
            self._write(node, self._add_offset(start, position * shape.item.size), shape.item.form, value)
        self._store(offset, total)
        self._ir.goto(after)
        self._ir.block(after)
        return "0"

    def _is_parameter(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and isinstance(self._function.parameters.get(node.id), ListOf)

    def _require_order(self, node: ast.AST, start: str, stop: str, length: str) -> None:
        """Emit a check of 0 <= start <= stop <= length; else the function returns, and the list is unchanged."""
        for low, high in ((start, stop), (stop, length)):
            if low != high:
                self._require(node, self._ir.value(f"icmp ule {I64} {low}, {high}"), StatusCode.INDEX, start, length)

    # -- constants -----------------------------------------------------------------------------------------------------

    def _constant(self, node: ast.expr) -> int | None:
        """Return the value of a constant expression; None for any other."""
        if isinstance(node, ast.Constant):
            return int(node.value or 0) if node.value is None or isinstance(node.value, int) else None
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            value = self._constant(node.operand)
            return None if value is None else -value
        names = self._function.names
        if isinstance(node, ast.Name):
            return None if node.id in self._locals else _integer(names.get(node.id))
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id not in self._locals:
                owner = names.get(node.value.id)
                enumeration = isinstance(owner, type) and issubclass(owner, IntEnum)
                return _integer(getattr(owner, node.attr, None)) if enumeration else None
            return self._context.constants.get(f"{getattr(self._record(node.value), '__name__', None)}.{node.attr}")
        return None

    # -- records and lists ---------------------------------------------------------------------------------------------

    def _shape(self, node: ast.expr) -> Shape:
        """Return the shape of an expression: an integer, a reference to a record, or a list."""
        if isinstance(node, ast.Name):
            return self._shapes.get(node.id, Scalar())
        if isinstance(node, ast.Attribute | ast.Subscript) and self._constant(node) is None:
            element = self._element_shape(node)
            return element if isinstance(element, ListOf) else Scalar(element.record)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            callee = self._function.names.get(node.func.id)
            if isinstance(callee, FunctionType) and callee not in _INTRINSICS:
                return self._context.function(callee).result
        if isinstance(node, ast.IfExp):
            shapes = self._shape(node.body), self._shape(node.orelse)
            return shapes[0] if shapes[0] != Scalar() else shapes[1]
        if isinstance(node, ast.BoolOp):
            return next((shape for value in node.values if (shape := self._shape(value)) != Scalar()), Scalar())
        return Scalar()

    def _record(self, node: ast.expr) -> type | None:
        """Return the record class of an expression."""
        shape = self._shape(node)
        return shape.record if isinstance(shape, Scalar) else None

    def _element_shape(self, node: ast.Attribute | ast.Subscript) -> Shape:
        """Return the shape of a field or an item."""
        if isinstance(node, ast.Subscript):
            return self._list_shape(node.value).item
        record = self._record(node.value)
        if record is None or node.attr not in layout(record).fields:
            raise self._error(node)
        return layout(record).fields[node.attr].shape

    def _address(self, node: ast.Attribute | ast.Subscript) -> str:
        """Emit the offset of a field or an item; for a list, of its length."""
        if isinstance(node, ast.Subscript):
            shape, base = self._list_shape(node.value), self._value(node.value)
            return self._item(base, shape, self._check_index(node, self._value(node.slice), self._length(base, shape)))
        record = self._record(node.value)
        assert record is not None
        owner, field = self._value(node.value), layout(record).fields[node.attr]
        if not owner.isdecimal() and layout(record).size > NULL_SIZE:
            raise self._error(node, f"a record that is referred to has at most {NULL_SIZE} bytes")
        has_length = isinstance(field.shape, ListOf) and not field.shape.fixed
        if not owner.isdecimal() and (self._context.checked or has_length):
            self._require(node, self._ir.value(f"icmp ne {I64} {owner}, 0"), StatusCode.NULL)
        address = self._add_offset(owner, field.offset)
        if isinstance(field.shape, ListOf) and field.shape.capacity is None:
            return self._add_offset(owner, self._load(address))
        return address

    def _list_shape(self, node: ast.expr) -> ListOf:
        shape = self._shape(node)
        if not isinstance(shape, ListOf):
            raise self._error(node)
        return shape


def _integer(value: object) -> int | None:
    return int(value) if isinstance(value, int) else None


def targets(body: Iterable[ast.stmt]) -> list[str]:
    """Return the names that statements assign to, in order."""
    names = (
        node.id
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    return list(dict.fromkeys(names))
