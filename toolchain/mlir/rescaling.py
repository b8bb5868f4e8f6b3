"""Bit-exact tosa.rescale: (value * multiplier + half) >> shift, saturated.

The device has no 64-bit product. A byte has 256 values, so its results are a table. A wider value becomes a byte in two
steps: a floating-point product that is at most one too small, then one comparison with the smallest value of the next
code, from a table. The comparison is omitted if the product alone is exact for every value. A check at the 256 code
boundaries proves that, since both functions are monotonic.
"""

from typing import Any, NamedTuple

import numpy as np

from toolchain.ir.graph import Values
from toolchain.mlir.emitter import MlirTensor, OnnxEmitter
from toolchain.mlir.text.values import NUMPY

BYTES = ("INT8", "UINT8")
CODES = 256
INT32 = np.iinfo(np.int32)


class Rescale(NamedTuple):
    """Parameters of a tosa.rescale: one multiplier and shift, or one per channel."""

    multipliers: tuple[int, ...]
    shifts: tuple[int, ...]
    input_zero: int
    output_zero: int
    twice: bool
    """Whether shifts beyond 31 round twice."""

    def exact(self, value: int, channel: int, kind: str) -> int:
        """Return the exact result for one value."""
        multiplier, shift = self.multipliers[channel], self.shifts[channel]
        moved = value - self.input_zero
        total = moved * multiplier + (1 << (shift - 1))
        if self.twice and shift > 31:
            total += (1 << 30) if moved >= 0 else -(1 << 30)
        return int(within((total >> shift) + self.output_zero, kind))


def lookup(e: OnnxEmitter, x: MlirTensor, table: Values, kind: str, rows: int = 1) -> MlirTensor:
    """Look up each byte in a table; with `rows` above 1, the last dimension of x selects one of `rows` tables."""
    at = e.elementwise("Sub", e.cast(x, "INT32"), e.scalar(int(np.iinfo(NUMPY[x.kind]).min), "INT32"))
    return _take(e, at, table, kind, rows)


def _take(e: OnnxEmitter, at: MlirTensor, table: Values, kind: str, rows: int) -> MlirTensor:
    if rows > 1:
        at = e.elementwise("Add", at, e.constant((np.arange(rows) * CODES).astype(np.int32)))
    return e.node("Gather", [e.constant(table.astype(NUMPY[kind])), at], kind, at.shape, axis=0)


def saturate(e: OnnxEmitter, x: MlirTensor, kind: str) -> MlirTensor:
    """Saturate INT32 to a narrower type."""
    return x if kind == "INT32" else e.cast(clip(e, x, kind), kind)


def clip(e: OnnxEmitter, x: MlirTensor, kind: str) -> MlirTensor:
    """Limit numbers to the range of an integer type."""
    limits = np.iinfo(NUMPY[kind])
    return e.node("Clip", [x, e.scalar(limits.min, x.kind), e.scalar(limits.max, x.kind)], x.kind, x.shape)


def within(value: float, kind: str) -> float:
    """Return the number of an integer type that is nearest to a value."""
    limits = np.iinfo(NUMPY[kind])
    return min(max(value, limits.min), limits.max)


def rescale_codes(e: OnnxEmitter, x: MlirTensor, scale: Rescale, kind: str) -> MlirTensor:
    """Rescale x to codes of another type."""
    for multiplier, shift in zip(scale.multipliers, scale.shifts, strict=True):
        if not 0 <= multiplier <= INT32.max or not 2 <= shift <= 62:
            e.refuse(f"multiplier {multiplier}, shift {shift}: must be 0..{INT32.max} and 2..62")
    channels = range(len(scale.multipliers))
    if x.kind in BYTES:
        limits = np.iinfo(NUMPY[x.kind])
        table = [
            scale.exact(value, channel, kind) for channel in channels for value in range(limits.min, limits.max + 1)
        ]
        return lookup(e, x, np.array(table), kind, len(channels))
    if x.kind == "INT32" and kind in BYTES:
        return _narrow(e, x, scale, kind)
    powers = {
        (mantissa & (mantissa - 1), mantissa.bit_length() - 1 - shift)
        for mantissa, shift in zip(*scale[:2], strict=True)
    }
    if x.kind == kind == "INT32" and len(powers) == 1 and min(powers)[0] == 0 and 0 <= min(powers)[1] < 31:
        moved = e.elementwise("Sub", x, e.scalar(scale.input_zero, "INT32"))
        wide = e.elementwise("Mul", moved, e.scalar(1 << min(powers)[1], "INT32"))
        return e.elementwise("Add", wide, e.scalar(scale.output_zero, "INT32"))
    factor = f"{scale.multipliers[0]} / 2^{scale.shifts[0]}"
    e.refuse(f"{x.kind} to {kind} by {factor}: one of both must be of 8 bits, or the factor a whole power of two")


def thresholds(scale: Rescale, channel: int, kind: str) -> list[int]:
    """Return the smallest INT32 value of each code except the lowest; INT32.max + 1 for an unreachable code."""
    lowest = int(np.iinfo(NUMPY[kind]).min)
    limits = []
    for code in range(lowest + 1, lowest + CODES):
        low, high = int(INT32.min), int(INT32.max) + 1
        while low < high:
            middle = (low + high) // 2
            if scale.exact(middle, channel, kind) >= code:
                high = middle
            else:
                low = middle + 1
        limits.append(low)
    return limits


def _narrow(e: OnnxEmitter, x: MlirTensor, scale: Rescale, kind: str) -> MlirTensor:
    """Narrow INT32 to a byte."""
    steps = np.array([thresholds(scale, channel, kind) for channel in range(len(scale.multipliers))])
    factors = np.array([m / 2.0**s for m, s in zip(*scale[:2], strict=True)])
    lowest = int(np.iinfo(NUMPY[kind]).min)
    # Distance of a code from the lowest, in floating point.
    offsets = scale.output_zero - scale.input_zero * factors - lowest

    def approximate(add: float) -> tuple[Any, Any]:
        return factors.astype(np.float32), (offsets + add).astype(np.float32)

    def floats(values: Values, coefficients: tuple[Any, Any]) -> Values:
        product = values.astype(np.float32) * coefficients[0][:, None]
        return np.clip(product + coefficients[1][:, None], np.float32(0), np.float32(CODES - 1)).astype(np.int32)

    def emitted(coefficients: tuple[Any, Any]) -> MlirTensor:
        wide = e.elementwise("Mul", e.cast(x, "FLOAT"), _row(e, coefficients[0]))
        moved = e.elementwise("Add", wide, _row(e, coefficients[1]))
        ends = e.scalar(0, "FLOAT"), e.scalar(CODES - 1, "FLOAT")
        return e.cast(e.node("Clip", [moved, *ends], "FLOAT", x.shape), "INT32")

    codes = np.arange(1, CODES)
    reached = np.where(steps <= INT32.max, codes, CODES - 1 + 0 * steps)
    at, below = np.minimum(steps, INT32.max), np.maximum(steps - 1, INT32.min)
    low_code = np.where(steps > INT32.min, codes - 1, 0)
    rounded = approximate(0.5)
    real = (steps > INT32.min) & (steps <= INT32.max)
    right = (floats(at, rounded) >= reached)[real].all() and (floats(below, rounded) <= low_code)[real].all()
    if right and real.all():
        return _byte(e, emitted(rounded), lowest, kind)
    smaller = approximate(-0.25)
    if not _one_below(steps, floats, smaller):
        e.refuse(f"multiplier {scale.multipliers[0]}, shift {scale.shifts[0]}: floats are too coarse for this scale")
    guess = emitted(smaller)
    following = np.concatenate([np.clip(steps, INT32.min, INT32.max), np.full((len(steps), 1), INT32.max)], axis=1)
    never = np.concatenate([steps > INT32.max, np.ones((len(steps), 1), bool)], axis=1)
    if never[:, :-1].any():
        e.refuse(f"multiplier {scale.multipliers[0]}, shift {scale.shifts[0]}: most codes are never reached")
    bound = _take(e, guess, following.reshape(-1), "INT32", len(steps))
    short = e.cast(e.elementwise("Less", x, bound, kind="BOOL"), "INT32")
    code = e.elementwise("Sub", e.elementwise("Add", guess, e.scalar(1, "INT32")), short)
    top = e.node("Clip", [code, e.scalar(0, "INT32"), e.scalar(CODES - 1, "INT32")], "INT32", code.shape)
    return _byte(e, top, lowest, kind)


def _one_below(steps: Values, floats: Any, coefficients: Any) -> bool:
    """Check whether a guess is the code or the next lower code, at both ends of the values of each code."""
    codes = np.arange(1, CODES)
    at, below = np.minimum(steps, INT32.max), np.maximum(steps - 1, INT32.min)
    first, last = floats(at, coefficients), floats(below, coefficients)
    return bool(((first >= codes - 1) & (first <= codes) & (last >= codes - 2) & (last <= codes - 1)).all())


def _row(e: OnnxEmitter, values: Values) -> MlirTensor:
    return e.constant(values) if values.size > 1 else e.scalar(float(values[0]), "FLOAT")


def _byte(e: OnnxEmitter, position: MlirTensor, lowest: int, kind: str) -> MlirTensor:
    """Return the code from its distance to the lowest code."""
    return e.cast(e.elementwise("Add", position, e.scalar(lowest, "INT32")), kind)
