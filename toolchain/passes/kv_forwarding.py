"""Fusion of KV_UPDATE into ATTN_T, which then reads new keys and values on chip and appends them itself: for one token,
and for several that stay in the scratchpad (docs/kv-cache.md, "The new token")."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from npu_device.abi.opcodes import BITS, DataType
from npu_device.memory.bitwidth import SPM_ALIGNMENT
from toolchain.codegen.commands import Target
from toolchain.ir.data_types import FLOATS
from toolchain.ir.graph import Graph, LayerIR
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
    factor = graph.add_weight(f"{layer.id}.factor", np.array([layer.real("scale")], np.float32), DataType.FP32)
    return replace(layer, inputs=(*layer.inputs[:-2], factor, *layer.inputs[-2:])).having(tiles=1)


def _merge(graph: Graph, possible: Callable[[Graph, LayerIR], bool]) -> Graph:
    """Merge KV_UPDATE into ATTN_T unless a layer between them prevents it."""
    layers: list[LayerIR | None] = list(graph.layers)
    for index, layer in enumerate(graph.layers):
        if layer.op_type != "KV_UPDATE" or len(layer.outputs) < 2 or not possible(graph, layer):
            continue
        later = graph.layers[index + 1 :]
        users = (at for at, user in enumerate(later) if _shares(graph, (*user.inputs, *user.outputs), layer.outputs))
        between = next(users, None)
        if between is None or any(_shares(graph, other.outputs, layer.inputs) for other in later[:between]):
            continue
        reader = index + 1 + between
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


def _shares(graph: Graph, names: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Check whether tensors share storage with others."""
    return not set(map(graph.storage, names)).isdisjoint(map(graph.storage, others))
