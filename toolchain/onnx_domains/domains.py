"""Operators of other domains, which are decomposed into ONNX operators before any other step."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from toolchain.ir.graph import Values
from toolchain.onnx_domains import classical, contributed
from toolchain.onnx_domains.on_core import ON_CORE
from toolchain.onnx_nodes.evaluation import TensorInfo
from toolchain.onnx_nodes.parts import Composition, Decomposition
from toolchain.onnx_nodes.view import NodeView

DOMAINS: dict[str, dict[str, Composition]] = {
    contributed.DOMAIN: contributed.CONTRIBUTED,
    classical.DOMAIN: classical.CLASSICAL,
}
"""Domain -> operator -> its decomposition."""

_STANDARD = {**ON_CORE, "SimplifiedLayerNormalization": contributed.CONTRIBUTED["SimplifiedLayerNormalization"]}
"""Operators decomposed in the ONNX domain. The last is not part of ONNX, but exporters place it there."""


def is_foreign(proto: Any) -> bool:
    """Check whether a node is of a foreign domain whose operators are rewritten to those of ONNX."""
    return proto.domain in DOMAINS or (proto.domain in ("", "ai.onnx") and proto.op_type in _STANDARD)


def decompose(
    proto: Any, model: str, opset: int, infos: Mapping[str, TensorInfo], constants: Mapping[str, Values]
) -> Decomposition:
    """Return the nodes that replace an operator of those domains.

    `infos` and `constants`: types and shapes, and values, of tensors by name. ModelError: a part is not supported.
    """
    node = NodeView(deepcopy(proto), model, opset, infos, constants)
    row = DOMAINS.get(proto.domain, _STANDARD).get(proto.op_type)
    parts = Decomposition(node)
    if row is None or (row in ON_CORE.values() and all(name in constants for name in proto.input if name)):
        parts.nodes.append(proto)  # import refuses it, or evaluates it
        return parts
    for name in (attribute.name for attribute in node.proto.attribute):
        if name not in row.attributes and not _is_default(node, name):
            node.refuse(f"attribute {name} is not supported; supported are {', '.join(row.attributes) or 'none'}")
    try:
        row.compose(parts)
    except (ArithmeticError, LookupError, StopIteration, TypeError, ValueError):  # onnx has no rules for these domains
        node.refuse("its inputs, outputs or attributes are not those of the operator: export the model again")
    return parts


def _is_default(node: NodeView, name: str) -> bool:
    """Check whether an attribute has its default: exporters also write defaults such as 0, -1 and NONE."""
    return node.attribute(name) in (0, -1, "NONE", "")
