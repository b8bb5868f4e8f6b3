"""Parameter blocks followed by tables, to which a half refers by relative offset (docs/kv-cache.md, "Parameter
block")."""

from collections.abc import Sequence
from typing import NamedTuple

from npu_device.abi.kv_block import KV_HALF_SIZE, KvHalf
from npu_device.kv_quant.codec import KvCodec, Parameters
from npu_device.kv_quant.codecs import CODECS


class Side(NamedTuple):
    """Codec and parameters of keys, or of values."""

    codec: KvCodec
    parameters: Parameters | None
    """Parameters; None for a run without values."""


def pack_block(sides: Sequence[Side], heads: int, head_dim: int) -> bytes:
    """Return the halves of the sides, then their tables, each padded to a multiple of 4 bytes."""
    halves, tables = b"", b""
    for index, (codec, parameters) in enumerate(sides):
        size = codec.table_bytes(heads, head_dim)
        distance = KV_HALF_SIZE * (len(sides) - index) + len(tables) if size else 0
        if parameters is not None:
            halves += codec.pack_parameters(parameters, distance)
        else:
            halves += KvHalf(policy=codec.policy, no_values=1, table=distance).pack()
        table = bytes(size) if parameters is None else parameters.table
        tables += table + bytes(-len(table) % 4)
    return halves + tables


def halves_of(data: bytes) -> list[KvHalf]:
    """Return the halves of a block from `pack_block`: one if its table, or the end, follows the first half."""
    is_single = len(data) == KV_HALF_SIZE or KvHalf.unpack(data[:KV_HALF_SIZE]).table == KV_HALF_SIZE
    return [KvHalf.unpack(data[begin : begin + KV_HALF_SIZE]) for begin in ((0,) if is_single else (0, KV_HALF_SIZE))]


def without_values(data: bytes) -> bytes:
    """Return the halves of a block for a run without values."""
    return b"".join(KvHalf(policy=half.policy, no_values=1, table=half.table).pack() for half in halves_of(data))


def unpack_block(data: bytes, heads: int, head_dim: int, location: str) -> list[Side]:
    """Return the sides of a block from `pack_block`, with values. Raise NpuDeviceError for invalid words."""
    sides = []
    for index, half in enumerate(halves_of(data)):
        begin = index * KV_HALF_SIZE
        codec = CODECS[half.policy]
        size = codec.table_bytes(heads, head_dim)
        table = data[begin + half.table : begin + half.table + size] if size else b""
        sides.append(Side(codec, codec.parameters(half, table, location)))
    return sides


def block_bytes(sides: Sequence[KvCodec], heads: int, head_dim: int) -> int:
    """Return the bytes of a block."""
    return len(pack_block([Side(codec, None) for codec in sides], heads, head_dim))
