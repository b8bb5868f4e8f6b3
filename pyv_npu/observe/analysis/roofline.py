"""The rooflines of a device: operations per core cycle that its parts can reach at most."""

from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

from npu_device.config import NpuConfig
from npu_device.cost.durations import vector_rate
from npu_device.cost.tensor import gemm_rate
from pyv_npu.observe.analysis.layers import Layer


class Roof(NamedTuple):
    """A ceiling that does not depend on the intensity."""

    name: str
    rate: float
    """Operations per core cycle."""


class Roofline(NamedTuple):
    """What bounds a layer of some intensity: the lower of the slope and the roofs."""

    slope: float | None
    """Bytes of DRAM traffic per core cycle; None: no limit."""
    roofs: tuple[Roof, ...]


def roofline(config: NpuConfig, layers: Iterable[Layer]) -> Roofline:
    """For the element widths that the products of `layers` have; a multiply-accumulate step is two operations."""
    ratio = Fraction(config.clock_ratio[1], config.clock_ratio[0])
    roofs = []
    widths = sorted({bits for layer in layers for bits in layer.bits})
    if not config.te.ideal:
        engines = config.te.count * config.clusters
        cells = config.te.rows * config.te.columns
        by_bits = config.te.kind == "roofline" and config.te.speed == "by_bits"
        for a, w in widths if by_bits else widths[:1]:
            rate = gemm_rate(cells, w, a) if by_bits else Fraction(cells)
            kind = f", {a} x {w} bits" if by_bits else ""
            roofs.append(Roof(f"{engines} tensor engines{kind}", float(2 * engines * rate * ratio)))
    if not config.ve.ideal:
        engines = config.ve.count * config.clusters
        bits = max((a for a, _ in widths), default=8) if config.ve.speed == "by_bits" else 8
        rate = vector_rate(config.ve.lanes, bits)
        roofs.append(Roof(f"{engines} vector engines, {bits} bits", float(engines * rate * ratio)))
    limits = [rate for rate in (config.dram.bytes_per_second, config.noc.bytes_per_second) if rate is not None]
    return Roofline(min(limits) / config.clock_hz if limits else None, tuple(roofs))
