"""Code generation: all commands of a graph, in layer order."""

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import Kernel, Opcode, Scope
from toolchain.codegen import attention_tiles, macro_form, tile_form
from toolchain.codegen.commands import Command, Target
from toolchain.codegen.macro_emitter import MacroEmitter
from toolchain.codegen.memory import BEYOND, DramMap
from toolchain.errors import ModelError
from toolchain.ir.graph import Graph, LayerIR
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
            commands += _core_commands(graph, layer, memory)
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


def _core_commands(graph: Graph, layer: LayerIR, memory: DramMap) -> list[Command]:
    """Return a barrier and the CORE command that firmware submits after its work. The barrier keeps the order on the
    device in runs without a core. ModelError names a tensor outside the core's address space."""
    for name in (*layer.inputs, *layer.outputs):
        if memory.address(graph, name) >= BEYOND:
            raise ModelError(f"layer {layer.id}: tensor {name} lies beyond what the core sees: use a smaller model")
    first, *second = (memory.address(graph, name) for name in layer.inputs)
    out, count, *scratch = (memory.address(graph, name) for name in layer.outputs)
    per_op = {"core_words": layer.integers("words"), "core_count": count}
    shared = {"workspace": scratch[0]} if scratch else {}
    kinds = [graph.tensors[name].dtype for name in (*layer.inputs, layer.outputs[0])]
    descriptor = Descriptor(
        opcode=Opcode.CORE, extended=1, function=Kernel[layer.text("kernel")], rank=layer.integer("rank"),
        in0_addr=first, in1_addr=second[0] if second else 0, out_addr=out,
        type_in0=kinds[0], type_in1=kinds[1] if second else 0, type_out=kinds[-1],
    )  # fmt: skip
    block = Extended.make(Opcode.CORE, own=per_op, **shared)
    return [
        Command(layer.id, Descriptor(opcode=Opcode.BARRIER, function=Scope.GLOBAL)),
        Command(layer.id, descriptor, block),
    ]
