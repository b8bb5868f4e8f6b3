"""Operations of the vector engine whose tiles are blocks of a matrix: ELTWISE, LAYERNORM, SOFTMAX, GELU, REDUCE.

| op | in0 | in1 | in2 | out |
|---|---|---|---|---|
| ELTWISE | M x N, or as broadcast0 says | M x N, or as broadcast1 says | WHERE: value elsewhere, broadcast2 | M x N |
| LAYERNORM | M x N | gamma, N; `bias`: beta, N of the same type (LAYER, epilogue bit 4) | - | M x N |
| SOFTMAX, GELU | M x N | - | - | M x N |
| REDUCE | M x N x K, over N; K 0 is 1 | - | - | M x K |

QUANT and DEQUANT take `scale` (one f32, or N with epilogue bit 7) and a zero point; CLIP takes its bounds; LAYERNORM
takes epsilon in param0, GELU its form. A scalar in a broadcast has one element, a row N, a column M.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.effect import Effect, Read
from npu_device.kernels import elements
from npu_device.macro.base import Macro, Operand, Setting, operand, values, whole
from npu_device.macro.blocks import Blocks, vector_plan
from npu_device.macro.workspace import Buffers, Site, Tile, reserve, tiles
from npu_device.operands import Matrix, row_bytes
from npu_device.plan import Column, Plan


class Source(NamedTuple):
    """An operand that is read, and which part of it the result's rows r and columns c need."""

    name: str
    matrix: Matrix
    rows: int = 1
    """Rows for each row of the result; 0: the first row for all."""
    columns: int = 1
    """1: the same columns as the result; 0: all columns."""


Evaluate = Callable[[list[elements.Values]], elements.Values]


@dataclass(frozen=True, eq=False)
class VectorMacro(Macro):
    """`evaluate` takes the sources as matrices and gives the whole result in its type."""

    sources: tuple[Source, ...]
    out: Matrix
    evaluate: Evaluate
    work_per_element: int
    """Operations of the engine for each element of the result."""
    tile: tuple[int, int]

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (
            *(operand(one.name, one.matrix) for one in self.sources), operand("out", self.out, written=True),
        )  # fmt: skip

    def compute(self, read: Read, held: elements.Values | None) -> Effect:
        return Effect((whole(self.out, self.evaluate([values(read, one.matrix) for one in self.sources])),))

    @property
    def _blocks(self) -> Blocks:
        return Blocks.of(self.out.rows, self.out.columns, self.tile)

    @property
    def chains(self) -> int:
        return len(self._blocks.row)

    def plan(self, setting: Setting, lanes: int = 1) -> Plan:
        blocks = self._blocks
        of = blocks.operands(self, lanes)
        parts = [of.tiles(one.name, one.matrix, *_part(one, blocks)) for one in self.sources]
        out = of.tiles("out", self.out, *blocks)
        kind = self.sources[0].matrix.kind
        return vector_plan(self, setting, blocks, parts, out, kind, self.work_per_element)


def _part(one: Source, blocks: Blocks) -> tuple[Column, Column, Column, Column]:
    """(first row, rows, first column, columns) of a source for each block of the result."""
    zero = np.zeros_like(blocks.row)
    across = (blocks.column, blocks.columns) if one.columns else (zero, zero + one.matrix.columns)
    if not one.rows:
        return zero, zero + 1, *across
    return blocks.row * one.rows, blocks.rows * one.rows, *across


def make_vector(
    d: Descriptor, block: Extended, site: Site, sources: tuple[Source, ...], out: Matrix, evaluate: Evaluate,
    work_per_element: int, tile: tuple[int, int],
) -> VectorMacro:  # fmt: skip
    """The command, with its buffers. DescriptorError when the workspace is too small."""

    def demand(tile: Tile, buffers: Buffers) -> None:
        rows, columns = tile
        for one in sources:
            across = columns if one.columns else one.matrix.columns
            size = max(1, rows * one.rows if one.rows else 1) * row_bytes(across, one.matrix.kind)
            buffers.read(one.name, one.matrix, size)
        buffers.write("out", out, rows * row_bytes(columns, out.kind))

    count = tiles(out.rows, out.columns, tile=tile)
    reserved = reserve(d, block, site, tile, count, demand)
    return VectorMacro(d, block, site, reserved, sources, out, evaluate, work_per_element, tile)
