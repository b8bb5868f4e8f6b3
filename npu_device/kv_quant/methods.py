"""Storage methods of keys and values, used by compiler, server and reports: a codec for each of the two
(docs/kv-cache.md, "Methods")."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from npu_device.abi.opcodes import BITS, DataType
from npu_device.config import KvQuantConfig
from npu_device.kv_quant import codecs
from npu_device.kv_quant.codec import Floats, KvCodec, Parameters, StoredTokens, Stream, to_fp16
from npu_device.kv_quant.storage import EncodedCache, Pages, pages
from npu_device.kv_quant.thresholds import RATIOS
from npu_device.memory.bitwidth import bytes_total
from npu_device.memory.kv import SCALE_BYTES, KvCache

CodecPair = tuple[KvCodec, KvCodec]
"""Codecs of keys and of values."""
SIDES = ("k", "v")
FLOAT8 = {DataType.E4M3FN: ml_dtypes.float8_e4m3fn, DataType.E5M2: ml_dtypes.float8_e5m2}


@dataclass(frozen=True)
class KvMethod:
    """Storage method: plain numbers, or a codec for keys and one for values."""

    name: str
    element: DataType = DataType.FP16
    """Element type of plain numbers."""
    codecs: CodecPair | None = None
    """Codecs; None for plain numbers, whose type is in the descriptor."""
    outliers: int = 100
    """Assumed permille of Oaken's elements with an entry in runs without values; reported with every figure."""
    page_bytes: int = 4096

    def with_config(self, config: KvQuantConfig) -> "KvMethod":
        """Return the method with the outlier share and page size of a device's configuration."""
        return replace(self, outliers=config.p_out_permille, page_bytes=config.page_bytes)

    @property
    def bits(self) -> int:
        """Bits of an element's code, without entries and metadata."""
        return BITS[self.element] if self.codecs is None else max(codec.bits for codec in self.codecs)

    @property
    def encoded(self) -> bool:
        """Whether elements are encoded, so that tokens have virtual addresses and pages of DRAM."""
        return self.codecs is not None

    @property
    def scaled(self) -> bool:
        """Whether elements are integers, with a scale for each head and token."""
        return self.codecs is None and self.element is not DataType.FP16 and self.element not in FLOAT8

    @property
    def key_codec(self) -> KvCodec:
        """Codec of the keys of an encoded method."""
        assert self.codecs is not None
        return self.codecs[0]

    @property
    def value_codec(self) -> KvCodec:
        """Codec of the values of an encoded method."""
        assert self.codecs is not None
        return self.codecs[1]

    def kind(self, plain_type: DataType) -> DataType:
        """Return the element type of a cache. `plain_type`: the type for plain numbers other than FP8."""
        if self.codecs is not None:
            return DataType.ENCODED
        return self.element if self.element in FLOAT8 else plain_type

    def caches(self, heads: int, t_max: int, head_dim: int) -> tuple[EncodedCache, ...]:
        """Return the caches of keys and values of a layer and request, for an encoded method."""
        return tuple(EncodedCache(0, heads, t_max, head_dim, codec) for codec in self.codecs or ())

    def _pages(self, cache: KvCache, tokens: int) -> list[Pages]:
        """Return the pages of the keys and of the values of `tokens` tokens."""
        sides = []
        for encoded in self.caches(cache.heads, tokens, cache.head_dim):
            entries = encoded.expected(encoded.coded(tokens), self.outliers).sum(axis=0).tolist()
            sides.append(pages(encoded, tokens, entries, self.page_bytes))
        return sides

    def stored_bytes(self, cache: KvCache, tokens: int) -> int:
        """Return the bytes of the keys and values of `tokens` tokens of a layer and request, without counts of entries.
        `cache`: shape, and bits of each head."""
        if not self.encoded:
            return 2 * cache.token_bytes * tokens
        return sum(part.payload for part in self._pages(cache, tokens))

    def allocated_bytes(self, cache: KvCache, tokens: int) -> int:
        """Return the bytes of DRAM allocated for them, in whole pages."""
        if not self.encoded:
            return self.stored_bytes(cache, tokens)
        return sum(part.bytes for part in self._pages(cache, tokens))

    def written(self, heads: int, head_dim: int) -> tuple[tuple[int, ...], ...]:
        """Return the bytes that the append of a token writes to each stream of keys and of values of a layer, including
        counts. Codes that a group writes when it leaves the tail are averaged over its tokens."""
        if self.codecs is None:
            return ((bytes_total(head_dim, self.bits),) * heads,) * 2
        return tuple(tuple(size for _, size in runs) for runs in self._runs(heads, head_dim))

    def token_bytes(self, heads: int, head_dim: int) -> int:
        """Return the bytes of a token outside the tail in the caches of a layer, including counts."""
        if self.codecs is None:
            return sum(map(sum, self.written(heads, head_dim)))
        return sum(size for runs in self._runs(heads, head_dim) for stream, size in runs if not stream.ring)

    def tail_bytes(self, heads: int, head_dim: int) -> int:
        """Return the bytes of the tails of a layer and request."""
        caches = self.caches(heads, 1, head_dim)
        return sum(stream.rows * stream.size * stream.ring for cache in caches for stream in cache.streams.values())

    def _runs(self, heads: int, head_dim: int) -> Iterator[list[tuple[Stream, int]]]:
        """Yield the streams of keys, then of values, of an encoded method with the bytes of a token."""
        for encoded in self.caches(heads, 1, head_dim):
            runs = []
            for stream in encoded.streams.values():
                size = -(-stream.size * stream.rows // stream.group)
                if stream.counted:
                    entry, permille = encoded.codec.entry_bytes, encoded.codec.entries(self.outliers)
                    size = -(-size // entry * permille // 1000) * entry
                runs.append((stream, size))
            yield runs

    def stated(self, cache: KvCache, tokens: int) -> Mapping[str, Any]:
        """Return the report's entries about a layer and request in addition to the bytes, with assumptions, or none."""
        if not self.encoded:
            return {}
        parts, elements = self._pages(cache, tokens), 2 * tokens * cache.heads * cache.head_dim
        count, payload = sum(part.bytes // part.page_bytes for part in parts), sum(part.payload for part in parts)
        shares = [codec.entries(self.outliers) / 1000 for codec in self.codecs or () if codec.entry_bytes]
        return {
            "method": self.name, "p_out": max(shares, default=0.0), "b_eff": 8 * payload / elements, "pages": count,
            "page_bytes": self.page_bytes, "pages_slack": count * self.page_bytes / payload - 1,
            "bursts": sum(part.bursts for part in parts),
        }  # fmt: skip

    def calibrate(self, x: Floats, side: str, head_dim: int, ratios: Sequence[float] = RATIOS) -> Parameters:
        """Return parameters from a sample (tokens, C) of keys (side "k") or values ("v"); plain numbers have none."""
        if self.codecs is None:
            return Parameters()
        return self.codecs[SIDES.index(side)].calibrate([x], head_dim, ratios)

    def store(self, x: Floats, side: str, head_dim: int, parameters: Parameters) -> StoredTokens:
        """Store the keys (side "k") or values ("v") of a text, shape (tokens, C); integers with their scales."""
        if self.codecs is not None:
            return self.codecs[SIDES.index(side)].store(x, head_dim, parameters)
        scales = x.size // head_dim * SCALE_BYTES if self.scaled else 0
        size = bytes_total(x.size, self.bits) + scales
        coded = np.arange(1, len(x) + 1)
        return StoredTokens(read_numbers(x, self.element, head_dim), None, coded, size, np.zeros((0, 0), np.uint8))


def read_numbers(x: Floats, element: DataType, head_dim: int) -> Floats:
    """Round tokens (tokens, C) to a plain type; integers have an fp32 scale for each head and token."""
    if element is DataType.FP16:
        return to_fp16(x).astype(np.float32)
    if element in FLOAT8:
        largest = np.float32(ml_dtypes.finfo(FLOAT8[element]).max)
        return np.clip(x, -largest, largest).astype(FLOAT8[element]).astype(np.float32)
    heads, top = x.reshape(len(x), -1, head_dim), np.float32((1 << BITS[element] - 1) - 1)
    scale = np.maximum(np.abs(heads).max(axis=2, keepdims=True), np.float32(1e-6)) / top
    numbers: Floats = (np.clip(np.rint(heads / scale), -top - 1, top) * scale).astype(np.float32).reshape(x.shape)
    return numbers


FP16 = KvMethod("fp16")
OAKEN = KvMethod("oaken", codecs=(codecs.OAKEN, codecs.OAKEN))
METHODS: Mapping[str, KvMethod] = {
    method.name: method
    for method in (
        FP16,
        KvMethod("fp8_e4m3", DataType.E4M3FN),
        KvMethod("fp8_e5m2", DataType.E5M2),
        KvMethod("uniform8", DataType.INT8),
        KvMethod("uniform4", DataType.INT4),
        KvMethod("uniform2", DataType.INT2),
        OAKEN,
        KvMethod("kivi", codecs=(codecs.CHANNEL_GROUP, codecs.AGED_TOKEN)),
        KvMethod("kvquant", codecs=(codecs.CHANNEL_LEVELS, codecs.TOKEN_LEVELS)),
        KvMethod("qserve", codecs=(codecs.SMOOTHED, codecs.HEAD_TOKEN)),
        KvMethod("atom", codecs=(codecs.HEAD_TOKEN, codecs.HEAD_TOKEN)),
        KvMethod("tender", codecs=(codecs.CHANNEL_SHIFTS, codecs.CHANNEL_SHIFTS)),
        KvMethod("per_token4", codecs=(codecs.TOKEN, codecs.TOKEN)),
        KvMethod("grouped_heads", codecs=(codecs.GROUPED_HEADS, codecs.GROUPED_HEADS)),
        KvMethod("rle", codecs=(codecs.RUNS, codecs.RUNS)),
        KvMethod("delta", codecs=(codecs.DIFFERENCES, codecs.DIFFERENCES)),
        KvMethod("sparse", codecs=(codecs.NONZERO, codecs.NONZERO)),
    )
}
"""Methods by name."""
