"""Reference results of every model, by onnx.reference."""

import math
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from ml_dtypes import finfo
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from toolchain.ir.graph import Values
from toolchain.onnx_model.model import OnnxModel
from toolchain.onnx_nodes.messages import assign, subgraphs
from toolchain.onnx_nodes.order import defer_constants
from toolchain.onnx_reference.corrected import CORRECTED

QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear")
"""Operators that round numbers to codes."""
NUMBERS = 8
TOGETHER = 4
"""Number of nodes evaluated at a time."""
COMPUTED = ".own"
"""Suffix of a tensor that the reference computes itself while its readers take the values of an input."""


FLOATS: dict[int, np.dtype[Any]] = {
    TensorProto.FLOAT: np.dtype(np.float32), TensorProto.FLOAT16: np.dtype(np.float16),
    TensorProto.BFLOAT16: helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16),
}  # fmt: skip
"""Float types that double precision represents exactly."""


def reference(model: OnnxModel, inputs: Mapping[str, Values]) -> dict[str, Values]:
    """Execute a model by onnx.reference and return its outputs."""
    return evaluate(model.proto, model.outputs, {**model.external, **inputs})


def exact(model: OnnxModel, inputs: Mapping[str, Values]) -> dict[str, Values]:
    """Execute a model in double precision, including 16-bit tensors, to judge which of two narrower results is more
    accurate. Raises errors of onnx.reference for operators that it implements in fp32 only."""
    return evaluate(in_double(model.proto), model.outputs, _wide(model, inputs))


def _wide(model: OnnxModel, inputs: Mapping[str, Values]) -> dict[str, Values]:
    """Return the inputs and the external data in double precision."""
    tensors = {**model.external, **inputs}.items()
    return {name: values.astype(np.float64) if values.dtype in FLOATS.values() else values for name, values in tensors}


def in_single(model: OnnxModel, inputs: Mapping[str, Values]) -> dict[str, Values]:
    """Execute a model like `exact`, but round the result of each node once to its type: the best possible result in
    that type."""
    changed, nodes = in_double(model.proto), list[Any]()
    for node in changed.graph.node:
        types = {name: model.info[name].code for name in node.output if name in model.info}
        rounded = [name for name, code in types.items() if code in FLOATS]
        node.output[:] = [f"{name}/double" if name in rounded else name for name in node.output]
        nodes.append(node)
        for name in rounded:
            nodes += _rounding(f"{name}/double", name, types[name], TensorProto.DOUBLE)
    assign(changed.graph.node, nodes)
    return evaluate(changed, model.outputs, _wide(model, inputs))


def _rounding(source: str, result: str, narrow: int, wide: int) -> list[Any]:
    """Return the nodes that round a tensor of type `wide` to type `narrow`."""
    return [helper.make_node("Cast", [source], [f"{result}.narrow"], to=narrow),
            helper.make_node("Cast", [f"{result}.narrow"], [result], to=wide)]  # fmt: skip


def perturb_rounding(model: OnnxModel) -> OnnxModel:
    """Return the model with every weight perturbed by up to half a rounding step of its type, to measure the
    sensitivity of results to rounding. Tensors of up to NUMBERS elements are unchanged, since they may be factors of a
    size."""
    random = np.random.default_rng(3)

    def moved(values: Values, kind: np.dtype[Any]) -> Values:
        step = float(finfo(kind).eps) / 2
        return values.astype(np.float64) * (1 + step * random.uniform(-1, 1, values.shape))

    changed = in_double(model.proto)
    kinds = {tensor.name: tensor.data_type for tensor in model.proto.graph.initializer}
    for tensor in changed.graph.initializer:
        if (kind := kinds[tensor.name]) in FLOATS and math.prod(tensor.dims) > NUMBERS:
            values = moved(numpy_helper.to_array(tensor), FLOATS[kind])
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    external = {
        name: moved(values, values.dtype) if values.dtype in FLOATS.values() else values
        for name, values in model.external.items()
    }
    return OnnxModel(changed, model.name, external, model.opset)


def in_double(proto: Any) -> Any:
    """Return the model with DOUBLE in place of FLOAT, FLOAT16 and BFLOAT16."""
    double, changed = TensorProto.DOUBLE, deepcopy(proto)
    graph = changed.graph
    attributes = [entry for node in graph.node for entry in node.attribute]
    for tensor in (*graph.initializer, *(attribute.t for attribute in attributes if attribute.HasField("t"))):
        if tensor.data_type in FLOATS:
            values = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in FLOATS:
            value.type.tensor_type.elem_type = double
    for attribute in attributes:
        if attribute.name == "to" and attribute.i in FLOATS:
            attribute.i = double
    return changed


def evaluate(
    proto: Any, names: Collection[str], inputs: Mapping[str, Values], operators: Sequence[type[OpRun]] = ()
) -> dict[str, Values]:
    """Return tensors of an onnx.ModelProto by name; `inputs` includes its external data. `operators`: replacements of
    operators of onnx.reference.

    `TOGETHER` nodes are evaluated at a time, and tensors without a later reader are released, since ReferenceEvaluator
    keeps all tensors of a model.
    """
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    nodes = defer_constants(proto.graph.node, constants.keys() - inputs.keys())
    pieces = [nodes[at : at + TOGETHER] for at in range(0, len(nodes), TOGETHER)]
    reads = [set[str]().union(*map(_reads, piece)) for piece in pieces]
    last = {name: at for at, piece in enumerate(reads) for name in piece} | dict.fromkeys(names, len(pieces))
    values: dict[str, Any] = {name: numpy_helper.to_array(constants[name]) for name in names if name in constants}
    values |= inputs
    for at, (piece, read) in enumerate(zip(pieces, reads, strict=True)):
        names_out = [name for node in piece for name in node.output if name and last.get(name, at) > at]
        names_in = [name for name in read if name in values]
        graph = helper.make_graph(
            piece, proto.graph.name, [helper.make_empty_tensor_value_info(name) for name in names_in],
            [helper.make_empty_tensor_value_info(name) for name in names_out],
            [constants[name] for name in read if name in constants and name not in values],
        )  # fmt: skip
        model = helper.make_model(
            graph, opset_imports=proto.opset_import, functions=proto.functions, ir_version=proto.ir_version
        )
        evaluator = ReferenceEvaluator(model, new_ops=[*CORRECTED, *operators])
        results = evaluator.run(names_out, {name: values[name] for name in names_in})
        values |= zip(names_out, results, strict=True)
        for name in names_in:
            if last[name] == at:
                del values[name]
    return {name: np.asarray(values[name]) for name in names}


def _reads(node: Any) -> set[str]:
    """Return the tensors that a node and its subgraphs read."""
    return {*node.input, *(name for graph in subgraphs(node) for inner in graph.node for name in _reads(inner))}


def rounded_outputs(proto: Any) -> list[str]:
    """Return the outputs of QUANTIZERS: codes, and scales and zero points computed at run time."""
    return [name for node in proto.graph.node if node.op_type in QUANTIZERS for name in node.output if name]


def cut_at(proto: Any, names: Collection[str]) -> Any:
    """Return the model with the tensors `names` of `rounded_outputs` as inputs of their readers. The model's results
    get the suffix COMPUTED. Only floating-point computation remains between them."""
    if not names:
        return proto
    changed = deepcopy(proto)
    for node in changed.graph.node:
        if node.op_type in QUANTIZERS:
            node.output[:] = [name + COMPUTED if name in names else name for name in node.output]
    return changed


def in_precision(model: OnnxModel, code: int) -> Any:
    """Return the model with every float tensor rounded to the ONNX type `code`, to emulate arithmetic in that type."""
    changed, nodes = deepcopy(model.proto), list[Any]()
    floats = {name for name, info in model.info.items() if info.type == "FLOAT"}
    sources = floats & {tensor.name for field in (changed.graph.input, changed.graph.initializer) for tensor in field}
    for name in sorted(sources):
        nodes += _rounding(name, f"{name}.rounded", code, TensorProto.FLOAT)
    for node in changed.graph.node:
        node.input[:] = [f"{name}.rounded" if name in sources else name for name in node.input]
        results = [name for name in node.output if name in floats]
        node.output[:] = [f"{name}.exact" if name in floats else name for name in node.output]
        nodes.append(node)
        for name in results:
            nodes += _rounding(f"{name}.exact", name, code, TensorProto.FLOAT)
    assign(changed.graph.node, nodes)
    return changed
