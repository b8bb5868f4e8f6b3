"""Native code from functions of a small subset of Python, so that one text is both the model and its fast form.

The subset: module-level functions whose parameters are `int` or `Ints` (a list of integers, or an int64 array in native
form), that return an `int` or nothing; assignment to names and elements, `if`, `while`, `return`, arithmetic and
comparison of integers, `and`/`or`/`not`, conditional expressions, `min` and `max` of two, calls of each other, and
integers of the module by name. Values are 64-bit; `//` and `%` are for operands that are not negative.
"""

import ast
import ctypes
import inspect
from collections.abc import Callable, Collection, Mapping
from types import ModuleType

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from npu_device.abi.errors import NpuDeviceError
from pyv_jit.compiler import make_compiler

_WORD = ir.IntType(64)
_ARRAY = _WORD.as_pointer()
_COMPARE: dict[type, str] = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_BINARY: dict[type, str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "sdiv", ast.Mod: "srem",
    ast.LShift: "shl", ast.RShift: "ashr", ast.BitAnd: "and_", ast.BitOr: "or_",
}  # fmt: skip

Array = NDArray[np.int64]
ARRAYS = 8
"""How many arrays' addresses are remembered; they are kept alive."""


class NativeModule:
    """The functions of Python modules, compiled. `function(name)` takes arrays and integers as the original does."""

    def __init__(
        self, *modules: ModuleType, only: Collection[str] | None = None, known: Mapping[str, int] | None = None
    ) -> None:
        """Names of functions are unique over all modules. NpuDeviceError, with module and line, where a source leaves
        the subset.

        `only`: the functions that will be asked for; None: all. `known`: elements, as the source names them, that
        always have a value: what they rule out costs nothing.
        """
        definitions = [
            (module, node)
            for module in modules
            for node in ast.parse(inspect.getsource(module)).body
            if isinstance(node, ast.FunctionDef)
        ]
        constants = {module: _constants(module) | dict(known or {}) for module in modules}
        target = ir.Module(modules[-1].__name__)
        declared = {}
        for _, node in definitions:
            kinds = [_ARRAY if ast.unparse(arg.annotation or arg) == "Ints" else _WORD for arg in node.args.args]
            function = ir.Function(target, ir.FunctionType(_WORD, kinds), node.name)
            if only is not None and node.name not in only:
                function.linkage = "internal"
            for argument, kind in zip(function.args, kinds, strict=True):
                if kind is _ARRAY:
                    argument.add_attribute("noalias")
            declared[node.name] = function
        for module, node in definitions:
            _Lowering(module.__name__, node, declared, constants[module]).run()
        called = [name for name in declared if only is None or name in only]
        self._code = make_compiler().load(str(target), *called)
        self._places: dict[int, tuple[Array, int]] = {}
        """Address of each array that was given lately, by its id."""
        self._kinds = {name: [argument.type for argument in function.args] for name, function in declared.items()}

    def function(self, name: str) -> Callable[..., int]:
        """The compiled function, called with int64 arrays and integers."""
        kinds = [ctypes.c_int64 if kind is _WORD else ctypes.c_void_p for kind in self._kinds[name]]
        native = ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(self._code.address(name))
        native.code = self._code  # type: ignore[attr-defined] # it lives as long as its functions

        places = self._places

        def call(*arguments: Array | int) -> int:
            values = []
            for one in arguments:
                if isinstance(one, int):
                    values.append(one)
                    continue
                place = places.get(id(one))
                values.append(self._place(one) if place is None or place[0] is not one else place[1])
            return int(native(*values))

        return call

    def _place(self, array: Array) -> int:
        """The address of an array, which takes numpy a microsecond to tell."""
        if len(self._places) >= ARRAYS:
            self._places.clear()
        address: int = array.ctypes.data
        self._places[id(array)] = array, address
        return address


def _constants(module: ModuleType) -> dict[str, int]:
    """Integers that the functions may name: the module's own, and those of modules that it imports as `name.X`."""
    found = {name: value for name, value in vars(module).items() if isinstance(value, int)}
    for alias, other in vars(module).items():
        if isinstance(other, ModuleType):
            found |= {f"{alias}.{name}": value for name, value in vars(other).items() if isinstance(value, int)}
    return found


class _Lowering:
    """One function: every local is a stack slot. The passes of LLVM that would make them registers take longer than
    they save, in runs of any length seen."""

    def __init__(
        self, module: str, node: ast.FunctionDef, declared: dict[str, ir.Function], constants: dict[str, int]
    ) -> None:
        self._module = module
        self._node = node
        self._declared = declared
        self._constants = constants
        self._function = declared[node.name]
        self._builder = ir.IRBuilder(self._function.append_basic_block("entry"))
        self._arrays: dict[str, ir.Value] = {}
        self._locals: dict[str, ir.Value] = {}

    def run(self) -> None:
        for parameter, argument in zip(self._node.args.args, self._function.args, strict=True):
            if argument.type is _WORD:
                self._store(parameter.arg, argument)
            else:
                self._arrays[parameter.arg] = argument
        names = [n.id for n in ast.walk(self._node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        for name in dict.fromkeys(names):
            if name not in self._locals:
                self._store(name, ir.Constant(_WORD, 0))
        self._body(self._node.body)
        if not self._builder.block.is_terminated:
            self._builder.ret(ir.Constant(_WORD, 0))

    def _store(self, name: str, value: ir.Value) -> None:
        if name not in self._locals:
            self._locals[name] = self._builder.alloca(_WORD, name=name)
        self._builder.store(value, self._locals[name])

    def _fail(self, node: ast.AST) -> NpuDeviceError:
        line, text = getattr(node, "lineno", 0), ast.unparse(node)
        return NpuDeviceError(f"{self._module}, line {line}: {text!r} is outside the native subset: rewrite it")

    # -- statements --------------------------------------------------------------------------------------------

    def _body(self, body: list[ast.stmt]) -> None:
        for statement in body:
            if self._builder.block.is_terminated:
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
            self._builder.ret(ir.Constant(_WORD, 0) if node.value is None else self._value(node.value))
        elif isinstance(node, ast.If):
            self._if(node)
        elif isinstance(node, ast.While) and not node.orelse:
            self._while(node)
        else:
            raise self._fail(node)

    def _assign(self, target: ast.expr, value: ir.Value) -> None:
        if isinstance(target, ast.Name):
            self._store(target.id, value)
        elif isinstance(target, ast.Subscript):
            self._builder.store(value, self._element(target))
        else:
            raise self._fail(target)

    def _if(self, node: ast.If) -> None:
        then, other, after = (self._function.append_basic_block() for _ in range(3))
        self._branch(node.test, then, other)
        for block, body in ((then, node.body), (other, node.orelse)):
            self._builder.position_at_end(block)
            self._body(body)
            if not self._builder.block.is_terminated:
                self._builder.branch(after)
        self._builder.position_at_end(after)

    def _while(self, node: ast.While) -> None:
        head, body, after = (self._function.append_basic_block() for _ in range(3))
        self._builder.branch(head)
        self._builder.position_at_end(head)
        self._branch(node.test, body, after)
        self._builder.position_at_end(body)
        self._body(node.body)
        if not self._builder.block.is_terminated:
            self._builder.branch(head)
        self._builder.position_at_end(after)

    # -- expressions -------------------------------------------------------------------------------------------

    def _branch(self, test: ast.expr, yes: ir.Block, no: ir.Block) -> None:
        """Go to one of two blocks, looking at no more of the condition than Python does."""
        if isinstance(test, ast.BoolOp):
            for operand in test.values[:-1]:
                more = self._function.append_basic_block()
                self._branch(operand, *((more, no) if isinstance(test.op, ast.And) else (yes, more)))
                self._builder.position_at_end(more)
            self._branch(test.values[-1], yes, no)
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self._branch(test.operand, no, yes)
        elif isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in _COMPARE:
            left, right = self._value(test.left), self._value(test.comparators[0])
            self._builder.cbranch(self._builder.icmp_signed(_COMPARE[type(test.ops[0])], left, right), yes, no)
        else:
            value = self._value(test)
            self._builder.cbranch(self._builder.icmp_signed("!=", value, ir.Constant(_WORD, 0)), yes, no)

    def _value(self, node: ast.expr) -> ir.Value:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return ir.Constant(_WORD, int(node.value))
        if isinstance(node, ast.Name | ast.Subscript | ast.Attribute):
            return self._load(node)
        if isinstance(node, ast.BinOp):
            return self._operate(node, node.op, self._value(node.left), self._value(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self._builder.neg(self._value(node.operand))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            return self._call(node, node.func.id)
        if isinstance(node, ast.IfExp):
            return self._choose(node.test, node.body, node.orelse)
        if isinstance(node, ast.Compare | ast.BoolOp) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        ):
            return self._choose(node, ast.Constant(1), ast.Constant(0))
        raise self._fail(node)

    def _choose(self, test: ast.expr, one: ast.expr, other: ast.expr) -> ir.Value:
        yes, no, after = (self._function.append_basic_block() for _ in range(3))
        self._branch(test, yes, no)
        values = []
        for block, node in ((yes, one), (no, other)):
            self._builder.position_at_end(block)
            values.append((self._value(node), self._builder.block))
            self._builder.branch(after)
        self._builder.position_at_end(after)
        chosen = self._builder.phi(_WORD)
        for value, block in values:
            chosen.add_incoming(value, block)
        return chosen

    def _call(self, node: ast.Call, name: str) -> ir.Value:
        if name in ("min", "max") and len(node.args) == 2:
            left, right = (self._value(argument) for argument in node.args)
            less = self._builder.icmp_signed("<=" if name == "min" else ">=", left, right)
            return self._builder.select(less, left, right)
        if name not in self._declared:
            raise self._fail(node)
        arguments = [
            self._arrays[argument.id]
            if isinstance(argument, ast.Name) and argument.id in self._arrays
            else self._value(argument)
            for argument in node.args
        ]
        return self._builder.call(self._declared[name], arguments)

    def _operate(self, node: ast.AST, op: ast.operator, left: ir.Value, right: ir.Value) -> ir.Value:
        if type(op) not in _BINARY:
            raise self._fail(node)
        return getattr(self._builder, _BINARY[type(op)])(left, right)

    def _load(self, node: ast.expr) -> ir.Value:
        if isinstance(node, ast.Subscript):
            if isinstance(node.slice, ast.Attribute) and ast.unparse(node) in self._constants:
                return ir.Constant(_WORD, self._constants[ast.unparse(node)])
            return self._builder.load(self._element(node))
        if isinstance(node, ast.Name) and node.id in self._locals:
            return self._builder.load(self._locals[node.id])
        if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in self._constants:
            return ir.Constant(_WORD, self._constants[ast.unparse(node)])
        raise self._fail(node)

    def _element(self, node: ast.Subscript) -> ir.Value:
        if not isinstance(node.value, ast.Name) or node.value.id not in self._arrays:
            raise self._fail(node)
        return self._builder.gep(self._arrays[node.value.id], [self._value(node.slice)])
