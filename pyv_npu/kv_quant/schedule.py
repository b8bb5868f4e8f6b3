"""Oaken's token-level batch schedule: a step of generation on many cores (docs/oaken.md, "Schedule").

One core takes one request's token; more requests than cores take rounds. Weights are read once and shared by all cores.
Reads of keys and values are each request's own and pass one after another, each with the whole bandwidth, so that the
engines of one request work while another reads. Times are whole NPU cycles.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from pyv_npu.errors import UsageError
from pyv_npu.kv_quant.systems import System, active_parameters, kv_token_bytes, weight_bytes_read
from toolchain.decoders.shapes import Shape


@dataclass(frozen=True)
class Engines:
    """The cores and what is in their DMA units."""

    cores: int = 256
    clock_hz: int = 1_000_000_000
    w_q: int = 1
    """Elements per cycle and core of each of the two passes of quantization."""
    w_dq: int = 64
    """Elements per cycle and core of dequantization."""
    d_q: int = 8
    d_dq: int = 8
    """Cycles to fill the engines."""
    overlap: bool = True
    """Whether the engines work beside DMA and computation of other requests."""

    def __post_init__(self) -> None:
        for name in ("cores", "clock_hz", "w_q", "w_dq"):
            if getattr(self, name) < 1:
                raise UsageError(f"schedule: {name} {getattr(self, name)}: must be at least 1")


class Step(NamedTuple):
    """Cycles of a step of generation."""

    total: int
    rounds: int
    weights: int
    """Reading them, or multiplying with them, whichever takes longer."""
    reads: int
    """Of keys and values."""
    other: int
    """Work of attention that is no read: scores, softmax, gaps between bursts."""
    quantize_busy: int
    """Of the core that quantizes longest."""
    quantize_exposed: int
    """What the step would be shorter by without it."""
    dequantize_busy: int
    dequantize_exposed: int


def step(
    system: System, shape: Shape, contexts: Sequence[int], engines: Engines, *, dma_efficiency: float = 1.0,
    other_share: float = 0.0, gemm_efficiency: float = 0.8,
) -> Step:  # fmt: skip
    """One token of each request with these tokens in the caches. `other_share`: of attention, as a share of reading
    keys and values as fp16. UsageError without requests."""
    if not contexts:
        raise UsageError("schedule: no request")
    clock, requests = engines.clock_hz, len(contexts)
    rate = system.bandwidth * dma_efficiency

    def cycles(seconds: float) -> int:
        return ceil(seconds * clock)

    weights = max(
        cycles(weight_bytes_read(shape, requests) / rate),
        cycles(2 * active_parameters(shape) * requests / (system.flops * gemm_efficiency)),
    )
    token = kv_token_bytes(shape, system.kv)
    reads = sum(cycles(context * token / rate) for context in contexts)
    fp16 = 2 * shape.layers * shape.kv_width * 2
    other = cycles(other_share * sum(contexts) * fp16 / system.bandwidth)
    rounds = ceil(requests / engines.cores)
    vectors, width = 2 * shape.layers, shape.kv_width
    if not system.kv.vector_bits:  # nothing to encode
        return Step(weights + reads + other, rounds, weights, reads, other, 0, 0, 0, 0)
    quantize = rounds * vectors * (2 * ceil(width / engines.w_q) + engines.d_q)
    dequantize = sum(ceil(context * vectors * width / (engines.w_dq * engines.cores)) for context in contexts)
    attention = reads + other
    if not engines.overlap:
        exposed_dq = dequantize + engines.d_dq
        total = weights + attention + exposed_dq + quantize
        return Step(total, rounds, weights, reads, other, quantize, quantize, dequantize, exposed_dq)
    exposed_dq = max(0, dequantize - reads) + engines.d_dq
    # while one core quantizes, others read and multiply: only what is longer than all of that is seen
    last = ceil(quantize / (vectors * min(requests, engines.cores)))
    exposed_q = max(0, quantize - weights - attention) + last
    total = weights + attention + exposed_dq + exposed_q
    return Step(total, rounds, weights, reads, other, quantize, exposed_q, dequantize, exposed_dq)
