"""How keys and values are stored: a policy for each way, which compiler, server and reports ask (docs/oaken.md,
"Policies").

Numbers and Oaken run in the device. The others follow the papers' granularity, not their code, for errors and bits
beside Oaken's: KIVI (arXiv 2402.02750), KVQuant (arXiv 2401.18079), QServe (arXiv 2405.04532). They take the keys or
values of one layer as tokens (tokens, C).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from npu_device.abi.opcodes import BITS, DataType
from npu_device.kv_quant import oaken
from npu_device.kv_quant.oaken import CHUNK, META_BYTES
from npu_device.kv_quant.pages import Pages, pages
from npu_device.kv_quant.storage import EncodedCache, Parameters
from npu_device.memory.bitwidth import bytes_total
from npu_device.memory.kv import KvCache

Floats = NDArray[np.float32]
GROUP = 128
"""Elements of a group of KIVI and QServe."""
SCALE_BITS = 32
"""fp16 min and step of a group."""
OUTLIERS = 0.01
"""Share that KVQuant keeps as fp16."""
OUTLIER_BITS = 32
"""Of one of them: the number and its index."""


@dataclass(frozen=True)
class KvStorage(ABC):
    """A way to store keys and values."""

    name: str
    bits: int = 4
    """Of an element, without what is stored beside it."""
    refused: ClassVar[str] = ""
    """Why the device cannot store them so; empty: it does."""

    @abstractmethod
    def read_back(self, x: Floats, side: str, head_dim: int, parameters: Parameters) -> Floats:
        """Keys (side "k") or values ("v") as they are read after they were stored. `parameters`: of Oaken."""

    @abstractmethod
    def stored_bits(self, x: NDArray[Any], side: str, head_dim: int, parameters: Parameters) -> float:
        """Bits of an element of keys (side "k") or values as stored; of Oaken counted, of the others from shapes."""


@dataclass(frozen=True)
class DeviceStorage(KvStorage):
    """One that the device has. Without values it follows from shapes what is stored."""

    paged: ClassVar[bool] = False
    """Whether its tokens have virtual addresses, and take pages of DRAM where they are touched."""

    def kind(self, number: DataType) -> DataType:
        """The type of a cache whose elements have that of `number` where they are stored one by one."""
        return number

    @abstractmethod
    def stored_bytes(self, cache: KvCache, tokens: int) -> int:
        """Of so many tokens of keys, or of values, of a layer and request. `cache`: heads, and the bits of each."""

    def table(self, cache: EncodedCache) -> bytes:
        """What the table of an encoded cache has when every token is as assumed."""
        return b""

    @abstractmethod
    def written(self, heads: int, head_dim: int) -> tuple[int, ...]:
        """Bytes of each run that the append of a token writes, keys or values of a layer; tables included."""

    def allocated_bytes(self, cache: KvCache, tokens: int) -> int:
        """What so many tokens take of DRAM."""
        return self.stored_bytes(cache, tokens)

    def stated(self, cache: KvCache, tokens: int) -> Mapping[str, Any]:
        """What a report says beside the bytes of a cache, with what was assumed; empty: nothing."""
        return {}


@dataclass(frozen=True)
class Numbers(DeviceStorage):
    """Elements of a number of bits, integers with a scale for each head of a cache."""

    def stored_bytes(self, cache: KvCache, tokens: int) -> int:
        return cache.token_bytes * tokens

    def written(self, heads: int, head_dim: int) -> tuple[int, ...]:
        return (bytes_total(head_dim, self.bits),) * heads

    def read_back(self, x: Floats, side: str, head_dim: int, parameters: Parameters) -> Floats:
        if self.bits == BITS[DataType.FP16]:
            return x.astype(np.float16).astype(np.float32)
        heads, top = x.reshape(len(x), -1, head_dim), np.float32((1 << self.bits - 1) - 1)
        scale = np.maximum(np.abs(heads).max(axis=(0, 2), keepdims=True), np.float32(1e-6)) / top
        made: Floats = (np.clip(np.rint(heads / scale), -top - 1, top) * scale).astype(np.float32).reshape(x.shape)
        return made

    def stored_bits(self, x: NDArray[Any], side: str, head_dim: int, parameters: Parameters) -> float:
        return self.bits


@dataclass(frozen=True)
class Oaken(DeviceStorage):
    """Encoded: nibbles, entries of outliers, metadata of each token, and a table of counts."""

    outliers: int = 100
    """Permille of the elements, in runs without values; stated beside every figure."""
    page_bytes: int = 4096
    paged: ClassVar[bool] = True

    def kind(self, number: DataType) -> DataType:
        return DataType.ENCODED

    def stored_bytes(self, cache: KvCache, tokens: int) -> int:
        """Without the counts, which the management table keeps."""
        encoded = EncodedCache(0, cache.heads, tokens, cache.head_dim)
        return tokens * (encoded.width // 2 + META_BYTES) + int(encoded.expected(tokens, self.outliers).sum())

    def written(self, heads: int, head_dim: int) -> tuple[int, ...]:
        width = heads * head_dim
        return width // 2, META_BYTES, width // CHUNK, -(-width * self.outliers // 1000)

    def table(self, cache: EncodedCache) -> bytes:
        """Outliers of each chunk, spread as evenly as whole numbers allow."""
        ends = np.arange(cache.chunks * cache.t_max + 1, dtype=np.int64) * (CHUNK * self.outliers) // 1000
        return np.diff(ends).astype(np.uint8).tobytes()

    def _pages(self, cache: KvCache, tokens: int) -> Pages:
        encoded = EncodedCache(0, cache.heads, tokens, cache.head_dim)
        return pages(encoded, tokens, encoded.expected(tokens, self.outliers).sum(axis=0).tolist(), self.page_bytes)

    def allocated_bytes(self, cache: KvCache, tokens: int) -> int:
        return self._pages(cache, tokens).bytes

    def stated(self, cache: KvCache, tokens: int) -> Mapping[str, Any]:
        held, elements = self._pages(cache, tokens), tokens * cache.heads * cache.head_dim
        return {
            "method": self.name, "p_out": self.outliers / 1000, "b_eff": 8 * held.payload / elements,
            "pages": held.dense + held.sparse + held.meta,
            "page_bytes": self.page_bytes, "pages_slack": held.slack, "bursts": held.bursts,
        }  # fmt: skip

    def read_back(self, x: Floats, side: str, head_dim: int, parameters: Parameters) -> Floats:
        thresholds, code = parameters.thresholds, parameters.code
        return oaken.decode(oaken.encode(x, thresholds, code), thresholds, code).astype(np.float32)

    def stored_bits(self, x: NDArray[Any], side: str, head_dim: int, parameters: Parameters) -> float:
        return 8 * oaken.encode(x, parameters.thresholds, parameters.code).payload / x.size


@dataclass(frozen=True)
class PerToken(KvStorage):
    """A scale for each token, whole vector."""

    refused: ClassVar[str] = "the device has no scale for the token of all heads"

    def read_back(self, x: Floats, side: str, head_dim: int, parameters: Parameters) -> Floats:
        return uniform(x, 1, self.bits)

    def stored_bits(self, x: NDArray[Any], side: str, head_dim: int, parameters: Parameters) -> float:
        return self.bits + SCALE_BITS / x.shape[1]


@dataclass(frozen=True)
class QServe(KvStorage):
    """Per token and head, without the smoothing of channels, which needs weights."""

    refused: ClassVar[str] = "the device has no minimum beside the scale of a token and head"

    def read_back(self, x: Floats, side: str, head_dim: int, parameters: Parameters) -> Floats:
        return _grouped(x, min(GROUP, head_dim), self.bits)

    def stored_bits(self, x: NDArray[Any], side: str, head_dim: int, parameters: Parameters) -> float:
        return self.bits + SCALE_BITS / min(GROUP, head_dim)


@dataclass(frozen=True)
class Kivi(KvStorage):
    """Keys per channel, values per token; no residual of the latest tokens."""

    refused: ClassVar[str] = "keys share a scale per channel over 128 tokens, an append of a token cannot encode it"

    def read_back(self, x: Floats, side: str, head_dim: int, parameters: Parameters) -> Floats:
        if side == "v":
            return _grouped(x, GROUP, self.bits)
        return np.concatenate([uniform(x[at : at + GROUP], 0, self.bits) for at in range(0, len(x), GROUP)])

    def stored_bits(self, x: NDArray[Any], side: str, head_dim: int, parameters: Parameters) -> float:
        tokens, channels = x.shape
        if side == "v":
            return self.bits + SCALE_BITS / (GROUP if channels % GROUP == 0 else channels)
        return self.bits + SCALE_BITS * -(-tokens // GROUP) / tokens


@dataclass(frozen=True)
class KvQuant(KvStorage):
    """1 % of the elements as they are, the others of a channel (keys) or token (values) by 16 levels: the means of
    equally full bins of a normal distribution, which stand for its offline k-means."""

    refused: ClassVar[str] = "keys share levels per channel over all tokens, an append of a token cannot encode it"

    def read_back(self, x: Floats, side: str, head_dim: int, parameters: Parameters) -> Floats:
        axis = 0 if side == "k" else 1
        middle = np.median(x, axis=axis, keepdims=True)
        distance = np.abs(x - middle)
        kept = distance > np.quantile(distance, 1 - OUTLIERS)
        inside = np.where(kept, middle, x)
        mean = inside.mean(axis=axis, keepdims=True, dtype=np.float32)
        deviation = np.maximum(inside.std(axis=axis, keepdims=True, dtype=np.float32), np.float32(1e-12))
        levels = _levels()
        scaled = (inside - mean) / deviation
        # the levels stretch over what there is: the largest element is the largest level
        reach = np.maximum(np.abs(scaled).max(axis=axis, keepdims=True), np.float32(1e-12)) / levels[-1]
        bounds = (levels[1:] + levels[:-1]) / 2
        made = levels[np.searchsorted(bounds, scaled / reach)] * reach * deviation + mean
        return np.where(kept, x, made).astype(np.float16).astype(np.float32)

    def stored_bits(self, x: NDArray[Any], side: str, head_dim: int, parameters: Parameters) -> float:
        return self.bits + OUTLIERS * OUTLIER_BITS + SCALE_BITS / x.shape[0 if side == "k" else 1]


def uniform(x: Floats, axis: int, bits: int = 4) -> Floats:
    """Asymmetric codes with fp16 min and step along an axis."""
    low = x.min(axis=axis, keepdims=True).astype(np.float16).astype(np.float32)
    step = (x.max(axis=axis, keepdims=True) - low) / np.float32((1 << bits) - 1)
    step = step.astype(np.float16).astype(np.float32)
    code = np.divide(x - low, step, out=np.zeros_like(x), where=step > 0)
    made: Floats = (np.clip(np.rint(code), 0, (1 << bits) - 1) * step + low).astype(np.float16).astype(np.float32)
    return made


def _grouped(x: Floats, size: int, bits: int) -> Floats:
    """Groups of `size` neighbours of a token, or the whole token where it is no multiple."""
    size = size if x.shape[1] % size == 0 else x.shape[1]
    return uniform(x.reshape(len(x), -1, size), 2, bits).reshape(x.shape)


def _levels() -> Floats:
    """NormalFloat-like: 16 quantiles of a normal distribution, symmetric (Dettmers et al., arXiv 2305.14314)."""
    from statistics import NormalDist

    normal = NormalDist()
    return np.array([normal.inv_cdf((index + 0.5) / 16) for index in range(16)], np.float32)


FP16 = Numbers("fp16", 16)
OAKEN = Oaken("oaken")
DEVICE: Mapping[str, DeviceStorage] = {
    one.name: one for one in (FP16, Numbers("uniform8", 8), Numbers("uniform4", 4), Numbers("uniform2", 2), OAKEN)
}
"""What the device stores, by name."""
COMPARED: Mapping[str, KvStorage] = {
    one.name: one
    for one in (
        OAKEN,
        DEVICE["uniform4"],
        PerToken("per_token4"),
        PerToken("per_token5", 5),
        QServe("qserve"),
        Kivi("kivi"),
        KvQuant("kvquant"),
    )
}
"""What is compared in bits and errors, by name."""
POLICIES: Mapping[str, KvStorage] = {**DEVICE, **COMPARED}
