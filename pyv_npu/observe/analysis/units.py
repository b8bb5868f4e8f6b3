"""How busy each engine was."""

from npu_device.config import NpuConfig
from npu_device.trace.events import Kind, unit_counts
from pyv_npu.report.spans import UNITS, Records, unit_spans


def utilization(records: Records, config: NpuConfig, cycles: int) -> dict[str, float]:
    """Engine ("te0", "ve3", "dma1") -> the share of `cycles` in which it worked, 0..1; idle engines too."""
    counts = unit_counts(config)
    shares = {f"{kind.name.lower()}{index}": 0.0 for kind in UNITS for index in range(counts[kind] * config.clusters)}
    for kind in UNITS:
        for unit, spans in unit_spans(records, kind, cycles).items():
            busy = int((spans.end - spans.start).sum())
            shares[f"{Kind(kind).name.lower()}{unit & 0xFF}"] = busy / max(cycles, 1)
    return shares
