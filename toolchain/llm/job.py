"""What is asked of a built-in model: how many requests, tokens, layers and bits."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from npu_device.abi.opcodes import BITS, DataType
from npu_device.memory.kv import KvCache
from toolchain.errors import ModelError
from toolchain.llm.shapes import Shape

BY_BITS = {16: DataType.FP16, 8: DataType.INT8, 4: DataType.INT4, 2: DataType.INT2}
"""Bits of weights, or of keys and values -> the type that they are stored in."""
KV_BITS = 4
"""Of built-in shapes, unless said otherwise (docs/llm.md)."""


class HeadGroup(NamedTuple):
    """KV heads side by side with keys and values of one width: what one command can attend to."""

    first: int
    heads: int
    kind: DataType


@dataclass(frozen=True)
class Job:
    """A built-in model with `requests` conversations, caches of `t_max` tokens, and widths of weights and KV."""

    shape: Shape
    layers: int
    t_max: int
    requests: int = 1
    weight_bits: int = 16
    kv_bits: Callable[[int, int], int] = lambda layer, head: KV_BITS
    """(layer, KV head) -> bits (docs/bit-widths.md, R14)."""

    def __post_init__(self) -> None:
        for name in ("layers", "t_max", "requests"):
            if getattr(self, name) < 1:
                raise ModelError(f"{self.shape.name}: {name} {getattr(self, name)}: must be at least 1")
        if self.layers > self.shape.layers:
            raise ModelError(f"{self.shape.name}: {self.layers} layers: the model has {self.shape.layers}")
        used = {self.weight_bits, *(bits for layer in range(self.layers) for bits in self.head_bits(layer))}
        for bits in used:
            if bits not in BY_BITS:
                raise ModelError(f"{self.shape.name}: {bits} bits: must be one of {', '.join(map(str, BY_BITS))}")

    def head_bits(self, layer: int) -> tuple[int, ...]:
        """Bits of the keys and values of each KV head of a layer."""
        return tuple(self.kv_bits(layer, head) for head in range(self.shape.kv_heads))

    def groups(self, layer: int) -> list[HeadGroup]:
        """The heads of a layer, as few commands as their widths allow."""
        found, first = [], 0
        for bits, heads in groupby(self.head_bits(layer)):
            count = len(list(heads))
            found.append(HeadGroup(first, count, BY_BITS[bits]))
            first += count
        return found

    def cache(self, layer: int, base: int) -> KvCache:
        """K or V of a layer, of all requests (docs/bit-widths.md, R15)."""
        shape = self.shape
        return KvCache(base, self.requests, shape.kv_heads, self.t_max, shape.head_dim, self.head_bits(layer))

    @property
    def weight_kind(self) -> DataType:
        return BY_BITS[self.weight_bits]

    @property
    def weight_bytes(self) -> int:
        """Bytes of the parameters that a run of these layers touches: the matrices in `weight_bits`, all else in 16."""
        shape = self.shape
        matrices = self.layers * (shape.attention_parameters + shape.experts * shape.ffn_parameters)
        rest = shape.embedding_parameters + shape.small_parameters
        return (matrices * self.weight_bits + rest * BITS[DataType.FP16]) // 8

    @property
    def kv_bytes(self) -> int:
        """Bytes of all caches (docs/bit-widths.md, R15: `kv_bytes_alloc`)."""
        return 2 * sum(self.cache(layer, 0).bytes_alloc for layer in range(self.layers))

    def kv_bytes_read(self, layer: int, keys: int) -> int:
        """Bytes of keys (or of values) of the last `keys` tokens of all requests."""
        return self.cache(layer, 0).bytes_alloc // self.t_max * keys

    def check_capacity(self, dram_bytes: int) -> None:
        """Weights and the caches of T_max tokens fit (docs/bit-widths.md, R25 and R26). ModelError, one line."""
        need = self.weight_bytes + self.kv_bytes
        if need > dram_bytes:
            raise ModelError(
                f"{self.shape.name}: weights {self.weight_bytes / 1e9:.1f} GB and KV {self.kv_bytes / 1e9:.1f} GB "
                f"({self.requests} x {self.t_max} tokens) are {need / 1e9:.1f} GB, npu.dram.size is "
                f"{dram_bytes / 1e9:.1f} GB: fewer requests or tokens, narrower --qbits-kv, or "
                f"--set npu.dram.size={need}"
            )
