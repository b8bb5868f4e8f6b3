"""All commands of a graph, in the order of its layers."""

from toolchain.codegen import macro_form, tile_form
from toolchain.codegen.commands import Command, Target
from toolchain.codegen.memory import DramMap
from toolchain.ir.graph import Graph

GRANULARITIES = ("macro", "tile")
"""macro: one command per product, tile commands for the other layers; tile: tile commands for everything."""


def generate(graph: Graph, memory: DramMap, target: Target, granularity: str) -> list[Command]:
    """The commands. ModelError names a layer of which no tile fits."""
    made: list[Command] = []
    for turn, layer in enumerate(graph.layers):
        if granularity == "macro" and macro_form.takes(layer):
            made += macro_form.FORMS[layer.op_type](graph, layer, memory, target, turn)
            continue
        emitter = tile_form.Emitter(graph, layer, memory, target)
        tile_form.FORMS[layer.op_type](emitter)
        made += emitter.commands()
    return made
