"""The event stream: the events of a run in order, hashed and handed over in batches."""

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
"""Words of records that are handed over at once."""
NOTHING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""SHA-256 of no bytes (FIPS 180-4): who hashes nothing need not import OpenSSL."""
Subscriber = Callable[["Batch"], None]


class EventMark(NamedTuple):
    """Position in an event stream, to which it can be set back."""

    flushed: int
    pending: bytes
    """Records that were not handed over yet."""
    hash: "hashlib._Hash | None"
    """Over the records before these; None: there are none."""
    log: tuple[Segment, ...] | None
    """The same records in packed batches; None when they are not stored."""


class EventStream:
    """Records in order, hashed; memory does not grow with their number unless they are stored.

    With `keep` the stream holds all its records in a spool, packed to some two bytes each: what a snapshot needs to go
    on with in another process, where the state of a hash cannot be taken to.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self._log: list[Segment] | None = [] if keep else None
        self._spool = Spool()
        self._buffer = memoryview(bytearray(_BUFFER * _WORD))
        self._lengths: memoryview[int] = memoryview(bytearray(_WORD)).cast("q")
        self._length = 0
        """Index of the number of words in the buffer."""
        self._flushed = 0
        self._last = 0
        self._hash: hashlib._Hash | None = None
        """Over the records handed over; None before the first."""
        self._subscribers: list[Subscriber] = []

    def attach(self, buffer: memoryview, lengths: "memoryview[int]", length: int) -> None:
        """Let records stand in the buffer of a device, to which native code appends others, until they are handed over.

        `buffer`: bytes of at least BATCH records. `lengths[length]`: words of records in it.
        """
        words = self._lengths[self._length]
        buffer[: words * _WORD] = self._buffer[: words * _WORD]
        self._buffer, self._lengths, self._length = buffer, lengths, length
        lengths[length] = words

    def detach(self) -> None:
        """Let records stand in a buffer of the stream's own again."""
        self.attach(memoryview(bytearray(_BUFFER * _WORD)), memoryview(bytearray(_WORD)).cast("q"), 0)

    def close(self) -> None:
        """Hand over the pending records at the end of a run, and release subscribers and the device's buffer."""
        self.flush()
        self._subscribers.clear()
        self.detach()

    @property
    def count(self) -> int:
        """Events so far."""
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
        """Return the packed records that were not handed over yet, from number `first` on."""
        return bytes(self._buffer[max(0, first - self._flushed) * PACKED.size : self._lengths[self._length] * _WORD])

    def emit(
        self, cycle: int, unit: int, what: int, ticket: int = 0, tile: int = 0, size: int = 0, aux: int = 0
    ) -> None:
        """Append one record; `size` is its field `bytes`. Cycles never decrease."""
        lengths, length = self._lengths, self._length
        words = lengths[length]
        if words == _BUFFER:
            self.flush()
            words = 0
        PACKED.pack_into(self._buffer, words * _WORD, cycle, unit, what, ticket, tile, size, aux)
        lengths[length] = words + _RECORD_WORDS

    def subscribe(self, subscriber: Subscriber) -> None:
        """Hand batches of later events (arrays of RECORD, owned by the subscriber) to `subscriber`."""
        self.flush()
        self._subscribers.append(subscriber)

    def flush(self) -> None:
        """Hand over all pending records."""
        words = self._lengths[self._length]
        if not words:
            return
        from npu_device.trace.records import batch_of, pack  # NumPy, which a run without events does not need

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
        """Return the SHA-256 over all records so far."""
        self.flush()
        return NOTHING if self._hash is None else self._hash.hexdigest()

    # -- going back --------------------------------------------------------------------------------------------

    def mark(self) -> EventMark:
        """Return the current position of the stream."""
        log = None if self._log is None else tuple(self._log)
        return EventMark(self._flushed, self.pending(self._flushed), _copy(self._hash), log)

    def rewind(self, mark: EventMark) -> None:
        """Go on from `mark`, of this stream or another; subscribers stay and are not notified.

        A stream that keeps its records goes on keeping them only if the mark has those before it.
        """
        self._flushed = mark.flushed
        self._last = 0
        self._lengths[self._length] = len(mark.pending) // _WORD
        self._buffer[: len(mark.pending)] = mark.pending
        self._hash = _copy(mark.hash)
        self._log = None if self._log is None or mark.log is None else list(mark.log)

    def kept(self) -> Iterator["Batch"]:
        """Return all records so far, in batches; NpuDeviceError when the stream does not store them."""
        self.flush()
        if self._log is None:
            raise NpuDeviceError("the events of this run were not kept: make the stream with keep=True")
        if self._log:
            from npu_device.trace.records import batch_of, unpack

            for packed in tuple(self._log):
                yield batch_of(unpack(packed.read()))


def all_records(stream: EventStream) -> "Batch":
    """Return the records of a stream that keeps them, as one array."""
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
