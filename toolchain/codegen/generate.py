"""Code generation: all commands of a graph, in layer order."""

from toolchain.codegen import attention_tiles, core_form, macro_form, tile_form
from toolchain.codegen.commands import Command, Target
from toolchain.codegen.macro_emitter import MacroEmitter
from toolchain.codegen.memory import DramMap
from toolchain.ir.graph import Graph
from toolchain.ir.operations import PRODUCTS

GRANULARITIES = ("macro", "tile")
"""macro: the device expands each layer into tiles; tile: the host submits every tile (integer products with zero points
or scales have the macro form only)."""


def generate(graph: Graph, memory: DramMap, target: Target, granularity: str, position: int = 0) -> list[Command]:
    """Return the commands of all layers. `position`: position of the first token, for attention in tile form.
    ModelError names a layer without a tile that fits."""
    commands: list[Command] = []
    products = [0] * target.clusters
    for layer in graph.layers:
        if layer.op_type == "CORE":
            commands += core_form.commands(graph, layer, memory)
            continue
        cluster = layer.integer("cluster")
        products[cluster] += layer.op_type in PRODUCTS
        turn = products[cluster] + (layer.op_type not in PRODUCTS)
        if granularity == "macro" or macro_form.is_macro_only(layer):
            macro = MacroEmitter(graph, layer, memory, target, turn)
            macro_form.FORMS[layer.op_type](macro)
            commands += macro.commands
            continue
        tiles = tile_form.TileEmitter(graph, layer, memory, target)
        if layer.op_type == "ATTN_T":
            attention_tiles.attention(tiles, graph, target, position)
        else:
            tile_form.FORMS[layer.op_type](tiles)
        commands += tiles.commands
    return commands
