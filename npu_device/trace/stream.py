"""The event stream: the events of a run in order, hashed and handed over in batches."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from npu_device.abi.errors import NpuDeviceError
from npu_device.trace.events import BATCH, PACKED
from pyv_native.spool import Segment, Spool

if TYPE_CHECKING:
    import hashlib

    from npu_device.trace.records import Batch

_BUFFER = BATCH * PACKED.size
NOTHING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""SHA-256 of no bytes (FIPS 180-4): who hashes nothing need not import OpenSSL."""
Subscriber = Callable[["Batch"], None]


class EventMark(NamedTuple):
    """A place in an event stream, to which it can be set back."""

    flushed: int
    pending: bytes
    """Records that were not handed over yet."""
    hash: "hashlib._Hash | None"
    """Over the records before these; None: there are none."""
    log: tuple[Segment, ...] | None
    """The same records, each batch as `pack` gives it; None when they were not kept."""


class EventStream:
    """Records in order, hashed; memory does not grow with their number unless they are kept.

    With `keep` the stream holds all its records in a spool, packed to some two bytes each: what a snapshot needs to go
    on with in another process, where the state of a hash cannot be taken to.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self._log: list[Segment] | None = [] if keep else None
        self._spool = Spool()
        self._buffer = bytearray(_BUFFER)
        self._used = 0
        self._flushed = 0
        self._last = 0
        self._hash: hashlib._Hash | None = None
        """Of what was handed over, once anything was."""
        self._subscribers: list[Subscriber] = []

    @property
    def count(self) -> int:
        """Events so far."""
        return self._flushed + self._used // PACKED.size

    @property
    def last_cycle(self) -> int:
        """The cycle of the latest event; no later one is earlier."""
        if not self._used:
            return self._last
        cycle: int = PACKED.unpack_from(self._buffer, self._used - PACKED.size)[0]
        return cycle

    def pending(self, first: int) -> bytes:
        """Records that were not handed over yet, from number `first` on, as they stand in memory."""
        return bytes(self._buffer[max(0, first - self._flushed) * PACKED.size : self._used])

    def emit(
        self, cycle: int, unit: int, what: int, ticket: int = 0, tile: int = 0, size: int = 0, aux: int = 0
    ) -> None:
        """Append one record; `size` is its field `bytes`. Cycles never decrease."""
        used = self._used
        if used == _BUFFER:
            self.flush()
            used = 0
        PACKED.pack_into(self._buffer, used, cycle, unit, what, ticket, tile, size, aux)
        self._used = used + PACKED.size

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
        from npu_device.trace.records import batch_of, pack  # NumPy, which a run without events does not need

        self._last = self.last_cycle
        data = bytes(memoryview(self._buffer)[: self._used])
        self._flushed += self._used // PACKED.size
        self._used = 0
        if self._hash is None:
            import hashlib

            self._hash = hashlib.sha256()
        self._hash.update(data)
        if self._log is not None:
            self._log.append(self._spool.append(pack(data)))
        for subscriber in self._subscribers:
            subscriber(batch_of(data))

    def hexdigest(self) -> str:
        """SHA-256 over all records so far."""
        self.flush()
        return NOTHING if self._hash is None else self._hash.hexdigest()

    # -- going back --------------------------------------------------------------------------------------------

    def mark(self) -> EventMark:
        """Where the stream is now."""
        log = None if self._log is None else tuple(self._log)
        return EventMark(self._flushed, bytes(self._buffer[: self._used]), _copy(self._hash), log)

    def rewind(self, mark: EventMark) -> None:
        """Go on from `mark`, of this stream or another one; subscribers stay and are told nothing.

        A stream that keeps its records goes on keeping them only if the mark has those before it.
        """
        self._flushed = mark.flushed
        self._last = 0
        self._used = len(mark.pending)
        self._buffer[: self._used] = mark.pending
        self._hash = _copy(mark.hash)
        self._log = None if self._log is None or mark.log is None else list(mark.log)

    def kept(self) -> Iterator["Batch"]:
        """All records so far, in batches; NpuDeviceError when the stream does not keep them."""
        self.flush()
        if self._log is None:
            raise NpuDeviceError("the events of this run were not kept: make the stream with keep=True")
        if self._log:
            from npu_device.trace.records import batch_of, unpack

            for packed in tuple(self._log):
                yield batch_of(unpack(packed.read()))


def all_records(stream: EventStream) -> "Batch":
    """The records of a stream that keeps them, as one array."""
    from npu_device.trace.records import joined

    return joined(stream.kept())


def records(stream: EventStream) -> Callable[[], "Batch"]:
    """Keep every later event of `stream`: call the result to get them as one array of RECORD."""
    batches: list[Batch] = []
    stream.subscribe(batches.append)

    def collected() -> "Batch":
        from npu_device.trace.records import joined

        stream.flush()
        return joined(batches)

    return collected


def _copy(digest: "hashlib._Hash | None") -> "hashlib._Hash | None":
    return None if digest is None else digest.copy()
