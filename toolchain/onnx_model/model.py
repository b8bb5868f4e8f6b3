"""Checked ONNX model: every tensor has a known type and shape, scales of quantized tensors are valid."""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference
from onnx.inliner import inline_local_functions

from toolchain.errors import ModelError
from toolchain.ir.graph import Graph, Values
from toolchain.onnx_domains import on_core
from toolchain.onnx_model import dimensions
from toolchain.onnx_model.canonical import canonical, rename
from toolchain.onnx_model.file import SMALL, one_line, read_file
from toolchain.onnx_model.opset import NEWEST, OLDEST
from toolchain.onnx_model.rewriter import MAX_NODES
from toolchain.onnx_nodes.evaluation import (
    MAX_FOLDED,
    Propagation,
    TensorInfo,
    is_long_vector,
    tensor_info,
    type_name,
)
from toolchain.onnx_nodes.messages import assign, subgraphs
from toolchain.onnx_nodes.order import in_order
from toolchain.onnx_nodes.rules import check_rules
from toolchain.onnx_nodes.view import node_name

MAX_PROTOBUF = (1 << 31) - 1
"""Maximum size of a protobuf, bytes."""
MAX_CALLS = 64
"""Maximum nesting depth of function calls."""
SHORT = 64
"""Maximum size of a tensor that may be a shape, elements."""


class OnnxModel:
    """Graph of a model, with types, shapes and initializers by name."""

    def __init__(
        self, model: Any, name: str, external: Mapping[str, Values] | None = None, opset: int | None = None
    ) -> None:
        """`external`: initializers outside the protobuf, which has inputs of their names; `opset`: operator set of the
        file, if the model was raised."""
        self.proto = model
        self.external: Mapping[str, Values] = external or {}
        self.name = name
        self.layers: Graph | None = None
        """Layers of a model given as NPU-IR, which has no nodes; else None."""
        self.places: Mapping[str, str] = {}
        """Node -> file:line:column and operation in the source."""
        self.floats: Mapping[str, str] = {}
        """Node name of a product that a conversion to codes left unchanged -> reason."""
        self.opset = opset_of(model) if opset is None else opset
        self.graph = model.graph
        self.initializers: dict[str, Values] = {
            tensor.name: _values(tensor, name) for tensor in model.graph.initializer
        }
        self.info: dict[str, TensorInfo] = {
            value.name: value_info
            for value in (*model.graph.input, *model.graph.value_info, *model.graph.output)
            if (value_info := tensor_info(value)) is not None
        }
        for tensor in model.graph.initializer:
            self.info[tensor.name] = TensorInfo(type_name(tensor.data_type), self.initializers[tensor.name].shape)
        self.initializers |= self.external

    @property
    def inputs(self) -> list[str]:
        """Names of the user's inputs: those without an initializer."""
        return [value.name for value in self.graph.input if value.name not in self.initializers]

    @property
    def outputs(self) -> list[str]:
        return [value.name for value in self.graph.output]

    def with_initializers(self) -> "OnnxModel":
        """Return the model with all initializers in its protobuf. ModelError: they exceed the size of a protobuf."""
        if not self.external:
            return self
        size = sum(values.nbytes for values in self.external.values()) + self.proto.ByteSize()
        if size > MAX_PROTOBUF:
            raise ModelError(
                f"{self.name}: a protobuf of {size} bytes: a conversion of weights takes at most {MAX_PROTOBUF}; "
                f"convert the model before it is exported"
            )
        proto = deepcopy(self.proto)
        assign(proto.graph.input, (value for value in proto.graph.input if value.name not in self.external))
        proto.graph.initializer.extend(numpy_helper.from_array(values, name) for name, values in self.external.items())
        return OnnxModel(proto, self.name)


def load_model(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    constants: Mapping[str, float] | None = None,
    arrays: Mapping[str, tuple[int, ...]] | None = None,
) -> OnnxModel:
    """Read, check and complete the model in a file; `shapes`, `constants` and `arrays` as in `prepare`. ModelError
    states the defect in one line."""
    try:
        proto, external = read_file(path)
        return prepare(proto, str(path), shapes, external, constants, arrays)
    except UnicodeDecodeError as error:  # protobuf detects invalid UTF-8 only on access
        raise ModelError(f"{path}: a text in it is not UTF-8 ({error.reason}): export it again") from None


def prepare(
    model: Any,
    name: str,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    external: Mapping[str, Values] | None = None,
    constants: Mapping[str, float] | None = None,
    arrays: Mapping[str, tuple[int, ...]] | None = None,
) -> OnnxModel:
    """Return a checked model in canonical form with inferred shapes, from a model in memory.

    `shapes`: shapes by input name, sizes by dimension name, and maximum number of steps by Loop name; `constants`:
    values of one-element inputs to fix; `external` as in OnnxModel; `arrays`: shapes of inputs, for dimensions that
    `shapes` leaves open. ModelError as `load_model`.
    """
    if not model.graph.node and not model.graph.output:
        raise ModelError(f"{name}: no ONNX model (it has no graph): export it again")
    opset = _opset(model, name)
    _name_graphs(model.graph)
    if not model.graph.output:
        raise ModelError(f"{name}: the model has no output: name the tensors that are wanted as outputs of its graph")
    for part in (model.graph, *model.functions):
        in_order(part)
    loops = {node_name(node) for node in model.graph.node if node.op_type == "Loop" and any(node.output)}
    steps = {key: sizes[0] for key, sizes in (shapes or {}).items() if key in loops and len(sizes) == 1}
    sizes = {key: sizes for key, sizes in (shapes or {}).items() if key not in steps}
    dimensions.bind(model, name, sizes, external or {}, arrays or {})
    _fix(model, name, constants or {}, external or {})
    _empty_inputs_as_constants(model)
    check_rules(model, name)
    if model.functions:
        _check_functions(model, name)
        try:
            model = inline_local_functions(model, convert_version=True)
        except Exception:  # ONNX cannot raise nodes of functions; a model at the target opset needs no raising
            try:
                model = inline_local_functions(model)
            except Exception as error:
                raise ModelError(f"{name}: {one_line(error)}") from None
    try:
        canonical(model, name, opset, external or {}, steps)
    except ModelError:
        raise
    except Exception:
        _check_by_onnx(model, name)
        raise
    try:
        light = _without_weights(model)
        _check(light)
        complete = _infer(light)
    except Exception as error:
        raise ModelError(f"{name}: {one_line(error)}") from None
    _complete(complete)
    _drop_copies(complete.graph)
    for field in ("input", "initializer"):
        complete.graph.ClearField(field)
        getattr(complete.graph, field).extend(getattr(model.graph, field))
    return OnnxModel(complete, name, external, opset)


def _empty_inputs_as_constants(model: Any) -> None:
    """Convert empty inputs, such as the past of a first step, to constants: users do not supply them."""
    names = {tensor.name for tensor in model.graph.initializer}
    remaining = list[Any]()
    for value in model.graph.input:
        info = tensor_info(value)
        if info is None or 0 not in info.shape or value.name in names:
            remaining.append(value)
            continue
        kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        model.graph.initializer.append(numpy_helper.from_array(np.zeros(info.shape, kind), value.name))
    assign(model.graph.input, remaining)


def _without_weights(model: Any) -> Any:
    """Return the model with inputs in place of large initializers: onnx serializes a model for every request, and
    shapes depend on the values of small tensors only."""
    return _with_inputs(model, [tensor for tensor in model.graph.initializer if len(tensor.raw_data) > SMALL])


def _with_inputs(model: Any, tensors: Sequence[Any]) -> Any:
    """Return the model with inputs in place of some initializers."""
    names = {tensor.name for tensor in tensors}
    inputs = [helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in tensors]
    graph = helper.make_graph(
        model.graph.node, model.graph.name, [*model.graph.input, *inputs], model.graph.output,
        [tensor for tensor in model.graph.initializer if tensor.name not in names],
        value_info=model.graph.value_info, sparse_initializer=model.graph.sparse_initializer,
    )  # fmt: skip
    return helper.make_model(
        graph, opset_imports=model.opset_import, functions=model.functions, ir_version=model.ir_version
    )


def _check(model: Any) -> None:
    """Run onnx.checker, with a temporary shape for outputs without one, since it requires shapes. Raises onnx's
    errors."""
    missing = [output for output in model.graph.output if not output.type.tensor_type.HasField("shape")]
    for value in missing:
        value.type.tensor_type.shape.SetInParent()
    onnx.checker.check_model(model)
    for value in missing:
        value.type.tensor_type.ClearField("shape")


def _check_by_onnx(model: Any, name: str) -> None:
    """Raise ModelError if a model violates ONNX's rules. This check runs only after another failure."""
    try:
        _check(_without_weights(model))
    except Exception as error:
        raise ModelError(f"{name}: {one_line(error)}") from None


def _name_graphs(graph: Any) -> None:
    """Name unnamed graphs: onnx.checker requires names, onnxruntime does not."""
    graph.name = graph.name or "graph"
    for node in graph.node:
        for inner in subgraphs(node):
            _name_graphs(inner)


def _infer(model: Any) -> Any:
    """Return the model with inferred shapes. Contradicting shapes written by an exporter are discarded."""
    _check_frames(model)
    options = {"check_type": True, "strict_mode": True, "data_prop": not _has_long_vectors(model)}
    try:
        return shape_inference.infer_shapes(model, **options)
    except shape_inference.InferenceError:
        core_names = {name for node in model.graph.node if node.domain == on_core.DOMAIN for name in node.output}
        assign(model.graph.value_info, (value for value in model.graph.value_info if value.name in core_names))
        for value in model.graph.output:
            if value.name not in core_names:
                value.type.tensor_type.ClearField("shape")
        return shape_inference.infer_shapes(model, **options)


def _complete(model: Any) -> None:
    """Complete types and shapes that ONNX's inference over the whole model leaves open but that follow from constants
    and other shapes, as after a Slice, Expand or Range with computed limits."""
    graph = model.graph
    values = {value.name: value for value in (*graph.input, *graph.value_info, *graph.output)}
    info = {name: value_info for name, value in values.items() if (value_info := tensor_info(value)) is not None}
    open_tensors = [name for node in graph.node for name in node.output if name and name not in info]
    if not open_tensors:
        return
    propagation = Propagation(model.opset_import, info)
    for tensor in graph.initializer:
        info[tensor.name] = TensorInfo(type_name(tensor.data_type), tuple(tensor.dims))
        if math.prod(tensor.dims) <= MAX_FOLDED:
            propagation.know(tensor.name, np.asarray(numpy_helper.to_array(tensor)))
    for node in graph.node:
        propagation.follow_node(node)
    for name in open_tensors:
        if name in info:
            value = values[name] if name in values else graph.value_info.add()
            value.CopyFrom(info[name].value_info(name))


def _drop_copies(graph: Any) -> None:
    """Remove each Identity, and each Cast to the type of its input: readers are redirected to that input. Exporters
    leave such casts in layer normalization."""
    values = (*graph.input, *graph.value_info, *graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    outputs, names, nodes = {value.name for value in graph.output}, dict[str, str](), list[Any]()
    for node in graph.node:
        rename(node, names)
        to = next((attribute.i for attribute in node.attribute if attribute.name == "to"), 0)
        same = node.op_type == "Identity" or (node.op_type == "Cast" and to and types.get(node.input[0]) == to)
        if same and node.domain in ("", "ai.onnx") and node.output[0] not in outputs:
            names[node.output[0]] = node.input[0]
        else:
            nodes.append(node)
    assign(graph.node, nodes)


def _check_frames(model: Any) -> None:
    """Raise ModelError if a signal is shorter than a frame of its STFT: onnx infers a negative number of frames, and a
    later operator would terminate the process."""
    for index, node in enumerate(model.graph.node):
        if node.op_type == "STFT":
            part = deepcopy(model)
            del part.graph.node[index + 1 :]
            assign(part.graph.output, [helper.make_empty_tensor_value_info(node.output[0])])
            dims = shape_inference.infer_shapes(part).graph.output[0].type.tensor_type.shape.dim
            if any(dim.dim_value < 0 for dim in dims):
                raise ModelError(
                    f"node {node_name(node)} (STFT): the signal is shorter than a frame: give a longer one"
                )


def _check_functions(model: Any, name: str) -> None:
    """Raise ModelError if functions of a model are recursive, or expand to too many nodes."""
    functions = {(function.domain, function.name): function.node for function in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size_of(nodes: Any, inside: tuple[tuple[str, str], ...]) -> int:
        total = 0
        for node in nodes:
            called = node.domain, node.op_type
            if called in inside or len(inside) > MAX_CALLS:
                raise ModelError(
                    f"{name}: function {called[1]}: calls itself, or calls are nested more than {MAX_CALLS} deep: "
                    "export the model without functions"
                )
            if called in functions and called not in sizes:
                sizes[called] = size_of(functions[called], (*inside, called))
            total += sizes.get(called, 1)
            total += sum(size_of(graph.node, inside) for graph in subgraphs(node))
            if total > MAX_NODES:
                raise ModelError(
                    f"{name}: function {called[1]}: more than {MAX_NODES} nodes in the place of calls: export fewer"
                )
        return total

    size_of(model.graph.node, ())


def _has_long_vectors(model: Any) -> bool:
    """Check whether the model has a vector too long for the propagation of its elements."""
    small, large = list[Any](), list[Any]()
    for tensor in model.graph.initializer:
        (small if math.prod(tensor.dims) <= SHORT else large).append(tensor)
    inputs = [helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in large]
    graph = helper.make_graph(
        model.graph.node, "shapes", [*model.graph.input, *inputs], model.graph.output, small
    )  # fmt: skip
    complete = shape_inference.infer_shapes(helper.make_model(graph, opset_imports=model.opset_import)).graph
    infos = (tensor_info(value) for value in (*complete.input, *complete.value_info, *complete.output))
    return any(info is not None and is_long_vector(info.shape) for info in infos)


def _fix(model: Any, name: str, constants: Mapping[str, float], external: Mapping[str, Values]) -> None:
    """Convert one-element inputs with a fixed value to constants."""
    inputs = dimensions.user_inputs(model, external)
    for key, value in constants.items():
        info = tensor_info(inputs[key]) if key in inputs else None
        if info is None:
            raise ModelError(f"{name}: --constant {key}: no such input; inputs are {', '.join(inputs)}")
        if math.prod(info.shape) != 1:
            raise ModelError(f"{name}: --constant {key}: has shape {list(info.shape)}; fixed are inputs of one element")
        kind = helper.tensor_dtype_to_np_dtype(inputs[key].type.tensor_type.elem_type)
        values_of_input = np.full(info.shape, value).astype(kind)
        if float(values_of_input.reshape(-1)[0]) != value:
            raise ModelError(f"{name}: --constant {key}={value:g}: {info.type} does not hold it")
        model.graph.initializer.append(numpy_helper.from_array(values_of_input, key))
        model.graph.input.remove(inputs[key])


def _values(tensor: Any, name: str) -> Values:
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except Exception as error:
        raise ModelError(f"{name}: tensor {tensor.name}: {one_line(error)}: export the model again") from None


def opset_of(model: Any) -> int:
    """Return the operator set of an onnx.ModelProto; 0 if it declares none."""
    return next((int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)


def _opset(model: Any, name: str) -> int:
    if not opset_of(model) and model.opset_import:  # all operators are of other domains
        model.opset_import.append(helper.make_opsetid("", NEWEST))
    version = opset_of(model)
    if version < OLDEST:
        raise ModelError(f"{name}: opset {version}: must be {OLDEST} or newer: export the model again")
    if version > onnx.defs.onnx_opset_version():
        raise ModelError(
            f"{name}: opset {version}: onnx {onnx.__version__} knows opsets up to {onnx.defs.onnx_opset_version()}: "
            f"install a newer onnx, or export the model for one of these"
        )
    return version


_LEAST = float(np.finfo(np.float32).tiny)
_DIVIDES = ("QuantizeLinear",)
"""Operators that divide by their scale."""


def check_scale(model: OnnxModel, proto: Any, name: str, values: Values, *, divides: bool = False) -> None:
    """Raise ModelError if the scale `name` of a node is not finite, or if it is a divisor, as in QuantizeLinear, and is
    0 or has no finite inverse."""
    wide = np.asarray(values).astype(np.float64).reshape(-1)
    divides = divides or proto.op_type in _DIVIDES
    wrong = wide[~np.isfinite(wide) | ((np.abs(wide) < _LEAST) if divides else False)]
    if wrong.size:
        rule = f"finite and at least {_LEAST:.3g} in size" if divides else "finite"
        label = proto.name or f"{proto.op_type}_{proto.output[0]}"
        raise ModelError(
            f"{model.name}: node {label} ({proto.op_type}, opset {model.opset}): scale {name} holds {wrong[0]:g}: "
            f"must be {rule}: quantize the model again"
        )
