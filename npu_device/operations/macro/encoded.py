"""Encoded keys and values in macro commands: parameter block, sizes known when a command starts, and transfers.

Nibbles move like elements of 4 bits; sparse entries and metadata are transfers of their own beside them.
"""

import numpy as np

from npu_device.abi.errors import NpuDeviceError, TicketError
from npu_device.abi.kv_block import KV_HALF_SIZE
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.cost.plan import Column
from npu_device.cost.sequencer import Slots, Stream
from npu_device.kv_quant import oaken
from npu_device.kv_quant.oaken import META_BYTES
from npu_device.kv_quant.storage import EncodedCache, Parameters, Sizes
from npu_device.memory.arrays import Bytes, Read
from npu_device.memory.operands import Matrix, make_matrix
from npu_device.memory.region import Region, make_region
from npu_device.operations.checks import DescriptorError
from npu_device.operations.kernels.elements import Values
from npu_device.operations.macro.tiles import Operands, Tiles
from npu_device.trace.events import Role


def half_region(address: int) -> Region:
    """Of the words about keys, or about values."""
    return make_region(address, 1, KV_HALF_SIZE)


def parameters(read: Read, address: int) -> Parameters | None:
    """What the half of a parameter block says; None where it is all zeros. DescriptorError: a wrong one."""
    data = read(half_region(address)).tobytes()
    if not any(data):
        return None
    try:
        return Parameters.unpack(data, f"{address:#x}")
    except NpuDeviceError as error:
        raise DescriptorError(TicketError.KV_BLOCK, str(error)) from None


def required(read: Read, address: int) -> Parameters:
    """The same; a block of zeros is wrong, too."""
    found = parameters(read, address)
    if found is None:
        raise DescriptorError(
            TicketError.KV_BLOCK, f"policy 0 at {address:#x}: must be 1, the block was not written yet"
        )
    return found


def read_tokens(cache: EncodedCache, read: Read, count: int, half: int) -> Values:
    """fp32 of the first tokens, (heads, tokens, D). DescriptorError where what is stored is no encoding."""
    found = required(read, half)
    try:
        return cache.read(read, count, found).astype(np.float32)
    except NpuDeviceError as error:
        raise DescriptorError(TicketError.KV_DATA, str(error)) from None


def append_tokens(
    cache: EncodedCache, read: Read, first: int, rows: Values, half: int
) -> tuple[tuple[tuple[Region, Bytes], ...], Values]:
    """(writes, fp32 of what will be read) of tokens behind the first ones, rows (tokens, C). DescriptorError."""
    found = required(read, half)
    try:
        writes, decoded = cache.append(read, first, rows, found)
    except NpuDeviceError as error:
        raise DescriptorError(TicketError.KV_DATA, str(error)) from None
    return writes, decoded.astype(np.float32)


def sizes(cache: EncodedCache, read: Read, old: int, new: int, rows: Values | None, half: int, permille: int) -> Sizes:
    """Of `old` tokens that are stored, and of `new` ones behind them whose numbers `rows` has.

    In a run without values, where the parameter block is empty, the table of counts has been filled beforehand, for the
    new tokens too, or every thousand elements have `permille` outliers. DescriptorError: numbers that cannot be
    encoded.
    """
    found = parameters(read, half)
    try:
        if found is None:
            lengths = cache.lengths(read, old + new)
            lengths = lengths if lengths.any() else cache.expected(old + new, permille)
        elif rows is None:
            lengths = cache.lengths(read, old)
        else:
            made = oaken.encode(rows, found.thresholds, found.code)
            lengths = np.concatenate((cache.lengths(read, old), cache.stream_bytes(made.counts)))
    except NpuDeviceError as error:
        raise DescriptorError(TicketError.KV_DATA, str(error)) from None
    ends = np.zeros((old + new + 1, cache.streams), np.int64)
    np.cumsum(lengths, axis=0, out=ends[1:])
    return Sizes(ends)


def beside(
    of: Operands, name: str, slots: Slots | None, cache: EncodedCache, known: Sizes | None, head: Column,
    first: Column, count: Column, moves: Column, word: str, write: bool, combine: bool = False,
) -> tuple[Stream, ...]:  # fmt: skip
    """The transfers beside those of nibbles, of the tiles `moves`: entries with the first head of their stream,
    metadata with the first head of all. Columns: of each tile its head, first token and tokens. `combine`: a buffer for
    each stream fills whole accesses, so that none is widened for what lies beside."""
    if slots is None or known is None:
        return ()
    opcode = Opcode.KV_APPEND if write else Opcode.KV_READ
    share = cache.heads // cache.streams
    if combine:
        of = Operands(of.slots, of.lane, {word: 1})
    stream, zero = head // share, np.zeros_like(head)
    at, size = known.between(stream, first, count)
    entries = make_matrix(cache.sparse(0), cache.streams, cache.stream_room, DataType.UINT8)
    moved = moves[(head[moves] % share == 0) & (size[moves] > 0)]
    streams = _tiles(of, name, slots, entries, (stream, zero + 1, at, size), moved, word)
    meta = make_matrix(cache.meta, 1, cache.t_max * META_BYTES, DataType.UINT8)
    place = zero, zero + 1, first * META_BYTES, count * META_BYTES
    shared = _tiles(of, name, slots, meta, place, moves[(head[moves] == 0) & (count[moves] > 0)], word)
    return tuple(part for one in (streams, shared) for part in one.stream(Role.KV, opcode, write=write, early=write))


def rows_of_tokens(
    of: Operands, name: str, slots: Slots | None, table: Matrix, row: Column, first: Column, count: Column,
    moves: Column, write: bool,
) -> tuple[Stream, ...]:  # fmt: skip
    """The transfers of scales of tokens: some columns of a row of their table for each of the tiles `moves`."""
    if slots is None:
        return ()
    place = row, np.ones_like(row), first, count
    tiles = _tiles(of, name, slots, table, place, moves[count[moves] > 0], "scale")
    return tiles.stream(Role.KV, Opcode.KV_APPEND if write else Opcode.KV_READ, write=write, early=write)


def _tiles(
    of: Operands, name: str, slots: Slots, matrix: Matrix, place: tuple[Column, ...], moves: Column, word: str
) -> Tiles:
    row, rows, column, columns = place
    here = Operands({name: slots}, of.lane, of.alignments)
    return here.tiles(name, matrix, row, rows, column, columns, moves, word=word)
