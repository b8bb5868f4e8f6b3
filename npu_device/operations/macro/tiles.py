"""The tiles of a loop nest: their operands, and nests over the blocks of a matrix.

A tile sees an operand as a move into a buffer, or in place. Vector engines take blocks in any order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from npu_device.abi.opcodes import BITS, DataType, Opcode
from npu_device.cost.plan import NONE, Column, Compute, Plan
from npu_device.cost.sequencer import Nest, Slots, Stream, Work, classes, latest
from npu_device.memory.bitwidth import bytes_of_columns, expanded
from npu_device.memory.operands import Matrix
from npu_device.memory.region import Region, make_region
from npu_device.operations.loops import Moves
from npu_device.operations.macro.base import Macro, Setting
from npu_device.trace.events import Kind, Role

NOWHERE = -1


@dataclass(frozen=True, eq=False)
class Tiles:
    """Part of a matrix that each tile of a nest uses. Columns have one row per tile."""

    matrix: Matrix
    slots: Slots | None
    """None: the matrix is in the scratchpad, and tiles use it there."""
    row: Column
    rows: Column
    column: Column
    columns: Column
    moves: Column
    """Tiles at which it moves; tiles of a lane between use what moved last (reads) or write nothing (writes)."""
    lane: Column
    shared: bool = False
    """It moves once and all lanes use it."""
    source: Column | None = None
    """Index of the tile whose load filled the buffer that each tile reads; None: the latest of its lane."""
    alignment: int = 0
    """Of its accesses of DRAM, bytes; 0: that of the device."""
    last_uses: Column | None = None
    """Tiles after whose computation the buffer of each move is free, one column each."""
    common: bool = False
    """Whether it moves for all lanes, into the buffers of none."""
    step: int = 1
    """Rows of the matrix from one row of the part to the next."""
    read_extent: tuple[Column, Column] | None = None
    """Maximum number of rows and columns of the buffer that each tile reads; None: all."""

    @property
    def _owner(self) -> Column:
        """Lane whose buffers each move fills."""
        return np.zeros_like(self.moves) if self.common else self.lane[self.moves]

    @property
    def _pitch(self) -> int:
        """Bytes from row to row of the matrix."""
        region = self.matrix.region
        return region.row_bytes // self.matrix.rows if region.rows == 1 else region.stride

    @property
    def _stride(self) -> int:
        """Bytes from row to row of the part."""
        return self._pitch * self.step

    @property
    def _expansion(self) -> int:
        """Bytes in the scratchpad of a byte in DRAM."""
        return BITS[expanded(self.matrix.kind)] // self.matrix.bits

    def _address(self) -> Column:
        return self.matrix.region.address + self.row * self._pitch + self.column * self.matrix.bits // 8

    def _row_bytes(self) -> Column:
        return bytes_of_columns(self.columns, self.matrix.bits)

    def _extent(self, move: Column) -> tuple[Column, Column]:
        """Return the rows, and the bytes of a row, that each tile uses of what moved at tile `move`."""
        rows, columns = self.rows[move], self.columns[move]
        if self.read_extent is not None:
            rows, columns = np.minimum(rows, self.read_extent[0]), np.minimum(columns, self.read_extent[1])
        return rows, bytes_of_columns(columns, self.matrix.bits)

    def stream(
        self, role: Role, aux: int, write: bool = False, epilogue: bool = False, table: bool = False,
        early: bool = False, passes: int = 2, max_bytes: int = 0,
    ) -> tuple[Stream, ...]:  # fmt: skip
        """Return the moves; none for a matrix in the scratchpad, or that no tile uses. `aux`: opcode, for events."""
        if self.slots is None or not len(self.moves):
            return ()
        at = self.moves
        return (
            Stream(
                role, int(aux), self.slots, at, self._address()[at], self.rows[at], self._row_bytes()[at],
                self._stride, self.slots.rotate(self._owner), write, epilogue, self.shared, self._expansion,
                table, self.alignment, early, passes, max_bytes, self.last_uses, self.source if self.common else None,
            ),
        )  # fmt: skip

    def _move(self) -> Column:
        """Return the index of the move that brought what each tile reads."""
        moved = np.zeros(len(self.row), np.int64)
        moved[self.moves] = np.arange(len(self.moves))
        if self.source is not None:
            return moved[self.source]
        if self.shared:
            return moved[self.moves[0]] + np.zeros_like(moved)
        return latest(self.lane, moved)

    def regions(self, only: NDArray[np.bool_] | None = None) -> tuple[Column, Column, Column]:
        """Return (address, rows, bytes of a row) in the scratchpad at each tile; NOWHERE where `only` is False."""
        tile = np.arange(len(self.row))
        if self.slots is None:
            location = (self._address(), *self._extent(tile))
        elif not len(self.moves):
            location = (np.full_like(self.row, self.slots.addresses[0]), *self._extent(tile))
        else:
            move = self._move() if only is None else np.searchsorted(self.moves, tile)
            move = np.minimum(move, len(self.moves) - 1)
            latest = self.moves[move]
            address = self.slots.at(self.slots.rotate(self._owner))[move]
            size = np.multiply(*self._extent(latest)) * self._expansion
            location = (address, np.ones_like(size), size)
        if only is None:
            return location
        address, rows, size = (np.where(only, column, NOWHERE) for column in location)
        return address, rows, size

    def region(self, address: int, rows: int, row_bytes: int) -> tuple[Region, ...]:
        """Return the region of one class."""
        if address == NOWHERE:
            return ()
        return (make_region(address, rows, row_bytes, 0 if self.slots else self._stride),)


def in_place(matrix: Matrix) -> Slots:
    """Return a matrix in the scratchpad as the single buffer of its moves."""
    return Slots((matrix.region.address,))


class Operands:
    """Operands of a nest: those for which the workspace has buffers move, the others are used in place."""

    def __init__(self, slots: dict[str, Slots], lane: Column, alignments: Mapping[str, int]) -> None:
        self.slots = slots
        self.lane = lane
        """Of each tile."""
        self.alignments = alignments
        """Alignments of operands that deviate from the device's (`Extended.aligned`)."""
        self.all_tiles = np.arange(len(lane))

    def tiles(
        self, name: str, matrix: Matrix, row: Column, rows: Column, column: Column, columns: Column,
        moves: Moves | Column | None = None, shared: bool = False, word: str = "", step: int = 1,
        slots: Slots | None = None,
    ) -> Tiles:  # fmt: skip
        """Return an operand; by default it moves at every tile, into the buffers `name`. `word`: its word in the
        extended block, if it differs from `name`. `slots`: buffers of another operand."""
        if not isinstance(moves, Moves):
            moves = Moves(self.all_tiles if moves is None else moves)
        return Tiles(
            matrix, slots or self.slots.get(name), row, rows, column, columns, moves.rows, self.lane, shared,
            moves.source, self.alignments.get(word or name, 0), moves.last_uses, moves.common, step,
        )  # fmt: skip


def work(
    setting: Setting,
    make: Callable[[list[int], tuple[Region, ...], tuple[Region, ...]], Compute],
    shape: Sequence[Column],
    reads: Sequence[Tiles],
    writes: Sequence[tuple[Tiles, NDArray[np.bool_]]] = (),
    only: NDArray[np.bool_] | None = None,
) -> Work:
    """Return the computations of a nest: `make(shape, reads, writes)` for each distinct combination.

    `only`: tiles that compute; None: all. A result appears where the second of a pair in `writes` is True.
    """
    located = [tiles.regions() for tiles in reads] + [tiles.regions(mask) for tiles, mask in writes]
    if not setting.bus.port_limited:
        located = [(np.minimum(address, 0), rows, row_bytes) for address, rows, row_bytes in located]
    operands = [*reads, *(tiles for tiles, _ in writes)]
    distinct, index = classes(*shape, *(column for columns in located for column in columns))
    pieces = []
    for row in distinct.tolist():
        at = len(shape)
        regions = [tiles.region(*row[at + 3 * i : at + 3 * i + 3]) for i, tiles in enumerate(operands)]
        inputs = tuple(region for group in regions[: len(reads)] for region in group)
        results = tuple(region for group in regions[len(reads) :] for region in group)
        pieces.append(make(row[:at], inputs, results))
    return Work(pieces, index if only is None else np.where(only, index, NONE))


class Blocks(NamedTuple):
    """Positions and sizes of blocks, row by row."""

    row: Column
    rows: Column
    column: Column
    columns: Column

    @classmethod
    def of(cls, rows: int, columns: int, tile: tuple[int, int]) -> Self:
        """Return the blocks of `rows` x `columns`."""
        m, n = tile
        grid = np.indices((-(-rows // m), -(-columns // n))).reshape(2, -1).astype(np.int64)
        row, column = grid[0] * m, grid[1] * n
        return cls(row, np.minimum(m, rows - row), column, np.minimum(n, columns - column))

    def operands(self, macro: Macro, lanes: int) -> Operands:
        """Return the operands of a nest over the blocks: engines take them in turn."""
        return Operands(macro.reserved.slots(lanes), np.arange(len(self.row)) % lanes, macro.alignments)


@dataclass(frozen=True, eq=False)
class BlockMacro(Macro):
    """Macro form whose tiles are blocks of its result."""

    out: Matrix
    tile: tuple[int, int]
    """Rows and columns of a block."""

    @property
    def blocks(self) -> Blocks:
        return Blocks.of(self.out.rows, self.out.columns, self.tile)

    @property
    def parallelism(self) -> int:
        return len(self.blocks.row)


def vector_plan(
    macro: Macro, setting: Setting, blocks: Blocks, reads: Sequence[Tiles], out: Tiles, kind: DataType,
    per_element: int, weights: Sequence[Tiles] = (),
) -> Plan:  # fmt: skip
    """Plan blocks that are read, computed on a vector engine with `per_element` operations on elements of `kind`, and
    written.

    `weights` are read too; they belong to the model.
    """
    aux = macro.d.opcode | macro.d.function << 8

    def step(shape: list[int], inputs: tuple[Region, ...], results: tuple[Region, ...]) -> Compute:
        operations = shape[0] * shape[1] * per_element
        return Compute(Kind.VE, aux, 0, 0, 0, BITS[kind], 0, operations, inputs, results)

    all_blocks = np.ones(len(blocks.row), bool)
    nest = Nest(
        out.lane,
        (
            *(stream for part in reads for stream in part.stream(Role.ACTIVATION, Opcode.LOAD)),
            *(stream for part in weights for stream in part.stream(Role.WEIGHT, Opcode.LOAD)),
        ),
        out.stream(Role.ACTIVATION, Opcode.STORE, write=True),
        work(setting, step, (blocks.rows, blocks.columns), (*reads, *weights), ((out, all_blocks),)),
    )
    return setting.sequence(nest, macro.d)
