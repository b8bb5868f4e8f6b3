"""Shapes of published decoder models, and the sizes that follow from them (docs/llm.md, "Built-in models").

Sources: the configuration files that the models were published with (OPT: Zhang et al., arXiv 2205.01068; Llama 2:
arXiv 2307.09288; Llama 3: arXiv 2407.21783; Mistral 7B: arXiv 2310.06825; Mixtral: arXiv 2401.04088).
"""

from dataclasses import dataclass

from toolchain.errors import ModelError


@dataclass(frozen=True)
class Shape:
    """A decoder: layers of attention and a feed-forward network, both behind a normalization."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gated: bool = True
    """Llama: gate, up and down matrices, RMS norms, rotary positions, no biases. OPT: up and down, layer norms, a
    table of positions, biases everywhere, and the embedding is the output matrix, too."""
    experts: int = 1
    active: int = 1
    """Experts that see a token."""
    window: int = 0
    """Sliding window of attention; 0: none."""
    positions: int = 0
    """Rows of a learned table of positions; 0: rotary."""

    @property
    def matrices(self) -> int:
        """Matrices of one feed-forward network."""
        return 3 if self.gated else 2

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of K (or V) of one token and layer."""
        return self.kv_heads * self.head_dim

    @property
    def attention_parameters(self) -> int:
        """Q, K, V and output matrices of a layer."""
        return self.width * (2 * self.q_width + 2 * self.kv_width)

    @property
    def ffn_parameters(self) -> int:
        """One feed-forward network: one expert."""
        return self.matrices * self.width * self.ffn

    @property
    def embedding_parameters(self) -> int:
        """Input embedding and, unless it is the same, the output matrix."""
        return self.vocab * self.width * (2 if self.gated else 1)

    @property
    def small_parameters(self) -> int:
        """What is no large matrix: norms, biases, learned positions, the routers of experts."""
        if self.gated:
            router = self.width * self.experts if self.experts > 1 else 0
            return self.layers * (2 * self.width + router) + self.width
        biases = self.q_width + 2 * self.kv_width + self.width + self.ffn + self.width
        return self.layers * (biases + 4 * self.width) + 2 * self.width + self.positions * self.width

    @property
    def parameters(self) -> int:
        """All numbers that were trained."""
        layer = self.attention_parameters + self.experts * self.ffn_parameters
        return self.layers * layer + self.embedding_parameters + self.small_parameters

    def weight_bytes(self, bits: int = 16) -> int:
        """Bytes of all parameters."""
        return -(-self.parameters * bits // 8)

    def kv_bytes(self, tokens: int, requests: int = 1, bits: int = 16) -> int:
        """Bytes of K and V of all layers (docs/npu-timing.md, "Closed forms", F10)."""
        return 2 * self.layers * self.kv_width * tokens * requests * bits // 8


MODELS = {
    shape.name: shape
    for shape in (
        Shape("llama2-7b", 32, 4096, 32, 32, 128, 11008, 32000),
        Shape("llama2-13b", 40, 5120, 40, 40, 128, 13824, 32000),
        Shape("llama2-70b", 80, 8192, 64, 8, 128, 28672, 32000),
        Shape("llama3-8b", 32, 4096, 32, 8, 128, 14336, 128256),
        Shape("opt-6.7b", 32, 4096, 32, 32, 128, 16384, 50272, gated=False, positions=2050),
        Shape("opt-13b", 40, 5120, 40, 40, 128, 20480, 50272, gated=False, positions=2050),
        Shape("opt-30b", 48, 7168, 56, 56, 128, 28672, 50272, gated=False, positions=2050),
        Shape("mistral-7b", 32, 4096, 32, 8, 128, 14336, 32000, window=4096),
        Shape("mixtral-8x7b", 32, 4096, 32, 8, 128, 14336, 32000, experts=8, active=2, window=4096),
    )
}
"""Name -> shape: what `pyv-npu run NAME --phase decode` knows. Mixtral has the window of Mistral."""


def shape_of(name: str) -> Shape:
    """A built-in shape. ModelError lists the names."""
    if name not in MODELS:
        raise ModelError(f"{name}: no built-in model; there are {', '.join(MODELS)}")
    return MODELS[name]
