"""Where keys and values lie in DRAM: caches of [B, H, T_max, D] (docs/bit-widths.md, R11, R15, R16, R18 to R22).

Pure functions of shapes; the device, the toolchain and reports use the same ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from npu_device.abi.errors import NpuDeviceError
from npu_device.memory.bitwidth import aligned_bytes, bytes_total


@dataclass(frozen=True)
class KvCache:
    """K or V of one layer. `heads` are KV heads (GQA), `bits` those of one element of each head."""

    base: int
    batch: int
    heads: int
    t_max: int
    head_dim: int
    bits: tuple[int, ...]
    """One width per head."""
    pad_rows: bool = False
    """Rows that do not end at a byte: padded, or an error."""

    def __post_init__(self) -> None:
        for name in ("batch", "heads", "t_max", "head_dim"):
            if getattr(self, name) < 1:
                raise NpuDeviceError(f"KV cache {name} {getattr(self, name)}: must be at least 1")
        if len(self.bits) != self.heads:
            raise NpuDeviceError(f"KV cache: {len(self.bits)} bit widths for {self.heads} heads: give one per head")
        for head, bits in enumerate(self.bits):
            if self.head_dim * bits % 8 and not self.pad_rows:
                raise NpuDeviceError(
                    f"KV cache head {head}: a row of {self.head_dim} x {bits} bits does not end at a byte, "
                    "set kv.pad_rows"
                )

    def row_bytes(self, head: int) -> int:
        """Bytes of one token of a head."""
        return bytes_total(self.head_dim, self.bits[head])

    def address(self, head: int, token: int, batch: int = 0) -> int:
        """Of the row of a token. NpuDeviceError beyond the cache."""
        for name, value, limit in (("head", head, self.heads), ("token", token, self.t_max), ("b", batch, self.batch)):
            if not 0 <= value < limit:
                raise NpuDeviceError(f"KV cache {name} {value}: must be below {limit}")
        before = sum(self.t_max * self.row_bytes(one) for one in range(head))
        return self.base + batch * self.bytes_alloc // self.batch + before + token * self.row_bytes(head)

    @property
    def bytes_alloc(self) -> int:
        """For T_max tokens."""
        return self.batch * self.t_max * sum(self.row_bytes(head) for head in range(self.heads))

    def bytes_used(self, tokens: int) -> int:
        """For the tokens that are there."""
        if not 0 <= tokens <= self.t_max:
            raise NpuDeviceError(f"KV cache tokens {tokens}: must be 0..{self.t_max}")
        return self.bytes_alloc // self.t_max * tokens

    def append_tiles(self, token: int, batch: int = 0) -> Iterator[tuple[int, int, int]]:
        """(address, elements, bytes) of the stores of one token, one per head; nothing is loaded (R18)."""
        for head in range(self.heads):
            yield self.address(head, token, batch), self.head_dim, self.row_bytes(head)

    def read_tiles(
        self, head: int, tokens: int, chunk: int | None = None, batch: int = 0
    ) -> Iterator[tuple[int, int, int]]:
        """(address, elements, bytes) of the loads of a head's first `tokens`, `chunk` tokens at a time (R20)."""
        chunk = tokens if chunk is None else chunk
        if not 1 <= tokens <= self.t_max or not 1 <= chunk <= tokens:
            raise NpuDeviceError(f"KV read of {tokens} tokens by {chunk}: must be 1 <= chunk <= tokens <= {self.t_max}")
        for token in range(0, tokens, chunk):
            count = min(chunk, tokens - token)
            yield self.address(head, token, batch), count * self.head_dim, count * self.row_bytes(head)

    def append_penalty(self, appends: int, alignment: int) -> tuple[int, int]:
        """(aligned, payload) bytes of appending the first `appends` tokens of head 0 (R21)."""
        row = self.row_bytes(0)
        aligned = sum(aligned_bytes(self.base + token * row, row, alignment) for token in range(appends))
        return aligned, appends * row


def valid_elements(kind: str, elements: int, head_dim: int, tokens: int) -> bool:
    """Whether a CMDQ transfer of so many elements can be (R20): D to store, c x D with 1 <= c <= T to load."""
    if kind == "store":
        return elements == head_dim
    return elements % head_dim == 0 and 1 <= elements // head_dim <= tokens
