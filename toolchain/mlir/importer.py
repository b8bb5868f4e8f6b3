"""Import of a module as a model: every operation of its function becomes ONNX nodes."""

from collections.abc import Mapping
from pathlib import Path

from onnx import helper
from xdsl.dialects.builtin import StringAttr, SymbolRefAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation

from toolchain.errors import ModelError
from toolchain.mlir import scalars
from toolchain.mlir.emitter import OPSET, MlirTensor, OnnxEmitter, code, initializers
from toolchain.mlir.generic import generic
from toolchain.mlir.named import LINALG
from toolchain.mlir.npu.graph import graph_of, is_graph
from toolchain.mlir.npu.model import check_alone, model_of
from toolchain.mlir.shapes import TENSOR
from toolchain.mlir.text.dialect import InputOp
from toolchain.mlir.text.foreign import GLOBAL
from toolchain.mlir.text.source import MlirSource, op_name, read
from toolchain.mlir.text.values import argument_problem
from toolchain.mlir.tosa import TOSA
from toolchain.onnx_model.model import OnnxModel, prepare

ENTRIES = ("main", "forward")
"""Names of the model's function in a module with several functions."""
MAX_STEPS = 4096
"""Maximum number of steps of a loop."""
MAX_OPERATIONS = 50_000
"""Maximum number of nodes after loop unrolling."""


def load_mlir(path: Path, shapes: Mapping[str, tuple[int, ...]] | None = None) -> OnnxModel:
    """Return the model in a file. ModelError: file:line:column, operation and remedy, in one line."""
    if shapes:
        raise ModelError(f"{path}: --shape {next(iter(shapes))}: a module has the shapes of its inputs; drop it")
    source = read(path)
    if not is_graph(source):
        return import_source(source)
    graph = graph_of(source)
    check_alone(graph, source.name)
    return model_of(graph, source.name)


def operations_of(path: Path) -> tuple[list[tuple[str, str]], list[str]]:
    """Return (name and type of each argument, name of each operation) of the function in a file. ModelError as
    `load_mlir`."""
    source = read(path)
    function = _function(source)
    block = function.body.blocks[0]
    arguments = [(argument.name_hint or f"arg{index}", str(argument.type)) for index, argument in enumerate(block.args)]
    declared = [(op, op.attributes.get("id")) for op in block.ops if isinstance(op, InputOp)]
    named = [(name.data, str(op.result.type)) for op, name in declared if isinstance(name, StringAttr)]
    return arguments or named, [op_name(op) for op in function.walk() if op is not function]


def import_source(source: MlirSource) -> OnnxModel:
    """Return the model of a parsed module."""
    function = _function(source)
    block = function.body.blocks[0]
    e = OnnxEmitter(source)
    e.op = function
    inputs: list[MlirTensor] = []
    for index, argument in enumerate(block.args):
        if reason := argument_problem(argument.type):
            source.refuse(function, reason)
        kind, shape = e.typed(argument.type)
        name = argument.name_hint or f"arg{index}"
        name = name if name not in {tensor.name for tensor in inputs} else f"arg{index}"
        inputs.append(MlirTensor(e.unique_name(name), kind, shape))
        e.define(argument, inputs[-1])
    outputs = _Body(e, (function,)).run(block)
    returned = block.last_op
    e.op = function if returned is None else returned
    if not outputs or returned is None:
        source.refuse(function, "returns no tensor: return the results")
    if reason := next(filter(None, (argument_problem(value.type) for value in returned.operands)), ""):
        e.refuse(reason)
    return _model(e, function, inputs, outputs)


class _Body:
    """Lowering of the operations of a block, in order: calls are inlined, loops with known bounds unrolled. `callers`:
    enclosing functions."""

    def __init__(self, e: OnnxEmitter, callers: tuple[FuncOp, ...]) -> None:
        self._e, self._callers = e, callers

    def run(self, block: Block) -> list[MlirTensor]:
        """Lower a block and return the operands of its terminator."""
        e = self._e
        for op in block.ops:
            e.op = op
            name = op_name(op)
            if name in ("func.return", "return", "scf.yield"):
                return [e.get(value) for value in op.operands]
            if name == scalars.ASSERTION:
                continue
            inner = {"scf.for": self._loop, "scf.if": self._branch, "func.call": self._call}.get(name)
            results = _lower(e, op) if inner is None else inner(op)
            e.op = op
            if len(results) != len(op.results):
                e.refuse(f"gives {len(results)} results, needs {len(op.results)}: correct the types")
            for value, tensor in zip(op.results, results, strict=True):
                e.define(value, tensor)
        return []

    def _loop(self, op: Operation) -> list[MlirTensor]:
        e = self._e
        block = self._block(op, 0)
        values = [e.get(value) for value in op.operands]
        first, last, step = (int(e.needed(value, "a bound of a loop").reshape(())) for value in values[:3])
        carried = values[3:]
        if step < 1 or len(range(first, last, step)) > MAX_STEPS:
            e.refuse(f"counts from {first} to {last} by {step}: at most {MAX_STEPS} steps are unrolled")
        if len(block.args) != 1 + len(carried):
            e.refuse("needs an argument of its body for the index and for each of iter_args")
        for index in range(first, last, step):
            counter = e.cast(e.index(index), e.typed(block.args[0].type)[0])
            for argument, tensor in zip(block.args, [e.reshape(counter, ()), *carried], strict=True):
                e.define(argument, tensor)
            carried = self.run(block)
            e.op = op
            if len(e.nodes) > MAX_OPERATIONS:
                e.refuse(f"unrolls to more than {MAX_OPERATIONS} operations: keep the loop out of the module")
        return carried

    def _branch(self, op: Operation) -> list[MlirTensor]:
        condition = self._e.needed(self._e.get(op.operands[0]), "its condition")
        region = 0 if bool(condition.reshape(())) else 1
        if not op.regions[region].blocks:
            return []
        return self.run(self._block(op, region))

    def _block(self, op: Operation, region: int) -> Block:
        if len(op.regions[region].blocks) != 1:
            self._e.refuse("needs a body of one block")
        return op.regions[region].blocks[0]

    def _call(self, op: Operation) -> list[MlirTensor]:
        e = self._e
        callee = e.attribute("callee")
        name = callee.string_value() if isinstance(callee, SymbolRefAttr) else ""
        functions = {item.sym_name.data: item for item in e.source.module.body.ops if isinstance(item, FuncOp)}
        function = functions.get(name)
        if function is None or len(function.body.blocks) != 1:
            e.refuse(f"calls {name or 'no symbol'}: must be a function of this module with one block")
        if function in self._callers:
            e.refuse(f"{name} calls itself: write its steps out")
        block = function.body.blocks[0]
        values = [e.get(value) for value in op.operands]
        if len(values) != len(block.args):
            e.refuse(f"{name} takes {len(block.args)} operands, got {len(values)}")
        for argument, tensor in zip(block.args, values, strict=True):
            e.define(argument, tensor)
        return _Body(e, (*self._callers, function)).run(block)


def _function(source: MlirSource) -> FuncOp:
    top = [op for op in source.module.body.ops if op.name != GLOBAL]
    functions = [op for op in top if isinstance(op, FuncOp)]
    for op in top:
        if not isinstance(op, FuncOp):
            source.refuse(op, "supported is one func.func: drop it")
    if not functions:
        raise ModelError(f"{source.name}: holds no func.func: write the model as a function of tensors")
    named = [op for op in functions if op.sym_name.data in ENTRIES] if len(functions) > 1 else functions
    if len(named) != 1:
        source.refuse(functions[1], f"is one of {len(functions)} functions: name the model {ENTRIES[0]}")
    if len(named[0].body.blocks) != 1 or not named[0].body.blocks[0].ops:
        source.refuse(named[0], "control flow and declarations are not supported: keep one block")
    return named[0]


def _lower(e: OnnxEmitter, op: Operation) -> list[MlirTensor]:
    """Lower an operation and return its results."""
    dialect, _, name = op_name(op).partition(".")
    if op_name(op) == "linalg.generic":
        if len(op.results) == 0:
            e.refuse("has no result: bufferized modules are not supported, use tensors")
        return generic(e)
    if op_name(op) == "arith.constant":
        return [e.constant_of(e.attribute("value"))]
    table = {"linalg": LINALG, "tensor": TENSOR, "tosa": TOSA}.get(dialect)
    if table is not None and name in table:
        if len(op.results) != 1:
            e.refuse(f"has {len(op.results)} results, needs one: bufferized modules are not supported, use tensors")
        return [table[name](e)]
    if dialect in ("arith", "math") and len(op.results) == 1:
        return [scalars.apply(e, op_name(op), [e.get(value) for value in op.operands])]
    if table is not None:
        e.refuse(f"this operation is not supported; supported of {dialect} are {', '.join(table)}")
    e.refuse("this operation is not supported: lower the module to linalg on tensors or to tosa")


def _model(e: OnnxEmitter, function: FuncOp, inputs: list[MlirTensor], outputs: list[MlirTensor]) -> OnnxModel:
    infos_out = []
    for index, tensor in enumerate(outputs):
        name = f"result{index}" if len(outputs) > 1 else "result"
        e.nodes.append(helper.make_node("Identity", [e.name(tensor)], [name], name=f"func.return@{name}"))
        infos_out.append(helper.make_tensor_value_info(name, code(tensor.kind), tensor.shape))
    graph = helper.make_graph(
        e.nodes, function.sym_name.data,
        [helper.make_tensor_value_info(argument.name, code(argument.kind), argument.shape) for argument in inputs],
        infos_out, initializers(e),
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    model = prepare(proto, e.source.name)
    model.places = e.places
    return model
