"""Shapes of published decoder models, derived sizes, and the workload of a decoder.

Sources: the configuration files published with the models (OPT: Zhang et al., arXiv 2205.01068; Llama 2: arXiv
2307.09288; Llama 3: arXiv 2407.21783; Mistral 7B: arXiv 2310.06825; Mixtral: arXiv 2401.04088).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

from npu_device.abi.opcodes import BITS, CODEBOOK_BYTES, DataType
from npu_device.kv_quant.methods import FP16, KvMethod
from npu_device.memory.bitwidth import bytes_total
from npu_device.memory.kv import KvCache
from toolchain.errors import ModelError, RuleError
from toolchain.quantize.codebook import VQ_BITS

LEARNED_OFFSET = 2
"""Row of position 0 in a learned position table, as in OPT."""
MAX_HEADS = 1 << 20
"""Maximum number of heads over all layers: widths of keys and values are listed per head."""


@dataclass(frozen=True)
class Shape:
    """Decoder shape: layers of attention and a feed-forward network, each after a normalization."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gated: bool = True
    """Whether a feed-forward network has gate, up and down matrices; else up and down."""
    activation: str = "SILU"
    norm: str = "RMS"
    """RMS, or LAYER, which also has a bias."""
    qkv_bias: bool = False
    output_bias: bool = False
    """Whether the output matrix of attention has a bias."""
    ffn_bias: bool = False
    head_bias: bool = False
    """Whether the output matrix of the model has a bias."""
    tied: bool = False
    """Whether the embedding is also the output matrix."""
    experts: int = 1
    active: int = 1
    """Experts per token."""
    shared_ffn: int = 0
    """Width of the expert shared by all tokens; 0 for none."""
    dense_layers: int = 0
    """Number of leading layers with one feed-forward network in place of experts."""
    dense_ffn: int = 0
    """Width of the feed-forward network in dense layers."""
    window: int = 0
    """Sliding window of attention, tokens; 0 for none."""
    whole_every: int = 0
    """Period of layers without a window, the last of each period; 0 if all layers have it."""
    positions: int = 0
    """Rows of a learned position table; 0 for rotary positions."""
    rotary: int = 0
    """Elements of a head with rotary positions; 0 for all."""
    parallel: bool = False
    """Whether attention and feed-forward network read the same input, to which their sum is added."""
    shared_norm: bool = False
    """Whether both parts of a parallel block read the same normalization."""
    post_norm: bool = False
    """Whether the results of attention and feed-forward network are also normalized."""
    qk_norm: bool = False
    """Whether queries and keys are normalized per head."""
    latent: int = 0
    """Elements of the latent that replaces keys and values of all heads; 0 if each head has its own."""
    latent_rotary: int = 0
    """Elements of a key beside the latent, which carry the position."""
    query_latent: int = 0
    """Elements of the query latent; 0 for none."""
    value_dim: int = 0
    """Elements of a value of a head; 0 for the size of a key."""

    @property
    def matrices(self) -> int:
        """Number of matrices of one feed-forward network."""
        return 3 if self.gated else 2

    @property
    def cache_window(self) -> int:
        """Capacity that caches need, tokens; 0 for all tokens, if some layers have no window."""
        return 0 if self.whole_every else self.window

    def window_of(self, layer: int) -> int:
        """Return the sliding window of a layer; 0 for none."""
        return 0 if self.whole_every and (layer + 1) % self.whole_every == 0 else self.window

    def layer_shape(self, layer: int) -> "Shape":
        """Return a shape whose layers all equal this layer."""
        equal = replace(self, window=self.window_of(layer), whole_every=0, dense_layers=0, dense_ffn=0)
        if layer >= self.dense_layers:
            return equal
        return replace(equal, ffn=self.dense_ffn, experts=1, active=1, shared_ffn=0)

    @property
    def cache_heads(self) -> int:
        """Heads of a cache. A latent counts as one head, whose values are a view of its keys."""
        return 1 if self.latent else self.kv_heads

    @property
    def cache_dim(self) -> int:
        """Elements per token and head of a cache."""
        return self.latent + self.latent_rotary if self.latent else self.head_dim

    @property
    def cache_sides(self) -> int:
        """Caches per layer: keys and values, or the latent in place of both."""
        return 1 if self.latent else 2

    @property
    def turned(self) -> int:
        """Elements of a head with rotary positions."""
        return self.latent_rotary or self.rotary or self.head_dim

    @property
    def qkv_width(self) -> int:
        """Elements of queries, keys and values per token, as attention reads them."""
        return (self.heads + self.cache_sides * self.cache_heads) * self.cache_dim

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of K (or V) per token and layer."""
        return self.kv_heads * self.head_dim

    @property
    def attention_parameters(self) -> int:
        """Parameters of the Q, K, V and output matrices of a layer."""
        if not self.latent:
            return self.width * (2 * self.q_width + 2 * self.kv_width)
        value = self.value_dim or self.head_dim
        queries = self.query_latent * (self.width + self.q_width) if self.query_latent else self.width * self.q_width
        keys = self.width * (self.latent + self.latent_rotary)
        expansion = self.latent * self.heads * (self.head_dim - self.latent_rotary + value)
        return queries + keys + expansion + self.heads * value * self.width

    @property
    def ffn_parameters(self) -> int:
        """Parameters of one feed-forward network, or of one expert."""
        return self.matrices * self.width * self.ffn

    def layer_parameters(self, layer: int, experts: int) -> int:
        """Return the matrix parameters of a layer with `experts` experts."""
        if layer < self.dense_layers:
            return self.attention_parameters + self.matrices * self.width * self.dense_ffn
        return self.attention_parameters + experts * self.ffn_parameters + self.matrices * self.width * self.shared_ffn

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the input embedding and, unless tied, the output matrix."""
        return self.vocab * self.width * (1 if self.tied else 2)

    @property
    def small_parameters(self) -> int:
        """Parameters outside the large matrices: norms, biases, learned positions, expert routers."""
        norm = self.width * (1 if self.norm == "RMS" else 2)
        norms = (1 if self.shared_norm else 2) + 2 * self.post_norm
        biases = self.qkv_bias * (self.q_width + 2 * self.kv_width) + self.output_bias * self.width
        biases += self.ffn_bias * (self.ffn * (self.matrices - 1) + self.width)
        inside = self.qk_norm * 2 * self.head_dim + (self.latent + self.query_latent)
        router = self.width * self.experts * (self.layers - self.dense_layers) if self.experts > 1 else 0
        head = norm + self.head_bias * self.vocab + self.positions * self.width
        return self.layers * (norms * norm + biases + inside) + router + head

    @property
    def parameters(self) -> int:
        """Number of trained parameters."""
        layers = sum(self.layer_parameters(layer, self.experts) for layer in range(self.layers))
        return layers + self.embedding_parameters + self.small_parameters

    def weight_bytes(self) -> int:
        """Return the bytes of all parameters, of 16 bits each."""
        return bytes_total(self.parameters, 16)

    def kv_bytes(self, tokens: int, requests: int = 1, bits: int = 16) -> int:
        """Return the bytes of K and V of all layers (docs/npu-timing.md, "Closed forms", F10)."""
        elements = self.cache_heads * self.cache_dim * tokens * requests
        return self.cache_sides * self.layers * bytes_total(elements, bits)


OPT_FACTS: dict[str, Any] = {
    "gated": False, "activation": "RELU", "norm": "LAYER", "qkv_bias": True, "output_bias": True, "ffn_bias": True,
    "tied": True, "positions": 2050,
}  # fmt: skip

MODELS = {
    shape.name: shape
    for shape in (
        Shape("llama2-7b", 32, 4096, 32, 32, 128, 11008, 32000),
        Shape("llama2-13b", 40, 5120, 40, 40, 128, 13824, 32000),
        Shape("llama2-70b", 80, 8192, 64, 8, 128, 28672, 32000),
        Shape("llama3-8b", 32, 4096, 32, 8, 128, 14336, 128256),
        Shape("opt-6.7b", 32, 4096, 32, 32, 128, 16384, 50272, **OPT_FACTS),
        Shape("opt-13b", 40, 5120, 40, 40, 128, 20480, 50272, **OPT_FACTS),
        Shape("opt-30b", 48, 7168, 56, 56, 128, 28672, 50272, **OPT_FACTS),
        Shape("mistral-7b", 32, 4096, 32, 8, 128, 14336, 32000, window=4096),
        Shape("mixtral-8x7b", 32, 4096, 32, 8, 128, 14336, 32000, experts=8, active=2, window=4096),
    )
}
"""Name -> built-in shape, for `pyv-npu run NAME --phase decode`. Mixtral has the window of Mistral."""


ACTIVATION = DataType.FP16
"""Type of activations, and of weights outside the matrices of layers."""
ACTIVATIONS = {16: ACTIVATION, 8: DataType.E4M3FN}
"""Bits of activations -> type."""
BY_BITS = {16: DataType.FP16, 8: DataType.INT8, 4: DataType.INT4, 2: DataType.INT2}
"""Bits of weights, or of keys and values -> storage type."""
WEIGHTS = {**BY_BITS, VQ_BITS: DataType.VQ8}
"""Bits of weights -> storage type, including vector quantization."""
KV_BITS = 4
"""Default bits of keys and values of built-in shapes (docs/llm.md)."""


class HeadGroup(NamedTuple):
    """Adjacent KV heads with one width of keys and values, which one command can attend to."""

    first: int
    heads: int
    kind: DataType


@dataclass(frozen=True)
class Job:
    """Built-in model with `requests` conversations, caches of `t_max` tokens, and widths of weights and KV."""

    shape: Shape
    layers: int
    t_max: int
    requests: int = 1
    weight_bits: int = 16
    """Bits of the matrices of layers; VQ_BITS for vector quantization."""
    kv_bits: Callable[[int, int], int] = lambda layer, head: KV_BITS
    """(layer, KV head) -> bits (docs/bit-widths.md, R14)."""
    codebooks: int = 1
    """Codebooks per matrix of a layer in vector quantization."""
    layer_weights: Mapping[int, int] = field(default_factory=dict)
    """Layer -> bits of its matrices, which override `weight_bits`."""
    activation_bits: int = 16
    unpacked: bool = False
    """Whether elements below 8 bits take a byte each (`packing.mode: unpacked_byte`)."""
    pad_rows: bool = False
    storage: KvMethod = FP16
    """Storage method of keys and values; plain numbers have the widths of `kv_bits`."""

    def __post_init__(self) -> None:
        for name in ("layers", "t_max", "requests"):
            if getattr(self, name) < 1:
                raise ModelError(f"{self.shape.name}: {name} {getattr(self, name)}: must be at least 1")
        if self.layers > self.shape.layers:
            raise ModelError(f"{self.shape.name}: {self.layers} layers: the model has {self.shape.layers}")
        kv = dict.fromkeys(bits for layer in range(self.layers) for bits in self.head_bits(layer))
        weights = dict.fromkeys((self.weight_bits, *self.layer_weights.values()))
        for bits, widths in (*((bits, WEIGHTS) for bits in weights), *((bits, BY_BITS) for bits in kv)):
            if bits not in widths:
                rule = f"{self.shape.name}: {bits} bits: must be one of {', '.join(map(str, BY_BITS))}"
                raise RuleError("E_QBITS", "qbits", bits, rule)
        if self.activation_bits not in ACTIVATIONS:
            rule = f"{self.shape.name}: activations of {self.activation_bits} bits: must be 16 or 8 (E4M3FN)"
            raise RuleError("E_QBITS", "qbits_activation_default", self.activation_bits, rule)
        if self.shape.latent and self.storage.encoded:
            raise ModelError(
                f"{self.shape.name}: --kv {self.storage.name}: a latent is stored as numbers: fp16, fp8 or uniform"
            )
        weight_widths = [self.weight_of(layer) for layer in range(self.layers)]
        if self.activation_kind is not ACTIVATION and not set(weight_widths) <= {2, 4, 8}:
            rule = f"{self.shape.name}: activations of 8 bits need weights of 8, 4 or 2: qbits_weight_default: 8"
            raise RuleError("E_QBITS", "qbits_activation_default", self.activation_bits, rule)

    @property
    def activation_kind(self) -> DataType:
        return ACTIVATIONS[self.activation_bits]

    def weight_of(self, layer: int) -> int:
        """Return the bits of the matrices of a layer."""
        return self.layer_weights.get(layer, self.weight_bits)

    def stored_kind(self, bits: int) -> DataType:
        """Return the storage type of elements of `bits` bits."""
        return BY_BITS[max(bits, 8) if self.unpacked else bits]

    def head_bits(self, layer: int) -> tuple[int, ...]:
        """Return the bits of the keys and values of each KV head of a layer."""
        return tuple(self.kv_bits(layer, head) for head in range(self.shape.cache_heads))

    def groups(self, layer: int) -> list[HeadGroup]:
        """Return the heads of a layer, in the minimum number of groups of equal width."""
        head_groups, first = [], 0
        for bits, heads in groupby(self.head_bits(layer)):
            count = len(list(heads))
            head_groups.append(HeadGroup(first, count, self.storage.kind(self.stored_kind(bits))))
            first += count
        return head_groups

    def cache(self, layer: int, base: int) -> KvCache:
        """Return the layout of K or V of a layer, over all requests (docs/bit-widths.md, R15)."""
        shape = self.shape
        bits = tuple(BITS[self.stored_kind(head_bit)] for head_bit in self.head_bits(layer))
        return KvCache(base, self.requests, shape.cache_heads, self.t_max, shape.cache_dim, bits, self.pad_rows)

    def weight_kind(self, layer: int) -> DataType:
        """Return the type of a layer's matrices."""
        bits = self.weight_of(layer)
        return DataType.VQ8 if bits == VQ_BITS else self.stored_kind(bits)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the parameters that these layers read: matrices in their width, others in that of activations."""
        other_parameters = self.shape.embedding_parameters + self.shape.small_parameters
        return self.matrix_bytes(self.shape.experts) + bytes_total(other_parameters, self.activation_bits)

    def matrix_bytes(self, experts: int) -> int:
        """Return the bytes of the matrices of all layers, with `experts` experts each."""
        total = 0
        for layer in range(self.layers):
            count = self.shape.layer_parameters(layer, experts)
            total += bytes_total(count, BITS[self.weight_kind(layer)]) + self.codebook_bytes(layer, experts)
        return total

    def codebook_bytes(self, layer: int, experts: int) -> int:
        """Return the bytes of the codebooks of a layer with `experts` experts."""
        matrices = 2 + experts * self.shape.matrices
        return matrices * self.codebooks * CODEBOOK_BYTES if self.weight_of(layer) == VQ_BITS else 0

    @property
    def kv_bytes(self) -> int:
        """Bytes of DRAM of all caches (docs/bit-widths.md, R15: `kv_bytes_alloc`), or of pages of encoded caches."""
        return sum(map(self.kv_bytes_alloc, range(self.layers)))

    def kv_bytes_alloc(self, layer: int) -> int:
        """Return the bytes of DRAM of the caches of a layer."""
        return (
            self.requests * self.storage.allocated_bytes(self.cache(layer, 0), self.t_max) * self.shape.cache_sides // 2
        )

    def kv_bytes_of(self, layer: int, tokens: int) -> int:
        """Return the bytes of keys and values for `tokens` tokens of all requests."""
        return self.requests * self.storage.stored_bytes(self.cache(layer, 0), tokens) * self.shape.cache_sides // 2

    def check_capacity(self, dram_bytes: int, others: int = 0) -> None:
        """Check that weights, other tensors and the caches of T_max tokens fit the DRAM (docs/bit-widths.md, R25 and
        R26). ModelError, in one line."""
        need = self.weight_bytes + others + self.kv_bytes
        if need > dram_bytes:
            raise RuleError(
                "E_CAPACITY",
                "npu.dram.size",
                dram_bytes,
                f"{self.shape.name}: weights {self.weight_bytes / 1e9:.1f} GB and KV {self.kv_bytes / 1e9:.1f} GB "
                f"({self.requests} x {self.t_max} tokens){_beside(others)} are {need / 1e9:.1f} GB, npu.dram.size is "
                f"{dram_bytes / 1e9:.1f} GB: fewer requests or tokens, narrower --qbits-kv, or "
                f"--set npu.dram.size={need}",
            )


def _beside(others: int) -> str:
    """Return the part of a message on the bytes of activations and commands."""
    return f" and {others / 1e9:.1f} GB beside them" if others else ""
