"""Codecs of uniform quantization followed by lossless coding, whose size depends on the data (docs/kv-cache.md,
"Compression"): repeat flags, differences to the previous token, and zeros.

Each channel has an offset (midpoint) and a scale (half-range) from calibration, and its elements are quantized to
integers. Each integer is predicted; the residual has a few bits in the dense stream. A residual beyond their range is
escaped: the integer itself is a byte in the sparse stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from npu_device.abi.errors import NpuDeviceError
from npu_device.abi.kv_block import KV_CHUNK, KvPolicy
from npu_device.kv_quant.codec import (
    FP16_BYTES,
    NO_POSITIONS,
    Encoded,
    Floats,
    KvCodec,
    Parameters,
    Rotary,
    check_values,
    chunk_counts,
    fp16_table,
    middle_and_reach,
    pack,
    to_fp16,
    unpack,
)

Integers = NDArray[np.int16]


@dataclass(frozen=True)
class PredictedCodec(KvCodec):
    """Predictive coding of the quantized integers of each channel."""

    entry_bytes = 1
    passes = 1
    max_integer: ClassVar[int]
    """Largest magnitude of a quantized integer."""
    assumed: ClassVar[int]
    """Escaped elements per 1,000 assumed in timing-only runs, those of independent normal numbers."""

    def check(self, heads: int, head_dim: int) -> None:
        super().check(heads, head_dim)
        if heads * head_dim % KV_CHUNK:
            raise NpuDeviceError(f"a token-vector of {heads * head_dim} elements: must be a multiple of {KV_CHUNK}")

    def entries(self, permille: int) -> int:
        return self.assumed

    def table_bytes(self, heads: int, head_dim: int) -> int:
        return 3 * FP16_BYTES * heads * head_dim

    def make_table(self, samples: Sequence[Floats], head_dim: int, rotary: Rotary = NO_POSITIONS) -> bytes:
        x = np.concatenate(samples)
        middle, reach = middle_and_reach(x.min(axis=0), x.max(axis=0))
        return np.concatenate((middle, reach, self._dead_zone(x - middle))).astype(np.float16).tobytes()

    def encode(self, x: Floats, head_dim: int, parameters: Parameters) -> Encoded:
        check_values("keys or values", x)
        integers, top = self._integers(x, parameters), self.max_code
        difference = integers - self._predict(integers)
        escape = np.abs(difference) > top
        codes = np.where(escape, (1 << self.bits) - 1, difference + top).astype(np.uint8)
        entries = (integers[escape] + self.max_integer).astype(np.uint8)
        return Encoded(
            pack(codes, self.bits), chunk_counts(escape), entries, np.zeros((len(x) // self.group, 0), np.uint8)
        )

    def decode(self, encoded: Encoded, head_dim: int, parameters: Parameters) -> NDArray[np.float16]:
        codes = unpack(encoded.dense, self.bits)
        escape = codes == (1 << self.bits) - 1
        if not np.array_equal(chunk_counts(escape), encoded.counts):
            raise NpuDeviceError("counts of chunks ask for other entries than the codes")
        stored = np.where(escape, 0, codes.astype(np.int16) - self.max_code).astype(np.int16)
        stored[escape] = encoded.sparse.astype(np.int16) - self.max_integer
        middle, reach, _ = _channels(parameters, codes.shape[1])
        integers = self._restore(stored, escape).astype(np.float32)
        return to_fp16(integers / np.float32(self.max_integer) * reach + middle)

    def _integers(self, x: Floats, parameters: Parameters) -> Integers:
        middle, reach, dead = _channels(parameters, x.shape[1])
        top, centered = self.max_integer, x - middle
        scaled = np.clip(np.rint(centered / reach * np.float32(top)), -top, top)
        return np.where(np.abs(centered) < dead, 0, scaled).astype(np.int16)

    def _dead_zone(self, centered: Floats) -> Floats:
        """Return the distance from each channel's midpoint below which elements are stored as 0, shape (C,)."""
        return np.zeros(centered.shape[1], np.float32)

    def _predict(self, integers: Integers) -> Integers:
        """Return the integers (tokens, C) of the previous token; zeros for the first token of a group."""
        previous = np.roll(integers, 1, axis=0)
        previous[:: self.group] = 0
        return previous

    def _restore(self, stored: Integers, escape: NDArray[np.bool_]) -> Integers:
        """Return the integers (tokens, C) from entries and differences to the previous token."""
        grouped = stored.reshape(-1, self.group, stored.shape[1]).copy()
        escapes = escape.reshape(grouped.shape)
        for token in range(1, self.group):
            grouped[:, token] += np.where(escapes[:, token], 0, grouped[:, token - 1])
        return grouped.reshape(stored.shape)


@dataclass(frozen=True)
class RunCodec(PredictedCodec):
    """Repeat flags along the tokens of a channel: the integer of the previous token repeats, or a byte in the sparse
    stream has a new one."""

    policy = KvPolicy.RUNS
    bits: int = 1
    group = 16
    max_integer = 7
    assumed = 862


@dataclass(frozen=True)
class DifferenceCodec(PredictedCodec):
    """Differences of -1, 0 and 1 to the previous token."""

    policy = KvPolicy.DIFFERENCES
    bits: int = 2
    group = 16
    max_integer = 7
    assumed = 600


@dataclass(frozen=True)
class NonzeroCodec(PredictedCodec):
    """Bitmap of nonzero integers, and these as bytes. Elements nearer to the midpoint of their channel than the median
    distance in calibration are zero."""

    policy = KvPolicy.NONZERO
    bits: int = 1
    max_integer = 127
    assumed = 500

    def _dead_zone(self, centered: Floats) -> Floats:
        dead: Floats = np.median(np.abs(centered), axis=0).astype(np.float32)
        return dead

    def _predict(self, integers: Integers) -> Integers:
        return np.zeros_like(integers)

    def _restore(self, stored: Integers, escape: NDArray[np.bool_]) -> Integers:
        return stored


def _channels(parameters: Parameters, width: int) -> tuple[Floats, Floats, Floats]:
    """Return (midpoint, half-range, dead zone) of channels. Raise NpuDeviceError as `fp16_table`."""
    table = fp16_table(parameters, 3 * width)
    return table[:width], table[width : 2 * width], table[2 * width :]
