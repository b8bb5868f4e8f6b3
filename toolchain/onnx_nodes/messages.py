"""Protobuf messages of ONNX."""

from collections.abc import Iterable, Sequence
from typing import Any

from onnx import helper


def attributes_of(proto: Any) -> dict[str, Any]:
    """Return the explicit attributes of a node, in the representation of onnx.helper."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in proto.attribute}


def assign(field: Any, messages: Iterable[Any]) -> None:
    """Replace the messages of a repeated field of a protobuf."""
    messages = list(messages)
    del field[:]
    field.extend(messages)


def live_nodes(nodes: Sequence[Any], names: set[str]) -> list[Any]:
    """Return the nodes on which tensors depend, and add the tensors that those read to `names`."""
    live = []
    for node in reversed(nodes):
        if names.intersection(node.output):
            names.update(node.input)
            live.append(node)
    return live[::-1]
