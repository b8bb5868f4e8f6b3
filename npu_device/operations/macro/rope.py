"""ROPE: rotary embedding of M rows of heads, at the positions t, t + 1, ... of tables in1 (cos) and in2 (sin)."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.cost.plan import Plan
from npu_device.memory.arrays import Read, WriteSet
from npu_device.memory.operands import FLOATS, Matrix, make_matrix, row_bytes
from npu_device.operations.checks import DescriptorError, element_type, nonzero, unused_type, unused_word
from npu_device.operations.kernels import elements
from npu_device.operations.kernels.attention import rope
from npu_device.operations.limits import check_operations
from npu_device.operations.macro.base import (
    Operand,
    Setting,
    lay_out,
    matrix_write,
    operand,
    position_operand,
    read_position,
    values,
)
from npu_device.operations.macro.tiles import BlockMacro, vector_plan
from npu_device.operations.macro.workspace import Buffers, Site, tile_size, tiles

_NEIGHBOURS = 1


@dataclass(frozen=True, eq=False)
class RopeMacro(BlockMacro):
    """Rows of `heads` x `head_dim`, rotated by rows of the tables from `position` on."""

    x: Matrix
    cos: Matrix
    sin: Matrix
    heads: int
    neighbours: bool
    pos_addr: int

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (
            operand("in0", self.x), operand("in1", self.cos), operand("in2", self.sin),
            *position_operand(self.pos_addr), operand("out", self.out, written=True),
        )  # fmt: skip

    def start(self, read: Read) -> Self:
        if not self.pos_addr:
            return self
        return self.at(read_position(read, self.pos_addr, self.x.rows, self.cos.rows))

    def compute(self, read: Read, accumulated: elements.Values | None) -> WriteSet:
        first = self.position or 0
        rows = slice(first, first + self.x.rows)
        cos, sin = values(read, self.cos)[rows], values(read, self.sin)[rows]
        x = values(read, self.x).reshape(self.x.rows, self.heads, -1)
        turned = rope(x, cos, sin, self.neighbours).reshape(self.x.rows, -1)
        return WriteSet((matrix_write(self.out, elements.to_float(turned, self.out.kind)),))

    def plan(self, setting: Setting, lanes: int = 1) -> Plan:
        blocks = self.blocks
        of = blocks.operands(self, lanes)
        turned = (
            blocks.row + (self.position or 0),
            blocks.rows,
            blocks.column,
            np.full_like(blocks.row, self.cos.columns),
        )
        x, out = of.tiles("in0", self.x, *blocks), of.tiles("out", self.out, *blocks)
        tables = [of.tiles("in1", self.cos, *turned), of.tiles("in2", self.sin, *turned)]
        return vector_plan(self, setting, blocks, [x], out, self.x.kind, self.site.operations(Opcode.ROPE), tables)


def decode_rope(d: Descriptor, block: Extended, site: Site) -> RopeMacro:
    """Decode ROPE. DescriptorError when types, shapes, tables or the workspace are wrong."""
    words = block.words(Opcode.ROPE)
    kind = element_type(d, "type_in0", FLOATS)
    table = element_type(d, "type_in1", dict.fromkeys((kind, DataType.FP32)))
    kind_out = element_type(d, "type_out", (kind,))
    unused_type(d, "type_kv")
    unused_word(d, "param0", "tile_n", "tile_k")
    unused_word(block, "n", "k", "loop_order", "epilogue", "bias", "scale", "ld1")
    nonzero(block, "m")
    nonzero(words, "rope_heads", "rope_head_dim", "rotary_dim", "rope_t_max")
    heads, dim, rotary, t_max = words["rope_heads"], words["rope_head_dim"], words["rotary_dim"], words["rope_t_max"]
    check_operations(site.limits, block.m * heads * dim * site.operations(Opcode.ROPE))
    if rotary % 2 or rotary > dim:
        raise DescriptorError(TicketError.SHAPE, f"rotary_dim {rotary}: must be even and at most head_dim {dim}")
    if words["rope_flags"] & ~_NEIGHBOURS or words["rope_reserved"]:
        raise DescriptorError(TicketError.RESERVED, f"flags {words['rope_flags']:#x}: bits above [0] must be 0")
    if block.m > t_max:
        raise DescriptorError(TicketError.POSITION, f"{block.m} rows, the tables have {t_max}")
    x = lay_out("in0", d.in0_addr, block.m, heads * dim, kind, block.ld0)
    out = lay_out("out", d.out_addr, block.m, heads * dim, kind_out, block.ldo)
    cos, sin = (make_matrix(address, t_max, rotary // 2, table) for address in (d.in1_addr, block.in2))
    size = tile_size(d, "tile_m", block.m)
    buffers = Buffers(d, site, tiles(block.m, tile=(size,)))
    buffers.read("in0", x, size * row_bytes(heads * dim, kind))
    buffers.read("in1", cos, size * row_bytes(rotary // 2, table))
    buffers.read("in2", sin, size * row_bytes(rotary // 2, table))
    buffers.write("out", out, size * row_bytes(heads * dim, kind_out))
    reserved, neighbours = buffers.reserve(block), bool(words["rope_flags"])
    tile, position = (size, heads * dim), words["rope_pos_addr"]
    return RopeMacro(d, block, site, reserved, out, tile, x, cos, sin, heads, neighbours, position)
