"""Codecs of keys or of values: the streams that a cache consists of, offline tables, engine work, encoding and decoding
(docs/kv-cache.md, "Codecs").

Device, allocator, DMA, server and reports ask a codec; none of them knows a method.
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
"""fp16 minimum and step of a group of elements."""
MIN_REACH = np.float32(2.0**-14)
"""Smallest normal number of fp16."""


class PageTable(IntEnum):
    """Table of the MMU that has the pages of a stream, in the order of allocation."""

    DENSE = 0
    SPARSE = 1
    META = 2


class Stream(NamedTuple):
    """Bytes of a cache that follow each other token by token."""

    name: str
    rows: int
    """Streams side by side: one for each head, for several heads, or for all of them."""
    size: int
    """Bytes of a group of tokens in a row; of a counted stream at most."""
    pages: PageTable
    group: int = 1
    """Tokens whose bytes are written together."""
    ring: int = 0
    """Tokens of a ring; 0: as many as the cache holds."""
    counted: bool = False
    """Whether the bytes of a token are those that its counts say."""
    engine: bool = False
    """Whether the engine of the DMA makes or takes the bytes; others move as they are."""
    moved: bool = True
    """Whether commands move it; the counts stay in the management table."""

    def groups(self, t_max: int) -> int:
        """Groups that a row has space for."""
        return min(self.ring, t_max) if self.ring else -(-t_max // self.group)

    def stored(self, tokens: int, coded: int) -> int:
        """Bytes of a row with so many tokens, `coded` of them encoded; of a counted stream at most."""
        if self.ring:
            return min(tokens, self.ring) * self.size
        return -(-coded // self.group) * self.size


@dataclass(frozen=True)
class Encoded:
    """Tokens in encoded form."""

    dense: Bytes
    """(tokens, C x bits / 8)."""
    counts: Bytes
    """(tokens, C / 64): entries of each chunk of elements; of a codec without entries (tokens, 0)."""
    sparse: Bytes
    """Entries by token, chunk, index."""
    meta: Bytes
    """(groups of tokens, bytes of a group)."""

    @property
    def payload(self) -> int:
        """Bytes without counts, which the management table keeps."""
        return int(self.dense.size + self.sparse.size + self.meta.size)


class StoredTokens(NamedTuple):
    """Keys or values of a text as stored, and as each token reads those up to itself."""

    numbers: Floats
    """(tokens, C), read after they left the tail."""
    tail: Floats | None
    """(tokens, C), read while they are in the tail; None: no tail."""
    coded: NDArray[np.int64]
    """(tokens,): tokens outside the tail when this token reads."""
    size: int
    """Bytes, without counts of chunks."""
    counts: Bytes
    """(tokens, chunks): entries of each chunk of the encoded tokens."""

    @property
    def bits(self) -> float:
        """Bits of an element."""
        return 8 * self.size / self.numbers.size


class Rotary(NamedTuple):
    """Rotary positions of the heads of a layer."""

    frequencies: Floats
    """(pairs,), radians from position to position."""
    neighbours: bool = False
    """Pairs are elements 2i and 2i + 1; else i and i + pairs."""

    @classmethod
    def unpack(cls, data: bytes) -> "Rotary":
        """Positions of `pack`."""
        count, neighbours = np.frombuffer(data[:4], "<u2").tolist()
        return cls(np.frombuffer(data[4:], "<f4")[:count], bool(neighbours))

    def pack(self, head_dim: int) -> bytes:
        """Count of pairs and their form, u16 each, then fp32 of `head_dim` / 2 frequencies."""
        words = np.array([len(self.frequencies), self.neighbours], "<u2").tobytes()
        rest = np.zeros(head_dim // 2 - len(self.frequencies))
        return words + np.concatenate((self.frequencies, rest)).astype("<f4").tobytes()

    def turn(self, x: Floats, head_dim: int, first: int, *, back: bool = False) -> Floats:
        """Tokens (tokens, C) from position `first` on, turned by their positions, or `back`."""
        count = len(self.frequencies)
        if not count:
            return x
        angles = np.arange(first, first + len(x))[:, None, None] * self.frequencies.astype(np.float64)
        cos, sin = np.cos(angles).astype(np.float32), np.sin(-angles if back else angles).astype(np.float32)
        turned = x.reshape(len(x), -1, head_dim).copy()
        at = (
            (slice(0, 2 * count, 2), slice(1, 2 * count, 2))
            if self.neighbours
            else (slice(count), slice(count, 2 * count))
        )
        a, b = (turned[..., part].copy() for part in at)
        turned[..., at[0]], turned[..., at[1]] = a * cos - b * sin, b * cos + a * sin
        return turned.reshape(x.shape)


NO_POSITIONS = Rotary(np.zeros(0, np.float32))


@dataclass(frozen=True)
class Parameters:
    """Offline knowledge of a codec about the keys, or values, of a layer."""

    thresholds: Thresholds = ZERO_THRESHOLDS
    code: str = "msb_clamp"
    """Outlier code of Oaken."""
    table: bytes = b""
    first: int = 0
    """Position of the first of the tokens."""


@dataclass(frozen=True)
class KvCodec(ABC):
    """Encoding of the keys, or of the values, of a layer."""

    policy: ClassVar[KvPolicy]
    bits: int = 4
    """Bits of a code of an element."""
    group: ClassVar[int] = 1
    """Tokens that are encoded together; those that are too few yet wait in the tail, as fp16."""
    keep: ClassVar[int] = 0
    """Latest tokens that stay in the tail."""
    passes: ClassVar[int] = 2
    """Passes of the encoding engine over the elements; the last makes codes beside the bytes."""
    entry_bytes: ClassVar[int] = 0
    """Bytes of an entry of the sparse stream; 0: the codec has none."""
    grouped_heads: ClassVar[int] = 1
    """Heads, at most, whose codes of a token lie side by side; 1: a head's tokens follow each other."""
    has_thresholds: ClassVar[bool] = False
    """Whether its offline knowledge is a file of thresholds."""

    def meta(self, heads: int, head_dim: int) -> tuple[int, int]:
        """Return (rows, bytes of a group of tokens in a row) of the metadata; (1, 0): none."""
        return 1, 0

    @abstractmethod
    def encode(self, x: Floats, head_dim: int, parameters: Parameters) -> Encoded:
        """Tokens (tokens, C), whole groups. NpuDeviceError: numbers that cannot be encoded."""

    @abstractmethod
    def decode(self, encoded: Encoded, head_dim: int, parameters: Parameters) -> NDArray[np.float16]:
        """Numbers (tokens, C) of encoded tokens. NpuDeviceError where the parts contradict each other."""

    def table_bytes(self, heads: int, head_dim: int) -> int:
        """Bytes of the table that is made offline; 0: none."""
        return 0

    def calibrate(
        self, samples: Sequence[Floats], head_dim: int, ratios: Sequence[float] = RATIOS, code: str = "msb_clamp",
        rotary: Rotary = NO_POSITIONS,
    ) -> Parameters:  # fmt: skip
        """Parameters from samples (tokens, C), a run each from position 0 on. `ratios`: shares of the groups of Oaken,
        `code`: its outlier code; `rotary`: positions of keys. NpuDeviceError: numbers that are not finite."""
        for sample in samples:
            check_values("calibration", sample)
        return Parameters(table=self.make_table(samples, head_dim, rotary) if self.offline else b"")

    @property
    def max_code(self) -> int:
        """Largest signed code."""
        return (1 << self.bits - 1) - 1

    @property
    def offline(self) -> bool:
        """Check whether its parameters need samples."""
        return self.has_thresholds or bool(self.table_bytes(1, 2))

    def make_table(self, samples: Sequence[Floats], head_dim: int, rotary: Rotary = NO_POSITIONS) -> bytes:
        """Table from samples, of a codec that has one."""
        raise NotImplementedError

    def statistics(self, encoded: Encoded) -> dict[str, float]:
        """Entries of a report about encoded tokens besides counts and bytes."""
        return {}

    def entries(self, permille: int) -> int:
        """Entries of a thousand elements in runs without values, where a configuration assumes `permille`."""
        return permille

    def parameters(self, half: KvHalf, table: bytes, where: str) -> Parameters:
        """Parameters in half a block. NpuDeviceError: words that are none of this codec."""
        for name, value, rule in (("outlier_code", half.outlier_code, 0), ("chunk", half.chunk, KV_CHUNK)):
            if value != rule:
                raise NpuDeviceError(f"{name} {value} at {where}: must be {rule}")
        if any(half.kv_reserved) or any(half.thresholds):
            raise NpuDeviceError(f"a reserved word at {where} is not zero")
        return Parameters(table=table)

    def pack_parameters(self, parameters: Parameters, table: int = 0) -> bytes:
        """Half a parameter block; `table`: bytes from it to the table."""
        return KvHalf(policy=self.policy, table=table).pack()

    def check(self, heads: int, head_dim: int) -> None:
        """NpuDeviceError for a shape that the codec cannot store."""
        if head_dim * self.bits % 8:
            raise NpuDeviceError(
                f"encoded cache head_dim {head_dim}: a row of {head_dim} x {self.bits} bits must end at a byte"
            )

    def coded(self, tokens: int) -> int:
        """Tokens of so many that are encoded; the others are in the tail."""
        return max(0, tokens - self.keep) // self.group * self.group

    @property
    def tail(self) -> int:
        """Tokens of the ring of the tail; 0: the codec has none."""
        return self.keep + self.group if self.keep or self.group > 1 else 0

    def head_group(self, heads: int) -> int:
        """Heads whose codes of a token lie side by side."""
        return gcd(heads, self.grouped_heads)

    def streams(self, heads: int, head_dim: int) -> tuple[Stream, ...]:
        """Streams in the order of their addresses."""
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
        """Keys or values (tokens, C) of a text as this codec stores them. NpuDeviceError: as of `encode`."""
        count, parts, waiting = self.coded(len(x)), list[NDArray[np.float16]](), to_fp16(x)
        counts, size = np.zeros((0, 0), np.uint8), FP16_BYTES * (len(x) - self.coded(len(x))) * x.shape[1]
        if count:
            encoded = self.encode(waiting[:count].astype(np.float32) if self.tail else x[:count], head_dim, parameters)
            parts.append(self.decode(encoded, head_dim, parameters))
            counts, size = encoded.counts, size + encoded.payload
        numbers = np.concatenate([*parts, waiting[count:]]).astype(np.float32)
        coded = np.array([self.coded(token + 1) for token in range(len(x))], np.int64)
        return StoredTokens(numbers, waiting.astype(np.float32) if self.tail else None, coded, size, counts)

    def read_back(self, x: Floats, head_dim: int, parameters: Parameters) -> Floats:
        """Keys or values (tokens, C) as they are read after they were stored."""
        return self.store(x, head_dim, parameters).numbers

    def stored_bytes(self, x: Floats, head_dim: int, parameters: Parameters) -> int:
        """Bytes of tokens (tokens, C), counted in their encoding; without counts of chunks."""
        return self.store(x, head_dim, parameters).size


def check_values(name: str, x: NDArray[Any]) -> None:
    """NpuDeviceError for NaN, infinities, and numbers beyond fp16."""
    if x.size and not max(float(x.max()), -float(x.min())) <= MAX_FP16:
        token = int(np.flatnonzero(~(np.abs(x) <= MAX_FP16).all(axis=1))[0])
        raise NpuDeviceError(
            f"{name}: token {token} has an element that is NaN, infinite or beyond fp16: must be finite"
        )


def chunk_counts(outlier: NDArray[np.bool_]) -> Bytes:
    """Return (tokens, chunks): entries of each chunk of elements, which are flagged (tokens, C)."""
    counts: Bytes = outlier.reshape(len(outlier), -1, KV_CHUNK).sum(axis=2, dtype=np.uint8)
    return counts


def round_to_fp16(x: NDArray[Any]) -> Floats:
    """fp32 of numbers rounded to fp16; a zero has no sign."""
    rounded: Floats = x.astype(np.float16).astype(np.float32) + np.float32(0)
    return rounded


def pack(codes: Bytes, bits: int) -> Bytes:
    """Codes (tokens, C) as bytes (tokens, C x bits / 8): the first in the lowest bits."""
    if bits == 4:
        pairs = np.ascontiguousarray(codes).view("<u2")
        packed: Bytes = (pairs | pairs >> 4).astype(np.uint8)
        return packed
    planes = codes[..., None] >> np.arange(bits, dtype=np.uint8) & np.uint8(1)
    return np.packbits(planes.reshape(len(codes), -1), axis=1, bitorder="little")


def unpack(data: Bytes, bits: int) -> Bytes:
    """Codes of `pack`."""
    if bits == 4:
        return np.stack((data & np.uint8(15), data >> np.uint8(4)), axis=-1).reshape(len(data), 2 * data.shape[1])
    planes = np.unpackbits(data, axis=1, bitorder="little").reshape(len(data), data.shape[1] * 8 // bits, bits)
    codes: Bytes = (planes << np.arange(bits, dtype=np.uint8)).sum(axis=2, dtype=np.uint8)
    return codes


def asymmetric(x: Floats, bits: int) -> tuple[Bytes, Floats]:
    """Return (codes, (..., 2) minimum and step that fp16 holds) of groups along the last axis."""
    top = np.float32((1 << bits) - 1)
    low, high = round_to_fp16(x.min(axis=-1)), x.max(axis=-1)
    step = round_to_fp16((high - low) / top)
    scaled = np.divide(x - low[..., None], step[..., None], out=np.zeros_like(x), where=step[..., None] > 0)
    codes = np.clip(np.rint(scaled), 0, top).astype(np.uint8)
    return codes, np.stack((low, step), axis=-1)


def from_asymmetric(codes: Bytes, meta: Floats) -> Floats:
    """Numbers of codes (..., n) with minimum and step (..., 2)."""
    numbers: Floats = codes.astype(np.float32) * meta[..., 1:] + meta[..., :1]
    return numbers


def to_fp16(x: Floats) -> NDArray[np.float16]:
    """Numbers as fp16, saturated."""
    return np.clip(x, -MAX_FP16, MAX_FP16).astype(np.float16)


def meta_bytes(meta: Floats) -> Bytes:
    """Return (groups, bytes) of fp16 metadata (groups, ...)."""
    return np.ascontiguousarray(meta.reshape(len(meta), -1).astype(np.float16)).view(np.uint8)


def meta_numbers(data: Bytes, shape: tuple[int, ...]) -> Floats:
    """Metadata of `meta_bytes`, (groups, *shape)."""
    return np.ascontiguousarray(data).view(np.float16).astype(np.float32).reshape(len(data), *shape)


def middle_and_reach(low: NDArray[Any], high: NDArray[Any]) -> tuple[Floats, Floats]:
    """fp16 middle of intervals, and distance from there to their ends."""
    return round_to_fp16((low + high) / 2), np.maximum(round_to_fp16((high - low) / 2), MIN_REACH)


def check_table(parameters: Parameters, size: int) -> None:
    if len(parameters.table) != size:
        raise NpuDeviceError(f"a table of {len(parameters.table)} bytes: must be {size}")


def fp16_table(parameters: Parameters, count: int) -> Floats:
    """Numbers of a table. NpuDeviceError: another size, numbers that are not finite."""
    check_table(parameters, FP16_BYTES * count)
    words = np.frombuffer(parameters.table, np.float16).astype(np.float32)
    if not np.isfinite(words).all():
        raise NpuDeviceError("a table has numbers that are not finite")
    return words


def entropy_bound(encoded: Encoded, bits: int) -> float:
    """Bits of an element that no code of single symbols is below: order-0 entropies of codes and of bytes of entries,
    and the metadata as they are."""
    codes = unpack(encoded.dense, bits).reshape(-1)
    total = sum(len(symbols) * _entropy(symbols) for symbols in (codes, encoded.sparse))
    return (total + 8 * encoded.meta.size) / max(1, codes.size)


def _entropy(symbols: Bytes) -> float:
    """Bits of a symbol."""
    counts = np.bincount(symbols)
    shares = counts[counts > 0] / max(1, len(symbols))
    return float(-(shares * np.log2(shares)).sum())
