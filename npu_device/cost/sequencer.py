"""Sequencer: conversion of a macro command's loop nest to a plan (docs/interface.md, "Macro form").

A nest is a sequence of hardware tiles. At a tile, operands are read into their buffers in the workspace, an engine
computes, a vector step may follow, and a result may be written out. All data are columns over tiles, so that a nest of
a hundred thousand tiles takes a few NumPy calls.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from npu_device.abi.opcodes import BITS, VQ_EXPANDED
from npu_device.cost.durations import partial_lines, transfer_size
from npu_device.cost.plan import MAX_AFTER, NONE, Buffers, Column, Compute, Piece, Plan, Transfer
from npu_device.memory.bitwidth import num_bursts
from npu_device.memory.region import Region, make_region
from npu_device.trace.events import Role


def classes(*columns: Column) -> tuple[Column, Column]:
    """Return (sorted distinct rows, index of each row among them) of a table of columns."""
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        if not len(column) or column.min() == column.max():
            continue
        rank = _rank(column)
        code = _rank(code * (1 + rank.max(initial=0)) + rank)
    first = np.zeros(1 + code.max(initial=-1), np.int64)
    first[code[::-1]] = np.arange(len(code))[::-1]
    return np.stack([column[first] for column in columns], axis=1), code


def _rank(column: Column) -> Column:
    """Return for each value the number of smaller distinct values, by a table for dense values, else by sorting."""
    low, high = column.min(), column.max()
    if high - low > 4 * len(column) + 1024:
        return np.unique(column, return_inverse=True)[1].astype(np.int64)
    presence = np.zeros(high - low + 1, np.int64)
    presence[column - low] = 1
    rank: Column = (np.cumsum(presence) - 1)[column - low]
    return rank


class Bus(NamedTuple):
    """Parameters of transfer sizes: `dma.alignment`, `dma.bus_width_bytes`, and whether `dma.partial_write` is rmw."""

    alignment: int
    bus_width: int
    read_modify_write: bool = False
    port_limited: bool = True
    """Whether `spm.port` has a limit. Without it no cost depends on scratchpad addresses, so pieces that differ only
    in these are merged."""

    def distinct(self, buffer: Column) -> Column:
        """Return buffers, or lanes, if their scratchpad addresses affect costs, else zeros."""
        return buffer if self.port_limited else np.zeros_like(buffer)

    def size(self, region: Region, write: bool, alignment: int = 0) -> tuple[int, int]:
        """Return (aligned bytes, bursts) of moving a region of DRAM. `alignment`: that of its tensor, or 0 for the
        default. A read-modify-write of a partial line crosses the bus twice (docs/bit-widths.md, R21)."""
        unit = alignment or self.alignment
        aligned, bursts = transfer_size(region, unit, self.bus_width)
        if write and self.read_modify_write:
            lines = partial_lines(region, unit)
            aligned += lines * unit
            bursts += lines * num_bursts(unit, self.bus_width)
        return aligned, bursts


class Slots(NamedTuple):
    """Buffers of one operand in the workspace, which each lane uses in rotation."""

    addresses: tuple[int, ...]
    """Addresses of the first lane's buffers."""
    lane_stride: int = 0
    """Bytes from the buffers of one lane to those of the next."""

    def at(self, buffer: Column) -> Column:
        """Return the addresses of buffers, whose indices count over all lanes."""
        lane, slot = np.divmod(buffer, len(self.addresses))
        return np.array(self.addresses, np.int64)[slot] + lane * self.lane_stride

    def region(self, buffer: int, size: int) -> Region:
        """Return the region of the first `size` bytes of a buffer."""
        lane, slot = divmod(buffer, len(self.addresses))
        return Region(self.addresses[slot] + lane * self.lane_stride, 1, size, size)

    def rotate(self, lane: Column) -> Column:
        """Return the buffer of each move from its lane."""
        copies = len(self.addresses)
        return lane * copies + _rank_in_lane(lane, np.zeros_like(lane)) % copies


@dataclass(frozen=True, eq=False)
class Stream:
    """Operand that moves between DRAM and its slots. Columns have a row per move, in the order of tiles."""

    role: Role
    aux: int
    slots: Slots
    tile: Column
    """Tile of each move: a read precedes the tile's computation, a write follows it."""
    address: Column
    rows: Column
    row_bytes: Column
    stride: int
    """Row stride in DRAM in bytes; 0 for packed."""
    buffer: Column
    """Buffer of each move."""
    write: bool = False
    epilogue: bool = False
    """Whether only the write-out needs the read (bias, scale, residual)."""
    shared: bool = False
    """Whether the read moves once, for all lanes."""
    expansion: int = 1
    """Bytes in the scratchpad per byte in DRAM."""
    table: bool = False
    """Whether it is the table with which the DMA expands other streams, whose first reads wait for it."""
    alignment: int = 0
    """Alignment of its DRAM accesses in bytes; 0 for `dma.alignment`."""
    early: bool = False
    """Whether the write does not wait for the computation: its data are from the tile's reads, or from before."""
    passes: int = 2
    """Number of passes of the engine that encodes the keys and values of a write."""
    max_bytes: int = 0
    """Maximum bytes of scratchpad that a move accesses, if the engine has its own buffers; 0 for no limit."""
    last_uses: Column | None = None
    """Tiles whose computations free the buffer of each move, one column each, or NONE. For a read whose buffers hold
    more than the prefetched tiles."""
    source: Column | None = None
    """Tile at which each tile's part of the stream moves, for a read for all lanes."""

    def pieces(self, bus: Bus) -> tuple[list[Piece], Column]:
        """Return the distinct transfers, and the index of each move's transfer."""
        phase = self.address % (self.alignment or bus.alignment)
        distinct, index = classes(self.rows, self.row_bytes, phase, bus.distinct(self.buffer))
        pieces: list[Piece] = []
        for rows, row_bytes, offset, buffer in distinct.tolist():
            region = make_region(offset, rows, row_bytes, self.stride)
            aligned, bursts = bus.size(region, self.write, self.alignment)
            size = rows * row_bytes
            expanded = size * self.expansion
            spm = self.slots.region(buffer, min(expanded, self.max_bytes) if self.max_bytes else expanded)
            elements = expanded * 8 // BITS[VQ_EXPANDED] if self.expansion > 1 else 0
            values = self.write, self.role, size, aligned, bursts, spm, region, self.aux
            pieces.append(Transfer(*values, elements, self.alignment, passes=self.passes))
        return pieces, index


@dataclass(frozen=True, eq=False)
class Work:
    """Computation at each tile: indices into `pieces`, or NONE."""

    pieces: Sequence[Compute]
    index: Column


@dataclass(frozen=True, eq=False)
class Nest:
    """Loop nest: the moves and computations of a row of tiles. Without `work` a tile only moves data."""

    lane: Column
    """Engine of the command that computes each tile; tiles of one sum have the same."""
    reads: Sequence[Stream] = ()
    writes: Sequence[Stream] = ()
    work: Work | None = None
    vector: Work | None = None
    """Vector step after the computation of a tile; the next tile's computation depends on it."""
    outputs: Column = field(default_factory=lambda: np.zeros(0, np.int64))
    """First tile of each written output, in order."""
    tile_of_part: Column | None = None
    """Tile of each row, ascending, if rows are parts of tiles, which share buffers; None if rows are tiles."""
    parts: int = 1
    """Number of parts in which a tile is written."""
    phase: Column | None = None
    """Phase of each tile; lanes advance to the next phase together."""


def lanes_of(chain: Column, lanes: int) -> Column:
    """Return the engine of each tile for parallel engines, to which chains are assigned in rotation.

    `chain`: index of the sum (or other unit of work of a single engine) of each tile. Tiles of a chain are contiguous.
    """
    index = np.cumsum(np.diff(chain, prepend=chain[:1]) != 0)
    lane: Column = index % lanes
    return lane


def interleave_lanes(lane: Column, phase: Column | None = None) -> Column:
    """Return the order that interleaves the rows of all lanes, phase by phase. Steps of one class start in the order of
    the plan, so this keeps an engine from waiting for the rows of another."""
    phases = np.zeros_like(lane) if phase is None else phase
    order: Column = np.lexsort((lane, _rank_in_lane(lane, phases), phases))
    return order


def _rank_in_lane(lane: Column, phase: Column) -> Column:
    """Return for each row the number of earlier rows of its lane since the lane's last change of phase."""
    rows = np.argsort(lane, kind="stable")
    begins = (np.diff(lane[rows], prepend=-1) != 0) | (np.diff(phase[rows], prepend=-1) != 0)
    rank, count = np.empty_like(rows), np.arange(len(rows))
    rank[rows] = count - np.maximum.accumulate(np.where(begins, count, 0))
    return rank


def latest(lane: Column, column: Column) -> Column:
    """Return the running maximum in each row's lane of values below the number of rows."""
    rows = np.argsort(lane, kind="stable")
    base, maxima = lane[rows] * len(rows), np.empty_like(column)
    maxima[rows] = np.maximum.accumulate(base + column[rows]) - base
    return maxima


class _After:
    """Dependencies under construction."""

    def __init__(self, steps: int) -> None:
        self.rows = np.full((steps, MAX_AFTER), NONE, np.int64)
        self._counts = np.zeros(steps, np.int64)

    def add(self, steps: Column, earlier: Column) -> None:
        """Make each of `steps` wait for the step of `earlier` at the same index, unless that is NONE."""
        exists = (steps != NONE) & (earlier != NONE)
        steps, earlier = steps[exists], earlier[exists]
        self.rows[steps, self._counts[steps]] = earlier
        self._counts[steps] += 1

    def add_once(self, steps: Column, earlier: Column) -> None:
        """Add dependencies as `add` does, without those that exist already."""
        self.add(steps, np.where((self.rows[steps] == earlier[:, None]).any(axis=1), NONE, earlier))


def _scatter(size: int, rows: Column, values: Column) -> Column:
    column = np.full(size, NONE, np.int64)
    column[rows] = values
    return column


def sequence(nest: Nest, bus: Bus, buffers: Buffers) -> Plan:
    """Return the plan of a nest: steps in the order of tiles, with lanes interleaved, and their dependencies."""
    tiles = len(nest.lane)
    pieces: list[Piece] = []
    kinds: list[Column] = []
    addresses: list[Column] = []
    zeros = np.zeros(tiles, np.int64)

    def add(new_pieces: Sequence[Piece], index: Column, address: Column) -> None:
        kinds.append(np.where(index == NONE, NONE, index + len(pieces)))
        addresses.append(address)
        pieces.extend(new_pieces)

    def move(stream: Stream) -> None:
        new_pieces, index = stream.pieces(bus)
        add(new_pieces, _scatter(tiles, stream.tile, index), _scatter(tiles, stream.tile, stream.address))

    for stream in nest.reads:
        move(stream)
    for work in (nest.work, nest.vector):
        if work is None:
            add((), np.full(tiles, NONE, np.int64), zeros)
        else:
            add(work.pieces, work.index, zeros)
    for stream in nest.writes:
        move(stream)

    piece = np.stack(kinds, axis=1)
    order = interleave_lanes(nest.lane, nest.phase)
    present = piece != NONE
    step = np.full(piece.shape, NONE, np.int64)
    step[order] = np.where(present[order], np.cumsum(present[order]).reshape(present.shape) - 1, NONE)
    after = _After(int(present.sum()))
    _order_lanes(nest, buffers, step, after)
    for index, stream in enumerate(nest.reads):
        _order_resident(stream, step[:, index], step[:, len(nest.reads)], after)
    tile_of = np.arange(tiles) if nest.tile_of_part is None else nest.tile_of_part
    tile = np.broadcast_to(tile_of[:, None], present.shape)
    lane = np.broadcast_to(nest.lane[:, None], present.shape)
    present = present[order]
    piece, tile, address, lane = (column[order][present] for column in (piece, tile, np.stack(addresses, axis=1), lane))
    return Plan(tuple(pieces), piece, tile, address, after.rows, lane)


def _order_lanes(nest: Nest, buffers: Buffers, steps: Column, after: _After) -> None:
    """Add the dependencies between the steps of each lane's tiles, as if the lane were alone."""
    tiles = np.argsort(nest.lane, kind="stable")
    step, lane = steps[tiles], nest.lane[tiles]
    begins = np.flatnonzero(np.diff(lane, prepend=-1))
    reads = len(nest.reads)
    compute, vector = step[:, reads], step[:, reads + 1]
    writes = step[:, reads + 2 :]
    result = np.where(vector != NONE, vector, compute)
    end = result if nest.work is not None else (writes[:, 0] if nest.writes else step[:, 0])
    writer = writes[:, 0] if nest.writes else np.full(len(tiles), NONE, np.int64)
    release = np.where(writer != NONE, writer, end) if buffers.serial else compute if nest.work is not None else end
    tile_of = np.arange(len(tiles)) if nest.tile_of_part is None else nest.tile_of_part[tiles]
    earlier = _tiles_before(release, tile_of, lane, buffers.inputs)
    table = next((index for index, stream in enumerate(nest.reads) if stream.table), NONE)
    for index, stream in enumerate(nest.reads):
        after.add(step[:, index], earlier)
        if stream.expansion > 1 and table != NONE:
            present = np.flatnonzero(step[:, index] != NONE)
            first = present[np.flatnonzero(np.diff(lane[present], prepend=-1))]
            after.add(step[first, index], np.full_like(first, steps[nest.reads[table].tile[0], table]))
        consumer = writes[:, 0] if stream.epilogue and nest.writes else compute
        if nest.work is None and nest.writes:
            consumer = writes[:, 0]
        after.add(consumer, step[:, index])
        if stream.shared:
            tile = stream.tile[0]
            after.add(compute[begins], np.where(lane[begins] == nest.lane[tile], NONE, steps[tile, index]))
    if nest.vector is not None:
        after.add(vector, compute)
        after.add(compute[1:], np.where(lane[1:] == lane[:-1], vector[:-1], NONE))
    for index, stream in enumerate(nest.writes):
        if stream.early:
            _order_early(nest, index, step, tiles, after)
            continue
        after.add(writes[:, index], result)
        moves = _positions(tiles, stream.tile)
        first = _positions(tiles, nest.outputs) if len(nest.outputs) else moves
        readers, writers = _pairs(lane, first, moves, buffers.outputs * nest.parts)
        after.add(compute[readers], writes[writers, index])


def _order_resident(stream: Stream, read: Column, compute: Column, after: _After) -> None:
    """Make a read wait for the last uses of its buffer's content, and the computations of other lanes for the read."""
    if stream.last_uses is not None:
        for users in stream.last_uses.T:
            after.add_once(read[stream.tile], np.where(users == NONE, NONE, compute[users]))
    if stream.source is not None:
        waiters = stream.source != np.arange(len(compute))
        after.add(compute[waiters], read[stream.source[waiters]])


def _order_early(nest: Nest, index: int, step: Column, tiles: Column, after: _After) -> None:
    """Make a write without a computation wait for the reads of its tile, and the next read into its buffer for the
    write."""
    write = step[:, len(nest.reads) + 2 + index]
    for column, stream in enumerate(nest.reads):
        after.add(write, step[:, column])
        copies = len(stream.slots.addresses)
        if stream.slots is nest.writes[index].slots:
            moves = _positions(tiles, stream.tile)
            readers, writers = _pairs(nest.lane[tiles], moves, moves, copies)
            after.add(step[readers, column], write[writers])


def _tiles_before(step: Column, tile_of: Column, lane: Column, distance: int) -> Column:
    """Return for each row the last step of the tile `distance` before its own in its lane. `tile_of`: tile of a row."""
    ends = np.flatnonzero(np.diff(tile_of, append=-1))
    tile = np.searchsorted(ends, np.arange(len(step)))
    previous = ends[np.maximum(tile - distance, 0)]
    return np.where((tile >= distance) & (lane[previous] == lane), step[previous], NONE)


def _pairs(lane: Column, later: Column, sooner: Column, distance: int) -> tuple[Column, Column]:
    """Return the rows of `later`, each with the row of `sooner` that is `distance` rows earlier in its lane. Both are
    sorted by lane and have equally many rows of each."""
    later, sooner = later[distance:], sooner[: max(0, len(sooner) - distance)]
    alike = lane[later] == lane[sooner]
    return later[alike], sooner[alike]


def _positions(tiles: Column, selection: Column) -> Column:
    """Return the indices of `tiles` that are in `selection`."""
    marks = np.zeros(len(tiles), bool)
    marks[selection] = True
    return np.flatnonzero(marks[tiles])
