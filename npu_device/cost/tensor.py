"""Cycles of tensor engines of each type: closed forms (docs/npu-timing.md, "Engines")."""

from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from typing import NamedTuple

from npu_device.config import SPEED, WIDTHS, TeConfig
from npu_device.cost.plan import Compute, Sight
from npu_device.trace.events import Cause


@cache
def speeds(table: tuple[int, ...]) -> Mapping[int, Fraction]:
    """f_w or f_a of a configuration: operations per cycle by the bits of an element, relative to 8 bits."""
    return {bits: Fraction(rate, table[WIDTHS.index(8)]) for bits, rate in zip(WIDTHS, table, strict=True)}


SPEEDS = speeds(SPEED)
"""Those of the default machine (docs/npu-timing.md, "Duration of a step")."""

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
    reads: tuple[int | Fraction, int | Fraction] = (1, 1)
    """How often in0 and in1 are read."""
    writes: int | Fraction = 1
    """How often the result is written."""
    lost: tuple[tuple[Cause, int], ...] = ()
    """Of `cycles`, those that a chain does not spend on pairs."""


def peak_macs(te: TeConfig) -> int:
    """MACs per cycle of one engine, at 8 bits where the width matters."""
    return te.chained.T * te.chained.lanes if te.kind == "chained_ve" else te.rows * te.columns


def gemm_rate(te: TeConfig, weight_bits: int, activation_bits: int) -> Fraction:
    """MACs per cycle of a tensor engine: one in each element of its array at 8 bits (docs/bit-widths.md, R9)."""
    return te.rows * te.columns * speeds(te.f_w)[weight_bits] * speeds(te.f_a)[activation_bits]


def product(
    te: TeConfig, m: int, n: int, k: int, bits_a: int, bits_w: int, weights_kept: bool = False, groups: int = 1
) -> Product:
    """Cost of one tile, whose columns belong to so many `groups`. The systolic kinds save one cycle per command, see
    `once_per_command`."""
    if te.ideal:
        return Product(0)
    if groups > 1 and te.kind != "roofline":
        return _grouped(te, m, n // groups, k, bits_a, bits_w, groups)
    if te.kind == "chained_ve":
        from npu_device.cost import chained  # most machines have none

        made = chained.product(te.chained, m, n, k, bits_a, bits_w)
        return Product(made.work.cycles, reads=made.reads, lost=made.work.lost)
    r, c = te.rows, te.columns
    if te.kind == "roofline":
        rate = gemm_rate(te, bits_w, bits_a) if te.speed == "by_bits" else Fraction(r * c)
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
    return Product(folds * (temporal + preload + r + c - 2) - (te.form == "rtl"), reads=again)


def _grouped(te: TeConfig, m: int, n: int, k: int, bits_a: int, bits_w: int, groups: int) -> Product:
    """Products of n columns and k rows of weights each, one after the other. An array that holds the weights has those
    of several groups on its diagonal, where they fit: as many at once."""
    holds_weights = te.kind in ("systolic_ws", "systolic_ws_pipe")
    at_once = max(1, min(te.rows // k, te.columns // n, groups)) if holds_weights else 1
    count = ceil_div(groups, at_once)
    one = product(te, m, at_once * n, at_once * k, bits_a, bits_w)
    return one._replace(cycles=count * one.cycles, lost=tuple((cause, count * lost) for cause, lost in one.lost))


def attention(te: TeConfig, rows: int, sight: Sight, bits: int) -> Product:
    """Return a tile of ATTN_T on a chain that sees its mask: queries by keys of so many bits, or weights by values."""
    if te.ideal:
        return Product(0)
    from npu_device.cost import chained

    made = chained.attention(te.chained, rows, sight, bits)
    unmasked = Fraction(chained.unmasked_rows(rows, sight), rows * sight.keys)
    keys = Fraction(made.keys_read, sight.keys)
    if sight.scores:
        return Product(made.cycles, reads=(1, keys), writes=unmasked, lost=made.lost)
    return Product(made.cycles, reads=(unmasked, keys), lost=made.lost)


def product_of(te: TeConfig, piece: Compute) -> Product:
    """Cost of a step on a tensor engine."""
    if piece.sight is not None:
        return attention(te, piece.m, piece.sight, piece.bits_w)
    return product(te, piece.m, piece.n, piece.k, piece.bits_a, piece.bits_w, piece.weights_kept, piece.groups)


def once_per_command(te: TeConfig) -> int:
    """Cycles to add to the first tile of a command."""
    return -1 if te.kind in SYSTOLIC and te.form == "v3" and not te.ideal else 0
