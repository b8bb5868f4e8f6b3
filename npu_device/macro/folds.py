"""Tiles as a pipelined array takes them: fold by fold (`systolic_ws_pipe`, specification 40).

A fold is what the array holds of the weights at once, R x C of them. It needs the R columns of in0 that meet it, and
the last fold of C columns completes them: each part of an operand is moved by itself, a fold starts when its own parts
have arrived, and finished columns are written while the folds of others go on.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from npu_device.abi.opcodes import BITS
from npu_device.macro.tiles import Operands
from npu_device.operands import Matrix
from npu_device.plan import Column
from npu_device.sequencer import Slots


class Grid(NamedTuple):
    """The parts of tiles, one row each in the order in which the array takes them: all k parts of some columns, then
    the next columns."""

    tile: Column
    """Which tile it is a part of."""
    first: Column
    """Row of that tile's first part."""
    across: Column
    """Which columns of the tile."""
    along: Column
    """Which k part of the tile."""
    most_across: int
    """Of a whole tile."""
    most_along: int

    @property
    def split(self) -> bool:
        """Whether there is more than a part in any tile."""
        return self.most_across * self.most_along > 1


def grid(columns: Column, depth: Column, fold: tuple[int, int] | None, tile: tuple[int, int, int]) -> Grid:
    """The parts of tiles of so many columns and so deep, for an array of `fold` = (rows, columns).

    Tiles that are no multiple of the array are taken whole, and so are all where `fold` is None: where parts would not
    be whole accesses of DRAM.
    """
    _, n, k = tile
    if fold is None or n % fold[1] or k % fold[0]:
        every = np.arange(len(columns))
        return Grid(every, every, np.zeros_like(every), np.zeros_like(every), 1, 1)
    along, across = -(-depth // fold[0]), -(-columns // fold[1])
    counts = along * across
    of = np.repeat(np.arange(len(columns)), counts)
    first = np.cumsum(counts) - counts
    local = np.arange(len(of)) - first[of]
    return Grid(of, first[of], local // along[of], local % along[of], n // fold[1], k // fold[0])


def whole_accesses(matrix: Matrix, width: int, alignment: int) -> bool:
    """Whether parts of so many columns begin and end where accesses of DRAM do."""
    region = matrix.region
    stride = region.row_bytes // matrix.rows if region.rows == 1 else region.stride
    return not any(value % (8 * alignment) for value in (8 * region.address, 8 * stride, width * BITS[matrix.kind]))


def parted(of: Operands, parts: Grid, sizes: Mapping[str, int], whole: Collection[str] = ("sums",)) -> Operands:
    """The operands of a nest over parts. A buffer, of `sizes` bytes by operand, holds the parts of a tile; what is
    `whole` has none."""
    if not parts.split:
        return of
    slots = {}
    for name, one in of.slots.items():
        across = 1 if name == "in0" else parts.most_across
        count = 1 if name in whole else across * (parts.most_along if name in ("in0", "in1") else 1)
        size = sizes[name] // count
        cut = tuple(address + i * size for address in one.addresses for i in range(count))
        slots[name] = Slots(cut, one.lane_stride)
    return Operands(slots, of.lane[parts.tile])
