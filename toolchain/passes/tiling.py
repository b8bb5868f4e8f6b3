"""Every layer is cut into tiles of which two sets of buffers fit half of the scratchpad: one set computes while the
other moves, and the next layer has the other half."""

from dataclasses import replace

from toolchain.codegen.commands import Target
from toolchain.codegen.tiles import fit
from toolchain.ir.graph import Graph

BUFFERS = 2


def run(graph: Graph, target: Target) -> Graph:
    """Add `tile` and `buffers` to every layer. ModelError names a layer of which no tile fits."""
    layers = [layer.having(tile=fit(graph, layer, target, 2 * BUFFERS), buffers=BUFFERS) for layer in graph.layers]
    return replace(graph, layers=layers)
