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
from npu_device.abi.opcodes import BITS, Opcode
from npu_device.events import Kind
from npu_device.kernels import elements
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
    output_copies,
    reserve,
    tiles,
    values,
    whole,
)
from npu_device.macro.tiles import Tiles, work
from npu_device.operands import Matrix, row_bytes
from npu_device.plan import Column, Compute, Plan, Role
from npu_device.region import Region
from npu_device.sequencer import Nest, Slots, sequence


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
    slots: dict[str, Slots]

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (
            *(operand(one.name, one.matrix) for one in self.sources), operand("out", self.out, written=True),
        )  # fmt: skip

    def compute(self, read: Read, held: elements.Values | None) -> Effect:
        return Effect((whole(self.out, self.evaluate([values(read, one.matrix) for one in self.sources])),))

    def plan(self, setting: Setting) -> Plan:
        m, n = self.tile
        grid = np.indices((-(-self.out.rows // m), -(-self.out.columns // n))).reshape(2, -1).astype(np.int64)
        row, column = grid[0] * m, grid[1] * n
        rows, columns = np.minimum(m, self.out.rows - row), np.minimum(n, self.out.columns - column)
        every = np.arange(len(row))
        parts = [
            Tiles(one.matrix, self.slots.get(one.name), *_part(one, row, rows, column, columns), every)
            for one in self.sources
        ]
        out = Tiles(self.out, self.slots.get("out"), row, rows, column, columns, every)
        bits, aux = BITS[self.sources[0].matrix.kind], self.d.opcode | self.d.function << 8

        def step(shape: list[int], reads: tuple[Region, ...], writes: tuple[Region, ...]) -> Compute:
            operations = shape[0] * shape[1] * self.work_per_element
            return Compute(Kind.VE, aux, 0, 0, 0, bits, 0, operations, reads, writes)

        nest = Nest(
            len(row),
            tuple(stream for part in parts for stream in part.stream(Role.ACTIVATION, Opcode.LOAD)),
            out.stream(Role.ACTIVATION, Opcode.STORE, write=True),
            work(step, (rows, columns), parts, ((out, np.ones(len(row), bool)),)),
        )
        return sequence(nest, setting.bus, setting.buffers(self.d.prefetch_dist))


def _part(
    one: Source, row: Column, rows: Column, column: Column, columns: Column
) -> tuple[Column, Column, Column, Column]:
    """(first row, rows, first column, columns) of a source for each tile of the result."""
    zero = np.zeros_like(row)
    across = (column, columns) if one.columns else (zero, zero + one.matrix.columns)
    if not one.rows:
        return zero, zero + 1, *across
    return row * one.rows, rows * one.rows, *across


def make_vector(
    d: Descriptor, block: Extended, site: Site, sources: tuple[Source, ...], out: Matrix, evaluate: Evaluate,
    work_per_element: int, tile: tuple[int, int],
) -> VectorMacro:  # fmt: skip
    """The command, with its buffers. DescriptorError when the workspace is too small."""

    count = tiles(out.rows, out.columns, tile=tile)

    def demand(tile: Tile) -> Demand:
        rows, columns = tile
        wanted: dict[str, tuple[Matrix | None, int, int]] = {}
        for one in sources:
            across = columns if one.columns else one.matrix.columns
            size = max(1, rows * one.rows if one.rows else 1) * row_bytes(across, one.matrix.kind)
            wanted[one.name] = (one.matrix, size, input_copies(d))
        wanted["out"] = (out, rows * row_bytes(columns, out.kind), output_copies(d))
        return in_dram(site, wanted)

    return VectorMacro(
        d, block, site, sources, out, evaluate, work_per_element, tile, reserve(block, tile, count, demand)
    )
