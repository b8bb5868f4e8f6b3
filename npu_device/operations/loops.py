"""The loops of a product over its tiles: their order, blocks, and operands that stay in the workspace.

`loop_order` [3:0] is the order of the loops over tiles. With a block the nest has two levels: loops over blocks, and in
each of them loops over its tiles, both in this order. An operand that stays ([4] in0, [5] in1) has a buffer for each of
its tiles in a block: a tile moves once while the loops are at this block of the operand, however often it is used. With
[6] engines have the operand in common that all of them use: in1 in weight-stationary order, else in0.

Without any of these a product has one level, and the engines share it out as they always did (`plain`).
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.abi.errors import TicketError
from npu_device.abi.extended import Residence
from npu_device.abi.opcodes import LoopOrder
from npu_device.cost.plan import NONE, Column
from npu_device.cost.sequencer import interleave_lanes
from npu_device.operations.checks import DescriptorError

ORDER_MASK = 0xF
MAX_SHARERS = 6
"""Maximum of engines that have an operand in common: a move waits for the last use of its buffer by each."""
DIMENSIONS = ("m", "n", "k")
AXES = {"in0": "mk", "in1": "nk"}
"""Dimensions along which an operand has tiles; the image of a convolution has none along k."""


class Loops(NamedTuple):
    """Decoded order: resident operands, and the tiles of a block."""

    order: LoopOrder
    resident: tuple[str, ...]
    common: str
    """The operand that engines have in common; empty: none."""
    block: tuple[int, int, int]
    """Tiles of a block along m, n and k."""
    plain: bool

    @property
    def shared_axis(self) -> str:
        """The dimension whose tiles engines share out, where the order is not plain."""
        outer, inner = (axis for axis in self.order.axes if axis != "k")
        return inner if self.common else outer

    def tiles(self, axes: str) -> int:
        """Return the tiles of an operand in a block, by its dimensions."""
        count = 1
        for axis, size in zip(DIMENSIONS, self.block, strict=True):
            count *= size if axis in axes else 1
        return count

    def passes(self, axes: str, counts: tuple[int, int, int]) -> int:
        """Return how often the loops enter each block of an operand, by its dimensions."""
        outer = {axis: -(-count // size) for axis, count, size in zip(DIMENSIONS, counts, self.block, strict=True)}
        times, entered = 1, False
        for axis in reversed(self.order.axes):
            if axis in axes:
                entered |= outer[axis] > 1
            elif entered:
                times *= outer[axis]
        return times

    def parts(self, axes: str, counts: tuple[int, int, int]) -> bool:
        """Check whether loops inside the loop over blocks along the shared axis enter other blocks of an operand, by
        its dimensions."""
        outer = {axis: -(-count // size) for axis, count, size in zip(DIMENSIONS, counts, self.block, strict=True)}
        within = self.order.axes[self.order.axes.index(self.shared_axis) + 1 :]
        return any(outer[axis] > 1 for axis in within if axis in axes)

    def open_sums(self, counts: tuple[int, int, int]) -> int:
        """Return the maximum of sums that are open at the same time, of `counts` tiles along m, n and k."""
        if counts[2] == 1:
            return 1
        (m, n, k), (all_m, all_n, all_k) = self.block, counts
        if k == all_k:
            return {LoopOrder.OUTPUT: 1, LoopOrder.WEIGHT: m, LoopOrder.INPUT: n}[self.order]
        return {LoopOrder.OUTPUT: m * n, LoopOrder.WEIGHT: all_m * n, LoopOrder.INPUT: m * all_n}[self.order]


_ORDERS = {int(order): order for order in LoopOrder}
_SHARED = int(Residence.SHARED)
_RESIDENT_BITS = (("in0", int(Residence.IN0)), ("in1", int(Residence.IN1)))
_LOOP_ORDER_BITS = ORDER_MASK | sum(map(int, Residence))


@lru_cache(maxsize=1 << 14)  # a search comes to the same tiles for each number of engines
def decode_loops(
    word: int, block: tuple[int, int, int], tile: tuple[int, int, int], extent: tuple[int, int, int]
) -> Loops:
    """Decode a `loop_order` with a block of M, N and K, 0: one tile. DescriptorError: an order that does not exist,
    no operand that engines could have in common, a block that cuts a tile."""
    order = _ORDERS.get(word & ORDER_MASK)
    if order is None:
        raise DescriptorError(TicketError.FUNCTION, f"loop_order {word}: [3:0] must be {', '.join(map(str, _ORDERS))}")
    if word & ~_LOOP_ORDER_BITS:
        raise DescriptorError(TicketError.RESERVED, f"loop_order {word:#x}: bits above [6] must be 0")
    resident = tuple(name for name, bit in _RESIDENT_BITS if word & bit)
    common = ("in1" if order is LoopOrder.WEIGHT else "in0") if word & _SHARED else ""
    if common and common not in resident:
        raise DescriptorError(TicketError.RESERVED, f"loop_order {word:#x}: [6] shares {common}, which does not stay")
    sizes = list[int]()
    for axis, size, step, length in zip(DIMENSIONS, block, tile, extent, strict=True):
        if size % step and size < length:
            rule = f"must be a multiple of tile_{axis} {step}, or at least {length}"
            raise DescriptorError(TicketError.SHAPE, f"block_{axis} {size}: {rule}")
        sizes.append(max(1, min(-(-size // step), -(-length // step))))
    plain = order is not LoopOrder.INPUT and not resident and not any(block)
    return Loops(order, resident, common, (sizes[0], sizes[1], sizes[2]), plain)


class TileOrder(NamedTuple):
    """The tiles of a product, a row each, in the order of the loops: their indices, and those of their blocks."""

    tiles: dict[str, Column]
    blocks: dict[str, Column]

    @classmethod
    def of(cls, loops: Loops, counts: dict[str, int]) -> "TileOrder":
        """Order `counts` tiles along m, n and k, and blocks of groups along g."""
        axes = "g" + loops.order.axes
        sizes = dict(zip(DIMENSIONS, loops.block, strict=True)) | {"g": 1}
        sizes = {axis: min(sizes[axis], counts[axis]) for axis in axes}
        outer = [-(-counts[axis] // sizes[axis]) for axis in axes]
        grid = np.indices([*outer, *(sizes[axis] for axis in axes)]).reshape(2 * len(axes), -1).astype(np.int64)
        block = dict(zip(axes, grid, strict=False))
        index = {axis: block[axis] * sizes[axis] + inner for axis, inner in zip(axes, grid[len(axes) :], strict=True)}
        exists = np.logical_and.reduce([index[axis] < counts[axis] for axis in axes])
        return cls(*({axis: column[exists] for axis, column in columns.items()} for columns in (index, block)))

    def key(self, axes: str) -> Column:
        """Return a number for each tile of an operand with these dimensions."""
        return _number_rows([self.tiles[axis] for axis in "g" + axes])

    def period(self, axes: str) -> Column:
        """Return a number for each time that the loops enter another block of such an operand."""
        block = _number_rows([self.blocks[axis] for axis in "g" + axes])
        return np.cumsum(np.diff(block, prepend=block[:1]) != 0)


def _number_rows(columns: list[Column]) -> Column:
    number = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        number = number * (1 + column.max(initial=0)) + column
    return number


class Moves(NamedTuple):
    """The moves of the tiles of an operand."""

    rows: Column
    """Tiles of the nest at which it moves, in the order of the plan."""
    source: Column | None = None
    """The tile of these from which each tile of the nest has its part; None: what moved last in its lane."""
    last_uses: Column | None = None
    """Tiles after whose computation the buffer of each move is free, one column each; None: the distance of prefetch
    says so."""
    common: bool = False
    """Whether a move is for all lanes."""


def changes(key: Column, lane: Column) -> NDArray[np.bool_]:
    """Flag the tiles of the nest at which a lane comes to another tile of an operand than before."""
    order = np.argsort(lane, kind="stable")
    changed = np.ones(len(key), bool)
    changed[order[1:]] = (np.diff(key[order]) != 0) | (np.diff(lane[order]) != 0)
    return changed


def moves(key: Column, lane: Column) -> Moves:
    """Move an operand that does not stay wherever a lane comes to another tile of it."""
    changed, order = changes(key, lane), np.argsort(lane, kind="stable")
    source = np.empty_like(order)
    source[order] = order[np.maximum.accumulate(np.where(changed[order], np.arange(len(order)), 0))]
    return Moves(np.flatnonzero(changed), source)


def resident(key: Column, period: Column, lane: Column, phase: Column | None, copies: int, common: bool) -> Moves:
    """Move an operand that stays in its `copies` buffers while its block does."""
    order = interleave_lanes(lane, phase)
    owner = np.zeros_like(lane) if common else lane
    _, first, load = np.unique(_number_rows([period, key, owner])[order], return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    load, rows = rank[load.reshape(-1)], order[np.sort(first)]
    source = np.empty_like(key)
    source[order] = rows[load]
    previous = np.full(len(rows), NONE, np.int64)  # load whose buffer a load takes over
    for index in np.unique(owner[rows]):
        loads = np.flatnonzero(owner[rows] == index)
        previous[loads[copies:]] = loads[: max(0, len(loads) - copies)]
    last_uses = list[Column]()
    position = np.arange(len(order))
    for index in np.unique(lane):
        last = np.full(len(rows), NONE, np.int64)
        in_lane = lane[order] == index
        np.maximum.at(last, load[in_lane], position[in_lane])
        use = np.where(previous == NONE, NONE, last[previous])
        last_uses.append(np.where(use == NONE, NONE, order[use]))
    if not common:
        last_uses = [np.max(np.stack(last_uses), axis=0)]
    return Moves(rows, source, np.stack(last_uses, axis=1), common)
