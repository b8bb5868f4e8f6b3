"""Building blocks of the native subset's IR: checks, integer arithmetic, access to the buffer.

Values are 64-bit. A record is its offset in the buffer `%base`, a list the offset of its length (a fixed list: of its
first item).
"""

import ast
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pyv_native.arena import FIRST, SECOND, SITE, STATUS, StatusCode
from pyv_native.errors import SubsetError
from pyv_native.ir import Ir
from pyv_native.records import WORD, IntegerFormat, ListOf, Scalar, Shape

Definition = Callable[..., Any]
"""Python function at the top level of a module."""
I64 = "i64"
_OVERFLOWING: dict[type[ast.operator], str] = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul"}
_BITWISE: dict[type[ast.operator], str] = {ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor"}


class SubsetFunction(NamedTuple):
    """Function of the subset, with its source, and the shapes of its parameters and its result."""

    module: str
    names: Mapping[str, Any]
    """Globals of the module."""
    node: ast.FunctionDef
    parameters: Mapping[str, Shape]
    result: Shape

    @property
    def symbol(self) -> str:
        """Name in the IR."""
        return f"{self.module}.{self.node.name}"

    def arguments(self, root: type | None) -> list[str]:
        """Return the names of the passed parameters: all but the root record, which is at a fixed offset."""
        return [name for name, shape in self.parameters.items() if not is_root(shape, root)]


class Context(NamedTuple):
    """Context of the functions of a module."""

    root: type | None
    constants: Mapping[str, int]
    """Fields, as Record.field, with a value that never changes."""
    links: Mapping[Definition, int]
    """Functions outside the module, with their slots."""
    packages: frozenset[str]
    """Top-level packages of the functions; callees belong to these."""
    checked: bool
    function: Callable[[Definition], SubsetFunction]
    """Source and shapes of a function."""
    sites: dict[str, str]
    """Text of a source location -> name of its constant. Filled by the lowering."""


class InstructionEmitter:
    """Emitter of instructions of a function."""

    def __init__(self, function: SubsetFunction, context: Context) -> None:
        self._function = function
        self._context = context
        self._ir = Ir()

    def _source_text(self, node: ast.AST) -> str:
        text = ast.unparse(node).partition("\n")[0]
        return f"{self._function.module}, line {getattr(node, 'lineno', 0)}: {text}"

    def _error(self, node: ast.AST, remedy: str = "see `pyv-npu docs native-subset`") -> SubsetError:
        return SubsetError(f"{self._source_text(node)}: outside the native subset: {remedy}")

    # -- checks --------------------------------------------------------------------------------------------------------

    def _site(self, node: ast.AST) -> str:
        """Return the name of the constant with the text of a source location."""
        return self._context.sites.setdefault(self._source_text(node), f"@site.{len(self._context.sites)}")

    def _record_error(self, node: ast.AST, code: StatusCode, first: str = "0", second: str = "0") -> None:
        """Emit a write of the status, unless it holds an earlier error."""
        write, after = self._ir.new_label(), self._ir.new_label()
        status = self._load(str(WORD * STATUS))
        self._ir.branch(self._ir.value(f"icmp eq {I64} {status}, 0"), (write, ()), (after, ()))
        self._ir.block(write)
        site = self._ir.value(f"ptrtoint ptr {self._site(node)} to {I64}")
        for word, value in ((STATUS, str(int(code))), (SITE, site), (FIRST, first), (SECOND, second)):
            self._store(str(WORD * word), value)
        self._ir.goto(after)
        self._ir.block(after)

    def _require(self, node: ast.AST, condition: str, code: StatusCode, first: str = "0", second: str = "0") -> None:
        """Emit a check: the function records an error and returns unless the i1 `condition` holds."""
        success, failure = self._ir.new_label(), self._ir.new_label()
        self._ir.branch(condition, (success, ()), (failure, ()))
        self._ir.block(failure)
        self._record_error(node, code, first, second)
        self._ir.do(f"ret {I64} 0")
        self._ir.block(success)

    def _return_on_error(self) -> None:
        """Emit a return if a call has written the status."""
        proceed, exit_label = self._ir.new_label(), self._ir.new_label()
        status = self._load(str(WORD * STATUS))
        self._ir.branch(self._ir.value(f"icmp eq {I64} {status}, 0"), (proceed, ()), (exit_label, ()))
        self._ir.block(exit_label)
        self._ir.do(f"ret {I64} 0")
        self._ir.block(proceed)

    def _check_index(self, node: ast.AST, index: str, length: str) -> str:
        """Emit the check of an index. Out of range, it records an error; the checked build returns, others use 0."""
        if index.isdecimal() and length.isdecimal() and int(index) < int(length):
            return index
        success, failure = self._ir.new_label(), self._ir.new_label()
        self._ir.branch(self._ir.value(f"icmp ult {I64} {index}, {length}"), (success, [index]), (failure, ()))
        self._ir.block(failure)
        self._record_error(node, StatusCode.INDEX, index, length)
        if self._context.checked:
            self._ir.do(f"ret {I64} 0")
        else:
            self._ir.goto(success, ["0"])
        (checked_index,) = self._ir.block(success, I64)
        return checked_index

    # -- arithmetic ----------------------------------------------------------------------------------------------------

    def _arithmetic(self, node: ast.AST, name: str, left: str, right: str) -> str:
        """Emit an addition, subtraction or multiplication; the checked build returns on 64-bit overflow."""
        if not self._context.checked:
            return self._ir.value(f"{name} {I64} {left}, {right}")
        pair = self._ir.value(f"call {{i64, i1}} @llvm.s{name}.with.overflow.i64({I64} {left}, {I64} {right})")
        overflow = self._ir.value(f"extractvalue {{i64, i1}} {pair}, 1")
        self._require(node, self._ir.value(f"xor i1 {overflow}, true"), StatusCode.OVERFLOW, left, right)
        return self._ir.value(f"extractvalue {{i64, i1}} {pair}, 0")

    def _operate(self, node: ast.BinOp | ast.AugAssign, left: str, right: str) -> str:
        """Emit an operator with Python's semantics within 64 bits."""
        operator = type(node.op)
        if operator in _BITWISE:
            return self._ir.value(f"{_BITWISE[operator]} {I64} {left}, {right}")
        if operator in _OVERFLOWING:
            return self._arithmetic(node, _OVERFLOWING[operator], left, right)
        if operator is ast.LShift:
            return self._shift_left(node, left, right)
        if operator is ast.RShift:
            if not _is_small_constant(right, 63):
                if self._context.checked:
                    self._require(node, self._ir.value(f"icmp sge {I64} {right}, 0"), StatusCode.SHIFT, left, right)
                in_range = self._ir.value(f"icmp ult {I64} {right}, 63")
                right = self._ir.value(f"select i1 {in_range}, {I64} {right}, {I64} 63")
            return self._ir.value(f"ashr {I64} {left}, {right}")
        if operator in (ast.FloorDiv, ast.Mod):
            return self._divide(node, left, right, remainder=operator is ast.Mod)
        raise self._error(node)

    def _shift_left(self, node: ast.BinOp | ast.AugAssign, left: str, right: str) -> str:
        if self._context.checked:
            self._require(node, self._ir.value(f"icmp sge {I64} {right}, 0"), StatusCode.SHIFT, left, right)
        bits = right
        if not _is_small_constant(right, 63):
            in_range = self._ir.value(f"icmp ult {I64} {right}, 64")
            bits = self._ir.value(f"select i1 {in_range}, {I64} {right}, {I64} 63")
            left_or_zero = self._ir.value(f"select i1 {in_range}, {I64} {left}, {I64} 0")
        else:
            left_or_zero = left
        result = self._ir.value(f"shl {I64} {left_or_zero}, {bits}")
        if self._context.checked:
            inverse = self._ir.value(f"ashr {I64} {result}, {bits}")
            self._require(node, self._ir.value(f"icmp eq {I64} {inverse}, {left}"), StatusCode.OVERFLOW, left, right)
        return result

    def _divide(self, node: ast.BinOp | ast.AugAssign, left: str, right: str, *, remainder: bool) -> str:
        """Emit a floor division, or a remainder with the divisor's sign; division by 0 records an error."""
        if right.isdecimal() and int(right) and int(right) & (int(right) - 1) == 0:
            if remainder:
                return self._ir.value(f"and {I64} {left}, {int(right) - 1}")
            return self._ir.value(f"ashr {I64} {left}, {int(right).bit_length() - 1}")
        after = self._ir.new_label()
        if not right.isdecimal() or right == "0":
            right = self._divisor(node, left, right, after)
        quotient, residue = (self._ir.value(f"{name} {I64} {left}, {right}") for name in ("sdiv", "srem"))
        inexact = self._ir.value(f"icmp ne {I64} {residue}, 0")
        signs_differ = self._ir.value(f"icmp slt {I64} {self._ir.value(f'xor {I64} {residue}, {right}')}, 0")
        adjustment = self._ir.value(f"and i1 {inexact}, {signs_differ}")
        if remainder:
            correction = self._ir.value(f"select i1 {adjustment}, {I64} {right}, {I64} 0")
            result = self._ir.value(f"add {I64} {residue}, {correction}")
        else:
            minus = self._ir.value(f"sext i1 {adjustment} to {I64}")
            result = self._ir.value(f"add {I64} {quotient}, {minus}")
        self._ir.goto(after, [result])
        (phi,) = self._ir.block(after, I64)
        return phi

    def _divisor(self, node: ast.BinOp | ast.AugAssign, left: str, right: str, after: str) -> str:
        """Emit branches around the divisors 0 and -1, on which the processor may trap; return any other divisor."""
        zero, nonzero, safe = (self._ir.new_label() for _ in range(3))
        self._ir.branch(self._ir.value(f"icmp eq {I64} {right}, 0"), (zero, ()), (nonzero, ()))
        self._ir.block(zero)
        self._record_error(node, StatusCode.DIVISION, left, right)
        if self._context.checked:
            self._ir.do(f"ret {I64} 0")
        else:
            self._ir.goto(after, ["0"])
        self._ir.block(nonzero)
        negative = self._ir.new_label()
        self._ir.branch(self._ir.value(f"icmp eq {I64} {right}, -1"), (negative, ()), (safe, ()))
        self._ir.block(negative)
        if isinstance(node.op, ast.Mod):
            self._ir.goto(after, ["0"])
        else:
            self._ir.goto(after, [self._arithmetic(node, "sub", "0", left)])
        self._ir.block(safe)
        return right

    # -- buffer --------------------------------------------------------------------------------------------------------

    def _length(self, offset: str, shape: ListOf) -> str:
        return str(shape.capacity) if shape.fixed else self._load(offset)

    def _item(self, offset: str, shape: ListOf, index: str) -> str:
        """Emit the offset of an item of the list at `offset`."""
        first = offset if shape.fixed else self._add_offset(offset, WORD)
        size = shape.item.size
        if index.isdecimal():
            return self._add_offset(first, int(index) * size)
        return self._add_offset(first, self._ir.value(f"mul {I64} {index}, {size}"))

    def _add_offset(self, value: str, addend: str | int) -> str:
        try:
            return str(int(value) + int(addend))
        except ValueError:
            return value if addend in (0, "0") else self._ir.value(f"add {I64} {value}, {addend}")

    def _pointer(self, offset: str) -> str:
        return self._ir.value(f"getelementptr i8, ptr %base, {I64} {offset}")

    def _load(self, offset: str) -> str:
        """Emit a load of the 64-bit value at an offset in the buffer."""
        return self._ir.value(f"load {I64}, ptr {self._pointer(offset)}, align 8")

    def _store(self, offset: str, value: str) -> None:
        self._ir.do(f"store {I64} {value}, ptr {self._pointer(offset)}, align 8")

    def _read(self, offset: str, form: IntegerFormat) -> str:
        """Emit a load of a field or item."""
        if form.size == WORD:
            return self._load(offset)
        ir_type = f"i{8 * form.size}"
        narrow = self._ir.value(f"load {ir_type}, ptr {self._pointer(offset)}, align {form.size}")
        return self._ir.value(f"{'sext' if form.signed else 'zext'} {ir_type} {narrow} to {I64}")

    def _write(self, node: ast.AST, offset: str, form: IntegerFormat, value: str) -> None:
        """Emit a store of the low bits to a field or item; the checked build returns if bits are lost."""
        if form.size == WORD:
            self._store(offset, value)
            return
        ir_type = f"i{8 * form.size}"
        narrow = self._ir.value(f"trunc {I64} {value} to {ir_type}")
        if self._context.checked:
            extension = self._ir.value(f"{'sext' if form.signed else 'zext'} {ir_type} {narrow} to {I64}")
            is_exact = self._ir.value(f"icmp eq {I64} {extension}, {value}")
            self._require(node, is_exact, StatusCode.NARROW, value, str(form.size))
        self._ir.do(f"store {ir_type} {narrow}, ptr {self._pointer(offset)}, align {form.size}")

    def _move(self, offset: str, shape: ListOf, source: str, target: str, count: str) -> None:
        """Emit a move of items within a list."""
        size = shape.item.size
        pair = [self._pointer(self._item(offset, shape, index)) for index in (target, source)]
        amount = self._ir.value(f"mul {I64} {count}, {size}")
        self._ir.do(f"call void @llvm.memmove.p0.p0.i64(ptr {pair[0]}, ptr {pair[1]}, {I64} {amount}, i1 false)")


def is_root(shape: Shape, root: type | None) -> bool:
    """Check whether a parameter is the root record."""
    return root is not None and shape == Scalar(root)


def _is_small_constant(value: str, highest: int) -> bool:
    """Check whether a value is a constant from 0 to `highest`."""
    return value.isdecimal() and int(value) <= highest
