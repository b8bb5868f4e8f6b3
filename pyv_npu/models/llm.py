"""Built-in decoder models without numbers: cycles, bytes and bounds of a prefill or of one token (specification 50)."""

from collections.abc import Callable
from enum import StrEnum
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from npu_device.abi.opcodes import BITS, Opcode
from npu_device.config import NpuConfig
from npu_device.events import Batch, EventStream, What
from npu_device.tensor import SPEED, ceil_div
from npu_device.timing import Rates
from pyv_npu.models.timing_only import TimingRun, run_commands
from toolchain.codegen import Command, Target
from toolchain.errors import ModelError
from toolchain.llm.job import KV_BITS, Job
from toolchain.llm.layout import ACTIVATION, INT_BYTES, Layout
from toolchain.llm.phases import Device, commands
from toolchain.llm.shapes import shape_of

DRAM_BYTES = 256_000_000_000
"""Of a built-in model, unless `npu.dram.size` is set (specification 50)."""


class Phase(StrEnum):
    """What of a conversation is run."""

    PREFILL = "prefill"
    DECODE = "decode"


class Request(NamedTuple):
    """One phase of a built-in model."""

    name: str
    phase: Phase = Phase.DECODE
    context: int = 1024
    """DECODE: tokens in the caches before the one that is made."""
    tokens: int = 512
    """PREFILL: tokens of the prompt."""
    requests: int = 1
    layers: int | None = None
    """None: all."""
    t_max: int | None = None
    """Tokens that the caches hold; None: as many as the phase needs."""
    weight_bits: int = 16
    kv_bits: int | Callable[[int, int], int] = KV_BITS
    """One width, or that of each (layer, KV head)."""

    @property
    def step(self) -> tuple[int, int]:
        """(tokens of the step, position of the first)."""
        return (self.tokens, 0) if self.phase is Phase.PREFILL else (1, self.context)


_OPCODE_BITS = 0xFF
"""Of `aux` of DMA_BEGIN."""


class Traffic:
    """Bytes that a run moves between caches and scratchpad, by command: a fold over its DMA events."""

    def __init__(self, commands: int) -> None:
        self.by_command = np.zeros(commands, np.int64)

    def listen(self, events: EventStream) -> None:
        events.subscribe(self._add)

    def _add(self, batch: Batch) -> None:
        begun = batch[batch["what"] == What.DMA_BEGIN]
        kv = begun[np.isin(begun["aux"] & _OPCODE_BITS, (Opcode.KV_READ, Opcode.KV_APPEND))]
        np.add.at(self.by_command, kv["ticket"].astype(np.int64) - 1, kv["bytes"].astype(np.int64))


def build(config: NpuConfig, request: Request) -> tuple[Layout, list[Command]]:
    """Addresses and commands of a request. ModelError: a model or size that cannot be, one line."""
    shape = shape_of(request.name)
    tokens, position = request.step
    for name, value, least in (("tokens", tokens, 1), ("context", position, 0)):
        if value < least:
            raise ModelError(f"{request.name}: {name} {value}: must be at least {least}")
    t_max = request.t_max or position + tokens
    if position + tokens > t_max:
        raise ModelError(
            f"{request.name}: tokens {position}..{position + tokens - 1} do not fit caches of {t_max}: a larger --t-max"
        )
    bits = request.kv_bits
    job = Job(
        shape, request.layers or shape.layers, t_max, request.requests, request.weight_bits,
        bits if callable(bits) else lambda layer, head: bits,
    )  # fmt: skip
    job.check_capacity(config.dram.size)
    layout = Layout(job, tokens, config.spm.size)
    layout.check(config.dram.size)
    target = Target(config.spm.size, config.spm.banks, config.te.acc_bytes, config.dram.size)
    return layout, commands(layout, Device(target, config.te.count), tokens)


def run(config: NpuConfig, request: Request, level: str = "CA_HYBRID") -> dict[str, Any]:
    """The result, as `--json` prints it: the commands of the request without a core. ModelError, UsageError."""
    layout, made = build(config, request)
    position = request.step[1]
    traffic = Traffic(len(made))
    memory = {layout.position: position.to_bytes(INT_BYTES, "little")}
    timed = run_commands(made, config, level, memory=memory, watch=traffic.listen)
    return {
        "schema": 1, "program": request.name, "core": None, "mode": None, "sim_level": level, "timing_only": True,
        "cycles": timed.cycles, "npu": timed.counters, "events": timed.events, "events_sha256": timed.events_sha256,
        "finished": [one._asdict() for one in timed.layers],
        "llm": _figures(config, request, layout, made, timed, traffic.by_command),
    }  # fmt: skip


def _figures(
    config: NpuConfig, request: Request, layout: Layout, made: list[Command], timed: TimingRun, moved: Any
) -> dict[str, Any]:
    job, shape = layout.job, layout.job.shape
    tokens, position = request.step
    keys, values, by_layer = kv_traffic(made, moved)
    bound = bounds(config, job, tokens, position)
    seconds = timed.cycles / config.clock_hz
    widths = sorted({bits for layer in range(job.layers) for bits in job.head_bits(layer)})
    return {
        "phase": request.phase.value, "tokens": tokens, "context": position, "requests": job.requests,
        "layers": job.layers, "t_max": job.t_max, "commands": len(made), "qbits_weight": job.weight_bits,
        "qbits_kv": widths[0] if len(widths) == 1 else widths,
        "parameters": shape.parameters, "weight_bytes": job.weight_bytes,
        "kv_bytes_alloc": job.kv_bytes, "kv_bytes_used": job.kv_bytes // job.t_max * (position + tokens),
        "kv_tokens": [{"token": position + tokens - 1, "bytes_k": keys, "bytes_v": values}],
        "kv_layers": [{"layer": layer, "kv_bytes_total": size} for layer, size in enumerate(by_layer)],
        "seconds": seconds, "tokens_per_second": job.requests * tokens / seconds,
        "bound": bound, "bound_share": max(bound.values()) / timed.cycles,
        "sweep": _sweep(config, timed),
    }  # fmt: skip


def kv_traffic(made: list[Command], moved: Any) -> tuple[int, int, list[int]]:
    """(bytes of keys, bytes of values, bytes of each layer) from the bytes that each command moved.

    A command that appends serves one of them, in the order keys, values; attention reads as much of both.
    """
    totals, by_layer = [0, 0], dict[str, int]()
    appends = 0
    for command, size in zip(made, map(int, moved), strict=True):
        if not size:
            continue
        if command.descriptor.opcode == Opcode.KV_APPEND:
            totals[appends % 2] += size
            appends += 1
        else:
            totals[0] += size // 2
            totals[1] += size // 2
        layer = command.layer.partition(".")[0]
        by_layer[layer] = by_layer.get(layer, 0) + size
    return totals[0], totals[1], list(by_layer.values())


def bounds(config: NpuConfig, job: Job, tokens: int, position: int) -> dict[str, int]:
    """Core cycles that no schedule can beat (specification 45, F6 and F10): matrices and the keys and values that are
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


def _sweep(config: NpuConfig, timed: TimingRun) -> dict[str, Any]:
    """What a sweep over bit widths compares (specification 55, R24)."""
    if timed.counters is None:
        return {"dma_cycles": None, "total_latency": timed.cycles, "bw_usage": None}
    moved = timed.counters["dram_bytes_read"] + timed.counters["dram_bytes_written"]
    rates = Rates(config)
    full = timed.cycles * rates.total // rates.per_byte
    return {
        "dma_cycles": sum(timed.counters["dma_busy"]),
        "total_latency": timed.cycles,
        "bw_usage": moved / full if full else None,
    }
