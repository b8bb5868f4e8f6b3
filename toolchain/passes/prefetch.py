"""The sequencer of a macro command loads tiles ahead, as far as the buffers of its layer reach
(docs/npu-timing.md, "Commands, steps, pieces"): the computation of more than one tile hides the latency of the memory.
"""

from dataclasses import replace

from toolchain.codegen.commands import Target
from toolchain.codegen.estimate import engines
from toolchain.codegen.tiles import fits, tile_of
from toolchain.ir.graph import Graph, LayerIR

FARTHEST = 4
"""Tiles ahead."""


def run(graph: Graph, target: Target) -> Graph:
    """Add `prefetch` to every layer."""
    return replace(graph, layers=[layer.having(prefetch=_distance(graph, layer, target)) for layer in graph.layers])


def _distance(graph: Graph, layer: LayerIR, target: Target) -> int:
    """0 where there is no room for a second set of buffers; engines that share the layer out need theirs."""
    shares = layer.integer("buffers", 1)
    tile = tile_of(graph, layer, target, shares)
    wanted = engines(graph, layer, target, tile)
    for ahead in range(FARTHEST, 0, -1):
        room = fits(graph, layer, tile, target, shares * (ahead + 1))
        if room and engines(graph, layer, target, tile, ahead) == wanted:
            return ahead
    return 0
