"""What is said about a phase of a built-in decoder model: bytes of keys and values, bounds, the figures of a sweep."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from npu_device.abi.opcodes import BITS, Opcode
from npu_device.config import NpuConfig
from npu_device.cost.durations import Rates
from npu_device.cost.tensor import SPEED, ceil_div
from npu_device.trace.events import Batch, What
from toolchain.codegen import Command
from toolchain.decoders.builtin import CompiledShape
from toolchain.decoders.shapes import ACTIVATION, Job
from toolchain.decoders.step import KEYS

_OPCODE_BITS = 0xFF
"""Of `aux` of DMA_BEGIN."""


class Traffic:
    """Bytes that a run moves between caches and scratchpad, by command: a fold over its DMA events."""

    def __init__(self, commands: int) -> None:
        self.by_command = np.zeros(commands, np.int64)

    def add(self, batch: Batch) -> None:
        """The next events."""
        begun = batch[batch["what"] == What.DMA_BEGIN]
        kv = begun[np.isin(begun["aux"] & _OPCODE_BITS, (Opcode.KV_READ, Opcode.KV_APPEND))]
        np.add.at(self.by_command, kv["ticket"].astype(np.int64) - 1, kv["bytes"].astype(np.int64))


def figures(
    config: NpuConfig, made: CompiledShape, step: tuple[int, int], cycles: int, counters: Mapping[str, Any] | None,
    moved: Any,
) -> dict[str, Any]:  # fmt: skip
    """The `llm` object of a result. `step`: (tokens, position of the first); `moved`: bytes by command."""
    job, shape = made.job, made.job.shape
    tokens, position = step
    keys, values, by_layer = kv_traffic(made.commands, moved)
    bound = bounds(config, job, tokens, position)
    seconds = cycles / config.clock_hz
    widths = sorted({bits for layer in range(job.layers) for bits in job.head_bits(layer)})
    return {
        "tokens": tokens, "context": position, "requests": job.requests,
        "layers": job.layers, "t_max": job.t_max, "commands": len(made.commands), "qbits_weight": job.weight_bits,
        "qbits_kv": widths[0] if len(widths) == 1 else widths,
        "parameters": shape.parameters, "weight_bytes": job.weight_bytes,
        "kv_bytes_alloc": job.kv_bytes, "kv_bytes_used": job.kv_bytes // job.t_max * (position + tokens),
        "kv_tokens": [{"token": position + tokens - 1, "bytes_k": keys, "bytes_v": values}],
        "kv_layers": [{"layer": layer, "kv_bytes_total": size} for layer, size in enumerate(by_layer)],
        "seconds": seconds, "tokens_per_second": job.requests * tokens / seconds,
        "bound": bound, "bound_share": max(bound.values()) / cycles,
        "sweep": _sweep(config, cycles, counters),
    }  # fmt: skip


def kv_traffic(made: Sequence[Command], moved: Any) -> tuple[int, int, list[int]]:
    """(bytes of keys, bytes of values, bytes of each layer) from the bytes that each command moved.

    A command that appends serves one of them, which its layer's name ends with; attention reads as much of both.
    """
    totals, by_layer = [0, 0], dict[str, int]()
    for command, size in zip(made, map(int, moved), strict=True):
        if not size:
            continue
        if command.descriptor.opcode == Opcode.KV_APPEND:
            totals[not command.layer.endswith(f".{KEYS}")] += size
        else:
            totals[0] += size // 2
            totals[1] += size // 2
        layer = command.layer.partition(".")[0]
        by_layer[layer] = by_layer.get(layer, 0) + size
    return totals[0], totals[1], list(by_layer.values())


def bounds(config: NpuConfig, job: Job, tokens: int, position: int) -> dict[str, int]:
    """Core cycles that no schedule can beat (docs/npu-timing.md, F6 and F10): matrices and the keys and values that are
    seen, once, at the bandwidth of DRAM; products at the rate of all tensor engines."""
    shape = job.shape
    rows = job.requests * tokens
    experts = min(shape.experts, shape.active * rows)
    matrices = job.layers * (shape.attention_parameters + experts * shape.ffn_parameters)
    head = shape.vocab * shape.width
    last = position + tokens
    seen = min(last, shape.window + tokens - 1) if shape.window else last
    kv = 2 * sum(job.kv_bytes_read(layer, seen) for layer in range(job.layers))
    moved = matrices * job.weight_bits // 8 + head * BITS[ACTIVATION] // 8 + kv
    macs = job.layers * rows * (shape.attention_parameters + shape.active * shape.ffn_parameters)
    macs += job.requests * head
    te = config.te
    speed = SPEED[BITS[ACTIVATION]] * SPEED[job.weight_bits] if te.kind == "roofline" and te.speed == "by_bits" else 1
    rate = Fraction(te.rows * te.columns * te.count * config.clusters) * speed
    rates = Rates(config)
    return {
        "dram_cycles": ceil_div(moved * rates.per_byte, rates.total) if rates.total else 0,
        "compute_cycles": 0 if te.ideal else ceil_div(macs * rate.denominator, rate.numerator),
    }


def _sweep(config: NpuConfig, cycles: int, counters: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a sweep over bit widths compares (docs/bit-widths.md, R24)."""
    if counters is None:
        return {"dma_cycles": None, "total_latency": cycles, "bw_usage": None}
    moved = counters["dram_bytes_read"] + counters["dram_bytes_written"]
    rates = Rates(config)
    full = cycles * rates.total // rates.per_byte
    return {
        "dma_cycles": sum(counters["dma_busy"]),
        "total_latency": cycles,
        "bw_usage": moved / full if full else None,
    }
