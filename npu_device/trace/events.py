"""The event stream: the source of counters, metrics and traces (docs/npu-timing.md, "Events").

| what | unit | ticket | bytes | aux |
|---|---|---|---|---|
| SUBMIT | front end | 0 | ring: new tail; ENQCMD_T: address of the descriptor | how many descriptors |
| FETCH | front end | 0 | address of the descriptor | ring index, or TIGHT |
| ACCEPT | front end | ticket | cycle at which its fetch began | ring index, or TIGHT |
| REJECT | front end | 0 | address, register offset or tail that was refused | `Refusal` |
| STALL | front end, bank, tensor engine, DMA channel | ticket | cycles waited, or that lengthen a step | `Cause` |
| READY | front end | ticket | 0 | stream |
| *_BEGIN | engine | ticket | payload bytes | opcode, function << 8; DMA: WRITES, ROLE * `Role`, VALUES, CACHED |
| *_END | engine | ticket | payload bytes | DMA: aligned bytes in DRAM, else 0 |
| BARRIER_OPEN, BARRIER_CLOSE | front end | of BARRIER, 0 for TBAR | 0 | scope, index of stream or cluster << 4 |
| BANK_BUSY | bank | of the command that completes | port cycles since the last such record | 0 |
| CHANNEL_BYTES | one of several DRAM channels | of the command that completes | aligned bytes since then | 0 |
| ROWS | channel of a timed DRAM | of the command that completes | rows opened since the last such record | bursts |
| L2_HIT | L2 | of the transfer that began last | bytes of its lines that are there | lines |
| L2_MISS | L2 | the same | bytes that are fetched from DRAM for lines that are not | lines that are not |
| L2_WRITE_BACK | L2 | of the transfer that makes them leave, 0: a flush | bytes that go to DRAM | lines |
| STALE | L2 | of the transfer that reads them | address of the first line that the core has changed since | lines |
| STALE | core | 0 | address of a load that DRAM answers with old bytes | its size |
| DONE | engine, or front end if it had none | ticket | 0 | 0 |
| ERROR | the same | ticket | 0 | `TicketError` |
| IRQ | front end | 0 | 0 | the causes that are set and not masked |
| NOTIFY | front end | ticket, 0 for all | register offset, 0 for TWAIT | the value that was shown |
| REQUEST | DMA channel | of the transfer that begins | cycles since its request was issued | 0 |
| QUANTIZE, DEQUANTIZE | KV engine of a channel | of the transfer that ends | busy cycles | since its begin, < 2^32 |
| PAGES | MMU | of the command that starts; tile: pages given back | pages in use then | pages taken |
| CORE | core | of a CORE command; tile: `Kernel` | cycles that the core has worked | cycles since it began |
| FAULT | front end | of the command that it hit, or 0 | 0 | which of the injected faults acted, from 0 |

A barrier is open from its stamp until everything before it has completed.
"""

import struct
from enum import IntEnum
from typing import Any

from npu_device.config import NpuConfig

TIGHT = 0xFFFF_FFFF
"""`aux` of FETCH and ACCEPT for a descriptor that did not come through the ring."""

WRITES = 1 << 16
"""In `aux` of DMA_BEGIN: to DRAM."""
ROLE = 1 << 17
"""In `aux` of DMA_BEGIN: times `Role`."""


class Role(IntEnum):
    """Roles of the data of a transfer."""

    ACTIVATION = 0
    WEIGHT = 1
    KV = 2


VALUES = 1 << 19
"""In `aux` of DMA_BEGIN: of the values of a command that moves keys and values."""
CACHED = 1 << 20
"""In `aux` of DMA_BEGIN: through the L2."""


class What(IntEnum):
    SUBMIT = 1
    FETCH = 2
    ACCEPT = 3
    REJECT = 4
    READY = 5
    DMA_BEGIN = 6
    DMA_END = 7
    TE_BEGIN = 8
    TE_END = 9
    VE_BEGIN = 10
    VE_END = 11
    STALL = 12
    BARRIER_OPEN = 13
    BARRIER_CLOSE = 14
    DONE = 15
    ERROR = 16
    IRQ = 17
    NOTIFY = 18
    STALE = 19
    BANK_BUSY = 20
    CHANNEL_BYTES = 21
    L2_HIT = 22
    L2_MISS = 23
    L2_WRITE_BACK = 24
    FAULT = 25
    QUANTIZE = 26
    DEQUANTIZE = 27
    PAGES = 28
    CORE = 29
    REQUEST = 30
    ROWS = 31


class Kind(IntEnum):
    """Type of a unit: bits 11:8 of its code."""

    FRONTEND = 0
    TE = 1
    VE = 2
    DMA = 3
    BANK = 4
    CORE = 5
    DRAM = 6
    L2 = 7
    KV_ENGINE = 8
    """Encodes and decodes what a DMA channel moves; it has the channel's index."""
    KV_MMU = 9
    """The only unit of its kind."""


FRONTEND, CORE = Kind.FRONTEND << 8, Kind.CORE << 8
"""Codes of the only units of their kinds."""


def unit_code(kind: Kind, index: int) -> int:
    """Return the code of unit `index` (0..4095, counted through all clusters) of a kind, in a record: bits 7:0 and
    15:12 are those of the index, 11:8 the kind."""
    return kind << 8 | index & 0xFF | index >> 8 << 12


def unit_kind(unit: Any) -> Any:
    """Return the kind of a unit, or of each of an array of units."""
    return unit >> 8 & 0xF


def unit_index(unit: Any) -> Any:
    """Return the index of a unit among those of its kind, or of each of an array of units."""
    return unit & 0xFF | unit >> 12 << 8


def unit_counts(config: NpuConfig) -> dict[Kind, int]:
    """Return the units of each kind in one cluster."""
    return {Kind.TE: config.te.count, Kind.VE: config.ve.count, Kind.DMA: config.dma.channels}


class Refusal(IntEnum):
    """`aux` of REJECT: submissions that were turned away up to OPERAND, then register accesses. The first four are the
    values of `FullPolicy`."""

    RETRY = 0
    STALL = 1
    TRAP = 2
    DROP = 3
    DISABLED = 4
    OPERAND = 5
    RING_OVERFLOW = 6
    ACCESS = 7
    IGNORED_WRITE = 8


class Cause(IntEnum):
    """`aux` of STALL. The first two: what an accepted command waited for; while both hold it back, the hazard counts.
    The next two: by what accesses to a bank of the scratchpad lengthened a step, with others or alone. The next: cycles
    of a step that a chain of vector engines spent on something else than unmasked pairs (docs/chained-ve.md). The last
    two: by what encoding or decoding keys and values lengthened a transfer that ends now (docs/oaken.md, "Engines")."""

    HAZARD = 0
    BARRIER = 1
    BANK_CONFLICT = 2
    PORT_BOUND = 3
    QUERY_LOAD = 4
    KEY_WAIT = 5
    CHAIN_FILL = 6
    TILE_RESTART = 7
    QUANTIZE = 8
    DEQUANTIZE = 9


BEGINS = frozenset((What.DMA_BEGIN, What.TE_BEGIN, What.VE_BEGIN))
"""Of the steps of engines."""
ENDS = frozenset((What.DMA_END, What.TE_END, What.VE_END))

PACKED = struct.Struct("<QHHIIQI")
"""One event: cycle, unit, what, ticket, tile, bytes, aux; 32 bytes, little endian, no padding."""
EVENT_WORDS = PACKED.size // 8
BATCH = 4096
"""Events that a stream hands over at once."""
Record = tuple[int, ...]
"""The fields of an event."""
Running = dict[int, tuple[int, Record]]
"""Unit -> number and record of the begin of the step that it works on."""
