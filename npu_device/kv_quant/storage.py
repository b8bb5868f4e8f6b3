"""Encoded keys and values in DRAM: sizes and addresses of a cache's streams, append and read of tokens
(docs/kv-cache.md, "Streams"), and pages (docs/oaken.md, "Pages").
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.abi.errors import NpuDeviceError
from npu_device.abi.kv_block import KV_CHUNK
from npu_device.kv_quant.codec import Encoded, KvCodec, PageTable, Parameters, Stream, to_fp16
from npu_device.kv_quant.codecs import OAKEN
from npu_device.memory.arrays import Bytes, Read
from npu_device.memory.region import Region, make_region

PART_ALIGNMENT = 64
"""Alignment of the start of a stream in bytes."""
Writes = tuple[tuple[Region, Bytes], ...]


class Layout(NamedTuple):
    """Streams of a cache and their offsets from its base."""

    streams: dict[str, Stream]
    offsets: dict[str, int]
    size: int
    """Bytes of address space."""


@lru_cache(1024)
def layout(codec: KvCodec, heads: int, t_max: int, head_dim: int) -> Layout:
    """Return the layout of a shape, with contiguous streams."""
    streams, offsets, end = {}, {}, 0
    for stream in codec.streams(heads, head_dim):
        streams[stream.name], offsets[stream.name] = stream, end
        size = stream.rows * stream.groups(t_max) * stream.size
        end += -(-size // PART_ALIGNMENT) * PART_ALIGNMENT
    return Layout(streams, offsets, end)


@dataclass(frozen=True)
class EncodedCache:
    """Keys or values of one layer and request in encoded form, for `t_max` tokens."""

    base: int
    heads: int
    """KV heads."""
    t_max: int
    head_dim: int
    codec: KvCodec = field(default=OAKEN)

    def __post_init__(self) -> None:
        for name in ("heads", "t_max", "head_dim"):
            if getattr(self, name) < 1:
                raise NpuDeviceError(f"encoded cache {name} {getattr(self, name)}: must be at least 1")
        self.codec.check(self.heads, self.head_dim)

    @property
    def width(self) -> int:
        """Elements of a token-vector."""
        return self.heads * self.head_dim

    @property
    def _layout(self) -> "Layout":
        return layout(self.codec, self.heads, self.t_max, self.head_dim)

    @property
    def streams(self) -> dict[str, Stream]:
        """Streams by name, in the order of their addresses."""
        return self._layout.streams

    @property
    def size(self) -> int:
        """Bytes of address space of the cache, with capacity for an outlier at every element."""
        return self._layout.size

    @property
    def region(self) -> Region:
        """Region of the cache."""
        return make_region(self.base, 1, self.size)

    def pitch(self, stream: Stream) -> int:
        """Return the bytes from row to row of a stream."""
        return stream.groups(self.t_max) * stream.size

    def address(self, name: str, row: int = 0) -> int:
        """Return the address of a row of a stream."""
        return self.base + self._layout.offsets[name] + row * self.pitch(self.streams[name])

    def coded(self, tokens: int) -> int:
        """Return how many of `tokens` tokens are encoded."""
        return self.codec.coded(tokens)

    def rows(self, name: str, first: int, count: int) -> Region:
        """Return the region of tokens, in whole groups, in all rows of a stream."""
        stream = self.streams[name]
        start, groups = first // stream.group, count // stream.group
        return make_region(
            self.address(name) + start * stream.size, stream.rows, groups * stream.size, self.pitch(stream)
        )

    # -- entries -----------------------------------------------------------------------------------------------

    @property
    def chunks(self) -> int:
        """Number of chunks of a token-vector with a count of entries; 0 for a codec without entries."""
        return self.width // KV_CHUNK if "sparse" in self.streams else 0

    @property
    def entry_streams(self) -> int:
        """Number of streams of entries."""
        return self.streams["sparse"].rows if "sparse" in self.streams else 0

    def lengths(self, read: Read, count: int) -> NDArray[np.int64]:
        """Return the bytes of entries of `count` encoded tokens, shape (tokens, streams), or raise NpuDeviceError."""
        if not count or not self.chunks:
            return np.zeros((count, self.entry_streams), np.int64)
        counts = read(self.rows("counts", 0, count)).reshape(count, -1)
        if counts.max(initial=0) > KV_CHUNK:
            token = int(np.argmax((counts > KV_CHUNK).any(axis=1)))
            raise NpuDeviceError(
                f"counts at {self.address('counts'):#x}: token {token} has a chunk of {counts[token].max()} outliers, "
                f"a chunk has {KV_CHUNK} elements: it was never appended, or was overwritten"
            )
        return self.stream_bytes(counts)

    def lengths_after(self, read: Read, first: int, rows: NDArray[Any], parameters: Parameters) -> NDArray[np.int64]:
        """Return the bytes of entries of all encoded tokens, shape (tokens, streams), after an append of tokens
        (tokens, C) to the `first` tokens. Raise NpuDeviceError for invalid counts or numbers."""
        begin, end = self.coded(first), self.coded(first + len(rows))
        stored = self.lengths(read, begin)
        if end == begin:
            return stored
        parameters = replace(parameters, first=begin)
        encoded = self.codec.encode(self._pending(read, first, rows)[: end - begin], self.head_dim, parameters)
        return np.concatenate((stored, self.stream_bytes(encoded.counts)))

    def _pending(self, read: Read, first: int, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return the tail of the `first` tokens followed by the tokens (tokens, C), in fp32."""
        tail = self._tail(read, self.coded(first), first)
        return np.concatenate((tail.astype(np.float32), rows.astype(np.float32)))

    def stream_bytes(self, counts: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the bytes of entries, shape (tokens, streams), of tokens with these counts of outliers per chunk."""
        if not self.chunks:
            return np.zeros((len(counts), 0), np.int64)
        by_stream = counts.reshape(len(counts), self.entry_streams, self.chunks // self.entry_streams)
        by_chunk = np.ascontiguousarray(np.moveaxis(by_stream, 2, 0))  # a long last axis sums faster
        sizes: NDArray[np.int64] = by_chunk.sum(axis=0, dtype=np.int64) * self.codec.entry_bytes
        return sizes

    def expected(self, count: int, permille: int) -> NDArray[np.int64]:
        """Return the bytes of entries of encoded tokens, shape (tokens, streams), with an assumed `permille` of
        outliers."""
        if not self.chunks:
            return np.zeros((count, 0), np.int64)
        share = self.width // self.entry_streams * self.codec.entries(permille)
        ends = np.arange(count + 1, dtype=np.int64) * share // 1000
        return np.repeat(np.diff(ends)[:, None], self.entry_streams, axis=1) * self.codec.entry_bytes

    def expected_counts(self, permille: int) -> bytes:
        """Return the counts of all tokens with an assumed `permille` of outliers, distributed as evenly as possible."""
        share = KV_CHUNK * self.codec.entries(permille)
        ends = np.arange(self.chunks * self.t_max + 1, dtype=np.int64) * share // 1000
        return np.diff(ends).astype(np.uint8).tobytes()

    # -- tokens ------------------------------------------------------------------------------------------------

    def encoded(self, read: Read, tokens: int) -> Encoded:
        """Read the encoded form of the first `tokens` tokens, without those in the tail."""
        count = self.coded(tokens)
        lengths = self.lengths(read, count)
        total = lengths.sum(axis=0)
        parts = [
            read(make_region(self.address("sparse", stream), 1, int(size))).reshape(-1)
            for stream, size in enumerate(total.tolist())
            if size
        ]
        entries = np.concatenate(parts) if parts else np.zeros(0, np.uint8)
        groups = count // self.codec.group
        return Encoded(
            self._by_token(read, "dense", count),
            self._by_token(read, "counts", count) if self.chunks else np.zeros((count, 0), np.uint8),
            entries[_token_order(lengths)],
            self._by_token(read, "meta", count) if "meta" in self.streams else np.zeros((groups, 0), np.uint8),
        )

    def _by_token(self, read: Read, name: str, count: int) -> Bytes:
        """Return the bytes of a stream, shape (groups, bytes of all rows)."""
        stream = self.streams[name]
        groups = count // stream.group
        if not groups:
            return np.zeros((0, stream.rows * stream.size), np.uint8)
        data = read(self.rows(name, 0, count)).reshape(stream.rows, groups, -1).transpose(1, 0, 2)
        return np.ascontiguousarray(data).reshape(groups, -1)

    def _by_row(self, name: str, first: int, data: Bytes) -> tuple[Region, Bytes]:
        """Return the write of bytes (groups, bytes of all rows) to a stream."""
        stream = self.streams[name]
        by_row = data.reshape(len(data), stream.rows, -1).transpose(1, 0, 2)
        return self.rows(name, first, len(data) * stream.group), np.ascontiguousarray(by_row).reshape(-1)

    def ring_spans(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return (slot, number) of the spans of tokens in the tail's ring, which may wrap."""
        ring = self.streams["tail"].groups(self.t_max) if "tail" in self.streams else 0
        spans = []
        while first < end:
            count = min(end - first, ring - first % ring)
            spans.append((first % ring, count))
            first += count
        return spans

    def _tail(self, read: Read, first: int, end: int) -> NDArray[np.float16]:
        """Read tokens in the tail, shape (tokens, C)."""
        parts = [np.zeros((0, self.width), np.float16)]
        for slot, count in self.ring_spans(first, end):
            data = np.ascontiguousarray(read(self.rows("tail", slot, count))).reshape(self.heads, count, -1)
            rows = np.ascontiguousarray(data.transpose(1, 0, 2)).reshape(count, -1)
            parts.append(rows.view(np.float16))
        return np.concatenate(parts)

    def read(self, read: Read, count: int, parameters: Parameters) -> NDArray[np.float16]:
        """Read the first `count` tokens, shape (heads, tokens, D)."""
        coded = self.coded(count)
        tail = self._heads(self._tail(read, coded, count))
        return np.concatenate((self.decoded(read, count, parameters), tail), axis=1)

    def decoded(self, read: Read, count: int, parameters: Parameters) -> NDArray[np.float16]:
        """Read the encoded tokens of the first `count`, shape (heads, tokens, D)."""
        if not self.coded(count):
            return np.zeros((self.heads, 0, self.head_dim), np.float16)
        return self._heads(self.codec.decode(self.encoded(read, count), self.head_dim, parameters))

    def append(
        self, read: Read, first: int, rows: NDArray[Any], parameters: Parameters
    ) -> tuple[Writes, NDArray[np.float16]]:
        """Append tokens (tokens, C) to the `first` tokens; whole groups leave the tail and are encoded. Return (writes,
        the values that reads return for the previous tail and these tokens, shape (heads, tokens, D))."""
        begin, end, total = self.coded(first), self.coded(first + len(rows)), first + len(rows)
        pending, parameters = self._pending(read, first, rows), replace(parameters, first=begin)
        writes, parts = list[tuple[Region, Bytes]](), list[NDArray[np.float16]]()
        if end > begin:
            encoded = self.codec.encode(pending[: end - begin], self.head_dim, parameters)
            writes += self._encoded_writes(read, begin, encoded)
            parts.append(self.codec.decode(encoded, self.head_dim, parameters))
        tail = to_fp16(pending[end - begin :])
        parts.append(tail)
        position = max(first, end)
        for slot, count in self.ring_spans(position, total):
            data = tail[position - end : position - end + count].view(np.uint8).reshape(count, self.heads, -1)
            by_head = np.ascontiguousarray(data.transpose(1, 0, 2)).reshape(-1)
            writes.append((self.rows("tail", slot, count), by_head))
            position += count
        return tuple(writes), self._heads(np.concatenate(parts))

    def _encoded_writes(self, read: Read, begin: int, encoded: Encoded) -> list[tuple[Region, Bytes]]:
        writes = [self._by_row("dense", begin, encoded.dense)]
        if "meta" in self.streams:
            writes.append(self._by_row("meta", begin, encoded.meta))
        if self.chunks:
            offsets = self.lengths(read, begin).sum(axis=0)
            lengths = self.stream_bytes(encoded.counts)
            by_stream = np.empty_like(encoded.sparse)
            by_stream[_token_order(lengths)] = encoded.sparse
            writes.append((self.rows("counts", begin, len(encoded.counts)), encoded.counts.reshape(-1)))
            ends, sizes = np.cumsum(lengths.sum(axis=0)).tolist(), lengths.sum(axis=0).tolist()
            for stream, (end, size) in enumerate(zip(ends, sizes, strict=True)):
                if size:
                    address = self.address("sparse", stream) + int(offsets[stream])
                    writes.append((make_region(address, 1, size), by_stream[end - size : end]))
        return writes

    def _heads(self, tokens: NDArray[Any]) -> NDArray[Any]:
        """Transpose (tokens, C) to (heads, tokens, D)."""
        by_head: NDArray[Any] = tokens.reshape(len(tokens), self.heads, self.head_dim).transpose(1, 0, 2)
        return np.ascontiguousarray(by_head)


class Sizes(NamedTuple):
    """Cumulative bytes of entries of encoded tokens at the start of a command."""

    ends: NDArray[np.int64]
    """Bytes of each stream before each token, shape (tokens + 1, streams)."""

    @property
    def digest(self) -> bytes:
        """Digest of all sizes."""
        return blake2b(np.ascontiguousarray(self.ends).tobytes(), digest_size=16).digest()

    def between(
        self, stream: NDArray[np.int64], first: NDArray[np.int64], count: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (offset, bytes) in a stream of `count` tokens from `first` on."""
        begin = self.ends[first, stream]
        return begin, self.ends[first + count, stream] - begin


class RowSpan(NamedTuple):
    """Row of a stream before and after a command."""

    start: int
    """Virtual address."""
    table: int
    """Page table."""
    size: int
    """Bytes after the command."""
    stored: int
    """Bytes before the command."""
    passed: int
    """Bytes of tokens that a window has passed, which no later command reads."""


class KvAccess(NamedTuple):
    """Encoded cache that a command reads or appends to."""

    cache: EncodedCache
    tokens: int
    """Number of tokens after the command."""
    new: int
    """Number of tokens that the command appends."""
    sizes: Sizes
    first: int | None = None
    """First token that this and later commands read; None if it reads nothing."""

    def row_bytes(self) -> list[RowSpan]:
        """Return the span of each row of each stream, in the order of allocation."""
        cache = self.cache
        counts = self.tokens, self.tokens - self.new, min(self.first or 0, self.tokens - self.new)
        coded = [cache.coded(count) for count in counts]
        coded[2] = min(coded[1], counts[2] // cache.codec.group * cache.codec.group)
        entries = self.sizes.ends[coded].tolist()
        streams = [stream for stream in cache.streams.values() if stream.moved]
        spans = []
        for stream in sorted(streams, key=lambda stream: stream.pages):
            sizes = [stream.stored(*count) for count in zip(counts, coded, strict=True)]
            if stream.ring:
                sizes[2] = 0
            for row in range(stream.rows):
                row_ends = [ends[row] for ends in entries] if stream.counted else sizes
                spans.append(RowSpan(cache.address(stream.name, row), int(stream.pages), *row_ends))
        return spans


class Pages(NamedTuple):
    """Numbers of pages allocated for the tokens of one or several caches.

    Each row of a stream has its own pages. The write of a page's first byte allocates it. Tokens are contiguous, so a
    page is one burst.
    """

    dense: int
    sparse: int
    meta: int
    payload: int
    """Bytes of data in the pages."""
    bursts: int
    """Number of bursts that read the codes and entries of all tokens."""
    page_bytes: int

    @property
    def bytes(self) -> int:
        """Bytes of all pages."""
        return (self.dense + self.sparse + self.meta) * self.page_bytes


def pages(cache: EncodedCache, tokens: int, entries: Iterable[int], page_bytes: int) -> Pages:
    """Return the pages of `tokens` tokens of a cache. `entries`: bytes of each stream of entries."""
    ends = np.zeros((cache.coded(tokens) + 1, cache.entry_streams), np.int64)
    ends[-1] = list(entries)
    counts, payload = dict.fromkeys(PageTable, 0), 0
    for span in KvAccess(cache, tokens, 0, Sizes(ends)).row_bytes():
        counts[PageTable(span.table)] += -(-span.size // page_bytes)
        payload += span.size
    for stream in cache.streams.values():  # a ring also has tokens that are encoded already
        idle = min(tokens, stream.ring) - (tokens - cache.coded(tokens)) if stream.ring else 0
        payload -= stream.rows * stream.size * idle
    dense, sparse, meta = counts.values()
    return Pages(dense, sparse, meta, payload, dense + sparse, page_bytes)


def _token_order(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices in the concatenation of all streams of the bytes of tokens, token by token."""
    by_stream = np.ascontiguousarray(lengths.T).reshape(-1)
    start = (np.cumsum(by_stream) - by_stream).reshape(lengths.T.shape).T.reshape(-1)
    size = lengths.reshape(-1)
    out = np.cumsum(size) - size
    order: NDArray[np.int64] = np.repeat(start - out, size) + np.arange(int(size.sum()))
    return order
