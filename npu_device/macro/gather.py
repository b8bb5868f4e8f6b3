"""GATHER: out[i] = in0[in1[i]] for M indices (INT32) into a table of K rows of N elements; -1 is the last row."""

from dataclasses import dataclass

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.checks import element_type, nonzero, unused_type, unused_word
from npu_device.kernels import elements
from npu_device.kernels.moves import row_numbers
from npu_device.macro.base import (
    Demand,
    Effect,
    Macro,
    Operand,
    Read,
    Setting,
    Site,
    Tile,
    in_dram,
    input_copies,
    operand,
    require_dram,
    reserve,
    strided,
    tile_size,
    tiles,
    values,
)
from npu_device.macro.tiles import Tiles
from npu_device.operands import TYPES, Matrix, make_matrix, row_bytes
from npu_device.plan import Plan, Role
from npu_device.sequencer import Nest, Slots, sequence


@dataclass(frozen=True, eq=False)
class GatherMacro(Macro):
    """Rows of a table."""

    table: Matrix
    indices: Matrix
    out: Matrix
    tile: int
    slots: dict[str, Slots]

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

    def plan(self, setting: Setting) -> Plan:
        """Each row is a transfer's own run; which rows is not known before the indices are, they count as the first."""
        row = np.arange(0, self.out.rows, self.tile)
        rows, zero = np.minimum(self.tile, self.out.rows - row), np.zeros_like(row)
        every, wide = np.arange(len(row)), np.full_like(row, self.out.columns)
        staging = self.slots.get("staging")
        place = self.out.region
        slots = staging or Slots(place.address, place.end - place.address, 1)
        indices = Tiles(self.indices, self.slots.get("in1"), zero, zero + 1, row, rows, every)
        spread = make_matrix(
            self.table.region.address, max(2, int(rows.max())), self.table.columns, self.table.kind,
            2 * max(setting.bus.alignment, row_bytes(self.table.columns, self.table.kind)),
        )  # fmt: skip
        table = Tiles(spread, slots, zero, rows, zero, wide, every)
        reads = indices.stream(Role.ACTIVATION, Opcode.LOAD)
        reads += table.stream(Role.WEIGHT, Opcode.GATHER)
        out = Tiles(self.out, staging, row, rows, zero, wide, every)
        writes = out.stream(Role.ACTIVATION, Opcode.STORE, write=True)
        return sequence(Nest(len(row), reads, writes), setting.bus, setting.buffers(self.d.prefetch_dist))


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

    def demand(tile: Tile) -> Demand:
        reads = input_copies(d)
        return in_dram(
            site,
            {
                "in1": (indices, tile[0] * row_bytes(1, DataType.INT32), reads),
                "staging": (out, tile[0] * row_bytes(block.n, kind), reads),
            },
        )

    return GatherMacro(
        d, block, site, table, indices, out, size, reserve(block, (size,), tiles(block.m, tile=(size,)), demand)
    )
