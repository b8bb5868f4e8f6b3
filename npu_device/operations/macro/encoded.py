"""Encoded keys and values in macro commands: parameter block, sizes known when a command starts, and transfers.

Codes pass the engine of the DMA; entries, metadata and the fp16 tail are separate transfers.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from npu_device.abi.errors import NpuDeviceError, TicketError
from npu_device.abi.kv_block import KV_HALF_SIZE, KvHalf
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.cost.plan import Column
from npu_device.cost.sequencer import Slots, Stream
from npu_device.kv_quant.codec import Parameters
from npu_device.kv_quant.codecs import CODECS
from npu_device.kv_quant.storage import EncodedCache, Sizes
from npu_device.memory.arrays import Bytes, Read
from npu_device.memory.operands import Matrix, make_matrix
from npu_device.memory.region import Region, make_region
from npu_device.operations.checks import DescriptorError
from npu_device.operations.kernels.elements import Values
from npu_device.operations.macro.base import values
from npu_device.operations.macro.tiles import Operands, Tiles
from npu_device.trace.events import VALUES, Role

ENGINE_BYTES = 64
"""Bytes of the scratchpad that a move between DRAM and the buffers of the engine touches."""


class FetchedHalf(NamedTuple):
    """Half a parameter block as the front end read it when it fetched a command."""

    policy: int = min(CODECS)
    table: int = 0
    """Bytes from there to the table of the codec; 0: it has none."""

    @classmethod
    def of(cls, data: bytes | None) -> "FetchedHalf":
        """Parse its bytes; a block that was not written yet, or names no codec, counts as the first codec's until the
        command starts."""
        if data is None:
            return cls()
        half = KvHalf.unpack(data)
        return cls(half.policy, half.table) if half.policy in CODECS else cls()


_NUMBERS = f"{min(CODECS)}..{max(CODECS)}"
UNWRITTEN = FetchedHalf()
"""Half a block that was not written yet."""


def half_region(address: int) -> Region:
    """Return the region of the words about keys, or about values."""
    return make_region(address, 1, KV_HALF_SIZE)


def table_region(cache: EncodedCache, half: int, table: int) -> Region | None:
    """Return the region of the table of a codec, `table` bytes after half a parameter block; None: without a table."""
    size = cache.codec.table_bytes(cache.heads, cache.head_dim)
    return make_region(half + table, 1, size) if size and table else None


def read_parameters(cache: EncodedCache, read: Read, address: int) -> Parameters | None:
    """Return the parameters in the half of a parameter block; None if it was not written yet, or for a run without
    values. DescriptorError: a wrong block."""
    data = read(half_region(address)).tobytes()
    if not any(data):
        return None
    half = KvHalf.unpack(data)
    location = f"{address:#x}"
    try:
        if half.policy not in CODECS:
            raise NpuDeviceError(f"policy {half.policy} at {location}: must be {_NUMBERS}")
        if CODECS[half.policy] is not cache.codec:
            raise NpuDeviceError(f"policy {half.policy} at {location}: was another one when the command was fetched")
        if half.no_values not in (0, 1):
            raise NpuDeviceError(f"no_values {half.no_values} at {location}: must be 0 or 1")
        if half.no_values:
            return None
        region = table_region(cache, address, half.table)
        if region is None and (half.table or cache.codec.table_bytes(cache.heads, cache.head_dim)):
            raise NpuDeviceError(
                f"table {half.table} at {location}: must be the distance of the codec's table; 0: none"
            )
        return cache.codec.parameters(half, b"" if region is None else read(region).tobytes(), location)
    except NpuDeviceError as error:
        raise DescriptorError(TicketError.KV_BLOCK, str(error)) from None


def require_parameters(cache: EncodedCache, read: Read, address: int) -> Parameters:
    """Read the parameters. DescriptorError: the block has not been written."""
    parameters = read_parameters(cache, read, address)
    if parameters is None:
        raise DescriptorError(
            TicketError.KV_BLOCK, f"policy 0 at {address:#x}: must be {_NUMBERS}, the block was not written yet"
        )
    return parameters


def read_tokens(cache: EncodedCache, read: Read, count: int, half: int) -> Values:
    """Return fp32 of the first tokens, (heads, tokens, D). DescriptorError if the stored bytes are no encoding."""
    parameters = require_parameters(cache, read, half)
    try:
        return cache.read(read, count, parameters).astype(np.float32)
    except NpuDeviceError as error:
        raise DescriptorError(TicketError.KV_DATA, str(error)) from None


def append_tokens(
    cache: EncodedCache, read: Read, first: int, rows: Values, half: int, with_stored: bool = False
) -> tuple[tuple[tuple[Region, Bytes], ...], Values]:
    """Return (writes, fp32 as they will be read) of tokens from `first` on, rows (tokens, C); `with_stored`:
    numbers of all tokens. DescriptorError."""
    parameters = require_parameters(cache, read, half)
    try:
        writes, latest = cache.append(read, first, rows, parameters)
        if with_stored:
            latest = np.concatenate((cache.decoded(read, first, parameters), latest), axis=1)
    except NpuDeviceError as error:
        raise DescriptorError(TicketError.KV_DATA, str(error)) from None
    return writes, latest.astype(np.float32)


def sizes(
    cache: EncodedCache, read: Read, old: int, new: int, tensor: Matrix | None, half: int, permille: int
) -> Sizes:
    """Return the sizes of the encoded tokens among `old` stored and `new` appended tokens, whose numbers `tensor` has.

    In a run without values the table of counts has been filled beforehand, for the new tokens too, or every thousand
    elements have as many entries as the codec assumes. DescriptorError: numbers that cannot be encoded.
    """
    parameters, coded = read_parameters(cache, read, half), cache.coded(old + new)
    try:
        if parameters is None:
            lengths = cache.lengths(read, coded)
            lengths = lengths if lengths.any() else cache.expected(coded, permille)
        elif tensor is None or not cache.chunks:
            lengths = cache.lengths(read, coded)
        else:
            lengths = cache.lengths_after(read, old, values(read, tensor).astype(np.float32), parameters)
    except NpuDeviceError as error:
        raise DescriptorError(TicketError.KV_DATA, str(error)) from None
    ends = np.zeros((coded + 1, cache.entry_streams), np.int64)
    np.cumsum(lengths, axis=0, out=ends[1:])
    return Sizes(ends)


class Tokens(NamedTuple):
    """Tokens that each tile of a nest moves, a column each."""

    head: Column
    coded: Column
    """First encoded token."""
    coded_count: Column
    waiting: Column
    """First token in the tail."""
    waiting_count: Column

    @classmethod
    def read(cls, cache: EncodedCache, stored: int, head: Column, first: Column, count: Column) -> "Tokens":
        """Return the tokens of a cache that has `stored` of them."""
        coded = cache.coded(stored)
        coded_count = np.clip(coded - first, 0, count)
        return cls(head, np.minimum(first, coded), coded_count, np.maximum(first, coded), count - coded_count)

    @classmethod
    def appended(cls, cache: EncodedCache, total: int, head: Column, first: Column, count: Column) -> "Tokens":
        """Return the tokens that are encoded, and that stay in the tail, when appended tokens make `total`."""
        codec = cache.codec
        begin, end = (np.maximum(0, at - codec.keep) // codec.group * codec.group for at in (first, first + count))
        waiting = np.maximum(first, cache.coded(total))
        return cls(head, begin, end - begin, waiting, np.maximum(0, first + count - waiting))


class Transfers:
    """Transfers of the streams of a cache, between DRAM and the buffers `slots`."""

    def __init__(
        self, of: Operands, slots: Slots, cache: EncodedCache, lengths: Sizes, word: str, *, write: bool,
        combine: bool = False, values: bool = False,
    ) -> None:  # fmt: skip
        """`word`: the operand of the extended block. `combine`: a buffer for each stream fills whole accesses, so that
        no access is widened for its neighbours. `values`: of a command that moves keys too."""
        self._of, self._slots, self._cache, self._lengths = of, slots, cache, lengths
        self._word, self._write = word, write
        self._aux = (Opcode.KV_APPEND if write else Opcode.KV_READ) | values * VALUES
        self._uncoded = Operands(of.slots, of.lane, {word: 1}) if combine else of

    def codes(self, tokens: Tokens, moves: Column, role: Role = Role.KV, *, early: bool = False) -> tuple[Stream, ...]:
        """Return the codes of the tiles `moves`."""
        cache, codec = self._cache, self._cache.codec
        matrix, group = codes_matrix(cache), codec.head_group(cache.heads)
        row, column = np.divmod(tokens.head, group)
        moved = moves[tokens.coded_count[moves] > 0]
        if self._write:  # all heads of a group are there at the same time
            moved = moved[column[moved] == 0]
        width = np.full_like(column, (group if self._write else 1) * cache.head_dim)
        extent = row * cache.t_max + tokens.coded, tokens.coded_count, column * cache.head_dim, width
        tiles = self._tiles(self._of, matrix, extent, moved)
        inside = ENGINE_BYTES if codec.tail and self._write else 0
        return tiles.stream(role, self._aux, write=self._write, early=early, passes=codec.passes, max_bytes=inside)

    def uncoded(self, tokens: Tokens, moves: Column) -> tuple[Stream, ...]:
        """Return entries, metadata and tail of the tiles `moves`, with the first head of each row."""
        return tuple(
            stream
            for tiles in (*self._entries(tokens, moves), *self._meta(tokens, moves), *self._tail(tokens, moves))
            for stream in tiles.stream(Role.KV, self._aux, write=self._write, early=self._write)
        )

    def table(self, region: Region | None, moves: Column) -> tuple[Stream, ...]:
        """Return the table that was made offline, before the first of the tiles `moves`."""
        if region is None or not len(moves):
            return ()
        zero = np.zeros_like(self._of.lane)
        matrix = make_matrix(region.address, 1, region.payload, DataType.UINT8)
        tiles = self._tiles(self._of, matrix, (zero, zero + 1, zero, zero + region.payload), moves[:1])
        return tiles.stream(Role.WEIGHT, Opcode.LOAD, max_bytes=ENGINE_BYTES)

    def pending(self, first: int, count: int, head: Column, moves: Column) -> tuple[Stream, ...]:
        """Return the tokens of the tail that the engine reads back to encode them."""
        if not count:
            return ()
        column = np.full_like(head, first)
        tokens = Tokens(head, column, np.zeros_like(head), column, np.full_like(head, count))
        read = Transfers(self._of, self._slots, self._cache, self._lengths, self._word, write=False)
        tails = read._tail(tokens, moves)
        return tuple(part for tiles in tails for part in tiles.stream(Role.KV, Opcode.KV_READ, max_bytes=ENGINE_BYTES))

    def _entries(self, tokens: Tokens, moves: Column) -> Iterator[Tiles]:
        cache, head = self._cache, tokens.head
        if "sparse" not in cache.streams:
            return
        stream = cache.streams["sparse"]
        share = cache.heads // stream.rows
        row = head // share
        at, size = self._lengths.between(row, tokens.coded, tokens.coded_count)
        matrix = make_matrix(cache.address("sparse"), stream.rows, cache.pitch(stream), DataType.UINT8)
        moved = moves[(head[moves] % share == 0) & (size[moves] > 0)]
        yield self._tiles(self._uncoded, matrix, (row, np.ones_like(row), at, size), moved)

    def _meta(self, tokens: Tokens, moves: Column) -> Iterator[Tiles]:
        cache, head = self._cache, tokens.head
        if "meta" not in cache.streams:
            return
        stream = cache.streams["meta"]
        share = cache.heads // stream.rows
        first = tokens.coded // stream.group
        groups = -(-(tokens.coded + tokens.coded_count) // stream.group) - first
        matrix = make_matrix(cache.address("meta"), stream.rows, cache.pitch(stream), DataType.UINT8)
        moved = moves[(head[moves] % share == 0) & (tokens.coded_count[moves] > 0)]
        extent = head // share, np.ones_like(head), first * stream.size, groups * stream.size
        yield self._tiles(self._uncoded, matrix, extent, moved)

    def _tail(self, tokens: Tokens, moves: Column) -> Iterator[Tiles]:
        """Yield rows of the ring, in two parts if it wraps."""
        cache, head = self._cache, tokens.head
        if "tail" not in cache.streams:
            return
        ring = cache.streams["tail"].groups(cache.t_max)
        matrix = make_matrix(cache.address("tail"), cache.heads * ring, cache.head_dim, DataType.FP16)
        slot = tokens.waiting % ring
        before = np.minimum(tokens.waiting_count, ring - slot)
        for at, count in ((slot, before), (np.zeros_like(slot), tokens.waiting_count - before)):
            extent = head * ring + at, count, np.zeros_like(head), np.full_like(head, cache.head_dim)
            yield self._tiles(self._uncoded, matrix, extent, moves[count[moves] > 0])

    def _tiles(self, of: Operands, matrix: Matrix, extent: tuple[Column, ...], moves: Column) -> Tiles:
        row, rows, column, columns = extent
        return of.tiles(self._word, matrix, row, rows, column, columns, moves, slots=self._slots)


def codes_matrix(cache: EncodedCache) -> Matrix:
    """Return the codes of a cache: a row per token of the heads whose codes are adjacent."""
    group = cache.codec.head_group(cache.heads)
    rows, columns = cache.heads // group * cache.t_max, group * cache.head_dim
    return make_matrix(cache.address("dense"), rows, columns, DataType.ENCODED, bits=cache.codec.bits)


def rows_of_tokens(
    of: Operands, slots: Slots | None, table: Matrix, row: Column, first: Column, count: Column,
    moves: Column, aux: int,
) -> tuple[Stream, ...]:  # fmt: skip
    """Return the transfers of scales of tokens: some columns of a row of their table for each of the tiles `moves`.
    `aux`: KV_APPEND or KV_READ."""
    if slots is None:
        return ()
    tiles = of.tiles("scale", table, row, np.ones_like(row), first, count, moves[count[moves] > 0], slots=slots)
    write = aux & 0xFF == Opcode.KV_APPEND
    return tiles.stream(Role.KV, aux, write=write, early=write)
