"""Emitter of a layer's macro commands: operand addresses, types and pitches, the tile, and the scratchpad share of each
command."""

from typing import Any

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended, alignments
from npu_device.abi.memory_map import SPM_BASE, SPM_CLUSTER_STRIDE
from npu_device.abi.opcodes import BITS, Opcode
from toolchain.codegen.commands import Command, Target
from toolchain.codegen.memory import DramMap, StoredOperands
from toolchain.codegen.tiles import SLOT, Tile, fits, tile_of
from toolchain.ir.graph import Graph, LayerIR
from toolchain.ir.operations import LAYER_OPS


class MacroEmitter:
    """Emitter of the commands of one layer. Products alternate between shares of the scratchpad, so that the next
    product can start before the previous one ends. Other layers use the share not used by the latest product, or a
    named share."""

    def __init__(self, graph: Graph, layer: LayerIR, memory: DramMap, target: Target, turn: int) -> None:
        self.layer = layer
        self.sources = [graph.tensors[name] for name in layer.inputs]
        self.kinds = [source.dtype for source in self.sources]
        self.kind = graph.tensors[layer.outputs[0]].dtype
        self.bytes_out = graph.tensors[layer.outputs[-1]].size
        """Bytes of the last output. Keys and values have the same size."""
        self.inputs = [memory.address(graph, name) for name in layer.inputs]
        self.outs = [memory.address(graph, name) for name in layer.outputs]
        self.out = self.outs[0]
        self.pitches = [self.sources[0].pitch, graph.tensors[layer.outputs[0]].pitch]
        """Row pitch of in0 and of the result, elements; 0 for contiguous rows."""
        self._operands = StoredOperands(graph, layer, memory)
        self.commands: list[Command] = []
        self._shares = layer.integer("buffers", 1)
        self._turn = layer.integer("turn", turn)
        ahead = layer.integer("prefetch")
        self.tile: Tile = tile_of(graph, layer, target, ahead)
        remainder = target._replace(resident=target.resident + SLOT)
        unaware = not layer.integer("spread") and fits(graph, layer, self.tile, remainder, ahead)
        self._cluster = layer.integer("cluster")
        self._base = SPM_BASE + self._cluster * SPM_CLUSTER_STRIDE + (SLOT if unaware else 0)
        self.share = (remainder if unaware else target).workspace // self._shares // SLOT * SLOT

    def rows_in(self, rows: int, columns: int) -> int:
        """Return the distance in bytes of `rows` rows of in0."""
        return rows * (self.pitches[0] or columns) * BITS[self.kinds[0]] // 8

    def rows_out(self, rows: int, columns: int) -> int:
        """Return the distance in bytes of `rows` rows of the result."""
        return rows * (self.pitches[1] or columns) * BITS[self.kind] // 8

    def put(
        self, fields: dict[str, int], per_op: dict[str, Any] | None = None, opcode: Opcode | None = None, **block: Any
    ) -> None:
        """Emit a command, by default of the layer's operation. `fields`: of the descriptor; `block`: of the extended
        block."""
        opcode = opcode or LAYER_OPS[self.layer.op_type].opcode
        share = (self._turn + len(self.commands)) % self._shares
        for name, pitch, kind in zip(("ld0", "ldo"), self.pitches, (self.kinds[0], self.kind), strict=True):
            if pitch and name not in block:
                block[name] = pitch * BITS[kind] // 8
        if self._operands.aligned:
            block["alignments"] = self._alignments({**fields, **block})
        extended = Extended.make(
            opcode,
            own=per_op,
            workspace=self._base + share * self.share,
            workspace_bytes=self.share,
            engines=self.layer.integer("engines"),
            **block,
        )
        descriptor = Descriptor(
            opcode=opcode, extended=1, rank=self.layer.integer("rank"), prefetch_dist=self.layer.integer("prefetch"),
            cluster=self._cluster, **{"type_in0": self.kinds[0], "type_out": self.kind, **fields},
        )  # fmt: skip
        self.commands.append(Command(self.layer.id, descriptor, extended))

    def _alignments(self, words: dict[str, Any]) -> int:
        """Return the alignment word for the operands whose addresses are among a command's words."""
        operand_alignments = {
            name: self._operands.at(words.get(word, 0)).alignment for name, word in _ADDRESSES.items()
        }
        return alignments({name: size for name, size in operand_alignments.items() if size})


_ADDRESSES = {"in0": "in0_addr", "in1": "in1_addr", "in2": "in2", "out": "out_addr", "bias": "bias", "scale": "scale"}
"""Operand -> word with its address."""
