"""The order of nodes: each behind those whose outputs it reads.

ONNX asks for it and onnxruntime makes it. Tools that add nodes leave it out: converters to FP16 put the casts of inputs
and of operators that stay in FP32 at the end of the list.
"""

import heapq
from collections.abc import Collection, Sequence
from typing import Any

from onnx import NodeProto

from toolchain.onnx_nodes.view import all_nodes, subgraphs


def in_order(graph: Any) -> None:
    """Put the nodes of a graph or function, and of the subgraphs in it, in that order; of those that may be next, the
    first in the graph. Where nodes read each other in a circle they stay as they are, and onnx.checker says so."""
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    needs = [{makers[name] for name in _reads(node) if name in makers} for node in graph.node]
    if any(max(before, default=-1) >= index for index, before in enumerate(needs)):
        order = _order(needs)
        if len(order) == len(needs):
            nodes = [NodeProto.FromString(graph.node[index].SerializeToString()) for index in order]
            del graph.node[:]
            graph.node.extend(nodes)
    for node in graph.node:
        for inner in subgraphs(node):
            in_order(inner)


def constants_late(nodes: Sequence[Any], constants: Collection[str]) -> list[Any]:
    """Return nodes in order, with those that read nothing but `constants`, and what such nodes make, right before the
    first that reads them: some exporters make all weights in front, and they need not be held together."""
    reads, fixed = [_reads(node) for node in nodes], set(constants)
    places, first = list(range(len(nodes))), dict[str, int]()
    constant = []
    for node, names in zip(nodes, reads, strict=True):
        constant.append(names <= fixed)
        fixed.update(node.output if constant[-1] else ())
    for index in reversed(range(len(nodes))):
        if constant[index]:
            places[index] = min((first.get(name, len(nodes)) for name in nodes[index].output), default=len(nodes))
        first.update((name, min(places[index], first.get(name, len(nodes)))) for name in reads[index])
    return [nodes[index] for index in sorted(range(len(nodes)), key=places.__getitem__)]


def _reads(node: Any) -> set[str]:
    """Return the names that a node and its subgraphs read."""
    names = {*node.input}
    for graph in subgraphs(node):
        names |= {name for inner in all_nodes(graph) for name in inner.input}
        names |= {value.name for value in graph.output}
    return names - {*node.output, ""}


def _order(needs: list[set[int]]) -> list[int]:
    """Return indices, each behind those that it needs; those in a cycle, and behind a cycle, are left out."""
    users: list[list[int]] = [[] for _ in needs]
    for index, before in enumerate(needs):
        for predecessor in before:
            users[predecessor].append(index)
    missing = [len(before) for before in needs]
    ready = [index for index, count in enumerate(missing) if not count]
    order = []
    while ready:
        order.append(heapq.heappop(ready))
        for user in users[order[-1]]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, user)
    return order
