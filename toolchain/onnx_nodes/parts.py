"""Decomposition of a node into a graph of other ONNX operators."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from onnx import helper

from toolchain.ir.graph import Values
from toolchain.onnx_nodes.evaluation import TensorInfo
from toolchain.onnx_nodes.view import NodeView

MAX_NODES = 20_000
"""Maximum number of nodes that replace a node."""
CORE = "pyv_npu.core"
"""Domain of the kernels on the core."""


class ValidRows(NamedTuple):
    """Valid rows of a tensor, which precede the invalid ones."""

    number: str
    """One-element tensor with the number of valid rows."""
    axis: int
    """Dimension of the rows."""


class Tensor:
    """Tensor of a decomposition, whose overloaded operators add a node to the decomposition."""

    def __init__(self, parts: "Decomposition", name: str, dtype: Any) -> None:
        """`dtype`: array type of the elements, None if it is unknown."""
        self.parts, self.name, self.dtype = parts, name, dtype

    __array_ufunc__ = None  # an array as the left operand leaves the operator to the tensor

    def __add__(self, other: "Operand") -> "Tensor":
        return self.parts.make("Add", self, other)

    def __radd__(self, other: "Operand") -> "Tensor":
        return self.parts.make("Add", other, self)

    def __sub__(self, other: "Operand") -> "Tensor":
        return self.parts.make("Sub", self, other)

    def __rsub__(self, other: "Operand") -> "Tensor":
        return self.parts.make("Sub", other, self)

    def __mul__(self, other: "Operand") -> "Tensor":
        return self.parts.make("Mul", self, other)

    def __rmul__(self, other: "Operand") -> "Tensor":
        return self.parts.make("Mul", other, self)

    def __truediv__(self, other: "Operand") -> "Tensor":
        return self.parts.make("Div", self, other)

    def __rtruediv__(self, other: "Operand") -> "Tensor":
        return self.parts.make("Div", other, self)

    def __matmul__(self, other: "Operand") -> "Tensor":
        return self.parts.make("MatMul", self, other)

    def __rmatmul__(self, other: "Operand") -> "Tensor":
        return self.parts.make("MatMul", other, self)

    def __lt__(self, other: "Operand") -> "Tensor":
        return self.parts.make("Less", self, other)

    def __gt__(self, other: "Operand") -> "Tensor":
        return self.parts.make("Greater", self, other)

    def __neg__(self) -> "Tensor":
        return self.parts.make("Neg", self)

    def __abs__(self) -> "Tensor":
        return self.parts.make("Abs", self)

    def equal(self, other: "Operand") -> "Tensor":
        return self.parts.make("Equal", self, other)

    def where(self, yes: "Operand", no: "Operand") -> "Tensor":
        """Return `yes` where this condition is true, else `no`."""
        return self.parts.make("Where", self, yes, no)

    def max(self, other: "Operand") -> "Tensor":
        return self.parts.make("Max", self, other)

    def min(self, other: "Operand") -> "Tensor":
        return self.parts.make("Min", self, other)

    def clip(self, low: "Operand", high: "Operand") -> "Tensor":
        return self.parts.make("Clip", self, low, high)

    def reshape(self, *shape: int) -> "Tensor":
        return self.parts.make("Reshape", self, shape)

    def transpose(self, *order: int) -> "Tensor":
        return self.parts.make("Transpose", self, perm=order)

    def slice(self, axis: int, start: int, end: int, step: int = 1) -> "Tensor":
        """Return a slice of an axis. `end` is exclusive; with a negative step, -1 includes the first element."""
        stop = end if step > 0 or end >= 0 else -(1 << 31)
        return self.parts.make("Slice", self, [start], [stop], [axis], [step])

    def cast(self, kind: Any) -> "Tensor":
        return self.parts.make("Cast", self, to=helper.np_dtype_to_tensor_dtype(np.dtype(kind)))

    def float32(self) -> "Tensor":
        """Return the tensor in FP32."""
        return self if self.dtype == np.float32 else self.cast(np.float32)


Operand = Tensor | str | float | Sequence[int] | Values | np.float32 | None
"""Tensor, name of a tensor, number of the type of the other operand, INT64 list, array; None for no input."""
_KINDS: dict[str, Any] = {
    "And": np.bool_, "ArgMax": np.int64, "DynamicQuantizeLinear": np.uint8, "Equal": np.bool_, "Greater": np.bool_,
    "IsNaN": np.bool_, "Less": np.bool_, "MatMulInteger": np.int32, "Not": np.bool_, "Shape": np.int64,
}  # fmt: skip
"""Operator -> array type of its result, if that is no type of an operand."""
_TYPED_BY = {"CastLike": 1, "DequantizeLinear": 1, "Where": 1}
"""Operator -> operand with the type of its result, if that is not the first."""


class Decomposition:
    """Builder of the nodes that replace `node`, and their constants, with names prefixed by that of its first
    output."""

    def __init__(self, node: NodeView) -> None:
        self.node = node
        self.nodes: list[Any] = []
        self.constants: dict[str, Values] = {}
        self.infos: dict[str, TensorInfo] = {}
        """Types and shapes that ONNX's inference does not determine."""
        self.counts: dict[str, ValidRows] = {}
        """Tensors with an open row count."""
        self._prefix = next(name for name in node.proto.output if name)

    @property
    def kind(self) -> Any:
        """Array type of the first input."""
        return self.node.numpy_type(0)

    def input(self, index: int) -> Tensor:
        name = self.node.proto.input[index]
        return Tensor(self, name, self.node.numpy_type(index) if self.node.is_typed(name) else None)

    def optional(self, index: int) -> Tensor | None:
        """Return an input, None if the node does not have it."""
        return self.input(index) if self.node.has(index) else None

    def plus(self, x: Tensor, index: int) -> Tensor:
        """Return the tensor plus an input, if the node has it."""
        return x + self.input(index) if self.node.has(index) else x

    def constant(self, values: Any) -> Tensor:
        """Add a constant."""
        name = f"{self._prefix}/constant{len(self.constants)}"
        self.constants[name] = np.asarray(values)
        return Tensor(self, name, self.constants[name].dtype)

    def number(self, value: float) -> Tensor:
        """Add a number of the first input's type."""
        return self.constant(np.array(value, self.kind))

    def make(self, operator: str, *operands: Operand, **attributes: Any) -> Tensor:
        """Add a node with one output."""
        return self.several(1, operator, *operands, **attributes)[0]

    def several(self, count: int, operator: str, *operands: Operand, **attributes: Any) -> list[Tensor]:
        """Add a node with several outputs."""
        names = [f"{self._prefix}/{len(self.nodes)}.{index}" for index in range(count)]
        kind = self._add(operator, operands, names, attributes)
        return [Tensor(self, name, None if index else kind) for index, name in enumerate(names)]

    def result(self, operator: str, *operands: Operand, index: int = 0, **attributes: Any) -> None:
        """Add the node of an output of the decomposed node."""
        self._add(operator, operands, [self.node.proto.output[index]], attributes)

    def output(self, x: Tensor, index: int = 0) -> None:
        """Turn the result of the last node into an output of the decomposed node."""
        assert self.nodes[-1].output[0] == x.name
        self.nodes[-1].output[0] = self.node.proto.output[index]

    def _add(self, operator: str, operands: Sequence[Operand], outputs: list[str], attributes: dict[str, Any]) -> Any:
        """Add a node, and return the array type of its first output, None if it is unknown."""
        if len(self.nodes) >= MAX_NODES:
            self.node.refuse(f"it becomes more than {MAX_NODES} nodes: smaller windows or shapes")
        typed = operands[_TYPED_BY.get(operator, 0) :]
        arrays = (operand for operand in typed if isinstance(operand, Tensor | np.ndarray | np.float32))
        kind = next((operand.dtype for operand in arrays), None)
        inputs = [self._name(operand, kind) for operand in operands]
        while inputs and not inputs[-1]:
            inputs.pop()
        name = f"{self.node.name}/{operator}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, outputs, name, **attributes))
        return helper.tensor_dtype_to_np_dtype(attributes["to"]) if operator == "Cast" else _KINDS.get(operator, kind)

    def _name(self, operand: Operand, kind: Any) -> str:
        """Return the name of an operand, after adding a constant; a number has the type `kind`."""
        if isinstance(operand, Tensor):
            return operand.name
        if operand is None or isinstance(operand, str):
            return operand or ""
        if isinstance(operand, int | float):
            operand = np.array(operand, self.kind if kind is None else kind)
        return self.constant(np.array(operand, np.int64) if isinstance(operand, list | tuple) else operand).name

    # -- shared building blocks ----------------------------------------------------------------------------------------

    def reshaped_result(self, x: Tensor) -> None:
        """Add the output as a reshaped tensor, with the known output shape."""
        self.result("Reshape", x, self.node.out_info(0).shape)

    def joined(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        return tensors[0] if len(tensors) == 1 else self.make("Concat", *tensors, axis=axis)

    def row(self, index: int, at: int) -> Tensor:
        """Return a row of an input, folded if the input is constant."""
        values = self.node.constant(index)
        if values is not None:
            return self.constant(values[at])
        return self.make("Gather", self.input(index), np.array(at, np.int64), axis=0)


def places_along(axis: int, shape: Sequence[int]) -> Values:
    """Return the indices along an axis, in a shape that broadcasts to `shape`."""
    return np.arange(shape[axis]).reshape([-1 if at == axis else 1 for at in range(len(shape))])


Compose = Callable[[Decomposition], None]


class Composition(NamedTuple):
    """Decomposition of an operator of another domain: text for docs/onnx-coverage.md, function, attributes."""

    becomes: str
    compose: Compose
    attributes: tuple[str, ...] = ()
