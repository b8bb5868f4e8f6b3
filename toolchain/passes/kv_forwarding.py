"""Fusion of KV_UPDATE into ATTN_T, which then reads new keys and values on chip and appends them itself: for one token,
and for several that stay in the scratchpad (docs/kv-cache.md, "The new token")."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from npu_device.abi.opcodes import BITS, DataType
from npu_device.memory.bitwidth import SPM_ALIGNMENT
from toolchain.codegen.commands import Target
from toolchain.ir.data_types import FLOATS
from toolchain.ir.graph import Graph, LayerIR, Role, TensorIR
from toolchain.ir.operations import append_operands


def run(graph: Graph, target: Target) -> Graph:
    """Merge every KV_UPDATE into the ATTN_T that reads its caches, where possible."""
    return _merge(graph, _on_chip)


def merge_for_tiles(graph: Graph) -> Graph:
    """Merge for tile commands, which require it. Attention that they support gets the attribute `tiles`, and its scale
    as a tensor operand before the new rows."""
    graph = _merge(graph, _alike).copy()
    graph.layers = [_as_tiles(graph, layer) if _possible(graph, layer) else layer for layer in graph.layers]
    return graph


def _possible(graph: Graph, layer: LayerIR) -> bool:
    """Check whether tile commands support the attention: keys and values are floats of one type with aligned rows, new
    rows are not codes, scores are unbounded."""
    if not append_operands(layer) or layer.real("softcap", 0.0):
        return False
    kind, new = graph.tensors[layer.inputs[0]].dtype, graph.tensors[layer.inputs[-1]].dtype
    row = layer.integer("n") // layer.integer("heads") * BITS[kind] // 8
    return new is kind and kind in FLOATS and graph.tensors[layer.outputs[0]].dtype is kind and not row % SPM_ALIGNMENT


def _as_tiles(graph: Graph, layer: LayerIR) -> LayerIR:
    factor = TensorIR(f"{layer.id}.factor", Role.WEIGHT, (1,), DataType.FP32)
    graph.tensors[factor.id] = factor
    graph.constants[factor.id] = np.array([layer.real("scale")], np.float32)
    return replace(layer, inputs=(*layer.inputs[:-2], factor.id, *layer.inputs[-2:])).having(tiles=1)


def _merge(graph: Graph, possible: Callable[[Graph, LayerIR], bool]) -> Graph:
    """Merge KV_UPDATE into ATTN_T unless a layer between them prevents it."""
    layers: list[LayerIR | None] = list(graph.layers)
    for index, layer in enumerate(graph.layers):
        if layer.op_type != "KV_UPDATE" or len(layer.outputs) < 2 or not possible(graph, layer):
            continue
        later = range(index + 1, len(layers))
        reader = next((at for at in later if _uses(graph, graph.layers[at], layer.outputs)), None)
        if reader is None or any(_writes(graph, graph.layers[at], layer.inputs) for at in range(index + 1, reader)):
            continue
        attention = graph.layers[reader]
        if attention.op_type == "ATTN_T" and attention.inputs[1:4] == (*layer.outputs, layer.inputs[2]):
            layers[index] = None
            layers[reader] = _appending(layer, attention)
    return replace(graph, layers=[layer for layer in layers if layer is not None])


def _alike(graph: Graph, layer: LayerIR) -> bool:
    """Check whether keys and values have the same layout, as a single command requires."""
    keys, values = (graph.tensors[name] for name in layer.inputs[:2])
    return (keys.dtype, keys.pitch) == (values.dtype, values.pitch)


def _on_chip(graph: Graph, layer: LayerIR) -> bool:
    """Check whether there is a single new row, or all are in the scratchpad."""
    resident = all(graph.resident(name) for name in layer.inputs[:2])
    return _alike(graph, layer) and (layer.integer("m") == 1 or resident)


def _appending(update: LayerIR, attention: LayerIR) -> LayerIR:
    fused = replace(
        attention, inputs=(*attention.inputs, *update.inputs[:2]), outputs=(*attention.outputs, *update.outputs)
    )
    return fused.having(append=1, kv_layer=update.integer("kv_layer"), qbits_kv=update.integer("qbits_kv"))


def _uses(graph: Graph, layer: LayerIR, tensors: tuple[str, ...]) -> bool:
    stored = set(map(graph.storage, tensors))
    return any(graph.storage(name) in stored for name in (*layer.inputs, *layer.outputs))


def _writes(graph: Graph, layer: LayerIR, tensors: tuple[str, ...]) -> bool:
    stored = set(map(graph.storage, tensors))
    return any(graph.storage(name) in stored for name in layer.outputs)
