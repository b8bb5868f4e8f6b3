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
from itertools import pairwise
from typing import NamedTuple

from npu_device.kv_quant.methods import KvMethod
from pyv_npu.serving.step_parts import ProductTimes, Simulator, Timed, all_between, between, spaced
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

    turn: int
    """Cycles of positions, which precede attention for all chunks in sequence."""
    append: int
    """Cycles of separate append commands; 0: attention appends itself."""
    attend: int


class _FollowingChunks(dict[tuple[int, int], int]):
    """Cycles of a chunk (tokens, context) in a layer; half of its append overlaps the chunk before."""

    def __init__(self, layer: "LayerTimes", resident: bool) -> None:
        self._layer, self._resident = layer, resident

    def __missing__(self, chunk: tuple[int, int]) -> int:
        turn, append, attend = self._layer.attention(*chunk, self._resident)
        self[chunk] = cycles = turn + append // 2 + attend
        return cycles


class LayerTimes:
    """Cycles of a layer of one shape."""

    def __init__(self, simulator: Simulator, products: ProductTimes, kv: KvMethod, concurrency: int) -> None:
        """`simulator`: of a model whose layers all have this shape; `concurrency`: as in `StepTimes`."""
        self.products, self.shape, self.kv, self._concurrency = products, simulator.shape, kv, concurrency
        self._simulator = simulator
        self.runs = 0
        self._attentions: dict[tuple[int, int, bool], Attention] = {}
        self._following = [_FollowingChunks(self, resident) for resident in (False, True)]
        self._sums_of_batches: dict[tuple[int, int, bool], int] = {}
        self._batches: dict[tuple[int, int, bool], int] = {}

    def table(self) -> list[list[int]]:
        """Return all simulated times of attention, for `restore`."""
        return [[*key[:2], int(key[2]), *cycles] for key, cycles in sorted(self._attentions.items())]

    def restore(self, rows: Sequence[Sequence[int]]) -> None:
        """Restore the result of `table`."""
        for tokens, context, resident, *parts in rows:
            self._attentions[tokens, context, bool(resident)] = Attention(*parts)

    def _attention_at(self, tokens: int, context: int, resident: bool) -> Attention:
        if self.shape.cache_window and tokens == 1 and context > 2 * self.shape.cache_window:
            return self._attention_at(1, 2 * self.shape.cache_window, resident)
        key = tokens, context, resident
        if key not in self._attentions:
            self.runs += 1
            chunk = Chunk(tokens, context)
            run = self._simulator.run([chunk], Parts.ATTENTION, 1, self.kv, resident)
            self._attentions[key] = Attention(*run.attention(0))
        return self._attentions[key]

    def attention(self, tokens: int, context: int, resident: bool) -> Attention:
        """Return the cycles of a chunk; `resident`: the activations of the step are in the scratchpad."""

        def at_context(points: int) -> Sequence[int]:
            return all_between(CONTEXTS, context, lambda place: self._attention_at(points, place, resident))

        return Attention(*all_between(CHUNKS, tokens, at_context))

    def cycles(self, rows: int, chunks: Sequence[tuple[int, int]], resident: bool, is_concurrent: bool) -> int:
        """Return the cycles of a layer in a step of `rows` with (tokens, context) of each request, which attend
        in parallel if `is_concurrent`."""
        cycles = self.products.layer(rows)
        if is_concurrent:
            return cycles + sum(self._batch(len(chunks), context, resident) for _, context in chunks) // len(chunks)
        _, append, _ = self.attention(*chunks[0], resident)
        return cycles + append - append // 2 + sum(map(self._following[resident].__getitem__, chunks))

    # -- parallel requests -------------------------------------------------------------------------------------

    def _batch(self, requests: int, context: int, resident: bool) -> int:
        """Return the cycles of attention of parallel requests of one context in a layer."""
        key = requests, context, resident
        if key not in self._sums_of_batches:
            full = self._concurrency
            if requests > 2 * full:  # every further round takes as long as the second
                one_round, two_rounds = (self._batch(rounds * full, context, resident) for rounds in (1, 2))
                cycles = one_round + (requests - full) * (two_rounds - one_round) // full
            else:
                counts = [*(at for at in ROUND if at < full), full, 2 * full]
                cycles = between(counts, requests, lambda count: self._context(count, context, resident))
            self._sums_of_batches[key] = cycles
        return self._sums_of_batches[key]

    def _context(self, requests: int, context: int, resident: bool) -> int:
        return between(CONTEXTS, context, lambda place: self._batch_at(requests, place, resident))

    def _batch_at(self, requests: int, context: int, resident: bool) -> int:
        if self.shape.cache_window and context > 2 * self.shape.cache_window:
            context = 2 * self.shape.cache_window
        key = requests, context, resident
        if key not in self._batches:
            self.runs += 1
            chunks = [Chunk(1, context)] * requests
            run = self._simulator.run(chunks, Parts.ATTENTION, 1, self.kv, resident, self._concurrency)
            self._batches[key] = sum(run.attention(0))
        return self._batches[key]


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
        self.parts, self.kv = self.kinds[-1][0].products, kv
        self._began = products.total
        self._all = products
        self._runs = 0
        self._swaps: dict[tuple[int, bool, int], int] = {}
        self._timed_steps: dict[tuple[tuple[tuple[int, int], ...], int], Timed] = {}

    @property
    def runs(self) -> int:
        """Number of simulations of attention and of whole steps."""
        return self._runs + sum(layer.runs for layer, _ in self.kinds)

    def table(self) -> list[list[int]]:
        """Return all simulated times of attention of a model of equal layers, for `restore`."""
        return self.kinds[-1][0].table()

    def restore(self, rows: Sequence[Sequence[int]]) -> None:
        """Restore the result of `table`."""
        self.kinds[-1][0].restore(rows)

    @property
    def simulated(self) -> int:
        """Number of simulations of parts and steps, without those that `products` contained before."""
        return self.runs + self._all.total - self._began

    def cycles(self, chunks: Sequence[tuple[int, int]]) -> int:
        """Return the cycles of a step with (tokens, context) of each request, composed of its parts."""
        rows, is_concurrent = sum(tokens for tokens, _ in chunks), self._side_by_side(chunks) > 1
        resident = rows <= self.parts.resident_rows
        layers = sum(count * layer.cycles(rows, chunks, resident, is_concurrent) for layer, count in self.kinds)
        return self.parts.edge(rows, len(chunks)) + layers

    def _side_by_side(self, chunks: Sequence[tuple[int, int]]) -> int:
        """Return the number of requests that attend in parallel: more than 1 only in a generation step."""
        return self._concurrency if all(tokens == 1 for tokens, _ in chunks) else 1

    def swap(self, tokens: int, out: bool, block_size: int) -> int:
        """Return the cycles of the DMA copies of a request's keys and values to swap space (`out`) or from it; all
        layers take as long as the first."""

        def value(at: int) -> int:
            key = at, out, block_size
            if key not in self._swaps:
                self._runs += bool(at)
                self._swaps[key] = self.simulator.swap(at, out, block_size, self.kv) if at else 0
            return self._swaps[key]

        return self.layers * between(CONTEXTS, tokens, value)

    # -- the check ---------------------------------------------------------------------------------------------

    def _run(self, chunks: Sequence[tuple[int, int]], layers: int) -> Timed:
        key = tuple(chunks), layers
        if key not in self._timed_steps:
            self._runs += 1
            parts = [Chunk(*chunk) for chunk in chunks]
            concurrency = self._side_by_side(chunks)
            self._timed_steps[key] = self.simulator.run(parts, Parts.ALL, layers, self.kv, concurrency=concurrency)
        return self._timed_steps[key]

    def check(self, step: int, chunks: Sequence[tuple[int, int]], most: int = 2) -> Check:
        """Simulate a whole step of `most` layers, or until layers of all shapes have occurred twice; other layers take
        as long as the last of their shape."""
        turn = self.shape.whole_every or 1
        layers = min(most if len(self.kinds) == 1 else self.shape.dense_layers + 2 * turn, self.layers)
        run = self._run(chunks, layers)
        lengths = [end - begin for begin, end in pairwise((0, *run.ends))][-turn:]
        cycles = run.cycles + sum(lengths[index % len(lengths)] for index in range(self.layers - layers))
        tokens = sum(tokens for tokens, _ in chunks)
        return Check(step, len(chunks), tokens, layers, cycles, self.cycles(chunks))

    def linearity(self, chunks: Sequence[tuple[int, int]]) -> float | None:
        """Return the nonlinearity of a step of `MOST` layers, relative to the step: the difference of the layers after
        the second from the second. None for a model of at most two layers, or of layers that differ."""
        if len(self.kinds) > 1:
            return None
        run = self._run(chunks, min(MOST, self.layers))
        if len(run.ends) < 3:
            return None
        first, second, *_, last = run.ends
        return ((len(run.ends) - 2) * (second - first) - (last - second)) / run.cycles
