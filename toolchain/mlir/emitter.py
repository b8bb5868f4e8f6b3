"""Emitter of ONNX nodes for MLIR operations.

Modules thereby share the operator table, the passes and the reference of ONNX models. Shape changes of constants are
folded here.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
from onnx import helper, numpy_helper
from xdsl.ir import Attribute, Operation, SSAValue

from toolchain.ir.graph import Values
from toolchain.mlir.text.source import MlirSource, op_name
from toolchain.mlir.text.values import NUMPY, constant, element, integers, shape_of, splat, type_problem
from toolchain.onnx_nodes.evaluation import evaluate

OPSET = 20
_INDICES = ("INT64", "BOOL")
_MAX_FOLDED = 64
"""Maximum size of a folded result, elements."""
MAX_CONSTANT = 1 << 30
"""Maximum size of a constant that a node reads, bytes."""


class MlirTensor(NamedTuple):
    """Value of the module: a tensor of the model, or a constant."""

    name: str
    kind: str
    """ONNX name of the element type."""
    shape: tuple[int, ...]
    values: Values | None = None
    """Values of a constant; None for any other tensor."""

    @property
    def rank(self) -> int:
        return len(self.shape)

    def equals(self, value: float) -> bool:
        """Check whether the tensor is a constant with all elements equal to `value`."""
        value_of_splat = None if self.values is None else splat(self.values)
        return value_of_splat is not None and bool(value_of_splat == value)


class OnnxEmitter:
    """ONNX nodes under construction, and the tensors of the module's values."""

    def __init__(self, source: MlirSource) -> None:
        self.source = source
        self.nodes: list[Any] = []
        self.initializers: dict[str, Values] = {}
        self.places: dict[str, str] = {}
        """Node -> file:line:column: operation."""
        self._tensors: dict[SSAValue, MlirTensor] = {}
        self._named: dict[int, tuple[str, Values]] = {}
        self._names: dict[str, int] = {}
        self.op: Operation = source.module

    # -- operands and attributes ---------------------------------------------------------------------------------

    def refuse(self, reason: str) -> NoReturn:
        self.source.refuse(self.op, reason)

    def typed(self, kind: Attribute) -> tuple[str, tuple[int, ...]]:
        """Return (element type, shape). ModelError: the type is not supported."""
        if reason := type_problem(kind):
            self.refuse(reason)
        inside, shape = element(getattr(kind, "element_type", kind)), shape_of(kind)
        assert inside is not None and shape is not None
        return inside, shape

    def define(self, value: SSAValue, tensor: MlirTensor) -> None:
        """Bind a value of the module to a tensor. ModelError: its declared type differs."""
        kind, shape = self.typed(value.type)
        if (kind, shape) != (tensor.kind, tensor.shape):
            self.refuse(f"gives {tensor.kind} {list(tensor.shape)}, its type is {value.type}: correct the types")
        self._tensors[value] = tensor

    def get(self, value: SSAValue) -> MlirTensor:
        tensor = self._tensors.get(value)
        if tensor is None:
            self.refuse("an operand comes from another region: move its operation into the function")
        return tensor

    def attribute(self, *names: str) -> Attribute | None:
        """Return the first of these attributes that the operation has; None for none."""
        for name in names:
            for attributes in (self.op.properties, self.op.attributes):
                if name in attributes:
                    return attributes[name]
        return None

    def numbers(self, name: str, otherwise: Sequence[int] | None = None, size: int | None = None) -> tuple[int, ...]:
        """Return an attribute with a list of integers."""
        attribute = self.attribute(name)
        values = integers(attribute) if attribute is not None else None if otherwise is None else tuple(otherwise)
        if values is None:
            self.refuse(f"needs attribute {name}, a list of whole numbers")
        return self.sized(values, size, f"attribute {name}")

    def sized(self, values: tuple[int, ...], size: int | None, label: str) -> tuple[int, ...]:
        if size is not None and len(values) == 1 and size > 1:
            values *= size
        if size is not None and len(values) != size:
            self.refuse(f"{label} has {len(values)} numbers, needs {size}")
        return values

    def number(self, name: str, otherwise: int | None = None) -> int:
        return self.numbers(name, None if otherwise is None else (otherwise,), 1)[0]

    # -- constants -----------------------------------------------------------------------------------------------

    def constant_of(self, value: Attribute | None) -> MlirTensor:
        """Return the constant of an attribute."""
        value_of_constant = None if value is None else constant(value, self.source.context)
        if value_of_constant is None:
            self.refuse("holds no values that can be read: write dense<...> or dense_resource<...> with its blob")
        return self.constant(value_of_constant)

    def constant(self, values: Values, kind: str = "") -> MlirTensor:
        """Return a constant; it becomes an initializer when a node reads it."""
        kind = kind or next(name for name, array in NUMPY.items() if array == values.dtype)
        return MlirTensor("", kind, values.shape, values.astype(NUMPY[kind], copy=False))

    def scalar(self, value: float, kind: str) -> MlirTensor:
        return self.constant(np.array(value).astype(NUMPY[kind]))

    def needed(self, tensor: MlirTensor, label: str) -> Values:
        """Return the values of an operand that must be constant."""
        if tensor.values is None:
            self.refuse(f"{label} must be constant")
        return tensor.values

    def index(self, *numbers: int) -> MlirTensor:
        return self.constant(np.array(numbers, np.int64))

    # -- nodes ---------------------------------------------------------------------------------------------------

    def unique_name(self, stem: str) -> str:
        count = self._names[stem] = self._names.get(stem, 0) + 1
        return stem if count == 1 else f"{stem}_{count}"

    def name(self, tensor: MlirTensor) -> str:
        """Return the name by which nodes read a tensor; a constant becomes an initializer."""
        if tensor.values is None:
            return tensor.name
        if id(tensor.values) not in self._named:
            if tensor.values.nbytes > MAX_CONSTANT:
                self.refuse(f"reads a constant of {tensor.values.nbytes} bytes: at most {MAX_CONSTANT}")
            name = self.unique_name("constant")
            self._named[id(tensor.values)] = (name, tensor.values)
            self.initializers[name] = np.ascontiguousarray(tensor.values).reshape(tensor.shape)
        return self._named[id(tensor.values)][0]

    def node(
        self, operator: str, inputs: Sequence[MlirTensor | None], kind: str, shape: Sequence[int], **attributes: Any
    ) -> MlirTensor:
        """Add a node and return its output. A node on small constant indices is folded."""
        constants = [tensor.values for tensor in inputs if tensor is not None and tensor.values is not None]
        if kind in _INDICES and len(constants) == len(inputs) and math.prod(shape) <= _MAX_FOLDED:
            names = [f"x{index}" for index in range(len(inputs))]
            node = helper.make_node(operator, names, ["y"], **attributes)
            (values,) = evaluate(node, dict(zip(names, constants, strict=True)), [helper.make_opsetid("", OPSET)])
            return self.constant(np.asarray(values).astype(NUMPY[kind]))
        line = self.source.line(self.op)
        name = self.unique_name(f"{op_name(self.op)}@{line}")
        self.places[name] = f"{self.source.place(self.op)}: {op_name(self.op)}"
        names = ["" if tensor is None else self.name(tensor) for tensor in inputs]
        self.nodes.append(helper.make_node(operator, names, [name], name=name, **attributes))
        return MlirTensor(name, kind, tuple(shape))

    def elementwise(self, operator: str, *inputs: MlirTensor, kind: str = "") -> MlirTensor:
        """Add a broadcasting elementwise operator. A constant with equal elements becomes a scalar."""
        try:
            shape = np.broadcast_shapes(*(operand.shape for operand in inputs))
        except ValueError:
            self.refuse(f"shapes {', '.join(str(list(operand.shape)) for operand in inputs)} do not fit each other")
        reduced = [self._single(operand) for operand in inputs]
        broadcasts = np.broadcast_shapes(*(operand.shape for operand in reduced)) == shape
        return self.node(operator, reduced if broadcasts else inputs, kind or inputs[-1].kind, shape)

    def _single(self, tensor: MlirTensor) -> MlirTensor:
        value = None if tensor.values is None or tensor.values.size == 1 else splat(tensor.values)
        return tensor if value is None else self.scalar(value, tensor.kind)

    def cast(self, tensor: MlirTensor, kind: str) -> MlirTensor:
        if tensor.kind == kind:
            return tensor
        if tensor.values is not None:
            return self.constant(tensor.values.astype(NUMPY[kind]))
        return self.node("Cast", [tensor], kind, tensor.shape, to=code(kind))

    def reshape(self, tensor: MlirTensor, shape: Sequence[int]) -> MlirTensor:
        if tuple(shape) == tensor.shape:
            return tensor
        if math.prod(shape) != math.prod(tensor.shape):
            self.refuse(f"{list(tensor.shape)} has not the elements of {list(shape)}")
        if tensor.values is not None:
            value = splat(tensor.values)
            return self.constant(tensor.values.reshape(shape) if value is None else np.broadcast_to(value, shape))
        return self.node("Reshape", [tensor, self.index(*shape)], tensor.kind, shape)

    def transpose(self, tensor: MlirTensor, order: Sequence[int]) -> MlirTensor:
        """Transpose: dimension i of the result is dimension order[i]."""
        if sorted(order) != list(range(tensor.rank)):
            self.refuse(f"permutation {list(order)} must name the {tensor.rank} dimensions once")
        if list(order) == list(range(tensor.rank)):
            return tensor
        shape = [tensor.shape[axis] for axis in order]
        if tensor.values is not None:
            return self.constant(tensor.values.transpose(order))
        if [axis for axis in order if tensor.shape[axis] > 1] == [a for a in range(tensor.rank) if tensor.shape[a] > 1]:
            return self.reshape(tensor, shape)
        return self.node("Transpose", [tensor], tensor.kind, shape, perm=list(order))

    def expand(self, tensor: MlirTensor, shape: Sequence[int]) -> MlirTensor:
        """Broadcast to a shape by numpy's rules."""
        if tensor.shape == tuple(shape):
            return tensor
        try:
            fits = np.broadcast_shapes(tensor.shape, tuple(shape)) == tuple(shape)
        except ValueError:
            fits = False
        if not fits:
            self.refuse(f"makes {list(tensor.shape)}, its result has {list(shape)}")
        if tensor.values is not None:
            return self.constant(np.broadcast_to(tensor.values, tuple(shape)))
        return self.node("Expand", [tensor, self.index(*shape)], tensor.kind, shape)

    def slice(
        self, tensor: MlirTensor, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]
    ) -> MlirTensor:
        """Return the elements starts, starts + steps, ... of each dimension."""
        lasts = [start + (size - 1) * step for start, size, step in zip(starts, sizes, steps, strict=True)]
        for start, last, size, step, length in zip(starts, lasts, sizes, steps, tensor.shape, strict=True):
            if size < 1 or step < 1 or start < 0 or last >= length:
                self.refuse(f"elements {start}..{last} in steps of {step} are not in a dimension of {length}")
        if tuple(sizes) == tensor.shape:
            return tensor
        if tensor.values is not None:
            return self.constant(
                tensor.values[tuple(slice(a, z + 1, s) for a, z, s in zip(starts, lasts, steps, strict=True))]
            )
        axes = self.index(*range(tensor.rank))
        ends = self.index(*(last + 1 for last in lasts))
        return self.node(
            "Slice", [tensor, self.index(*starts), ends, axes, self.index(*steps)], tensor.kind, tuple(sizes)
        )

    def concat(self, parts: Sequence[MlirTensor], axis: int) -> MlirTensor:
        if not parts or not 0 <= axis < parts[0].rank:
            self.refuse(f"axis {axis}: must be a dimension of the operands")
        others = {(*part.shape[:axis], *part.shape[axis + 1 :], part.rank, part.kind) for part in parts}
        if len(others) > 1:
            self.refuse("its operands must have equal types and equal sizes of the other dimensions")
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        if all(part.values is not None for part in parts):
            return self.constant(np.concatenate([part.values for part in parts if part.values is not None], axis))
        return self.node("Concat", parts, parts[0].kind, shape, axis=axis)

    def pad(self, tensor: MlirTensor, low: Sequence[int], high: Sequence[int], value: MlirTensor) -> MlirTensor:
        if not len(low) == len(high) == tensor.rank or min((*low, *high), default=0) < 0:
            self.refuse(f"padding {list(low)}, {list(high)}: give each of {tensor.rank} dimensions none or more")
        if not any((*low, *high)):
            return tensor
        shape = [a + size + z for a, size, z in zip(low, tensor.shape, high, strict=True)]
        if math.prod(shape) > 1 << 31:
            self.refuse(f"padding makes {math.prod(shape)} elements: use less")
        zero_rank = self.reshape(value, ())
        return self.node("Pad", [tensor, self.index(*low, *high), zero_rank], tensor.kind, shape, mode="constant")

    def added(self, total: MlirTensor, term: MlirTensor, zero: float = 0) -> MlirTensor:
        """Return the sum; a term known to be `zero` is omitted."""
        return total if term.equals(zero) else self.elementwise("Add", total, term)

    def reduce(self, operator: str, tensor: MlirTensor, axes: Sequence[int]) -> MlirTensor:
        """Reduce over `axes`, which are dropped: ReduceSum, ReduceProd, ReduceMax, ReduceMin, and ReduceAnd and
        ReduceOr for bools."""
        if not axes:
            return tensor
        if operator in ("ReduceAnd", "ReduceOr"):
            if tensor.kind != "BOOL":
                self.refuse(f"joins {tensor.kind} by its bits, which no reduction does: supported are i1")
            conjunction = operator == "ReduceAnd"
            bits = self.cast(tensor, "INT32")
            extremes = self.reduce("ReduceMin" if conjunction else "ReduceMax", bits, axes)
            return self.cast(extremes, "BOOL")
        if operator == "ReduceProd" and tensor.kind == "INT64":
            self.refuse("a product of i64 has more bits than the 32 of the device's integers: use i32, or floats")
        shape = [size for axis, size in enumerate(tensor.shape) if axis not in axes]
        if operator == "ReduceSum" and tensor.kind == "INT32":
            return _sum(self, tensor, axes, shape)
        if operator == "ReduceMin":
            return self.negative(self.reduce("ReduceMax", self.negative(tensor), axes))
        return self.node(operator, [tensor, self.index(*axes)], tensor.kind, shape, keepdims=0)

    def negative(self, tensor: MlirTensor) -> MlirTensor:
        return self.node("Neg", [tensor], tensor.kind, tensor.shape)


def _sum(e: OnnxEmitter, tensor: MlirTensor, axes: Sequence[int], shape: Sequence[int]) -> MlirTensor:
    """Return an exact integer sum, which the device cannot reduce: add the two halves until one element remains."""
    for axis in axes:
        while (count := tensor.shape[axis]) > 1:
            parts = []
            for first, size in ((0, count // 2), (count // 2, count // 2), (count - count % 2, count % 2)):
                starts = [first if dim == axis else 0 for dim in range(tensor.rank)]
                sizes = [size if dim == axis else length for dim, length in enumerate(tensor.shape)]
                parts += [e.slice(tensor, starts, sizes, [1] * tensor.rank)] if size else []
            total = e.elementwise("Add", *parts[:2])
            tensor = e.concat([total, *parts[2:]], axis)
    return e.reshape(tensor, shape)


def code(kind: str) -> int:
    """Return the ONNX code of an element type."""
    return int(helper.np_dtype_to_tensor_dtype(NUMPY[kind]))


def initializers(emitter: OnnxEmitter) -> list[Any]:
    return [numpy_helper.from_array(values, name) for name, values in emitter.initializers.items()]
