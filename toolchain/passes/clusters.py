"""Layers are cut into parts that run side by side, one on each cluster, where that is faster by `codegen.estimate`.

Every cluster has engines, DMA channels and a scratchpad of its own; all share the DRAM. So a layer that the DRAM limits
stays whole, on the first cluster. The parts of a layer have their operands in DRAM.
"""

from collections.abc import Hashable
from dataclasses import replace
from typing import NamedTuple

from toolchain.codegen.commands import Target
from toolchain.ir.graph import DRAM, Graph, LayerIR, TensorIR
from toolchain.ir.operations import appended
from toolchain.ir.partition import CUTS, Parts, partitions
from toolchain.passes.tiling import fastest

GAIN = 4
"""A layer is cut where that saves one part in so many of its time: the estimate is not close."""
MORE = 8
"""It is cut into more parts where that saves one part in so many of what is left."""


class _Choice(NamedTuple):
    """A cut of a layer; one part: none."""

    parts: int
    way: int


def run(graph: Graph, target: Target) -> Graph:
    """Replace layers by their parts, which carry `cluster` and the number of parts, `clusters`."""
    if target.clusters < 2:
        return graph
    fixed = _fixed(graph)
    known: dict[Hashable, _Choice] = {}
    tensors, constants = dict(graph.tensors), dict(graph.constants)
    layers = list[LayerIR]()
    for layer in graph.layers:
        names = *layer.inputs, *layer.outputs
        key = layer.op_type, tuple(_seen(graph, name) for name in names), tuple(layer.attributes.items())
        if key not in known:
            known[key] = _best(graph, layer, target, fixed)
        parts, way = known[key]
        if parts == 1:
            layers.append(layer)
            continue
        made = list(partitions(graph, layer, parts))[way]
        tensors |= made.tensors
        constants |= made.constants
        layers += _placed(made)
        for name in map(graph.storage, names):
            tensors[name] = replace(tensors[name], storage_class=DRAM)
    tensors = {name: _as_stored(tensors, one) for name, one in tensors.items()}
    return replace(graph, tensors=tensors, constants=constants, layers=layers).dropped_unused()


def _fixed(graph: Graph) -> set[str]:
    """Tensors that stay in the scratchpad: attention takes new keys and values from there."""
    return {graph.storage(name) for layer in graph.layers for name in appended(layer) if graph.resident(name)}


def _seen(graph: Graph, name: str) -> Hashable:
    """What of an operand decides how a layer is cut."""
    one = graph.tensors[name]
    return (
        one.dtype,
        one.shape,
        one.pitch,
        bool(one.view_of),
        graph.resident(name),
        graph.storage(name) in graph.constants,
    )


def _best(graph: Graph, layer: LayerIR, target: Target, fixed: set[str]) -> _Choice:
    """The fastest cut: one into more parts must be worth it."""
    names = {graph.storage(name) for name in (*layer.inputs, *layer.outputs)}
    least, best = fastest(graph, layer, target).cycles, _Choice(1, 0)
    moved = sum(graph.tensors[name].size for name in (*layer.inputs, *layer.outputs)) // target.dram_rate
    if names & fixed or layer.op_type not in CUTS or moved >= least - least // GAIN:
        return best
    stored = _in_dram(graph, names)
    for count in range(2, target.clusters + 1):
        wanted = least - least // (GAIN if best.parts == 1 else MORE)
        for way, made in enumerate(partitions(graph, layer, count)):
            last = _placed(made)[-1]  # the largest part
            time = fastest(made.added(stored), last, target).cycles
            if time < min(wanted, least):
                least, best = time, _Choice(count, way)
    return best


def _in_dram(graph: Graph, names: set[str]) -> Graph:
    moved = {name: replace(graph.tensors[name], storage_class=DRAM) for name in names if graph.resident(name)}
    return replace(graph, tensors=graph.tensors | moved)


def _as_stored(tensors: dict[str, TensorIR], one: TensorIR) -> TensorIR:
    """A view is where its tensor is."""
    if not one.view_of or one.storage_class == tensors[one.view_of].storage_class:
        return one
    return replace(one, storage_class=tensors[one.view_of].storage_class)


def _placed(made: Parts) -> list[LayerIR]:
    """The parts, each on its cluster."""
    count = len(made.layers)
    return [layer.having(cluster=index, clusters=count) for index, layer in enumerate(made.layers)]
