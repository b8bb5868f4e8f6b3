"""The engines that encode and decode keys and values in a run: how long they are busy, and what of it is exposed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from npu_device.config import KvQuantConfig, NpuConfig
from npu_device.cost.durations import Timing
from npu_device.cost.plan import Role, Transfer
from npu_device.decode.decoder import Decoder
from npu_device.issue.results import Results
from npu_device.levels.runner import Listed, Runner, list_config
from npu_device.operations.macro.base import setting_of

FASTEST = KvQuantConfig(w_q=4096, w_dq=4096, d_q=0, d_dq=0)
"""Engines that are never waited for."""


def busy(commands: Sequence[Listed], config: NpuConfig, memory: Mapping[int, bytes]) -> dict[str, int]:
    """Core cycles of the engines of all channels together, summed over the transfers of valid commands. `memory`: what
    commands read from DRAM when they start."""
    config = list_config(config, len(commands))
    runner = Runner(config, values=False)
    for address, data in memory.items():
        runner.memory.write_bytes(address, data)
    decoder, read, timing, setting = (
        Decoder(config, runner.memory), Results(runner.memory).read, Timing(config), setting_of(config),
    )  # fmt: skip
    found = {"quantize_busy": 0, "dequantize_busy": 0}
    for descriptor in runner.place(commands):
        macro = decoder.decode(descriptor, 0, 0).macro
        if macro is None:
            continue
        plan = macro.start(read).plan(setting)
        counts = np.bincount(plan.piece, minlength=len(plan.pieces)).tolist()
        for piece, count in zip(plan.pieces, counts, strict=True):
            if isinstance(piece, Transfer) and piece.role is Role.KV and piece.elements:
                name = "quantize_busy" if piece.write else "dequantize_busy"
                found[name] += count * timing.core_cycles(timing.conversion(piece))
    return found


def unhindered(config: NpuConfig) -> NpuConfig:
    """The device with engines that are never waited for."""
    kv = config.kv_quant
    fast = replace(kv, w_q=FASTEST.w_q, w_dq=FASTEST.w_dq, d_q=FASTEST.d_q, d_dq=FASTEST.d_dq, overlap=FASTEST.overlap)
    return replace(config, kv_quant=fast)


def figures(found: Mapping[str, int], cycles: int, without: int, channels: int) -> dict[str, Any]:
    """The `kv_engines` object: busy cycles, their share of what all engines have, and the cycles by which the run would
    be shorter with engines that are never waited for."""
    room = max(1, cycles * channels)
    return {
        **found, "engines": channels, "quantize_share": found["quantize_busy"] / room,
        "dequantize_share": found["dequantize_busy"] / room, "exposed_cycles": max(0, cycles - without),
        "exposed_share": max(0, cycles - without) / max(1, cycles),
    }  # fmt: skip
