"""Layout of keys and values in DRAM: caches of [B, H, T_max, D] (docs/bit-widths.md, R11, R15, R16, R20).

Pure functions of shapes, shared by the device, the toolchain and reports.
"""

from dataclasses import dataclass

from npu_device.abi.errors import NpuDeviceError
from npu_device.memory.bitwidth import bytes_total

SCALE_BYTES = 4
"""Bytes of a scale, if each token and head has its own."""


@dataclass(frozen=True)
class KvCache:
    """Cache of K or V of one layer. `heads` are KV heads (GQA)."""

    base: int
    batch: int
    heads: int
    t_max: int
    head_dim: int
    bits: tuple[int, ...]
    """Bits of an element of each head."""
    pad_rows: bool = False
    """Whether rows that do not end at a byte are padded; otherwise they are an error."""

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
        """Return the bytes of one token of a head."""
        return bytes_total(self.head_dim, self.bits[head])

    def address(self, head: int, token: int, batch: int = 0) -> int:
        """Return the address of the row of a token. Raise NpuDeviceError for an index outside the cache."""
        for name, value, limit in (("head", head, self.heads), ("token", token, self.t_max), ("b", batch, self.batch)):
            if not 0 <= value < limit:
                raise NpuDeviceError(f"KV cache {name} {value}: must be below {limit}")
        before = sum(self.t_max * self.row_bytes(previous) for previous in range(head))
        return self.base + batch * self.bytes_alloc // self.batch + before + token * self.row_bytes(head)

    @property
    def token_bytes(self) -> int:
        """Bytes of a request's token, all heads."""
        return sum(self.row_bytes(head) for head in range(self.heads))

    @property
    def bytes_alloc(self) -> int:
        """Bytes of T_max tokens of all requests."""
        return self.batch * self.t_max * self.token_bytes


def valid_elements(kind: str, elements: int, head_dim: int, tokens: int | None = None) -> bool:
    """Check the element count of a transfer (R20): D to store, c x D with 1 <= c <= T to load. `tokens`: T or None."""
    if kind == "store":
        return elements == head_dim
    return elements % head_dim == 0 and 1 <= elements // head_dim <= (elements if tokens is None else tokens)
