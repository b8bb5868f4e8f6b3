"""The Chained Vector Engine cycle by cycle: what the closed forms of `chained` count (docs/chained-ve.md).

T engines stand in a chain. In a cycle each engine holds one query and one key; then every key moves on to the next
engine. A chain takes tiles of T queries and T keys. The dataflow that passes over masked pairs takes tiles of 2T: on
the diagonal an engine that has met all keys its query may see turns to a query from the end of the tile, which waits
in its second buffer. Queries count from 0, keys from the first of the past.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Places = NDArray[np.int64]
Row = tuple[list[int], list[int]]
"""Of one cycle: the query and the key of each engine, counted within the tile."""
FORMS = ("plain", "none", "tile", "dataflow")
"""Engines without chain, and chains by what masks save them (`te.chained.mask_skip`)."""


class Tile(NamedTuple):
    """Schedule of a chain on a tile. Shapes: (cycles, engines)."""

    query: Places
    key: Places
    paired: NDArray[np.bool_]
    """Whether both are there: False where the tile is only filled up."""
    diagonal: bool


@dataclass
class Engines:
    """T engines, their buffers, and what they have read so far."""

    engines: int
    double_buffer: bool = True
    key_reads: int = 0
    """Accesses to keys: of a key for each engine at once, on plain engines of one key for all."""
    late_queries: int = 0
    """Queries that were read one by one, because no buffer held them when an engine turned to them."""
    most_queries: int = 0
    """That buffers held at a time."""
    most_keys: int = 0

    def load_queries(self, count: int) -> None:
        """Read the queries of a row of tiles, as far as there are buffers."""
        held = count if self.double_buffer else min(count, self.engines)
        self.most_queries = max(self.most_queries, held)

    def _load_keys(self, count: int) -> None:
        """Read the keys of a tile, T at a time."""
        self.key_reads += count // self.engines
        self.most_keys = max(self.most_keys, count)

    def broadcast(self) -> Iterator[Row]:
        """Plain engines: every key is read by itself, for all engines."""
        self.most_keys = max(self.most_keys, 1)
        for key in range(self.engines):
            self.key_reads += 1
            yield list(range(self.engines)), [key] * self.engines

    def square(self) -> Iterator[Row]:
        """T queries by T keys: the keys go once around."""
        self._load_keys(self.engines)
        yield from self._around(list(range(self.engines)), 0)

    def squares(self) -> Iterator[Row]:
        """2T queries by 2T keys: each half of the keys goes around twice, once for each half of the queries."""
        t = self.engines
        self._load_keys(2 * t)
        forward, backward = list(range(t)), list(range(2 * t - 1, t - 1, -1))
        for queries, first in ((forward, 0), (backward, 0), (backward, t), (forward, t)):
            yield from self._around(queries, first)

    def _around(self, queries: list[int], first: int) -> Iterator[Row]:
        keys = list(range(first, first + self.engines))
        for _ in range(self.engines):
            yield queries, keys
            keys = [keys[-1], *keys[:-1]]

    def triangle(self) -> Iterator[Row]:
        """2T queries by the keys up to their own, in 2T + 1 cycles."""
        t = self.engines
        self._load_keys(2 * t)
        queries, keys = list(range(t)), list(range(t))
        second = iter(range(t, 2 * t))
        yield queries[:], keys
        for cycle in range(1, 2 * t + 1):
            if cycle <= t:  # engine `cycle` - 1 has met key 0, the last key for its query
                queries[cycle - 1] = 2 * t - cycle
                self.late_queries += not self.double_buffer
            entering = keys[-1] if cycle <= t else next(second)
            keys = [entering, *keys[:-1]]
            yield queries[:], keys

    def single(self, keys: int) -> Iterator[Row]:
        """Yield the rows of a single query by T keys at a time, each engine with keys of its own: no key moves."""
        t = self.engines
        self.most_keys = max(self.most_keys, t)
        for first in range(0, keys, t):
            self.key_reads += 1
            yield [0] * t, list(range(first, first + t))


def run(chain: Engines, queries: int, past: int = 0, form: str = "dataflow") -> Iterator[Tile]:
    """Yield the tiles of causal attention of `queries` queries over `past` keys and their own, in order.

    Tiles begin at the diagonal; where none is passed over, at the first key. What is missing of the last tile, and of
    the first one of the past, is filled up.
    """
    t = chain.engines
    if queries == 1 and form != "plain":
        chain.load_queries(1)
        yield _placed(chain.single(past + 1), (0, 0), (1, past + 1), False)
        return
    doubled = form == "dataflow" and queries > t
    side = 2 * t if doubled else t
    every = form == "none"
    diagonal_at, before = (0, 0) if every else (past, -(-past // side))
    for row in range(-(-queries // side)):
        chain.load_queries(side)
        for block in range(-before, -(-(past + queries) // side) if every else row + 1):
            diagonal = doubled and block == row
            if diagonal:
                cycles = chain.triangle()
            else:
                cycles = chain.squares() if doubled else chain.broadcast() if form == "plain" else chain.square()
            yield _placed(cycles, (row * side, diagonal_at + block * side), (queries, past + queries), diagonal)


def _placed(cycles: Iterator[Row], at: tuple[int, int], extent: tuple[int, int], diagonal: bool) -> Tile:
    table: Places = np.array(list(cycles), np.int64)
    query, key = table[:, 0] + at[0], table[:, 1] + at[1]
    return Tile(query, key, (query < extent[0]) & (key >= 0) & (key < extent[1]), diagonal)


class Attended(NamedTuple):
    """Attention as the engines compute it."""

    out: Floats
    """Shape (queries, D)."""
    macs: int
    """Of each of the two products."""


def attend(chain: Engines, q: Floats, k: Floats, v: Floats, scale: float = 1.0, form: str = "dataflow") -> Attended:
    """softmax(q k^T scale) v with the causal mask, in fp32 and in the order of the dataflow.

    q: (queries, D), k and v: (past + queries, D). The softmax of whole rows is the vector engine's.
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
    """Yield the pairs of each cycle."""
    for tile in run(chain, queries, past, form):
        for query, key, paired in zip(tile.query, tile.key, tile.paired, strict=True):
            yield query[paired], key[paired]
