"""The systems of Oaken's evaluation as rooflines of decoding: capacity, bandwidth, rate (docs/oaken.md, "Systems").

A step reads all weights once and the keys and values of every request; products run at GEMM_EFFICIENCY of the peak, all
else at the limit. Requests that do not fit are served in waves of equal size. Everything here is closed form; the
simulated device has the same numbers as `--config oaken-lpddr` and so on.
"""

from dataclasses import dataclass, replace

from pyv_npu.errors import UsageError
from toolchain.decoders.shapes import Shape

GEMM_EFFICIENCY = 0.8
"""Share of the peak that products reach; of all systems alike (chosen by us)."""
PREFILL_EFFICIENCY = 0.6
"""Share of the peak that a prefill reaches (chosen by us)."""
RESERVED_TOKENS = 2048
"""Of a request in memory: 1024 in and 1024 out."""
FP16_BITS, META_BITS = 16, 96
"""Bits of an element, and of a token-vector's metadata."""
P_OUT = 0.10
"""Share of outliers, where nothing is encoded."""


@dataclass(frozen=True)
class KvFormat:
    """How keys and values are stored, by its size: `bits` an element and `vector_bits` for each token-vector."""

    name: str
    bits: float
    vector_bits: int = 0

    def element_bits(self, width: int) -> float:
        """Of token-vectors of `width` elements."""
        return self.bits + self.vector_bits / width


FP16 = KvFormat("fp16", FP16_BITS)
INT4 = KvFormat("int4, groups of 128", 4 + 32 / 128)
OAKEN = KvFormat("oaken", 4 + 8 * P_OUT, META_BITS)


@dataclass(frozen=True)
class System:
    """One device; two of them form a pipeline where `pipeline` is 2."""

    name: str
    flops: float
    """Per second, fp16."""
    bandwidth: float
    """Bytes per second."""
    capacity: int
    """Bytes."""
    kv: KvFormat
    kv_efficiency: float = 1.0
    """Share of the bandwidth that reads of keys and values reach."""
    pipeline: int = 1

    def paired(self) -> "System":
        """Two in a pipeline: capacity and reads of KV are shared, the weights pass one after the other."""
        return replace(self, pipeline=2)


A100 = System("a100, vLLM", 312e12, 2.0e12, 80 * 10**9, FP16)
QSERVE = replace(A100, name="a100, QServe", kv=INT4)
OAKEN_HBM = System("oaken-hbm", 270e12, 2.0e12, 80 * 10**9, OAKEN)
OAKEN_LPDDR = System("oaken-lpddr", 270e12, 1.1e12, 256 * 10**9, OAKEN)
LPU_HBM = replace(OAKEN_HBM, name="lpu-hbm", kv=FP16)
LPU_LPDDR = replace(OAKEN_LPDDR, name="lpu-lpddr", kv=FP16)
SYSTEMS = (A100, QSERVE, OAKEN_HBM, OAKEN_LPDDR, LPU_HBM, LPU_LPDDR)
TWO_GPUS = ("opt-30b", "mixtral-8x7b", "llama2-70b")
"""Models that the paper runs on two A100."""


def on(system: System, shape: Shape) -> System:
    """The system for a model: two GPUs where the paper takes two."""
    return system.paired() if system.flops == A100.flops and shape.name in TWO_GPUS else system


def kv_token_bytes(shape: Shape, kv: KvFormat) -> float:
    """Bytes of keys and values of a token, all layers."""
    return 2 * shape.layers * shape.kv_width * kv.element_bits(shape.kv_width) / 8


def weight_bytes_read(shape: Shape, requests: float) -> float:
    """Bytes of fp16 weights that a step reads: all but a separate input embedding, and of experts those that some
    token is routed to, as expected with uniform routing."""
    read = 2.0 * (shape.parameters - (shape.vocab * shape.width if shape.gated else 0))
    if shape.experts > 1:
        experts = 2.0 * shape.layers * shape.experts * shape.ffn_parameters
        read -= experts * (1 - shape.active / shape.experts) ** requests
    return read


def active_parameters(shape: Shape) -> float:
    """Parameters that a token is multiplied with."""
    idle = shape.layers * (shape.experts - shape.active) * shape.ffn_parameters
    return shape.parameters - idle - (shape.vocab * shape.width if shape.gated else 0)


def fits(system: System, shape: Shape, tokens: int = RESERVED_TOKENS) -> int:
    """Requests of so many tokens whose keys and values fit beside the weights; 0: out of memory."""
    room = system.capacity * system.pipeline - shape.weight_bytes()
    return max(0, int(room // (kv_token_bytes(shape, system.kv) * tokens)))


def longest(system: System, shape: Shape, requests: int) -> int:
    """Tokens that each of some requests can have."""
    room = system.capacity * system.pipeline - shape.weight_bytes()
    return max(0, int(room // (kv_token_bytes(shape, system.kv) * requests)))


def context_of(shape: Shape, first: int, new: int) -> float:
    """Tokens that a step sees on average while `new` follow the first ones."""
    mean = first + new / 2
    return min(mean, shape.window) if shape.window else mean


def step_seconds(system: System, shape: Shape, requests: float, context: float) -> float:
    """Of one token of each request."""
    products = 2 * active_parameters(shape) * requests / (system.flops * GEMM_EFFICIENCY)
    weights = weight_bytes_read(shape, requests) / system.bandwidth
    read = requests * context * kv_token_bytes(shape, system.kv)
    return max(weights, products) + read / (system.bandwidth * system.pipeline * system.kv_efficiency)


def throughput(
    system: System, shape: Shape, requests: int, tokens: tuple[int, int] = (1024, 1024), prefill: bool = False
) -> float:
    """New tokens per second of `requests` conversations of (in, out) tokens; 0: out of memory. UsageError: none."""
    if requests < 1 or min(tokens) < 1:
        raise UsageError(f"{requests} requests of {tokens[0]} and {tokens[1]} tokens: must be at least 1 each")
    system = on(system, shape)
    most = fits(system, shape, sum(tokens))
    if not most:
        return 0.0
    waves = -(-requests // most)
    size = requests / waves
    seconds = step_seconds(system, shape, size, context_of(shape, *tokens)) * tokens[1]
    if prefill:
        products = 2 * active_parameters(shape) * size * tokens[0]
        seconds += products / (system.flops * PREFILL_EFFICIENCY)
    return size * tokens[1] / seconds
