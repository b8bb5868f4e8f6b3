"""The device that a configuration describes, as the compiler sees it."""

from npu_device.config import NpuConfig
from toolchain.codegen import Target

UNLIMITED = 1 << 20
"""Bytes per cycle that stand for a rate without a limit."""


def target_of(npu: NpuConfig) -> Target:
    """Sizes and rates, NPU cycles; rates rounded down."""
    core, own = npu.clock_ratio
    per_cycle = [
        rate * core // (own * npu.clock_hz)
        for rate in (npu.dram.bytes_per_second, npu.noc.bytes_per_second)
        if rate is not None
    ]
    return Target(
        spm_bytes=npu.spm.size,
        banks=npu.spm.banks,
        acc_bytes=npu.te.acc_bytes,
        dram_bytes=npu.dram.size,
        engines=npu.te.count,
        array=(npu.te.rows, npu.te.columns),
        systolic=npu.te.kind != "roofline",
        kernel_position=npu.te.conv_lowering == "kernel_position",
        port=npu.spm.port or UNLIMITED,
        vectors=npu.ve.count,
        lanes=npu.ve.lanes,
        vector_latency=npu.ve.latency,
        channels=npu.dma.channels,
        channel_rate=npu.dma.bytes_per_cycle or UNLIMITED,
        dram_rate=max(1, min(per_cycle, default=UNLIMITED)),
        latency=npu.dram.latency + npu.noc.latency,
    )
