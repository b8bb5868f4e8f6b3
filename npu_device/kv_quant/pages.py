"""Pages of encoded caches: allocation for each stream, and the bursts that read it (docs/oaken.md, "Pages").

Each row of a stream has its own pages. The write of a page's first byte allocates it. Tokens are contiguous, so a page
is one burst.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from npu_device.kv_quant.codec import PageTable
from npu_device.kv_quant.storage import EncodedCache, KvAccess, Sizes


class Pages(NamedTuple):
    """Numbers of pages allocated for the tokens of one or several caches."""

    dense: int
    sparse: int
    meta: int
    payload: int
    """Bytes of data in the pages."""
    bursts: int
    """Number of bursts that read the codes and entries of all tokens."""
    page_bytes: int

    @property
    def bytes(self) -> int:
        """Bytes of all pages."""
        return (self.dense + self.sparse + self.meta) * self.page_bytes


def pages(cache: EncodedCache, tokens: int, entries: Iterable[int], page_bytes: int) -> Pages:
    """Return the pages of `tokens` tokens of a cache. `entries`: bytes of each stream of entries."""
    ends = np.zeros((cache.coded(tokens) + 1, cache.entry_streams), np.int64)
    ends[-1] = list(entries)
    counts, payload = dict.fromkeys(PageTable, 0), 0
    for span in KvAccess(cache, tokens, 0, Sizes(ends)).row_bytes():
        counts[PageTable(span.table)] += -(-span.size // page_bytes)
        payload += span.size
    for stream in cache.streams.values():  # a ring also has tokens that are encoded already
        idle = min(tokens, stream.ring) - (tokens - cache.coded(tokens)) if stream.ring else 0
        payload -= stream.rows * stream.size * idle
    dense, sparse, meta = counts.values()
    return Pages(dense, sparse, meta, payload, dense + sparse, page_bytes)
