"""Preconditions on a model, checked before any processing. onnx assumes some of them, and its C++ code would read
invalid memory otherwise; others ensure that tensors have values."""

import re
from typing import Any

from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import uses_external_data

from toolchain.errors import ModelError
from toolchain.onnx_nodes.messages import all_nodes, byte_size, tensors_of
from toolchain.onnx_nodes.parts import CORE
from toolchain.onnx_nodes.view import node_name

INTEGERS = range(-(1 << 31), 1 << 31)
"""Range of axes, sizes and switches, which onnx stores as INT32."""
LARGE = 1 << 16
"""Minimum size of a tensor that is checked by its size alone, bytes."""
_WIDE = ("Constant",)
"""Operators with integer attributes that are values."""
_EQUATION = re.compile(rb"[A-Za-z,.\s]*(->[A-Za-z.\s]*)?")
"""Valid equation of an Einsum: onnx's shape inference does not terminate for a single hyphen."""


def check_rules(model: Any, name: str) -> None:
    """Raise ModelError for an onnx.ModelProto that violates a rule."""
    for part in (model.graph, *model.functions):
        for node in all_nodes(part):
            if broken := _broken(node, in_function=part is not model.graph):
                raise ModelError(f"{name}: node {node_name(node)} ({node.op_type}): {broken}: export the model again")
        for tensor in tensors_of(part):
            if broken := _broken_tensor(tensor):
                raise ModelError(f"{name}: tensor {tensor.name}: {broken}: export the model again")


def _broken(node: Any, *, in_function: bool) -> str:
    """Return the rule that a node violates; empty for none."""
    if node.domain == CORE:
        return f"domain {node.domain} is that of the compiler"
    if node.op_type == "Constant" and node.domain in ("", "ai.onnx") and len(node.attribute) != 1:
        return f"{len(node.attribute)} attributes: must be one, its value"
    for attribute in node.attribute:
        if attribute.ref_attr_name and not in_function:
            return f"attribute {attribute.name} refers to {attribute.ref_attr_name}, outside of a function"
        if node.op_type == "Split" and attribute.name == "num_outputs" and attribute.i != len(node.output):
            return f"attribute num_outputs={attribute.i}: the node has {len(node.output)} outputs"
        if node.op_type == "Einsum" and attribute.name == "equation" and not _EQUATION.fullmatch(attribute.s):
            return "attribute equation: must be letters, commas and ..., and an arrow before those of the result"
        wrong = [value for value in (attribute.i, *attribute.ints) if value not in INTEGERS]
        if wrong and node.domain in ("", "ai.onnx") and node.op_type not in _WIDE:
            return f"attribute {attribute.name}={wrong[0]}: must be in {INTEGERS.start}..{INTEGERS.stop - 1}"
    return ""


def _broken_tensor(tensor: Any) -> str:
    """Return why a tensor has no valid values; empty if it has. Values in external files are not read here."""
    if uses_external_data(tensor):
        return ""
    if any(size < 0 for size in tensor.dims):
        return f"shape {list(tensor.dims)}"
    try:
        if len(tensor.raw_data) <= LARGE:
            numpy_helper.to_array(tensor)
        elif tensor.data_type not in _PACKED and (size := byte_size(tensor)) != len(tensor.raw_data):
            return f"{len(tensor.raw_data)} bytes of values, where its shape and type have {size}"
    except Exception as error:
        return " ".join(str(error).split())
    return ""


_PACKED = (TensorProto.INT4, TensorProto.UINT4, TensorProto.INT2, TensorProto.UINT2, TensorProto.FLOAT4E2M1)
"""Element types smaller than a byte."""
