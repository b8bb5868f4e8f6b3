"""The sequencer: from the loop nest of a macro command to a plan (specification 20, "Macro form").

A nest is a row of hardware tiles. At a tile, operands are read into their buffers in the workspace, an engine computes,
a vector step may follow, and a result may be written out. Everything is a column over tiles, so that a nest of a
hundred thousand tiles is made in a few numpy calls.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.plan import MAX_AFTER, NONE, Buffers, Column, Compute, Piece, Plan, Role, Transfer
from npu_device.region import Region, make_region
from npu_device.timing import transfer_size


class Bus(NamedTuple):
    """How transfers are counted: `dma.alignment` and `dma.bus_width_bytes`."""

    alignment: int
    bus_width: int


class Slots(NamedTuple):
    """Buffers of one operand in the workspace, used in turn."""

    address: int
    size: int
    copies: int

    def region(self, turn: int, size: int) -> Region:
        """`size` bytes in the buffer of this turn."""
        return Region(self.address + turn % self.copies * self.size, 1, size, size)


@dataclass(frozen=True, eq=False)
class Stream:
    """One operand that crosses between DRAM and its slots. Columns have one row per move, in the order of tiles."""

    role: Role
    aux: int
    slots: Slots
    tile: Column
    """At which tile it moves: a read before the tile's computation, a write after it."""
    address: Column
    rows: Column
    row_bytes: Column
    stride: int
    """Bytes between rows in DRAM; 0: packed."""
    write: bool = False
    late: bool = False
    """A read that only the write-out needs (bias, scale, residual)."""

    def pieces(self, bus: Bus) -> tuple[list[Piece], Column]:
        """What moves, and which of it at each move."""
        turn = np.arange(len(self.tile)) % self.slots.copies
        phase = self.address % bus.alignment
        keys = np.stack((self.rows, self.row_bytes, phase, turn))
        distinct, index = np.unique(keys, axis=1, return_inverse=True)
        made: list[Piece] = []
        for rows, row_bytes, offset, buffer in distinct.T.tolist():
            region = make_region(offset, rows, row_bytes, self.stride)
            aligned, bursts = transfer_size(region, bus.alignment, bus.bus_width)
            size = rows * row_bytes
            spm = self.slots.region(buffer, size)
            made.append(Transfer(self.write, self.role, size, aligned, bursts, spm, region, self.aux))
        return made, index.reshape(-1).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Work:
    """Computation at each tile: indices into `pieces`, or NONE."""

    pieces: Sequence[Compute]
    index: Column


@dataclass(frozen=True, eq=False)
class Nest:
    """All that happens at `tiles` tiles. Without `work` a tile only moves data."""

    tiles: int
    reads: Sequence[Stream] = ()
    writes: Sequence[Stream] = ()
    work: Work | None = None
    vector: Work | None = None
    """After the computation of a tile; the next tile's computation needs it."""
    outputs: Column = field(default_factory=lambda: np.zeros(0, np.int64))
    """First tile of each output that is written, in order."""


class _After:
    """The dependencies under construction."""

    def __init__(self, steps: int) -> None:
        self.rows = np.full((steps, MAX_AFTER), NONE, np.int64)
        self._used = np.zeros(steps, np.int64)

    def add(self, steps: Column, earlier: Column) -> None:
        """Each of `steps` waits for the one of `earlier` beside it, unless that is NONE."""
        there = (steps != NONE) & (earlier != NONE)
        steps, earlier = steps[there], earlier[there]
        self.rows[steps, self._used[steps]] = earlier
        self._used[steps] += 1


def _scatter(size: int, rows: Column, values: Column) -> Column:
    column = np.full(size, NONE, np.int64)
    column[rows] = values
    return column


def sequence(nest: Nest, bus: Bus, buffers: Buffers) -> Plan:
    """The plan of a nest: steps in the order of tiles, and what each of them waits for."""
    tiles = nest.tiles
    pieces: list[Piece] = []
    kinds: list[Column] = []
    addresses: list[Column] = []
    zeros = np.zeros(tiles, np.int64)

    def add(made: Sequence[Piece], index: Column, address: Column) -> None:
        kinds.append(np.where(index == NONE, NONE, index + len(pieces)))
        addresses.append(address)
        pieces.extend(made)

    def move(stream: Stream) -> None:
        made, index = stream.pieces(bus)
        add(made, _scatter(tiles, stream.tile, index), _scatter(tiles, stream.tile, stream.address))

    for stream in nest.reads:
        move(stream)
    for work in (nest.work, nest.vector):
        if work is None:
            add((), np.full(tiles, NONE, np.int64), zeros)
        else:
            add(work.pieces, work.index, zeros)
    for stream in nest.writes:
        move(stream)

    kind = np.stack(kinds, axis=1)
    present = kind != NONE
    step = np.where(present, np.cumsum(present.reshape(-1)).reshape(present.shape) - 1, NONE)
    after = _dependencies(nest, buffers, step, int(present.sum()))
    tile = np.broadcast_to(np.arange(tiles)[:, None], present.shape)
    return Plan(tuple(pieces), kind[present], tile[present], np.stack(addresses, axis=1)[present], after)


def _dependencies(nest: Nest, buffers: Buffers, step: Column, steps: int) -> NDArray[np.int64]:
    after = _After(steps)
    reads = len(nest.reads)
    compute, vector = step[:, reads], step[:, reads + 1]
    writes = step[:, reads + 2 :]
    done = np.where(vector != NONE, vector, compute)
    ended = done if nest.work is not None else (writes[:, 0] if nest.writes else step[:, 0])
    distance = min(buffers.inputs, nest.tiles)
    earlier = np.full(nest.tiles, NONE, np.int64)
    earlier[distance:] = (compute if nest.work is not None else ended)[: nest.tiles - distance]
    if buffers.serial:
        written = writes[:, 0] if nest.writes else np.full(nest.tiles, NONE, np.int64)
        earlier[1:] = np.where(written != NONE, written, ended)[:-1]
    for index, stream in enumerate(nest.reads):
        after.add(step[:, index], earlier)
        consumer = writes[:, 0] if stream.late and nest.writes else compute
        if nest.work is None and nest.writes:
            consumer = writes[:, 0]
        after.add(consumer, step[:, index])
    if nest.vector is not None:
        after.add(vector, compute)
        after.add(compute[1:], vector[:-1])
    for index, stream in enumerate(nest.writes):
        after.add(writes[:, index], done)
        first = nest.outputs if len(nest.outputs) else stream.tile
        if len(stream.tile) > buffers.outputs:
            free = writes[stream.tile[: -buffers.outputs], index]
            after.add(compute[first[buffers.outputs :]], free)
    return after.rows
