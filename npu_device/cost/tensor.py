"""How long tensor engines of each kind take: closed forms (docs/npu-timing.md, "Engines")."""

from fractions import Fraction
from typing import NamedTuple

from npu_device.config import TeConfig

SPEED = {2: Fraction(4), 4: Fraction(2), 8: Fraction(1), 16: Fraction(1, 2), 32: Fraction(1, 4)}
"""f_w and f_a: operations per cycle by the bits of an element, relative to 8 bits (docs/npu-timing.md)."""

SYSTOLIC = ("systolic_os", "systolic_ws", "systolic_is")
MIN_ROWS = 4
"""A pipelined array streams at least so many rows (ONNXim)."""


def ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


class Product(NamedTuple):
    """M x K times K x N on one engine, NPU cycles."""

    cycles: int
    """For which the engine can take nothing else."""
    drain: int = 0
    """From there until the result is complete."""
    cold: int = 0
    """More, when the pipeline has run empty."""
    reads: tuple[int, int] = (1, 1)
    """How often in0 and in1 are read."""


def gemm_rate(macs_per_cycle: int, weight_bits: int, activation_bits: int) -> Fraction:
    """MACs per cycle of a tensor engine that does `macs_per_cycle` at 8 bits (docs/bit-widths.md, R9)."""
    return macs_per_cycle * SPEED[weight_bits] * SPEED[activation_bits]


def product(te: TeConfig, m: int, n: int, k: int, bits_a: int, bits_w: int, weights_kept: bool = False) -> Product:
    """Cost of one tile. The systolic kinds save one cycle per command, see `once_per_command`."""
    if te.ideal:
        return Product(0)
    r, c = te.rows, te.columns
    if te.kind == "roofline":
        rate = gemm_rate(r * c, bits_w, bits_a) if te.speed == "by_bits" else Fraction(r * c)
        return Product(te.fill + ceil_div(m * n * k * rate.denominator, rate.numerator))
    if te.kind == "systolic_ws_pipe":
        folds = ceil_div(k, r) * ceil_div(n, c)
        rows = max(m, MIN_ROWS)
        fold = rows if weights_kept and folds == 1 else max(rows, r)
        return Product(folds * fold, r + c - 2 + rows - min(fold, rows + r + c - 2), 2 * r - 1)
    spatial_rows, spatial_columns, temporal = {
        "systolic_os": (m, n, k),
        "systolic_ws": (k, n, m),
        "systolic_is": (k, m, n),
    }[te.kind]
    folds = ceil_div(spatial_rows, r) * ceil_div(spatial_columns, c)
    preload = r if te.form == "paper" or te.kind != "systolic_os" else 0
    again = (ceil_div(n, c), ceil_div(m, r)) if te.kind == "systolic_os" else (1, 1)
    return Product(folds * (temporal + preload + r + c - 2), reads=again)


def once_per_command(te: TeConfig) -> int:
    """Cycles to add to the first tile of a command."""
    return -1 if te.kind in SYSTOLIC and te.form == "v3" and not te.ideal else 0
