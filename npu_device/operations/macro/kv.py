"""KV_APPEND and KV_READ: rows of tokens into a cache [heads, t_max, D] and out of it (docs/bit-widths.md, "KV cache").

The tensor has a row per token with all KV adjacent heads. Appending begins at the position t that is read at
the start, or at 0 without `pos_addr`; reading takes the first `kv_len` tokens. Elements are converted on the way.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import NpuDeviceError, TicketError
from npu_device.abi.extended import Epilogue, Extended
from npu_device.abi.kv_block import KV_HALF_SIZE
from npu_device.abi.opcodes import BITS, Appended, DataType, Opcode
from npu_device.cost.plan import Plan
from npu_device.cost.sequencer import Nest
from npu_device.kv_quant.codec import KvCodec
from npu_device.kv_quant.codecs import CODECS
from npu_device.kv_quant.storage import EncodedCache, KvAccess, Sizes
from npu_device.memory.arrays import Bytes, Read, WriteSet
from npu_device.memory.bitwidth import expansion
from npu_device.memory.kv import SCALE_BYTES
from npu_device.memory.operands import FLOATS, INTEGERS, Matrix, make_matrix, row_bytes
from npu_device.memory.region import Region
from npu_device.operations.checks import DescriptorError, element_type, nonzero, unused_type, unused_word
from npu_device.operations.kernels import elements
from npu_device.operations.kernels.elements import Values, decode
from npu_device.operations.kernels.moves import dequantize, quantize
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
    UNWRITTEN,
    FetchedHalf,
    Tokens,
    Transfers,
    append_tokens,
    codes_matrix,
    half_region,
    rows_of_tokens,
    sizes,
    table_region,
)
from npu_device.operations.macro.epilogue import zero_point
from npu_device.operations.macro.tiles import Operands, in_place
from npu_device.operations.macro.workspace import Buffers, Site, tile_size, tiles
from npu_device.operations.tile_form import SMALL_INTEGERS
from npu_device.trace.events import Role


@dataclass(frozen=True)
class Cache:
    """K or V: per head rows of `head_dim` elements, token after token.

    A cache [heads, t_max, D] (docs/bit-widths.md, R15), or with t_max 0 a tensor of `tokens` rows of adjacent heads,
    `stride` bytes apart.
    """

    address: int
    heads: int
    t_max: int
    head_dim: int
    kind: DataType
    tokens: int
    stride: int
    half: int = 0
    """Address of this side's half of the parameter block, of encoded elements."""
    fetched: FetchedHalf = UNWRITTEN
    """Half of the parameter block when the command was fetched."""

    @property
    def encoded(self) -> EncodedCache | None:
        """The cache as a cache of encoded elements; None for other types."""
        if self.kind is not DataType.ENCODED:
            return None
        return EncodedCache(self.address, self.heads, self.t_max, self.head_dim, self.codec)

    @property
    def codec(self) -> KvCodec:
        """Codec of encoded elements."""
        return CODECS[self.fetched.policy]

    @property
    def table(self) -> Region | None:
        """Table of the codec of encoded elements; None: it has none."""
        encoded = self.encoded
        return None if encoded is None else table_region(encoded, self.half, self.fetched.table)

    def operands(self, name: str, written: bool = False) -> tuple[Operand, ...]:
        """Return all memory of the cache, and its half of the parameter block."""
        encoded = self.encoded
        if encoded is None:
            return (operand(name, self.matrix, written),)
        table = self.table
        return (
            Operand(name, encoded.region, 1, written),
            Operand(f"{name} parameters", half_region(self.half), 2, moves=False),
            *(() if table is None else (Operand(f"{name} table", table, 2),)),
        )

    @property
    def matrix(self) -> Matrix:
        """Return the whole cache as a matrix: a row per token of a head, or per token."""
        encoded = self.encoded
        if encoded is not None:
            return codes_matrix(encoded)
        if self.t_max:
            return make_matrix(self.address, self.heads * self.t_max, self.head_dim, self.kind)
        return make_matrix(self.address, self.tokens, self.heads * self.head_dim, self.kind, self.stride)

    def rows(self, first: int, count: int) -> Region:
        """Return the region of tokens `first`..`first + count` of all heads of a cache [heads, t_max, D]."""
        row = row_bytes(self.head_dim, self.kind)
        return Region(self.address + first * row, self.heads, count * row, self.t_max * row)

    def read(self, read: Read, count: int) -> Values:
        """Return the elements of the first `count` tokens, shape (heads, count, D)."""
        if not self.t_max:
            wide = values(read, self.matrix)[:count]
            return wide.reshape(count, self.heads, self.head_dim).transpose(1, 0, 2)
        data = read(self.rows(0, count))
        return decode(data, self.kind, self.heads * count, self.head_dim).reshape(self.heads, count, self.head_dim)


def check_cache(kind: DataType, head_dim: int, heads: int, t_max: int) -> None:
    """Check that rows end at a byte: adjacent heads cannot share a byte."""
    if not t_max and heads > 1 and row_bytes(head_dim, kind) * 8 != head_dim * row_bytes(8, kind):
        raise DescriptorError(TicketError.SHAPE, f"head_dim {head_dim}: heads of {kind.name} must end at a byte")


def check_encoded(block: Extended, pos_addr: int, cache: Cache) -> None:
    """Check that encoded caches have token positions, chunks of whole rows, and an aligned parameter block."""
    if cache.kind is not DataType.ENCODED:
        return
    if not cache.t_max or not pos_addr:
        raise DescriptorError(TicketError.SHAPE, "encoded KV: t_max and pos_addr must not be 0")
    if block.scale % KV_HALF_SIZE:
        raise DescriptorError(TicketError.MISALIGNED, f"scale {block.scale:#x}: must be a multiple of {KV_HALF_SIZE}")
    try:
        EncodedCache(cache.address, cache.heads, cache.t_max, cache.head_dim, cache.codec)
    except NpuDeviceError as error:
        raise DescriptorError(TicketError.SHAPE, str(error)) from None


def scales(block: Extended, kinds: tuple[DataType, ...], heads: int, t_max: int = 0) -> Matrix | None:
    """Return the scales: f32 per tensor, or per tensor and head (epilogue bit 7), or per tensor, head and token (bit
    8), a row for each head; integers require them (bit 6)."""
    word = block.epilogue
    if word & ~(Epilogue.REQUANTIZE | Epilogue.PER_CHANNEL | Epilogue.PER_TOKEN):
        raise DescriptorError(TicketError.RESERVED, f"epilogue {word:#x}: only bits 6 to 8 have a meaning here")
    needed = any(kind in INTEGERS for kind in kinds)
    if word & Epilogue.PER_TOKEN:
        if word != Epilogue.PER_TOKEN | Epilogue.REQUANTIZE or not needed or not t_max or any(block.zero_point):
            raise DescriptorError(
                TicketError.RESERVED,
                "scales of each token (epilogue bit 8): with bit 6 and t_max, of integers without zero points",
            )
        return make_matrix(block.scale, heads * len(kinds), t_max, DataType.FP32)
    if DataType.ENCODED in kinds:
        if word != Epilogue.REQUANTIZE or not block.scale:
            raise DescriptorError(
                TicketError.RESERVED, "encoded KV: scale names their parameter block (epilogue bit 6)"
            )
        return None
    if needed != bool(word & Epilogue.REQUANTIZE):
        raise DescriptorError(
            TicketError.DATA_TYPE, "KV of integers need a scale (epilogue bit 6), others must not have one"
        )
    if not needed:
        if word or block.scale:
            raise DescriptorError(TicketError.RESERVED, "scale without integers to scale")
        return None
    return make_matrix(block.scale, 1, (heads if word & Epilogue.PER_CHANNEL else 1) * len(kinds), DataType.FP32)


def per_head(scale: Values | None) -> Values | None:
    """Reshape a scale, or scales per head, for elements (heads, rows, D)."""
    return None if scale is None else scale.reshape(-1, 1, 1)


def token_scales(rows: Values, kind: DataType) -> Values:
    """Return f32 scales of each head and token of rows (heads, tokens, D): the maximum becomes the largest integer."""
    top = np.float32((1 << BITS[kind] - 1) - 1)
    scales: Values = np.maximum(np.abs(rows.astype(np.float32)).max(axis=2), np.float32(1e-6)) / top
    return scales


def scale_rows(table: Matrix, side: int, heads: int, first: int, count: int) -> Region:
    """Return the region of scales of some tokens of all heads, of keys (0) or values (1)."""
    stride = table.columns * SCALE_BYTES
    address = table.region.address + side * heads * stride + first * SCALE_BYTES
    return Region(address, heads, count * SCALE_BYTES, stride)


def append_scaled(
    rows: Values, cache: Cache, table: Matrix, side: int, first: int, count: int
) -> tuple[Values, Values, tuple[tuple[Region, Bytes], ...]]:
    """Scale and quantize rows (tokens, heads x D) of keys (0) or values (1).

    Returns integers (heads, tokens, D), scales (heads, tokens), and the writes to cache and table.
    """
    rows = rows.reshape(count, cache.heads, cache.head_dim).transpose(1, 0, 2)
    scale = token_scales(rows, cache.kind)
    codes = quantize(rows, cache.kind, scale[..., None], 0)
    data = elements.encode(np.ascontiguousarray(codes).reshape(-1, cache.head_dim), cache.kind)
    table_rows = scale_rows(table, side, cache.heads, first, count)
    return codes, scale, ((cache.rows(first, count), data), (table_rows, scale.reshape(-1).view(np.uint8)))


@dataclass(frozen=True, eq=False)
class KvMacro(Macro):
    """Move between `tensor` and `cache`."""

    tensor: Matrix
    cache: Cache
    scale: Matrix | None
    zero: int
    append: bool
    tokens: int
    pos_addr: int
    tile: int
    encoded_sizes: Sizes | None = None
    """Sizes of encoded tokens, once the command has started."""

    @property
    def operands(self) -> tuple[Operand, ...]:
        names = ("in0", "out") if self.append else ("out", "in0")
        scale = () if self.scale is None else (operand("scale", self.scale, written=self.token_table is not None),)
        return (
            operand(names[0], self.tensor, written=not self.append),
            *self.cache.operands(names[1], written=self.append),
            *scale,
            *position_operand(self.pos_addr),
        )

    @property
    def token_table(self) -> Matrix | None:
        """Table of the scales of tokens, which the command makes."""
        return self.scale if self.block.epilogue & Epilogue.PER_TOKEN else None

    def start(self, read: Read) -> Self:
        if not self.pos_addr:
            return self
        macro = self.at(read_position(read, self.pos_addr, self.tokens, self.cache.t_max))
        encoded = self.cache.encoded
        if encoded is None:
            return macro
        encoded_sizes = sizes(
            encoded, read, macro.position or 0, self.tokens, self.tensor, self.cache.half, self.site.p_out_permille
        )
        return replace(macro, encoded_sizes=encoded_sizes)

    @property
    def kv_accesses(self) -> tuple[KvAccess, ...]:
        encoded = self.cache.encoded
        if encoded is None or self.encoded_sizes is None:
            return ()
        return (KvAccess(encoded, (self.position or 0) + self.tokens, self.tokens, self.encoded_sizes),)

    @property
    def sampled(self) -> Hashable:
        return None if self.encoded_sizes is None else (self.cache.fetched.policy, self.encoded_sizes.digest)

    def compute(self, read: Read, accumulated: elements.Values | None) -> WriteSet:
        cache, tensor = self.cache, self.tensor
        if (table := self.token_table) is not None:
            return WriteSet(append_scaled(values(read, tensor), cache, table, 0, self.position or 0, self.tokens)[2])
        scale = per_head(None if self.scale is None else values(read, self.scale)[0])
        encoded = cache.encoded
        if encoded is not None:
            rows = values(read, tensor).astype(np.float32)
            return WriteSet(append_tokens(encoded, read, self.position or 0, rows, cache.half)[0])
        if self.append:
            rows = values(read, tensor).reshape(self.tokens, cache.heads, cache.head_dim).transpose(1, 0, 2)
            if tensor.kind is not cache.kind:
                rows = quantize(rows, cache.kind, scale, self.zero)
            data = elements.encode(np.ascontiguousarray(rows).reshape(-1, cache.head_dim), cache.kind)
            return WriteSet(((cache.rows(self.position or 0, self.tokens), data),))
        rows = cache.read(read, self.tokens)
        if tensor.kind is not cache.kind:
            rows = elements.to_float(dequantize(rows, scale, self.zero), tensor.kind)
        result = np.ascontiguousarray(rows.transpose(1, 0, 2)).reshape(self.tokens, -1)
        return WriteSet((matrix_write(tensor, result),))

    def plan(self, setting: Setting, lanes: int = 1) -> Plan:
        cache, dim = self.cache, self.cache.head_dim
        count = -(-self.tokens // self.tile)
        head = np.repeat(np.arange(cache.heads), count)
        token = np.tile(np.arange(count) * self.tile, cache.heads)
        rows = np.minimum(self.tile, self.tokens - token)
        wide, zero = np.full_like(head, dim), np.zeros_like(head)
        of = Operands(self.reserved.slots(1), zero, self.alignments)
        words = ("in0", "out") if self.append else ("out", "in0")
        inside = of.tiles("staging", self.tensor, token, rows, head * dim, wide, word=words[0])
        slots = of.slots.get("staging") or in_place(self.tensor)
        first = head * cache.t_max + (self.position or 0) + token
        outside = of.tiles(words[1], cache.matrix, first, rows, zero, wide, slots=slots)
        role = Role.ACTIVATION if self.append and self.d.function == Appended.ACTIVATION else Role.KV
        encoded = cache.encoded
        streams = () if encoded is not None else outside.stream(role, Opcode(self.d.opcode), write=self.append)
        other = inside.stream(Role.ACTIVATION, Opcode.LOAD if self.append else Opcode.STORE, write=not self.append)
        if encoded is not None and self.encoded_sizes is not None:
            old, total = self.position or 0, (self.position or 0) + self.tokens
            combine = self.site.write_combine
            moved = Transfers(of, slots, encoded, self.encoded_sizes, words[1], write=True, combine=combine)
            tokens = Tokens.appended(encoded, total, head, old + token, rows)
            streams = (*moved.codes(tokens, of.all_tiles, role), *moved.uncoded(tokens, of.all_tiles))
            begin = encoded.coded(old)
            flushed = old - begin if encoded.coded(total) > begin else 0
            other += moved.pending(begin, flushed, head, np.flatnonzero(token == 0))
            other += moved.table(cache.table, of.all_tiles)
        if (table := self.token_table) is not None:
            columns = (self.position or 0) + token
            streams += rows_of_tokens(of, slots, table, head, columns, rows, of.all_tiles, Opcode.KV_APPEND)
        reads, writes = (other, streams) if self.append else (streams, other)
        return setting.sequence(Nest(of.lane, reads, writes), self.d)


def decode_kv(d: Descriptor, block: Extended, site: Site) -> KvMacro:
    """Decode KV_APPEND or KV_READ. DescriptorError when types, shapes, strides or the cache are wrong."""
    append = d.opcode == Opcode.KV_APPEND
    words = block.words(Opcode(d.opcode))
    kind_kv = element_type(d, "type_kv", (*FLOATS, *SMALL_INTEGERS, *((DataType.ENCODED,) if append else ())))
    other = () if kind_kv is DataType.ENCODED else (kind_kv,)
    kind = element_type(d, "type_in0" if append else "type_out", dict.fromkeys((*FLOATS, *other)))
    unused_type(d, "type_in1", "type_out" if append else "type_in0")
    unused_word(d, "param0", "in1_addr", "tile_n", "tile_k")
    unused_word(block, "m", "n", "k", "loop_order", "engines", "in2", "bias", "ld1", "ldo" if append else "ld0")
    nonzero(words, "kv_heads", "head_dim", "t_max", "q_len" if append else "kv_len")
    unused_word(words, "heads", "attn_flags", "window", "attn_scale", "new_step", "kv_len" if append else "q_len")
    if words["pos_addr"] and not append:
        raise DescriptorError(TicketError.RESERVED, "pos_addr: KV_READ takes kv_len tokens from the start")
    heads, dim, t_max = words["kv_heads"], words["head_dim"], words["t_max"]
    tokens = words["q_len"] if append else words["kv_len"]
    if tokens > t_max:
        raise DescriptorError(TicketError.POSITION, f"{tokens} tokens, t_max is {t_max}")
    check_cache(kind, dim, heads, 0)
    address, distance = (d.in0_addr, block.ld0) if append else (d.out_addr, block.ldo)
    tensor = lay_out("in0" if append else "out", address, tokens, heads * dim, kind, distance)
    cache = Cache(
        d.out_addr if append else d.in0_addr, heads, t_max, dim, kind_kv, t_max, 0, block.scale,
        FetchedHalf.of(site.kv_halves[0]),
    )  # fmt: skip
    check_encoded(block, words["pos_addr"], cache)
    require_dram(site, "out" if append else "in0", cache.matrix)
    scale = scales(block, () if kind is kind_kv else (kind_kv,), heads, t_max if append else 0)
    size = tile_size(d, "tile_m", tokens)
    buffers = Buffers(d, site, heads * tiles(tokens, tile=(size,)))
    buffers.read("staging", tensor, size * max(row_bytes(dim, kind), row_bytes(dim, kind_kv) * expansion(kind_kv)))
    reserved, zero = buffers.reserve(block), zero_point(block, 3 if append else 0, kind_kv)
    return KvMacro(d, block, site, reserved, tensor, cache, scale, zero, append, tokens, words["pos_addr"], size)
