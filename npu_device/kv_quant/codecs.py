"""Codecs of published methods (docs/kv-cache.md, "Codecs"): Oaken (Kim et al., ISCA 2025), KIVI (Liu et al.,
arXiv 2402.02750), KVQuant (Hooper et al., arXiv 2401.18079), QServe (Lin et al., arXiv 2405.04532), Atom (Zhao et al.,
arXiv 2310.19102) and Tender (Lee et al., ISCA 2024).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu_device.abi.errors import NpuDeviceError
from npu_device.abi.kv_block import KV_CHUNK, KvHalf, KvPolicy
from npu_device.kv_quant import oaken
from npu_device.kv_quant.codec import (
    FP16_BYTES,
    MIN_REACH,
    MIN_STEP_BYTES,
    NO_POSITIONS,
    Bytes,
    Encoded,
    Floats,
    KvCodec,
    Parameters,
    Rotary,
    asymmetric,
    check_table,
    check_values,
    chunk_counts,
    fp16_table,
    from_asymmetric,
    meta_bytes,
    meta_numbers,
    middle_and_reach,
    pack,
    round_to_fp16,
    to_fp16,
    unpack,
)
from npu_device.kv_quant.predicted import DifferenceCodec, NonzeroCodec, RunCodec
from npu_device.kv_quant.thresholds import RATIOS, SIDES, Profiler, Thresholds

GROUP = 128
"""Elements of a group of KIVI and QServe, and tokens of KIVI's residual."""
SMOOTHING = 0.5
"""Exponent of the maximum of a channel (QServe, section 4.2)."""
LEVELS = 16
OUTLIERS = 5
"""Permille of the elements on each side that remain fp16 (KVQuant); 1 % in total."""
ROUNDS = 25
"""Iterations of k-means."""
SHIFTS = 8
"""Number of channel groups, whose scales differ by powers of two (Tender)."""


class OakenCodec(KvCodec):
    """Oaken: offline thresholds, three groups online, entries for outliers."""

    policy = KvPolicy.OAKEN
    entry_bytes = 1
    outlier_codes = len(oaken.OUTLIER_CODES)
    has_thresholds = True

    def meta(self, heads: int, head_dim: int) -> tuple[int, int]:
        return 1, oaken.META_BYTES

    def check(self, heads: int, head_dim: int) -> None:
        oaken.check_width(heads * head_dim)
        if head_dim % 2:
            raise NpuDeviceError(f"encoded cache head_dim {head_dim}: must be even, a row ends at a byte")

    def encode(self, x: Floats, head_dim: int, parameters: Parameters) -> Encoded:
        return oaken.encode(x, parameters.thresholds, parameters.code)

    def decode(self, encoded: Encoded, head_dim: int, parameters: Parameters) -> NDArray[np.float16]:
        return oaken.decode(encoded, parameters.thresholds, parameters.code)

    def calibrate(
        self, samples: Sequence[Floats], head_dim: int, ratios: Sequence[float] = RATIOS, code: str = oaken.MSB_CLAMP,
        rotary: Rotary = NO_POSITIONS,
    ) -> Parameters:  # fmt: skip
        profiler = Profiler(ratios)
        for sample in samples:
            for side in SIDES:
                profiler.add(0, side, sample)
        return Parameters(profiler.thresholds()[0].key, code)

    def statistics(self, encoded: Encoded) -> dict[str, float]:
        entries, outer = len(encoded.sparse), int(np.count_nonzero(encoded.sparse & np.uint8(64)))
        return {"outer": outer, "inner": entries - outer, "b_slide": 4 + 2 * entries / max(1, encoded.dense.size)}

    def parameters(self, half: KvHalf, table: bytes, location: str) -> Parameters:
        super().parameters(half, table, location)
        limits = np.array(half.thresholds, np.uint16).view(np.float16).astype(float).tolist()
        thresholds = Thresholds(*limits).check(f"thresholds at {location}")
        return Parameters(thresholds, oaken.OUTLIER_CODES[half.outlier_code])

    def pack_parameters(self, parameters: Parameters, table: int = 0) -> bytes:
        low, inner_low, inner_high, high = np.array(parameters.thresholds, np.float16).view(np.uint16).tolist()
        code = oaken.OUTLIER_CODES.index(parameters.code)
        return KvHalf((low, inner_low, inner_high, high), outlier_code=code).pack()


class TokenCodec(KvCodec):
    """Codec with a minimum and step for each token-vector. Subclasses have them for other groups of elements."""

    policy = KvPolicy.TOKEN

    def meta(self, heads: int, head_dim: int) -> tuple[int, int]:
        return 1, MIN_STEP_BYTES

    def split(self, x: NDArray[Any], head_dim: int) -> NDArray[Any]:
        """Return tokens (tokens, C) by groups of elements, shape (rows of metadata, groups, elements)."""
        return x[:, None]

    def join(self, groups: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Invert `split`; `shape`: that of the tokens."""
        return groups.reshape(shape)

    def encode(self, x: Floats, head_dim: int, parameters: Parameters) -> Encoded:
        check_values("keys or values", x)
        codes, meta = asymmetric(self.split(x, head_dim), self.bits)
        return dense_only(pack(self.join(codes, x.shape), self.bits), meta_bytes(meta))

    def decode(self, encoded: Encoded, head_dim: int, parameters: Parameters) -> NDArray[np.float16]:
        codes = unpack(encoded.dense, self.bits)
        groups = self.split(codes, head_dim)
        numbers = from_asymmetric(groups, meta_numbers(encoded.meta, (groups.shape[1], 2)))
        return to_fp16(self.join(numbers, codes.shape))


class HeadTokenCodec(TokenCodec):
    """Codec with a minimum and step per token and head, per 128 elements of larger heads (Atom; values of QServe)."""

    policy = KvPolicy.HEAD_TOKEN

    def meta(self, heads: int, head_dim: int) -> tuple[int, int]:
        return heads, MIN_STEP_BYTES * -(-head_dim // min(GROUP, head_dim))

    def check(self, heads: int, head_dim: int) -> None:
        super().check(heads, head_dim)
        if head_dim > GROUP and head_dim % GROUP:
            raise NpuDeviceError(f"encoded cache head_dim {head_dim}: above {GROUP} must be a multiple of it")

    def split(self, x: NDArray[Any], head_dim: int) -> NDArray[Any]:
        return x.reshape(len(x), -1, min(GROUP, head_dim))


class GroupedHeadsCodec(HeadTokenCodec):
    """Codec with a minimum and step per token and head, and adjacent codes and metadata of four heads: an append of a
    token writes fewer, longer runs, and a read of a head is strided."""

    policy = KvPolicy.GROUPED_HEADS
    grouped_heads = 4

    def meta(self, heads: int, head_dim: int) -> tuple[int, int]:
        rows, size = super().meta(heads, head_dim)
        group = self.head_group(heads)
        return rows // group, size * group


class SmoothAttentionCodec(HeadTokenCodec):
    """Keys of QServe: each pair of channels in the two halves of a head shares a divisor, which commutes with rotary
    positions. The table has the divisors."""

    policy = KvPolicy.SMOOTHED

    def table_bytes(self, heads: int, head_dim: int) -> int:
        return FP16_BYTES * heads * head_dim

    def make_table(self, samples: Sequence[Floats], head_dim: int, rotary: Rotary = NO_POSITIONS) -> bytes:
        top = np.max([np.abs(x).max(axis=0) for x in samples], axis=0).reshape(-1, 2, head_dim // 2)
        pair_top = np.broadcast_to(top.max(axis=1, keepdims=True), top.shape)
        return (np.maximum(pair_top, np.float32(1e-3)).reshape(-1) ** SMOOTHING).astype(np.float16).tobytes()

    def encode(self, x: Floats, head_dim: int, parameters: Parameters) -> Encoded:
        return super().encode(x / fp16_table(parameters, x.shape[1])[: x.shape[1]], head_dim, parameters)

    def decode(self, encoded: Encoded, head_dim: int, parameters: Parameters) -> NDArray[np.float16]:
        numbers = super().decode(encoded, head_dim, parameters).astype(np.float32)
        return to_fp16(numbers * fp16_table(parameters, numbers.shape[1]))


class ChannelGroupCodec(TokenCodec):
    """Keys of KIVI: a minimum and step for each channel of 128 tokens; tokens of an incomplete group are fp16."""

    policy = KvPolicy.CHANNEL_GROUP
    group = GROUP

    def meta(self, heads: int, head_dim: int) -> tuple[int, int]:
        return heads, MIN_STEP_BYTES * head_dim

    def split(self, x: NDArray[Any], head_dim: int) -> NDArray[Any]:
        return x.reshape(-1, GROUP, x.shape[1]).transpose(0, 2, 1)

    def join(self, groups: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        return groups.transpose(0, 2, 1).reshape(shape)


class RecentFp16Codec(HeadTokenCodec):
    """Values of KIVI: a minimum and step for each token and head; the latest 128 tokens are fp16."""

    policy = KvPolicy.AGED_TOKEN
    keep = GROUP


class LevelsCodec(KvCodec):
    """KVQuant: 16 levels from offline k-means; the lowest and highest 0.5 % are entries of a u16 index and fp16."""

    entry_bytes = 4

    def check(self, heads: int, head_dim: int) -> None:
        super().check(heads, head_dim)
        if heads * head_dim % KV_CHUNK or heads * head_dim > 1 << 16:
            raise NpuDeviceError(
                f"KVQuant: a token-vector of {heads * head_dim} elements: must be a multiple of {KV_CHUNK} up to 65536"
            )

    def entries(self, permille: int) -> int:
        return 2 * OUTLIERS

    @staticmethod
    def _encoded(x: Floats, outlier: NDArray[np.bool_], scaled: Floats, levels: Floats, meta: Bytes) -> Encoded:
        codes = np.searchsorted((levels[1:] + levels[:-1]) / 2, scaled).astype(np.uint8)
        codes[outlier] = 0
        token, channel = np.nonzero(outlier)
        entries = np.stack((channel.astype("<u2"), x[token, channel].astype("<f2").view("<u2")), axis=1)
        return Encoded(pack(codes, 4), chunk_counts(outlier), entries.reshape(-1).view(np.uint8), meta)

    @staticmethod
    def _decoded(encoded: Encoded, numbers: Floats) -> NDArray[np.float16]:
        decoded = to_fp16(numbers)
        counts = encoded.counts.sum(axis=1, dtype=np.int64)
        if int(counts.sum()) * 4 != len(encoded.sparse):
            raise NpuDeviceError(f"KVQuant: {len(encoded.sparse)} bytes of entries: counts of chunks ask for others")
        entries = np.ascontiguousarray(encoded.sparse).view("<u2").reshape(-1, 2)
        if int(entries[:, 0].max(initial=0)) >= decoded.shape[1]:
            raise NpuDeviceError(f"KVQuant: an entry of element {int(entries[:, 0].max())}: a token has fewer")
        decoded[np.repeat(np.arange(len(decoded)), counts), entries[:, 0]] = entries[:, 1].view(np.float16)
        return decoded


class ChannelLevelsCodec(LevelsCodec):
    """Keys of KVQuant, stored without rotary positions: offline midpoint and half-range of each channel, so a token is
    encoded in one pass. The engine inverts the rotation when it encodes, and rotates when it decodes."""

    policy = KvPolicy.CHANNEL_LEVELS
    passes = 1

    def table_bytes(self, heads: int, head_dim: int) -> int:
        return FP16_BYTES * (LEVELS + 2 * heads * head_dim) + len(NO_POSITIONS.pack(head_dim))

    def make_table(self, samples: Sequence[Floats], head_dim: int, rotary: Rotary = NO_POSITIONS) -> bytes:
        x = np.concatenate([rotary.turn(sample, head_dim, 0, back=True) for sample in samples])
        low, high = np.quantile(x, (OUTLIERS / 1000, 1 - OUTLIERS / 1000), axis=0)
        middle, reach = middle_and_reach(low, high)
        scaled = ((x - middle) / reach).astype(np.float32)
        levels = k_means(scaled[np.abs(scaled) <= 1])
        return np.concatenate((levels, middle, reach)).astype(np.float16).tobytes() + rotary.pack(head_dim)

    def encode(self, x: Floats, head_dim: int, parameters: Parameters) -> Encoded:
        check_values("keys or values", x)
        (levels, middle, reach), rotary = self._table(parameters, x.shape[1], head_dim)
        x = rotary.turn(x, head_dim, parameters.first, back=True)
        scaled = (x - middle) / reach
        return self._encoded(x, np.abs(scaled) > 1, scaled, levels, np.zeros((len(x), 0), np.uint8))

    def decode(self, encoded: Encoded, head_dim: int, parameters: Parameters) -> NDArray[np.float16]:
        codes = unpack(encoded.dense, 4)
        (levels, middle, reach), rotary = self._table(parameters, codes.shape[1], head_dim)
        decoded = self._decoded(encoded, levels[codes] * reach + middle)
        return to_fp16(rotary.turn(decoded.astype(np.float32), head_dim, parameters.first))

    def _table(self, parameters: Parameters, width: int, head_dim: int) -> tuple[list[Floats], Rotary]:
        """Return ([levels, midpoints, half-ranges of channels], positions). Raise NpuDeviceError for another size or
        numbers that are not finite."""
        check_table(parameters, self.table_bytes(width // head_dim, head_dim))
        size = FP16_BYTES * (LEVELS + 2 * width)
        words = fp16_table(replace(parameters, table=parameters.table[:size]), LEVELS + 2 * width)
        rotary = Rotary.unpack(parameters.table[size:])
        if len(rotary.frequencies) * 2 > head_dim or not np.isfinite(rotary.frequencies).all():
            raise NpuDeviceError("KVQuant: the table has more pairs than a head, or frequencies that are not finite")
        return np.split(words, (LEVELS, LEVELS + width)), rotary


class TokenLevelsCodec(LevelsCodec):
    """Values of KVQuant: outliers are the lowest and highest elements of each token, which the engine ranks in an
    additional pass."""

    policy = KvPolicy.TOKEN_LEVELS
    passes = 3

    def meta(self, heads: int, head_dim: int) -> tuple[int, int]:
        return 1, MIN_STEP_BYTES

    def table_bytes(self, heads: int, head_dim: int) -> int:
        return FP16_BYTES * LEVELS

    def make_table(self, samples: Sequence[Floats], head_dim: int, rotary: Rotary = NO_POSITIONS) -> bytes:
        x = np.concatenate(samples)
        outlier, middle, reach = self._ranked(x)
        return k_means(((x - middle[:, None]) / reach[:, None])[~outlier]).astype(np.float16).tobytes()

    @staticmethod
    def _ranked(x: Floats) -> tuple[NDArray[np.bool_], Floats, Floats]:
        """Return (outlier flags, midpoint, half-range of the other elements of each token)."""
        count = -(-x.shape[1] * OUTLIERS // 1000)
        order = np.argsort(x, axis=1, kind="stable")
        outlier = np.zeros(x.shape, bool)
        np.put_along_axis(outlier, order[:, :count], True, axis=1)
        np.put_along_axis(outlier, order[:, -count:], True, axis=1)
        low, high = (np.take_along_axis(x, order[:, [rank]], axis=1)[:, 0] for rank in (count, -count - 1))
        return outlier, *middle_and_reach(low, high)

    def encode(self, x: Floats, head_dim: int, parameters: Parameters) -> Encoded:
        check_values("keys or values", x)
        outlier, middle, reach = self._ranked(x)
        scaled = (x - middle[:, None]) / reach[:, None]
        meta = meta_bytes(np.stack((middle, reach), axis=1))
        return self._encoded(x, outlier, scaled, fp16_table(parameters, LEVELS), meta)

    def decode(self, encoded: Encoded, head_dim: int, parameters: Parameters) -> NDArray[np.float16]:
        meta = meta_numbers(encoded.meta, (2,))
        numbers = fp16_table(parameters, LEVELS)[unpack(encoded.dense, 4)] * meta[:, 1:] + meta[:, :1]
        return self._decoded(encoded, numbers)


class ChannelShiftsCodec(KvCodec):
    """Tender: offline midpoint of each channel, and its group of 8, whose scales differ by powers of two. Channels are
    stored in the order of their groups."""

    policy = KvPolicy.CHANNEL_SHIFTS
    passes = 1

    def table_bytes(self, heads: int, head_dim: int) -> int:
        return FP16_BYTES * (1 + 3 * heads * head_dim)

    def make_table(self, samples: Sequence[Floats], head_dim: int, rotary: Rotary = NO_POSITIONS) -> bytes:
        x = np.concatenate(samples)
        middle = round_to_fp16((x.max(axis=0) + x.min(axis=0)) / 2)
        reach = np.maximum(np.abs(x - middle).max(axis=0), MIN_REACH)
        top = reach.max()
        shift = np.clip(np.floor(np.log2(top / reach)), 0, SHIFTS - 1).astype(np.uint16)
        by_head = shift.reshape(-1, head_dim)
        order = np.argsort(by_head, axis=1, kind="stable") + np.arange(len(by_head))[:, None] * head_dim
        scale = np.array([top / self.max_code], np.float16).view(np.uint16)
        words = scale, order.reshape(-1).astype(np.uint16), shift, middle.astype(np.float16).view(np.uint16)
        return np.concatenate(words).astype("<u2").tobytes()

    def encode(self, x: Floats, head_dim: int, parameters: Parameters) -> Encoded:
        check_values("keys or values", x)
        scale, order, middle = self._table(parameters, x.shape[1])
        top = np.float32(self.max_code)
        codes = np.clip(np.rint((x - middle) / scale), -top, top) + top
        return dense_only(pack(codes.astype(np.uint8)[:, order], self.bits), np.zeros((len(x), 0), np.uint8))

    def decode(self, encoded: Encoded, head_dim: int, parameters: Parameters) -> NDArray[np.float16]:
        columns = unpack(encoded.dense, self.bits)
        scale, order, middle = self._table(parameters, columns.shape[1])
        codes = np.empty_like(columns)
        codes[:, order] = columns
        return to_fp16((codes.astype(np.float32) - np.float32(self.max_code)) * scale + middle)

    @staticmethod
    def _table(parameters: Parameters, width: int) -> tuple[Floats, NDArray[np.int64], Floats]:
        """Return (scale, order, midpoint) of channels."""
        check_table(parameters, FP16_BYTES * (1 + 3 * width))
        words = np.frombuffer(parameters.table, "<u2")
        order, shift = words[1 : 1 + width].astype(np.int64), words[1 + width : 1 + 2 * width]
        if not np.array_equal(np.sort(order), np.arange(width)) or int(shift.max(initial=0)) >= SHIFTS:
            raise NpuDeviceError("Tender: the table has no permutation of the channels, or a shift above 7")
        scale = words[:1].view(np.float16).astype(np.float32) / np.exp2(shift).astype(np.float32)
        return scale, order, words[1 + 2 * width :].view(np.float16).astype(np.float32)


def dense_only(dense: Bytes, meta: Bytes) -> Encoded:
    """Return encoded tokens without entries."""
    return Encoded(dense, np.zeros((len(dense), 0), np.uint8), np.zeros(0, np.uint8), meta)


def normal_levels() -> Floats:
    """Return the quantiles of a normal distribution, scaled to -1..1."""
    normal = NormalDist()
    levels = np.array([normal.inv_cdf((index + 0.5) / LEVELS) for index in range(LEVELS)], np.float32)
    return levels / levels[-1]


def k_means(x: Floats) -> Floats:
    """Return ascending levels for numbers within -1..1 with a locally minimal mean squared error."""
    levels = normal_levels()
    data = np.sort(x.reshape(-1))
    if not len(data):
        return levels
    sums = np.concatenate(([0.0], np.cumsum(data, dtype=np.float64)))
    for _ in range(ROUNDS):
        edges = np.searchsorted(data, (levels[1:] + levels[:-1]) / 2)
        first, last = np.concatenate(([0], edges)), np.concatenate((edges, [len(data)]))
        count = last - first
        means = np.divide(sums[last] - sums[first], count, out=levels.astype(np.float64), where=count > 0)
        levels = means.astype(np.float32)
    return np.sort(levels.astype(np.float16).astype(np.float32))


OAKEN = OakenCodec()
HEAD_TOKEN, SMOOTHED = HeadTokenCodec(), SmoothAttentionCodec()
CHANNEL_GROUP, AGED_TOKEN = ChannelGroupCodec(), RecentFp16Codec()
CHANNEL_LEVELS, TOKEN_LEVELS, CHANNEL_SHIFTS = ChannelLevelsCodec(), TokenLevelsCodec(), ChannelShiftsCodec()
TOKEN, GROUPED_HEADS = TokenCodec(), GroupedHeadsCodec()
RUNS, DIFFERENCES, NONZERO = RunCodec(), DifferenceCodec(), NonzeroCodec()
CODECS: Mapping[int, KvCodec] = {
    codec.policy: codec
    for codec in (
        OAKEN, HEAD_TOKEN, SMOOTHED, CHANNEL_GROUP, AGED_TOKEN, CHANNEL_LEVELS, TOKEN_LEVELS, CHANNEL_SHIFTS, TOKEN,
        GROUPED_HEADS, RUNS, DIFFERENCES, NONZERO,
    )
}  # fmt: skip
"""Value in a parameter block -> codec."""
