"""Event stream: the events of a run in order, hashed and delivered in batches."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from npu_device.abi.errors import NpuDeviceError
from npu_device.trace.events import BATCH, PACKED
from pyv_native.spool import Segment, Spool

if TYPE_CHECKING:
    import hashlib

    from npu_device.trace.records import Batch

_WORD = 8
_RECORD_WORDS = PACKED.size // _WORD
_BUFFER = BATCH * _RECORD_WORDS
"""Capacity of the buffer in words."""
NOTHING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""SHA-256 of no bytes (FIPS 180-4), so that a run without events does not import OpenSSL."""
Subscriber = Callable[["Batch"], None]


class EventMark(NamedTuple):
    """Position in an event stream, for `EventStream.rewind`."""

    flushed: int
    pending: bytes
    """Records that have not been flushed."""
    hash: "hashlib._Hash | None"
    """Hash of the flushed records; None without any."""
    log: tuple[Segment, ...] | None
    """Flushed records in packed batches; None if they are not stored."""


class EventStream:
    """Hashed records in order; memory does not grow with their number unless they are stored.

    With `keep` the stream stores all its records in a spool, packed to some two bytes each. A snapshot needs them to
    resume in another process, because the state of a hash cannot be serialised.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self._log: list[Segment] | None = [] if keep else None
        self._spool = Spool()
        self._buffer = memoryview(bytearray(_BUFFER * _WORD))
        self._lengths: memoryview[int] = memoryview(bytearray(_WORD)).cast("q")
        self._length = 0
        """Index in `_lengths` of the number of words in the buffer."""
        self._flushed = 0
        self._last = 0
        self._hash: hashlib._Hash | None = None
        """Hash of the flushed records; None before the first."""
        self._subscribers: list[Subscriber] = []

    def attach(self, buffer: memoryview, lengths: "memoryview[int]", length: int) -> None:
        """Move pending records into the buffer of a device, to which native code also appends records.

        `buffer`: bytes of at least BATCH records. `lengths[length]`: number of words of records in it.
        """
        words = self._lengths[self._length]
        buffer[: words * _WORD] = self._buffer[: words * _WORD]
        self._buffer, self._lengths, self._length = buffer, lengths, length
        lengths[length] = words

    def detach(self) -> None:
        """Move pending records back into a buffer of the stream."""
        self.attach(memoryview(bytearray(_BUFFER * _WORD)), memoryview(bytearray(_WORD)).cast("q"), 0)

    def close(self) -> None:
        """Flush the pending records at the end of a run, and release subscribers and the device's buffer."""
        self.flush()
        self._subscribers.clear()
        self.detach()

    @property
    def count(self) -> int:
        """Number of events so far."""
        return self._flushed + self._lengths[self._length] // _RECORD_WORDS

    @property
    def last_cycle(self) -> int:
        """Cycle of the latest event; cycles never decrease."""
        words = self._lengths[self._length]
        if not words:
            return self._last
        cycle: int = PACKED.unpack_from(self._buffer, (words - _RECORD_WORDS) * _WORD)[0]
        return cycle

    def pending(self, first: int) -> bytes:
        """Return the packed records that have not been flushed, from number `first` on."""
        return bytes(self._buffer[max(0, first - self._flushed) * PACKED.size : self._lengths[self._length] * _WORD])

    def emit(
        self, cycle: int, unit: int, event_kind: int, ticket: int = 0, tile: int = 0, size: int = 0, aux: int = 0
    ) -> None:
        """Append a record. `size` is its field `bytes`. Cycles must not decrease."""
        lengths, length = self._lengths, self._length
        words = lengths[length]
        if words == _BUFFER:
            self.flush()
            words = 0
        PACKED.pack_into(self._buffer, words * _WORD, cycle, unit, event_kind, ticket, tile, size, aux)
        lengths[length] = words + _RECORD_WORDS

    def subscribe(self, subscriber: Subscriber) -> None:
        """Deliver batches of later events to `subscriber`, as arrays of RECORD that it owns."""
        self.flush()
        self._subscribers.append(subscriber)

    def flush(self) -> None:
        """Hash, store and deliver all pending records."""
        words = self._lengths[self._length]
        if not words:
            return
        from npu_device.trace.records import batch_of, pack  # imports NumPy, which a run without events does not need

        self._last = self.last_cycle
        data = bytes(self._buffer[: words * _WORD])
        self._flushed += words // _RECORD_WORDS
        self._lengths[self._length] = 0
        if self._hash is None:
            import hashlib

            self._hash = hashlib.sha256()
        self._hash.update(data)
        if self._log is not None:
            self._log.append(self._spool.append(pack(data)))
        for subscriber in self._subscribers:
            subscriber(batch_of(data))

    def hexdigest(self) -> str:
        """Return the SHA-256 of all records so far."""
        self.flush()
        return NOTHING if self._hash is None else self._hash.hexdigest()

    # -- rewind ------------------------------------------------------------------------------------------------

    def mark(self) -> EventMark:
        """Return the current position of the stream."""
        log = None if self._log is None else tuple(self._log)
        return EventMark(self._flushed, self.pending(self._flushed), _copy(self._hash), log)

    def rewind(self, mark: EventMark) -> None:
        """Resume from `mark`, of this stream or another. Subscribers remain and are not notified.

        A stream that stores its records continues to do so only if the mark has the earlier records.
        """
        self._flushed = mark.flushed
        self._last = 0
        self._lengths[self._length] = len(mark.pending) // _WORD
        self._buffer[: len(mark.pending)] = mark.pending
        self._hash = _copy(mark.hash)
        self._log = None if self._log is None or mark.log is None else list(mark.log)

    def batches(self) -> Iterator["Batch"]:
        """Return all records so far, in batches. Raise NpuDeviceError if the stream does not store them."""
        self.flush()
        if self._log is None:
            raise NpuDeviceError("the events of this run were not kept: make the stream with keep=True")
        if self._log:
            from npu_device.trace.records import batch_of, unpack

            for packed in tuple(self._log):
                yield batch_of(unpack(packed.read()))


def records(stream: EventStream) -> Callable[[], "Batch"]:
    """Store every later event of `stream`. Return a function that returns them as one array of RECORD."""
    batches: list[Batch] = []
    stream.subscribe(batches.append)

    def collected() -> "Batch":
        from npu_device.trace.records import joined

        stream.flush()
        return joined(batches)

    return collected


def _copy(digest: "hashlib._Hash | None") -> "hashlib._Hash | None":
    return None if digest is None else digest.copy()
