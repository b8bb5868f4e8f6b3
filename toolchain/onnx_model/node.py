"""Lowering context of an ONNX node: inputs, outputs and refusal.

Constants are evaluated by ONNX's own definition.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from npu_device.abi.opcodes import DataType
from toolchain.ir.data_types import LARGER, NUMPY, ONNX, PACKED
from toolchain.ir.graph import Attribute, Graph, LayerIR, Role, TensorIR, Values
from toolchain.onnx_model.model import OnnxModel
from toolchain.onnx_nodes.evaluation import TensorInfo
from toolchain.onnx_nodes.parts import Compose
from toolchain.onnx_nodes.view import NodeView


class Operator(NamedTuple):
    """Row of the operator table."""

    lower: Callable[["Node"], None]
    attributes: dict[str, str]
    """Attribute -> its supported values."""
    types: frozenset[DataType]
    """Supported element types of the node's tensors."""
    note: str = ""
    """Note on the lowering, for the documentation."""
    constant: tuple[int, ...] = ()
    """Inputs that must be constant."""
    compose: Compose | None = None
    """Decomposition into other operators, which replaces `lower`."""
    composed: Callable[["Node"], bool] = lambda node: True
    """Function that checks whether a node is decomposed."""


class Node(NodeView):
    """Node under lowering. Its layers and tensors are added to `graph`."""

    def __init__(self, proto: Any, model: OnnxModel, graph: Graph, compile_time: dict[str, Values]) -> None:
        super().__init__(proto, model.name, model.opset, model.info, compile_time)
        self.model = model
        self.graph = graph
        self._count = 0
        if place := model.places.get(self.name.partition("/")[0]):
            self._location = place

    # -- inputs ------------------------------------------------------------------------------------------------

    def tensor(self, index: int) -> TensorIR:
        """Return an input as a tensor of the graph."""
        return self.named(self.proto.input[index])

    def named(self, name: str) -> TensorIR:
        if name not in self.graph.tensors:
            values = self._constants.get(name)
            if values is None:
                self.refuse(f"data type {self._info(name).type} of {name} is not supported")
            info = self._info(name)
            kind = PACKED.get(info.type) or self.kind(info, name)
            if info.type in LARGER and values.size and not -(1 << 31) <= values.min() <= values.max() < 1 << 31:
                self.refuse(f"{name} has values beyond INT32, which the device has for {info.type}")
            if info.type == "DOUBLE" and np.any(np.isfinite(values) & (np.abs(values) > np.finfo(np.float32).max)):
                self.refuse(f"{name} has values beyond FLOAT, which the device has for DOUBLE")
            self.weight(values, kind, name)
        return self.graph.tensors[name]

    def kind(self, info: TensorInfo, name: str) -> DataType:
        dtype = ONNX.get(info.type)
        if dtype is None:
            self.refuse(f"data type {info.type} of {name}: supported are {', '.join(ONNX)}")
        return dtype

    def values(self, tensor: TensorIR) -> Values:
        """Return the values of a tensor that must be constant, in its shape."""
        values_of_constant = self.graph.constant(tensor.id)
        if values_of_constant is None:
            self.refuse(f"{tensor.id} of type {tensor.dtype.name} must be constant")
        return values_of_constant

    # -- outputs -----------------------------------------------------------------------------------------------

    def weight(self, values: Values, kind: DataType, name: str = "") -> TensorIR:
        """Add a tensor with constant values."""
        tensor = TensorIR(name or self._new_name(), Role.WEIGHT, tuple(values.shape), kind)
        self.graph.tensors[tensor.id] = tensor
        self.graph.constants[tensor.id] = np.ascontiguousarray(values, NUMPY[kind]).reshape(values.shape)
        return tensor

    def scalar(self, value: float, kind: DataType) -> TensorIR:
        return self.weight(np.array([value]), kind)

    def temporary(self, shape: Sequence[int], kind: DataType) -> TensorIR:
        """Add a tensor between two layers of this node."""
        tensor = TensorIR(self._new_name(), Role.ACTIVATION, tuple(shape), kind)
        self.graph.tensors[tensor.id] = tensor
        return tensor

    def output(self, index: int = 0) -> TensorIR:
        """Add the tensor of an output."""
        name, info = self.proto.output[index], self.out_info(index)
        tensor = TensorIR(name, Role.ACTIVATION, info.shape, self.kind(info, name))
        self.graph.tensors[name] = tensor
        return tensor

    def layer(
        self, op_type: str, inputs: Sequence[TensorIR], output: TensorIR | Sequence[TensorIR], **attributes: Attribute
    ) -> None:
        name = layer_name(f"{self.name}.{self._count}" if self._count else self.name)
        self._count += 1
        outputs = (output,) if isinstance(output, TensorIR) else output
        read, written = (tuple(tensor.id for tensor in tensors) for tensors in (inputs, outputs))
        self.graph.layers.append(LayerIR(name, op_type, read, written, attributes))

    def view(self, tensor: TensorIR, shape: Sequence[int], name: str = "") -> TensorIR:
        """Return a view with another shape on the same bytes."""
        if tensor.elements != math.prod(shape):
            self.refuse(f"{tensor.id} of shape {list(tensor.shape)} has not the elements of {list(shape)}")
        base = tensor.view_of or tensor.id
        result = TensorIR(name or self._new_name(), tensor.role, tuple(shape), tensor.dtype, base)
        self.graph.tensors[result.id] = result
        return result

    def _new_name(self) -> str:
        prefix = (self.proto.output[0] or self.name).replace(" ", "_")
        count = 0
        while f"{prefix}.t{count}" in self.graph.tensors:
            count += 1
        return f"{prefix}.t{count}"


def layer_name(name: str) -> str:
    """Replace the characters in a name that are reserved in the text of NPU-IR."""
    return name.replace(" ", "_").replace(":", "_")
