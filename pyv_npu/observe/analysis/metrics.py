"""metrics.csv: every figure of a model's run, one a line."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pyv_npu.config import Config
from pyv_npu.observe.analysis.layers import Layer
from pyv_npu.observe.analysis.model import Analysis
from pyv_npu.observe.analysis.roofline import roofline
from pyv_npu.observe.analysis.units import utilization
from pyv_npu.report.spans import Records

CYCLES, SHARE, BYTES = "core cycles", "0..1", "bytes"


class Metric(NamedTuple):
    """One figure."""

    scope: str
    """run, engine, bank, latency, bound, cause, roof or layer."""
    name: str
    """Which engine, bank, ...; empty for the run."""
    metric: str
    value: int | float | str
    unit: str


def metrics(analysis: Analysis, json: Mapping[str, Any], config: Config, records: Records) -> Iterator[Metric]:
    """Those of one run; `json`: its object of the JSON schema."""
    npu, cycles, found = config.npu, int(json["cycles"]), analysis.layers
    seconds = cycles / npu.clock_hz
    yield Metric("run", "", "cycles", cycles, CYCLES)
    yield Metric("run", "", "seconds", seconds, "s")
    yield Metric("run", "", "throughput", 1 / seconds if seconds else 0.0, "runs per second")
    yield Metric("run", "", "layers", len(found), "layers")
    yield Metric("run", "", "commands", len(analysis.names), "commands")
    yield Metric("run", "", "macs", sum(layer.macs for layer in found), "multiply-accumulate steps")
    yield Metric("run", "", "operations", sum(layer.ops for layer in found), "operations")
    rate = sum(layer.ops for layer in found) / cycles if cycles else 0.0
    yield Metric("run", "", "operation_rate", rate, "operations per core cycle")
    yield Metric("run", "", "dram_read", sum(layer.read for layer in found), BYTES)
    yield Metric("run", "", "dram_written", sum(layer.written for layer in found), BYTES)
    yield Metric("run", "", "spm_peak", analysis.peak_scratchpad, BYTES)
    yield Metric("run", "", "npu_makespan", analysis.explanation.makespan, CYCLES)
    for engine, share in utilization(records, npu, cycles).items():
        yield Metric("engine", engine, "utilization", share, SHARE)
    for name, metric in (("bank_busy", "busy"), ("bank_conflict_stall", "conflict_stall")):
        for index, value in enumerate((json["npu"] or {}).get(name, ())):
            yield Metric("bank", f"bank{index}", metric, value, CYCLES)
    yield from _latency(json)
    for name, bound in analysis.explanation.bounds.items():
        yield Metric("bound", name, "cycles", bound, CYCLES)
    for cause, spent in analysis.explanation.causes.items():
        yield Metric("cause", cause, "cycles", spent, CYCLES)
    ceiling = roofline(npu, found)
    if ceiling.slope:
        yield Metric("roof", "DRAM", "slope", ceiling.slope, "bytes per core cycle")
    for roof in ceiling.roofs:
        yield Metric("roof", roof.name, "rate", roof.rate, "operations per core cycle")
    for layer in found:
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
    yield row("macs", layer.macs, "multiply-accumulate steps")
    yield row("ops", layer.ops, "operations")
    yield row("rate", layer.rate, "operations per core cycle")
    if layer.intensity is not None:
        yield row("intensity", layer.intensity, "operations per byte")
    yield row("chain", sum(layer.chain.values()), CYCLES)
    for cause, cycles in layer.chain.items():
        yield row(f"chain_{cause}", cycles, CYCLES)
