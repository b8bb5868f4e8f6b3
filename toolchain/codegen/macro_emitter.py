"""What the macro commands of all layers share: addresses, tile, share of the scratchpad."""

from typing import Any

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.memory_map import SPM_BASE
from npu_device.abi.opcodes import Opcode
from toolchain.codegen.commands import Command, Target
from toolchain.codegen.memory import DramMap
from toolchain.codegen.tiles import SLOT, Tile, fits, tile_of
from toolchain.ir.graph import Graph, LayerIR


class Emitter:
    """Writes the commands of one layer. Products take their shares of the scratchpad in turn, so that the next one can
    begin before this one has ended; other layers take the share that the latest product has not."""

    def __init__(self, graph: Graph, layer: LayerIR, memory: DramMap, target: Target, turn: int) -> None:
        self.layer = layer
        self.kinds = [graph.tensors[name].dtype for name in layer.inputs]
        self.kind = graph.tensors[layer.outputs[0]].dtype
        self.sizes = [graph.tensors[name].elements for name in layer.inputs]
        self.inputs = [memory.address(graph, name) for name in layer.inputs]
        self.out = memory.address(graph, layer.outputs[0])
        self._made: list[Command] = []
        self._shares = layer.integer("buffers", 1)
        self._turn = turn
        buffers = self._shares * (layer.integer("prefetch") + 1)
        self.tile: Tile = tile_of(graph, layer, target, buffers)
        rest = target._replace(spm_bytes=target.spm_bytes - SLOT)
        unaware = not layer.integer("spread") and fits(graph, layer, self.tile, rest, buffers)
        self._base = SPM_BASE + (SLOT if unaware else 0)
        self.share = (rest if unaware else target).spm_bytes // self._shares // SLOT * SLOT

    def commands(self) -> list[Command]:
        return self._made

    def put(
        self, fields: dict[str, int], own: dict[str, Any] | None = None, opcode: Opcode | None = None, **block: Any
    ) -> None:
        """A command, by default of the layer's operation: fields of the descriptor, words of the extended block."""
        opcode = opcode or Opcode[self.layer.op_type]
        share = (self._turn + len(self._made)) % self._shares
        extended = Extended.make(
            opcode, own=own, workspace=self._base + share * self.share, workspace_bytes=self.share, **block
        )
        descriptor = Descriptor(
            opcode=opcode, extended=1, rank=self.layer.integer("rank"), prefetch_dist=self.layer.integer("prefetch"),
            **{"type_in0": self.kinds[0], "type_out": self.kind, **fields},
        )  # fmt: skip
        self._made.append(Command(self.layer.id, descriptor, extended))
