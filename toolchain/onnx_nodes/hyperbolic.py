"""Inverse trigonometric and hyperbolic functions, composed from functions of the vector engine.

Small arguments use the polynomials of the Cephes library for single precision (asinf, atanf, sinhf), which avoid the
cancellation of formulas with Exp or Log. All computation is in FP32.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from toolchain.onnx_nodes.parts import Compose, Decomposition, Tensor

ASIN = (4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
"""Polynomial in x squared, highest power first, for x up to 1/2: (asin x - x) / x cubed."""
ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
"""Polynomial of atan in the same form, for x up to tan(pi / 8)."""
SINH = (2.03721912945e-4, 8.33028376239e-3, 1.66667160211e-1)
"""Polynomial of sinh in the same form, for x up to 1."""
LARGE = 1e9
"""Threshold above which x equals sqrt(x squared + 1) in FP32."""


def _sqrt(x: Tensor) -> Tensor:
    return x.parts.make("Sqrt", x)


def _log(x: Tensor) -> Tensor:
    return x.parts.make("Log", x)


def _signed(x: Tensor, size: Tensor) -> Tensor:
    """Return a non-negative value with the sign of x."""
    return (x < 0.0).where(-size, size)


def _odd(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """Return x + x cubed P(x squared)."""
    square = x * x
    total = square * coefficients[0]
    for coefficient in coefficients[1:]:
        total = (total + coefficient) * square
    return total * x + x


def _log_of_more(x: Tensor) -> Tensor:
    """Return log(1 + x) for x >= 0, with correction of the rounding error of the sum."""
    total = x + 1.0
    lost = x - (total - 1.0)
    corrected = _log(total) + lost / total
    return (x < LARGE).where(corrected, _log(x))


def _log_of_double(x: Tensor) -> Tensor:
    """Return log(2 x) without overflow of 2 x."""
    return _log(x) + math.log(2)


def _asin(x: Tensor) -> Tensor:
    size = abs(x)
    inner, far = _odd(size, ASIN), _odd(_sqrt((1.0 - size) * 0.5), ASIN)
    return _signed(x, (size > 0.5).where(math.pi / 2 - far * 2.0, inner))


def _acos(x: Tensor) -> Tensor:
    """Return acos, by the half-angle formula from 1/2 on, where pi / 2 - asin(x) suffers cancellation."""
    size = abs(x)
    half = _odd(_sqrt((1.0 - size) * 0.5), ASIN) * 2.0
    far = (x < 0.0).where(math.pi - half, half)
    return (size > 0.5).where(far, math.pi / 2 - _odd(x, ASIN))


def _atan(x: Tensor) -> Tensor:
    """Return atan: from pi / 8 or 3 pi / 8 on, the polynomial computes the angle minus pi / 4 or pi / 2."""
    size = abs(x)
    above, steep = size > math.tan(math.pi / 8), size > math.tan(3 * math.pi / 8)
    middle = (size - 1.0) / (size + 1.0)
    argument = steep.where(-1.0 / size, above.where(middle, size))
    base = steep.where(math.pi / 2, above.where(np.float32(math.pi / 4), np.float32(0)))
    return _signed(x, _odd(argument, ATAN) + base)


def _sinh(x: Tensor) -> Tensor:
    size, (half, inverse) = abs(x), _exponentials(x)
    return (size < 1.0).where(_odd(x, SINH), _signed(x, half - inverse))


def _cosh(x: Tensor) -> Tensor:
    half, inverse = _exponentials(x)
    return half + inverse


def _exponentials(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return exp(|x|) / 2, which overflows later than exp(|x|), and exp(-|x|) / 2."""
    root = x.parts.make("Exp", abs(x) * 0.5)
    return root * 0.5 * root, 0.5 / root / root


def _asinh(x: Tensor) -> Tensor:
    """Return log(1 + |x| + x squared / (1 + sqrt(x squared + 1))); for large x, log(2 |x|)."""
    size = abs(x)
    bounded = size.min(LARGE)
    root = _sqrt(bounded * bounded + 1.0)
    inner = _log_of_more(size + size * (bounded / (root + 1.0)))
    return _signed(x, (size < LARGE).where(inner, _log_of_double(size)))


def _acosh(x: Tensor) -> Tensor:
    """Return log(1 + t + sqrt(t) sqrt(t + 2)) with t = x - 1; for large x, log(2 x)."""
    over = x - 1.0
    inner = _log_of_more(over + _sqrt(over) * _sqrt(over + 2.0))
    return (x < LARGE).where(inner, _log_of_double(x))


def _atanh(x: Tensor) -> Tensor:
    """Return log(1 + 2 |x| / (1 - |x|)) / 2."""
    size = abs(x)
    return _signed(x, _log_of_more(size * 2.0 / (1.0 - size)) * 0.5)


def _compose(formula: Callable[[Tensor], Tensor]) -> Compose:
    def compose(parts: Decomposition) -> None:
        result = formula(parts.input(0).float32())
        parts.result("Identity", result if parts.kind == np.float32 else result.cast(parts.kind))

    return compose


FUNCTIONS = {
    "Acos": _compose(_acos), "Acosh": _compose(_acosh), "Asin": _compose(_asin), "Asinh": _compose(_asinh),
    "Atan": _compose(_atan), "Atanh": _compose(_atanh), "Cosh": _compose(_cosh), "Sinh": _compose(_sinh),
}  # fmt: skip
