"""Submission order of layers by critical path: the layer with the longest dependent path first, with the length as its
rank (docs/npu-timing.md, "Scheduler").

The length of a layer is the maximum of its arithmetic and its traffic, at the rates below: a bound for ordering, not a
prediction of its time.
"""

from collections.abc import Iterator
from dataclasses import replace
from heapq import heapify, heappop, heappush

from toolchain.codegen.commands import Target
from toolchain.ir.graph import Graph, LayerIR
from toolchain.ir.operations import PRODUCTS, macs

MACS_PER_CYCLE = 1024
ELEMENTS_PER_CYCLE = 64
BYTES_PER_CYCLE = 85
UNIT = 256
"""Cycles per step of the rank."""
HIGHEST = 1023


def run(graph: Graph, target: Target) -> Graph:
    """Add `rank` to every layer: cycles from its start to the end of the run along the longest path. The ready layer
    with the longest path is next; a phase starts after the previous phase is complete."""
    before = dependencies(graph)
    levels = _levels(graph, before)
    keys = [
        (layer.integer("phase"), -level, index)
        for index, (layer, level) in enumerate(zip(graph.layers, levels, strict=True))
    ]
    layers = [
        graph.layers[index].having(rank=min(HIGHEST, -(-levels[index] // UNIT))) for index in _order(before, keys)
    ]
    return replace(graph, layers=layers)


def dependencies(graph: Graph) -> list[set[int]]:
    """Return for each layer the earlier layers that it depends on: writers of its operands or outputs, and readers of
    its outputs. Of several writers of an output only the last counts, since it depends on the others and their
    readers."""
    writers: dict[str, list[int]] = {}
    readers: dict[str, set[int]] = {}
    """Readers since the last writer."""
    before = []
    for index, layer in enumerate(graph.layers):
        after: set[int] = set()
        for name in map(graph.storage, layer.inputs):
            after.update(writers.get(name, ()))
            readers.setdefault(name, set()).add(index)
        for name in map(graph.storage, layer.outputs):
            after.update(readers.pop(name, ()), writers.get(name, ())[-1:])
            writers.setdefault(name, []).append(index)
        before.append(after - {index})
    return before


def _levels(graph: Graph, before: list[set[int]]) -> list[int]:
    """Return the cycles of the longest path from the start of each layer."""
    levels = [cycles(graph, layer) for layer in graph.layers]
    heights = [0] * len(levels)
    for index in reversed(range(len(levels))):
        levels[index] += heights[index]
        for earlier in before[index]:
            heights[earlier] = max(heights[earlier], levels[index])
    return levels


def _order(before: list[set[int]], keys: list[tuple[int, int, int]]) -> Iterator[int]:
    waiting = [len(earlier) for earlier in before]
    after: list[list[int]] = [[] for _ in before]
    for index, earlier in enumerate(before):
        for predecessor in earlier:
            after[predecessor].append(index)
    ready = [key for key, count in zip(keys, waiting, strict=True) if not count]
    heapify(ready)
    while ready:
        index = heappop(ready)[-1]
        yield index
        for later in after[index]:
            waiting[later] -= 1
            if not waiting[later]:
                heappush(ready, keys[later])


def cycles(graph: Graph, layer: LayerIR) -> int:
    """Return the length of one layer, cycles."""
    tensors = [graph.tensors[name] for name in (*layer.inputs, *layer.outputs)]
    moved = sum(tensor.size for tensor in tensors)
    work = tensors[-1].elements // ELEMENTS_PER_CYCLE
    if layer.op_type in PRODUCTS:
        work = macs(layer) // MACS_PER_CYCLE
    return max(1, work, moved // BYTES_PER_CYCLE)
