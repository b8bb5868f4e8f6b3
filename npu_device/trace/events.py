"""The event stream: the only source of counters, metrics and traces (docs/npu-timing.md, "Events").

| what | unit | ticket | bytes | aux |
|---|---|---|---|---|
| SUBMIT | front end | 0 | ring: new tail; ENQCMD_T: address of the descriptor | how many descriptors |
| FETCH | front end | 0 | address of the descriptor | ring index, or TIGHT |
| ACCEPT | front end | ticket | cycle at which its fetch began | ring index, or TIGHT |
| REJECT | front end | 0 | address, register offset or tail that was refused | `Refusal` |
| STALL | front end, bank, tensor engine, DMA channel | ticket | cycles waited, or that lengthen a step | `Cause` |
| READY | front end | ticket | 0 | stream |
| *_BEGIN | engine | ticket | payload bytes | opcode, function << 8; DMA: WRITES, ROLE * `plan.Role` |
| *_END | engine | ticket | payload bytes | DMA: aligned bytes in DRAM, else 0 |
| BARRIER_OPEN, BARRIER_CLOSE | front end | of BARRIER, 0 for TBAR | 0 | scope, index of stream or cluster << 4 |
| BANK_BUSY | bank | of the command that completes | port cycles since the last such record | 0 |
| CHANNEL_BYTES | one of several DRAM channels | of the command that completes | aligned bytes since then | 0 |
| L2_HIT | L2 | of the transfer that began last | bytes of its lines that are there | lines |
| L2_MISS | L2 | the same | bytes that are fetched from DRAM for lines that are not | lines that are not |
| L2_WRITE_BACK | L2 | of the transfer that makes them leave, 0: a flush | bytes that go to DRAM | lines |
| STALE | L2 | of the transfer that reads them | address of the first line that the core has changed since | lines |
| STALE | core | 0 | address of a load that DRAM answers with old bytes | its size |
| DONE | engine, or front end if it had none | ticket | 0 | 0 |
| ERROR | the same | ticket | 0 | `TicketError` |
| IRQ | front end | 0 | 0 | the causes that are set and not masked |
| NOTIFY | front end | ticket, 0 for all | register offset, 0 for TWAIT | the value that was shown |
| QUANTIZE, DEQUANTIZE | KV engine of a channel | of the transfer that ends | busy cycles | cycles since its begin |
| PAGES | MMU | of the command that starts; tile: pages given back | pages in use then | pages taken |
| FAULT | front end | of the command that it hit, or 0 | 0 | which of the injected faults acted, from 0 |

A barrier is open from its stamp until everything before it has completed.
"""

import hashlib
import struct
import zlib
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.abi.errors import NpuDeviceError
from npu_device.config import NpuConfig
from pyv_state import LATEST, StateError

TIGHT = 0xFFFF_FFFF
"""`aux` of FETCH and ACCEPT for a descriptor that did not come through the ring."""

WRITES = 1 << 16
"""In `aux` of DMA_BEGIN: to DRAM."""
ROLE = 1 << 17
"""In `aux` of DMA_BEGIN: times `plan.Role`."""
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


class Kind(IntEnum):
    """What a unit is: the high byte of its code."""

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
    """The one unit of its kind."""


FRONTEND = Kind.FRONTEND << 8
"""The one unit of its kind."""


def unit_code(kind: Kind, index: int) -> int:
    """Unit `index` (0..255, counted through all clusters) of a kind, as in a record."""
    return kind << 8 | index


def unit_counts(config: NpuConfig) -> dict[Kind, int]:
    """Units of each kind in one cluster."""
    return {Kind.TE: config.te.count, Kind.VE: config.ve.count, Kind.DMA: config.dma.channels}


class Refusal(IntEnum):
    """`aux` of REJECT. The first four are the values of `FullPolicy`."""

    RETRY = 0
    STALL = 1
    TRAP = 2
    DROP = 3
    DISABLED = 4
    OPERAND = 5
    RING_OVERFLOW = 6
    ACCESS = 7
    IGNORED_WRITE = 8


SUBMISSION_REFUSALS = frozenset(
    (Refusal.RETRY, Refusal.STALL, Refusal.TRAP, Refusal.DROP, Refusal.DISABLED, Refusal.OPERAND)
)
"""Those that turned a submission away; the others are about register accesses."""


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


RECORD = np.dtype(
    [
        ("cycle", "<u8"),
        ("unit", "<u2"),
        ("what", "<u2"),
        ("ticket", "<u4"),
        ("tile", "<u4"),
        ("bytes", "<u8"),
        ("aux", "<u4"),
    ]
)
"""One event: 32 bytes, little endian, no padding."""

Batch = np.ndarray[Any, np.dtype[np.void]]
Subscriber = Callable[[Batch], None]

PACKED = struct.Struct("<QHHIIQI")
"""A RECORD."""
_BATCH = 4096
_RECORD = RECORD.itemsize
_BUFFER = _BATCH * _RECORD


class EventMark(NamedTuple):
    """A place in an event stream, to which it can be set back."""

    flushed: int
    pending: bytes
    """Records that were not handed over yet."""
    hash: "hashlib._Hash"
    """Over the records before these."""
    log: tuple[bytes, ...] | None
    """The same records, each batch as `pack` gives it; None when they were not kept."""


class EventStream:
    """Records in order, hashed; memory does not grow with their number unless they are kept.

    With `keep` the stream holds all its records, packed to some two bytes each: what a snapshot needs to go on with
    in another process, where the state of a hash cannot be taken to.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self._log: list[bytes] | None = [] if keep else None
        self._buffer = bytearray(_BUFFER)
        self._used = 0
        self._flushed = 0
        self._last = 0
        self._hash = hashlib.sha256()
        self._subscribers: list[Subscriber] = []

    @property
    def count(self) -> int:
        """Events so far."""
        return self._flushed + self._used // RECORD.itemsize

    @property
    def last_cycle(self) -> int:
        """The cycle of the latest event; no later one is earlier."""
        if not self._used:
            return self._last
        cycle: int = PACKED.unpack_from(self._buffer, self._used - _RECORD)[0]
        return cycle

    def pending(self, first: int) -> bytes:
        """Records that were not handed over yet, from number `first` on, as they stand in memory."""
        return bytes(self._buffer[max(0, first - self._flushed) * _RECORD : self._used])

    def emit(
        self, cycle: int, unit: int, what: int, ticket: int = 0, tile: int = 0, size: int = 0, aux: int = 0
    ) -> None:
        """Append one record; `size` is its field `bytes`. Cycles never decrease."""
        used = self._used
        if used == _BUFFER:
            self.flush()
            used = 0
        PACKED.pack_into(self._buffer, used, cycle, unit, what, ticket, tile, size, aux)
        self._used = used + _RECORD

    def extend(self, data: "bytes | memoryview") -> None:
        """Append records as they stand in memory, as `emit` would one by one."""
        size, at = len(data), 0
        while size - at > _BUFFER - self._used:
            room = _BUFFER - self._used
            self._buffer[self._used :] = data[at : at + room]
            self._used, at = _BUFFER, at + room
            self.flush()
        self._buffer[self._used : self._used + size - at] = data[at:]
        self._used += size - at

    def subscribe(self, subscriber: Subscriber) -> None:
        """Hand batches of later events (arrays of RECORD, owned by the subscriber) to `subscriber`."""
        self.flush()
        self._subscribers.append(subscriber)

    def flush(self) -> None:
        """Hand over what has not been handed over yet."""
        if not self._used:
            return
        self._last = self.last_cycle
        data = bytes(memoryview(self._buffer)[: self._used])
        self._flushed += self._used // RECORD.itemsize
        self._used = 0
        self._hash.update(data)
        if self._log is not None:
            self._log.append(pack(data))
        for subscriber in self._subscribers:
            subscriber(np.frombuffer(data, dtype=RECORD))

    def hexdigest(self) -> str:
        """SHA-256 over all records so far."""
        self.flush()
        return self._hash.hexdigest()

    # -- going back --------------------------------------------------------------------------------------------

    def mark(self) -> EventMark:
        """Where the stream is now."""
        log = None if self._log is None else tuple(self._log)
        return EventMark(self._flushed, bytes(self._buffer[: self._used]), self._hash.copy(), log)

    def rewind(self, mark: EventMark) -> None:
        """Go on from `mark`, of this stream or another one; subscribers stay and are told nothing.

        A stream that keeps its records goes on keeping them only if the mark has those before it.
        """
        self._flushed = mark.flushed
        self._last = 0
        self._used = len(mark.pending)
        self._buffer[: self._used] = mark.pending
        self._hash = mark.hash.copy()
        self._log = None if self._log is None or mark.log is None else list(mark.log)

    def kept(self) -> Iterator[Batch]:
        """All records so far, in batches; NpuDeviceError when the stream does not keep them."""
        self.flush()
        if self._log is None:
            raise NpuDeviceError("the events of this run were not kept: make the stream with keep=True")
        for packed in tuple(self._log):
            yield np.frombuffer(unpack(packed), dtype=RECORD)


def pack(data: bytes) -> bytes:
    """Records, compressed. Byte 0 of all records comes first, then byte 1, ...: most of these rows are constant."""
    columns = np.frombuffer(data, np.uint8).reshape(-1, RECORD.itemsize).T
    return zlib.compress(columns.tobytes(), 1)


def unpack(packed: bytes) -> bytes:
    """The inverse of `pack`. ValueError for bytes that are none of it."""
    inflate = zlib.decompressobj()
    columns = np.frombuffer(inflate.decompress(packed, _BUFFER), np.uint8)
    if inflate.unconsumed_tail or inflate.unused_data or not inflate.eof or not len(columns):
        raise ValueError("a batch of events is longer than one, or is cut off")
    return columns.reshape(RECORD.itemsize, -1).T.tobytes()


class RecordChecks:
    """Looks at records that come from a file, in order. StateError for what no device emits."""

    def __init__(self) -> None:
        self.count = 0
        self._cycle = 0
        self._running: dict[int, bool] = {}

    def add(self, data: bytes) -> None:
        """More records, as they stand in memory."""
        if len(data) % _RECORD:
            raise StateError(f"{len(data)} bytes are no records of {_RECORD} bytes")
        batch = np.frombuffer(data, RECORD)
        if not len(batch):
            return
        what, kind, cycle = batch["what"], batch["unit"] >> 8, batch["cycle"]
        known = (what >= min(What)) & (what <= max(What)) & (kind <= max(Kind))
        numbers = (cycle <= LATEST) & ((batch["bytes"] <= LATEST) | np.isin(what, _ADDRESSES))
        self._refuse(~(known & numbers), "has a kind, a unit or a number that no event has")
        backwards = np.diff(cycle.astype(np.int64), prepend=self._cycle) < 0
        self._refuse(backwards, "is earlier than the event before")
        self._cycle = int(cycle[-1])
        self._check_steps(batch)
        self.count += len(batch)

    def _check_steps(self, batch: Batch) -> None:
        """Each step ends on the unit on which it began; a reset may stop one."""
        what = batch["what"]
        begins, ends = np.isin(what, list(_STEPS)), np.isin(what, [begin + 1 for begin in _STEPS])
        for begin, kind in _STEPS.items():
            this = (what == begin) | (what == begin + 1)
            self._refuse(this & (batch["unit"] >> 8 != kind), "is a step of another kind of unit")
        at = np.flatnonzero(begins | ends)
        units = batch["unit"][at]
        for unit in np.unique(units).tolist():
            own = at[units == unit]
            before = np.concatenate([[self._running.get(unit, False)], begins[own][:-1]])
            wrong = np.zeros(len(batch), np.bool_)
            wrong[own] = ends[own] & ~before
            self._refuse(wrong, "ends a step that has not begun")
            self._running[unit] = bool(begins[own[-1]])

    def _refuse(self, wrong: NDArray[np.bool_], why: str) -> None:
        if wrong.any():
            raise StateError(f"event {self.count + int(np.flatnonzero(wrong)[0])} {why}")


_STEPS = {What.DMA_BEGIN: Kind.DMA, What.TE_BEGIN: Kind.TE, What.VE_BEGIN: Kind.VE}
"""Begins of steps, whose ends have the next number, and the units that they are of."""
_ADDRESSES = (What.SUBMIT, What.FETCH, What.REJECT, What.STALE, What.NOTIFY)
"""Events whose field `bytes` may be an address."""


def all_records(stream: EventStream) -> Batch:
    """The records of a stream that keeps them, as one array."""
    batches = list(stream.kept())
    return np.concatenate(batches) if batches else np.empty(0, dtype=RECORD)


def records(stream: EventStream) -> Callable[[], NDArray[Any]]:
    """Keep every later event of `stream`: call the result to get them as one array of RECORD."""
    batches: list[Batch] = []
    stream.subscribe(batches.append)

    def collected() -> NDArray[Any]:
        stream.flush()
        return np.concatenate(batches) if batches else np.empty(0, dtype=RECORD)

    return collected
