"""Evaluation of single nodes by ONNX's own definition: output values and shapes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from toolchain.errors import ModelError
from toolchain.ir.graph import Values
from toolchain.onnx_nodes.messages import attributes_of
from toolchain.onnx_reference.corrected import CORRECTED

MAX_FOLLOWED = 1 << 20
"""Maximum length of a vector whose elements ONNX's inference may propagate."""


class TensorInfo(NamedTuple):
    """Type and shape, in ONNX's terms."""

    type: str
    shape: tuple[int, ...]

    @property
    def code(self) -> int:
        """Number of the type in onnx.TensorProto."""
        return int(TensorProto.DataType.Value(self.type))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of an array with the values."""
        return helper.tensor_dtype_to_np_dtype(self.code)

    def value_info(self, name: str) -> Any:
        """Return the onnx.ValueInfoProto of a tensor."""
        return helper.make_tensor_value_info(name, self.code, self.shape)


def info_of(values: Values) -> TensorInfo:
    """Return type and shape of an array."""
    return TensorInfo(type_name(helper.np_dtype_to_tensor_dtype(values.dtype)), values.shape)


def type_name(code: int) -> str:
    """Return the ONNX name of a data type; an unknown code is returned as a number."""
    kinds = TensorProto.DataType
    return str(kinds.Name(code)) if code in kinds.values() else str(code)


def has_size(dim: Any) -> bool:
    """Check whether a dimension has a size; some exporters write -1 for an open one."""
    return bool(dim.HasField("dim_value") and dim.dim_value >= 0)


def tensor_info(value: Any) -> TensorInfo | None:
    """Return type and shape of an onnx.ValueInfoProto; None if either is open."""
    kind = value.type.tensor_type
    if not kind.elem_type or not kind.HasField("shape"):
        return None
    if not all(map(has_size, kind.shape.dim)):
        return None
    return TensorInfo(type_name(kind.elem_type), tuple(dim.dim_value for dim in kind.shape.dim))


def is_long_vector(shape: Sequence[int]) -> bool:
    """Check whether ONNX, which propagates the elements of vectors, would need gigabytes for this one."""
    return len(shape) == 1 and shape[0] > MAX_FOLLOWED


def evaluate(proto: Any, feeds: Mapping[str, Values], opsets: Iterable[Any]) -> list[Values]:
    """Evaluate a node for these input values. Raises errors of onnx.reference."""
    graph = helper.make_graph(
        [proto], "constant",
        [info_of(values).value_info(name) for name, values in feeds.items()],
        [helper.make_empty_tensor_value_info(name) for name in proto.output if name],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=list(opsets))
    results: Any = ReferenceEvaluator(model, new_ops=CORRECTED).run(None, dict(feeds))
    return [np.asarray(result) for result in results]


def infer_outputs(
    proto: Any, info: Mapping[str, TensorInfo], values: Mapping[str, Values], opsets: Iterable[Any]
) -> dict[str, TensorInfo]:
    """Return types and shapes of a node's outputs, as far as its inputs imply them; `values`: known input values."""
    inputs = dict.fromkeys(name for name in proto.input if name)
    constants = {name: values[name] for name in inputs if name in values}
    others = {name: info[name] for name in inputs if name in info and name not in values}
    graph = helper.make_graph(
        [proto], "node",
        [other.value_info(name) for name, other in others.items()],
        [helper.make_empty_tensor_value_info(name) for name in proto.output if name],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=list(opsets))
    shapes = [*(array.shape for array in constants.values()), *(other.shape for other in others.values())]
    try:
        complete = shape_inference.infer_shapes(model, data_prop=not any(map(is_long_vector, shapes)))
    except shape_inference.InferenceError as error:
        raise ModelError(f"{proto.op_type}: {' '.join(str(error).split())}") from None
    outputs = {output.name: tensor_info(output) for output in complete.graph.output}
    return {name: output for name, output in outputs.items() if output is not None} | _chosen(proto, info, values)


MAX_FOLDED = 4096
"""Maximum size of a tensor with propagated values, elements."""


RANDOM = frozenset(
    ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)
"""Operators with nondeterministic results."""


class Propagation:
    """Propagation of types and shapes, and of values of small tensors, through a list of nodes."""

    def __init__(self, opsets: Sequence[Any], info: dict[str, TensorInfo]) -> None:
        """`info`: types and shapes of inputs and other known tensors."""
        self.info = info
        self.constants: dict[str, Values] = {}
        self._opsets = opsets

    def follow_node(self, proto: Any) -> None:
        """Propagate shapes and values to a node's outputs, as far as they are known."""
        if self.follow_shape(proto):
            return
        names = [name for name in proto.output if name]
        if not all(name in self.info for name in names):
            try:
                self.info.update(infer_outputs(proto, self.info, self.constants, self._opsets))
            except Exception:  # the check of the whole model reports the node
                return
        small = all(name in self.info and math.prod(self.info[name].shape) <= MAX_FOLDED for name in names)
        if small and proto.op_type not in RANDOM and all(name in self.constants for name in proto.input if name):
            feeds = {name: self.constants[name] for name in proto.input if name}
            for name, values in zip(names, self._evaluated(proto, feeds), strict=False):
                self.know(name, values)

    def follow_shape(self, proto: Any) -> bool:
        """Record the result of a Shape or Size of a known shape. Return False for any other node."""
        if proto.op_type not in ("Shape", "Size") or proto.input[0] not in self.info:
            return False
        shape, attributes = np.array(self.info[proto.input[0]].shape, np.int64), attributes_of(proto)
        part = shape[slice(attributes.get("start", 0), attributes.get("end"))]
        self.know(proto.output[0], part if proto.op_type == "Shape" else np.array(shape.prod(), np.int64))
        return True

    def _evaluated(self, proto: Any, feeds: Mapping[str, Values]) -> list[Values]:
        """Evaluate a node; sums with the lowest number, which masks contain, may overflow. Return nothing if that
        fails: import refuses the node by name."""
        try:
            with np.errstate(all="ignore"):
                return evaluate(proto, feeds, self._opsets)
        except Exception:
            return []

    def know(self, name: str, values: Values) -> None:
        """Record a tensor with known values."""
        self.constants[name] = values
        self.info[name] = info_of(values)


def _chosen(proto: Any, info: Mapping[str, TensorInfo], constants: Mapping[str, Values]) -> dict[str, TensorInfo]:
    """Return the output shape of an operator that selects elements, for cases that ONNX's inference leaves open:
    Compress, whose condition it ignores, and GatherND with a scalar result."""
    if proto.op_type not in ("Compress", "GatherND") or len(proto.input) != 2:
        return {}
    if not all(name in info or name in constants for name in proto.input):
        return {}
    infos = [info_of(constants[name]) if name in constants else info[name] for name in proto.input]
    shape, other = (info.shape for info in infos)
    if proto.op_type == "GatherND":
        batch = next((attribute.i for attribute in proto.attribute if attribute.name == "batch_dims"), 0)
        shape_out = other[:-1] + shape[batch + other[-1] :]
    elif proto.input[1] not in constants:
        return {}
    else:
        count = int(np.count_nonzero(constants[proto.input[1]]))
        axis = [attribute.i for attribute in proto.attribute if attribute.name == "axis"]
        along = axis[0] % len(shape) if axis else 0
        shape_out = (*shape[:along], count, *shape[along + 1 :]) if axis else (count,)
    return {proto.output[0]: TensorInfo(infos[0].type, tuple(map(int, shape_out)))}
