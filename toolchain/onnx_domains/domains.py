"""Operators of domains beside ONNX's own, which become operators of ONNX before anything else."""

from collections.abc import Mapping
from typing import Any

from onnx import NodeProto

from toolchain.ir.graph import Values
from toolchain.onnx_domains import classical, contributed
from toolchain.onnx_nodes import detection
from toolchain.onnx_nodes.evaluation import TensorInfo
from toolchain.onnx_nodes.parts import Parts, Row
from toolchain.onnx_nodes.view import NodeView

DOMAINS: dict[str, dict[str, Row]] = {
    contributed.DOMAIN: contributed.CONTRIBUTED,
    classical.DOMAIN: classical.CLASSICAL,
}
"""Domain -> operator -> what it becomes."""

EARLY: dict[str, Row] = {
    "NonMaxSuppression": Row(
        "for each box REDUCE max, argmax, GATHER, ELTWISE; rows of -1 behind those selected, their number as output "
        f"NAME{detection.COUNT}", detection.non_max_suppression, ("center_point_box",),
    ),
}  # fmt: skip
"""Operators of ONNX whose shapes the run decides: they become others before shapes are inferred."""
_OWN = {**EARLY, "SimplifiedLayerNormalization": contributed.CONTRIBUTED["SimplifiedLayerNormalization"]}
"""In the domain of ONNX; the last one is not there, exporters write it all the same."""


def is_foreign(proto: Any) -> bool:
    """Whether a node is of another domain whose operators become those of ONNX."""
    return proto.domain in DOMAINS or (proto.domain in ("", "ai.onnx") and proto.op_type in _OWN)


def decomposed(
    proto: Any, model: str, opset: int, infos: Mapping[str, TensorInfo], known: Mapping[str, Values]
) -> tuple[list[Any], dict[str, Values]]:
    """The nodes of ONNX that stand for one of those operators, and their constants by name.

    `infos` and `known`: types and shapes, and values, of tensors by name. ModelError: what of it is not supported.
    """
    node = NodeView(NodeProto.FromString(proto.SerializeToString()), model, opset, infos, known)
    row = DOMAINS.get(proto.domain, _OWN).get(proto.op_type)
    if row is None:
        return [proto], {}  # refused with all others when the model is imported
    for name in node.attributes:
        if name not in row.attributes and not _is_default(node, name):
            node.refuse(f"attribute {name} is not supported; supported are {', '.join(row.attributes) or 'none'}")
    parts = Parts(node)
    row.compose(parts)
    return parts.nodes, parts.constants


def _is_default(node: NodeView, name: str) -> bool:
    """Whether an attribute says what is so without it: exporters write out zeros, -1 and NONE."""
    return node.attribute(name) in (0, -1, "NONE", "")
