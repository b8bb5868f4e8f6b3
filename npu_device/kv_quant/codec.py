"""Interface of codecs of keys or values: streams of a cache, offline tables, engine work, encoding and decoding
(docs/kv-cache.md, "Codecs").

Device, allocator, DMA, server and reports use only this interface, so they are independent of the method.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import gcd
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.abi.errors import NpuDeviceError
from npu_device.abi.kv_block import KV_CHUNK, KvHalf, KvPolicy
from npu_device.kv_quant.thresholds import RATIOS, Thresholds

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
MAX_FP16 = 65504.0
ZERO_THRESHOLDS = Thresholds(0, 0, 0, 0)
FP16_BYTES = 2
MIN_STEP_BYTES = 2 * FP16_BYTES
"""Bytes of the fp16 minimum and step of a group of elements."""
MIN_REACH = np.float32(2.0**-14)
"""Smallest normal number of fp16, the lower bound of half-ranges."""


class PageTable(IntEnum):
    """MMU table with the pages of a stream, in the order of allocation."""

    DENSE = 0
    SPARSE = 1
    META = 2


class Stream(NamedTuple):
    """Stream of a cache: bytes that are contiguous token by token."""

    name: str
    rows: int
    """Number of parallel rows: one for each head, for several heads, or for all of them."""
    size: int
    """Bytes of a group of tokens in a row; the maximum for a counted stream."""
    pages: PageTable
    group: int = 1
    """Number of tokens whose bytes are written together."""
    ring: int = 0
    """Capacity of a ring in tokens; 0 for the capacity of the cache."""
    counted: bool = False
    """Whether the number of bytes of a token depends on its counts."""
    engine: bool = False
    """Whether the KV engine encodes or decodes the bytes; others are copied."""
    moved: bool = True
    """Whether commands move it; counts remain in the management table."""

    def groups(self, t_max: int) -> int:
        """Return the capacity of a row in groups."""
        return min(self.ring, t_max) if self.ring else -(-t_max // self.group)

    def stored(self, tokens: int, coded: int) -> int:
        """Return the bytes of a row with `tokens` tokens, `coded` of them encoded; the maximum for a counted stream."""
        if self.ring:
            return min(tokens, self.ring) * self.size
        return -(-coded // self.group) * self.size


@dataclass(frozen=True)
class Encoded:
    """Tokens in encoded form."""

    dense: Bytes
    """Codes, shape (tokens, C x bits / 8)."""
    counts: Bytes
    """Entries of each chunk of elements, shape (tokens, C / 64); (tokens, 0) for a codec without entries."""
    sparse: Bytes
    """Entries by token, chunk, index."""
    meta: Bytes
    """Metadata, shape (groups of tokens, bytes of a group)."""

    @property
    def payload(self) -> int:
        """Bytes without counts, which are in the management table."""
        return int(self.dense.size + self.sparse.size + self.meta.size)


class StoredTokens(NamedTuple):
    """Stored keys or values of a text, with the values that each token reads of itself and earlier tokens."""

    numbers: Floats
    """Values read after the tokens left the tail, shape (tokens, C)."""
    tail: Floats | None
    """Values read while the tokens are in the tail, shape (tokens, C); None without a tail."""
    coded: NDArray[np.int64]
    """Number of tokens outside the tail at each token's read, shape (tokens,)."""
    size: int
    """Bytes, without counts of chunks."""
    counts: Bytes
    """Entries of each chunk of the encoded tokens, shape (tokens, chunks)."""

    @property
    def bits(self) -> float:
        """Bits per element."""
        return 8 * self.size / self.numbers.size


class Rotary(NamedTuple):
    """Rotary positions of the heads of a layer."""

    frequencies: Floats
    """Radians per position, shape (pairs,)."""
    neighbours: bool = False
    """Whether pairs are elements 2i and 2i + 1, else i and i + pairs."""

    @classmethod
    def unpack(cls, data: bytes) -> "Rotary":
        """Invert `pack`."""
        count, neighbours = np.frombuffer(data[:4], "<u2").tolist()
        return cls(np.frombuffer(data[4:], "<f4")[:count], bool(neighbours))

    def pack(self, head_dim: int) -> bytes:
        """Return the number of pairs and their form, u16 each, then `head_dim` / 2 frequencies in fp32."""
        words = np.array([len(self.frequencies), self.neighbours], "<u2").tobytes()
        padding = np.zeros(head_dim // 2 - len(self.frequencies))
        return words + np.concatenate((self.frequencies, padding)).astype("<f4").tobytes()

    def turn(self, x: Floats, head_dim: int, first: int, *, back: bool = False) -> Floats:
        """Rotate tokens, shape (tokens, C), by their positions from `first` on. `back`: invert the rotation."""
        count = len(self.frequencies)
        if not count:
            return x
        angles = np.arange(first, first + len(x))[:, None, None] * self.frequencies.astype(np.float64)
        cos, sin = np.cos(angles).astype(np.float32), np.sin(-angles if back else angles).astype(np.float32)
        result = x.reshape(len(x), -1, head_dim).copy()
        elements = (
            (slice(0, 2 * count, 2), slice(1, 2 * count, 2))
            if self.neighbours
            else (slice(count), slice(count, 2 * count))
        )
        a, b = (result[..., part].copy() for part in elements)
        result[..., elements[0]], result[..., elements[1]] = a * cos - b * sin, b * cos + a * sin
        return result.reshape(x.shape)


NO_POSITIONS = Rotary(np.zeros(0, np.float32))


@dataclass(frozen=True)
class Parameters:
    """Offline parameters of a codec for the keys, or values, of a layer."""

    thresholds: Thresholds = ZERO_THRESHOLDS
    code: str = "msb_clamp"
    """Outlier code of Oaken."""
    table: bytes = b""
    first: int = 0
    """Position of the first token."""


@dataclass(frozen=True)
class KvCodec(ABC):
    """Encoding of the keys, or of the values, of a layer."""

    policy: ClassVar[KvPolicy]
    bits: int = 4
    """Bits of an element's code."""
    group: ClassVar[int] = 1
    """Number of tokens that are encoded together; an incomplete group waits in the tail, as fp16."""
    keep: ClassVar[int] = 0
    """Number of latest tokens that remain in the tail."""
    passes: ClassVar[int] = 2
    """Number of passes of the encoding engine; the last encodes in parallel with the bytes."""
    entry_bytes: ClassVar[int] = 0
    """Bytes of an entry of the sparse stream; 0 without entries."""
    grouped_heads: ClassVar[int] = 1
    """Maximum number of heads whose codes of a token are adjacent; 1 if a head's tokens are contiguous."""
    outlier_codes: ClassVar[int] = 1
    """Number of encodings of outliers."""
    has_thresholds: ClassVar[bool] = False
    """Whether its offline parameters are a file of thresholds."""

    def meta(self, heads: int, head_dim: int) -> tuple[int, int]:
        """Return (rows, bytes of a group of tokens in a row) of the metadata; (1, 0) for none."""
        return 1, 0

    @abstractmethod
    def encode(self, x: Floats, head_dim: int, parameters: Parameters) -> Encoded:
        """Encode whole groups of tokens, shape (tokens, C). Raise NpuDeviceError for numbers that cannot be encoded."""

    @abstractmethod
    def decode(self, encoded: Encoded, head_dim: int, parameters: Parameters) -> NDArray[np.float16]:
        """Decode tokens to shape (tokens, C). Raise NpuDeviceError if the parts are inconsistent."""

    def table_bytes(self, heads: int, head_dim: int) -> int:
        """Return the bytes of the offline table; 0 for none."""
        return 0

    def calibrate(
        self, samples: Sequence[Floats], head_dim: int, ratios: Sequence[float] = RATIOS, code: str = "msb_clamp",
        rotary: Rotary = NO_POSITIONS,
    ) -> Parameters:  # fmt: skip
        """Return parameters from samples (tokens, C), each from position 0 on. `ratios`: shares of Oaken's groups,
        `code`: its outlier code; `rotary`: positions of keys. Raise NpuDeviceError for numbers that are not finite."""
        for sample in samples:
            check_values("calibration", sample)
        return Parameters(table=self.make_table(samples, head_dim, rotary) if self.offline else b"")

    @property
    def max_code(self) -> int:
        """Largest signed code."""
        return (1 << self.bits - 1) - 1

    @property
    def offline(self) -> bool:
        """Whether its parameters need samples."""
        return self.has_thresholds or bool(self.table_bytes(1, 2))

    def make_table(self, samples: Sequence[Floats], head_dim: int, rotary: Rotary = NO_POSITIONS) -> bytes:
        """Return the table computed from samples, for a codec that has one."""
        raise NotImplementedError

    def statistics(self, encoded: Encoded) -> dict[str, float]:
        """Return the report's entries about encoded tokens in addition to counts and bytes."""
        return {}

    def entries(self, permille: int) -> int:
        """Return the entries per 1,000 elements in runs without values. `permille`: the configured assumption."""
        return permille

    def parameters(self, half: KvHalf, table: bytes, location: str) -> Parameters:
        """Return the parameters in half a block. Raise NpuDeviceError for words that are invalid for this codec."""
        codes = range(self.outlier_codes)
        for name, value, legal in (("outlier_code", half.outlier_code, codes), ("chunk", half.chunk, (KV_CHUNK,))):
            if value not in legal:
                raise NpuDeviceError(f"{name} {value} at {location}: must be {', '.join(map(str, legal))}")
        if any(half.kv_reserved) or (half.table if self.has_thresholds else any(half.thresholds)):
            raise NpuDeviceError(f"a reserved word at {location} is not zero")
        return Parameters(table=table)

    def pack_parameters(self, parameters: Parameters, table: int = 0) -> bytes:
        """Return half a parameter block. `table`: offset from it to the table in bytes."""
        return KvHalf(policy=self.policy, table=table).pack()

    def check(self, heads: int, head_dim: int) -> None:
        """Raise NpuDeviceError for a shape that the codec does not support."""
        if head_dim * self.bits % 8:
            raise NpuDeviceError(
                f"encoded cache head_dim {head_dim}: a row of {head_dim} x {self.bits} bits must end at a byte"
            )

    def coded(self, tokens: int) -> int:
        """Return how many of `tokens` tokens are encoded; the others are in the tail."""
        return max(0, tokens - self.keep) // self.group * self.group

    @property
    def tail(self) -> int:
        """Capacity of the tail's ring in tokens; 0 without a tail."""
        return self.keep + self.group if self.keep or self.group > 1 else 0

    def head_group(self, heads: int) -> int:
        """Return the number of heads whose codes of a token are adjacent."""
        return gcd(heads, self.grouped_heads)

    def streams(self, heads: int, head_dim: int) -> tuple[Stream, ...]:
        """Return the streams in the order of their addresses."""
        rows, size = self.meta(heads, head_dim)
        group = self.head_group(heads)
        size_of_codes = group * (head_dim * self.bits // 8)
        parts = [Stream("dense", heads // group, size_of_codes, PageTable.DENSE, engine=True)]
        if size:
            parts.append(Stream("meta", rows, size, PageTable.META, self.group))
        if self.entry_bytes:
            width = heads * head_dim
            parts.append(Stream("counts", 1, width // KV_CHUNK, PageTable.META, moved=False))
            count = width // int(np.lcm(KV_CHUNK, head_dim))
            parts.append(Stream("sparse", count, width // count * self.entry_bytes, PageTable.SPARSE, counted=True))
        if self.tail:
            parts.append(Stream("tail", heads, head_dim * FP16_BYTES, PageTable.DENSE, ring=self.tail))
        return tuple(parts)

    def store(self, x: Floats, head_dim: int, parameters: Parameters) -> StoredTokens:
        """Store the keys or values of a text, shape (tokens, C). Raise NpuDeviceError as `encode`."""
        count, parts, tail = self.coded(len(x)), list[NDArray[np.float16]](), to_fp16(x)
        counts, size = np.zeros((0, 0), np.uint8), FP16_BYTES * (len(x) - self.coded(len(x))) * x.shape[1]
        if count:
            encoded = self.encode(tail[:count].astype(np.float32) if self.tail else x[:count], head_dim, parameters)
            parts.append(self.decode(encoded, head_dim, parameters))
            counts, size = encoded.counts, size + encoded.payload
        numbers = np.concatenate([*parts, tail[count:]]).astype(np.float32)
        coded = np.array([self.coded(token + 1) for token in range(len(x))], np.int64)
        return StoredTokens(numbers, tail.astype(np.float32) if self.tail else None, coded, size, counts)


def check_values(name: str, x: NDArray[Any]) -> None:
    """Raise NpuDeviceError for NaN, infinities, and numbers beyond fp16."""
    if x.size and not max(float(x.max()), -float(x.min())) <= MAX_FP16:
        token = int(np.flatnonzero(~(np.abs(x) <= MAX_FP16).all(axis=1))[0])
        raise NpuDeviceError(
            f"{name}: token {token} has an element that is NaN, infinite or beyond fp16: must be finite"
        )


def chunk_counts(outlier: NDArray[np.bool_]) -> Bytes:
    """Return the number of flagged elements of each chunk, shape (tokens, chunks), from flags (tokens, C)."""
    counts: Bytes = outlier.reshape(len(outlier), -1, KV_CHUNK).sum(axis=2, dtype=np.uint8)
    return counts


def round_to_fp16(x: NDArray[Any]) -> Floats:
    """Round numbers to fp16 and return them as fp32, with positive zeros."""
    rounded: Floats = x.astype(np.float16).astype(np.float32) + np.float32(0)
    return rounded


def pack(codes: Bytes, bits: int) -> Bytes:
    """Pack codes (tokens, C) into bytes (tokens, C x bits / 8), the first in the lowest bits."""
    if bits == 4:
        pairs = np.ascontiguousarray(codes).view("<u2")
        packed: Bytes = (pairs | pairs >> 4).astype(np.uint8)
        return packed
    planes = codes[..., None] >> np.arange(bits, dtype=np.uint8) & np.uint8(1)
    return np.packbits(planes.reshape(len(codes), -1), axis=1, bitorder="little")


def unpack(data: Bytes, bits: int) -> Bytes:
    """Invert `pack`."""
    if bits == 4:
        return np.stack((data & np.uint8(15), data >> np.uint8(4)), axis=-1).reshape(len(data), 2 * data.shape[1])
    planes = np.unpackbits(data, axis=1, bitorder="little").reshape(len(data), data.shape[1] * 8 // bits, bits)
    codes: Bytes = (planes << np.arange(bits, dtype=np.uint8)).sum(axis=2, dtype=np.uint8)
    return codes


def asymmetric(x: Floats, bits: int) -> tuple[Bytes, Floats]:
    """Return (codes, fp16 minimum and step (..., 2)) of groups along the last axis."""
    top = np.float32((1 << bits) - 1)
    low, high = round_to_fp16(x.min(axis=-1)), x.max(axis=-1)
    step = round_to_fp16((high - low) / top)
    scaled = np.divide(x - low[..., None], step[..., None], out=np.zeros_like(x), where=step[..., None] > 0)
    codes = np.clip(np.rint(scaled), 0, top).astype(np.uint8)
    return codes, np.stack((low, step), axis=-1)


def from_asymmetric(codes: Bytes, meta: Floats) -> Floats:
    """Return the numbers of codes (..., n) with minimum and step (..., 2)."""
    numbers: Floats = codes.astype(np.float32) * meta[..., 1:] + meta[..., :1]
    return numbers


def to_fp16(x: Floats) -> NDArray[np.float16]:
    """Convert numbers to fp16 with saturation."""
    return np.clip(x, -MAX_FP16, MAX_FP16).astype(np.float16)


def meta_bytes(meta: Floats) -> Bytes:
    """Return the bytes of metadata (groups, ...) as fp16, shape (groups, bytes)."""
    return np.ascontiguousarray(meta.reshape(len(meta), -1).astype(np.float16)).view(np.uint8)


def meta_numbers(data: Bytes, shape: tuple[int, ...]) -> Floats:
    """Invert `meta_bytes` to shape (groups, *shape)."""
    return np.ascontiguousarray(data).view(np.float16).astype(np.float32).reshape(len(data), *shape)


def middle_and_reach(low: NDArray[Any], high: NDArray[Any]) -> tuple[Floats, Floats]:
    """Return the midpoints and half-ranges of intervals, rounded to fp16."""
    return round_to_fp16((low + high) / 2), np.maximum(round_to_fp16((high - low) / 2), MIN_REACH)


def check_table(parameters: Parameters, size: int) -> None:
    if len(parameters.table) != size:
        raise NpuDeviceError(f"a table of {len(parameters.table)} bytes: must be {size}")


def fp16_table(parameters: Parameters, count: int) -> Floats:
    """Return the numbers of a table. Raise NpuDeviceError for another size or numbers that are not finite."""
    check_table(parameters, FP16_BYTES * count)
    words = np.frombuffer(parameters.table, np.float16).astype(np.float32)
    if not np.isfinite(words).all():
        raise NpuDeviceError("a table has numbers that are not finite")
    return words


def entropy_bound(encoded: Encoded, bits: int) -> float:
    """Return the lower bound in bits per element of coding by symbols: order-0 entropies of codes and of entry bytes,
    plus uncompressed metadata."""
    codes = unpack(encoded.dense, bits).reshape(-1)
    total = sum(len(symbols) * _entropy(symbols) for symbols in (codes, encoded.sparse))
    return (total + 8 * encoded.meta.size) / max(1, codes.size)


def _entropy(symbols: Bytes) -> float:
    """Return the entropy in bits per symbol."""
    counts = np.bincount(symbols)
    shares = counts[counts > 0] / max(1, len(symbols))
    return float(-(shares * np.log2(shares)).sum())
