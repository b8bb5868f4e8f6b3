"""Prefetch distance of macro commands: their sequencer loads tiles ahead as far as buffers allow, to hide memory
latency behind the computation of several tiles."""

from dataclasses import replace

from toolchain.codegen.commands import Target
from toolchain.codegen.estimate import Estimate
from toolchain.codegen.tiles import tile_of
from toolchain.ir.graph import Graph, LayerIR
from toolchain.ir.operations import PRODUCTS


def run(graph: Graph, target: Target) -> Graph:
    """Add `prefetch` to every engine layer without it."""
    layers = [
        layer
        if "prefetch" in layer.attributes or layer.op_type == "CORE"
        else layer.having(prefetch=distance(graph, layer, target))
        for layer in graph.layers
    ]
    return replace(graph, layers=layers)


def distance(graph: Graph, layer: LayerIR, target: Target) -> int:
    """Return the largest prefetch distance that costs no time, since each engine that shares the layer needs separate
    buffers; 0 if there is no space for a second set of buffers."""
    tile = tile_of(graph, layer, target, 0)
    decided = target.mapping.prefetch
    if decided is not None and layer.op_type in PRODUCTS:
        tile_of(graph, layer, target, decided)  # raises if no tile fits
        return decided
    return Estimate(graph, layer, target).distance(tile)
