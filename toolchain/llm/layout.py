"""Where a decoder lies: commands and what firmware touches first, then activations, weights, keys and values.

Weights have no values: a built-in model is its shape. All of a run's addresses are here, so that prefill and decoding
meet in the same caches.
"""

from dataclasses import dataclass

from npu_device.abi.memory_map import DRAM_BASE, DRAM_CORE_VISIBLE, SPM_BASE
from npu_device.abi.opcodes import BITS, DataType
from npu_device.memory.kv import KvCache
from toolchain.codegen.memory import MODEL_BASE, PAGE
from toolchain.errors import ModelError
from toolchain.llm.job import HeadGroup, Job

ACTIVATION = DataType.FP16
FLOAT_BYTES = INT_BYTES = 4
SLOT = 64
"""Alignment of what lies in the scratchpad."""
RESIDENT = 8
"""Activations may take one of so many parts of the scratchpad."""
CORE_END = DRAM_BASE + DRAM_CORE_VISIBLE
"""End of what the core sees."""
COMMAND_BYTES = 32 << 20
"""Room for descriptors and extended blocks."""


class Region:
    """Addresses given out one after the other. Nothing lies across `CORE_END`, where one memory ends and one begins."""

    def __init__(self, base: int) -> None:
        self.end = base

    def take(self, elements: int, bits: int = BITS[ACTIVATION], alignment: int = SLOT) -> int:
        """Room for so many elements."""
        size = -(-elements * bits // 8)
        address = -(-self.end // alignment) * alignment
        if address < CORE_END < address + size:
            address = CORE_END
        self.end = address + size
        return address


@dataclass(frozen=True)
class LayerPlaces:
    """Addresses of one layer."""

    norms: tuple[int, int]
    """Gamma, and beta behind it where the model has layer norms, before attention and before the feed-forward part."""
    qkv: int
    output: int
    router: int
    experts: tuple[tuple[int, ...], ...]
    """Matrices of each expert: gate, up, down, or up, down."""
    biases: int
    """f32: of QKV, output, up, down, one behind the other; 0: none."""
    multipliers: int
    """f32 per output channel of narrow weights, shared by all matrices; 0: none."""
    keys: KvCache
    values: KvCache
    kv_scales: int
    """f32 of each KV head, in the two orders that commands need: keys, then values, of all heads, and of each group of
    heads that attends."""

    def append_scales(self, group: HeadGroup, value: bool) -> int:
        """The scales of the keys, or values, of a group."""
        return self.kv_scales + FLOAT_BYTES * (group.first + (self.keys.heads if value else 0))

    def attention_scales(self, group: HeadGroup) -> int:
        """The scales of the keys, then of the values, of a group."""
        return self.kv_scales + 2 * FLOAT_BYTES * (self.keys.heads + group.first)


class Layout:
    """Addresses of a job whose largest phase has `tokens` tokens per request.

    Activations stay in the scratchpad, at its end, where they need at most `1 / RESIDENT` of its `spm_bytes`: those of
    a step that makes a token. Others are in DRAM.
    """

    def __init__(self, job: Job, tokens: int, spm_bytes: int) -> None:
        shape, rows = job.shape, job.requests * tokens
        self.job, self.tokens = job, tokens
        self.commands = MODEL_BASE
        place = Region(MODEL_BASE + COMMAND_BYTES)
        self.position = place.take(1, 32)
        self.ids = place.take(rows, 32)
        """Token ids; the ARGMAX of a step writes the next ones over them."""
        self.logits = place.take(job.requests * shape.vocab)
        self.qkv_width = shape.q_width + 2 * shape.kv_width
        self.resident = self._activations(Region(0), rows)
        """Bytes at the end of the scratchpad that belong to activations."""
        if self.resident > spm_bytes // RESIDENT:
            self.resident = 0
            self._activations(place, rows)
        else:
            self._activations(Region(SPM_BASE + spm_bytes - self.resident), rows)
        self.cos = place.take(job.t_max * shape.head_dim // 2)
        self.sin = place.take(job.t_max * shape.head_dim // 2)
        self.embedding = place.take(shape.vocab * shape.width)
        self.head = self.embedding if not shape.gated else place.take(shape.vocab * shape.width)
        self.positions = place.take(shape.positions * shape.width)
        self.final_norm = place.take((1 if shape.gated else 2) * shape.width)
        self.layers = tuple(self._layer(place, index) for index in range(job.layers))
        self.end = -(-place.end // PAGE) * PAGE

    def _activations(self, place: Region, rows: int) -> int:
        """Give them addresses: the bytes that they take."""
        shape, mixture = self.job.shape, self.job.shape.experts > 1
        self.x = place.take(rows * shape.width)
        first = self.x
        self.normed = place.take(rows * shape.width)
        self.qkv = place.take(rows * self.qkv_width)
        self.attended = place.take(rows * shape.q_width)
        self.up = place.take(rows * shape.ffn)
        self.gate = place.take(rows * shape.ffn) if shape.gated else 0
        self.expert = place.take(rows * shape.width) if mixture else 0
        self.routing = place.take(rows * shape.experts) if mixture else 0
        self.routing_columns = place.take(rows * shape.experts) if mixture else 0
        return -(-(place.end - first) // SLOT) * SLOT

    def _layer(self, place: Region, index: int) -> LayerPlaces:
        job, shape = self.job, self.job.shape
        bits = BITS[job.weight_kind]
        norm = (1 if shape.gated else 2) * shape.width
        narrow = job.weight_kind is not ACTIVATION
        first = place.take(norm), place.take(norm)
        qkv = place.take(shape.width * self.qkv_width, bits)
        output = place.take(shape.q_width * shape.width, bits)
        router = place.take(shape.width * shape.experts) if shape.experts > 1 else 0
        experts = tuple(
            tuple(place.take(shape.width * shape.ffn, bits) for _ in range(shape.matrices))
            for _ in range(shape.experts)
        )
        biases = 0 if shape.gated else place.take(self.qkv_width + 2 * shape.width + shape.ffn, 32)
        multipliers = place.take(max(self.qkv_width, shape.width, shape.ffn), 32) if narrow else 0
        keys = self._cache(place, index)
        values = self._cache(place, index)
        kv_scales = place.take(4 * shape.kv_heads, 32)
        return LayerPlaces(first, qkv, output, router, experts, biases, multipliers, keys, values, kv_scales)

    def _cache(self, place: Region, index: int) -> KvCache:
        cache = self.job.cache(index, place.take(0))
        place.take(cache.bytes_alloc, 8)
        return cache

    def check_commands(self, size: int) -> None:
        """ModelError when descriptors and extended blocks need more than their room."""
        if size > COMMAND_BYTES:
            raise ModelError(
                f"{self.job.shape.name}: {size} bytes of commands, there is room for {COMMAND_BYTES}: "
                "fewer requests or layers"
            )

    def check(self, dram_bytes: int) -> None:
        """ModelError when it all, with activations and the firmware's share, does not fit."""
        used = self.end - DRAM_BASE
        if used > dram_bytes:
            raise ModelError(
                f"{self.job.shape.name}: weights, KV, activations and commands end at {used} bytes of DRAM, "
                f"npu.dram.size is {dram_bytes}: --set npu.dram.size={used}"
            )
