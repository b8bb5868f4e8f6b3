"""A plan: what a command does, as steps that a model of time can lay out (docs/npu-timing.md, "Levels").

A tile command is a plan of one step. A macro command is a loop nest: its sequencer gives thousands of steps over a few
*pieces*, where a piece holds all that equal steps share. Steps stand in columns, so that plans are made with numpy and
run by compiled code.

Steps of one class (reads, writes, tensor, vector) start in the order of the plan; a step starts once the steps named
in its row of `after` are over. A read that waits for a computation needs its operand buffers only: it starts when the
engine has taken the operands in. All others wait for the result.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.memory.region import Region
from npu_device.trace.events import Kind, Role

MAX_AFTER = 8
"""Steps that one step may wait for."""
NONE = -1
"""In `after`: nothing."""


class Transfer(NamedTuple):
    """Move between DRAM and the scratchpad of the command's cluster."""

    write: bool
    """False: DRAM to scratchpad."""
    role: Role
    payload: int
    """Bytes of data."""
    aligned: int
    """Bytes that cross NoC and DRAM pins (docs/bit-widths.md, R5; `durations.transfer_size`)."""
    bursts: int
    spm: Region
    dram: Region
    """Its address counts modulo what accesses are aligned to; `Plan.dram` has the address itself."""
    aux: int = 0
    """Opcode | function << 8, for events: LOAD, STORE, KV_READ, ..."""
    elements: int = 0
    """That the DMA expands on their way; 0: bytes are moved as they are."""
    alignment: int = 0
    """Bytes that its accesses are widened to; 0: `dma.alignment`."""
    passes: int = 2
    """Passes of the engine that encodes elements."""
    parts: tuple[tuple[int, int], ...] = ()
    """(address, bytes) of what does not lie one behind the other in DRAM, addresses modulo its channels."""


class Sight(NamedTuple):
    """ATTN_T: which of `keys` consecutive keys the rows of a tile see. A row is a head of a group at one query."""

    scores: bool
    """Whether the product makes scores, of queries and keys; else it takes their weights to the values."""
    keys: int
    width: int
    """Elements of a key."""
    ahead: int
    """Position of the first row's query less that of the first key."""
    phase: int
    """Which head of the group the first row is."""
    group: int
    causal: bool
    window: int
    """The latest so many keys up to a query's own; 0: all."""


class Compute(NamedTuple):
    """Work of one engine on operands in the scratchpad."""

    kind: Kind
    """TE or VE."""
    aux: int
    """Opcode | function << 8, for events."""
    m: int
    """TE: M x K times K x N."""
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
    """Empty while a sum stays in the accumulator."""
    weights_kept: bool = False
    """TE: the same weights as the step before (weight stationary order)."""
    groups: int = 1
    """TE: products side by side, each of n / groups columns; all are k deep."""
    sight: Sight | None = None
    """TE: what an engine that sees masks knows of a tile of ATTN_T."""


Piece = Transfer | Compute
Column = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Plan:
    """Steps in the order of the loop nest. All columns have one row per step."""

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
    """On which of its command's engines a computation runs, from 0: those of one sum on the same. 0 for a transfer."""

    def __len__(self) -> int:
        return len(self.piece)


class Buffers(NamedTuple):
    """Prefetch depth of a loop nest on an engine: the dependencies that the sequencer writes into `after`.

    The reads of tile i wait for the computation of tile i - inputs (when it is there), the first computation of output
    o for the write of output o - outputs. `serial`: reads wait for the write of the tile before, nothing overlaps.
    """

    inputs: int
    outputs: int
    serial: bool = False


def buffers(buffering: str, prefetch_dist: int) -> Buffers:
    """Buffers of `dma.buffering` for a prefetch distance (docs/npu-timing.md, "Tiles")."""
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
    """Return a plan from rows (piece, tile, dram, after): for short plans, long ones fill the columns with numpy."""
    after = np.full((len(steps), MAX_AFTER), NONE, np.int64)
    for index, (_, _, _, earlier) in enumerate(steps):
        after[index, : len(earlier)] = earlier
    table: NDArray[Any] = np.array([step[:3] for step in steps], np.int64).reshape(-1, 3)
    zeros = np.zeros(len(steps), np.int64)
    return Plan(pieces, table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy(), after, zeros)
