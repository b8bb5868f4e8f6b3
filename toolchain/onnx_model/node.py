"""One ONNX node while it is lowered: its inputs, its outputs, its refusals.

What the compiler knows of a node it evaluates by ONNX's own definition.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from npu_device.abi.opcodes import DataType
from toolchain.errors import ModelError
from toolchain.ir.data_types import NUMPY, ONNX, PACKED
from toolchain.ir.graph import Attribute, Graph, LayerIR, Role, TensorIR, Values
from toolchain.onnx_model.model import OnnxModel, TensorInfo


class Operator(NamedTuple):
    """A row of the operator table."""

    lower: Callable[["Node"], None]
    attributes: dict[str, str]
    """Attribute -> what of it is supported."""
    types: frozenset[DataType]
    """Element types that the tensors of the node may have."""
    note: str = ""
    """How it reaches the device, for the documentation."""
    constant: tuple[int, ...] = ()
    """Inputs that must be constant."""


class Node:
    """The node under work. Layers and tensors that it makes go into `graph`."""

    def __init__(self, proto: Any, model: OnnxModel, graph: Graph, compile_time: dict[str, Values]) -> None:
        self.proto = proto
        self.model = model
        self.graph = graph
        self._compile_time = compile_time
        self._attributes = {one.name: helper.get_attribute_value(one) for one in proto.attribute}
        self._made = 0
        self.name = node_name(proto)

    def refuse(self, what: str) -> NoReturn:
        """ModelError: this node, and what of it is not supported."""
        raise ModelError(
            f"{self.model.name}: node {self.name} ({self.proto.op_type}, opset {self.model.opset}): {what}"
        )

    # -- what it is given --------------------------------------------------------------------------------------

    @property
    def attributes(self) -> dict[str, Any]:
        """All that are given, as onnx.helper has them."""
        return dict(self._attributes)

    def attribute(self, name: str, otherwise: Any = None) -> Any:
        value = self._attributes.get(name, otherwise)
        return value.decode() if isinstance(value, bytes) else value

    def axis(self, rank: int, otherwise: int | None = None) -> int:
        """The attribute axis, counted from the front; refused where a tensor of that rank has none such."""
        given = int(self.attribute("axis", otherwise))
        if not -rank <= given < rank:
            self.refuse(f"attribute axis={given}: the tensor has {rank} dimensions")
        return given % rank

    def has(self, index: int) -> bool:
        """Whether an optional input is given."""
        return index < len(self.proto.input) and bool(self.proto.input[index])

    def info(self, index: int) -> TensorInfo:
        return self._info(self.proto.input[index])

    def out_info(self, index: int = 0) -> TensorInfo:
        return self._info(self.proto.output[index])

    def _info(self, name: str) -> TensorInfo:
        found, values = self.model.info.get(name), self._compile_time.get(name)
        if found is None and values is not None:
            return TensorInfo(_onnx_name(values), values.shape)
        if found is None:
            self.refuse(f"the shape of {name} is not known before the run; give the shapes of the inputs with --shape")
        return found

    def constant(self, index: int) -> Values | None:
        """The values of an input that never changes."""
        name = self.proto.input[index]
        return self._compile_time.get(name)

    def needed(self, index: int, what: str) -> Values:
        """The values of an input that must be known at compile time."""
        values = self.constant(index)
        if values is None:
            self.refuse(f"{what} ({self.proto.input[index]}) must be constant")
        return values

    def tensor(self, index: int) -> TensorIR:
        """An input as a tensor of the device."""
        return self.named(self.proto.input[index])

    def named(self, name: str) -> TensorIR:
        if name not in self.graph.tensors:
            values = self._compile_time.get(name)
            if values is None:
                self.refuse(f"data type {self._info(name).type} of {name} is not supported")
            info = self._info(name)
            kind = PACKED.get(info.type) or self.kind(info, name)
            if info.type == "INT64" and values.size and not -(1 << 31) <= values.min() <= values.max() < 1 << 31:
                self.refuse(f"{name} has values beyond INT32, which the device has for INT64")
            self.weight(values, kind, name)
        return self.graph.tensors[name]

    def kind(self, info: TensorInfo, name: str) -> DataType:
        found = ONNX.get(info.type)
        if found is None:
            self.refuse(f"data type {info.type} of {name}: supported are {', '.join(ONNX)}")
        return found

    def values(self, tensor: TensorIR) -> Values:
        """The values of a tensor that must be constant, in its shape."""
        found = self.graph.constant(tensor.id)
        if found is None:
            self.refuse(f"{tensor.id} of type {tensor.dtype.name} must be constant")
        return found

    # -- what it makes -----------------------------------------------------------------------------------------

    def weight(self, values: Values, kind: DataType, name: str = "") -> TensorIR:
        """A tensor of constant values."""
        tensor = TensorIR(name or self._fresh(), Role.WEIGHT, tuple(values.shape), kind)
        self.graph.tensors[tensor.id] = tensor
        self.graph.constants[tensor.id] = np.ascontiguousarray(values, NUMPY[kind]).reshape(values.shape)
        return tensor

    def scalar(self, value: float, kind: DataType) -> TensorIR:
        return self.weight(np.array([value]), kind)

    def temporary(self, shape: Sequence[int], kind: DataType) -> TensorIR:
        """A tensor between two layers of this node."""
        tensor = TensorIR(self._fresh(), Role.ACTIVATION, tuple(shape), kind)
        self.graph.tensors[tensor.id] = tensor
        return tensor

    def output(self, index: int = 0, kind: DataType | None = None) -> TensorIR:
        """The tensor of an output."""
        name, info = self.proto.output[index], self.out_info(index)
        tensor = TensorIR(name, Role.ACTIVATION, info.shape, kind or self.kind(info, name))
        self.graph.tensors[name] = tensor
        return tensor

    def layer(self, op_type: str, inputs: Sequence[TensorIR], output: TensorIR, **attributes: Attribute) -> None:
        name = layer_name(f"{self.name}.{self._made}" if self._made else self.name)
        self._made += 1
        self.graph.layers.append(LayerIR(name, op_type, tuple(one.id for one in inputs), (output.id,), attributes))

    def view(self, tensor: TensorIR, shape: Sequence[int], name: str = "") -> TensorIR:
        """The same bytes in another shape."""
        if tensor.elements != math.prod(shape):
            self.refuse(f"{tensor.id} of shape {list(tensor.shape)} has not the elements of {list(shape)}")
        base = tensor.view_of or tensor.id
        result = TensorIR(name or self._fresh(), tensor.role, tuple(shape), tensor.dtype, base)
        self.graph.tensors[result.id] = result
        return result

    def _fresh(self) -> str:
        prefix = (self.proto.output[0] or self.name).replace(" ", "_")
        count = 0
        while f"{prefix}.t{count}" in self.graph.tensors:
            count += 1
        return f"{prefix}.t{count}"


def node_name(proto: Any) -> str:
    """What a node is called in messages."""
    return str(proto.name or f"{proto.op_type}_{proto.output[0]}")


def layer_name(name: str) -> str:
    """A name without the characters that NPU-IR's text uses."""
    return name.replace(" ", "_").replace(":", "_")


def _onnx_name(values: Values) -> str:
    return {"float32": "FLOAT", "float16": "FLOAT16", "bool": "BOOL", "bfloat16": "BFLOAT16"}.get(
        values.dtype.name, values.dtype.name.upper()
    )


def evaluate(proto: Any, feeds: Mapping[str, Values], opsets: Iterable[Any]) -> list[Values]:
    """The outputs of a node whose inputs have these values. Raises what onnx.reference raises."""
    helper = onnx.helper
    kinds = {name: helper.np_dtype_to_tensor_dtype(values.dtype) for name, values in feeds.items()}
    graph = helper.make_graph(
        [proto], "constant",
        [helper.make_tensor_value_info(name, kinds[name], values.shape) for name, values in feeds.items()],
        [helper.make_empty_tensor_value_info(name) for name in proto.output if name],
    )  # fmt: skip
    results: Any = ReferenceEvaluator(helper.make_model(graph, opset_imports=list(opsets))).run(None, dict(feeds))
    return [np.asarray(one) for one in results]
