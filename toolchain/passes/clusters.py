"""Partition of layers into parts that run in parallel, one per cluster, if that is measured to be faster.

Every cluster has its own engines, DMA channels and scratchpad; all share the DRAM. A DRAM-bound layer therefore gains
little, or stays whole, on the first cluster. The operands of parts are in DRAM; if that evicts a resident tensor, the
other layers that use it are measured too.
"""

from collections.abc import Hashable
from dataclasses import replace
from typing import NamedTuple

from toolchain.codegen.commands import Target
from toolchain.codegen.measure import measure_cost
from toolchain.ir.graph import DRAM, Graph, LayerIR, TensorIR
from toolchain.ir.operations import append_operands
from toolchain.ir.partition import CUTS, Partition, partitions
from toolchain.passes.prefetch import distance
from toolchain.passes.tiling import fastest, signature

GAIN = 4
"""Denominator of the minimum saving for a partition by estimates, which are inaccurate."""
NEXT_GAIN = 8
"""Denominator of the minimum further saving for a partition into more parts."""
MEASURED_GAIN = 100
"""Denominator of both savings if times are measured."""


class _Choice(NamedTuple):
    """Partition of a layer: number of parts, 1 for none, and index of the partition."""

    parts: int
    way: int


def run(graph: Graph, target: Target) -> Graph:
    """Replace layers by their parts, with attributes `cluster` and `clusters`, the number of parts."""
    if target.clusters < 2:
        return graph
    fixed = _fix(graph)
    choices: dict[Hashable, _Choice] = {}
    tensors, constants = dict(graph.tensors), dict(graph.constants)
    layers = list[LayerIR]()
    for layer in graph.layers:
        names = *layer.inputs, *layer.outputs
        key = signature(graph, layer), tuple(_operand_key(graph, name) for name in names)
        if key not in choices:
            choices[key] = _best(graph, layer, target, fixed)
        parts, way = choices[key]
        if parts == 1:
            layers.append(layer)
            continue
        partition = list(partitions(graph, layer, parts))[way]
        tensors |= partition.tensors
        constants |= partition.constants
        layers += _place(partition)
        for name in map(graph.storage, names):
            tensors[name] = replace(tensors[name], storage_class=DRAM)
    tensors = {name: _as_stored(tensors, tensor) for name, tensor in tensors.items()}
    return replace(graph, tensors=tensors, constants=constants, layers=layers).dropped_unused()


def _fix(graph: Graph) -> set[str]:
    """Return tensors that must stay in the scratchpad: attention reads new keys and values there."""
    return {graph.storage(name) for layer in graph.layers for name in append_operands(layer) if graph.resident(name)}


def _operand_key(graph: Graph, name: str) -> Hashable:
    """Return the properties of an operand that determine a partition."""
    tensor = graph.tensors[name]
    return (
        tensor.dtype,
        tensor.shape,
        tensor.pitch,
        bool(tensor.view_of),
        graph.resident(name),
        graph.storage(name) in graph.constants,
    )


def _best(graph: Graph, layer: LayerIR, target: Target, fixed: set[str]) -> _Choice:
    """Return the fastest partition; more parts must save enough."""
    names = {graph.storage(name) for name in (*layer.inputs, *layer.outputs)}
    if names & fixed or layer.op_type not in CUTS:
        return _Choice(1, 0)
    affected_layers = [other for other in graph.layers if other is layer or _touches(graph, other, names)]
    index = affected_layers.index(layer)
    unsplit = fastest(graph, layer, target)
    base = None if target.measured is None else _time(graph, affected_layers, target)
    min_time, best = unsplit.cost if base is None else base, _Choice(1, 0)
    gain, next_gain = (GAIN, NEXT_GAIN) if base is None else (MEASURED_GAIN, MEASURED_GAIN)
    transfer = sum(graph.tensors[name].size for name in (*layer.inputs, *layer.outputs)) // target.dram_rate
    if transfer >= min_time - min_time // gain:
        return best
    stored = _in_dram(graph, names)
    for count in range(2, target.clusters + 1):
        candidates = [
            (fastest(partition.added(stored), _place(partition)[-1], target).cost, way, partition)  # the largest part
            for way, partition in enumerate(partitions(graph, layer, count))
        ]
        if not candidates:
            continue
        time, way, partition = min(candidates, key=lambda candidate: candidate[:2])
        if base is not None:
            layers = [*affected_layers[:index], *_place(partition), *affected_layers[index + 1 :]]
            cycles = _time(partition.added(stored), layers, target)
            time = base if cycles is None else cycles
        if time < min_time - min_time // (gain if best.parts == 1 else next_gain):
            min_time, best = time, _Choice(count, way)
    return best


def _touches(graph: Graph, layer: LayerIR, names: set[str]) -> bool:
    """Check whether a layer uses one of these tensors in the scratchpad."""
    residents = {name for name in (*layer.inputs, *layer.outputs) if graph.resident(name)}
    return not names.isdisjoint(map(graph.storage, residents))


def _time(graph: Graph, layers: list[LayerIR], target: Target) -> int | None:
    """Measure layers, each with the tile that is fastest if it runs alone."""
    tiled_layers = list[LayerIR]()
    for layer in layers:
        tiled = fastest(graph, layer, target).layer.having(spread=1)
        tiled_layers.append(tiled.having(prefetch=distance(graph, tiled, target)))
    return measure_cost(graph, tiled_layers, target)


def _in_dram(graph: Graph, names: set[str]) -> Graph:
    moved = {name: replace(graph.tensors[name], storage_class=DRAM) for name in names if graph.resident(name)}
    return replace(graph, tensors=graph.tensors | moved)


def _as_stored(tensors: dict[str, TensorIR], tensor: TensorIR) -> TensorIR:
    """Return a view with the storage class of its stored tensor."""
    if not tensor.view_of or tensor.storage_class == tensors[tensor.view_of].storage_class:
        return tensor
    return replace(tensor, storage_class=tensors[tensor.view_of].storage_class)


def _place(partition: Partition) -> list[LayerIR]:
    """Return the parts, each assigned to its cluster."""
    count = len(partition.layers)
    return [layer.having(cluster=index, clusters=count) for index, layer in enumerate(partition.layers)]
