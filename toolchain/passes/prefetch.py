"""The sequencer of a macro command loads one tile ahead (specification 40, "DMA")."""

from dataclasses import replace

from toolchain.codegen.commands import Target
from toolchain.ir.graph import Graph

DISTANCE = 1


def run(graph: Graph, target: Target) -> Graph:
    """Add `prefetch` to every layer."""
    return replace(graph, layers=[layer.having(prefetch=DISTANCE) for layer in graph.layers])
