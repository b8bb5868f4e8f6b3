"""Cycles of a chain of vector engines: closed forms of docs/chained-ve.md, which `dataflow` simulates.

T engines are one tensor engine of kind `chained_ve`. In a step each engine multiplies a query by a key, `lanes`
elements per cycle. A chain reads keys for all engines in parallel, on a channel each, and shifts them from engine to
engine; engines without chain read them one by one.
"""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from npu_device.config import ChainedConfig
from npu_device.cost.plan import Column, Sight
from npu_device.memory.bitwidth import ceil_div
from npu_device.trace.events import Cause


class Work(NamedTuple):
    """Work of a chain on an operand tile, NPU cycles."""

    steps: int = 0
    """Cycles of multiplication of queries by keys."""
    useful: int = 0
    """Part of `steps` that unmasked pairs would take at full utilisation."""
    key_wait: int = 0
    """Cycles in which engines wait for keys."""
    query_load: int = 0
    """Cycles of reading unbuffered queries one by one."""
    restart: int = 0
    """Cycles from one tile to the next."""
    keys_read: int = 0
    """Number of vectors that the key streams read."""

    @property
    def cycles(self) -> int:
        return self.steps + self.key_wait + self.query_load + self.restart

    def __add__(self, other: object) -> "Work":
        """Return the sum of both."""
        assert isinstance(other, Work)
        return Work(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, count: int) -> "Work":
        """Multiply all cycles by `count`."""
        return Work(*(count * part for part in self))

    @property
    def lost(self) -> tuple[tuple[Cause, int], ...]:
        """Return the cycles that are not useful, by cause."""
        causes = (
            (Cause.QUERY_LOAD, self.query_load), (Cause.KEY_WAIT, self.key_wait),
            (Cause.CHAIN_FILL, self.steps - self.useful), (Cause.TILE_RESTART, self.restart),
        )  # fmt: skip
        return tuple((cause, cycles) for cause, cycles in causes if cycles)


class Tiles(NamedTuple):
    """Numbers of tiles of `side` queries by `side` keys."""

    side: int
    diagonal: int
    """Diagonal tiles, for the dataflow that skips masked pairs."""
    edge: tuple[int, int]
    """Edge tiles of a window, for this dataflow: a query sees the keys from its index, or from the next, on."""
    other: int
    keys_read: int
    """Vectors read for all tiles, without padding."""


# -- tiles and pairs ---------------------------------------------------------------------------------------------------


def tiles(chain: ChainedConfig, queries: int, keys: int, ahead: int = 0, causal: bool = True, window: int = 0) -> Tiles:
    """Return the tiles of `queries` consecutive queries and `keys` consecutive keys.

    `ahead`: position of the first query minus that of the first key. `window`: number of latest keys up to its own that
    a query sees, 0 for all. Tiles are aligned to the diagonal; keys before it are the past. With at most T queries or
    keys, tiles have T of each.
    """
    t = chain.T
    if chain.mask_skip == "none":
        return Tiles(t, 0, (0, 0), ceil_div(queries, t) * ceil_div(keys, t), ceil_div(queries, t) * keys)
    if causal and ahead < 0:
        queries, ahead = queries + ahead, 0
    dataflow = chain.mask_skip == "dataflow" and min(queries, keys) > t
    side = 2 * t if dataflow else t
    past = min(ahead, keys) if causal else keys
    row = np.arange(max(0, ceil_div(queries, side)))
    blocks = ceil_div(keys - past, side)
    first = np.full_like(row, -ceil_div(past, side))
    last = np.minimum(row, blocks - 1)
    counts, depth = np.ones_like(row), np.full_like(row, -1)
    if window:
        lowest = ahead + row * side - window + 1
        column = (lowest - past) // side
        depth = np.where((column >= first) & (column < last), lowest - past - column * side, -1)
        first = np.maximum(first, column)
        counts = (lowest < keys).astype(np.int64)
    counts *= np.maximum(0, last - first + 1)
    low, high = (np.clip(past + offset * side, 0, keys) for offset in (first, last + 1))
    keys_read = int((np.maximum(0, high - low) * (counts > 0)).sum())
    diagonal = int(((row < blocks) & (counts > 0)).sum()) if dataflow else 0
    edge = tuple(int(((depth == offset) & (counts > 0)).sum()) if dataflow else 0 for offset in (0, 1))
    return Tiles(side, diagonal, (edge[0], edge[1]), int(counts.sum()) - diagonal - sum(edge), keys_read)


def pairs(position: Column, keys: int, causal: bool = True, window: int = 0) -> int:
    """Return the number of unmasked pairs of a query and a key. `position`: that of each query minus that of the first
    key; other arguments as in `tiles`."""
    high = np.minimum(keys, position + 1) if causal else np.full_like(position, keys)
    low = np.maximum(0, position - window + 1) if window else np.zeros_like(position)
    return int(np.maximum(0, high - low).sum())


# -- cycles ------------------------------------------------------------------------------------------------------------


def step_cycles(chain: ChainedConfig, width: int) -> int:
    """Return the cycles of an engine for a pair of vectors of `width` elements."""
    return ceil_div(width, chain.lanes)


def read_cycles(chain: ChainedConfig, width: int, bits: int, vectors: int = 1) -> int:
    """Return the cycles of reading `vectors` vectors over one channel: latency and beats."""
    return chain.lat + vectors * ceil_div(width * bits, 8 * chain.channel_bytes)


def _tile(chain: ChainedConfig, steps: int, read_time: int) -> Work:
    """Return the work of a tile whose keys are read during the previous tile."""
    return Work(steps, 0, max(0, read_time - steps), 0, chain.restart)


def masked(
    chain: ChainedConfig, queries: int, keys: int, width: int, bits: int, ahead: int = 0, causal: bool = True,
    window: int = 0,
) -> Work:  # fmt: skip
    """Return the work of one head's queries with keys of `width` elements of `bits`; other arguments as in `tiles`."""
    t, step = chain.T, step_cycles(chain, width)
    once = read_cycles(chain, width, bits)
    count = pairs(ahead + np.arange(queries), keys, causal, window)
    useful = ceil_div(count * step, t)
    if queries == 1:
        key_count = keys if chain.mask_skip == "none" else count
        steps = ceil_div(key_count, t)
        wait = steps * max(0, once - step)
        return Work(steps * step, useful, wait, 0, ceil_div(steps, t) * chain.restart, key_count)
    grid = tiles(chain, queries, keys, ahead, causal, window)
    if grid.side == t:
        work = _tile(chain, t * step, once).times(grid.other)
    else:
        twice = read_cycles(chain, width, bits, 2)
        diagonal = _tile(chain, (2 * t + 1) * step, twice)
        if not chain.double_buffer:
            diagonal = diagonal._replace(query_load=t * once)
        work = diagonal.times(grid.diagonal + grid.edge[0]) + _tile(chain, 4 * t * step, twice).times(grid.other)
        work += diagonal._replace(steps=(2 * t - 1) * step, key_wait=max(0, twice - (2 * t - 1) * step)).times(
            grid.edge[1]
        )
    return work._replace(useful=useful, keys_read=grid.keys_read)


def attention(chain: ChainedConfig, rows: int, sight: Sight, bits: int) -> Work:
    """Return the work of a tile of ATTN_T: rows of all heads of a group. `bits`: width of a key or value element."""
    members: Counter[tuple[int, int]] = Counter()
    for member in range(sight.group):
        first = (member - sight.phase) % sight.group
        if first < rows:
            members[ceil_div(rows - first, sight.group), sight.ahead + (sight.phase + first) // sight.group] += 1
    work = Work()
    for (queries, ahead), count in members.items():
        member_work = masked(chain, queries, sight.keys, sight.width, bits, ahead, sight.causal, sight.window)
        work += member_work.times(count)
    return work


def unmasked_rows(rows: int, sight: Sight) -> int:
    """Return the number of unmasked pairs of a tile of ATTN_T."""
    position = sight.ahead + (sight.phase + np.arange(rows)) // sight.group
    return pairs(position, sight.keys, sight.causal, sight.window)


class Broadcast(NamedTuple):
    """Product on engines without chain: T vectors are stationary, and each vector of the other operand is broadcast."""

    work: Work
    reads: tuple[Fraction, Fraction]
    """Number of times that in0 and in1 are read."""


def product(chain: ChainedConfig, m: int, n: int, k: int, bits_a: int, bits_w: int) -> Broadcast:
    """Return the product M x K by K x N with rows of in0 or columns of in1 stationary, whichever is faster."""
    rows = _broadcast(chain, m, n, k, bits_a, bits_w)
    columns = _broadcast(chain, n, m, k, bits_w, bits_a)
    if columns.work.cycles < rows.work.cycles:
        return columns._replace(reads=(columns.reads[1], columns.reads[0]))
    return rows


def _broadcast(chain: ChainedConfig, fixed: int, moving: int, k: int, bits_s: int, bits_b: int) -> Broadcast:
    """Return the product of `fixed` stationary vectors, T at a time, and `moving` broadcast vectors. A single vector is
    in a register."""
    t, step = chain.T, step_cycles(chain, k)
    load = read_cycles(chain, k, bits_s)
    interval = max(step, read_cycles(chain, k, bits_b)) if moving > 1 else step
    groups = ceil_div(fixed, t)
    steps = groups * moving
    wait = groups * max(load, moving * interval) - steps * step
    work = Work(steps * step, ceil_div(fixed * moving * step, t), wait, 0, ceil_div(steps, t) * chain.restart)
    return Broadcast(work, (Fraction(1), Fraction(groups if moving > 1 else 1)))


def plain(chain: ChainedConfig, queries: int, keys: int, width: int, bits: int, ahead: int = 0) -> Work:
    """Return the work of causal attention on engines without chain that skip wholly masked tiles of T x T."""
    grid = tiles(replace(chain, mask_skip="tile"), queries, keys, ahead)
    t, step = chain.T, step_cycles(chain, width)
    tile_work = Work(t * step, 0, t * max(0, read_cycles(chain, width, bits) - step), 0, chain.restart)
    useful = ceil_div(pairs(ahead + np.arange(queries), keys) * step, t)
    return tile_work.times(grid.other)._replace(useful=useful, keys_read=grid.keys_read)


def alike(ahead: Column, queries: Column, keys: Column, causal: bool, window: int) -> Column:
    """Return `ahead` of many tiles, normalised for tiles without masked pairs, so that these compare equal."""
    if not causal and not window:
        return np.zeros_like(ahead)
    unmasked = np.ones(len(ahead), bool)
    if causal:
        unmasked &= ahead >= keys
    if window:
        unmasked &= ahead + queries <= window
    return np.where(unmasked, keys, ahead)
