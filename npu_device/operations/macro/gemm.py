"""GEMM_T in macro form: out = epilogue((in0 - zero0) x (in1 - zero1))."""

from dataclasses import dataclass

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import Opcode
from npu_device.cost.plan import Column, Plan
from npu_device.cost.sequencer import lanes_of
from npu_device.memory.arrays import Read, WriteSet
from npu_device.memory.operands import row_bytes
from npu_device.operations.checks import nonzero, unused_word
from npu_device.operations.kernels import elements, gemm
from npu_device.operations.limits import check_products
from npu_device.operations.loops import Moves, decode_loops
from npu_device.operations.macro.base import Setting, lay_out, values
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
from npu_device.operations.macro.workspace import Site, tile_size, tiles


@dataclass(frozen=True, eq=False)
class GemmMacro(ProductMacro):
    """M x K times K x N."""

    @property
    def accumulator_shape(self) -> tuple[int, int] | None:
        return self.block.m, self.block.n

    def compute(self, read: Read, accumulated: elements.Values | None) -> WriteSet:
        in0, in1 = self.factors(read)
        return self.complete(gemm.multiply(in0[0], in1[0], self.tile[2], accumulated), read)

    def factors(self, read: Read) -> tuple[elements.Values, elements.Values]:
        in1 = self.weights(read)
        return gemm.subtract_zero(values(read, self.in0), self.zeros[0])[None], (in1.T if self.d.in1_nk else in1)[None]

    @property
    def parallelism(self) -> int:
        """Outputs; with stationary weights, those of a column each; with blocks all of a row or column."""
        if not self.loops.plain:
            return self._counts[self.loops.shared_axis]
        rows = 1 if self.weight_stationary else self.block.m
        return tiles(rows, self.block.n, tile=self.tile[:2])

    @property
    def _counts(self) -> dict[str, int]:
        """Tiles along each dimension."""
        b = self.block
        return {axis: -(-extent // size) for axis, extent, size in zip("mnk", (b.m, b.n, b.k), self.tile, strict=True)}

    def _nest(self, setting: Setting, lanes: int) -> tuple[Product, Movement]:
        b, (m, n, k) = self.block, self.tile
        weight, counts = self.weight_stationary, self._counts
        if self.loops.plain:
            axes = self.loop_order.axes
            columns = np.indices([counts[axis] for axis in axes]).reshape(3, -1).astype(np.int64)
            index: dict[str, Column] = dict(zip(axes, columns, strict=True))
            reused = (index["m"] > 0) & weight
            chain = index["n"] if weight else index["m"] * counts["n"] + index["n"]
            movement = Movement(lanes_of(chain, lanes), open_sums=weight)
        else:
            index, reused, movement = self.blocked_nest(counts | {"g": 1}, False, lanes)
        at_m, at_n, at_k = (index[axis] for axis in "mnk")
        nest = Product(
            at_m * m, np.minimum(m, b.m - at_m * m), at_n * n, np.minimum(n, b.n - at_n * n), at_k * k,
            np.minimum(k, b.k - at_k * k), at_k == 0, at_k == counts["k"] - 1, reused,
        )  # fmt: skip
        return nest, movement

    def rows(self, setting: Setting, lanes: int) -> Product:
        return self.split(*self._nest(setting, lanes), lanes, setting, ()).step_rows()

    def plan(self, setting: Setting, lanes: int = 1) -> Plan:
        folds = self.split(*self._nest(setting, lanes), lanes, setting, ())
        nest, of, parts, movement = folds
        extent = (nest.row, nest.rows, nest.at, nest.depth)
        plain = Moves(np.flatnonzero(parts.across == 0), parts.first + parts.along if parts.split else None)
        in0 = of.tiles("in0", self.in0, *extent, movement.moves.get("in0", plain))
        return self.product_plan(folds, in0, setting)


def decode_gemm(d: Descriptor, block: Extended, site: Site) -> GemmMacro:
    """Decode GEMM_T. DescriptorError when types, shapes, strides or the workspace are wrong."""
    kind0, kind1, kind, integer = product_types(d)
    nonzero(block, "m", "n", "k")
    m, n, k = block.m, block.n, block.k
    check_products(site.limits, m * n * k)
    out = lay_out("out", d.out_addr, m, n, kind, block.ldo)
    in0 = lay_out("in0", d.in0_addr, m, k, kind0, block.ld0)
    in1 = lay_out("in1", d.in1_addr, *((n, k) if d.in1_nk else (k, n)), kind1, block.ld1)
    codebooks = decode_codebooks(d, block, site, in1)
    part = finish(d, block, m, n, integer, kind)
    tile = (
        tile_size(d, "tile_m", m),
        tile_size(d, "tile_n", n, kind, *(() if d.in1_nk else (kind1,))),
        tile_size(d, "tile_k", k, kind0, *((kind1,) if d.in1_nk else ())),
    )
    words = block.words(Opcode.GEMM_T)
    unused_word(words, "block_reserved")
    loops = decode_loops(block.loop_order, (words["block_m"], words["block_n"], words["block_k"]), tile, (m, n, k))
    reserved = product_buffers(
        d, block, site, (in0, in1, out), part, tile, tiles(m, n, k, tile=tile), (m, n, k),
        lambda rows, depth: rows * row_bytes(depth, kind0), codebooks, loops,
    )  # fmt: skip
    zeros = zero_points(block, in0, in1)
    return GemmMacro(d, block, site, reserved, in0, in1, out, part, zeros, tile, codebooks, loops)
