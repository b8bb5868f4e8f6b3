"""Protobuf messages of ONNX."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from onnx import helper


def attributes_of(proto: Any) -> dict[str, Any]:
    """Return the explicit attributes of a node, in the representation of onnx.helper."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in proto.attribute}


def renamed(proto: Any, names: Mapping[str, str]) -> Any:
    """Return a node with other names of tensors."""
    node = deepcopy(proto)
    for field in (node.input, node.output):
        field[:] = [names.get(name, name) for name in field]
    return node


def assign(field: Any, messages: Iterable[Any]) -> None:
    """Replace the messages of a repeated field of a protobuf."""
    messages = list(messages)
    del field[:]
    field.extend(messages)


def byte_size(tensor: Any) -> int:
    """Return the size of a tensor's values, bytes, for elements of whole bytes."""
    return math.prod(tensor.dims) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


def subgraphs(proto: Any) -> list[Any]:
    """Return the subgraphs of a node."""
    return [
        graph
        for attribute in proto.attribute
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs)
    ]


def all_nodes(graph: Any) -> Iterator[Any]:
    """Yield the nodes of a graph, each followed by those of its subgraphs."""
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from all_nodes(inner)


def graphs_of(part: Any) -> Iterator[Any]:
    """Yield a graph or function and the subgraphs of its nodes."""
    yield part
    for node in part.node:
        for graph in subgraphs(node):
            yield from graphs_of(graph)


def tensors_of(part: Any) -> Iterator[Any]:
    """Yield the constants of a graph or function, including subgraphs."""
    for graph in graphs_of(part):
        sparse = [*getattr(graph, "sparse_initializer", ())]
        yield from getattr(graph, "initializer", ())
        for attribute in (attribute for node in graph.node for attribute in node.attribute):
            yield from (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors)
            sparse += [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
            sparse += attribute.sparse_tensors
        yield from (tensor for pair in sparse for tensor in (pair.values, pair.indices))


def live_nodes(nodes: Sequence[Any], names: set[str]) -> list[Any]:
    """Return the nodes on which tensors depend, and add the tensors that those read to `names`."""
    live = []
    for node in reversed(nodes):
        if names.intersection(node.output):
            names.update(node.input)
            live.append(node)
    return live[::-1]
