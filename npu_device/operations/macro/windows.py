"""CONV2D_T and POOL in macro form: windows that slide over NHWC images.

CONV2D_T takes weights kh, kw, Cin / groups, Cout (or Cout first, with in1_nk). The result is that of one matrix product
per group, M = batch x P x Q pixels, K = kh x kw x Cin / groups in this order, N = Cout / groups, whose k tiles are
tile_k long. `te.conv_lowering` only decides in which steps the array gets there. A tile_n beyond N is a multiple of it:
a tile has several groups side by side, whose channels move together, as depthwise convolutions want it.

POOL has the same words, per channel. MAX ignores pads. AVG divides by the elements of the window that lie in the image,
or with `count_pads` in the padded image.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import BITS, Opcode, Pool
from npu_device.cost.plan import Column, Plan
from npu_device.cost.sequencer import lanes_of
from npu_device.memory.arrays import Read, WriteSet
from npu_device.memory.operands import FLOATS, TYPES, Matrix, make_matrix, row_bytes
from npu_device.operations.checks import DescriptorError, element_type, nonzero, unused_type, unused_word
from npu_device.operations.kernels import elements, gemm
from npu_device.operations.kernels.windows import pool, windows
from npu_device.operations.limits import check_operations, check_pads, check_products
from npu_device.operations.loops import decode_loops
from npu_device.operations.macro.base import Operand, Setting, lay_out, matrix_write, operand, values
from npu_device.operations.macro.codebook import decode_codebooks
from npu_device.operations.macro.epilogue import finish
from npu_device.operations.macro.product import (
    Movement,
    Product,
    ProductMacro,
    product_buffers,
    product_types,
    zero_points,
)
from npu_device.operations.macro.tiles import BlockMacro, vector_plan
from npu_device.operations.macro.workspace import Buffers, Site, tile_size, tiles
from npu_device.operations.windows import Windows, blind, max_pixels, patch


@dataclass(frozen=True, eq=False)
class ConvMacro(ProductMacro):
    """Convolution. `in0` has one row per pixel, `in1` one per kernel position and channel, `out` one per pixel."""

    shape: Windows
    groups: int

    def compute(self, read: Read, accumulated: elements.Values | None) -> WriteSet:
        patches, kernel = self._patches(read), self._kernel(read)
        total = elements.join([self._rows(part, kernel) for part in _images(patches)])
        return self.complete(total, read)

    def factors(self, read: Read) -> tuple[elements.Values, elements.Values]:
        return self._by_group(self._patches(read)), self._kernel(read)

    def _patches(self, read: Read) -> elements.Values:
        """Return the inputs of each window, pads included."""
        s = self.shape
        pixels = gemm.subtract_zero(values(read, self.in0), self.zeros[0])
        return windows(pixels.reshape(s.batch, s.h, s.w, -1), s, 0)

    def _kernel(self, read: Read) -> elements.Values:
        """Return the weights of each group, K x N."""
        kernel = self.weights(read)
        if self.d.in1_nk:
            kernel = kernel.T
        return kernel.reshape(kernel.shape[0], self.groups, -1).transpose(1, 0, 2)

    def _by_group(self, patches: elements.Values) -> elements.Values:
        """Split patches into groups, windows x K each."""
        groups = self.groups
        pixels, channels = int(np.prod(patches.shape[:-3])), patches.shape[-1] // groups
        patches = patches.reshape(pixels, -1, groups, channels).transpose(2, 0, 1, 3)
        return patches.reshape(groups, pixels, -1)

    def _rows(self, patches: elements.Values, kernel: elements.Values) -> elements.Values:
        """Return the sums of some rows of windows; the groups are products of their own."""
        total = gemm.multiply(self._by_group(patches), kernel, self.tile[2])
        return np.ascontiguousarray(total.transpose(1, 0, 2)).reshape(total.shape[1], -1)

    @property
    def filters(self) -> int:
        return self.out.columns // self.groups

    @property
    def _together(self) -> int:
        """Groups of a tile."""
        return max(1, self.tile[1] // self.filters)

    @property
    def _counts(self) -> dict[str, int]:
        """Tiles of groups, of pixels and of the filters of a group."""
        m, n, _ = self.tile
        return {
            "g": -(-self.groups // self._together), "m": -(-self.shape.pixels // m), "n": -(-self.filters // n),
        }  # fmt: skip

    @property
    def _by_filters(self) -> bool:
        """Check whether engines share out the filters. Else they share out pixels, whose patches stay on chip."""
        counts = self._counts
        return self.weight_stationary or counts["g"] * counts["m"] == 1

    @property
    def parallelism(self) -> int:
        counts = self._counts
        if not self.loops.plain:
            return counts["g"] * counts[self.loops.shared_axis]
        return counts["g"] * counts["n" if self._by_filters else "m"]

    def _nest(self, setting: Setting, lanes: int) -> tuple[Product, dict[str, Column], Movement]:
        s, (m, n, k) = self.shape, self.tile
        channels, filters, together = self.in0.columns // self.groups, self.filters, self._together
        if setting.conv_lowering == "kernel_position":
            starts = np.arange(0, channels, k)
            at = (np.arange(s.kh * s.kw)[:, None] * channels + starts).reshape(-1)
            depth = np.tile(np.minimum(k, channels - starts), s.kh * s.kw)
        else:
            at = np.arange(0, s.kh * s.kw * channels, k)
            depth = np.minimum(k, s.kh * s.kw * channels - at)
        weight = self.weight_stationary
        counts = self._counts | {"k": len(at)}
        if self.loops.plain:
            axes = "g" + self.loop_order.axes
            grid = np.indices([counts[axis] for axis in axes]).reshape(4, -1).astype(np.int64)
            index: dict[str, Column] = dict(zip(axes, grid, strict=True))
            part = "n" if self._by_filters else "m"
            movement = Movement(lanes_of(index["g"] * counts[part] + index[part], lanes), open_sums=weight)
            reused = (index["m"] > 0) & weight
        else:
            index, reused, movement = self.blocked_nest(counts, True, lanes)
        row, column = index["m"] * m, index["n"] * n
        group = index["g"] * together
        groups = np.minimum(together, self.groups - group)
        nest = Product(
            row, np.minimum(m, s.pixels - row), group * filters + column, np.minimum(n, groups * filters - column),
            at[index["k"]], depth[index["k"]], index["k"] == 0, index["k"] == len(at) - 1, reused,
        )  # fmt: skip
        return nest, index, movement

    def rows(self, setting: Setting, lanes: int) -> Product:
        nest, _, movement = self._nest(setting, lanes)
        return self.split(nest, movement, lanes, setting, ("in0",)).step_rows()

    def plan(self, setting: Setting, lanes: int = 1) -> Plan:
        s, channels, weight = self.shape, self.in0.columns // self.groups, self.weight_stationary
        nest, index, movement = self._nest(setting, lanes)
        row, group = nest.row, index["g"] * self._together
        groups = np.minimum(self._together, self.groups - group)
        first_use = np.ones(len(row), bool) if weight else (index["n"] == 0) & (index["k"] == 0)
        extent = (*patch(s, row, nest.rows), group * channels, groups * channels)
        folds = self.split(nest, movement, lanes, setting, ("in0",))
        tile, begins = folds.parts.tile, folds.parts.first == np.arange(len(folds.parts.first))
        if movement.moves:
            in0 = folds.of.tiles("in0", self.in0, *extent, movement.moves["in0"], step=s.step)
        else:
            moves = np.flatnonzero(first_use[tile] & begins)
            shared = lanes > 1 and len(moves) == 1
            at, rows, first, width = (column[tile] for column in extent)
            in0 = folds.of.tiles("in0", self.in0, at, rows, first, width, moves, shared=shared, step=s.step)
        # of a patch, a step reads the pixels at its kernel positions, and the channels of its k tile
        read_extent = folds.nest.rows * -(-folds.nest.depth // channels), folds.nest.depth * groups[tile]
        return self.product_plan(folds, replace(in0, read_extent=read_extent), setting)


def _images(patches: elements.Values) -> list[elements.Values]:
    """Return all windows at once, or where these are too many the rows of each image in blocks."""
    if patches.size <= elements.BLOCK:
        return [patches]
    return [
        image[rows] for image in patches for rows in elements.blocks(len(image), image.size // len(image))
    ]  # fmt: skip


def window_shape(words: dict[str, Any], prefix: str = "") -> Windows:
    """Return the words of a window, which CONV2D_T and POOL share. DescriptorError when no window fits the padded
    image."""
    names = ("batch", "h", "w", "kh", "kw", "sh", "sw", "dh", "dw")
    nonzero(words, *(prefix + name for name in names))
    shape = Windows(*(words[prefix + name] for name in Windows._fields))
    if shape.p < 1 or shape.q < 1:
        raise DescriptorError(
            TicketError.SHAPE, f"a window of {shape.kh} x {shape.kw} does not fit {shape.h} x {shape.w} with its pads"
        )
    return shape


def decode_conv(d: Descriptor, block: Extended, site: Site) -> ConvMacro:
    """Decode CONV2D_T. DescriptorError when types, shapes, strides or the workspace are wrong."""
    words = block.words(Opcode.CONV2D_T)
    kind0, kind1, kind, integer = product_types(d)
    shape = window_shape(words)
    nonzero(words, "cin", "cout", "groups")
    groups = words["groups"]
    if words["cin"] % groups or words["cout"] % groups:
        raise DescriptorError(
            TicketError.SHAPE, f"groups {groups} must divide cin {words['cin']} and cout {words['cout']}"
        )
    channels, filters = words["cin"] // groups, words["cout"] // groups
    depth = shape.kh * shape.kw * channels
    check_pads(site.limits, shape, words["cin"])
    check_products(site.limits, shape.pixels * depth * words["cout"])
    in0 = lay_out("in0", d.in0_addr, shape.batch * shape.h * shape.w, words["cin"], kind0, block.ld0)
    unused_word(block, "ld1")
    in1 = make_matrix(d.in1_addr, *((words["cout"], depth) if d.in1_nk else (depth, words["cout"])), kind1)
    out = lay_out("out", d.out_addr, shape.pixels, words["cout"], kind, block.ldo)
    codebooks = decode_codebooks(d, block, site, in1)
    part = finish(d, block, shape.pixels, words["cout"], integer, kind)
    together = _groups_of_tile(d, groups, filters)
    if groups > together:
        for extent, name, element in ((channels, "cin", kind0), (filters, "cout", kind1), (filters, "cout", kind)):
            if together * extent * BITS[element] % 8:
                rule = f"{name} / groups {extent}, {together} groups in a tile: {element.name} must end at a byte"
                raise DescriptorError(TicketError.SHAPE, rule)
    tile = (
        tile_size(d, "tile_m", shape.pixels),
        tile_size(d, "tile_n", together * filters, kind, *(() if d.in1_nk else (kind1,))),
        tile_size(d, "tile_k", depth, *((kind1,) if d.in1_nk else ())),
    )
    count = -(-groups // together) * shape.kh * shape.kw * tiles(shape.pixels, filters, channels, tile=tile)
    extent = (shape.pixels, max(filters, tile[1]), depth)
    loops = decode_loops(block.loop_order, (block.m, block.n, block.k), tile, extent)
    if loops.block[2] * tile[2] < depth and not loops.plain:
        raise DescriptorError(TicketError.SHAPE, f"k {block.k}: a block of CONV2D_T has the whole depth, {depth}")
    reserved = product_buffers(
        d, block, site, (in0, in1, out), part, tile, count, extent,
        lambda rows, _: max_pixels(shape, rows) * row_bytes(together * channels, kind0), codebooks, loops,
    )  # fmt: skip
    zeros = zero_points(block, in0, in1)
    return ConvMacro(d, block, site, reserved, in0, in1, out, part, zeros, tile, codebooks, loops, shape, groups)


def _groups_of_tile(d: Descriptor, groups: int, filters: int) -> int:
    """Return the groups that a tile covers. DescriptorError when it ends within a group."""
    if d.tile_n >= groups * filters:
        return groups
    if d.tile_n > filters and d.tile_n % filters:
        raise DescriptorError(
            TicketError.SHAPE, f"tile_n {d.tile_n}: beyond cout / groups {filters} it must be a multiple of that"
        )
    return max(1, d.tile_n // filters)


@dataclass(frozen=True, eq=False)
class PoolMacro(BlockMacro):
    """Windows over images; matrices have one row per pixel and one column per channel."""

    source: Matrix
    shape: Windows
    count_pads: bool

    @property
    def operands(self) -> tuple[Operand, ...]:
        return operand("in0", self.source), operand("out", self.out, written=True)

    def compute(self, read: Read, accumulated: elements.Values | None) -> WriteSet:
        s = self.shape
        images = values(read, self.source).reshape(s.batch, s.h, s.w, -1)
        result = pool(images, s, Pool(self.d.function), self.count_pads, self.out.kind)
        return WriteSet((matrix_write(self.out, result.reshape(s.pixels, -1)),))

    def plan(self, setting: Setting, lanes: int = 1) -> Plan:
        s, blocks = self.shape, self.blocks
        of = blocks.operands(self, lanes)
        extent = (*patch(s, blocks.row, blocks.rows), blocks.column, blocks.columns)
        source = of.tiles("in0", self.source, *extent, step=s.step)
        out = of.tiles("out", self.out, *blocks)
        return vector_plan(self, setting, blocks, [source], out, self.source.kind, s.kh * s.kw)


def decode_pool(d: Descriptor, block: Extended, site: Site) -> PoolMacro:
    """Decode POOL. DescriptorError when types, shapes, strides or the workspace are wrong."""
    words = block.words(Opcode.POOL)
    kind = element_type(d, "type_in0", TYPES if d.function == Pool.MAX else FLOATS)
    element_type(d, "type_out", (kind,))
    unused_type(d, "type_in1", "type_kv")
    unused_word(d, "param0", "in1_addr", "tile_k")
    unused_word(block, "m", "n", "k", "loop_order", "ld1", "epilogue", "in2", "bias", "scale")
    shape = window_shape(words, "pool_")
    nonzero(words, "channels")
    if words["count_pads"] > 1 or (words["count_pads"] and d.function == Pool.MAX):
        raise DescriptorError(TicketError.RESERVED, f"count_pads {words['count_pads']}: 0, or 1 for AVG")
    if blind(shape):
        raise DescriptorError(TicketError.SHAPE, "a window sees nothing but pads")
    channels = words["channels"]
    check_pads(site.limits, shape, channels)
    check_operations(site.limits, shape.pixels * shape.kh * shape.kw * channels)
    source = lay_out("in0", d.in0_addr, shape.batch * shape.h * shape.w, channels, kind, block.ld0)
    out = lay_out("out", d.out_addr, shape.pixels, channels, kind, block.ldo)
    tile = (tile_size(d, "tile_m", shape.pixels), tile_size(d, "tile_n", channels, kind))
    buffers, (rows, columns) = Buffers(d, site, tiles(shape.pixels, channels, tile=tile)), tile
    buffers.read("in0", source, max_pixels(shape, rows) * row_bytes(columns, kind))
    buffers.write("out", out, rows * row_bytes(columns, kind))
    return PoolMacro(d, block, site, buffers.reserve(block), out, tile, source, shape, bool(words["count_pads"]))
