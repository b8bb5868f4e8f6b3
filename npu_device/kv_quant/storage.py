"""Where encoded keys and values lie in DRAM: the sizes and addresses of one cache, and how tokens go in and come out.

A cache has four parts (docs/oaken.md, "In DRAM"): nibbles [heads, t_max, D / 2], so that the tokens of a head are one
burst; 12 bytes of metadata per token; the counts of chunks, which are the management table; and the sparse entries, a
stream per head (per few heads where a chunk covers several), token behind token.
"""

from dataclasses import dataclass
from hashlib import blake2b
from math import lcm
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from npu_device.abi.errors import NpuDeviceError
from npu_device.abi.kv_block import KV_CHUNK, KvHalf, KvPolicy, OutlierCode
from npu_device.kv_quant import oaken
from npu_device.kv_quant.oaken import CHUNK, META_BYTES, Encoded
from npu_device.kv_quant.thresholds import Thresholds
from npu_device.memory.arrays import Bytes, Read
from npu_device.memory.region import Region, make_region

CODES = {OutlierCode.MSB_CLAMP: oaken.MSB_CLAMP, OutlierCode.SIGN_MAG: oaken.SIGN_MAG}
"""Number in a parameter block -> outlier code."""
PART_ALIGNMENT = 64
"""Bytes that a part begins at a multiple of."""


def _aligned(size: int) -> int:
    return -(-size // PART_ALIGNMENT) * PART_ALIGNMENT


@dataclass(frozen=True)
class Parameters:
    """How the tokens of a cache are encoded: half of a parameter block (docs/oaken.md, "Parameter block")."""

    thresholds: Thresholds
    code: str = oaken.MSB_CLAMP

    def pack(self) -> bytes:
        """The 32 bytes."""
        low, inner_low, inner_high, high = np.array(self.thresholds, np.float16).view(np.uint16).tolist()
        number = next(number for number, name in CODES.items() if name == self.code)
        return KvHalf((low, inner_low, inner_high, high), outlier_code=number).pack()

    @classmethod
    def unpack(cls, data: bytes, where: str) -> Self:
        """Of 32 bytes. NpuDeviceError for words that are none of a block."""
        half = KvHalf.unpack(data)
        for name, value, rule in (
            ("policy", half.policy, tuple(KvPolicy)), ("outlier_code", half.outlier_code, tuple(OutlierCode)),
            ("chunk", half.chunk, (KV_CHUNK,)),
        ):  # fmt: skip
            if value not in rule:
                numbers = ", ".join(str(int(one)) for one in rule)
                raise NpuDeviceError(f"{name} {value} at {where}: must be {numbers}")
        if any(half.kv_reserved):
            raise NpuDeviceError(f"a reserved word at {where} is not zero")
        limits = np.array(half.thresholds, np.uint16).view(np.float16).astype(float).tolist()
        return cls(Thresholds(*limits).check(f"thresholds at {where}"), CODES[OutlierCode(half.outlier_code)])


@dataclass(frozen=True)
class EncodedCache:
    """Keys or values of one layer and request in encoded form, for `t_max` tokens."""

    base: int
    heads: int
    """KV heads."""
    t_max: int
    head_dim: int

    def __post_init__(self) -> None:
        for name in ("heads", "t_max", "head_dim"):
            if getattr(self, name) < 1:
                raise NpuDeviceError(f"encoded cache {name} {getattr(self, name)}: must be at least 1")
        oaken.check_width(self.width)
        if self.head_dim % 2:
            raise NpuDeviceError(f"encoded cache head_dim {self.head_dim}: must be even, a row ends at a byte")

    @property
    def width(self) -> int:
        """Elements of a token-vector."""
        return self.heads * self.head_dim

    @property
    def chunks(self) -> int:
        return self.width // CHUNK

    @property
    def streams(self) -> int:
        """Streams of sparse entries."""
        return self.width // lcm(CHUNK, self.head_dim)

    @property
    def dense_bytes(self) -> int:
        return self.width * self.t_max // 2

    @property
    def meta(self) -> int:
        """Address of the metadata."""
        return self.base + _aligned(self.dense_bytes)

    @property
    def counts(self) -> int:
        """Address of the counts."""
        return self.meta + _aligned(META_BYTES * self.t_max)

    @property
    def stream_room(self) -> int:
        """Bytes that a stream may take: every element can be an outlier."""
        return _aligned(self.width // self.streams * self.t_max)

    def sparse(self, stream: int) -> int:
        """Address of a stream."""
        return self.counts + _aligned(self.chunks * self.t_max) + stream * self.stream_room

    @property
    def size(self) -> int:
        """Bytes of address space of the whole cache."""
        return self.sparse(self.streams) - self.base

    @property
    def region(self) -> Region:
        """All of it."""
        return make_region(self.base, 1, self.size)

    def dense_rows(self, first: int, count: int) -> Region:
        """Nibbles of tokens of all heads."""
        row = self.head_dim // 2
        return make_region(self.base + first * row, self.heads, count * row, self.t_max * row)

    def meta_rows(self, first: int, count: int) -> Region:
        return make_region(self.meta + first * META_BYTES, 1, count * META_BYTES)

    def count_rows(self, first: int, count: int) -> Region:
        return make_region(self.counts + first * self.chunks, 1, count * self.chunks)

    def lengths(self, read: Read, count: int) -> NDArray[np.int64]:
        """(tokens, streams): bytes of sparse entries of the first `count` tokens. NpuDeviceError: no counts."""
        if not count:
            return np.zeros((0, self.streams), np.int64)
        counts = read(self.count_rows(0, count)).reshape(count, -1)
        if counts.max(initial=0) > CHUNK:
            token = int(np.argmax((counts > CHUNK).any(axis=1)))
            raise NpuDeviceError(
                f"counts at {self.counts:#x}: token {token} has a chunk of {counts[token].max()} outliers, a chunk has "
                f"{CHUNK} elements: it was never appended, or was overwritten"
            )
        return self.stream_bytes(counts)

    def stream_bytes(self, counts: NDArray[np.uint8]) -> NDArray[np.int64]:
        """(tokens, streams): bytes of sparse entries of tokens whose chunks have so many outliers."""
        by_stream = counts.reshape(len(counts), self.streams, self.chunks // self.streams)
        made: NDArray[np.int64] = by_stream.sum(axis=2, dtype=np.int64)
        return made

    def expected(self, count: int, permille: int) -> NDArray[np.int64]:
        """(tokens, streams): bytes of sparse entries where every thousand elements have so many outliers."""
        ends = np.arange(count + 1, dtype=np.int64) * (self.width // self.streams) * permille // 1000
        return np.repeat(np.diff(ends)[:, None], self.streams, axis=1)

    def encoded(self, read: Read, count: int) -> Encoded:
        """The first `count` tokens as they are stored."""
        lengths = self.lengths(read, count)
        dense = read(self.dense_rows(0, count)).reshape(self.heads, count, -1).transpose(1, 0, 2)
        total = lengths.sum(axis=0)
        parts = [
            read(make_region(self.sparse(stream), 1, int(size))).reshape(-1)
            for stream, size in enumerate(total.tolist())
            if size
        ]
        entries = np.concatenate(parts) if parts else np.zeros(0, np.uint8)
        return Encoded(
            np.ascontiguousarray(dense).reshape(count, -1),
            read(self.count_rows(0, count)).reshape(count, -1),
            entries[_by_token(lengths)],
            read(self.meta_rows(0, count)).reshape(count, -1),
        )

    def read(self, read: Read, count: int, parameters: Parameters) -> NDArray[np.float16]:
        """Numbers of the first `count` tokens, (heads, tokens, D)."""
        if not count:
            return np.zeros((self.heads, 0, self.head_dim), np.float16)
        made = oaken.decode(self.encoded(read, count), parameters.thresholds, parameters.code)
        return self._heads(made)

    def append(
        self, read: Read, first: int, rows: NDArray[Any], parameters: Parameters
    ) -> tuple[tuple[tuple[Region, Bytes], ...], NDArray[np.float16]]:
        """(writes, the numbers as they will be read) of tokens (tokens, C) behind the first ones."""
        made = oaken.encode(rows, parameters.thresholds, parameters.code)
        count = len(rows)
        before = self.lengths(read, first).sum(axis=0)
        lengths = self.stream_bytes(made.counts)
        by_stream = np.empty_like(made.sparse)
        by_stream[_by_token(lengths)] = made.sparse
        dense = made.dense.reshape(count, self.heads, -1).transpose(1, 0, 2)
        writes = [
            (self.dense_rows(first, count), np.ascontiguousarray(dense).reshape(-1)),
            (self.meta_rows(first, count), made.meta.reshape(-1)),
            (self.count_rows(first, count), made.counts.reshape(-1)),
        ]
        ends = np.cumsum(lengths.sum(axis=0))
        for stream, (end, size) in enumerate(zip(ends.tolist(), lengths.sum(axis=0).tolist(), strict=True)):
            if size:
                at = self.sparse(stream) + int(before[stream])
                writes.append((make_region(at, 1, size), by_stream[end - size : end]))
        return tuple(writes), self._heads(oaken.decode(made, parameters.thresholds, parameters.code))

    def _heads(self, tokens: NDArray[Any]) -> NDArray[Any]:
        """(tokens, C) as (heads, tokens, D)."""
        made: NDArray[Any] = tokens.reshape(len(tokens), self.heads, self.head_dim).transpose(1, 0, 2)
        return np.ascontiguousarray(made)


class Sizes(NamedTuple):
    """Bytes of sparse entries of tokens, known when a command starts."""

    ends: NDArray[np.int64]
    """(tokens + 1, streams): bytes of each stream before a token."""

    @property
    def digest(self) -> bytes:
        """Of all of them: equal ones have the same."""
        return blake2b(np.ascontiguousarray(self.ends).tobytes(), digest_size=16).digest()

    def between(
        self, stream: NDArray[np.int64], first: NDArray[np.int64], count: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(offset, bytes) in a stream of `count` tokens from `first` on."""
        begin = self.ends[first, stream]
        return begin, self.ends[first + count, stream] - begin


class KvAccess(NamedTuple):
    """An encoded cache that a command reads or appends to."""

    cache: EncodedCache
    tokens: int
    """In it, after the command."""
    new: int
    """Of these, appended by it."""
    sizes: Sizes


def _by_token(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the entries of (tokens, streams), token by token, are in all streams one behind the other."""
    by_stream = np.ascontiguousarray(lengths.T).reshape(-1)
    start = (np.cumsum(by_stream) - by_stream).reshape(lengths.T.shape).T.reshape(-1)
    size = lengths.reshape(-1)
    out = np.cumsum(size) - size
    made: NDArray[np.int64] = np.repeat(start - out, size) + np.arange(int(size.sum()))
    return made
