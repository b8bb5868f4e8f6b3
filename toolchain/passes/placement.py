"""Operands of a tile lie in banks of their own, so that loads, operand reads and stores do not meet at one bank."""

from dataclasses import replace

from toolchain.codegen.commands import Target
from toolchain.ir.graph import Graph


def run(graph: Graph, target: Target) -> Graph:
    """Add `spread` to every layer."""
    return replace(graph, layers=[layer.having(spread=1) for layer in graph.layers])
