"""Cycle by cycle simulation of the Chained Vector Engine, the reference of `chained` (docs/chained-ve.md).

T engines form a chain. In a cycle each engine has a query and a key; then every key shifts to the next engine. A chain
processes tiles of T queries and T keys. The dataflow that skips masked pairs uses tiles of 2T: on the diagonal, an
engine that has processed all visible keys of its query switches to a query from the end of the tile, from its second
buffer. Query indices start at 0, key indices at the first key of the past.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Places = NDArray[np.int64]
Row = tuple[list[int], list[int]]
"""Query and key of each engine in a cycle, as indices in the tile."""
FORMS = ("plain", "none", "tile", "dataflow")
"""Engines without chain, and chains by `te.chained.mask_skip`."""


class Tile(NamedTuple):
    """Schedule of a chain on a tile. Shapes: (cycles, engines)."""

    query: Places
    key: Places
    paired: NDArray[np.bool_]
    """Whether query and key exist; False for padding."""
    diagonal: bool


@dataclass
class Engines:
    """Chain of T engines with counters of its buffers and reads."""

    engines: int
    double_buffer: bool = True
    key_reads: int = 0
    """Number of key accesses; each reads a key per engine in parallel, on plain engines one key for all."""
    late_queries: int = 0
    """Number of queries that were not buffered when an engine needed them, and were read one by one."""
    max_queries: int = 0
    """Maximum number of queries in buffers at a time; the same for keys below."""
    max_keys: int = 0

    def load_queries(self, count: int) -> None:
        """Read the queries of a row of tiles, up to the capacity of the buffers."""
        capacity = count if self.double_buffer else min(count, self.engines)
        self.max_queries = max(self.max_queries, capacity)

    def _load_keys(self, count: int) -> None:
        """Read the keys of a tile, T at a time."""
        self.key_reads += count // self.engines
        self.max_keys = max(self.max_keys, count)

    def broadcast(self) -> Iterator[Row]:
        """Yield the rows of a tile on plain engines: each key is broadcast to all engines."""
        self.max_keys = max(self.max_keys, 1)
        for key in range(self.engines):
            self.key_reads += 1
            yield list(range(self.engines)), [key] * self.engines

    def square(self) -> Iterator[Row]:
        """Yield the rows of a tile of T queries by T keys: the keys rotate once."""
        self._load_keys(self.engines)
        yield from self._rotate(list(range(self.engines)), 0)

    def squares(self) -> Iterator[Row]:
        """Yield the rows of a tile of 2T by 2T: each half of the keys rotates once for each half of the queries."""
        t = self.engines
        self._load_keys(2 * t)
        forward, backward = list(range(t)), list(range(2 * t - 1, t - 1, -1))
        for queries, first in ((forward, 0), (backward, 0), (backward, t), (forward, t)):
            yield from self._rotate(queries, first)

    def _rotate(self, queries: list[int], first: int) -> Iterator[Row]:
        keys = list(range(first, first + self.engines))
        for _ in range(self.engines):
            yield queries, keys
            keys = [keys[-1], *keys[:-1]]

    def triangle(self) -> Iterator[Row]:
        """Yield the rows of a diagonal tile: 2T queries by the keys up to their own, in 2T + 1 cycles."""
        t = self.engines
        self._load_keys(2 * t)
        queries, keys = list(range(t)), list(range(t))
        second = iter(range(t, 2 * t))
        yield queries[:], keys
        for cycle in range(1, 2 * t + 1):
            if cycle <= t:  # engine `cycle` - 1 has processed key 0, the last of its query
                queries[cycle - 1] = 2 * t - cycle
                self.late_queries += not self.double_buffer
            next_key = keys[-1] if cycle <= t else next(second)
            keys = [next_key, *keys[:-1]]
            yield queries[:], keys

    def single(self, keys: int) -> Iterator[Row]:
        """Yield the rows of a single query by T keys at a time. Each engine reads its own keys; none is shifted."""
        t = self.engines
        self.max_keys = max(self.max_keys, t)
        for first in range(0, keys, t):
            self.key_reads += 1
            yield [0] * t, list(range(first, first + t))


def run(chain: Engines, queries: int, past: int = 0, form: str = "dataflow") -> Iterator[Tile]:
    """Yield the tiles of causal attention of `queries` queries over `past` keys and their own, in order.

    Tiles are aligned to the diagonal; without skipping, to the first key. The last tile, and the first one of the past,
    are padded.
    """
    t = chain.engines
    if queries == 1 and form != "plain":
        chain.load_queries(1)
        yield _schedule(chain.single(past + 1), (0, 0), (1, past + 1), False)
        return
    is_double = form == "dataflow" and queries > t
    side = 2 * t if is_double else t
    is_dense = form == "none"
    diagonal_at, past_blocks = (0, 0) if is_dense else (past, -(-past // side))
    for row in range(-(-queries // side)):
        chain.load_queries(side)
        for block in range(-past_blocks, -(-(past + queries) // side) if is_dense else row + 1):
            diagonal = is_double and block == row
            if diagonal:
                cycles = chain.triangle()
            else:
                cycles = chain.squares() if is_double else chain.broadcast() if form == "plain" else chain.square()
            yield _schedule(cycles, (row * side, diagonal_at + block * side), (queries, past + queries), diagonal)


def _schedule(cycles: Iterator[Row], origin: tuple[int, int], extent: tuple[int, int], diagonal: bool) -> Tile:
    table: Places = np.array(list(cycles), np.int64)
    query, key = table[:, 0] + origin[0], table[:, 1] + origin[1]
    return Tile(query, key, (query < extent[0]) & (key >= 0) & (key < extent[1]), diagonal)


class Attended(NamedTuple):
    """Attention computed by the engines."""

    out: Floats
    """Shape (queries, D)."""
    macs: int
    """MACs of each of the two products."""


def attend(chain: Engines, q: Floats, k: Floats, v: Floats, scale: float = 1.0, form: str = "dataflow") -> Attended:
    """Compute softmax(q k^T scale) v with the causal mask, in fp32 and in the order of the dataflow.

    q: (queries, D), k and v: (past + queries, D). The softmax of whole rows runs on the vector engine.
    """
    queries, past = len(q), len(k) - len(q)
    scores = np.full((queries, len(k)), -np.inf, np.float32)
    macs = 0
    for query, key in _pairs(chain, queries, past, form):
        macs += q.shape[1] * len(query)
        scores[query, key] = np.einsum("nd,nd->n", q[query], k[key]) * np.float32(scale)
    hidden = np.arange(len(k)) > past + np.arange(queries)[:, None]
    scores[hidden] = -np.inf
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    out = np.zeros((queries, v.shape[1]), np.float32)
    for query, key in _pairs(chain, queries, past, form):
        np.add.at(out, query, weights[query, key][:, None] * v[key])
    return Attended(out, macs)


def _pairs(chain: Engines, queries: int, past: int, form: str) -> Iterator[tuple[Places, Places]]:
    """Yield the query and key indices of the pairs of each cycle."""
    for tile in run(chain, queries, past, form):
        for query, key, paired in zip(tile.query, tile.key, tile.paired, strict=True):
            yield query[paired], key[paired]
