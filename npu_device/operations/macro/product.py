"""Matrix products in macro form: types, tiles and steps that GEMM_T and CONV2D_T share.

A pipelined array (`systolic_ws_pipe`, docs/npu-timing.md) takes tiles fold by fold. A fold is what the array holds of
the weights at once, R x C of them. It needs the R columns of in0 that meet it, and the last fold of C columns completes
them: each part of an operand is moved by itself, a fold starts when its own parts have arrived, and finished columns
are written while the folds of others go on.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import BITS, DataType, Gemm, LoopOrder, Opcode
from npu_device.cost.plan import Column, Compute, Plan
from npu_device.cost.sequencer import Nest, Slots, Stream, interleave_lanes, latest
from npu_device.memory.arrays import Read, WriteSet
from npu_device.memory.bitwidth import expanded, expansion
from npu_device.memory.operands import FLOATS, INTEGERS, Matrix, row_bytes
from npu_device.memory.region import Region
from npu_device.operations.checks import CapacityError, element_type, unused_type
from npu_device.operations.kernels import elements, gemm
from npu_device.operations.loops import AXES, MAX_SHARERS, Loops, Moves, TileOrder, changes, moves, resident
from npu_device.operations.macro.base import Macro, Operand, Setting, matrix_write, operand, values
from npu_device.operations.macro.codebook import Codebooks
from npu_device.operations.macro.epilogue import Finish, zero_point
from npu_device.operations.macro.tiles import Operands, Tiles, work
from npu_device.operations.macro.workspace import Buffers, Reserved, Site
from npu_device.operations.tile_form import SMALL_INTEGERS
from npu_device.trace.events import Kind, Role


class Grid(NamedTuple):
    """Parts of tiles, one row each in the order in which the array takes them: all k parts of some columns, then the
    next columns."""

    tile: Column
    """Index of its tile."""
    first: Column
    """Row of that tile's first part."""
    across: Column
    """Index of its columns within the tile."""
    along: Column
    """Index of its k part within the tile."""
    max_across: int
    """Parts of a full tile across its columns; `max_along`: along k."""
    max_along: int

    @property
    def split(self) -> bool:
        """Check whether any tile has more than one part."""
        return self.max_across * self.max_along > 1


def grid(columns: Column, depth: Column, fold: tuple[int, int] | None, tile: tuple[int, int, int]) -> Grid:
    """Return the parts of tiles of so many columns and so deep, for an array of `fold` = (rows, columns).

    Tiles that are no multiple of the array are taken whole, and so are all where `fold` is None: where parts would not
    be whole accesses of DRAM.
    """
    _, n, k = tile
    if fold is None or n % fold[1] or k % fold[0]:
        indices = np.arange(len(columns))
        return Grid(indices, indices, np.zeros_like(indices), np.zeros_like(indices), 1, 1)
    along, across = -(-depth // fold[0]), -(-columns // fold[1])
    counts = along * across
    of = np.repeat(np.arange(len(columns)), counts)
    first = np.cumsum(counts) - counts
    local = np.arange(len(of)) - first[of]
    return Grid(of, first[of], local // along[of], local % along[of], n // fold[1], k // fold[0])


def whole_accesses(matrix: Matrix, width: int, alignment: int) -> bool:
    """Check whether parts of `width` columns begin and end at accesses of DRAM."""
    region = matrix.region
    stride = region.row_bytes // matrix.rows if region.rows == 1 else region.stride
    return not any(value % (8 * alignment) for value in (8 * region.address, 8 * stride, width * BITS[matrix.kind]))


def split_parts(of: Operands, parts: Grid, sizes: Mapping[str, int], unsplit: Collection[str] = ("sums",)) -> Operands:
    """Return the operands of a nest over parts. A buffer, of `sizes` bytes by operand, holds the parts of a tile;
    operands in `unsplit` have none."""
    if not parts.split:
        return of
    slots = {}
    for name, buffers in of.slots.items():
        across = 1 if name == "in0" else parts.max_across
        count = 1 if name in unsplit else across * (parts.max_along if name in ("in0", "in1") else 1)
        size = sizes[name] // count
        cut = tuple(address + i * size for address in buffers.addresses for i in range(count))
        slots[name] = Slots(cut, buffers.lane_stride)
    return Operands(slots, of.lane[parts.tile], of.alignments)


SUM_BYTES = 4
"""Bytes of an element of a sum."""


def product_types(d: Descriptor) -> tuple[DataType, DataType, DataType, bool]:
    """Return (in0, in1, out, whether the sum is an integer) of a product. Floats also take integer weights, and those
    of a codebook."""
    kind0 = element_type(d, "type_in0", (*SMALL_INTEGERS, *FLOATS))
    integer = kind0 in SMALL_INTEGERS
    kind1 = element_type(d, "type_in1", SMALL_INTEGERS if integer else (kind0, *SMALL_INTEGERS, DataType.VQ8))
    if integer:
        out = element_type(d, "type_out", (*INTEGERS, *FLOATS))
    else:
        out = element_type(d, "type_out", dict.fromkeys((DataType.FP32, kind0)))
    unused_type(d, "type_kv")
    return kind0, kind1, out, integer


class Product(NamedTuple):
    """Tiles of a product, one row each, in the order of the loop nest."""

    row: Column
    rows: Column
    column: Column
    columns: Column
    at: Column
    """First k of its k tile."""
    depth: Column
    first: NDArray[np.bool_]
    """Whether an output begins, with its first k tile."""
    last: NDArray[np.bool_]
    reused: NDArray[np.bool_]
    """Whether the weights are those of the tile before."""

    def reorder(self, order: Column) -> "Product":
        """Return the tiles in another order."""
        columns: tuple[NDArray[Any], ...] = self
        return Product(*(column[order] for column in columns))

    def parts(self, parts: Grid, fold: tuple[int, int] | None) -> "Product":
        """Split each row into the parts of its tile."""
        if not parts.split or fold is None:
            return self
        row, rows, column, columns, at, depth, first, last, reused = self.reorder(parts.tile)
        across, along = parts.across * fold[1], parts.along * fold[0]
        return Product(
            row, rows, column + across, np.minimum(fold[1], columns - across), at + along,
            np.minimum(fold[0], depth - along), first & (along == 0), last & (along + fold[0] >= depth), reused,
        )  # fmt: skip


class Movement(NamedTuple):
    """Lanes of the tiles of a nest, and the moves of its operands where its loops have blocks."""

    lane: Column
    moves: Mapping[str, Moves] = {}
    """Moves of in0 and in1; empty for a plain nest."""
    phase: Column | None = None
    open_sums: bool = False
    """Whether an output needs its buffer with its last k tile only: its sum waits in the accumulator or workspace."""


class Parted(NamedTuple):
    """Nest whose rows are tiles, or parts of tiles."""

    nest: Product
    of: Operands
    parts: Grid
    movement: Movement

    def step_rows(self) -> Product:
        """Return the rows of steps on tensor engines, in the order of the plan."""
        return self.nest.reorder(interleave_lanes(self.of.lane, self.movement.phase))


@dataclass(frozen=True, eq=False)
class ProductMacro(Macro):
    """Base of GEMM_T and CONV2D_T."""

    in0: Matrix
    in1: Matrix
    out: Matrix
    finish: Finish
    zeros: tuple[int, int]
    """Zero points of in0 and in1."""
    tile: tuple[int, int, int]
    codebooks: Codebooks | None
    loops: Loops

    def weights(self, read: Read) -> elements.Values:
        """Return the elements of in1, less their zero point."""
        if self.codebooks is not None:
            return self.codebooks.expand(read, self.in1)
        return gemm.subtract_zero(values(read, self.in1), self.zeros[1])

    @abstractmethod
    def factors(self, read: Read) -> tuple[elements.Values, elements.Values]:
        """Return the matrices that are multiplied, less their zero points: groups x M x K and groups x K x N."""

    @abstractmethod
    def rows(self, setting: Setting, lanes: int) -> Product:
        """Return a row for each step on a tensor engine, in the order of the plan for `lanes` engines."""

    def complete(self, total: elements.Values, read: Read) -> WriteSet:
        """Return the result of a sum."""
        if self.d.function & Gemm.HOLD:
            return WriteSet(accumulator=total)
        return WriteSet((matrix_write(self.out, self.finish.apply(total, read)),))

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (
            operand("in0", self.in0), operand("in1", self.in1), *self._codebook_operand(), *self.finish.operands(),
            operand("out", self.out, written=True),
        )  # fmt: skip

    def _codebook_operand(self) -> tuple[Operand, ...]:
        return () if self.codebooks is None else (operand("codebook", self.codebooks.matrix),)

    @property
    def filters(self) -> int:
        """Columns of the result that see the same columns of in0: all, or those of a group."""
        return self.out.columns

    @property
    def loop_order(self) -> LoopOrder:
        return self.loops.order

    @property
    def weight_stationary(self) -> bool:
        return self.loop_order is LoopOrder.WEIGHT

    def lanes(self, engines: int) -> int:
        return min(super().lanes(engines), MAX_SHARERS if self.loops.common else engines)

    def blocked_nest(
        self, counts: dict[str, int], image: bool, lanes: int
    ) -> tuple[dict[str, Column], NDArray[np.bool_], Movement]:
        """Return the tiles of a nest that is not plain, by their indices, where the weights are those of the tile
        before, and how its operands move. `counts`: of groups, and along m, n and k; `image`: in0 has no tiles along
        k."""
        loops, nest = self.loops, TileOrder.of(self.loops, counts)
        axes = {"in0": "m" if image else "mk", "in1": "nk"}
        axis = loops.shared_axis
        lane = (nest.tiles["g"] * counts[axis] + nest.tiles[axis]) % lanes
        phase = nest.period(axes[loops.common]) if loops.common else None
        by_operand = dict[str, Moves]()
        for name, dimensions in axes.items():
            key, slots = nest.key(dimensions), self.reserved.needs.get(name)
            if name in loops.resident and slots is not None:
                period = nest.period(dimensions)
                by_operand[name] = resident(key, period, lane, phase, slots[1], name == loops.common)
            else:
                by_operand[name] = moves(key, lane)
        open_sums = loops.open_sums((counts["m"], counts["n"], counts["k"])) > 1
        return nest.tiles, ~changes(nest.key("nk"), lane), Movement(lane, by_operand, phase, open_sums)

    def split(
        self, nest: Product, movement: Movement, lanes: int, setting: Setting, unsplit: Collection[str]
    ) -> Parted:
        """Return the nest of a product on engines that take tiles whole or fold by fold; operands named in `unsplit`
        move as they do for a tile."""
        fold = setting.fold if self.loops.plain and self._divides(setting) else None
        parts = grid(nest.columns, nest.depth, fold, self.tile)
        sizes = {name: size for name, (size, _) in self.reserved.needs.items()}
        operands = Operands(self.reserved.slots(lanes), movement.lane, self.alignments)
        of = split_parts(operands, parts, sizes, ("sums", "codebook", *unsplit))
        return Parted(nest.parts(parts, fold), of, parts, movement)

    def _divides(self, setting: Setting) -> bool:
        """Check whether the folds of the array take whole accesses of DRAM, and parts of one group."""
        if setting.fold is None or self.tile[1] > self.filters:
            return False
        rows, columns = setting.fold
        widths = {"in0": (self.in0, rows), "in1": (self.in1, rows if self.d.in1_nk else columns),
                  "out": (self.out, columns)}  # fmt: skip
        return all(
            whole_accesses(*part, self.alignments.get(name, setting.bus.alignment)) for name, part in widths.items()
        )

    def product_plan(self, folds: Parted, in0: Tiles, setting: Setting) -> Plan:
        """Return the plan of a product with these tiles of in0."""
        d, (nest, of, parts, movement) = self.d, folds
        deep, wide = (nest.at, nest.depth), (nest.column, nest.columns)
        across = (*wide, *deep) if d.in1_nk else (*deep, *wide)
        source = _source(nest.reused, of.lane, parts) if parts.split else None
        plain = Moves(np.flatnonzero(~nest.reused), source)
        in1 = of.tiles("in1", self.in1, *across, movement.moves.get("in1", plain))
        last = nest.last & (not d.function & Gemm.HOLD)
        ends = np.flatnonzero(last)
        out = of.tiles("out", self.out, nest.row, nest.rows, *wide, ends)
        partial = of.slots.get("sums")
        weight_bits = BITS[expanded(self.in1.kind)]

        def step(shape: list[int], reads: tuple[Region, ...], writes: tuple[Region, ...]) -> Compute:
            rows, columns, depth, lane, reused, complete = shape
            if partial is not None and not complete:
                writes = (partial.region(lane, rows * columns * SUM_BYTES),)
            return Compute(
                Kind.TE, d.opcode | d.function << 8, rows, columns, depth, BITS[self.in0.kind], weight_bits, 0, reads,
                writes, bool(reused), max(1, columns // self.filters),
            )  # fmt: skip

        lane = np.zeros_like(of.lane) if partial is None else setting.bus.distinct(of.lane)
        flags = ((nest.reused & (not parts.split)).astype(np.int64), last.astype(np.int64))
        computed = work(setting, step, (nest.rows, nest.columns, nest.depth, lane, *flags), (in0, in1), ((out, last),))
        reads = (
            *self._codebook_stream(of), *in0.stream(Role.ACTIVATION, Opcode.LOAD),
            *in1.stream(Role.WEIGHT, Opcode.LOAD), *self._finish_streams(nest, of, ends),
        )  # fmt: skip
        writes = out.stream(Role.ACTIVATION, Opcode.STORE, write=True) if len(ends) else ()
        begins = ends if movement.open_sums else np.flatnonzero(nest.first)
        tile_of_part = parts.tile if parts.split else None
        steps = Nest(
            of.lane, reads, writes, computed, outputs=begins, tile_of_part=tile_of_part, parts=parts.max_across,
            phase=movement.phase,
        )  # fmt: skip
        return setting.sequence(steps, d)

    def _codebook_stream(self, of: Operands) -> tuple[Stream, ...]:
        """Return the move of the codebooks, before the weights."""
        if self.codebooks is None:
            return ()
        matrix, zero, once = self.codebooks.matrix, np.zeros_like(of.lane), np.zeros(1, np.int64)
        extent = (zero, zero + matrix.rows, zero, zero + matrix.columns)
        moved = of.tiles("codebook", matrix, *extent, once, shared=True)
        return moved.stream(Role.WEIGHT, Opcode.LOAD, table=True)

    def _finish_streams(self, nest: Product, of: Operands, ends: Column) -> tuple[Stream, ...]:
        """Return the moves of the epilogue's operands, at the tiles that end an output."""
        part = self.finish
        zero, single = np.zeros_like(nest.row), np.ones_like(nest.row)
        wide = (nest.column, nest.columns)
        named = (
            ("bias", part.bias, (zero, single, *wide), Role.WEIGHT),
            ("scale", part.scale, (zero, single, *(wide if part.channels > 1 else (zero, single))), Role.WEIGHT),
            ("residual", part.residual, (nest.row, nest.rows, *wide), Role.ACTIVATION),
        )
        streams: tuple[Stream, ...] = ()
        for name, matrix, extent, role in named:
            if matrix is not None:
                word = "in2" if name == "residual" else name
                streams += of.tiles(name, matrix, *extent, ends, word=word).stream(role, Opcode.LOAD, epilogue=True)
        return streams


def _source(reused: NDArray[np.bool_], lane: Column, parts: Grid) -> Column:
    """Return the row at which each part's weights moved: the same part of the last tile of its lane that moved some."""
    row = np.arange(len(reused))
    return latest(lane, np.where(reused, 0, parts.first)) + row - parts.first


def product_buffers(
    d: Descriptor, block: Extended, site: Site, operands: tuple[Matrix, Matrix, Matrix], part: Finish,
    tile: tuple[int, int, int], count: int, extent: tuple[int, int, int], in0_bytes: Callable[[int, int], int],
    codebooks: Codebooks | None, loops: Loops,
) -> Reserved:  # fmt: skip
    """Reserve buffers of in0, in1, out and the epilogue for `count` tiles over `extent` rows, columns and depth.

    `in0_bytes` of tile_m, tile_k: bytes of in0 that a tile reads. DescriptorError when they do not fit: the sum of one
    tile stays in the accumulator while its k tiles pass.
    """
    in0, in1, out = operands
    image = d.opcode == Opcode.CONV2D_T
    if site.fold is not None and not (tile[1] % site.fold[1] or tile[2] % site.fold[0]):
        count *= tile[1] // site.fold[1] * (tile[2] // site.fold[0])
    need = tile[0] * tile[1] * SUM_BYTES
    if need > site.acc_bytes:
        tensor, level = f"the sum of a tile of {tile[0]} x {tile[1]} of out", "accumulator (te.acc_bytes)"
        raise CapacityError(TicketError.ACC_OVERFLOW, tensor, level, need, site.acc_bytes)

    buffers, (tm, tn, tk) = Buffers(d, site, count), tile
    stay = {name: loops.tiles("m" if image and name == "in0" else AXES[name]) for name in loops.resident}
    buffers.read("in0", in0, in0_bytes(tm, tk), stay.get("in0", 1), loops.common == "in0")
    weights = tn * row_bytes(tk, in1.kind) if d.in1_nk else tk * row_bytes(tn, in1.kind)
    buffers.read("in1", in1, weights * expansion(in1.kind), stay.get("in1", 1), loops.common == "in1")
    buffers.add_private("codebook", 0 if codebooks is None else codebooks.size)
    buffers.write("out", None if d.function & Gemm.HOLD else out, tm * row_bytes(tn, out.kind))
    buffers.write("bias", part.bias, tn * SUM_BYTES)
    buffers.write("scale", part.scale, (tn if part.channels > 1 else 1) * SUM_BYTES)
    buffers.write("residual", part.residual, tm * row_bytes(tn, part.kind))
    counts = tuple(-(-length // size) for length, size in zip(extent, tile, strict=True))
    open_sums = loops.open_sums((counts[0], counts[1], counts[2])) * tm * tn * SUM_BYTES
    buffers.add_private("sums", 0 if open_sums <= site.acc_bytes else open_sums, bool(loops.common))
    return buffers.reserve(block)


def zero_points(block: Extended, in0: Matrix, in1: Matrix) -> tuple[int, int]:
    """Return the zero points of both operands."""
    return zero_point(block, 0, in0.kind), zero_point(block, 1, in1.kind)
