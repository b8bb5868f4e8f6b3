"""ATTN_T: out = softmax(Q K^T scale) V for heads that share K and V in groups (MHA, GQA). `param0`, f32: a bound of the
scores, which become cap * tanh(scores / cap); 0: none.

Q and out have a row per query with all heads next to each other; K is in1, V is in2, of `type_kv`. The queries are the
last positions of the keys: with `pos_addr` the first query is at t, and t + q_len keys are seen.

With flag [1] the command appends: the keys and values of the queries' own tokens are at `bias`, and `new_step` bytes
behind, in rows as those of Q. Attention takes them from there, as the cache will hold them, while KV_APPEND writes them
to the cache; nothing of them is read back (docs/bit-widths.md, R23).
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.extended import Epilogue, Extended
from npu_device.abi.kv_block import KV_HALF_SIZE
from npu_device.abi.opcodes import BITS, DataType, Eltwise, Opcode
from npu_device.cost.chained import alike
from npu_device.cost.plan import Column, Compute, Plan, Sight
from npu_device.cost.sequencer import Nest, Stream, lanes_of
from npu_device.kv_quant.storage import KvAccess, Sizes
from npu_device.memory.arrays import Bytes, Read, WriteSet
from npu_device.memory.bitwidth import expanded, expansion
from npu_device.memory.operands import FLOATS, Matrix, row_bytes
from npu_device.memory.region import Region
from npu_device.operations.checks import DescriptorError, element_type, nonzero, unused_type, unused_word
from npu_device.operations.kernels import elements
from npu_device.operations.kernels.attention import attention
from npu_device.operations.kernels.moves import dequantize, quantize
from npu_device.operations.limits import check_products
from npu_device.operations.macro.base import (
    Macro,
    Operand,
    Setting,
    lay_out,
    matrix_write,
    operand,
    position_operand,
    read_position,
    require_dram,
    values,
)
from npu_device.operations.macro.encoded import (
    FetchedHalf,
    Tokens,
    Transfers,
    append_tokens,
    read_tokens,
    rows_of_tokens,
    sizes,
)
from npu_device.operations.macro.epilogue import zero_point
from npu_device.operations.macro.kv import (
    Cache,
    append_scaled,
    check_cache,
    check_encoded,
    per_head,
    scale_rows,
    scales,
)
from npu_device.operations.macro.tiles import Operands, Tiles, in_place, work
from npu_device.operations.macro.workspace import Buffers, Site, tiles
from npu_device.operations.tile_form import SMALL_INTEGERS
from npu_device.trace.events import VALUES, Kind, Role

SCORE_BYTES = 4
NEW = ("new_keys", "new_values")
"""Buffers of the appended keys and values."""
_CAUSAL, _APPEND = 1, 2


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
    cap: np.float32
    """Soft cap of the scores; 0: none."""
    new: tuple[Matrix, Matrix] | None = None
    """Keys and values of the queries' tokens, which are appended to the caches; None: these have them already."""
    encoded_sizes: tuple[Sizes, Sizes] | None = None
    """Sizes of encoded keys and values, once the command has started."""

    @property
    def operands(self) -> tuple[Operand, ...]:
        writes = self.token_table is not None and self.new is not None
        scale = () if self.scale is None else (operand("scale", self.scale, written=writes),)
        caches = (("in1", self.k), ("in2", self.v))
        new = () if self.new is None else (
            *(operand(name, matrix) for name, matrix in zip(("new keys", "new values"), self.new, strict=True)),
            *(part for name, cache in caches for part in cache.operands(name, written=True)[:1]),
        )  # fmt: skip
        return (
            operand("in0", self.q), *(part for name, cache in caches for part in cache.operands(name)), *scale,
            *position_operand(self.pos_addr), *new, operand("out", self.out, written=True),
        )  # fmt: skip

    @property
    def token_table(self) -> Matrix | None:
        """Table of the scales of tokens."""
        return self.scale if self.block.epilogue & Epilogue.PER_TOKEN else None

    def start(self, read: Read) -> Self:
        if not self.pos_addr:
            return self
        attention = self.at(read_position(read, self.pos_addr, self.queries, self.k.t_max))
        if self.k.kind is not DataType.ENCODED:
            return attention
        return replace(attention, encoded_sizes=(attention._sizes(read, 0), attention._sizes(read, 1)))

    def _sizes(self, read: Read, side: int) -> Sizes:
        """Return the sizes of encoded keys (0) or values (1), with the new tokens."""
        cache = (self.k, self.v)[side]
        encoded, new_tokens = cache.encoded, 0 if self.new is None else self.queries
        assert encoded is not None
        tensor = None if self.new is None else self.new[side]
        return sizes(encoded, read, self.keys - new_tokens, new_tokens, tensor, cache.half, self.site.p_out_permille)

    @property
    def kv_accesses(self) -> tuple[KvAccess, ...]:
        new = 0 if self.new is None else self.queries
        caches = self.k.encoded, self.v.encoded
        first = max(0, self.keys - self.queries - self.window + 1) if self.window else 0
        return tuple(
            KvAccess(cache, self.keys, new, size, first)
            for cache, size in zip(caches, self.encoded_sizes or (), strict=False)
            if cache is not None
        )

    @property
    def sampled(self) -> Hashable:
        policies = (self.k.fetched.policy, self.v.fetched.policy) if self.encoded_sizes else ()
        return policies, tuple(part.digest for part in self.encoded_sizes or ())

    def at(self, position: int) -> Self:
        return replace(self, position=position, keys=position + self.queries)

    def compute(self, read: Read, accumulated: elements.Values | None) -> WriteSet:
        heads, dim = self.k.heads, self.k.head_dim
        of_heads = self.scale if self.token_table is None else None
        scale = (None, None) if of_heads is None else tuple(values(read, of_heads)[0].reshape(2, -1))
        (k, k_new), (v, v_new) = (self._read_cache(read, side, per_head(scale[side])) for side in (0, 1))
        rows = values(read, self.q).reshape(self.queries, heads, self.group, dim).transpose(1, 0, 2, 3)
        q = rows.reshape(heads, self.queries * self.group, dim)
        position = np.repeat(np.arange(self.queries) + self.keys - self.queries, self.group)
        result = attention(q, k, v, self.score_scale, position, self.causal, self.window, self.tile[1], self.cap)
        result = result.reshape(heads, self.queries, self.group, dim).transpose(1, 0, 2, 3)
        out = matrix_write(self.out, elements.to_float(result.reshape(self.queries, -1), self.out.kind))
        return WriteSet((out, *k_new, *v_new))

    def _read_cache(
        self, read: Read, side: int, scale: elements.Values | None
    ) -> tuple[elements.Values, tuple[tuple[Region, Bytes], ...]]:
        """Return all keys (0) or values (1) as numbers, and those that are written into the cache."""
        cache, zero = (self.k, self.v)[side], self.zeros[side]
        encoded = cache.encoded
        if encoded is not None:
            stored = self.keys - (0 if self.new is None else self.queries)
            if self.new is None:
                return read_tokens(encoded, read, stored, cache.half), ()
            appended = values(read, self.new[side]).astype(np.float32)
            writes, tokens = append_tokens(encoded, read, stored, appended, cache.half, with_stored=True)
            return tokens, writes
        if (table := self.token_table) is not None:
            return self._read_scaled(read, side, table)
        if self.new is None:
            return dequantize(cache.read(read, self.keys), scale, zero), ()
        rows, old = values(read, self.new[side]), self.keys - self.queries
        new_codes = rows.reshape(self.queries, cache.heads, cache.head_dim).transpose(1, 0, 2)
        if self.new[side].kind is not cache.kind:
            new_codes = quantize(new_codes, cache.kind, scale, zero)
        data = elements.encode(np.ascontiguousarray(new_codes).reshape(-1, cache.head_dim), cache.kind)
        all_codes = np.concatenate((cache.read(read, old), new_codes), axis=1) if old else new_codes
        return dequantize(all_codes, scale, zero), ((cache.rows(old, self.queries), data),)

    def _read_scaled(
        self, read: Read, side: int, table: Matrix
    ) -> tuple[elements.Values, tuple[tuple[Region, Bytes], ...]]:
        """Return the result of `_read_cache` for integers with a scale for each head and token."""
        cache = (self.k, self.v)[side]
        heads, old = cache.heads, self.keys - (0 if self.new is None else self.queries)
        codes, scale = np.zeros((heads, 0, cache.head_dim), np.int64), np.zeros((heads, 0), np.float32)
        if old:
            codes = cache.read(read, old)
            scale = read(scale_rows(table, side, heads, 0, old)).copy().view(np.float32).reshape(heads, old)
        if self.new is None:
            return dequantize(codes, scale[..., None], 0), ()
        appended, new_scale, writes = append_scaled(values(read, self.new[side]), cache, table, side, old, self.queries)
        codes, scale = np.concatenate((codes, appended), axis=1), np.concatenate((scale, new_scale), axis=1)
        return dequantize(codes, scale[..., None], 0), writes

    @property
    def parallelism(self) -> int:
        """KV heads, which take equally long; where there are fewer than engines, blocks of queries of each."""
        return self.k.heads * tiles(self.queries * self.group, tile=self.tile[:1])

    def plan(self, setting: Setting, lanes: int = 1) -> Plan:
        rows, masked = self.queries * self.group, setting.mask_skip != "none"
        blocks = [self._block(row, min(row + self.tile[0], rows), masked) for row in range(0, rows, self.tile[0])]
        table = [np.concatenate(column) for column in zip(*blocks, strict=True)]
        heads = self.k.heads
        head = np.repeat(np.arange(heads), len(table[0]))
        row, count, start, keys, is_new, phase, last = (np.tile(column, heads) for column in table)
        first = np.ones(len(row), bool)
        first[1:] = (row[1:] != row[:-1]) | (head[1:] != head[:-1])
        changed = np.ones(len(row), bool)
        changed[1:] = phase[1:] != phase[:-1]
        last_key = np.zeros(len(row), np.int64)
        ends = np.flatnonzero(last == 1)
        last_key[ends] = start[ends] + keys[ends] - start[np.flatnonzero(first)]
        lane = lanes_of(head if heads >= lanes else np.cumsum(first), lanes)
        query, dim = row // self.group, self.k.head_dim
        queries = (row + count - 1) // self.group - query + 1
        wide = np.full_like(row, dim)
        across = (head * self.group * dim, wide * self.group)
        of = Operands(self.reserved.slots(lanes), lane, self.alignments)
        q = of.tiles("in0", self.q, query, queries, *across, np.flatnonzero(first))
        out = of.tiles("out", self.out, query, queries, *across, np.flatnonzero(last == 2))

        def read_tiles(cache: Cache, name: str, use: int) -> Tiles:
            if cache.t_max:
                extent = (head * cache.t_max + start, keys, np.zeros_like(row), wide)
            else:
                extent = (start, keys, head * dim, wide)
            return of.tiles(name, cache.matrix, *extent, np.flatnonzero((phase == use) & (is_new == 0)))

        k, v = read_tiles(self.k, "in1", 0), read_tiles(self.v, "in2", 1)
        new, appended = self._append_tiles(of, head, row, is_new, phase)
        ahead, part = np.zeros_like(row), np.zeros_like(row)
        if setting.mask_skip:
            part = row % self.group
            ahead = alike(query + self.keys - self.queries - start, queries, keys, self.causal, self.window)
        scores, lane = of.slots["scores"], setting.bus.distinct(lane)
        aux = self.d.opcode | self.d.function << 8

        def product(shape: list[int], reads: tuple[Region, ...], writes: tuple[Region, ...]) -> Compute:
            size, depth, step, from_new, lane, ahead, part = shape
            sight = None
            if setting.mask_skip:
                sight = Sight(step == 0, depth, dim, ahead, part, self.group, self.causal, self.window)
            q_tile, k_tile, v_tile = reads[:3] if not from_new else (reads[0], *reads[3:])
            table = scores.region(lane, size * depth * SCORE_BYTES)
            bits = (BITS[self.q.kind], BITS[expanded(self.k.kind)])
            if step == 0:
                return Compute(Kind.TE, aux, size, depth, dim, *bits, 0, (q_tile, k_tile), (table,), sight=sight)
            return Compute(Kind.TE, aux, size, dim, depth, *bits, 0, (table, v_tile), writes, sight=sight)

        per_score = self.site.operations(Opcode.SOFTMAX)
        per_score += self.site.operations(Opcode.ELTWISE, Eltwise.TANH) if self.cap else 0

        def softmax(shape: list[int], reads: tuple[Region, ...], writes: tuple[Region, ...]) -> Compute:
            size, total, lane = shape
            table = (scores.region(lane, size * total * SCORE_BYTES),)
            operations = size * total * per_score
            return Compute(Kind.VE, aux, 0, 0, 0, 8 * SCORE_BYTES, 0, operations, table, table)

        def stored(cache: Cache, side: int) -> tuple[Stream, ...]:
            encoded, tile, name = cache.encoded, (k, v)[side], ("in1", "in2")[side]
            if encoded is not None and self.encoded_sizes is not None and tile.slots is not None:
                lengths = self.encoded_sizes[side]
                moved = Transfers(of, tile.slots, encoded, lengths, name, write=False, values=side == 1)
                old = self.keys - (0 if self.new is None else self.queries)
                tokens = Tokens.read(encoded, old, head, start, keys)
                parts = moved.codes(tokens, tile.moves), moved.uncoded(tokens, tile.moves)
                phase_tiles = np.flatnonzero(phase == side)
                return *parts[0], *parts[1], *moved.table(cache.table, phase_tiles)
            aux = Opcode.KV_READ | side * VALUES
            streams = tile.stream(Role.KV, aux)
            if (table := self.token_table) is not None:
                row = head + side * heads
                streams += rows_of_tokens(of, tile.slots, table, row, start, keys, tile.moves, aux)
            return streams

        nest = Nest(
            of.lane,
            (
                *q.stream(Role.ACTIVATION, Opcode.LOAD), *stored(self.k, 0), *stored(self.v, 1),
                *(stream for tensor in new for stream in tensor.stream(Role.ACTIVATION, Opcode.LOAD)),
            ),
            (*out.stream(Role.ACTIVATION, Opcode.STORE, write=True), *appended),
            work(
                setting, product, (count, keys, phase, is_new, lane, ahead, part), (q, k, v, *new), ((out, last == 2),)
            ),
            work(setting, softmax, (count, last_key, lane), (), only=last == 1),
            outputs=np.flatnonzero(changed & (phase == 1)),
        )  # fmt: skip
        return setting.sequence(nest, self.d)

    def _append_tiles(
        self, of: Operands, head: Column, row: Column, is_new: Column, phase: Column
    ) -> tuple[list[Tiles], list[Stream]]:
        """Return the tiles of the new keys and values, and their way into the caches, once for each head: there is
        nothing to compute before it."""
        read, written = list[Tiles](), list[Stream]()
        if self.new is None:
            return read, written
        old, dim, zero = self.keys - self.queries, self.k.head_dim, np.zeros_like(head)
        count, wide = np.full_like(head, self.queries), np.full_like(head, dim)
        for use, (matrix, cache) in enumerate(zip(self.new, (self.k, self.v), strict=True)):
            new_tiles, name = (is_new == 1) & (phase == use), NEW[use]
            source = of.tiles(name, matrix, zero, count, head * dim, wide, np.flatnonzero(new_tiles), word="bias")
            slots, word = source.slots or in_place(matrix), ("in1", "in2")[use]
            extent = (head * cache.t_max + old, count, zero, wide)
            once = np.flatnonzero(new_tiles & (row == 0))
            rows = of.tiles(word, cache.matrix, *extent, once, slots=slots)
            read.append(source)
            encoded = cache.encoded
            if encoded is not None and self.encoded_sizes is not None:
                moved = Transfers(of, slots, encoded, self.encoded_sizes[use], word, write=True,
                                  combine=self.site.write_combine, values=use == 1)  # fmt: skip
                tokens = Tokens.appended(encoded, self.keys, head, zero + old, count)
                written += (*moved.codes(tokens, once, early=True), *moved.uncoded(tokens, once))
                continue
            aux = Opcode.KV_APPEND | use * VALUES
            written += rows.stream(Role.KV, aux, write=True, early=True)
            if (table := self.token_table) is not None:
                line = head + use * self.k.heads
                written += rows_of_tokens(of, slots, table, line, zero + old, count, once, aux)
        return read, written

    def _block(self, row: int, end: int, masked: bool) -> tuple[Column, ...]:
        """Return the tiles of the rows `row`..`end`: (row, rows, first key, keys, whether they are new, phase, last
        of phase 1: 1, of phase 2: 2). `masked`: without tiles that no row sees."""
        new = 0 if self.new is None else self.queries
        offset, size, old = self.keys - self.queries, self.tile[1], self.keys - new
        stop = min(self.keys, (end - 1) // self.group + offset + 1) if self.causal and masked else self.keys
        begin = max(0, row // self.group + offset - self.window + 1) if self.window and masked else 0
        start = np.arange(begin // size, -(-min(stop, old) // size)) * size
        keys, is_new = np.minimum(size, old - start), np.zeros_like(start)
        if new:
            start, keys, is_new = np.append(start, old), np.append(keys, new), np.append(is_new, 1)
        count = len(start)
        last = np.zeros(2 * count, np.int64)
        last[count - 1], last[-1] = 1, 2
        start, keys, is_new = (np.tile(column, 2) for column in (start, keys, is_new))
        phase = np.repeat((0, 1), count)
        return np.full_like(start, row), np.full_like(start, end - row), start, keys, is_new, phase, last


def decode_attention(d: Descriptor, block: Extended, site: Site) -> AttentionMacro:
    """Decode ATTN_T. DescriptorError when types, shapes, strides, the cache or the workspace are wrong."""
    words = block.words(Opcode.ATTN_T)
    kind = element_type(d, "type_in0", FLOATS)
    kind_kv = element_type(d, "type_kv", (*FLOATS, *SMALL_INTEGERS, DataType.ENCODED))
    kind_out = element_type(d, "type_out", dict.fromkeys((DataType.FP32, kind)))
    unused_word(block, "m", "n", "k", "loop_order")
    cap = np.frombuffer(d.param0.to_bytes(4, "little"), "<f4")[0]
    if not 0 <= cap < np.inf:
        raise DescriptorError(TicketError.RESERVED, f"param0 {d.param0:#x}: must be a bound of scores, f32, 0: none")
    nonzero(words, "heads", "kv_heads", "head_dim", "q_len")
    heads, kv_heads, dim, queries = words["heads"], words["kv_heads"], words["head_dim"], words["q_len"]
    if heads % kv_heads:
        raise DescriptorError(TicketError.SHAPE, f"kv_heads {kv_heads} must divide heads {heads}")
    if words["attn_flags"] & ~(_CAUSAL | _APPEND):
        raise DescriptorError(TicketError.RESERVED, f"flags {words['attn_flags']:#x}: bits above [1] must be 0")
    keys, t_max = words["kv_len"], words["t_max"]
    if words["pos_addr"]:
        if keys or not t_max:
            raise DescriptorError(TicketError.SHAPE, f"with pos_addr kv_len {keys} must be 0 and t_max {t_max} not")
        keys = t_max
    causal = bool(words["attn_flags"] & _CAUSAL)
    if not keys or (t_max and keys > t_max) or ((causal or words["window"]) and keys < queries):
        raise DescriptorError(TicketError.SHAPE, f"kv_len {keys} with q_len {queries} and t_max {t_max}")
    check_cache(kind_kv, dim, kv_heads, t_max)
    q = lay_out("in0", d.in0_addr, queries, heads * dim, kind, block.ld0)
    out = lay_out("out", d.out_addr, queries, heads * dim, kind_out, block.ldo)
    if not t_max:
        lay_out("in1", d.in1_addr, keys, kv_heads * dim, kind_kv, block.ld1)
    k, v = (
        Cache(
            address,
            kv_heads,
            t_max,
            dim,
            kind_kv,
            keys,
            block.ld1,
            block.scale + side * KV_HALF_SIZE,
            FetchedHalf.of(site.kv_halves[side]),
        )
        for side, address in enumerate((d.in1_addr, block.in2))
    )
    check_encoded(block, words["pos_addr"], k)
    new = _new_rows(d, block, site, (kind, kind_kv), (k, v), queries)
    scale = scales(block, (kind_kv, kind_kv), kv_heads, t_max)
    zeros = (zero_point(block, 1, kind_kv), zero_point(block, 2, kind_kv))
    check_products(site.limits, 2 * heads * queries * keys * dim)
    group = heads // kv_heads
    for name, minimum in (("tile_m", 1), ("tile_n", 1), ("tile_k", dim)):
        if getattr(d, name) < minimum:
            raise DescriptorError(TicketError.SHAPE, f"{name} {getattr(d, name)}: must be at least {minimum}")
    tile = (min(d.tile_m, queries * group), min(d.tile_n, keys))
    count = 2 * kv_heads * tiles(queries * group, tile=tile[:1]) * (tiles(keys, tile=tile[1:]) + (new is not None))
    buffers, (rows, columns) = Buffers(d, site, count), tile
    covered = min(queries, -(-rows // group) + 1)
    row = row_bytes(dim, kind_kv) * expansion(kind_kv)
    buffers.read("in0", q, covered * row_bytes(group * dim, kind))
    buffers.read("in1", k.matrix, columns * row)
    buffers.read("in2", v.matrix, columns * row)
    for name, matrix in zip(NEW, new or (), strict=False):
        buffers.read(name, matrix, queries * row_bytes(dim, matrix.kind))
    buffers.write("out", out, covered * row_bytes(group * dim, kind_out))
    buffers.add_private("scores", rows * keys * SCORE_BYTES)
    reserved = buffers.reserve(block)
    return AttentionMacro(
        d, block, site, reserved, q, k, v, out, scale, zeros, np.frombuffer(block.per_op[24:28], "<f4")[0], group,
        queries, keys, causal, words["window"], words["pos_addr"], tile, cap, new,
    )  # fmt: skip


def _new_rows(
    d: Descriptor, block: Extended, site: Site, kinds: tuple[DataType, DataType], caches: tuple[Cache, Cache],
    queries: int,
) -> tuple[Matrix, Matrix] | None:  # fmt: skip
    """Return keys and values of the queries' own tokens if the command appends them. DescriptorError."""
    words = block.words(Opcode.ATTN_T)
    cache = caches[0]
    if not words["attn_flags"] & _APPEND:
        unused_type(d, "type_in1")
        unused_word(block, "bias", *(("ld1",) if cache.t_max else ()))
        if words["new_step"]:
            raise DescriptorError(TicketError.RESERVED, f"new_step {words['new_step']}: must be 0 without flag [1]")
        return None
    if not cache.t_max:
        raise DescriptorError(TicketError.SHAPE, "t_max 0: there is no cache to append to (flag [1])")
    kind = element_type(d, "type_in1", dict.fromkeys(element for element in kinds if element is not DataType.ENCODED))
    for name, target in zip(("in1", "in2"), caches, strict=True):
        require_dram(site, name, target.matrix)
    check_cache(kind, cache.head_dim, cache.heads, 0)
    first, second = (
        lay_out(name, at, queries, cache.heads * cache.head_dim, kind, block.ld1)
        for name, at in (("new keys", block.bias), ("new values", max(0, block.bias + words["new_step"])))
    )
    return first, second
