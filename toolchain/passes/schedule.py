"""Commands carry how long the path is that waits for them (specification 40, "Scheduler").

The length of a layer is the larger of its arithmetic and its traffic, at the rates below: a bound that orders layers,
no prediction of their time.
"""

from dataclasses import replace

from toolchain.codegen.commands import Target
from toolchain.ir.graph import Graph, LayerIR
from toolchain.ir.operations import PRODUCTS, macs

MACS_PER_CYCLE = 1024
ELEMENTS_PER_CYCLE = 64
BYTES_PER_CYCLE = 85
UNIT = 256
"""Cycles of one step of the rank."""
HIGHEST = 1023


def run(graph: Graph, target: Target) -> Graph:
    """Add `rank` to every layer: cycles from its start to the end of the run along the longest path."""
    below: dict[str, int] = {}
    layers = []
    for layer in reversed(graph.layers):
        level = cycles(graph, layer) + below.get(graph.storage(layer.outputs[0]), 0)
        for name in layer.inputs:
            stored = graph.storage(name)
            below[stored] = max(below.get(stored, 0), level)
        layers.append(layer.having(rank=min(HIGHEST, -(-level // UNIT))))
    return replace(graph, layers=layers[::-1])


def cycles(graph: Graph, layer: LayerIR) -> int:
    """The length of one layer."""
    tensors = [graph.tensors[name] for name in (*layer.inputs, *layer.outputs)]
    moved = sum(tensor.size for tensor in tensors)
    work = tensors[-1].elements // ELEMENTS_PER_CYCLE
    if layer.op_type in PRODUCTS:
        work = macs(layer) // MACS_PER_CYCLE
    return max(1, work, moved // BYTES_PER_CYCLE)
