"""Events of a device, from which counters, metrics and traces derive (docs/npu-timing.md, "Events").

| what | unit | ticket | bytes | aux |
|---|---|---|---|---|
| SUBMIT | front end | 0 | ring: new tail; ENQCMD_T: address of the descriptor | number of descriptors |
| FETCH | front end | 0 | address of the descriptor | ring index, or TIGHT |
| ACCEPT | front end | ticket | cycle in which its fetch began | ring index, or TIGHT |
| REJECT | front end | 0 | rejected address, register offset or tail | `Refusal` |
| STALL | front end, bank, tensor engine, DMA channel | ticket | cycles waited, or that lengthen a step | `Cause` |
| READY | front end | ticket | 0 | stream |
| *_BEGIN | engine | ticket | payload bytes | opcode, function << 8; DMA: WRITES, ROLE * `Role`, VALUES, CACHED |
| *_END | engine | ticket | payload bytes | DMA: aligned bytes in DRAM, else 0 |
| BARRIER_OPEN, BARRIER_CLOSE | front end | of BARRIER, 0 for TBAR | 0 | scope, index of stream or cluster << 4 |
| BANK_BUSY | bank | of the command that completes | port cycles since the last such event | 0 |
| CHANNEL_BYTES | one of several DRAM channels | of the command that completes | aligned bytes since then | 0 |
| ROWS | channel of a timed DRAM | of the command that completes | rows opened since the last such event | bursts |
| L2_HIT | L2 | of the transfer that began last | bytes of its lines that hit | lines |
| L2_MISS | L2 | the same | bytes fetched from DRAM for lines that miss | lines that miss |
| L2_WRITE_BACK | L2 | of the transfer that evicts them, 0 for a flush | bytes written to DRAM | lines |
| STALE | L2 | of the transfer that reads them | address of the first line that the core has since changed | lines |
| STALE | core | 0 | address of a load that returns old bytes from DRAM | its size |
| DONE | engine, or front end if it had none | ticket | 0 | 0 |
| ERROR | the same | ticket | 0 | `TicketError` |
| IRQ | front end | 0 | 0 | the causes that are set and enabled |
| NOTIFY | front end | ticket, 0 for all | register offset, 0 for TWAIT | the value that was read |
| REQUEST | DMA channel | of the transfer that begins | cycles since its request was issued | 0 |
| QUANTIZE, DEQUANTIZE | KV engine of a channel | of the transfer that ends | busy cycles | since its begin, < 2^32 |
| PAGES | MMU | of the command that starts; tile: released pages | pages in use then | allocated pages |
| CORE | core | of a CORE command; tile: `Kernel` | cycles of the core's work | cycles since its begin |
| FAULT | front end | of the affected command, or 0 | 0 | index of the injected fault, from 0 |

A barrier is open from its stamp until everything before it has completed.
"""

import struct
from enum import IntEnum
from typing import Any

from npu_device.config import NpuConfig

TIGHT = 0xFFFF_FFFF
"""`aux` of FETCH and ACCEPT for a descriptor of ENQCMD_T."""

WRITES = 1 << 16
"""Flag in `aux` of DMA_BEGIN: the transfer writes DRAM."""
ROLE = 1 << 17
"""Factor of `Role` in `aux` of DMA_BEGIN."""


class Role(IntEnum):
    """Roles of the data of a transfer."""

    ACTIVATION = 0
    WEIGHT = 1
    KV = 2


VALUES = 1 << 19
"""Flag in `aux` of DMA_BEGIN: the transfer moves the values of a command for keys and values."""
CACHED = 1 << 20
"""Flag in `aux` of DMA_BEGIN: the transfer uses the L2."""


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
    """Encoder and decoder of a DMA channel, with the channel's index."""
    KV_MMU = 9
    """MMU of encoded keys and values, the only unit of its kind."""


FRONTEND, CORE = Kind.FRONTEND << 8, Kind.CORE << 8
"""Codes of the units whose kinds have a single unit."""


def unit_code(kind: Kind, index: int) -> int:
    """Return the code of unit `index` (0..4095, over all clusters) of a kind: bits 7:0 and 15:12 are those of the
    index, 11:8 the kind."""
    return kind << 8 | index & 0xFF | index >> 8 << 12


def unit_kind(unit: Any) -> Any:
    """Return the kind of a unit, or of each unit of an array."""
    return unit >> 8 & 0xF


def unit_index(unit: Any) -> Any:
    """Return the index of a unit in its kind, or of each unit of an array."""
    return unit & 0xFF | unit >> 12 << 8


def unit_counts(config: NpuConfig) -> dict[Kind, int]:
    """Return the number of units of each kind in a cluster."""
    return {Kind.TE: config.te.count, Kind.VE: config.ve.count, Kind.DMA: config.dma.channels}


class Refusal(IntEnum):
    """Reason in `aux` of REJECT: for submissions up to OPERAND, then for register accesses. The first four are the
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
    """Cause in `aux` of STALL. HAZARD, BARRIER: an accepted command waits; a hazard counts while both block it.
    BANK_CONFLICT, PORT_BOUND: bank accesses lengthen a step, by contention or alone. QUERY_LOAD to TILE_RESTART: cycles
    of a step that a chain of vector engines does not spend on unmasked pairs (docs/chained-ve.md). QUANTIZE,
    DEQUANTIZE: the KV engine lengthened a transfer that ends now (docs/oaken.md, "Engines")."""

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
"""Begin events of the steps of engines."""
ENDS = frozenset((What.DMA_END, What.TE_END, What.VE_END))

PACKED = struct.Struct("<QHHIIQI")
"""Format of an event: cycle, unit, what, ticket, tile, bytes, aux; 32 bytes, little endian, no padding."""
EVENT_WORDS = PACKED.size // 8
BATCH = 4096
"""Maximum number of events in a batch of a stream."""
Record = tuple[int, ...]
"""Fields of an event."""
Running = dict[int, tuple[int, Record]]
"""Unit -> number and record of the begin event of its step in progress."""
