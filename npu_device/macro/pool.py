"""POOL in macro form: NHWC images, windows of the words that CONV2D_T has, per channel.

MAX ignores pads. AVG divides by the elements of the window that lie in the image, or with `count_pads` in the padded
image.
"""

from dataclasses import dataclass

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import Opcode, Pool
from npu_device.checks import element_type, unused_type, unused_word
from npu_device.descriptor_error import DescriptorError
from npu_device.effect import Effect, Read
from npu_device.kernels import elements
from npu_device.kernels.windows import pool
from npu_device.macro.base import Macro, Operand, Setting, dimensions, operand, strided, values, whole
from npu_device.macro.blocks import Blocks, vector_plan
from npu_device.macro.conv import window_shape
from npu_device.macro.workspace import Buffers, Site, Tile, reserve, tile_size, tiles
from npu_device.operands import FLOATS, TYPES, Matrix, row_bytes
from npu_device.plan import Plan
from npu_device.windows import Windows, blind, most_pixels, patch


@dataclass(frozen=True, eq=False)
class PoolMacro(Macro):
    """Windows over images; matrices have one row per pixel."""

    source: Matrix
    out: Matrix
    shape: Windows
    count_pads: bool
    tile: tuple[int, int]
    """(pixels of the result, channels)."""

    @property
    def operands(self) -> tuple[Operand, ...]:
        return operand("in0", self.source), operand("out", self.out, written=True)

    def compute(self, read: Read, held: elements.Values | None) -> Effect:
        s = self.shape
        images = values(read, self.source).reshape(s.batch, s.h, s.w, -1)
        result = pool(images, s, Pool(self.d.function), self.count_pads, self.out.kind)
        return Effect((whole(self.out, result.reshape(s.pixels, -1)),))

    @property
    def _blocks(self) -> Blocks:
        return Blocks.of(self.shape.pixels, self.out.columns, self.tile)

    @property
    def chains(self) -> int:
        return len(self._blocks.row)

    def plan(self, setting: Setting, lanes: int = 1) -> Plan:
        s, blocks = self.shape, self._blocks
        of = blocks.operands(self, lanes)
        source = of.tiles("in0", self.source, *patch(s, blocks.row, blocks.rows), blocks.column, blocks.columns)
        out = of.tiles("out", self.out, *blocks)
        return vector_plan(self, setting, blocks, [source], out, self.source.kind, s.kh * s.kw)


def decode_pool(d: Descriptor, block: Extended, site: Site) -> PoolMacro:
    """DescriptorError when types, shapes, strides or the workspace are wrong."""
    own = block.own(Opcode.POOL)
    kind = element_type(d, "type_in0", TYPES if d.function == Pool.MAX else FLOATS)
    element_type(d, "type_out", (kind,))
    unused_type(d, "type_in1", "type_kv")
    unused_word(d, "param0", "in1_addr", "tile_k")
    unused_word(block, "m", "n", "k", "loop_order", "ld1", "epilogue", "in2", "bias", "scale")
    shape = window_shape(own, "pool_")
    dimensions(own, "channels")
    if own["count_pads"] > 1 or (own["count_pads"] and d.function == Pool.MAX):
        raise DescriptorError(TicketError.RESERVED, f"count_pads {own['count_pads']}: 0, or 1 for AVG")
    if blind(shape):
        raise DescriptorError(TicketError.SHAPE, "a window sees nothing but pads")
    channels = own["channels"]
    source = strided("in0", d.in0_addr, shape.batch * shape.h * shape.w, channels, kind, block.ld0)
    out = strided("out", d.out_addr, shape.pixels, channels, kind, block.ldo)
    tile = (tile_size(d, "tile_m", shape.pixels), tile_size(d, "tile_n", channels, kind))

    def demand(tile: Tile, buffers: Buffers) -> None:
        rows, columns = tile
        buffers.read("in0", source, most_pixels(shape, rows) * row_bytes(columns, kind))
        buffers.write("out", out, rows * row_bytes(columns, kind))

    reserved = reserve(d, block, site, tile, tiles(shape.pixels, channels, tile=tile), demand)
    return PoolMacro(d, block, site, reserved, source, out, shape, bool(own["count_pads"]), tile)
