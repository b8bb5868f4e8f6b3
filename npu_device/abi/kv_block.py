"""Parameter block of encoded keys and values: 64 bytes in DRAM to which `scale` of an extended block points if
`type_kv` is ENCODED. Its first half is for the keys, the second for the values; KV_APPEND points to one of them
(docs/kv-cache.md, "Parameter block")."""

from enum import IntEnum, unique
from typing import NamedTuple, Self

from npu_device.abi.descriptor import Word, check_layout
from npu_device.abi.errors import AbiError
from npu_device.abi.extended import pack_words, unpack_words

KV_HALF_SIZE = 32
KV_CHUNK = 64
"""Number of elements of a chunk, which has a count of entries."""

KV_BLOCK_WORDS = (
    Word("policy", 0, 2, "codec: 1 Oaken, the others as `pyv-npu docs kv-cache` lists them"),
    Word("outlier_code", 2, 2, "Oaken: 0: msb_clamp, 1: sign_mag"),
    Word("thresholds", 4, 2, "Oaken, fp16: outer low, inner low, inner high, outer high", repeat=4),
    Word("chunk", 12, 2, "elements of a chunk: 64"),
    Word("no_values", 14, 2, "1: nothing is computed, sizes are as counted in the table or as assumed"),
    Word("table", 16, 8, "bytes from here to the table that was made offline; 0: the codec has none"),
    Word("kv_reserved", 24, 2, "zero", repeat=4),
)
"""Words of a half."""


@unique
class KvPolicy(IntEnum):
    """Codec of keys, or of values."""

    OAKEN = 1
    HEAD_TOKEN = 2
    SMOOTHED = 3
    CHANNEL_GROUP = 4
    AGED_TOKEN = 5
    CHANNEL_LEVELS = 6
    TOKEN_LEVELS = 7
    CHANNEL_SHIFTS = 8
    TOKEN = 9
    GROUPED_HEADS = 10
    RUNS = 11
    DIFFERENCES = 12
    NONZERO = 13


@unique
class OutlierCode(IntEnum):
    """Encodings of the side (low or high) of a shifted element."""

    MSB_CLAMP = 0
    SIGN_MAG = 1


class KvHalf(NamedTuple):
    """Half of a parameter block, for keys or values."""

    thresholds: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Thresholds as bits of fp16."""
    policy: int = KvPolicy.OAKEN
    outlier_code: int = OutlierCode.MSB_CLAMP
    chunk: int = KV_CHUNK
    no_values: int = 0
    table: int = 0
    kv_reserved: tuple[int, ...] = (0,) * 4

    def pack(self) -> bytes:
        """Return the 32 bytes."""
        return pack_words(KV_BLOCK_WORDS, self._asdict())

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Read 32 bytes. Raise AbiError for another length. The device validates the values."""
        if len(data) != KV_HALF_SIZE:
            raise AbiError(f"half of a parameter block of {len(data)} bytes: must be {KV_HALF_SIZE}")
        return cls(**unpack_words(KV_BLOCK_WORDS, data))


check_layout(KV_BLOCK_WORDS, KV_HALF_SIZE)
