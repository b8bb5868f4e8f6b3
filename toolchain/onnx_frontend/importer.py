"""Import of a model as a graph, node by node through the operator table.

Values known at compile time never become layers. An operator that ONNX defines as a function is imported through its
definition.
"""

import math
from contextlib import suppress
from copy import deepcopy
from typing import Any

import numpy as np
from onnx import defs, helper
from onnx.inliner import inline_selected_functions

from toolchain.errors import ModelError
from toolchain.ir.data_types import FLOATS, NUMPY, ONNX, SHORT
from toolchain.ir.graph import Graph, Role, TensorIR, Values, WeightBlocks
from toolchain.onnx_domains import on_core
from toolchain.onnx_frontend import patterns, qdq
from toolchain.onnx_frontend import qdq_graph as qdq_cache
from toolchain.onnx_frontend.table import IN_RANGE, OPERATORS
from toolchain.onnx_model.file import one_line
from toolchain.onnx_model.model import OnnxModel, opset_of
from toolchain.onnx_model.node import Node
from toolchain.onnx_nodes.evaluation import RANDOM, TensorInfo, evaluate, infer_outputs
from toolchain.onnx_nodes.parts import Decomposition
from toolchain.onnx_nodes.view import node_name
from toolchain.onnx_operators import attention as cached_attention
from toolchain.onnx_operators import kernels, quantized


def definition(node: Node) -> list[Any]:
    """Return the nodes of the function that defines an operator, with unique inner names; empty if ONNX defines it
    otherwise."""
    proto = node.proto
    try:
        schema: Any = defs.get_schema(proto.op_type, opset_of(node.model.proto))
    except defs.SchemaError:
        return []
    if not (schema.has_function or schema.has_context_dependent_function):
        return []
    infos = node.model.info
    inputs = [name for name in dict.fromkeys(proto.input) if name]
    if not all(name in infos for name in inputs):
        return []
    graph = helper.make_graph(
        [_with_defaults(proto, schema)], "function",
        [infos[name].value_info(name) for name in inputs],
        [helper.make_empty_tensor_value_info(name) for name in proto.output if name],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=list(node.model.proto.opset_import))
    try:
        inlined = inline_selected_functions(model, [("", proto.op_type)], inline_schema_functions=True)
    except RuntimeError:  # unsupported by a context-dependent definition
        return []
    nodes = [deepcopy(copy) for copy in inlined.graph.node]
    if any(node.op_type == proto.op_type for node in nodes):
        return []
    outside = {*proto.input, *proto.output, ""}
    for index, part in enumerate(nodes):
        part.name = f"{node_name(proto)}/{part.op_type}{index}"
        for names in (part.input, part.output):
            names[:] = [name if name in outside else f"{node_name(proto)}/{name}" for name in names]
    return nodes


def _with_defaults(proto: Any, schema: Any) -> Any:
    """Return the node with explicit default attributes, which function definitions refer to."""
    complete, names = deepcopy(proto), {entry.name for entry in proto.attribute}
    for name, attribute in schema.attributes.items():
        if name not in names and attribute.default_value.name:
            complete.attribute.append(attribute.default_value)
    return complete


MAX_COMPUTED = 1 << 27
"""Maximum size of a computed constant, elements: light models of the onnx package compute the weights of VGG, 25,088 x
4,096, from smaller constants."""
MAX_BYTES = 1 << 31
"""Maximum size of a tensor that the run writes, bytes: the DRAM in the core's address space."""
FOLDED = frozenset(("Cast", "CastLike", "Constant", "ConstantOfShape", "DequantizeLinear", "Gather", "Range"))
"""Operators evaluated at compile time on constant inputs. Others are evaluated only if their results are not
floating-point (indices, shapes, conditions, quantized weights) or small, since small ones may lead to a shape."""
MAX_JUDGED = 1 << 22
"""Maximum size of the inputs of a node that is checked by evaluation, elements."""
OF_SHAPES = ("EyeLike", "Shape", "Size")
"""Operators that read the shape of their input, not its elements."""
SMALL = 64
"""Maximum size of a floating-point result evaluated at compile time, elements."""


_PASTS = (4, 5)
"""Inputs of Attention that are empty in a first step."""
_REMEDY = "; `pyv-npu docs onnx-coverage` lists those that are: export the model with them"
"""Suffix of a message about an operator; it appears once in a list of messages."""


class Refusals:
    """Unsupported nodes of a model."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._errors: dict[str, list[str]] = {}
        self._unknown = set[str]()

    def add(self, node: Node, error: ModelError) -> None:
        """Add an unsupported node with its error. Its outputs count as known if their shapes are."""
        self._errors.setdefault(node.proto.op_type, []).append(str(error))
        for name in node.proto.output:
            info = node.model.info.get(name)
            if info is None or info.type not in ONNX:
                self._unknown.add(name)
            elif name not in node.graph.tensors:
                node.graph.tensors[name] = TensorIR(name, Role.ACTIVATION, info.shape, ONNX[info.type])

    def behind(self, node: Node) -> bool:
        """Check whether a node depends on a refused node with unknown output shape; such a node is skipped."""
        if self._unknown.isdisjoint(node.proto.input):
            return False
        self._unknown.update(node.proto.output)
        return True

    def check(self) -> None:
        """Raise ModelError for all unsupported nodes, grouped by operator."""
        errors = [text for texts in self._errors.values() for text in texts]
        if len(errors) == 1:
            raise ModelError(errors[0])
        if errors:
            prefix = f"{self._model}: "
            messages = [
                f"{len(texts)} {operator}: {texts[0].removeprefix(prefix).removesuffix(_REMEDY)}"
                for operator, texts in self._errors.items()
            ]
            remedy = _REMEDY if any(text.endswith(_REMEDY) for text in errors) else ""
            raise ModelError(f"{prefix}{len(errors)} nodes are not supported: {'; '.join(messages)}{remedy}")


def import_model(model: OnnxModel, *, fuse: bool = True, base: Graph | None = None) -> Graph:
    """Import a model as layers. ModelError names every unsupported node with the reason, before any other work.

    `fuse`: products between QuantizeLinear and DequantizeLinear become integer products. `base`: existing tensors,
    including inputs with a layout specific to the device.
    """
    if model.layers is not None:
        return model.layers.copy()
    graph = Graph(model.graph.name or "model")
    if base is not None:
        graph.tensors, graph.constants = dict(base.tensors), dict(base.constants)
    constants: dict[str, Values] = dict(model.initializers)
    for name in model.inputs:
        info = model.info[name]
        if info.type not in ONNX:
            raise ModelError(f"{model.name}: input {name}: data type {info.type}: supported are {', '.join(ONNX)}")
        if 0 in info.shape:
            raise ModelError(f"{model.name}: input {name}: shape {list(info.shape)} holds no element")
        if name not in graph.tensors:
            graph.tensors[name] = TensorIR(name, Role.ACTIVATION, info.shape, ONNX[info.type])
    graph.inputs = tuple(model.inputs)
    caches = [name for name, tensor in graph.tensors.items() if tensor.role is Role.KV]
    cluster = qdq.fuse(model, caches) if fuse else qdq.Fused(list(model.graph.node), {}, {})
    constants.update(cluster.constants)
    refusals = Refusals(model.name)
    nodes = patterns.Matcher(model, cluster.nodes).replace_matches()
    constant_names = weights(nodes)
    for proto in nodes:
        node = Node(proto, model, graph, constants)
        if refusals.behind(node):
            continue
        if not constant_names.isdisjoint(proto.output) and all(name in constants for name in proto.input if name):
            with suppress(ModelError):  # reported below
                constants.update(_evaluate(node, constants))
                continue
        try:
            if proto.domain != qdq.DOMAIN:
                _node(node, constants)
            elif proto.op_type == qdq_cache.OPERATOR:
                cached_attention.cached_attention(node)
            else:
                quantized.emit_fused(node)
        except ModelError as error:
            refusals.add(node, error)
    refusals.check()
    for name in model.outputs:
        if name in constants and not constants[name].size:
            raise ModelError(f"{model.name}: output {name}: shape {list(constants[name].shape)} holds no element")
        if name not in graph.tensors:
            Node(model.graph.node[0], model, graph, constants).named(name)
    graph.outputs = tuple(model.outputs)
    graph.floats = {**model.floats, **cluster.floats}
    return graph.dropped_unused()


def weights(nodes: list[Any]) -> set[str]:
    """Return the names of constant operands, weights of products, and all inputs they are computed from: exporters
    leave, for example, the normalization of weights in the graph."""
    names = set[str]()
    for proto in reversed(nodes):
        if proto.domain not in ("", "ai.onnx") or proto.op_type in RANDOM:
            continue
        row = OPERATORS.get(proto.op_type)
        places = (1,) if proto.op_type in ("Conv", "Gemm", "MatMul") else row.constant if row else ()
        feeds_weight = not names.isdisjoint(proto.output) and proto.op_type not in OF_SHAPES
        names.update(proto.input if feeds_weight else (proto.input[at] for at in places if at < len(proto.input)))
    return names - {""}


def _node(node: Node, constants: dict[str, Values]) -> None:
    proto = node.proto
    if proto.op_type in RANDOM and node.attribute("seed") is None:
        node.refuse("its numbers are drawn anew in each run: export the model with them as an input")
    if _at_compile_time(node, constants):
        constants.update(_evaluate(node, constants))
        return
    if any(name and name not in node.model.info for name in proto.output):
        _infer(node, constants)
    empty = _without_elements(node)
    constants.update(empty)
    if empty and len(empty) == sum(map(bool, proto.output)):
        return
    if proto.domain == on_core.DOMAIN:
        kernels.KERNELS[proto.op_type](node)
        return
    if proto.domain not in ("", "ai.onnx"):
        node.refuse(f"this operator of {proto.domain} is not supported{_REMEDY}")
    row = OPERATORS.get(proto.op_type)
    if row is None and (parts := definition(node)):
        for part in parts:
            _node(Node(part, node.model, node.graph, constants), constants)
        return
    if row is None:
        node.refuse(f"this operator is not supported{_REMEDY}")
    for name in node.attributes:
        if name not in row.attributes:
            supported = ", ".join(row.attributes) or "none"
            node.refuse(f"attribute {name} is not supported; supported are {supported}")
    for index, name in enumerate(proto.input):
        info = node.model.info.get(name)
        if name and info is not None and name not in constants:
            kind = node.kind(info, name)
            if kind not in row.types or (info.type in SHORT and proto.op_type not in IN_RANGE):
                node.refuse(f"data type {info.type} of input {index} ({name}) is not supported")
        if name and info is not None and 0 in info.shape and (name not in constants or _reads_elements(node, index)):
            node.refuse(f"shape {list(info.shape)} of {name} holds no element")
    for index, name in enumerate(proto.output):
        if name and (size := _size(node.out_info(index))) > MAX_BYTES:
            node.refuse(
                f"shape {list(node.out_info(index).shape)} of {name}: {size} bytes; a tensor that the run writes has "
                f"{MAX_BYTES} at most: a smaller shape or batch"
            )
    _check_ranks(node)
    parts_of_node = Decomposition(node)
    try:
        if row.compose is None or not row.composed(node):
            row.lower(node)
            return
        row.compose(parts_of_node)
    except ModelError:
        raise
    except Exception:
        _check_defined(node, constants)
        raise
    constants.update(parts_of_node.constants)
    node.model.info.update(parts_of_node.infos)
    for part in parts_of_node.nodes:
        _node(Node(part, node.model, node.graph, constants), constants)


def _size(info: TensorInfo) -> int:
    """Return the bytes of a tensor on the device."""
    return math.prod(info.shape) * (NUMPY[ONNX[info.type]].itemsize if info.type in ONNX else 1)


_OF_ONE_RANK = {"Conv": 2, "ConvInteger": 2, "ConvTranspose": 2, "GatherElements": 2, "ScatterElements": 3}
"""Operators -> number of inputs that must have equal rank, which onnx's inference does not check."""


def _check_ranks(node: Node) -> None:
    ranks = [len(node.shape(index)) for index in range(_OF_ONE_RANK.get(node.proto.op_type, 0))]
    if len(set(ranks)) > 1:
        node.refuse(f"inputs of {', '.join(map(str, ranks))} dimensions: must have one number: export the model again")


def _check_defined(node: Node, constants: dict[str, Values]) -> None:
    """Raise ModelError if ONNX's own definition fails for a node too: its inference checks ranks, sizes and indices
    only in part."""
    places = {name: at for at, name in enumerate(node.proto.input) if name}
    if sum(math.prod(node.shape(at)) for at in places.values()) > MAX_JUDGED:
        return
    feeds = {name: constants[name] if name in constants else np.zeros(node.shape(at), node.numpy_type(at))
             for name, at in places.items()}  # fmt: skip
    try:
        evaluate(node.proto, feeds, node.model.proto.opset_import)
    except Exception as error:
        node.refuse(
            f"it has no result for inputs of these shapes and values ({one_line(error)}): export the model again"
        )


def _without_elements(node: Node) -> dict[str, Values]:
    """Return the empty outputs of a node, which need no computation."""
    infos = {name: node.model.info.get(name) for name in node.proto.output if name}
    return {
        name: np.zeros(info.shape, info.dtype)
        for name, info in infos.items() if info is not None and 0 in info.shape and info.type in ONNX
    }  # fmt: skip


def _reads_elements(node: Node, index: int) -> bool:
    """Check whether a node needs an element of an input. Lists of dimensions may be empty."""
    if node.proto.op_type == "Attention" and index in _PASTS:
        return False
    return node.proto.op_type not in ("Concat", "Resize") and node.info(index).type != "INT64"


def _at_compile_time(node: Node, constants: dict[str, Values]) -> bool:
    proto = node.proto
    if proto.op_type in OF_SHAPES:
        return True
    needed = proto.input[:1] if proto.op_type == "CastLike" else proto.input
    if not all(name in constants for name in needed if name):
        return False
    if proto.op_type in FOLDED or proto.op_type not in OPERATORS:
        return True
    infos = [node.model.info[name] for name in proto.output if name in node.model.info]
    if any(ONNX.get(info.type) not in FLOATS for info in infos):
        return True
    return all(math.prod(info.shape) <= SMALL for info in infos)


def _evaluate(node: Node, constants: dict[str, Values]) -> dict[str, Values]:
    """Evaluate a node by ONNX's own definition."""
    proto = node.proto
    if proto.op_type == "Shape":
        shape = np.array(node.info(0).shape, np.int64)
        return {proto.output[0]: shape[slice(node.attribute("start", 0), node.attribute("end"))]}
    if proto.op_type == "Size":
        return {proto.output[0]: np.array(math.prod(node.info(0).shape), np.int64)}
    if proto.op_type == "CastLike":
        proto = helper.make_node("Cast", proto.input[:1], proto.output, to=node.info(1).code)
    if proto.op_type == "EyeLike":
        constants = {proto.input[0]: np.broadcast_to(np.zeros((), node.numpy_type(0)), node.shape(0))}
    feeds = {name: constants[name] for name in proto.input if name}
    elements = 0 if proto.op_type in OF_SHAPES else sum(values.size for values in feeds.values())
    limit = max(MAX_COMPUTED, elements)
    for name, info in _outputs(node, constants).items():
        if math.prod(info.shape) > limit:
            node.refuse(
                f"{name} would be a constant of shape {list(info.shape)}; a computed one has up to {limit} elements"
            )
    try:
        results = evaluate(proto, feeds, node.model.proto.opset_import)
    except Exception as error:
        node.refuse(f"cannot be evaluated at compile time: {' '.join(str(error).split())}")
    if proto.op_type == "DequantizeLinear" and (blocks := _blocks(node, feeds)) is not None:
        node.graph.blocks[proto.output[0]] = blocks
    return dict(zip((name for name in proto.output if name), results, strict=True))


def _blocks(node: Node, feeds: dict[str, Values]) -> WeightBlocks | None:
    """Return a weight matrix in blocks of rows, as integer products require; None for any other constant."""
    codes, scales = (feeds[name] for name in node.proto.input[:2])
    size = int(node.attribute("block_size", 0))
    if not size or codes.ndim != 2 or node.axis(2, 1) != 0 or scales.dtype != np.float32 or not codes.size:
        return None
    codes = codes.astype(np.int32)
    unsigned = node.info(0).type.startswith("U")
    top = int(codes.max()) if unsigned else max(2 * int(codes.max()) + 1, -2 * int(codes.min()) - 1)
    bits = next(width for width in (2, 4, 8) if top < 1 << width)
    middle = 1 << bits - 1 if unsigned else 0
    zeros = (feeds[node.proto.input[2]].astype(np.int32) if node.has(2) else np.zeros(scales.shape, np.int32)) - middle
    return WeightBlocks((codes - middle).astype(np.int8), scales, zeros if zeros.any() else None, size, bits)


def _outputs(node: Node, constants: dict[str, Values]) -> dict[str, TensorInfo]:
    """Return types and shapes of the outputs of a node with constant inputs, as far as inference determines them."""
    if any(name and name not in node.model.info for name in node.proto.output):
        with suppress(Exception):  # evaluation reports the error
            _infer(node, constants)
    return {name: node.model.info[name] for name in node.proto.output if name in node.model.info}


def _infer(node: Node, constants: dict[str, Values]) -> None:
    """Infer the output shapes of a node whose input shapes were unknown to ONNX's inference over the whole model."""
    opsets = list(node.model.proto.opset_import)
    if node.proto.domain == "" and not defs.has(node.proto.op_type, opset_of(node.model.proto)):
        opsets = [helper.make_opsetid("", defs.onnx_opset_version())]  # the operator of a matched pattern may be newer
    infos = infer_outputs(node.proto, node.model.info, constants, opsets)
    for name, info in infos.items():
        node.model.info.setdefault(name, info)
