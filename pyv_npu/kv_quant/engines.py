"""Engines that encode and decode keys and values in a run: busy time, and exposed time."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from npu_device.config import KvQuantConfig, NpuConfig

NAMES = ("quantize_busy", "dequantize_busy", "quantize_exposed", "dequantize_exposed")
"""Counters of the device."""


def unhindered(config: NpuConfig) -> NpuConfig:
    """Return the device with engines that never delay transfers."""
    kv = replace(config.kv_quant, w_q=4096, w_dq=4096, d_q=0, d_dq=0, overlap=KvQuantConfig().overlap)
    return replace(config, kv_quant=kv)


def figures(counted: Mapping[str, int], cycles: int, npu: NpuConfig, without: int | None = None) -> dict[str, Any]:
    """Return the object `kv_engines`: busy cycles of all engines and the cycles by which they lengthen transfers, from
    the counters `counted`, and busy shares. `without`: cycles of the same run with `unhindered` engines, from which the
    exposed cycles of the run follow."""
    cycles_of_engine = {name: int(counted.get(name, 0)) for name in NAMES}
    engines = npu.dma.channels * npu.clusters
    engine_cycles = max(1, cycles * engines)
    result = {
        **cycles_of_engine, "engines": engines, "quantize_share": cycles_of_engine["quantize_busy"] / engine_cycles,
        "dequantize_share": cycles_of_engine["dequantize_busy"] / engine_cycles,
    }  # fmt: skip
    if without is None:
        return result
    exposed = max(0, cycles - without)
    return {**result, "exposed_cycles": exposed, "exposed_share": exposed / max(1, cycles)}


def sentence(counted: Mapping[str, Any]) -> str:
    """Return the summary line of the KV engines' figures."""
    share = f"{counted['quantize_share']:.2%} and {counted['dequantize_share']:.2%}"
    longer = f"{counted['quantize_exposed']:,} and {counted['dequantize_exposed']:,}"
    run = f"; the run {counted['exposed_cycles']:,} cycles longer" if "exposed_cycles" in counted else ""
    return f"busy {share}, transfers {longer} cycles longer{run}"
