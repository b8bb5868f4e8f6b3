"""ATTN_T: out = softmax(Q K^T scale) V for heads that share K and V in groups (MHA, GQA).

Q and out have a row per query with all heads next to each other; K is in1, V is in2, of `type_kv`. The queries are the
last positions of the keys: with `pos_addr` the first query is at t, and t + q_len keys are seen.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import BITS, DataType, Opcode
from npu_device.cost.durations import VECTOR_OPS
from npu_device.cost.plan import Column, Compute, Plan, Role
from npu_device.cost.sequencer import Nest, interleaved
from npu_device.memory.memory import Read, WriteSet
from npu_device.memory.operands import FLOATS, Matrix, row_bytes
from npu_device.memory.region import Region
from npu_device.operations.checks import DescriptorError, element_type, unused_type, unused_word
from npu_device.operations.kernels import elements
from npu_device.operations.kernels.attention import attention
from npu_device.operations.kernels.moves import dequantized
from npu_device.operations.macro.base import (
    Macro,
    Operand,
    Setting,
    dimensions,
    operand,
    position_operand,
    read_position,
    strided,
    values,
    whole,
)
from npu_device.operations.macro.epilogue import zero_point
from npu_device.operations.macro.kv import Cache, check_cache, per_head, scales
from npu_device.operations.macro.tiles import Operands, Tiles, work
from npu_device.operations.macro.workspace import Buffers, Site, Tile, reserve, tiles
from npu_device.operations.tile_form import SMALL_INTEGERS
from npu_device.trace.events import Kind

SCORE_BYTES = 4
_CAUSAL = 1


@dataclass(frozen=True, eq=False)
class AttentionMacro(Macro):
    """Attention of `queries` queries over `keys` keys."""

    q: Matrix
    k: Cache
    v: Cache
    out: Matrix
    scale: Matrix | None
    zeros: tuple[int, int]
    score_scale: np.float32
    group: int
    queries: int
    keys: int
    """All keys there can be; after `start` those there are."""
    causal: bool
    window: int
    pos_addr: int
    tile: tuple[int, int]
    """(queries x heads of a group, keys)."""

    @property
    def operands(self) -> tuple[Operand, ...]:
        scale = () if self.scale is None else (operand("scale", self.scale),)
        return (
            operand("in0", self.q), operand("in1", self.k.matrix), operand("in2", self.v.matrix), *scale,
            *position_operand(self.pos_addr), operand("out", self.out, written=True),
        )  # fmt: skip

    def start(self, read: Read) -> Self:
        if not self.pos_addr:
            return self
        return self.at(read_position(read, self.pos_addr, self.queries, self.k.t_max))

    def at(self, position: int) -> Self:
        return replace(self, position=position, keys=position + self.queries)

    def compute(self, read: Read, accumulated: elements.Values | None) -> WriteSet:
        heads, dim = self.k.heads, self.k.head_dim
        scale = (None, None) if self.scale is None else tuple(values(read, self.scale)[0].reshape(2, -1))
        k = dequantized(self.k.read(read, self.keys), per_head(scale[0]), self.zeros[0])
        v = dequantized(self.v.read(read, self.keys), per_head(scale[1]), self.zeros[1])
        rows = values(read, self.q).reshape(self.queries, heads, self.group, dim).transpose(1, 0, 2, 3)
        q = rows.reshape(heads, self.queries * self.group, dim)
        position = np.repeat(np.arange(self.queries) + self.keys - self.queries, self.group)
        result = attention(q, k, v, self.score_scale, position, self.causal, self.window, self.tile[1])
        result = result.reshape(heads, self.queries, self.group, dim).transpose(1, 0, 2, 3)
        return WriteSet((whole(self.out, elements.to_float(result.reshape(self.queries, -1), self.out.kind)),))

    @property
    def chains(self) -> int:
        """KV heads, which take equally long; where there are fewer than engines, blocks of queries of each."""
        return self.k.heads * tiles(self.queries * self.group, tile=self.tile[:1])

    def plan(self, setting: Setting, lanes: int = 1) -> Plan:
        rows, keys = self.queries * self.group, self.tile[1]
        blocks = [self._block(row, min(row + self.tile[0], rows)) for row in range(0, rows, self.tile[0])]
        row, count, key, phase, last = (np.concatenate(column) for column in zip(*blocks, strict=True))
        heads = self.k.heads
        head = np.repeat(np.arange(heads), len(row))
        row, count, key, phase, last = (np.tile(column, heads) for column in (row, count, key, phase, last))
        start = key * keys
        seen = np.minimum(keys, self.keys - start)
        first = np.ones(len(row), bool)
        first[1:] = (row[1:] != row[:-1]) | (head[1:] != head[:-1])
        turn = np.ones(len(row), bool)
        turn[1:] = phase[1:] != phase[:-1]
        last_key = np.zeros(len(row), np.int64)
        ends = np.flatnonzero(last == 1)
        last_key[ends] = start[ends] + seen[ends] - start[np.flatnonzero(first)]
        order, lane = interleaved(head if heads >= lanes else np.cumsum(first), lanes)
        columns = row, count, phase, last, head, start, seen, first, turn, last_key
        row, count, phase, last, head, start, seen, first, turn, last_key = (column[order] for column in columns)
        query, dim = row // self.group, self.k.head_dim
        queries = (row + count - 1) // self.group - query + 1
        wide = np.full_like(row, dim)
        across = (head * self.group * dim, wide * self.group)
        of = Operands(self.reserved.slots(lanes), lane)
        q = of.tiles("in0", self.q, query, queries, *across, np.flatnonzero(first))
        out = of.tiles("out", self.out, query, queries, *across, np.flatnonzero(last == 2))

        def cached(cache: Cache, name: str, use: int) -> Tiles:
            if cache.t_max:
                place = (head * cache.t_max + start, seen, np.zeros_like(row), wide)
            else:
                place = (start, seen, head * dim, wide)
            return of.tiles(name, cache.matrix, *place, np.flatnonzero(phase == use))

        k, v = cached(self.k, "in1", 0), cached(self.v, "in2", 1)
        scores = of.slots["scores"]
        aux = self.d.opcode | self.d.function << 8

        def product(shape: list[int], reads: tuple[Region, ...], writes: tuple[Region, ...]) -> Compute:
            size, depth, step, lane = shape
            q_tile, k_tile, v_tile = reads
            table = scores.region(lane, size * depth * SCORE_BYTES)
            bits = (BITS[self.q.kind], BITS[self.k.kind])
            if step == 0:
                return Compute(Kind.TE, aux, size, depth, dim, *bits, 0, (q_tile, k_tile), (table,))
            return Compute(Kind.TE, aux, size, dim, depth, *bits, 0, (table, v_tile), writes)

        def softmax(shape: list[int], reads: tuple[Region, ...], writes: tuple[Region, ...]) -> Compute:
            size, total, lane = shape
            table = (scores.region(lane, size * total * SCORE_BYTES),)
            operations = size * total * VECTOR_OPS[Opcode.SOFTMAX]
            return Compute(Kind.VE, aux, 0, 0, 0, 8 * SCORE_BYTES, 0, operations, table, table)

        nest = Nest(
            of.lane,
            (
                *q.stream(Role.ACTIVATION, Opcode.LOAD), *k.stream(Role.KV, Opcode.KV_READ),
                *v.stream(Role.KV, Opcode.KV_READ),
            ),
            out.stream(Role.ACTIVATION, Opcode.STORE, write=True),
            work(product, (count, seen, phase, lane), (q, k, v), ((out, last == 2),)),
            work(softmax, (count, last_key, lane), (), only=last == 1),
            outputs=np.flatnonzero(turn & (phase == 1)),
        )  # fmt: skip
        return setting.sequence(nest, self.d)

    def _block(self, row: int, end: int) -> tuple[Column, ...]:
        """Tiles of the rows `row`..`end`: (row, rows, key tile, phase, last of phase 1: 1, of phase 2: 2)."""
        offset, size = self.keys - self.queries, self.tile[1]
        stop = min(self.keys, (end - 1) // self.group + offset + 1) if self.causal else self.keys
        begin = max(0, row // self.group + offset - self.window + 1) if self.window else 0
        tiles = np.arange(begin // size, -(-stop // size))
        key, phase = np.concatenate((tiles, tiles)), np.repeat((0, 1), len(tiles))
        last = np.zeros(len(key), np.int64)
        last[len(tiles) - 1], last[-1] = 1, 2
        return np.full_like(key, row), np.full_like(key, end - row), key, phase, last


def decode_attention(d: Descriptor, block: Extended, site: Site) -> AttentionMacro:
    """DescriptorError when types, shapes, strides, the cache or the workspace are wrong."""
    own = block.own(Opcode.ATTN_T)
    kind = element_type(d, "type_in0", FLOATS)
    kind_kv = element_type(d, "type_kv", (*FLOATS, *SMALL_INTEGERS))
    kind_out = element_type(d, "type_out", dict.fromkeys((DataType.FP32, kind)))
    unused_type(d, "type_in1")
    unused_word(block, "m", "n", "k", "loop_order", "bias")
    unused_word(d, "param0")
    dimensions(own, "heads", "kv_heads", "head_dim", "q_len")
    heads, kv_heads, dim, queries = own["heads"], own["kv_heads"], own["head_dim"], own["q_len"]
    if heads % kv_heads:
        raise DescriptorError(TicketError.SHAPE, f"kv_heads {kv_heads} must divide heads {heads}")
    if own["attn_flags"] & ~_CAUSAL or own["attn_reserved"]:
        raise DescriptorError(TicketError.RESERVED, f"flags {own['attn_flags']:#x}: bits above [0] must be 0")
    keys, t_max = own["kv_len"], own["t_max"]
    if own["pos_addr"]:
        if keys or not t_max:
            raise DescriptorError(TicketError.SHAPE, f"with pos_addr kv_len {keys} must be 0 and t_max {t_max} not")
        keys = t_max
    causal = bool(own["attn_flags"] & _CAUSAL)
    if not keys or (t_max and keys > t_max) or ((causal or own["window"]) and keys < queries):
        raise DescriptorError(TicketError.SHAPE, f"kv_len {keys} with q_len {queries} and t_max {t_max}")
    check_cache(kind_kv, dim, kv_heads, t_max)
    q = strided("in0", d.in0_addr, queries, heads * dim, kind, block.ld0)
    out = strided("out", d.out_addr, queries, heads * dim, kind_out, block.ldo)
    if t_max:
        unused_word(block, "ld1")
    else:
        strided("in1", d.in1_addr, keys, kv_heads * dim, kind_kv, block.ld1)
    k, v = (Cache(address, kv_heads, t_max, dim, kind_kv, keys, block.ld1) for address in (d.in1_addr, block.in2))
    scale = scales(block, (kind_kv, kind_kv), kv_heads)
    zeros = (zero_point(block, 1, kind_kv), zero_point(block, 2, kind_kv))
    group = heads // kv_heads
    for name, least in (("tile_m", 1), ("tile_n", 1), ("tile_k", dim)):
        if getattr(d, name) < least:
            raise DescriptorError(TicketError.SHAPE, f"{name} {getattr(d, name)}: must be at least {least}")
    tile = (min(d.tile_m, queries * group), min(d.tile_n, keys))

    def demand(tile: Tile, buffers: Buffers) -> None:
        rows, columns = tile
        covered = min(queries, -(-rows // group) + 1)
        row = row_bytes(dim, kind_kv)
        buffers.read("in0", q, covered * row_bytes(group * dim, kind))
        buffers.read("in1", k.matrix, columns * row)
        buffers.read("in2", v.matrix, columns * row)
        buffers.write("out", out, covered * row_bytes(group * dim, kind_out))
        buffers.own("scores", rows * keys * SCORE_BYTES)

    count = 2 * kv_heads * tiles(queries * group, keys, tile=tile)
    reserved = reserve(d, block, site, tile, count, demand)
    return AttentionMacro(
        d, block, site, reserved, q, k, v, out, scale, zeros, np.frombuffer(block.per_op[24:28], "<f4")[0], group,
        queries, keys, causal, own["window"], own["pos_addr"], tile,
    )  # fmt: skip
