"""Append-only storage of bytes that may exceed memory: events and rows of long runs."""

import os
from typing import IO, NamedTuple

_MAX_MEMORY = 1 << 20
"""Maximum bytes of a spool in memory."""


class Segment(NamedTuple):
    """Immutable range of bytes in a spool."""

    spool: "Spool"
    offset: int
    size: int

    def read(self) -> bytes:
        """Return the bytes."""
        return self.spool.read(self.offset, self.size)


class Segments:
    """Concatenated bytes of spools."""

    def __init__(self, *parts: Segment) -> None:
        self.parts = parts

    def __bytes__(self) -> bytes:
        return b"".join(segment.read() for segment in self.parts)


class Spool:
    """Append-only bytes: in memory up to a limit, then in a temporary file, which is deleted when the process ends."""

    def __init__(self, limit: int = _MAX_MEMORY) -> None:
        self._limit = limit
        self._memory = bytearray()
        self._file: IO[bytes] | None = None
        self._size = 0

    def append(self, data: bytes) -> Segment:
        """Add bytes. OSError if the file system is full."""
        segment = Segment(self, self._size, len(data))
        self._size += len(data)
        self._memory += data
        if self._file is None and self._size > self._limit:
            import tempfile  # needed by long runs only

            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it is open as long as the spool
        if self._file is not None:
            offset = self._size - len(self._memory)
            while self._memory:
                size = os.pwrite(self._file.fileno(), self._memory, offset)
                offset += size
                del self._memory[:size]
        return segment

    def read(self, offset: int, size: int) -> bytes:
        """Return appended bytes."""
        if self._file is None:
            return bytes(self._memory[offset : offset + size])
        return os.pread(self._file.fileno(), size, offset)
