"""Addresses of the keys and values of each decoder layer, in macro and tile form (docs/kv-cache.md)."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from npu_device.abi.opcodes import Opcode
from npu_device.memory.kv import SCALE_BYTES
from toolchain.backend import Program
from toolchain.codegen import Command
from toolchain.ir.graph import LayerIR, Role

SIDES = ("k", "v")
"""Sides of a cache: keys, values."""


class StoredCache(NamedTuple):
    """Keys or values of some heads of a layer, [B, H, T_max, D]."""

    tensor: str
    layer: int
    """Index of the decoder layer, from 0."""
    side: int
    """Index in SIDES."""
    heads: int
    t_max: int
    qbits: int
    start: int
    end: int
    scale_bytes: int = 0
    """Bytes of the scales of one token; 0 without per-token scales."""

    @property
    def token_bytes(self) -> int:
        """Bytes of one token over all heads and requests, including its scales."""
        return (self.end - self.start) // self.t_max + self.scale_bytes

    @property
    def bytes_alloc(self) -> int:
        """Allocated bytes, for T_max tokens."""
        return self.end - self.start + self.scale_bytes * self.t_max


def caches_of(program: Program) -> tuple[StoredCache, ...]:
    """Return all caches, by address."""
    graph, caches = program.graph, dict[str, StoredCache]()
    for layer in graph.layers:
        for side, name in enumerate(_write(layer)):
            tensor, start = graph.tensors[name], program.address(name)
            heads, t_max = tensor.shape[1:3]
            scaled = any(
                graph.tensors[operand].role is Role.KV and operand not in layer.outputs
                for operand in layer.inputs[len(layer.outputs) + 1 :]
            )
            caches[name] = StoredCache(
                name, layer.integer("kv_layer"), side, heads, t_max, tensor.qbits, start, start + tensor.size,
                SCALE_BYTES * heads if scaled else 0,
            )  # fmt: skip
    return tuple(sorted(caches.values(), key=lambda cache: cache.start))


def _write(layer: LayerIR) -> tuple[str, ...]:
    """Return the caches of keys and values that a layer appends to."""
    if layer.op_type == "KV_UPDATE":
        return layer.outputs
    return layer.outputs[1:] if layer.integer("append") else ()


def cache_indices(commands: Sequence[Command], caches: Sequence[StoredCache]) -> Iterator[tuple[int, ...]]:
    """Yield for each command the indices of the caches that it accesses: none, one, or both keys and values."""
    starts = [cache.start for cache in caches]

    def holding(address: int) -> tuple[int, ...]:
        index = bisect_right(starts, address) - 1
        return (index,) if index >= 0 and address < caches[index].end else ()

    for command in commands:
        d = command.descriptor
        if d.opcode == Opcode.KV_APPEND:
            yield holding(d.out_addr)
        elif d.opcode == Opcode.KV_READ:
            yield holding(d.in0_addr)
        elif d.opcode == Opcode.ATTN_T and command.block is not None:
            yield holding(d.in1_addr) + holding(command.block.in2)
        else:
            yield ()
