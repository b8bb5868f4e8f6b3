"""Copies of constants are made by the compiler, where they are no larger than `MOST_COPIED`."""

import numpy as np

from toolchain.codegen.commands import Target
from toolchain.ir.graph import Graph, LayerIR, Role, TensorIR, Values

MOST_COPIED = 1 << 24
"""Elements of a constant that is written out over a larger tensor; beyond that the device copies it."""


def run(graph: Graph, target: Target) -> Graph:
    """Remove each COPY that alone writes its output, the whole of it, from a constant."""
    graph = graph.copy()
    for layer in list(graph.layers):
        out = graph.tensors[layer.outputs[0]]
        writers = [one for one in graph.layers if graph.storage(one.outputs[0]) == graph.storage(out.id)]
        values = graph.constant(layer.inputs[0])
        if layer.op_type != "COPY" or values is None or len(writers) > 1 or out.id in graph.outputs:
            continue
        if int(np.prod(layer.integers("dims"))) != out.elements or values.size < out.elements > MOST_COPIED:
            continue
        graph.tensors[out.id] = TensorIR(out.id, Role.WEIGHT, out.shape, out.dtype)
        graph.constants[out.id] = _copied(layer, values, out)
        graph.layers.remove(layer)
    return graph.dropped_unused()


def _copied(layer: LayerIR, values: Values, out: TensorIR) -> Values:
    dims = layer.integers("dims")
    bits = np.dtype(f"u{values.itemsize}")  # numpy walks its own types only
    result = np.zeros(out.elements, bits)
    taken = _walk(values.reshape(-1).view(bits), layer.integer("at_in"), dims, layer.integers("from"))
    _walk(result, layer.integer("at_out"), dims, layer.integers("to"))[...] = taken
    return result.view(values.dtype).reshape(out.shape)


def _walk(flat: Values, first: int, dims: tuple[int, ...], steps: tuple[int, ...]) -> Values:
    """The elements on a walk from `first`, as a view."""
    return np.lib.stride_tricks.as_strided(flat[first:], dims, [step * flat.itemsize for step in steps])
