"""Topological order of nodes.

ONNX requires it, onnxruntime establishes it. Some tools violate it: converters to FP16 append the casts of inputs and
of operators that stay in FP32.
"""

import heapq
from collections.abc import Collection, Sequence
from typing import Any

from toolchain.onnx_nodes.messages import all_nodes, assign, subgraphs


def in_order(graph: Any) -> None:
    """Sort the nodes of a graph or function, and of its subgraphs, topologically; ties keep the order of the graph. The
    nodes of a cyclic graph are unchanged, and onnx.checker reports the cycle."""
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    needs = [{makers[name] for name in _reads(node) if name in makers} for node in graph.node]
    if any(max(before, default=-1) >= index for index, before in enumerate(needs)):
        order = _order(needs)
        if len(order) == len(needs):
            assign(graph.node, (graph.node[index] for index in order))
    for node in graph.node:
        for inner in subgraphs(node):
            in_order(inner)


def defer_constants(nodes: Sequence[Any], constants: Collection[str]) -> list[Any]:
    """Return the nodes in order, with nodes that depend on `constants` alone moved right before their first reader:
    some exporters compute all weights at the start, which would keep them all in memory."""
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
    """Return indices in topological order, without those in or after a cycle."""
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
