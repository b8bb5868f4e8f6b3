"""The parameter block of encoded keys and values: 64 bytes in DRAM that `scale` of an extended block points at where
`type_kv` is ENCODED. Its first half is about the keys, the second about the values; KV_APPEND names one of them
(docs/oaken.md, "Parameter block")."""

import struct
from enum import IntEnum, unique
from typing import NamedTuple, Self

from npu_device.abi.descriptor import Word, check_layout
from npu_device.abi.errors import AbiError

KV_HALF_SIZE = 32
KV_HALF_WORDS = KV_HALF_SIZE // 4
KV_CHUNK = 64
"""Elements that an entry's index counts through."""

KV_BLOCK_WORDS = (
    Word("policy", 0, 2, "1: Oaken"),
    Word("outlier_code", 2, 2, "0: msb_clamp, 1: sign_mag"),
    Word("thresholds", 4, 2, "fp16: outer low, inner low, inner high, outer high", repeat=4),
    Word("chunk", 12, 2, "elements of a chunk: 64"),
    Word("kv_reserved", 14, 2, "zero", repeat=9),
)
"""One half."""


@unique
class KvPolicy(IntEnum):
    """How keys and values are stored."""

    OAKEN = 1


@unique
class OutlierCode(IntEnum):
    """How a code tells the side of a shifted element."""

    MSB_CLAMP = 0
    SIGN_MAG = 1


_LAYOUT = struct.Struct("<2H4HH9H")


class KvHalf(NamedTuple):
    """The words about keys, or about values."""

    thresholds: tuple[int, int, int, int]
    """Bits of fp16."""
    policy: int = KvPolicy.OAKEN
    outlier_code: int = OutlierCode.MSB_CLAMP
    chunk: int = KV_CHUNK
    kv_reserved: tuple[int, ...] = (0,) * 9

    def pack(self) -> bytes:
        """The 32 bytes."""
        return _LAYOUT.pack(self.policy, self.outlier_code, *self.thresholds, self.chunk, *self.kv_reserved)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Read 32 bytes (AbiError for another length). Validation is the device's."""
        if len(data) != KV_HALF_SIZE:
            raise AbiError(f"half of a parameter block of {len(data)} bytes: must be {KV_HALF_SIZE}")
        policy, code, *rest = _LAYOUT.unpack(data)
        low, inner_low, inner_high, high = rest[:4]
        return cls((low, inner_low, inner_high, high), policy, code, rest[4], tuple(rest[5:]))


check_layout(KV_BLOCK_WORDS, KV_HALF_SIZE)
