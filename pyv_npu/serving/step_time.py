"""Cycles of a step of many requests: simulated parts, combined, and checked against whole steps.

    step(chunks) = edge(rows) + head(requests) + sum over layers of (products(rows) + attention(chunks))

Every figure on the right comes from simulations at CA_HYBRID (`step_parts`): products of a layer with a copy in place
of attention; positions, append and attention of each chunk from its commands alone. Each shape of layers, by window
and width, is simulated once. Chunks run in sequence, but the keys of a chunk are appended in parallel with the commands
of the chunk before it, and its values, the other half, after them. With the policy token-batch, generating requests
attend in parallel, each on its own engine: the time of several requests of one context is simulated, and requests of
several contexts take the mean. Times between simulated points are interpolated linearly; `check` simulates whole steps
of the run, and the summary states the largest error.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from npu_device.kv_quant.methods import KvMethod
from pyv_npu.serving.step_parts import Memo, ProductTimes, Simulator, Timed, all_between, between, spaced
from toolchain.decoders.mixed_step import Chunk, Parts

FINE = 64
"""Distance of the first points on the axis of contexts, tokens."""
PER_OCTAVE = 4
"""Points per doubling after them."""
CHUNKS = [1, 4, 16, 64, *(at for at in spaced(64, 1 << 20, 2) if at > 64)]
"""Sizes of chunks, tokens, whose attention is simulated."""
ROUND = [1 << power for power in range(11)]
"""Simulated numbers of parallel requests, besides one full round of the engines and two."""
MOST = 4
"""Number of layers in the step that checks whether layers are equally long."""
CONTEXTS = spaced(FINE, 1 << 25, PER_OCTAVE)


class Check(NamedTuple):
    """Step of the run, simulated whole."""

    step: int
    requests: int
    tokens: int
    layers: int
    """Number of simulated layers; all others take as long as the last."""
    simulated: int
    estimate: int

    @property
    def error(self) -> float:
        """Error of the time in use, relative to the simulated time."""
        return (self.estimate - self.simulated) / self.simulated


class Attention(NamedTuple):
    """Cycles of a chunk in one layer."""

    positions: int
    """Cycles of positions, which precede attention for all chunks in sequence."""
    append: int
    """Cycles of separate append commands; 0: attention appends itself."""
    attend: int


class LayerTimes:
    """Cycles of a layer of one shape."""

    def __init__(self, simulator: Simulator, products: ProductTimes, kv: KvMethod, concurrency: int) -> None:
        """`simulator`: of a model whose layers all have this shape; `concurrency`: as in `StepTimes`."""
        self.products, self.shape, self.kv, self._concurrency = products, simulator.shape, kv, concurrency
        self._simulator = simulator
        self._attentions = Memo(self._simulate_chunk)
        self._following = [Memo(partial(self._following_chunk, resident)) for resident in (False, True)]
        self._batches = Memo(self._batch)
        """(requests, context, resident) -> cycles of attention of parallel requests of one context in a layer."""
        self._simulated_batches = Memo(self._simulate_batch)

    @property
    def runs(self) -> int:
        """Number of simulations."""
        return self._attentions.count + self._simulated_batches.count

    def table(self) -> list[list[int]]:
        """Return all simulated times of attention, for `restore`."""
        return [[*key[:2], int(key[2]), *cycles] for key, cycles in sorted(self._attentions.items())]

    def restore(self, rows: Sequence[Sequence[int]]) -> None:
        """Restore the result of `table`."""
        for tokens, context, resident, *parts in rows:
            self._attentions[tokens, context, bool(resident)] = Attention(*parts)

    def _simulate_chunk(self, key: tuple[int, int, bool]) -> Attention:
        tokens, context, resident = key
        run = self._simulator.run([Chunk(tokens, context)], Parts.ATTENTION, 1, self.kv, resident)
        return Attention(*run.attention(0))

    def _attended(self, tokens: int, context: int) -> int:
        """Return the context of a chunk; of a token at most twice the sliding window, after which time is constant."""
        window = self.shape.cache_window
        return min(context, 2 * window) if window and tokens == 1 else context

    def attention(self, tokens: int, context: int, resident: bool) -> Attention:
        """Return the cycles of a chunk; `resident`: the activations of the step are in the scratchpad."""

        def at_context(count: int) -> Sequence[int]:
            return all_between(
                CONTEXTS, context, lambda point: self._attentions[count, self._attended(count, point), resident]
            )

        return Attention(*all_between(CHUNKS, tokens, at_context))

    def _following_chunk(self, resident: bool, chunk: tuple[int, int]) -> int:
        """Return the cycles of a chunk (tokens, context) in a layer; half of its append overlaps the chunk before."""
        positions, append, attend = self.attention(*chunk, resident)
        return positions + append // 2 + attend

    def cycles(self, rows: int, chunks: Sequence[tuple[int, int]], resident: bool, is_concurrent: bool) -> int:
        """Return the cycles of a layer in a step of `rows` with (tokens, context) of each request, which attend
        in parallel if `is_concurrent`."""
        cycles = self.products.layer[rows]
        if is_concurrent:
            return cycles + sum(self._batches[len(chunks), context, resident] for _, context in chunks) // len(chunks)
        _, append, _ = self.attention(*chunks[0], resident)
        return cycles + append - append // 2 + sum(map(self._following[resident].__getitem__, chunks))

    # -- parallel requests -------------------------------------------------------------------------------------

    def _batch(self, key: tuple[int, int, bool]) -> int:
        requests, context, resident = key
        full = self._concurrency
        if requests > 2 * full:  # every further round takes as long as the second
            one_round, two_rounds = (self._batches[rounds * full, context, resident] for rounds in (1, 2))
            return one_round + (requests - full) * (two_rounds - one_round) // full

        def at_count(count: int) -> int:
            return between(
                CONTEXTS, context, lambda point: self._simulated_batches[count, self._attended(1, point), resident]
            )

        return between([*(at for at in ROUND if at < full), full, 2 * full], requests, at_count)

    def _simulate_batch(self, key: tuple[int, int, bool]) -> int:
        requests, context, resident = key
        chunks = [Chunk(1, context)] * requests
        return sum(self._simulator.run(chunks, Parts.ATTENTION, 1, self.kv, resident, self._concurrency).attention(0))


class StepTimes:
    """Cycles of steps on one device."""

    def __init__(
        self, simulator: Simulator, kv: KvMethod, layers: int = 0, concurrency: int = 1,
        products: ProductTimes | None = None,
    ) -> None:  # fmt: skip
        """`layers`: 0 for all of the shape; `concurrency`: number of requests that generate in parallel, 1: in
        sequence; `products`: times of `simulator.products`, which may be shared."""
        products = products or ProductTimes(simulator.products)
        self.simulator, self._concurrency = simulator, concurrency
        self.shape = simulator.shape
        self.layers = layers or self.shape.layers
        counts = Counter(map(self.shape.layer_shape, range(self.layers)))
        self.kinds = [
            (LayerTimes(replace(simulator, shape=shape), products.of_shape(shape), kv, concurrency), count)
            for shape, count in counts.items()
        ]
        """(times, number) of layers of each shape; the rest of the step is simulated with layers of the last shape."""
        self.layer = self.kinds[-1][0]
        self.parts, self.kv = self.layer.products, kv
        self._began = products.total
        self._all = products
        self._swaps = Memo[tuple[int, bool, int], int](lambda key: simulator.swap(*key, kv))
        self._timed_steps = Memo(self._run)

    @property
    def runs(self) -> int:
        """Number of simulations of attention and of whole steps."""
        return self._swaps.count + self._timed_steps.count + sum(layer.runs for layer, _ in self.kinds)

    @property
    def simulated(self) -> int:
        """Number of simulations of parts and steps, without those that `products` contained before."""
        return self.runs + self._all.total - self._began

    def cycles(self, chunks: Sequence[tuple[int, int]]) -> int:
        """Return the cycles of a step with (tokens, context) of each request, composed of its parts."""
        rows, is_concurrent = sum(tokens for tokens, _ in chunks), self._side_by_side(chunks) > 1
        resident = rows <= self.parts.resident_rows
        layers = sum(count * layer.cycles(rows, chunks, resident, is_concurrent) for layer, count in self.kinds)
        return self.parts.edge[rows, len(chunks)] + layers

    def _side_by_side(self, chunks: Sequence[tuple[int, int]]) -> int:
        """Return the number of requests that attend in parallel: more than 1 only in a generation step."""
        return self._concurrency if all(tokens == 1 for tokens, _ in chunks) else 1

    def swap(self, tokens: int, out: bool, block_size: int) -> int:
        """Return the cycles of the DMA copies of a request's keys and values to swap space (`out`) or from it; all
        layers take as long as the first."""

        return self.layers * between(CONTEXTS, tokens, lambda at: self._swaps[at, out, block_size] if at else 0)

    # -- the check ---------------------------------------------------------------------------------------------

    def _run(self, step: tuple[tuple[tuple[int, int], ...], int]) -> Timed:
        """Simulate a step of (chunks, layers)."""
        chunks, layers = step
        concurrency = self._side_by_side(chunks)
        parts = [Chunk(*chunk) for chunk in chunks]
        return self.simulator.run(parts, Parts.ALL, layers, self.kv, concurrency=concurrency)

    def check(self, step: int, chunks: Sequence[tuple[int, int]], most: int = 2) -> Check:
        """Simulate a whole step of `most` layers, or until layers of all shapes have occurred twice; other layers take
        as long as the last of their shape."""
        period = self.shape.whole_every or 1
        layers = min(most if len(self.kinds) == 1 else self.shape.dense_layers + 2 * period, self.layers)
        run = self._timed_steps[tuple(chunks), layers]
        lengths = [end - begin for begin, end in pairwise((0, *run.ends))][-period:]
        cycles = run.cycles + sum(lengths[index % len(lengths)] for index in range(self.layers - layers))
        tokens = sum(tokens for tokens, _ in chunks)
        return Check(step, len(chunks), tokens, layers, cycles, self.cycles(chunks))

    def linearity(self, chunks: Sequence[tuple[int, int]]) -> float | None:
        """Return the nonlinearity of a step of `MOST` layers, relative to the step: the difference of the layers after
        the second from the second. None for a model of at most two layers, or of layers that differ."""
        if len(self.kinds) > 1:
            return None
        run = self._timed_steps[tuple(chunks), min(MOST, self.layers)]
        if len(run.ends) < 3:
            return None
        first, second, *_, last = run.ends
        return ((len(run.ends) - 2) * (second - first) - (last - second)) / run.cycles
