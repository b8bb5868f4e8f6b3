"""Plans: the steps of a command, which a timing model schedules (docs/npu-timing.md, "Levels").

A tile command is a plan of one step. A macro command is a loop nest: its sequencer generates thousands of steps over a
few *pieces*, where a piece has the properties shared by equal steps. Steps are stored in columns, which NumPy fills and
compiled code executes.

Steps of one class (reads, writes, tensor, vector) start in the order of the plan. A step starts once the steps in its
row of `after` have completed. A read that waits for a computation needs only its operand buffers: it starts when the
engine has consumed the operands. All other steps wait for the result.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.memory.region import Region
from npu_device.trace.events import Kind, Role

MAX_AFTER = 8
"""Maximum number of steps for which a step waits."""
NONE = -1
"""Value in `after` for an unused element."""


class Transfer(NamedTuple):
    """Transfer between DRAM and the scratchpad of the command's cluster."""

    write: bool
    """Whether it moves from scratchpad to DRAM."""
    role: Role
    payload: int
    """Bytes of data."""
    aligned: int
    """Bytes that cross NoC and DRAM pins (docs/bit-widths.md, R5; `durations.transfer_size`)."""
    bursts: int
    spm: Region
    dram: Region
    """Region in DRAM. Its address is modulo the alignment of accesses; `Plan.dram` has the full address."""
    aux: int = 0
    """Opcode | function << 8, for events: LOAD, STORE, KV_READ, ..."""
    elements: int = 0
    """Number of elements that the DMA expands; 0 for a plain copy of bytes."""
    alignment: int = 0
    """Alignment in bytes to which its accesses are widened; 0 for `dma.alignment`."""
    passes: int = 2
    """Number of passes of the engine that encodes elements."""
    parts: tuple[tuple[int, int], ...] = ()
    """(address, bytes) of each part if it is not contiguous in DRAM, addresses modulo the period of channels."""


class Sight(NamedTuple):
    """Visibility of `keys` consecutive keys to the rows of an ATTN_T tile. A row is a head of a group at one query."""

    scores: bool
    """Whether the product computes scores from queries and keys, else outputs from weights and values."""
    keys: int
    width: int
    """Number of elements of a key."""
    ahead: int
    """Position of the first row's query minus that of the first key."""
    phase: int
    """Index in the group of the first row's head."""
    group: int
    causal: bool
    window: int
    """Number of latest keys up to its own that a query sees; 0 for all."""


class Compute(NamedTuple):
    """Work of one engine on operands in the scratchpad."""

    kind: Kind
    """TE or VE."""
    aux: int
    """Opcode | function << 8, for events."""
    m: int
    """TE: dimensions of M x K by K x N."""
    n: int
    k: int
    bits_a: int
    """Bits of an element of in0 (activations)."""
    bits_w: int
    """TE: bits of an element of in1 (weights)."""
    operations: int
    """VE: elements x operations per element."""
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    """Written regions; empty while a sum remains in the accumulator."""
    weights_kept: bool = False
    """TE: whether the weights are those of the previous step (weight stationary order)."""
    groups: int = 1
    """TE: number of independent products, each of n / groups columns and depth k."""
    sight: Sight | None = None
    """TE: mask of an ATTN_T tile, for an engine that skips masked pairs."""


Piece = Transfer | Compute
Column = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Plan:
    """Plan with steps in the order of the loop nest. All columns have one row per step."""

    pieces: tuple[Piece, ...]
    piece: Column
    """Index into `pieces`."""
    tile: Column
    """Index of the hardware tile, for events."""
    dram: Column
    """First DRAM address of a transfer; 0 for a computation."""
    after: Column
    """Shape (steps, MAX_AFTER): indices of earlier steps, or NONE."""
    lane: Column
    """Index of the command's engine for a computation; all of one sum have the same. 0 for a transfer."""

    def __len__(self) -> int:
        return len(self.piece)


class Buffers(NamedTuple):
    """Prefetch depth of a loop nest on an engine, from which the sequencer derives dependencies.

    The reads of tile i wait for the computation of tile i - inputs (if it exists), the first computation of output o
    for the write of output o - outputs. `serial`: reads wait for the write of the previous tile, without overlap.
    """

    inputs: int
    outputs: int
    serial: bool = False


def buffers(buffering: str, prefetch_dist: int) -> Buffers:
    """Return the buffers of `dma.buffering` for a prefetch distance (docs/npu-timing.md, "Tiles")."""
    if buffering == "none" or not prefetch_dist:
        return Buffers(1, 1, serial=True)
    if buffering == "out":
        return Buffers(1, 2)
    return Buffers(prefetch_dist + 1, 2)


def single(piece: Piece, dram: int = 0) -> Plan:
    """Return the plan of a tile command."""
    zero = np.zeros(1, np.int64)
    return Plan((piece,), zero, zero, np.array([dram], np.int64), np.full((1, MAX_AFTER), NONE, np.int64), zero)


def columns(steps: "list[tuple[int, int, int, tuple[int, ...]]]", pieces: tuple[Piece, ...]) -> Plan:
    """Return a plan from rows (piece, tile, dram, after). For short plans; long ones fill the columns with NumPy."""
    after = np.full((len(steps), MAX_AFTER), NONE, np.int64)
    for index, (_, _, _, earlier) in enumerate(steps):
        after[index, : len(earlier)] = earlier
    table: NDArray[Any] = np.array([step[:3] for step in steps], np.int64).reshape(-1, 3)
    zeros = np.zeros(len(steps), np.int64)
    return Plan(pieces, table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy(), after, zeros)
