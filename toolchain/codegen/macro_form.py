"""Layers as macro commands: one descriptor each, which the device's sequencer expands (specification 20)."""

from collections.abc import Callable

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Epilogue, Extended
from npu_device.abi.memory_map import SPM_BASE
from npu_device.abi.opcodes import BITS, Activation, Opcode
from toolchain.codegen.commands import Command, Target
from toolchain.codegen.memory import DramMap
from toolchain.codegen.tiles import Tile, bytes_of, finishes
from toolchain.ir.graph import Graph, LayerIR


def gemm(graph: Graph, layer: LayerIR, memory: DramMap, target: Target, turn: int) -> list[Command]:
    """One command per product of the list. Layers take the halves of the scratchpad in turn, so that the next one can
    begin before this one has ended."""
    m, n, k = (layer.integer(name) for name in "mnk")
    kinds = [graph.tensors[name].dtype for name in layer.inputs]
    kind = graph.tensors[layer.outputs[0]].dtype
    tile: Tile = layer.integers("tile") or (m, n, k)
    count = layer.integer("buffers", 1)
    share = target.spm_bytes // count
    biased = layer.text("epilogue") == "bias"
    word = int(Activation[layer.text("activation", "NONE")]) | (Epilogue.BIAS if biased else 0)
    made = []
    for index in range(layer.integer("batch")):
        block = Extended.make(
            Opcode.GEMM_T, m=m, n=n, k=k, epilogue=word,
            bias=memory.address(graph, layer.inputs[2]) if biased else 0,
            workspace=SPM_BASE + (turn + index) % count * share, workspace_bytes=share,
        )  # fmt: skip
        descriptor = Descriptor(
            opcode=Opcode.GEMM_T, extended=1, rank=layer.integer("rank"), prefetch_dist=layer.integer("prefetch"),
            in1_nk=layer.integer("in1_nk"), tile_m=tile[0], tile_n=tile[1], tile_k=tile[2],
            in0_addr=memory.address(graph, layer.inputs[0]) + bytes_of(index * layer.integer("step0"), kinds[0]),
            in1_addr=memory.address(graph, layer.inputs[1]) + bytes_of(index * layer.integer("step1"), kinds[1]),
            out_addr=memory.address(graph, layer.outputs[0]) + index * m * n * BITS[kind] // 8,
            type_in0=kinds[0], type_in1=kinds[1], type_out=kind,
        )  # fmt: skip
        made.append(Command(layer.id, descriptor, block))
    return made


def takes(layer: LayerIR) -> bool:
    """Whether a layer has a macro form: a bias per row of the result has none."""
    return layer.op_type in FORMS and not (finishes(layer) and layer.text("epilogue") == "bias_column")


FORMS: dict[str, Callable[[Graph, LayerIR, DramMap, Target, int], list[Command]]] = {"GEMM_T": gemm}
