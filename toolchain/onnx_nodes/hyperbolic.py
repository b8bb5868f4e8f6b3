"""Inverse trigonometric and hyperbolic functions, composed from functions of the vector engine.

Small arguments use the polynomials of the Cephes library for single precision (asinf, atanf, sinhf), which avoid the
cancellation of formulas with Exp or Log. All computation is in FP32.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from toolchain.onnx_nodes.parts import Compose, Decomposition

ASIN = (4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
"""Polynomial in x squared, highest power first, for x up to 1/2: (asin x - x) / x cubed."""
ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
"""Polynomial of atan in the same form, for x up to tan(pi / 8)."""
SINH = (2.03721912945e-4, 8.33028376239e-3, 1.66667160211e-1)
"""Polynomial of sinh in the same form, for x up to 1."""
LARGE = 1e9
"""Threshold above which x equals sqrt(x squared + 1) in FP32."""


class _Terms:
    """Elementwise FP32 operators whose operands may be numbers."""

    def __init__(self, parts: Decomposition) -> None:
        self.parts = parts
        self.x = parts.input(0) if parts.kind == np.float32 else parts.cast(parts.input(0), np.float32)

    def __call__(self, operator: str, *operands: str | float) -> str:
        return self.parts.make(
            operator, *(operand if isinstance(operand, str) else self._number(operand) for operand in operands)
        )

    def _number(self, value: float) -> str:
        return self.parts.constant(np.array(value, np.float32))

    def where(self, condition: str, if_true: str | float, if_false: str | float) -> str:
        return self("Where", condition, if_true, if_false)

    def signed(self, size: str) -> str:
        """Return a non-negative value with the sign of x."""
        return self.where(self("Less", self.x, 0.0), self("Neg", size), size)

    def odd(self, x: str, coefficients: Sequence[float]) -> str:
        """Return x + x cubed P(x squared)."""
        square = self("Mul", x, x)
        total = self("Mul", square, coefficients[0])
        for coefficient in coefficients[1:-1]:
            total = self("Mul", self("Add", total, coefficient), square)
        total = self("Mul", self("Add", total, coefficients[-1]), square)
        return self("Add", self("Mul", total, x), x)

    def log_of_more(self, x: str) -> str:
        """Return log(1 + x) for x >= 0, with correction of the rounding error of the sum."""
        sum_ = self("Add", x, 1.0)
        lost = self("Sub", x, self("Sub", sum_, 1.0))
        corrected = self("Add", self("Log", sum_), self("Div", lost, sum_))
        return self.where(self("Less", x, LARGE), corrected, self("Log", x))

    def log_of_double(self, x: str) -> str:
        """Return log(2 x) without overflow of 2 x."""
        return self("Add", self("Log", x), math.log(2))

    def arc_sine(self, size: str) -> str:
        """Compute asin for 0..1."""
        inner = self.odd(size, ASIN)
        far = self.odd(self("Sqrt", self("Mul", self("Sub", 1.0, size), 0.5)), ASIN)
        return self.where(self("Greater", size, 0.5), self("Sub", math.pi / 2, self("Mul", far, 2.0)), inner)


def _asin(of: _Terms) -> str:
    return of.signed(of.arc_sine(of("Abs", of.x)))


def _acos(of: _Terms) -> str:
    """Return acos, by the half-angle formula from 1/2 on, where pi / 2 - asin(x) suffers cancellation."""
    size = of("Abs", of.x)
    half = of("Mul", of.odd(of("Sqrt", of("Mul", of("Sub", 1.0, size), 0.5)), ASIN), 2.0)
    far = of.where(of("Less", of.x, 0.0), of("Sub", math.pi, half), half)
    return of.where(of("Greater", size, 0.5), far, of("Sub", math.pi / 2, of.odd(of.x, ASIN)))


def _atan(of: _Terms) -> str:
    """Return atan: from pi / 8 or 3 pi / 8 on, the polynomial computes the angle minus pi / 4 or pi / 2."""
    size = of("Abs", of.x)
    above, steep = of("Greater", size, math.tan(math.pi / 8)), of("Greater", size, math.tan(3 * math.pi / 8))
    middle = of("Div", of("Sub", size, 1.0), of("Add", size, 1.0))
    argument = of.where(steep, of("Div", -1.0, size), of.where(above, middle, size))
    base = of.where(steep, math.pi / 2, of.where(above, math.pi / 4, 0.0))
    return of.signed(of("Add", of.odd(argument, ATAN), base))


def _sinh(of: _Terms) -> str:
    size, (half, inverse) = of("Abs", of.x), _exponentials(of)
    return of.where(of("Less", size, 1.0), of.odd(of.x, SINH), of.signed(of("Sub", half, inverse)))


def _cosh(of: _Terms) -> str:
    return of("Add", *_exponentials(of))


def _exponentials(of: _Terms) -> tuple[str, str]:
    """Return exp(|x|) / 2, which overflows later than exp(|x|), and exp(-|x|) / 2."""
    root = of("Exp", of("Mul", of("Abs", of.x), 0.5))
    return of("Mul", of("Mul", root, 0.5), root), of("Div", of("Div", 0.5, root), root)


def _asinh(of: _Terms) -> str:
    """Return log(1 + |x| + x squared / (1 + sqrt(x squared + 1))); for large x, log(2 |x|)."""
    size = of("Abs", of.x)
    bounded = of("Min", size, LARGE)
    root = of("Sqrt", of("Add", of("Mul", bounded, bounded), 1.0))
    inner = of.log_of_more(of("Add", size, of("Mul", size, of("Div", bounded, of("Add", root, 1.0)))))
    return of.signed(of.where(of("Less", size, LARGE), inner, of.log_of_double(size)))


def _acosh(of: _Terms) -> str:
    """Return log(1 + t + sqrt(t) sqrt(t + 2)) with t = x - 1; for large x, log(2 x)."""
    over = of("Sub", of.x, 1.0)
    inner = of.log_of_more(of("Add", over, of("Mul", of("Sqrt", over), of("Sqrt", of("Add", over, 2.0)))))
    return of.where(of("Less", of.x, LARGE), inner, of.log_of_double(of.x))


def _atanh(of: _Terms) -> str:
    """Return log(1 + 2 |x| / (1 - |x|)) / 2."""
    size = of("Abs", of.x)
    ratio = of("Div", of("Mul", size, 2.0), of("Sub", 1.0, size))
    return of.signed(of("Mul", of.log_of_more(ratio), 0.5))


def _compose(formula: Callable[[_Terms], str]) -> Compose:
    def compose(parts: Decomposition) -> None:
        result = formula(_Terms(parts))
        parts.result("Identity", result if parts.kind == np.float32 else parts.cast(result, parts.kind))

    return compose


FUNCTIONS = {
    "Acos": _compose(_acos), "Acosh": _compose(_acosh), "Asin": _compose(_asin), "Asinh": _compose(_asinh),
    "Atan": _compose(_atan), "Atanh": _compose(_atanh), "Cosh": _compose(_cosh), "Sinh": _compose(_sinh),
}  # fmt: skip
