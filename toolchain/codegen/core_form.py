"""Commands of a layer that the core executes (docs/firmware.md, "Kernels")."""

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import Kernel, Opcode, Scope
from toolchain.codegen.commands import Command
from toolchain.codegen.memory import BEYOND, DramMap
from toolchain.errors import ModelError
from toolchain.ir.graph import Graph, LayerIR


def commands(graph: Graph, layer: LayerIR, memory: DramMap) -> list[Command]:
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
