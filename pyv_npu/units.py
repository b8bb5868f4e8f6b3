"""Formats of quantities: rounding, prefixes and units in pages and on the terminal."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pyv_npu.text import MISSING

DIGITS = 4
"""Significant digits of a figure with a fraction."""


MAX_DECIMALS = 12
"""Maximum number of decimals; smaller figures have an exponent."""
LEAST_SHARE = 0.0005
"""Minimum share that is shown in per cent with one decimal."""


class UnitScale(NamedTuple):
    """Scale of a unit: prefixed unit and factor."""

    factor: float
    unit: str


_DECIMAL = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n"), (1e-12, "p"))
SCALES: Mapping[str, tuple[UnitScale, ...]] = {
    "s": (UnitScale(1.0, "s"), UnitScale(1e-3, "ms"), UnitScale(1e-6, "us"), UnitScale(1e-9, "ns")),
    "bytes": (UnitScale(2**30, "GiB"), UnitScale(2**20, "MiB"), UnitScale(2**10, "KiB"), UnitScale(1, "bytes")),
    "bytes/s": tuple(UnitScale(factor, f"{prefix}B/s") for factor, prefix in _DECIMAL),
    "ops/s": tuple(UnitScale(factor, f"{prefix}OPS") for factor, prefix in _DECIMAL),
    "J": tuple(UnitScale(factor, f"{prefix}J") for factor, prefix in _SMALL),
    "J s": tuple(UnitScale(factor, f"{prefix}J s") for factor, prefix in _SMALL),
    "W": (UnitScale(1.0, "W"), UnitScale(1e-3, "mW"), UnitScale(1e-6, "uW")),
    "share": (UnitScale(0.01, "%"),),
}
"""Unit -> its scales, the largest first. Other units have no prefix."""


def scale_of(values: Iterable[float], unit: str) -> UnitScale:
    """Choose the scale of an axis or a column: the largest scale in which the largest value is at least 1."""
    top = max((abs(value) for value in values), default=0.0)
    scales = SCALES.get(unit, (UnitScale(1, unit),))
    return next((scale for scale in scales if top >= scale.factor), scales[-1])


def number(value: object) -> str:
    """Format a figure without a unit: whole numbers exactly, others with `DIGITS` digits or rounded to an integer."""
    if value is None:
        return MISSING
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    if not math.isfinite(value):
        return f"{value:g}"
    if value.is_integer():
        return f"{value:,.0f}"
    digits = max(0, DIGITS - 1 - math.floor(math.log10(abs(value))))
    if digits > MAX_DECIMALS:
        return f"{value:.{DIGITS}g}"
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def short(value: int) -> str:
    """Format a count for a narrow column, with a prefix from a million on."""
    scale = next((factor, prefix) for factor, prefix in _DECIMAL if value >= factor or factor == 1)
    return number(value) if value < 1e6 else f"{number(value / scale[0])} {scale[1]}"


def quantity(value: float | None, unit: str) -> str:
    """Format a figure with its unit and prefix: `1.5 MiB`, `12.3 ms`, `61.2 %`, `3,400 cycles`."""
    if value is None:
        return MISSING
    if unit == "share":
        return f"{100 * value:.1f} %" if abs(value) >= LEAST_SHARE else f"{number(float(f'{100 * value:.2g}'))} %"
    scale = scale_of([value], unit)
    scaled = value / scale.factor if scale.factor != 1 else value
    return f"{number(scaled)} {scale.unit}".rstrip()


def duration(cycles: int | None, hertz: float) -> str:
    """Format cycles as time, at a clock of `hertz`."""
    return quantity(None if cycles is None or not hertz else cycles / hertz, "s")
