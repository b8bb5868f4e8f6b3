"""Nests over the blocks of a matrix that vector engines make one by one, in any order."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from npu_device.abi.opcodes import BITS, DataType, Opcode
from npu_device.events import Kind
from npu_device.macro.base import Macro, Setting
from npu_device.macro.tiles import Operands, Tiles, work
from npu_device.plan import Column, Compute, Plan, Role
from npu_device.region import Region
from npu_device.sequencer import Nest


class Blocks(NamedTuple):
    """Row by row: where each block begins and how large it is."""

    row: Column
    rows: Column
    column: Column
    columns: Column

    @classmethod
    def of(cls, rows: int, columns: int, tile: tuple[int, int]) -> Self:
        """The blocks of `rows` x `columns`."""
        m, n = tile
        grid = np.indices((-(-rows // m), -(-columns // n))).reshape(2, -1).astype(np.int64)
        row, column = grid[0] * m, grid[1] * n
        return cls(row, np.minimum(m, rows - row), column, np.minimum(n, columns - column))

    def operands(self, macro: Macro, lanes: int) -> Operands:
        """The operands of a nest over the blocks: engines take them in turn."""
        return Operands(macro.reserved.slots(lanes), np.arange(len(self.row)) % lanes)


def vector_plan(
    macro: Macro, setting: Setting, blocks: Blocks, reads: Sequence[Tiles], out: Tiles, kind: DataType,
    per_element: int, weights: Sequence[Tiles] = (),
) -> Plan:  # fmt: skip
    """Every block is read, made on a vector engine with `per_element` operations on elements of `kind`, and written.

    `weights` are read too; they belong to the model.
    """
    aux = macro.d.opcode | macro.d.function << 8

    def step(shape: list[int], inputs: tuple[Region, ...], results: tuple[Region, ...]) -> Compute:
        operations = shape[0] * shape[1] * per_element
        return Compute(Kind.VE, aux, 0, 0, 0, BITS[kind], 0, operations, inputs, results)

    every = np.ones(len(blocks.row), bool)
    nest = Nest(
        out.lane,
        (
            *(stream for part in reads for stream in part.stream(Role.ACTIVATION, Opcode.LOAD)),
            *(stream for part in weights for stream in part.stream(Role.WEIGHT, Opcode.LOAD)),
        ),
        out.stream(Role.ACTIVATION, Opcode.STORE, write=True),
        work(step, (blocks.rows, blocks.columns), (*reads, *weights), ((out, every),)),
    )
    return setting.sequence(nest, macro.d)
