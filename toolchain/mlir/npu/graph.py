"""NPU-IR as a module of the dialect `npu`, and back."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

import numpy as np
from xdsl.dialects import builtin as b
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.utils.exceptions import VerifyException

from npu_device.abi.opcodes import DataType
from toolchain.errors import ModelError, ToolchainError
from toolchain.ir.data_types import NUMPY
from toolchain.ir.graph import Attribute as LayerAttribute
from toolchain.ir.graph import Graph, LayerIR, Role, TensorIR, Values
from toolchain.ir.verify import IrError, verify
from toolchain.mlir.text import dialect
from toolchain.mlir.text.dialect import ELEMENTS, LAYERS, SPACES
from toolchain.mlir.text.source import MlirSource
from toolchain.mlir.text.values import integers

_SHOWN = ("shape", "dtype", "storage_class", "view_of")
"""Tensor fields that the type or an operand expresses."""
_TYPES = {kind: data for data, kind in ELEMENTS.items()}
_CLASSES = {name: storage for storage, name in SPACES.items()}
_PLAIN = (DataType.FP32, DataType.FP16, DataType.INT32, DataType.INT8, DataType.UINT8)
_BYTES: dict[np.dtype[Any], Any] = {NUMPY[kind]: ELEMENTS[kind] for kind in _PLAIN}
"""Array types of constants in the text; other types are written as integers of equal size."""


# -- to a module -------------------------------------------------------------------------------------------------------


def module_of(graph: Graph) -> b.ModuleOp:
    """Return the module of a graph: a function with tensor declarations and one operation per layer."""
    block = Block()
    values: dict[str, SSAValue] = {}
    for tensor in sorted(graph.tensors.values(), key=lambda entry: bool(entry.view_of)):
        op = _declared(graph, tensor, values)
        op.results[0].name_hint = _hint(tensor.id)
        block.add_op(op)
        values[tensor.id] = op.results[0]
    for layer in graph.layers:
        block.add_op(_operation(layer, values))
    order = b.ArrayAttr([b.StringAttr(name) for name in graph.tensors])
    order_op = dialect.GraphOp.create(operands=[values[name] for name in graph.outputs], attributes={"order": order})
    block.add_op(order_op)
    function = FuncOp(_hint(graph.name) or "graph", ((), ()), Region(block))
    function.attributes["npu.graph"] = b.StringAttr(graph.name)
    return b.ModuleOp([function])


def _hint(name: str) -> str | None:
    identifier = "".join(letter if letter.isalnum() else "_" for letter in name)
    return f"t_{identifier}" if not identifier[:1].isalpha() else identifier


def _memref(tensor: TensorIR) -> b.MemRefType:
    space = b.StringAttr(SPACES[tensor.storage_class])
    return b.MemRefType(ELEMENTS[tensor.dtype], tensor.shape, b.NoneAttr(), space)


def _declared(graph: Graph, tensor: TensorIR, values: Mapping[str, SSAValue]) -> Operation:
    named = {"id": tensor.id, "role": tensor.role, **tensor.settings}
    attributes = {name: to_attribute(value) for name, value in named.items() if name not in _SHOWN}
    op: type[Operation] = dialect.TensorOp
    if tensor.id in graph.inputs:
        attributes["index"], op = to_attribute(graph.inputs.index(tensor.id)), dialect.InputOp
    elif tensor.id in graph.constants and not tensor.view_of:
        attributes["value"], op = _dense(graph.constants[tensor.id]), dialect.ConstantOp
    if tensor.view_of:
        op = dialect.ViewOp
    operands = [values[tensor.view_of]] if tensor.view_of else []
    return op.create(operands=operands, result_types=[_memref(tensor)], attributes=attributes)


def _dense(values: Values) -> Attribute:
    stored = np.ascontiguousarray(values)
    kind = _BYTES.get(stored.dtype) or b.IntegerType(8 * stored.itemsize, b.Signedness.UNSIGNED)
    shape = b.TensorType(kind, values.shape)
    return b.DenseIntOrFPElementsAttr(shape, b.BytesAttr(stored.tobytes()))


def to_attribute(value: Any) -> Attribute:
    """Return a number, a string or a list of integers as an attribute."""
    if isinstance(value, bool):
        return b.IntegerAttr(int(value), b.i1)
    if isinstance(value, tuple):
        return b.DenseArrayBase.from_list(b.i64, list(value))
    if isinstance(value, str):
        return b.StringAttr(value)
    if isinstance(value, float):
        return b.FloatAttr(value, b.f64)
    if isinstance(value, int):
        return b.IntegerAttr(value, b.i64)
    raise ToolchainError(f"attribute {value!r}: NPU-IR has numbers, texts and lists of whole numbers")


def _operation(layer: LayerIR, values: Mapping[str, SSAValue]) -> Operation:
    attributes = {"id": to_attribute(layer.id)}
    attributes |= {name: to_attribute(value) for name, value in layer.attributes.items()}
    groups = [[values[name] for name in names] for names in (layer.inputs, layer.outputs)]
    return LAYERS[layer.op_type].build(operands=groups, attributes=attributes)


# -- from a module -----------------------------------------------------------------------------------------------------


def is_graph(source: MlirSource) -> bool:
    """Check whether a module holds NPU-IR."""
    return any(isinstance(op, FuncOp) and "npu.graph" in op.attributes for op in source.module.body.ops)


def graph_of(source: MlirSource) -> Graph:
    """Return the graph of a module. ModelError: file:line:column, operation and rule."""
    functions = [op for op in source.module.body.ops if isinstance(op, FuncOp)]
    if len(functions) != 1 or len(functions[0].body.blocks) != 1:
        raise ModelError(f"{source.name}: NPU-IR is one function of one block: drop the others")
    function = functions[0]
    name = from_attribute(source, function, "npu.graph", "")
    graph, values, inputs = Graph(str(name)), dict[SSAValue, str](), dict[int, str]()
    order: list[str] = []
    for op in function.body.blocks[0].ops:
        try:
            op.verify()
        except VerifyException as error:
            source.refuse(op, _one_line(error))
        if isinstance(op, dialect.GraphOp):
            graph.outputs = tuple(_name(source, op, values, value) for value in op.operands)
            order = _order(op, graph)
        elif isinstance(op, dialect.LayerOperation):
            graph.layers.append(_layer(source, op, values))
        elif isinstance(op, dialect.TensorOp | dialect.InputOp | dialect.ConstantOp | dialect.ViewOp):
            _declare(source, op, graph, values, inputs)
        else:
            source.refuse(op, "is no layer or tensor of NPU-IR: drop it")
    graph.inputs = tuple(inputs[index] for index in sorted(inputs))
    graph.tensors = {name: graph.tensors[name] for name in order}
    try:
        verify(graph)
    except IrError as error:
        raise ModelError(f"{source.name}: {error}: correct the module") from None
    except (AssertionError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ModelError(f"{source.name}: an attribute has a wrong type or value ({error}): correct it") from None
    return graph


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = next((line.partition("Operation does not verify: ")[2] for line in lines if "does not verify" in line), "")
    return (text or (lines[-1] if lines else type(error).__name__))[:200]


def _order(op: Operation, graph: Graph) -> list[str]:
    attribute = op.attributes.get("order")
    items = attribute.data if isinstance(attribute, b.ArrayAttr) else ()
    names = [item.data for item in items if isinstance(item, b.StringAttr)]
    return names if sorted(names) == sorted(graph.tensors) else list(graph.tensors)


def _name(source: MlirSource, op: Operation, values: Mapping[SSAValue, str], value: SSAValue) -> str:
    label = values.get(value)
    if label is None:
        source.refuse(op, "an operand is no tensor of the graph")
    return label


def _declare(
    source: MlirSource, op: Operation, graph: Graph, values: dict[SSAValue, str], inputs: dict[int, str]
) -> None:
    kind = op.results[0].type
    if not isinstance(kind, b.MemRefType) or kind.element_type not in _TYPES:
        source.refuse(op, f"type {kind}: an element type must be one of {', '.join(map(str, _TYPES))}")
    shape = tuple(kind.get_shape())
    if min(shape, default=1) < 1 or math.prod(shape) > 1 << 40:
        source.refuse(op, f"type {kind}: every dimension must be 1 or more")
    memory = dialect.space(kind)
    if memory not in _CLASSES:
        source.refuse(op, f"memory {memory}: a tensor of the graph is in {' or '.join(_CLASSES)}")
    attributes: dict[str, Any] = {}
    for field in fields(TensorIR):
        if field.name in op.attributes and field.name not in _SHOWN:
            attributes[field.name] = from_attribute(source, op, field.name, None)
            if field.default is not MISSING and type(attributes[field.name]) is not type(field.default):
                source.refuse(op, f"attribute {field.name}: must be of type {type(field.default).__name__}")
    if attributes.get("role") not in list(Role) or not isinstance(attributes.get("id"), str):
        source.refuse(op, f"needs attributes id, and role, one of {', '.join(Role)}")
    attributes["role"] = Role(attributes["role"])
    if isinstance(op, dialect.ViewOp):
        attributes["view_of"] = _name(source, op, values, op.operands[0])
    tensor = TensorIR(shape=shape, dtype=_TYPES[kind.element_type], storage_class=_CLASSES[memory], **attributes)
    if tensor.id in graph.tensors:
        source.refuse(op, f"tensor {tensor.id} is there already: give it another id")
    graph.tensors[tensor.id] = tensor
    values[op.results[0]] = tensor.id
    if "index" in op.attributes:
        index = from_attribute(source, op, "index", None)
        if not isinstance(index, int) or index in inputs:
            source.refuse(op, f"index {index}: must be a number that no other input has")
        inputs[index] = tensor.id
    if isinstance(op, dialect.ConstantOp):
        graph.constants[tensor.id] = _values(source, op, tensor)


def _values(source: MlirSource, op: dialect.ConstantOp, tensor: TensorIR) -> Values:
    dtype, data = NUMPY.get(tensor.dtype, np.dtype(np.uint8)), op.value.data.data
    shape = tuple(op.value.type.get_shape())
    count = math.prod(shape)
    if len(data) == dtype.itemsize != count * dtype.itemsize:
        return np.broadcast_to(np.frombuffer(data, dtype), shape)
    if len(data) != count * dtype.itemsize:
        source.refuse(
            op, f"value has {len(data)} bytes, {count} elements of {tensor.dtype.name} need {dtype.itemsize} each"
        )
    return np.frombuffer(data, dtype).reshape(shape)


def from_attribute(source: MlirSource, op: Operation, name: str, otherwise: Any) -> LayerAttribute:
    """Return the NPU-IR value of an attribute."""
    value = op.attributes.get(name)
    if value is None:
        return otherwise
    if isinstance(value, b.StringAttr):
        return value.data
    if isinstance(value, b.FloatAttr):
        return float(value.value.data)
    if isinstance(value, b.IntegerAttr):
        return bool(value.value.data) if value.type == b.i1 else int(value.value.data)
    numbers = integers(value) if isinstance(value, b.DenseArrayBase) else None
    if numbers is not None:
        return numbers
    source.refuse(op, f"attribute {name}: must be a number, a text or a list of whole numbers")


def _layer(source: MlirSource, op: dialect.LayerOperation, values: Mapping[SSAValue, str]) -> LayerIR:
    inputs, outputs = (tuple(_name(source, op, values, operand) for operand in group) for group in (op.ins, op.outs))
    attributes = {name: from_attribute(source, op, name, None) for name in op.attributes if name != "id"}
    label = from_attribute(source, op, "id", "")
    if not isinstance(label, str) or not label:
        source.refuse(op, "needs attribute id, the name of the layer")
    return LayerIR(label, op.OPERATION, inputs, outputs, attributes)
