"""Cycles of tensor engines of each type: closed forms (docs/npu-timing.md, "Engines")."""

from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from typing import NamedTuple

from npu_device.config import SPEED, WIDTHS, TeConfig
from npu_device.cost import chained
from npu_device.cost.plan import Compute, Sight
from npu_device.memory.bitwidth import ceil_div
from npu_device.trace.events import Cause


@cache
def speeds(table: tuple[int, ...]) -> Mapping[int, Fraction]:
    """Return f_w or f_a of a configuration: operations per cycle by the bits of an element, relative to 8 bits."""
    return {bits: Fraction(rate, table[WIDTHS.index(8)]) for bits, rate in zip(WIDTHS, table, strict=True)}


SPEEDS = speeds(SPEED)
"""Speeds of the default machine (docs/npu-timing.md, "Duration of a step")."""

SYSTOLIC = ("systolic_os", "systolic_ws", "systolic_is")
MIN_ROWS = 4
"""Minimum number of rows that a pipelined array streams (ONNXim)."""


class Product(NamedTuple):
    """Cost of M x K by K x N on one engine, NPU cycles."""

    cycles: int
    """Cycles for which the engine is occupied."""
    drain: int = 0
    """Cycles from then until the result is complete."""
    cold: int = 0
    """Additional cycles if the pipeline is empty."""
    reads: tuple[int | Fraction, int | Fraction] = (1, 1)
    """Number of times that in0 and in1 are read."""
    writes: int | Fraction = 1
    """Number of times that the result is written."""
    lost: tuple[tuple[Cause, int], ...] = ()
    """Part of `cycles` that a chain does not spend on pairs, by cause."""


def peak_macs(te: TeConfig) -> int:
    """Return the MACs per cycle of one engine, at 8 bits if the width matters."""
    return te.chained.T * te.chained.lanes if te.kind == "chained_ve" else te.rows * te.columns


def gemm_rate(te: TeConfig, weight_bits: int, activation_bits: int) -> Fraction:
    """Return the MACs per cycle of a tensor engine: 1 per element of its array at 8 bits (docs/bit-widths.md, R9)."""
    return te.rows * te.columns * speeds(te.f_w)[weight_bits] * speeds(te.f_a)[activation_bits]


def product(
    te: TeConfig, m: int, n: int, k: int, bits_a: int, bits_w: int, weights_kept: bool = False, groups: int = 1
) -> Product:
    """Return the cost of one tile, whose columns are in `groups` groups. Systolic kinds save one cycle per command, see
    `once_per_command`."""
    if te.ideal:
        return Product(0)
    if groups > 1 and te.kind != "roofline":
        return _grouped(te, m, n // groups, k, bits_a, bits_w, groups)
    if te.kind == "chained_ve":
        broadcast = chained.product(te.chained, m, n, k, bits_a, bits_w)
        return Product(broadcast.work.cycles, reads=broadcast.reads, lost=broadcast.work.lost)
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
    reads = (ceil_div(n, c), ceil_div(m, r)) if te.kind == "systolic_os" else (1, 1)
    return Product(folds * (temporal + preload + r + c - 2) - (te.form == "rtl"), reads=reads)


def _grouped(te: TeConfig, m: int, n: int, k: int, bits_a: int, bits_w: int, groups: int) -> Product:
    """Return the cost of sequential products of n columns and k rows of weights each. A weight stationary array
    executes as many groups at once as fit on its diagonal."""
    holds_weights = te.kind in ("systolic_ws", "systolic_ws_pipe")
    concurrent = max(1, min(te.rows // k, te.columns // n, groups)) if holds_weights else 1
    count = ceil_div(groups, concurrent)
    step = product(te, m, concurrent * n, concurrent * k, bits_a, bits_w)
    return step._replace(cycles=count * step.cycles, lost=tuple((cause, count * lost) for cause, lost in step.lost))


def attention(te: TeConfig, rows: int, sight: Sight, bits: int) -> Product:
    """Return the cost of an ATTN_T tile on a chain: queries by keys, or weights by values, of `bits` per element."""
    if te.ideal:
        return Product(0)
    work = chained.attention(te.chained, rows, sight, bits)
    unmasked = Fraction(chained.unmasked_rows(rows, sight), rows * sight.keys)
    keys = Fraction(work.keys_read, sight.keys)
    if sight.scores:
        return Product(work.cycles, reads=(1, keys), writes=unmasked, lost=work.lost)
    return Product(work.cycles, reads=(unmasked, keys), lost=work.lost)


def product_of(te: TeConfig, piece: Compute) -> Product:
    """Return the cost of a step on a tensor engine."""
    if piece.sight is not None:
        return attention(te, piece.m, piece.sight, piece.bits_w)
    return product(te, piece.m, piece.n, piece.k, piece.bits_a, piece.bits_w, piece.weights_kept, piece.groups)


def once_per_command(te: TeConfig) -> int:
    """Return the cycles to add to the first tile of a command."""
    return -1 if te.kind in SYSTOLIC and te.form == "v3" and not te.ideal else 0
