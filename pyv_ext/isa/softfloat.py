"""IEEE 754 arithmetic of binary32 and binary64 in integers: the definition of the instructions of F and D.

A finite number is (sign, significand, exponent): (-1)^sign · significand · 2^exponent, exact for any integers. An
operation computes the exact result and rounds it once. Every function takes and returns encodings, and returns the
exceptions that it raises as bits of fflags. As RISC-V demands, each NaN result is the canonical NaN, tininess is
detected after rounding, and an integer that does not fit becomes the nearest that fits (unprivileged manual, F 2.2 and
D 2.2).
"""

from math import isqrt
from typing import NamedTuple

RNE, RTZ, RDN, RUP, RMM = range(5)
"""Rounding modes: to nearest even, towards zero, down, up, to nearest with ties away from zero."""

NX, UF, OF, DZ, NV = 1, 2, 4, 8, 16
"""Exceptions: inexact, underflow, overflow, division by zero, invalid operation."""

Result = tuple[int, int]
"""An encoding or an integer, and exceptions."""


class FloatFormat(NamedTuple):
    """Binary interchange format."""

    exponent: int
    """Bits of the exponent."""
    fraction: int
    """Bits of the fraction."""

    @property
    def sign(self) -> int:
        """Sign bit."""
        return 1 << self.exponent + self.fraction

    @property
    def infinity(self) -> int:
        return (1 << self.exponent) - 1 << self.fraction

    @property
    def quiet(self) -> int:
        """Bit that makes a NaN quiet."""
        return 1 << self.fraction - 1

    @property
    def nan(self) -> int:
        """Canonical NaN."""
        return self.infinity | self.quiet

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest number: all subnormal numbers are multiples of it."""
        return 2 - (1 << self.exponent - 1) - self.fraction


SINGLE, DOUBLE = FloatFormat(8, 23), FloatFormat(11, 52)


class _Number(NamedTuple):
    sign: int
    significand: int
    exponent: int


def _unpack(form: FloatFormat, bits: int) -> _Number:
    """Unpack a finite number."""
    exponent, fraction = (bits & form.infinity) >> form.fraction, bits & (1 << form.fraction) - 1
    if exponent:
        return _Number(bits // form.sign, 1 << form.fraction | fraction, exponent - 1 + form.min_exponent)
    return _Number(bits // form.sign, fraction, form.min_exponent)


def is_nan(form: FloatFormat, bits: int) -> bool:
    return bits & ~form.sign > form.infinity


def is_signaling(form: FloatFormat, bits: int) -> bool:
    return is_nan(form, bits) and not bits & form.quiet


def _is_infinite(form: FloatFormat, bits: int) -> bool:
    return bits & ~form.sign == form.infinity


def _nan(form: FloatFormat, *operands: int) -> Result:
    """Return the result of an operation with a NaN among its operands."""
    return form.nan, NV if any(is_signaling(form, bits) for bits in operands) else 0


def _integer(sign: int, significand: int, drop: int, mode: int) -> Result:
    """Round significand / 2^drop, of a number of that sign, to an integer; return it, and NX if it is inexact."""
    if drop <= 0:
        return significand << -drop, 0
    quotient, remainder = significand >> drop, significand & (1 << drop) - 1
    half = 1 << drop - 1
    if mode == RNE:
        up = remainder > half or (remainder == half and quotient & 1)
    elif mode == RMM:
        up = remainder >= half
    else:
        up = remainder and mode == (RDN if sign else RUP)
    return quotient + (1 if up else 0), NX if remainder else 0


def _round(form: FloatFormat, sign: int, significand: int, exponent: int, mode: int) -> Result:
    """Round and encode a number that is not zero."""
    excess = significand.bit_length() - form.fraction - 1
    drop = max(excess, form.min_exponent - exponent)
    significand_rounded, flags = _integer(sign, significand, drop, mode)
    bits = (exponent + drop - form.min_exponent << form.fraction) + significand_rounded
    if bits >= form.infinity:
        flags, away = OF | NX, mode in (RNE, RMM, RDN if sign else RUP)
        bits = form.infinity if away else form.infinity - 1
    elif flags and drop > excess:
        unbounded, _ = _integer(sign, significand, excess, mode)  # as if the exponent had no limit
        if unbounded.bit_length() + exponent + excess < form.min_exponent + form.fraction + 1:
            flags |= UF
    return sign * form.sign | bits, flags


def _sum(form: FloatFormat, left: _Number, right: _Number, mode: int) -> Result:
    """Add two numbers and round. A sum of zero is negative if both are, or if it is rounded down and either is."""
    exponent = min(left.exponent, right.exponent)
    total = 0
    for addend in (left, right):
        term = addend.significand << addend.exponent - exponent
        total += -term if addend.sign else term
    if total:
        return _round(form, int(total < 0), abs(total), exponent, mode)
    sign = left.sign if left.sign == right.sign else int(mode == RDN)
    return sign * form.sign, 0


# -- arithmetic ------------------------------------------------------------------------------------------------


def add(form: FloatFormat, a: int, b: int, mode: int) -> Result:
    """Return a + b."""
    if is_nan(form, a) or is_nan(form, b):
        return _nan(form, a, b)
    if _is_infinite(form, a):
        return (form.nan, NV) if _is_infinite(form, b) and a != b else (a, 0)
    if _is_infinite(form, b):
        return b, 0
    return _sum(form, _unpack(form, a), _unpack(form, b), mode)


def sub(form: FloatFormat, a: int, b: int, mode: int) -> Result:
    """Return a - b."""
    return add(form, a, b if is_nan(form, b) else b ^ form.sign, mode)


def mul(form: FloatFormat, a: int, b: int, mode: int) -> Result:
    """Return a · b."""
    if is_nan(form, a) or is_nan(form, b):
        return _nan(form, a, b)
    sign = (a ^ b) & form.sign
    if _is_infinite(form, a) or _is_infinite(form, b):
        zero = not (a & ~form.sign and b & ~form.sign)
        return (form.nan, NV) if zero else (sign | form.infinity, 0)
    left, right = _unpack(form, a), _unpack(form, b)
    product = left.significand * right.significand
    if not product:
        return sign, 0
    return _round(form, left.sign ^ right.sign, product, left.exponent + right.exponent, mode)


def fma(form: FloatFormat, a: int, b: int, c: int, mode: int) -> Result:
    """Return a · b + c, rounded once. Infinity times zero is invalid even when c is a NaN."""
    magnitudes = {a & ~form.sign, b & ~form.sign}
    if magnitudes == {0, form.infinity}:
        return form.nan, NV
    if any(is_nan(form, bits) for bits in (a, b, c)):
        return _nan(form, a, b, c)
    sign = (a ^ b) & form.sign
    if form.infinity in magnitudes:
        return add(form, sign | form.infinity, c, mode)
    if _is_infinite(form, c):
        return c, 0
    left, right = _unpack(form, a), _unpack(form, b)
    product = _Number(
        left.sign ^ right.sign, left.significand * right.significand, left.exponent + right.exponent
    )  # fmt: skip
    return _sum(form, product, _unpack(form, c), mode)


def div(form: FloatFormat, a: int, b: int, mode: int) -> Result:
    """Return a / b."""
    if is_nan(form, a) or is_nan(form, b):
        return _nan(form, a, b)
    sign = (a ^ b) & form.sign
    if _is_infinite(form, a):
        return (form.nan, NV) if _is_infinite(form, b) else (sign | form.infinity, 0)
    if _is_infinite(form, b):
        return sign, 0
    dividend, divisor = _unpack(form, a), _unpack(form, b)
    if not divisor.significand:
        return (sign | form.infinity, DZ) if dividend.significand else (form.nan, NV)
    if not dividend.significand:
        return sign, 0
    shift = 2 * form.fraction + 4
    quotient, remainder = divmod(dividend.significand << shift, divisor.significand)
    sticky = quotient << 1 | (remainder != 0)
    return _round(form, dividend.sign ^ divisor.sign, sticky, dividend.exponent - divisor.exponent - shift - 1, mode)


def sqrt(form: FloatFormat, a: int, mode: int) -> Result:
    """Return the square root of a; that of -0 is -0."""
    if is_nan(form, a):
        return _nan(form, a)
    if not a & ~form.sign:
        return a, 0
    if a & form.sign:
        return form.nan, NV
    if _is_infinite(form, a):
        return a, 0
    _, significand, exponent = _unpack(form, a)
    shift = 2 * form.fraction + 4
    shift += exponent - shift & 1
    root = isqrt(significand << shift)
    sticky = root << 1 | (root * root != significand << shift)
    return _round(form, 0, sticky, (exponent - shift >> 1) - 1, mode)


# -- comparison ------------------------------------------------------------------------------------------------


def _order(form: FloatFormat, bits: int) -> int:
    """Return an integer with the order of the numbers; -0 and 0 are equal."""
    magnitude = bits & ~form.sign
    return -magnitude if bits & form.sign else magnitude


def equal(form: FloatFormat, a: int, b: int) -> Result:
    """Compare a = b; a quiet NaN is no exception."""
    if is_nan(form, a) or is_nan(form, b):
        return 0, _nan(form, a, b)[1]
    return int(_order(form, a) == _order(form, b)), 0


def less(form: FloatFormat, a: int, b: int) -> Result:
    """Compare a < b; any NaN is invalid."""
    if is_nan(form, a) or is_nan(form, b):
        return 0, NV
    return int(_order(form, a) < _order(form, b)), 0


def less_equal(form: FloatFormat, a: int, b: int) -> Result:
    """Compare a <= b; any NaN is invalid."""
    if is_nan(form, a) or is_nan(form, b):
        return 0, NV
    return int(_order(form, a) <= _order(form, b)), 0


def minimum(form: FloatFormat, a: int, b: int) -> Result:
    """Return minimumNumber of IEEE 754-2019: of a number and a NaN the number; -0 is below 0."""
    return _select_lower(form, a, b, 0)


def maximum(form: FloatFormat, a: int, b: int) -> Result:
    """Return maximumNumber of IEEE 754-2019."""
    return _select_lower(form, a, b, form.sign)


def _select_lower(form: FloatFormat, a: int, b: int, negate: int) -> Result:
    flags = _nan(form, a, b)[1]
    numbers = [bits for bits in (a, b) if not is_nan(form, bits)]
    if not numbers:
        return form.nan, flags
    return min(numbers, key=lambda bits: (_order(form, bits ^ negate), -((bits ^ negate) & form.sign))), flags


def classify(form: FloatFormat, a: int) -> int:
    """Return the mask of FCLASS: one of ten bits."""
    magnitude = a & ~form.sign
    if magnitude > form.infinity:
        return 1 << (9 if a & form.quiet else 8)
    bounds = (form.infinity, 1 << form.fraction, 1, 0)  # infinite, normal, subnormal, zero
    rank = next(rank for rank, bound in enumerate(bounds) if magnitude >= bound)
    return 1 << (rank if a & form.sign else 7 - rank)


# -- conversion ------------------------------------------------------------------------------------------------


def to_integer(form: FloatFormat, a: int, mode: int, low: int, high: int) -> Result:
    """Round a to an integer from `low` to `high`; a NaN becomes `high`."""
    sign = a & form.sign
    if is_nan(form, a):
        return high, NV
    if _is_infinite(form, a):
        return (low if sign else high), NV
    operand = _unpack(form, a)
    magnitude, flags = _integer(operand.sign, operand.significand, -operand.exponent, mode)
    value = -magnitude if sign else magnitude
    return (value, flags) if low <= value <= high else (low if sign else high, NV)


def from_integer(form: FloatFormat, value: int, mode: int) -> Result:
    """Round an integer to the nearest number."""
    return _round(form, int(value < 0), abs(value), 0, mode) if value else (0, 0)


def convert(form: FloatFormat, a: int, to: FloatFormat, mode: int) -> Result:
    """Convert a to another format."""
    if is_nan(form, a):
        return to.nan, _nan(form, a)[1]
    sign = to.sign if a & form.sign else 0
    if _is_infinite(form, a):
        return sign | to.infinity, 0
    operand = _unpack(form, a)
    return _round(to, *operand, mode) if operand.significand else (sign, 0)
