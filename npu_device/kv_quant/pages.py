"""Pages of encoded caches: what the management tables hold for each stream, and the bursts that read it
(docs/oaken.md, "Pages").

Each head has pages of nibbles of its own, each stream pages of entries, and the metadata of all heads theirs. A page is
allocated when the first byte of it is written; tokens follow each other, so that a page is one burst.
"""

from collections.abc import Iterable
from typing import NamedTuple

from npu_device.kv_quant.oaken import META_BYTES
from npu_device.kv_quant.storage import EncodedCache


class Pages(NamedTuple):
    """Allocated for tokens of one or several caches."""

    dense: int
    sparse: int
    meta: int
    payload: int
    """Bytes in them."""
    bursts: int
    """To read all tokens: of nibbles and entries."""
    page_bytes: int

    @property
    def bytes(self) -> int:
        """Of all pages."""
        return (self.dense + self.sparse + self.meta) * self.page_bytes

    @property
    def slack(self) -> float:
        """Share of the payload that pages take beyond it."""
        return self.bytes / self.payload - 1 if self.payload else 0.0


def pages(cache: EncodedCache, tokens: int, streams: Iterable[int], page_bytes: int) -> Pages:
    """Of `tokens` tokens of a cache; `streams`: bytes of entries in each stream."""

    def needed(size: int) -> int:
        return -(-size // page_bytes)

    sizes = list(streams)
    row = cache.head_dim // 2
    dense, sparse = cache.heads * needed(tokens * row), sum(map(needed, sizes))
    payload = tokens * (cache.width // 2 + META_BYTES) + sum(sizes)
    return Pages(dense, sparse, needed(tokens * META_BYTES), payload, dense + sparse, page_bytes)
