"""Residency of activations in the scratchpad: the smallest first, up to one part in `RESIDENT_SHARE` of it."""

from dataclasses import replace

from toolchain.codegen.commands import Target
from toolchain.codegen.memory import RESIDENT_SHARE, live_ranges, reserve_residents
from toolchain.ir.graph import SPM, Graph, Role
from toolchain.ir.operations import on_core

IN_DRAM = {"GATHER": 0}
"""Operation -> operand that must be in DRAM."""


def run(graph: Graph, target: Target) -> Graph:
    """Set the storage class SPM for activations between layers, as long as those alive at the same time fit."""
    pinned = set(map(graph.storage, (*graph.inputs, *graph.outputs)))
    pinned |= {
        graph.storage(layer.inputs[IN_DRAM[layer.op_type]]) for layer in graph.layers if layer.op_type in IN_DRAM
    }
    pinned |= on_core(graph)
    written = {graph.storage(layer.outputs[0]) for layer in graph.layers}
    candidates = {name for name in written - pinned if graph.tensors[name].role is Role.ACTIVATION}
    spans, limit = live_ranges(graph), target.spm_bytes // RESIDENT_SHARE
    occupied, names = [0] * len(graph.layers), list[str]()
    for name in sorted(candidates, key=lambda name: (graph.tensors[name].size, spans[name])):
        first, last = spans[name]
        size = graph.tensors[name].size
        if max(occupied[first : last + 1]) + size <= limit:
            names.append(name)
            for layer in range(first, last + 1):
                occupied[layer] += size
    while True:  # on fragmentation beyond the limit, remove the largest tensors
        tensors = graph.tensors | {name: replace(graph.tensors[name], storage_class=SPM) for name in names}
        result = replace(graph, tensors=tensors)
        if not names or reserve_residents(result, target).resident <= limit:
            return result
        names.pop()
