"""Activations stay in the scratchpad where they all need at most an eighth of it: they are never moved."""

from dataclasses import replace

from toolchain.codegen.commands import Target
from toolchain.codegen.memory import resident_bytes
from toolchain.ir.graph import SPM, Graph, Role
from toolchain.ir.operations import on_core

SHARE = 8
"""Activations may take one of so many parts of the scratchpad."""
IN_DRAM = {"GATHER": 0}
"""Operands that must be in DRAM, by operation."""


def run(graph: Graph, target: Target) -> Graph:
    """Give the activations between the layers the storage class SPM, or none of them."""
    kept = set(map(graph.storage, (*graph.inputs, *graph.outputs)))
    kept |= {graph.storage(layer.inputs[IN_DRAM[layer.op_type]]) for layer in graph.layers if layer.op_type in IN_DRAM}
    kept |= on_core(graph)
    written = {graph.storage(layer.outputs[0]) for layer in graph.layers}
    chosen = {name for name in written - kept if graph.tensors[name].role is Role.ACTIVATION}
    tensors = {name: replace(one, storage_class=SPM) if name in chosen else one for name, one in graph.tensors.items()}
    made = replace(graph, tensors=tensors)
    return made if resident_bytes(made) * SHARE <= target.spm_bytes else graph
