"""Pages of encoded caches: what the management tables hold for each stream, and the bursts that read it
(docs/oaken.md, "Pages").

Each row of a stream has pages of its own. A page is allocated when the first byte of it is written; tokens follow each
other, so that a page is one burst.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from npu_device.kv_quant.codec import PageTable
from npu_device.kv_quant.storage import EncodedCache, KvAccess, Sizes


class Pages(NamedTuple):
    """Allocated for tokens of one or several caches."""

    dense: int
    sparse: int
    meta: int
    payload: int
    """Bytes in them."""
    bursts: int
    """Bursts that read the codes and entries of all tokens."""
    page_bytes: int

    @property
    def bytes(self) -> int:
        """Bytes of all pages."""
        return (self.dense + self.sparse + self.meta) * self.page_bytes


def pages(cache: EncodedCache, tokens: int, entries: Iterable[int], page_bytes: int) -> Pages:
    """Pages of `tokens` tokens of a cache; `entries`: bytes of each stream of entries."""
    ends = np.zeros((cache.coded(tokens) + 1, cache.entry_streams), np.int64)
    ends[-1] = list(entries)
    counts, payload = dict.fromkeys(PageTable, 0), 0
    for span in KvAccess(cache, tokens, 0, Sizes(ends)).row_bytes():
        counts[PageTable(span.table)] += -(-span.size // page_bytes)
        payload += span.size
    for stream in cache.streams.values():  # a ring has tokens whose codes are stored, too
        idle = min(tokens, stream.ring) - (tokens - cache.coded(tokens)) if stream.ring else 0
        payload -= stream.rows * stream.size * idle
    dense, sparse, meta = counts.values()
    return Pages(dense, sparse, meta, payload, dense + sparse, page_bytes)
