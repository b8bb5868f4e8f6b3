"""CONV2D_T and POOL in macro form: windows that slide over NHWC images.

CONV2D_T takes weights kh, kw, Cin / groups, Cout (or Cout first, with in1_nk). The result is that of one matrix product
per group, M = batch x P x Q pixels, K = kh x kw x Cin / groups in this order, N = Cout / groups, whose k tiles are
tile_k long. `te.conv_lowering` only decides in which steps the array gets there.

POOL has the same words, per channel. MAX ignores pads. AVG divides by the elements of the window that lie in the image,
or with `count_pads` in the padded image.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import BITS, Opcode, Pool
from npu_device.cost.plan import Column, Plan
from npu_device.cost.sequencer import interleaved
from npu_device.memory.memory import Read, WriteSet
from npu_device.memory.operands import FLOATS, TYPES, Matrix, make_matrix, row_bytes
from npu_device.operations.checks import DescriptorError, element_type, unused_type, unused_word
from npu_device.operations.kernels import elements, gemm
from npu_device.operations.kernels.windows import pool, windows
from npu_device.operations.macro.base import Macro, Operand, Setting, dimensions, operand, strided, values, whole
from npu_device.operations.macro.epilogue import finish
from npu_device.operations.macro.product import Product, ProductMacro, product_buffers, product_types, zero_points
from npu_device.operations.macro.tiles import Blocks, vector_plan
from npu_device.operations.macro.workspace import Buffers, Site, Tile, reserve, tile_size, tiles
from npu_device.operations.windows import Windows, blind, most_pixels, patch


@dataclass(frozen=True, eq=False)
class ConvMacro(ProductMacro):
    """A convolution. `in0` has one row per pixel, `in1` one per kernel position and channel, `out` one per pixel."""

    shape: Windows
    groups: int

    def compute(self, read: Read, accumulated: elements.Values | None) -> WriteSet:
        s, groups = self.shape, self.groups
        pixels = gemm.shifted(values(read, self.in0), self.zeros[0])
        patches = windows(pixels.reshape(s.batch, s.h, s.w, -1), s, 0)
        channels = patches.shape[-1] // groups
        patches = patches.reshape(s.pixels, s.kh * s.kw, groups, channels).transpose(2, 0, 1, 3)
        kernel = gemm.shifted(values(read, self.in1), self.zeros[1])
        if self.d.in1_nk:
            kernel = kernel.T
        kernel = kernel.reshape(kernel.shape[0], groups, -1).transpose(1, 0, 2)
        total = gemm.tiled(patches.reshape(groups, s.pixels, -1), kernel, self.tile[2])
        total = np.ascontiguousarray(total.transpose(1, 0, 2)).reshape(s.pixels, -1)
        return WriteSet((whole(self.out, self.finish.apply(total, read)),))

    @property
    def _counts(self) -> dict[str, int]:
        """Groups, and tiles of pixels and filters."""
        m, n, _ = self.tile
        return {"g": self.groups, "m": -(-self.shape.pixels // m), "n": -(-self.out.columns // self.groups // n)}

    @property
    def _by_filters(self) -> bool:
        """Whether engines share out the filters. Else each takes other pixels, of which the patch stays on chip."""
        counts = self._counts
        return self.weight_stationary or counts["g"] * counts["m"] == 1

    @property
    def chains(self) -> int:
        counts = self._counts
        return counts["g"] * counts["n" if self._by_filters else "m"]

    def plan(self, setting: Setting, lanes: int = 1) -> Plan:
        s, (m, n, k) = self.shape, self.tile
        channels, filters = self.in0.columns // self.groups, self.out.columns // self.groups
        if setting.conv_lowering == "kernel_position":
            starts = np.arange(0, channels, k)
            at = (np.arange(s.kh * s.kw)[:, None] * channels + starts).reshape(-1)
            depth = np.tile(np.minimum(k, channels - starts), s.kh * s.kw)
        else:
            at = np.arange(0, s.kh * s.kw * channels, k)
            depth = np.minimum(k, s.kh * s.kw * channels - at)
        weight = self.weight_stationary
        counts = self._counts | {"k": len(at)}
        axes = "gnkm" if weight else "gmnk"
        grid = np.indices([counts[axis] for axis in axes]).reshape(4, -1).astype(np.int64)
        index: dict[str, Column] = dict(zip(axes, grid, strict=True))
        part = "n" if self._by_filters else "m"
        order, lane = interleaved(index["g"] * counts[part] + index[part], lanes)
        index = {axis: column[order] for axis, column in index.items()}
        row, column = index["m"] * m, index["n"] * n
        nest = Product(
            row, np.minimum(m, s.pixels - row), index["g"] * filters + column, np.minimum(n, filters - column),
            at[index["k"]], depth[index["k"]], index["k"] == 0, index["k"] == len(at) - 1, (index["m"] > 0) & weight,
        )  # fmt: skip
        fresh = np.ones(len(row), bool) if weight else (index["n"] == 0) & (index["k"] == 0)
        place = (*patch(s, row, nest.rows), index["g"] * channels, np.full_like(row, channels))
        folds = self.parted(nest, lane, lanes, setting, ("in0",))
        tile, begins = folds.parts.tile, folds.parts.first == np.arange(len(folds.parts.first))
        moves = np.flatnonzero(fresh[tile] & begins)
        shared = lanes > 1 and len(moves) == 1
        at, rows, first, width = (column[tile] for column in place)
        in0 = folds.of.tiles("in0", self.in0, at, rows, first, width, moves, shared=shared)
        return self.product_plan(folds, in0, setting)


def window_shape(own: dict[str, Any], prefix: str = "") -> Windows:
    """The words of a window, which CONV2D_T and POOL share. DescriptorError when no window fits the padded image."""
    names = ("batch", "h", "w", "kh", "kw", "sh", "sw", "dh", "dw")
    dimensions(own, *(prefix + name for name in names))
    shape = Windows(*(own[prefix + name] for name in Windows._fields))
    if shape.p < 1 or shape.q < 1:
        raise DescriptorError(
            TicketError.SHAPE, f"a window of {shape.kh} x {shape.kw} does not fit {shape.h} x {shape.w} with its pads"
        )
    return shape


def decode_conv(d: Descriptor, block: Extended, site: Site) -> ConvMacro:
    """DescriptorError when types, shapes, strides or the workspace are wrong."""
    own = block.own(Opcode.CONV2D_T)
    kind0, kind1, kind, integer = product_types(d)
    unused_word(block, "m", "n", "k")
    unused_word(d, "param0")
    shape = window_shape(own)
    dimensions(own, "cin", "cout", "groups")
    groups = own["groups"]
    if own["cin"] % groups or own["cout"] % groups:
        raise DescriptorError(TicketError.SHAPE, f"groups {groups} must divide cin {own['cin']} and cout {own['cout']}")
    channels, filters = own["cin"] // groups, own["cout"] // groups
    depth = shape.kh * shape.kw * channels
    in0 = strided("in0", d.in0_addr, shape.batch * shape.h * shape.w, own["cin"], kind0, block.ld0)
    unused_word(block, "ld1")
    in1 = make_matrix(d.in1_addr, *((own["cout"], depth) if d.in1_nk else (depth, own["cout"])), kind1)
    out = strided("out", d.out_addr, shape.pixels, own["cout"], kind, block.ldo)
    part = finish(d, block, shape.pixels, own["cout"], integer, kind)
    if groups > 1:
        for extent, name, one in ((channels, "cin", kind0), (filters, "cout", kind1), (filters, "cout", kind)):
            if extent * BITS[one] % 8:
                raise DescriptorError(TicketError.SHAPE, f"{name} / groups {extent}: {one.name} must end at a byte")
    tile = (
        tile_size(d, "tile_m", shape.pixels),
        tile_size(d, "tile_n", filters, kind, *(() if d.in1_nk else (kind1,))),
        tile_size(d, "tile_k", depth, *((kind1,) if d.in1_nk else ())),
    )
    count = groups * shape.kh * shape.kw * tiles(shape.pixels, filters, channels, tile=tile)
    reserved = product_buffers(
        d, block, site, (in0, in1, out), part, tile, count, (shape.pixels, depth),
        lambda rows, _: most_pixels(shape, rows) * row_bytes(channels, kind0),
    )  # fmt: skip
    return ConvMacro(d, block, site, reserved, in0, in1, out, part, zero_points(block, in0, in1), tile, shape, groups)


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

    def compute(self, read: Read, accumulated: elements.Values | None) -> WriteSet:
        s = self.shape
        images = values(read, self.source).reshape(s.batch, s.h, s.w, -1)
        result = pool(images, s, Pool(self.d.function), self.count_pads, self.out.kind)
        return WriteSet((whole(self.out, result.reshape(s.pixels, -1)),))

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
