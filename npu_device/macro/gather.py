"""GATHER: out[i] = in0[in1[i]] for M indices (INT32) into a table of K rows of N elements; -1 is the last row."""

from dataclasses import dataclass

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.checks import element_type, nonzero, unused_type, unused_word
from npu_device.effect import Effect, Read
from npu_device.kernels import elements
from npu_device.kernels.moves import row_numbers
from npu_device.macro.base import Macro, Operand, Setting, operand, require_dram, strided, values
from npu_device.macro.blocks import Blocks
from npu_device.macro.tiles import in_place
from npu_device.macro.workspace import Buffers, Site, Tile, reserve, tile_size, tiles
from npu_device.operands import TYPES, Matrix, make_matrix, row_bytes
from npu_device.plan import Plan, Role
from npu_device.sequencer import Nest


@dataclass(frozen=True, eq=False)
class GatherMacro(Macro):
    """Rows of a table."""

    table: Matrix
    indices: Matrix
    out: Matrix
    tile: int

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (
            operand("in0", self.table), operand("in1", self.indices), operand("out", self.out, written=True),
        )  # fmt: skip

    def compute(self, read: Read, held: elements.Values | None) -> Effect:
        rows = self.table.rows
        index = row_numbers(values(read, self.indices)[0], rows)
        taken = read(self.table.region).reshape(rows, -1)[index]
        return Effect(((self.out.region, taken),))

    def plan(self, setting: Setting, lanes: int = 1) -> Plan:
        """Each row is a transfer's own run; which rows is not known before the indices are, they count as the first."""
        blocks = Blocks.of(self.out.rows, self.out.columns, (self.tile, self.out.columns))
        of, zero = blocks.operands(self, 1), np.zeros_like(blocks.row)
        spread = make_matrix(
            self.table.region.address, max(2, self.tile), self.table.columns, self.table.kind,
            2 * max(setting.bus.alignment, row_bytes(self.table.columns, self.table.kind)),
        )  # fmt: skip
        indices = of.tiles("in1", self.indices, zero, zero + 1, blocks.row, blocks.rows)
        out = of.tiles("staging", self.out, *blocks)
        of.slots.setdefault("staging", in_place(self.out))
        table = of.tiles("staging", spread, zero, blocks.rows, zero, blocks.columns)
        reads = indices.stream(Role.ACTIVATION, Opcode.LOAD) + table.stream(Role.WEIGHT, Opcode.GATHER)
        writes = out.stream(Role.ACTIVATION, Opcode.STORE, write=True)
        return setting.sequence(Nest(of.lane, reads, writes), self.d)


def decode_gather(d: Descriptor, block: Extended, site: Site) -> GatherMacro:
    """DescriptorError when types, shapes, strides or the workspace are wrong."""
    kind = element_type(d, "type_in0", TYPES)
    element_type(d, "type_in1", (DataType.INT32,))
    element_type(d, "type_out", (kind,))
    unused_type(d, "type_kv")
    unused_word(d, "param0", "tile_n", "tile_k")
    unused_word(block, "loop_order", "ld1", "epilogue", "in2", "bias", "scale")
    nonzero(block, "m", "n", "k")
    table = strided("in0", d.in0_addr, block.k, block.n, kind, block.ld0)
    require_dram(site, "in0", table)
    out = strided("out", d.out_addr, block.m, block.n, kind, block.ldo)
    indices = make_matrix(d.in1_addr, 1, block.m, DataType.INT32)
    size = tile_size(d, "tile_m", block.m)

    def demand(tile: Tile, buffers: Buffers) -> None:
        buffers.read("in1", indices, tile[0] * row_bytes(1, DataType.INT32))
        buffers.read("staging", out, tile[0] * row_bytes(block.n, kind))

    reserved = reserve(d, block, site, (size,), tiles(block.m, tile=(size,)), demand)
    return GatherMacro(d, block, site, reserved, table, indices, out, size)
