"""Operators that ONNX itself defines by others: their definition is what is compiled."""

from typing import Any

import onnx
from onnx import NodeProto, defs, helper
from onnx.inliner import inline_selected_functions

from toolchain.onnx_frontend.node import Node, node_name


def definition(node: Node) -> list[Any]:
    """The nodes that stand for one, with names of their own inside; none: it is no function of ONNX."""
    proto = node.proto
    try:
        schema: Any = defs.get_schema(proto.op_type, node.model.opset)
    except defs.SchemaError:
        return []
    if not (schema.has_function or schema.has_context_dependent_function):
        return []
    known, kinds = node.model.info, onnx.TensorProto.DataType
    inputs = [name for name in dict.fromkeys(proto.input) if name]
    if not all(name in known for name in inputs):
        return []
    graph = helper.make_graph(
        [_with_defaults(proto, schema)], "function",
        [helper.make_tensor_value_info(name, kinds.Value(known[name].type), known[name].shape) for name in inputs],
        [helper.make_empty_tensor_value_info(name) for name in proto.output if name],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=list(node.model.proto.opset_import))
    try:
        inlined = inline_selected_functions(model, [("", proto.op_type)], inline_schema_functions=True)
    except RuntimeError:  # what a definition by context does not know
        return []
    made = [NodeProto.FromString(one.SerializeToString()) for one in inlined.graph.node]
    if any(one.op_type == proto.op_type for one in made):
        return []
    outside = {*proto.input, *proto.output, ""}
    for index, one in enumerate(made):
        one.name = f"{node_name(proto)}/{one.op_type}{index}"
        for names in (one.input, one.output):
            for place, name in enumerate(names):
                names[place] = name if name in outside else f"{node_name(proto)}/{name}"
    return made


def _with_defaults(proto: Any, schema: Any) -> Any:
    """The node with the attributes that it leaves out: definitions refer to them."""
    whole, given = NodeProto.FromString(proto.SerializeToString()), {one.name for one in proto.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.name:
            whole.attribute.append(attribute.default_value)
    return whole
