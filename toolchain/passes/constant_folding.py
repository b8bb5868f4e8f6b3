"""Folding of copies of constants with results of up to `MAX_COPIED` elements."""

from collections import Counter

import numpy as np

from toolchain.codegen.commands import Target
from toolchain.ir.graph import Graph, LayerIR, TensorIR, Values

MAX_COPIED = 1 << 24
"""Maximum size of a folded broadcast of a constant, elements; the device copies larger ones."""


def run(graph: Graph, target: Target) -> Graph:
    """Remove each COPY of a constant that alone writes its whole output."""
    graph, layers = graph.copy(), list[LayerIR]()
    writers = Counter(graph.storage(layer.outputs[0]) for layer in graph.layers)
    for layer in graph.layers:
        out = graph.tensors[layer.outputs[0]]
        values = graph.constant(layer.inputs[0]) if layer.op_type == "COPY" else None
        sole_writer = writers[graph.storage(out.id)] == 1 and out.id not in graph.outputs
        if values is None or not sole_writer or not _covers(layer, values, out):
            layers.append(layer)
            continue
        graph.add_weight(out.id, _copy(layer, values, out), out.dtype)
    graph.layers = layers
    return graph.dropped_unused()


def _covers(layer: LayerIR, values: Values, out: TensorIR) -> bool:
    """Check whether a COPY fills its output and the output is small enough."""
    return int(np.prod(layer.integers("dims"))) == out.elements and not values.size < out.elements > MAX_COPIED


def _copy(layer: LayerIR, values: Values, out: TensorIR) -> Values:
    dims = layer.integers("dims")
    bits = np.dtype(f"u{values.itemsize}")  # numpy strides only its own types
    result = np.zeros(out.elements, bits)
    elements = _walk(values.reshape(-1).view(bits), layer.integer("at_in"), dims, layer.integers("from"))
    _walk(result, layer.integer("at_out"), dims, layer.integers("to"))[...] = elements
    return result.view(values.dtype).reshape(out.shape)


def _walk(flat: Values, first: int, dims: tuple[int, ...], steps: tuple[int, ...]) -> Values:
    """Return a strided view of the elements, from `first` on."""
    return np.lib.stride_tricks.as_strided(flat[first:], dims, [step * flat.itemsize for step in steps])
