"""KV_APPEND and KV_READ: rows of tokens into a cache [heads, t_max, D] and out of it (specification 55, R15, R18).

The tensor has a row per token with all KV heads beside each other. Appending begins at the position t that is read at
the start, or at 0 without `pos_addr`; reading takes the first `kv_len` tokens. Elements are converted on the way.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import Opcode
from npu_device.checks import element_type, unused_type, unused_word
from npu_device.descriptor_error import DescriptorError
from npu_device.effect import Effect, Read
from npu_device.kernels import elements
from npu_device.kernels.moves import dequantized, quantized
from npu_device.macro.base import (
    Macro,
    Operand,
    Setting,
    dimensions,
    operand,
    require_dram,
    strided,
    values,
    whole,
)
from npu_device.macro.cache import Cache, check_cache, per_head, scales
from npu_device.macro.finish import zero_point
from npu_device.macro.position import position_operand, read_position
from npu_device.macro.tiles import Operands, in_place
from npu_device.macro.workspace import Buffers, Site, Tile, reserve, tile_size, tiles
from npu_device.operands import FLOATS, Matrix, row_bytes
from npu_device.operations import SMALL_INTEGERS
from npu_device.plan import Plan, Role
from npu_device.sequencer import Nest


@dataclass(frozen=True, eq=False)
class KvMacro(Macro):
    """A move between `tensor` and `cache`."""

    tensor: Matrix
    cache: Cache
    scale: Matrix | None
    zero: int
    append: bool
    tokens: int
    position: int
    pos_addr: int
    tile: int

    @property
    def operands(self) -> tuple[Operand, ...]:
        names = ("in0", "out") if self.append else ("out", "in0")
        scale = () if self.scale is None else (operand("scale", self.scale),)
        return (
            operand(names[0], self.tensor, written=not self.append),
            operand(names[1], self.cache.matrix, written=self.append),
            *scale,
            *position_operand(self.pos_addr),
        )

    def start(self, read: Read) -> Self:
        if not self.pos_addr:
            return self
        return replace(self, position=read_position(read, self.pos_addr, self.tokens, self.cache.t_max))

    def compute(self, read: Read, held: elements.Values | None) -> Effect:
        cache, tensor = self.cache, self.tensor
        scale = per_head(None if self.scale is None else values(read, self.scale)[0])
        if self.append:
            rows = values(read, tensor).reshape(self.tokens, cache.heads, cache.head_dim).transpose(1, 0, 2)
            if tensor.kind is not cache.kind:
                rows = quantized(rows, cache.kind, scale, self.zero)
            data = elements.encode(np.ascontiguousarray(rows).reshape(-1, cache.head_dim), cache.kind)
            return Effect(((cache.rows(self.position, self.tokens), data),))
        rows = cache.read(read, self.tokens)
        if tensor.kind is not cache.kind:
            rows = elements.to_float(dequantized(rows, scale, self.zero), tensor.kind)
        result = np.ascontiguousarray(rows.transpose(1, 0, 2)).reshape(self.tokens, -1)
        return Effect((whole(tensor, result),))

    def plan(self, setting: Setting, lanes: int = 1) -> Plan:
        cache, dim = self.cache, self.cache.head_dim
        count = -(-self.tokens // self.tile)
        head = np.repeat(np.arange(cache.heads), count)
        token = np.tile(np.arange(count) * self.tile, cache.heads)
        rows = np.minimum(self.tile, self.tokens - token)
        wide, zero = np.full_like(head, dim), np.zeros_like(head)
        of = Operands(self.reserved.slots(1), zero)
        inside = of.tiles("staging", self.tensor, token, rows, head * dim, wide)
        of.slots.setdefault("staging", in_place(self.tensor))
        outside = of.tiles("staging", cache.matrix, head * cache.t_max + self.position + token, rows, zero, wide)
        streams = outside.stream(Role.KV, Opcode(self.d.opcode), write=self.append)
        other = inside.stream(Role.ACTIVATION, Opcode.LOAD if self.append else Opcode.STORE, write=not self.append)
        reads, writes = (other, streams) if self.append else (streams, other)
        return setting.sequence(Nest(of.lane, reads, writes), self.d)


def decode_kv(d: Descriptor, block: Extended, site: Site) -> KvMacro:
    """DescriptorError when types, shapes, strides or the cache are wrong."""
    append = d.opcode == Opcode.KV_APPEND
    own = block.own(Opcode(d.opcode))
    kind_kv = element_type(d, "type_kv", (*FLOATS, *SMALL_INTEGERS))
    kind = element_type(d, "type_in0" if append else "type_out", dict.fromkeys((*FLOATS, kind_kv)))
    unused_type(d, "type_in1", "type_out" if append else "type_in0")
    unused_word(d, "param0", "in1_addr", "tile_n", "tile_k")
    unused_word(block, "m", "n", "k", "loop_order", "in2", "bias", "ld1", "ldo" if append else "ld0")
    dimensions(own, "kv_heads", "head_dim", "t_max", "q_len" if append else "kv_len")
    for name in ("heads", "attn_flags", "window", "attn_scale", "attn_reserved", "kv_len" if append else "q_len"):
        if own[name]:
            raise DescriptorError(TicketError.RESERVED, f"{name} {own[name]}: must be 0, it is not used")
    if own["pos_addr"] and not append:
        raise DescriptorError(TicketError.RESERVED, "pos_addr: KV_READ takes kv_len tokens from the start")
    heads, dim, t_max = own["kv_heads"], own["head_dim"], own["t_max"]
    tokens = own["q_len"] if append else own["kv_len"]
    if tokens > t_max:
        raise DescriptorError(TicketError.POSITION, f"{tokens} tokens, t_max is {t_max}")
    check_cache(kind, dim, heads, 0)
    address, distance = (d.in0_addr, block.ld0) if append else (d.out_addr, block.ldo)
    tensor = strided("in0" if append else "out", address, tokens, heads * dim, kind, distance)
    cache = Cache(d.out_addr if append else d.in0_addr, heads, t_max, dim, kind_kv, t_max, 0)
    require_dram(site, "out" if append else "in0", cache.matrix)
    scale = scales(block, () if kind is kind_kv else (kind_kv,), heads)
    size = tile_size(d, "tile_m", tokens)

    def demand(tile: Tile, buffers: Buffers) -> None:
        buffers.read("staging", tensor, tile[0] * max(row_bytes(dim, kind), row_bytes(dim, kind_kv)))

    reserved = reserve(d, block, site, (size,), heads * tiles(tokens, tile=(size,)), demand)
    zero = zero_point(block, 3 if append else 0, kind_kv)
    return KvMacro(d, block, site, reserved, tensor, cache, scale, zero, append, tokens, 0, own["pos_addr"], size)
