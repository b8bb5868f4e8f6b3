"""Oaken's codec: groups by thresholds, group shift, quantizers of 4 and 5 bits, fused dense-and-sparse encoding.

Source: Kim et al., Oaken, ISCA 2025, section 4. docs/oaken.md specifies what the paper leaves open. The reference,
element by element, is `tests/oaken_plain.py`; this module computes the same for blocks of tokens in NumPy.

A token-vector has C elements: K, or V, of one token and layer, all KV heads. Its encoding has C/2 bytes of nibbles
(dense), a byte of sparse data for each outlier, a count of outliers for each chunk of 64 elements, and 12 bytes of
metadata.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.abi.errors import NpuDeviceError
from npu_device.abi.kv_block import KV_CHUNK
from npu_device.kv_quant.codec import MAX_FP16, Bytes, Encoded, Floats, check_values, pack, round_to_fp16
from npu_device.kv_quant.thresholds import Thresholds

META_BYTES = 12
"""Bytes of the fp16 min and step of the outer, middle and inner group."""
MIDDLE_TOP, OUTLIER_TOP = 15, 31
"""Largest codes of 4 and of 5 bits."""
MSB_CLAMP, SIGN_MAG = "msb_clamp", "sign_mag"
OUTLIER_CODES = (MSB_CLAMP, SIGN_MAG)
"""Outlier codes in the order of `OutlierCode`."""
OUTER, MIDDLE, INNER = 0, 1, 2
"""Order of the groups in the metadata."""
_TINY = np.float32(2.0**-24)
"""Smallest positive fp16 number."""
_BLOCK = 1 << 16
"""Number of elements that are encoded together, so that intermediate arrays fit into the host's cache."""


def check_width(width: int) -> None:
    """Raise NpuDeviceError unless C is a multiple of 64."""
    if width < KV_CHUNK or width % KV_CHUNK:
        raise NpuDeviceError(f"Oaken: a token-vector of {width} elements: must be a multiple of {KV_CHUNK}")


def check_code(code: str) -> None:
    """Raise NpuDeviceError for an unknown outlier code."""
    if code not in OUTLIER_CODES:
        raise NpuDeviceError(f"outlier_code {code}: must be one of {', '.join(OUTLIER_CODES)}")


class _Scale(NamedTuple):
    """Min and step of a group of each token, in fp32 but exact in fp16."""

    low: Floats
    step: Floats

    @property
    def sigma(self) -> Floats:
        """Reciprocal of the step; 0 for a group with a single value."""
        reciprocal: Floats = np.divide(np.float32(1), self.step, out=np.zeros_like(self.step), where=self.step > 0)
        return reciprocal

    def values(self, top: int) -> Floats:
        """Return the shifted value of each code, shape (tokens, codes)."""
        return np.arange(top + 1, dtype=np.float32) * self.step[:, None] + self.low[:, None]


def _scale(low: Floats, high: Floats, top: int) -> _Scale:
    """Return min and step of a group from its extremes; 0 for an empty group (low > high)."""
    empty = low > high
    low, high = np.where(empty, np.float32(0), low), np.where(empty, np.float32(0), high)
    return _Scale(round_to_fp16(low), round_to_fp16((high - low) / np.float32(top)))


def _sided(scale: _Scale, has_low: NDArray[np.bool_], has_high: NDArray[np.bool_], top: int) -> _Scale:
    """Adjust min and step by one fp16 ulp if rounding left the low or the high group without a code."""
    low, step = scale.low.copy(), scale.step.copy()
    misses = has_low & (low >= 0)
    step[misses & has_high & (step == 0)] = _TINY
    low[misses] = -np.maximum(step[misses], _TINY)
    last = np.float32(top) * step + low
    misses = has_high & (last < 0)
    step[misses] = np.nextafter(step[misses].astype(np.float16), np.float16(np.inf)).astype(np.float32)
    return _Scale(low, step)


def _regions(x: Floats, t: Thresholds) -> Bytes:
    """Classify each element: 0 outer low, 1 middle low, 2 inner, 3 middle high, 4 outer high."""
    above_outer = np.greater_equal if t.outer_low == t.outer_high else np.greater
    one_low = t.outer_low == t.inner_high < t.outer_high  # an element equal to all three is outer
    above_inner = np.greater_equal if t.inner_low == t.inner_high and not one_low else np.greater
    from_inner = np.greater if one_low else np.greater_equal
    region: Bytes = above_outer(x, np.float32(t.outer_low)).view(np.uint8)
    region += above_inner(x, np.float32(t.inner_low)).view(np.uint8)
    region += from_inner(x, np.float32(t.inner_high)).view(np.uint8)
    region += (x >= np.float32(t.outer_high)).view(np.uint8)
    return region


def _shifts(t: Thresholds) -> Floats:
    return np.array([t.outer_low, t.inner_low, 0, t.inner_high, t.outer_high], np.float32)


def encode(x: NDArray[Any], t: Thresholds, code: str = MSB_CLAMP) -> Encoded:
    """Encode tokens (tokens, C) of any float type. Raise NpuDeviceError for an illegal C, code or number."""
    x = np.ascontiguousarray(x, np.float32)
    check_width(x.shape[1])
    check_code(code)
    check_values("Oaken", x)
    step = max(1, _BLOCK // x.shape[1])
    parts = [_encode(x[first : first + step], t, code) for first in range(0, len(x), step)] or [_encode(x, t, code)]
    if len(parts) == 1:
        return parts[0]
    fields = ("dense", "counts", "sparse", "meta")
    return Encoded(*(np.concatenate([getattr(part, name) for part in parts]) for name in fields))


def _encode(x: Floats, t: Thresholds, code: str) -> Encoded:
    tokens, width = x.shape
    region = _regions(x, t)
    v = np.take(_shifts(t), region)
    np.subtract(x, v, out=v)
    middle = (region & np.uint8(1)).view(np.bool_)
    index = np.flatnonzero(~middle)
    # the middle group, with neutral numbers in place of the others
    flat = v.reshape(-1)
    outliers = flat[index]
    flat[index] = np.inf
    low = v.min(axis=1)
    flat[index] = -np.inf
    scale = _scale(low, v.max(axis=1), MIDDLE_TOP)
    flat[index] = 0
    if code == MSB_CLAMP:
        scale = _sided(scale, (region == 1).any(axis=1), (region == 3).any(axis=1), MIDDLE_TOP)
    np.subtract(v, scale.low[:, None], out=v)
    v *= scale.sigma[:, None]
    np.rint(v, out=v)
    np.minimum(v, np.float32(MIDDLE_TOP), out=v)
    np.maximum(v, np.float32(0), out=v)
    q: Bytes = v.astype(np.uint8)
    if code == MSB_CLAMP:
        # minimum code of the high side for its elements, maximum code of the low side for the others
        zero = _first_high(scale, MIDDLE_TOP)[:, None]
        is_high = (region >= 3).view(np.uint8)
        np.minimum(q, np.maximum(zero, 1) - np.uint8(1) + is_high * np.uint8(MIDDLE_TOP), out=q)
        np.maximum(q, zero * is_high, out=q)
    meta = np.zeros((tokens, 2 * 3), np.float16)
    meta[:, 2 * MIDDLE], meta[:, 2 * MIDDLE + 1] = scale.low, scale.step
    # outliers
    token, groups = index // width, region.reshape(-1)[index]
    numbers = outliers
    outer = groups != 2
    codes = np.zeros(len(index), np.uint8)
    for group, members in ((OUTER, outer), (INNER, ~outer)):
        rows, values = token[members], numbers[members]
        above = groups[members] == 4
        magnitude = group == OUTER and code == SIGN_MAG
        top = MIDDLE_TOP if magnitude else OUTLIER_TOP
        values = np.abs(values) if magnitude else values
        scale = _scale(*_extremes(values, rows, tokens), top)
        if group == OUTER and not magnitude:
            presence = [np.bincount(rows[side], minlength=tokens) > 0 for side in (~above, above)]
            scale = _sided(scale, presence[0], presence[1], top)
        q_group = np.clip(np.rint((values - scale.low[rows]) * scale.sigma[rows]), 0, top).astype(np.uint8)
        if magnitude:
            q_group |= above.view(np.uint8) << np.uint8(4)
        elif group == OUTER:
            zero = _first_high(scale, top)[rows]
            q_group = np.where(above, np.maximum(q_group, zero), np.minimum(q_group, np.maximum(zero, 1) - np.uint8(1)))
        codes[members] = q_group
        meta[:, 2 * group], meta[:, 2 * group + 1] = scale.low, scale.step
    q.reshape(-1)[index] = codes & np.uint8(15)
    flags = outer.view(np.uint8) << np.uint8(6) | (codes >> np.uint8(4)) << np.uint8(7)
    sparse = (index % KV_CHUNK).astype(np.uint8) | flags
    counts = np.bincount(index // KV_CHUNK, minlength=x.size // KV_CHUNK).astype(np.uint8).reshape(tokens, -1)
    return Encoded(pack(q, 4), counts, sparse, meta.view(np.uint8).reshape(tokens, -1))


def _first_high(scale: _Scale, top: int) -> Bytes:
    """Return each token's first code with a shifted value of at least 0."""
    codes: Bytes = (scale.values(top) < 0).sum(axis=1).astype(np.uint8)
    return codes


def _extremes(numbers: Floats, rows: NDArray[np.int64], tokens: int) -> tuple[Floats, Floats]:
    """Return (minimum, maximum) of each row; (inf, -inf) for an empty row. `rows` is ascending."""
    low, high = np.full(tokens, np.inf, np.float32), np.full(tokens, -np.inf, np.float32)
    if len(rows):
        first = np.flatnonzero(np.diff(rows, prepend=-1))
        low[rows[first]] = np.minimum.reduceat(numbers, first)
        high[rows[first]] = np.maximum.reduceat(numbers, first)
    return low, high


def decode(encoded: Encoded, t: Thresholds, code: str = MSB_CLAMP) -> NDArray[np.float16]:
    """Decode tokens to fp16, shape (tokens, C). Raise NpuDeviceError if counts and entries are inconsistent."""
    check_code(code)
    tokens, width = len(encoded.dense), 2 * encoded.dense.shape[1]
    check_width(width)
    counts = encoded.counts.reshape(-1)
    if int(counts.sum(dtype=np.int64)) != len(encoded.sparse) or counts.max(initial=0) > KV_CHUNK:
        raise NpuDeviceError(
            f"Oaken: {len(encoded.sparse)} sparse entries: counts of chunks are at most {KV_CHUNK} and sum to that"
        )
    meta = np.ascontiguousarray(encoded.meta).view(np.float16).astype(np.float32)
    scales = [_Scale(meta[:, 2 * group], meta[:, 2 * group + 1]) for group in (OUTER, MIDDLE, INNER)]
    tables = [
        _outer(scales[OUTER], t, code),
        _unshifted(scales[MIDDLE].values(MIDDLE_TOP), t.inner_low, t.inner_high),
        scales[INNER].values(OUTLIER_TOP),
    ]
    with np.errstate(over="ignore"):
        outer, middle, inner = (np.clip(table, -MAX_FP16, MAX_FP16).astype(np.float16) for table in tables)
    numbers = np.empty((tokens, width), np.float16)
    step = max(1, _BLOCK // width)
    for first in range(0, tokens, step):
        dense = encoded.dense[first : first + step]
        # table of the two numbers of each of the 256 byte values, by token
        pairs = np.empty((len(dense), 256, 2), np.float16)
        pairs[..., 0] = np.tile(middle[first : first + step], 16)
        pairs[..., 1] = np.repeat(middle[first : first + step], 16, axis=1)
        index = dense + (np.arange(len(dense)) * 256)[:, None]
        numbers[first : first + step] = pairs.reshape(-1, 2).view(np.uint32).reshape(-1)[index].view(np.float16)
    chunk = np.repeat(np.arange(len(counts)), counts)
    entry = encoded.sparse
    position = chunk * KV_CHUNK + (entry & np.uint8(KV_CHUNK - 1))
    nibble = encoded.dense.reshape(-1)[position >> 1] >> ((position & 1) << 2).astype(np.uint8) & np.uint8(15)
    codes = nibble | (entry >> np.uint8(7)) << np.uint8(4)
    at_code = position // width * (OUTLIER_TOP + 1) + codes
    is_outer = (entry & np.uint8(KV_CHUNK)).view(np.bool_)
    numbers.reshape(-1)[position] = np.where(is_outer, outer.reshape(-1)[at_code], inner.reshape(-1)[at_code])
    return numbers


def _unshifted(v: Floats, low: float, high: float) -> Floats:
    """Return the numbers of a group from shifted values, whose sign gives the side."""
    return v + np.where(v >= 0, np.float32(high), np.float32(low))


def _outer(scale: _Scale, t: Thresholds, code: str) -> Floats:
    """Return the numbers of the outer group's codes, shape (tokens, 32)."""
    if code == MSB_CLAMP:
        return _unshifted(scale.values(OUTLIER_TOP), t.outer_low, t.outer_high)
    size = scale.values(MIDDLE_TOP)
    return np.concatenate((np.float32(t.outer_low) - size, np.float32(t.outer_high) + size), axis=1)
