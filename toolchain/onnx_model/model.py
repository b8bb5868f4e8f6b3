"""A checked ONNX model: all tensors have a known type and shape, scales of quantized tensors are usable numbers."""

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper, shape_inference
from onnx.inliner import inline_local_functions

from toolchain.errors import ModelError
from toolchain.ir.graph import Values
from toolchain.onnx_model.file import one_line, read_file

MIN_OPSET = 13
_CACHED = "; a decoder with a key/value cache makes tokens with --prompt 3,1,4 --generate 8"
MAX_PROTOBUF = (1 << 31) - 1
"""Bytes."""


class TensorInfo(NamedTuple):
    """Type and shape as ONNX has them."""

    type: str
    shape: tuple[int, ...]


class OnnxModel:
    """The graph of a model, with types, shapes and initializers by name."""

    def __init__(self, model: Any, name: str, external: Mapping[str, Values] | None = None) -> None:
        """`external`: initializers that are not in the protobuf, which has inputs of their names."""
        self.proto = model
        self.external: Mapping[str, Values] = external or {}
        self.name = name
        self.opset = _opset(model, name)
        self.graph = model.graph
        self.initializers: dict[str, Values] = {
            tensor.name: _values(tensor, name) for tensor in model.graph.initializer
        }
        self.info: dict[str, TensorInfo] = {
            value.name: known
            for value in (*model.graph.input, *model.graph.value_info, *model.graph.output)
            if (known := tensor_info(value)) is not None
        }
        for key, values in self.initializers.items():
            code = next(t.data_type for t in model.graph.initializer if t.name == key)
            self.info[key] = TensorInfo(type_name(code), values.shape)
        self.initializers |= self.external

    @property
    def inputs(self) -> list[str]:
        """Names of what a user gives: inputs without an initializer."""
        return [value.name for value in self.graph.input if value.name not in self.initializers]

    @property
    def outputs(self) -> list[str]:
        return [value.name for value in self.graph.output]

    def whole(self) -> "OnnxModel":
        """The model with all initializers in its protobuf. ModelError where they are too large for one."""
        if not self.external:
            return self
        size = sum(values.nbytes for values in self.external.values()) + self.proto.ByteSize()
        if size > MAX_PROTOBUF:
            raise ModelError(
                f"{self.name}: a protobuf of {size} bytes: a conversion of weights takes at most {MAX_PROTOBUF}; "
                f"convert the model before it is exported"
            )
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        kept = [value for value in proto.graph.input if value.name not in self.external]
        del proto.graph.input[:]
        proto.graph.input.extend(kept)
        proto.graph.initializer.extend(numpy_helper.from_array(values, name) for name, values in self.external.items())
        return OnnxModel(proto, self.name)


def load_model(path: Path, shapes: Mapping[str, tuple[int, ...]] | None = None) -> OnnxModel:
    """Read, check and complete the model in a file. ModelError: what is wrong with it, in one line."""
    proto, external = read_file(path)
    return prepare(proto, str(path), shapes, external)


def prepare(
    model: Any,
    name: str,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    external: Mapping[str, Values] | None = None,
) -> OnnxModel:
    """A model in memory, checked, with its shapes inferred; `external` as in OnnxModel. ModelError as `load_model`."""
    if not model.graph.node and not model.graph.output:
        raise ModelError(f"{name}: no ONNX model (it has no graph): export it again")
    _opset(model, name)
    if not model.graph.output:
        raise ModelError(f"{name}: the model has no output: name the tensors that are wanted as outputs of its graph")
    fixed = {*(tensor.name for tensor in model.graph.initializer), *(external or {})}
    _bind(model, name, shapes or {}, fixed)
    _clear(model)
    for value in model.graph.input:
        if value.name not in fixed and tensor_info(value) is None:
            hint = (
                _CACHED if any(node.op_type == "Attention" and len(node.input) > 4 for node in model.graph.node) else ""
            )
            raise ModelError(f"{name}: input {value.name} {_open(value)}{hint}")
    if model.functions:
        model = inline_local_functions(model)
    try:
        onnx.checker.check_model(model)
        complete = shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except Exception as error:
        raise ModelError(f"{name}: {one_line(error)}") from None
    return OnnxModel(complete, name, external)


def _open(value: Any) -> str:
    """What an input without a known shape is, and what gives it one."""
    kind = value.type.WhichOneof("value")
    if kind is None:
        return "has no type: export the model again"
    if kind != "tensor_type":
        return f"is a {kind.removesuffix('_type')}: supported are tensors"
    if not value.type.tensor_type.HasField("shape"):
        return f"has no shape: give one, --shape {value.name}=1,..."
    dims = value.type.tensor_type.shape.dim
    named = [dim.dim_param or (dim.dim_value if dim.HasField("dim_value") else "?") for dim in dims]
    sizes = ",".join(str(dim.dim_value) if _known(dim) else "1" for dim in dims)
    return (
        f"has shape [{', '.join(map(str, named))}]: give every dimension a value, such as --shape {value.name}={sizes}"
    )


def _values(tensor: Any, name: str) -> Values:
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except Exception as error:
        raise ModelError(f"{name}: tensor {tensor.name}: {one_line(error)}: export the model again") from None


def _opset(model: Any, name: str) -> int:
    version = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 0)
    if version < MIN_OPSET:
        raise ModelError(f"{name}: opset {version}: must be {MIN_OPSET} or newer; onnx.version_converter raises it")
    if version > onnx.defs.onnx_opset_version():
        raise ModelError(
            f"{name}: opset {version}: onnx {onnx.__version__} knows opsets up to {onnx.defs.onnx_opset_version()}: "
            f"install a newer onnx, or export the model for one of these"
        )
    return int(version)


def _bind(model: Any, name: str, shapes: Mapping[str, tuple[int, ...]], fixed: Container[str]) -> None:
    inputs = {value.name: value for value in model.graph.input if value.name not in fixed}
    for key, shape in shapes.items():
        if key not in inputs:
            raise ModelError(f"{name}: --shape {key}: no such input; inputs are {', '.join(inputs)}")
        tensor = inputs[key].type.tensor_type
        dims = tensor.shape.dim
        if not tensor.HasField("shape"):
            dims.extend(onnx.TensorShapeProto.Dimension() for _ in shape)
        if len(dims) != len(shape):
            raise ModelError(f"{name}: --shape {key}: has {len(dims)} dimensions, got {len(shape)}")
        for dim, size in zip(dims, shape, strict=True):
            if _known(dim) and dim.dim_value != size:
                raise ModelError(f"{name}: --shape {key}: a dimension is {dim.dim_value} in the model, got {size}")
            dim.Clear()
            dim.dim_value = size


def _clear(model: Any) -> None:
    """Dimensions without a value, of what the model makes, follow from those of its inputs."""
    for value in (*model.graph.value_info, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_value") and not _known(dim):
                dim.Clear()


def _known(dim: Any) -> bool:
    """Whether a dimension has a value; some exporters write -1 where it has none."""
    return bool(dim.HasField("dim_value") and dim.dim_value >= 0)


def type_name(code: int) -> str:
    """A data type as ONNX calls it; a number that it does not know stays one."""
    kinds = onnx.TensorProto.DataType
    return str(kinds.Name(code)) if code in kinds.values() else str(code)


def tensor_info(value: Any) -> TensorInfo | None:
    """Type and shape of an onnx.ValueInfoProto; None where one of them is open."""
    kind = value.type.tensor_type
    if not kind.elem_type or not kind.HasField("shape"):
        return None
    if not all(map(_known, kind.shape.dim)):
        return None
    return TensorInfo(type_name(kind.elem_type), tuple(dim.dim_value for dim in kind.shape.dim))


_LEAST = float(np.finfo(np.float32).tiny)
_DIVIDES = ("QuantizeLinear",)
"""Operators that divide by their scale."""


def check_scale(model: OnnxModel, proto: Any, name: str, values: Values, *, divides: bool = False) -> None:
    """ModelError where the scale `name` of a node is not finite, or where it divides, as that of QuantizeLinear does,
    is 0 or so small that its inverse is not finite."""
    wide = np.asarray(values).astype(np.float64).reshape(-1)
    divides = divides or proto.op_type in _DIVIDES
    wrong = wide[~np.isfinite(wide) | ((np.abs(wide) < _LEAST) if divides else False)]
    if wrong.size:
        rule = f"finite and at least {_LEAST:.3g} in size" if divides else "finite"
        where = proto.name or f"{proto.op_type}_{proto.output[0]}"
        raise ModelError(
            f"{model.name}: node {where} ({proto.op_type}, opset {model.opset}): scale {name} holds {wrong[0]:g}: "
            f"must be {rule}: quantize the model again"
        )
