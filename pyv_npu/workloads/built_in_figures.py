"""Figures of a phase of a built-in decoder model: bytes of keys and values, bounds."""

from fractions import Fraction
from typing import Any

from npu_device.abi.opcodes import BITS
from npu_device.config import NpuConfig
from npu_device.cost.durations import Rates
from npu_device.cost.tensor import gemm_rate, peak_macs
from npu_device.memory.bitwidth import bytes_total, ceil_div, expanded
from pyv_npu.workloads.kv_figures import EncodedSize, KvTraffic, kv_capacity, kv_figures
from toolchain.decoders.builtin import CompiledShape
from toolchain.decoders.shapes import Job
from toolchain.quantize.codebook import VQ_BITS


def figures(
    config: NpuConfig, compiled: CompiledShape, step: tuple[int, int], cycles: int, traffic: KvTraffic
) -> dict[str, Any]:
    """Return the object `llm` of a result. `step`: (tokens, position of the first)."""
    job, shape = compiled.job, compiled.job.shape
    tokens, position = step
    bound = bounds(config, job, tokens, position)
    seconds = cycles / config.clock_hz
    weights = sorted({job.weight_of(layer) for layer in range(job.layers)})
    widths = sorted({bits for layer in range(job.layers) for bits in job.head_bits(layer)})
    stored_tokens = min(position + tokens, job.t_max)
    stated = _storage_statement(job, stored_tokens)
    encoded = None
    if stated:
        sizes = {layer: job.kv_bytes_of(layer, stored_tokens) for layer in range(job.layers)}
        encoded = EncodedSize(job.storage.name, sizes, {layer: job.kv_bytes_alloc(layer) for layer in sizes})
    kv = kv_figures(compiled.caches, traffic, (position + tokens - 1,), stored_tokens, encoded)
    return {
        "tokens": tokens, "context": position, "requests": job.requests,
        "layers": job.layers, "t_max": job.t_max, "commands": len(compiled.commands),
        "qbits_weight": weights[0] if len(weights) == 1 else weights,
        "qbits_activation": job.activation_bits,
        "codebooks": job.codebooks if VQ_BITS in weights else 0,
        "qbits_kv": widths[0] if len(widths) == 1 else widths,
        "parameters": shape.parameters, "weight_bytes": job.weight_bytes,
        **kv,
        "kv_capacity": kv_capacity(
            compiled.caches, config.dram.size, job.weight_bytes, -(-kv["kv_bytes_used"] // stored_tokens)
        ),
        "seconds": seconds, "tokens_per_second": job.requests * tokens / seconds,
        "bound": bound, "bound_share": max(bound.values()) / cycles,
        **stated,
    }  # fmt: skip


def _storage_statement(job: Job, tokens: int) -> dict[str, Any]:
    """Return the storage's statement about keys and values, with its assumptions."""
    statement = dict(job.storage.stated(job.cache(0, 0), tokens))
    if not statement:
        return {}
    caches = job.layers * job.requests
    statement |= {name: caches * statement[name] for name in ("pages", "bursts")}
    return {"kv_encoded": statement, "qbits_kv": job.storage.name}


def bounds(config: NpuConfig, job: Job, tokens: int, position: int) -> dict[str, int]:
    """Return lower bounds in core cycles (docs/npu-timing.md, F6 and F10): matrices and attended keys and values, each
    moved once, at the bandwidth of DRAM; products at the rate of all tensor engines."""
    shape = job.shape
    rows = job.requests * tokens
    experts = min(shape.experts, shape.active * rows)
    matrices = sum(shape.layer_parameters(layer, experts) for layer in range(job.layers))
    head = shape.vocab * shape.width
    last = position + tokens
    kv = 0
    for layer in range(job.layers):
        window = shape.window_of(layer)
        kv += job.kv_bytes_of(layer, min(last, window + tokens - 1) if window else last)
    total_bytes = job.matrix_bytes(experts) + bytes_total(head, job.activation_bits) + kv
    te = config.te
    macs = [_rate(config, job, layer) for layer in range(job.layers)]
    by_layer = [rows * shape.layer_parameters(layer, shape.active) for layer in range(job.layers)]
    computed = sum(count / rate for count, rate in zip(by_layer, macs, strict=True)) + job.requests * head / max(macs)
    rates = Rates(config)
    lookups = {}
    if all(job.weight_of(layer) == VQ_BITS for layer in range(job.layers)):
        channels = config.dma.channels * config.clusters * config.dma.vq_elements_per_cycle
        core, npu_clock = config.clock_ratio
        lookups = {"lookup_cycles": ceil_div(matrices * core, channels * npu_clock)}
    return {
        **lookups,
        "dram_cycles": ceil_div(total_bytes * rates.per_byte, rates.total) if rates.total else 0,
        "compute_cycles": 0 if te.ideal else ceil_div(computed.numerator, computed.denominator),
    }


def _rate(config: NpuConfig, job: Job, layer: int) -> Fraction:
    """Return MACs per cycle of all tensor engines in the products of a layer."""
    te = config.te
    rate = Fraction(peak_macs(te))
    if te.kind == "roofline" and te.speed == "by_bits":
        rate = gemm_rate(te, BITS[expanded(job.weight_kind(layer))], job.activation_bits)
    return te.count * config.clusters * rate
