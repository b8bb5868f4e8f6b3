"""Metrics of a run: utilization of engines, roofline of the device, and the rows of metrics.csv."""

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from npu_device.config import NpuConfig
from npu_device.cost.durations import vector_rate
from npu_device.cost.tensor import gemm_rate, peak_macs
from npu_device.trace.events import unit_counts, unit_index
from npu_device.trace.run_spans import Spans
from npu_device.trace.spans import UNITS
from pyv_npu.config import Config
from pyv_npu.observe.analysis import energy
from pyv_npu.observe.analysis.layers import Layer
from pyv_npu.observe.analysis.model import Analysis

CYCLES, SHARE, BYTES = "core cycles", "0..1", "bytes"


def utilization(spans: Spans, config: NpuConfig) -> dict[str, float]:
    """Return engine ("te0", "ve3", "dma1") -> busy share of the run's cycles, 0..1, idle engines included."""
    counts = unit_counts(config)
    shares = {f"{kind.name.lower()}{index}": 0.0 for kind in UNITS for index in range(counts[kind] * config.clusters)}
    for kind in UNITS:
        for unit, rows in spans.units(kind).items():
            busy = int((rows["end"] - rows["start"]).sum())
            shares[f"{kind.name.lower()}{unit_index(unit)}"] = busy / max(spans.end, 1)
    return shares


# -- rooflines --------------------------------------------------------------------------------------------------------


class Roof(NamedTuple):
    """Bound that does not depend on the intensity."""

    name: str
    rate: float
    """Operations per core cycle."""


class Roofline(NamedTuple):
    """Bounds of a layer by its intensity: the lower of the slope and the roofs."""

    slope: float | None
    """Bytes of DRAM traffic per core cycle; None: no limit."""
    roofs: tuple[Roof, ...]


def roofline(config: NpuConfig, layers: Iterable[Layer]) -> Roofline:
    """Return slope and roofs for the element widths in the products of `layers`; a multiply-accumulate counts as two
    operations."""
    ratio = Fraction(config.clock_ratio[1], config.clock_ratio[0])
    roofs = []
    widths = sorted({bits for layer in layers for bits in layer.bits})
    if not config.te.ideal:
        engines = config.te.count * config.clusters
        cells = peak_macs(config.te)
        by_bits = config.te.kind == "roofline" and config.te.speed == "by_bits"
        for a, w in widths if by_bits else widths[:1]:
            rate = gemm_rate(config.te, w, a) if by_bits else Fraction(cells)
            kind = f", {a} x {w} bits" if by_bits else ""
            roofs.append(Roof(f"{engines} tensor engines{kind}", float(2 * engines * rate * ratio)))
    if not config.ve.ideal:
        engines = config.ve.count * config.clusters
        bits = max((a for a, _ in widths), default=8) if config.ve.speed == "by_bits" else 8
        rate = vector_rate(config.ve, bits)
        roofs.append(Roof(f"{engines} vector engines, {bits} bits", float(engines * rate * ratio)))
    limits = [rate for rate in (config.dram.rate, config.noc.bytes_per_second) if rate is not None]
    return Roofline(min(limits) / config.clock_hz if limits else None, tuple(roofs))


# -- metrics.csv ------------------------------------------------------------------------------------------------------


class Metric(NamedTuple):
    """Figure with its unit."""

    scope: str
    """Scope: run, engine, bank, latency, bound, cause, roof, layer, or energy (an estimate)."""
    name: str
    """Name of the engine, bank, ...; empty for the run."""
    metric: str
    value: int | float | str
    unit: str


def metrics(analysis: Analysis, json: Mapping[str, Any], config: Config, spans: Spans) -> Iterator[Metric]:
    """Yield the metrics of a run; `json`: its run object."""
    npu, cycles, layers = config.npu, int(json["cycles"]), analysis.layers
    seconds = cycles / npu.clock_hz
    yield Metric("run", "", "cycles", cycles, CYCLES)
    yield Metric("run", "", "seconds", seconds, "s")
    yield Metric("run", "", "throughput", 1 / seconds if seconds else 0.0, "runs per second")
    yield Metric("run", "", "layers", len(layers), "layers")
    yield Metric("run", "", "commands", len(analysis.names), "commands")
    yield Metric("run", "", "macs", sum(layer.macs for layer in layers), "multiply-accumulate steps")
    yield Metric("run", "", "operations", sum(layer.ops for layer in layers), "operations")
    rate = sum(layer.ops for layer in layers) / cycles if cycles else 0.0
    yield Metric("run", "", "operation_rate", rate, "operations per core cycle")
    yield Metric("run", "", "dram_read", sum(layer.read for layer in layers), BYTES)
    yield Metric("run", "", "dram_written", sum(layer.written for layer in layers), BYTES)
    yield Metric("run", "", "spm_peak", analysis.peak_scratchpad, BYTES)
    yield Metric("run", "", "npu_makespan", analysis.explanation.makespan, CYCLES)
    for engine, share in utilization(spans, npu).items():
        yield Metric("engine", engine, "utilization", share, SHARE)
    for name, metric in (("bank_busy", "busy"), ("bank_conflict_stall", "conflict_stall")):
        for index, value in enumerate((json["npu"] or {}).get(name, ())):
            yield Metric("bank", f"bank{index}", metric, value, CYCLES)
    yield from _latency(json)
    for name, bound in analysis.explanation.bounds.items():
        yield Metric("bound", name, "cycles", bound, CYCLES)
    for cause, spent in analysis.explanation.causes.items():
        yield Metric("cause", cause, "cycles", spent, CYCLES)
    if json.get("energy"):
        for scope, figures in energy.tables(json["energy"]).items():
            for name, (value, unit) in figures.items():
                yield Metric("energy", name, scope, value, unit)
    ceiling = roofline(npu, layers)
    if ceiling.slope:
        yield Metric("roof", "DRAM", "slope", ceiling.slope, "bytes per core cycle")
    for roof in ceiling.roofs:
        yield Metric("roof", roof.name, "rate", roof.rate, "operations per core cycle")
    for layer in layers:
        yield from _layer(layer)


def _latency(json: Mapping[str, Any]) -> Iterator[Metric]:
    for stage, figures in (json["latency"] or {"stages": {}})["stages"].items():
        for name, value in (figures or {}).items():
            if value is not None:
                yield Metric("latency", stage, name, value, "submissions" if name == "n" else CYCLES)


def _layer(layer: Layer) -> Iterator[Metric]:
    def row(metric: str, value: int | float | str, unit: str) -> Metric:
        return Metric("layer", layer.name, metric, value, unit)

    yield row("operations", " ".join(layer.operations), "opcodes")
    yield row("commands", layer.commands, "commands")
    yield row("start", layer.start, CYCLES)
    yield row("end", layer.end, CYCLES)
    yield row("active", layer.active, CYCLES)
    for kind, busy in layer.busy.items():
        yield row(f"{kind}_busy", busy, CYCLES)
    yield row("dram_read", layer.read, BYTES)
    yield row("dram_written", layer.written, BYTES)
    for role, size in layer.roles.items():
        yield row(f"moved_{role}", size, BYTES)
    yield row("macs", layer.macs, "multiply-accumulate steps")
    yield row("ops", layer.ops, "operations")
    yield row("rate", layer.rate, "operations per core cycle")
    if layer.intensity is not None:
        yield row("intensity", layer.intensity, "operations per byte")
    yield row("chain", sum(layer.chain.values()), CYCLES)
    for cause, cycles in layer.chain.items():
        yield row(f"chain_{cause}", cycles, CYCLES)
