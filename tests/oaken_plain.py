"""Scalar definition of Oaken's codec, the reference of `npu_device.kv_quant.oaken`."""

from collections.abc import Sequence

import numpy as np

from npu_device.abi.errors import NpuDeviceError
from npu_device.abi.kv_block import KV_CHUNK
from npu_device.kv_quant.oaken import (
    INNER,
    META_BYTES,
    MIDDLE,
    MIDDLE_TOP,
    MSB_CLAMP,
    OUTER,
    OUTLIER_TOP,
    SIGN_MAG,
    Encoded,
    check_code,
    check_width,
)
from npu_device.kv_quant.thresholds import Thresholds

F = np.float32
_ORDER = (OUTER, MIDDLE, INNER)


def group_of(x: np.float32, t: Thresholds) -> tuple[int, bool]:
    """Return (group, whether x is on the high side of the group)."""
    if x <= t.outer_low or x >= t.outer_high:
        return OUTER, bool(x >= t.outer_high)
    if t.inner_low < x < t.inner_high:
        return INNER, False
    return MIDDLE, bool(x >= t.inner_high)


def shift_of(group: int, high: bool, t: Thresholds) -> np.float32:
    """Return the shift subtracted from an element of the group."""
    if group == OUTER:
        return F(t.outer_high if high else t.outer_low)
    if group == MIDDLE:
        return F(t.inner_high if high else t.inner_low)
    return F(0)


class Quantizer:
    """Uniform quantizer of a group of a token, with min and step as stored in the metadata."""

    def __init__(self, numbers: Sequence[tuple[np.float32, bool]], top: int, sided: bool) -> None:
        """`numbers`: (shifted element, whether it is on the high side); `sided`: codes encode the side."""
        values = [number for number, _ in numbers]
        low, high = (min(values), max(values)) if values else (F(0), F(0))
        self.low, self.step = F(np.float16(low)) + F(0), F(np.float16((high - low) / F(top)))
        self.top, self.sided = top, sided
        if sided:
            self._make_sides(any(not high for _, high in numbers), any(high for _, high in numbers))

    def _make_sides(self, has_low: bool, has_high: bool) -> None:
        tiny = F(2.0**-24)
        if has_low and self.low >= 0:
            if has_high and self.step == 0:
                self.step = tiny
            self.low = -max(self.step, tiny)
        if has_high and F(self.top) * self.step + self.low < 0:
            self.step = F(np.nextafter(np.float16(self.step), np.float16(np.inf)))

    def value(self, code: int) -> np.float32:
        return F(code) * self.step + self.low

    def code(self, number: np.float32, high: bool) -> int:
        sigma = F(1) / self.step if self.step > 0 else F(0)
        code = int(np.clip(np.rint((number - self.low) * sigma), 0, self.top))
        if not self.sided:
            return code
        zero = sum(bool(self.value(one) < 0) for one in range(self.top + 1))
        return max(code, zero) if high else min(code, max(zero, 1) - 1)


def encode_token(x: Sequence[float], t: Thresholds, code: str = MSB_CLAMP) -> tuple[bytes, bytes, bytes, bytes]:
    """Return (dense, counts, sparse, metadata) of a token vector. NpuDeviceError: as the vectorized codec."""
    check_width(len(x))
    check_code(code)
    numbers = [F(one) for one in x]
    if not all(abs(one) <= 65504 for one in numbers):
        raise NpuDeviceError("Oaken: an element is NaN, infinite or beyond fp16: must be finite")
    found = [group_of(one, t) for one in numbers]
    shifted = [one - shift_of(*place, t) for one, place in zip(numbers, found, strict=True)]
    magnitude = code == SIGN_MAG
    quantizers = []
    for group in _ORDER:
        own = [(v, high) for v, (one, high) in zip(shifted, found, strict=True) if one == group]
        if group == OUTER and magnitude:
            quantizers.append(Quantizer([(abs(v), high) for v, high in own], MIDDLE_TOP, False))
        else:
            top = MIDDLE_TOP if group == MIDDLE else OUTLIER_TOP
            quantizers.append(Quantizer(own, top, group != INNER and not magnitude))
    nibbles, counts, sparse = [], [0] * (len(x) // KV_CHUNK), []
    for index, (v, (group, high)) in enumerate(zip(shifted, found, strict=True)):
        if group == OUTER and magnitude:
            made = quantizers[group].code(abs(v), high) | high << 4
        else:
            made = quantizers[group].code(v, high)
        nibbles.append(made & 15)
        if group != MIDDLE:
            counts[index // KV_CHUNK] += 1
            sparse.append(index % KV_CHUNK | (group == OUTER) << 6 | made >> 4 << 7)
    dense = bytes(low | high << 4 for low, high in zip(nibbles[::2], nibbles[1::2], strict=True))
    meta = b"".join(np.float16(part).tobytes() for one in quantizers for part in (one.low, one.step))
    assert len(meta) == META_BYTES
    return dense, bytes(counts), bytes(sparse), meta


def decode_token(
    dense: bytes, counts: bytes, sparse: bytes, meta: bytes, t: Thresholds, code: str = MSB_CLAMP
) -> list[float]:
    """Return the elements of a token vector, rounded to fp16."""
    check_code(code)
    scales = [(F(low), F(step)) for low, step in np.frombuffer(meta, np.float16).reshape(3, 2)]
    nibbles = [nibble for byte in dense for nibble in (byte & 15, byte >> 4)]
    entries, at = {}, 0
    for chunk, count in enumerate(counts):
        for entry in sparse[at : at + count]:
            entries[chunk * KV_CHUNK + entry % KV_CHUNK] = entry
        at += count
    made = []
    for index, nibble in enumerate(nibbles):
        found = entries.get(index)
        group = MIDDLE if found is None else OUTER if found & KV_CHUNK else INNER
        low, step = scales[group]
        bits = nibble | (0 if found is None else found >> 7 << 4)
        if group == OUTER and code == SIGN_MAG:
            v = F(bits & 15) * step + low
            number = F(t.outer_high) + v if bits >> 4 else F(t.outer_low) - v
        else:
            v = F(bits) * step + low
            number = v + shift_of(group, bool(v >= 0), t)
        made.append(float(np.float16(min(max(number, F(-65504)), F(65504)))))
    return made


def encode(x: Sequence[Sequence[float]], t: Thresholds, code: str = MSB_CLAMP) -> Encoded:
    """Encode token by token, with the result type of the vectorized codec."""
    rows = [encode_token(token, t, code) for token in x]
    parts = [np.frombuffer(b"".join(column), np.uint8) for column in zip(*rows, strict=True)]
    dense, counts, sparse, meta = parts
    return Encoded(dense.reshape(len(rows), -1), counts.reshape(len(rows), -1), sparse, meta.reshape(len(rows), -1))
