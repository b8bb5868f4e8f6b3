"""Encoded keys and values for `sequential`: token by token through the definition of the codec, with the layout of
docs/oaken.md ("In DRAM") written apart from the device's."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from oaken_plain import decode_token, encode_token

from npu_device.kv_quant.thresholds import Thresholds

Array = np.ndarray[Any, Any]
At = Callable[[int, int], Array]
"""The bytes at (address, size), to read and to write."""
CHUNK, META, PART = 64, 12, 64
LARGEST = 65504
CODES = ("msb_clamp", "sign_mag")


class Half(NamedTuple):
    """What a parameter block says of keys, or of values."""

    thresholds: Thresholds
    code: str


def half(data: bytes) -> Half | None:
    """None for one that is wrong."""
    policy, code = np.frombuffer(data[:4], "<u2").tolist()
    limits = np.frombuffer(data[4:12], "<f2").astype(float).tolist()
    chunk = int.from_bytes(data[12:14], "little")
    if policy != 1 or code >= len(CODES) or chunk != CHUNK or any(data[14:32]):
        return None
    if not all(map(math.isfinite, limits)) or limits != sorted(limits):
        return None
    return Half(Thresholds(*limits), CODES[code])


class EncodedTokens:
    """One cache in memory."""

    def __init__(self, at: At, base: int, heads: int, t_max: int, dim: int) -> None:
        self.at, self.base, self.heads, self.t_max, self.dim = at, base, heads, t_max, dim
        self.width = heads * dim
        self.chunks = self.width // CHUNK
        self.streams = self.width // math.lcm(CHUNK, dim)

        def after(address: int, size: int) -> int:
            return address + -(-size // PART) * PART

        self.meta = after(base, self.width // 2 * t_max)
        self.counts = after(self.meta, META * t_max)
        self.entries = after(self.counts, self.chunks * t_max)
        self.room = after(0, self.width // self.streams * t_max)

    def _counts(self, token: int) -> Array:
        return self.at(self.counts + token * self.chunks, self.chunks)

    def _lengths(self, token: int) -> list[int]:
        """Entries of a token in each stream."""
        return [int(sum(part.tolist())) for part in np.split(self._counts(token), self.streams)]

    def _nibbles(self, head: int, token: int) -> Array:
        row = self.dim // 2
        return self.at(self.base + (head * self.t_max + token) * row, row)

    def valid(self, tokens: int) -> bool:
        return all((self._counts(token) <= CHUNK).all() for token in range(tokens))

    def append(self, first: int, rows: Array, how: Half) -> bool:
        """Tokens (n, width) behind `first` others; False, without an effect, where they cannot be encoded."""
        if not self.valid(first) or not (np.abs(rows) <= LARGEST).all():
            return False
        for token, row in enumerate(rows.astype(np.float32), first):
            dense, counts, sparse, meta = encode_token(row.tolist(), how.thresholds, how.code)
            before = [sum(self._lengths(t)[s] for t in range(token)) for s in range(self.streams)]
            for head, part in enumerate(np.split(np.frombuffer(dense, np.uint8), self.heads)):
                self._nibbles(head, token)[:] = part
            self.at(self.meta + META * token, META)[:] = np.frombuffer(meta, np.uint8)
            self._counts(token)[:] = np.frombuffer(counts, np.uint8)
            left = np.frombuffer(sparse, np.uint8)
            for stream, size in enumerate(self._lengths(token)):
                if size:
                    self.at(self.entries + stream * self.room + before[stream], size)[:] = left[:size]
                left = left[size:]
        return True

    def read(self, tokens: int, how: Half) -> list[Array]:
        """Numbers of the first tokens, (tokens, dim) of each head."""
        made, begin = [], [0] * self.streams
        for token in range(tokens):
            sparse = []
            for stream, size in enumerate(self._lengths(token)):
                sparse.append(self.at(self.entries + stream * self.room + begin[stream], size).tobytes())
                begin[stream] += size
            dense = b"".join(self._nibbles(head, token).tobytes() for head in range(self.heads))
            meta = self.at(self.meta + META * token, META).tobytes()
            made.append(decode_token(
                dense, self._counts(token).tobytes(), b"".join(sparse), meta, how.thresholds, how.code))  # fmt: skip
        numbers = np.array(made, np.float32).reshape(tokens, self.heads, self.dim)
        return [numbers[:, head] for head in range(self.heads)]
