"""POOL in macro form: NHWC images, windows of the words that CONV2D_T has, per channel.

MAX ignores pads. AVG divides by the elements of the window that lie in the image, or with `count_pads` in the padded
image.
"""

from dataclasses import dataclass

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import BITS, Opcode, Pool
from npu_device.checks import element_type, unused_type, unused_word
from npu_device.descriptor_error import DescriptorError
from npu_device.events import Kind
from npu_device.kernels import elements
from npu_device.kernels.windows import pool
from npu_device.macro.base import (
    Demand,
    Effect,
    Macro,
    Operand,
    Read,
    Setting,
    Site,
    Tile,
    dimensions,
    in_dram,
    input_copies,
    operand,
    output_copies,
    reserve,
    strided,
    tile_size,
    tiles,
    values,
    whole,
)
from npu_device.macro.conv import window_shape
from npu_device.macro.tiles import Tiles, work
from npu_device.operands import FLOATS, TYPES, Matrix, row_bytes
from npu_device.plan import Compute, Plan, Role
from npu_device.region import Region
from npu_device.sequencer import Nest, Slots, sequence
from npu_device.windows import Windows, blind, patch


@dataclass(frozen=True, eq=False)
class PoolMacro(Macro):
    """Windows over images; matrices have one row per pixel."""

    source: Matrix
    out: Matrix
    shape: Windows
    count_pads: bool
    tile: tuple[int, int]
    """(pixels of the result, channels)."""
    slots: dict[str, Slots]

    @property
    def operands(self) -> tuple[Operand, ...]:
        return operand("in0", self.source), operand("out", self.out, written=True)

    def compute(self, read: Read, held: elements.Values | None) -> Effect:
        s = self.shape
        images = values(read, self.source).reshape(s.batch, s.h, s.w, -1)
        result = pool(images, s, Pool(self.d.function), self.count_pads, self.out.kind)
        return Effect((whole(self.out, result.reshape(s.pixels, -1)),))

    def plan(self, setting: Setting) -> Plan:
        s, (m, n) = self.shape, self.tile
        grid = np.indices((-(-s.pixels // m), -(-self.out.columns // n))).reshape(2, -1).astype(np.int64)
        row, column = grid[0] * m, grid[1] * n
        rows, columns = np.minimum(m, s.pixels - row), np.minimum(n, self.out.columns - column)
        every = np.arange(len(row))
        source = Tiles(self.source, self.slots.get("in0"), *patch(s, row, rows), column, columns, every)
        out = Tiles(self.out, self.slots.get("out"), row, rows, column, columns, every)
        aux = self.d.opcode | self.d.function << 8

        def step(shape: list[int], reads: tuple[Region, ...], writes: tuple[Region, ...]) -> Compute:
            operations = shape[0] * shape[1] * s.kh * s.kw
            return Compute(Kind.VE, aux, 0, 0, 0, BITS[self.source.kind], 0, operations, reads, writes)

        nest = Nest(
            len(row),
            source.stream(Role.ACTIVATION, Opcode.LOAD),
            out.stream(Role.ACTIVATION, Opcode.STORE, write=True),
            work(step, (rows, columns), (source,), ((out, np.ones(len(row), bool)),)),
        )
        return sequence(nest, setting.bus, setting.buffers(self.d.prefetch_dist))


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

    count = tiles(shape.pixels, channels, tile=tile)

    def demand(tile: Tile) -> Demand:
        rows, columns = tile
        row = np.arange(0, shape.pixels, rows)
        pixels = int(patch(shape, row, np.minimum(rows, shape.pixels - row))[1].max())
        return in_dram(
            site,
            {
                "in0": (source, pixels * row_bytes(columns, kind), input_copies(d)),
                "out": (out, rows * row_bytes(columns, kind), output_copies(d)),
            },
        )

    return PoolMacro(
        d, block, site, source, out, shape, bool(own["count_pads"]), tile, reserve(block, tile, count, demand)
    )
