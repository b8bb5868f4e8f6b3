"""What a step of many requests takes: simulated cycles of its parts, put together, and checked against whole steps.

    step(chunks) = edge(rows) + head(requests) + layers x (products(rows) + sum of attention(tokens, context))

Every figure on the right comes from simulations at CA_HYBRID of commands that the compiler made: products of a layer
from a prompt through two layers, less its attention; attention from its commands alone. Between the points that were
simulated it is linear; `check` simulates steps of the run whole, and the summary states the largest error.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from npu_device.config import NpuConfig
from pyv_npu.serving.figures import KvForm
from pyv_npu.workloads.compiled import target_of
from pyv_npu.workloads.timing import run_commands
from toolchain.decoders.mixed_step import Chunk, Parts, compile_mixed_step
from toolchain.decoders.shapes import Job, Shape

ROOM = 256_000_000_000
"""Bytes of DRAM of a simulation at least: what fits is a question of blocks."""
FINE = 64
"""Tokens from point to point at the begin of an axis of contexts."""
PER_OCTAVE = 4
"""Points for each doubling, beyond."""


class Check(NamedTuple):
    """A step of the run, simulated whole."""

    step: int
    requests: int
    tokens: int
    layers: int
    """That were simulated; the others take as long as the last."""
    simulated: int
    used: int

    @property
    def error(self) -> float:
        """Of what was used, relative to what was simulated."""
        return (self.used - self.simulated) / self.simulated


class Timed(NamedTuple):
    """A simulation."""

    cycles: int
    ends: tuple[int, ...]
    """Of each layer."""

    @property
    def period(self) -> int:
        """From the end of the last layer but one to that of the last."""
        return self.ends[-1] - self.ends[-2] if len(self.ends) > 1 else self.ends[-1]


def spaced(fine: int, top: int, per_octave: int = PER_OCTAVE) -> list[int]:
    """Points of an axis: 0, steps of `fine` up to four of them, then some for each doubling, to `top` or beyond."""
    made = [0, *range(fine, 4 * fine, fine)]
    octave = 4 * fine
    while made[-1] < top:
        made += [octave + octave * index // per_octave for index in range(per_octave)]
        octave *= 2
    return made


ROWS = [1, 4, 16, 32, *(at for at in spaced(64, 1 << 20, 2) if at >= 64 and at != 192)]
"""Rows of products that are simulated."""
CHUNKS = [1, 4, 16, 64, *(at for at in spaced(64, 1 << 20, 2) if at > 64)]
"""Tokens of chunks whose attention is simulated."""
CONTEXTS = spaced(FINE, 1 << 25)


@dataclass
class StepTimes:
    """Cycles of steps on one device."""

    npu: NpuConfig
    shape: Shape
    kv: KvForm
    weight_bits: int = 16
    layers: int = 0
    """0: all of the shape."""
    simulated: int = 0
    """Runs of parts."""
    _prompts: dict[int, Timed] = field(default_factory=dict)
    _one: list[int] = field(default_factory=list)
    """attention(1, context) by context, as far as it was asked for."""

    def __post_init__(self) -> None:
        self.layers = self.layers or self.shape.layers
        room = max(self.npu.dram.size, ROOM)  # steps of two layers are simulated, whatever the model has
        self._npu = replace(self.npu, dram=replace(self.npu.dram, size=room))
        self._target = target_of(self._npu)
        self._known: dict[tuple[object, ...], int] = {}
        self._sums: dict[tuple[object, ...], int] = {}

    # -- simulations -------------------------------------------------------------------------------------------

    def _run(self, chunks: Sequence[Chunk], parts: Parts, layers: int = 1) -> Timed:
        job = Job(self.shape, layers, 1, 1, self.weight_bits, lambda layer, head: self.kv.bits)
        made = compile_mixed_step(job, self._target, chunks, parts, outliers=self.kv.outliers)
        self.simulated += 1
        run = run_commands(made.commands, self._npu, memory=made.memory)
        ends = dict.fromkeys(range(layers), 0)
        for name, cycle in run.layers:
            if name.startswith("layer"):
                index = int(name[len("layer") :].partition(".")[0])
                ends[index] = max(ends[index], cycle)
        return Timed(run.cycles, tuple(ends.values()))

    def _once(self, key: tuple[object, ...], make: Callable[[], int]) -> int:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def _prompt(self, rows: int) -> Timed:
        """A step of one prompt, of two layers."""
        if rows not in self._prompts:
            self._prompts[rows] = self._run([Chunk(rows, 0)], Parts.ALL, 2)
        return self._prompts[rows]

    def _layer_at(self, rows: int) -> int:
        return self._prompt(rows).period - self._attention_at(rows, 0)

    def _edge_at(self, rows: int) -> int:
        """What is around the layers, with one row of the output matrix."""
        made = self._prompt(rows)
        return made.cycles - 2 * made.period

    def _head_at(self, requests: int) -> int:
        """The output matrix of more rows than one, less that of one."""
        return self._head_of(requests) - self._head_of(1)

    def _head_of(self, rows: int) -> int:
        return self._once(("head", rows), lambda: self._run([Chunk(1, 0)] * rows, Parts.HEAD).cycles)

    def _attention_at(self, tokens: int, context: int) -> int:
        if self.shape.window and tokens == 1 and context > 2 * self.shape.window:
            return self._attention_at(1, 2 * self.shape.window)
        copies = 2 if tokens == 1 else 1  # of one token alone the latency would count

        def make() -> int:
            return self._run([Chunk(tokens, context)] * copies, Parts.ATTENTION).cycles // copies

        return self._once(("attention", tokens, context), make)

    # -- sums --------------------------------------------------------------------------------------------------

    def attention(self, tokens: int, context: int) -> int:
        """Cycles of positions, append and attention of a chunk in one layer."""
        if tokens == 1:
            known = self._one
            while len(known) <= context:
                known.append(between(CONTEXTS, len(known), lambda at: self._attention_at(1, at)))
            return known[context]
        key = ("chunk", tokens, context)
        if key not in self._sums:
            self._sums[key] = between(
                CHUNKS, tokens, lambda m: between(CONTEXTS, context, lambda at: self._attention_at(m, at))
            )
        return self._sums[key]

    def products(self, rows: int, requests: int) -> tuple[int, int]:
        """(cycles around the layers, cycles of the products of a layer)."""
        key = ("rows", rows)
        if key not in self._sums:
            self._sums[key] = between(ROWS, rows, self._layer_at)
            self._sums["edge", rows] = between(ROWS, rows, self._edge_at)
        key = ("head", requests)
        if key not in self._sums:
            self._sums[key] = between(ROWS, requests, self._head_at)
        return self._sums["edge", rows] + self._sums[key], self._sums["rows", rows]

    def cycles(self, chunks: Sequence[tuple[int, int]]) -> int:
        """Of a step: (tokens, context) of each request, as composed."""
        edge, layer = self.products(sum(tokens for tokens, _ in chunks), len(chunks))
        for tokens, context in chunks:
            layer += self.attention(tokens, context)
        return edge + self.layers * layer

    # -- the check ---------------------------------------------------------------------------------------------

    def check(self, step: int, chunks: Sequence[tuple[int, int]]) -> Check:
        """A step simulated whole, of two layers: the others take as long as the second."""
        layers = min(2, self.layers)
        made = self._run([Chunk(*one) for one in chunks], Parts.ALL, layers)
        whole = made.cycles + (self.layers - layers) * made.period
        tokens = sum(tokens for tokens, _ in chunks)
        return Check(step, len(chunks), tokens, layers, whole, self.cycles(chunks))

    def linearity(self, chunks: Sequence[tuple[int, int]], most: int = 4) -> float | None:
        """How far the cycles of a step of `most` layers are from those of two, continued; relative to them. None for a
        model of two layers."""
        most = min(most, self.layers)
        if most < 3:
            return None
        few, many = (self._run([Chunk(*one) for one in chunks], Parts.ALL, layers) for layers in (2, most))
        return (few.cycles + (most - 2) * few.period - many.cycles) / many.cycles


def between(points: Sequence[int], at: int, value: Callable[[int], int]) -> int:
    """The value at a place, linear between the points around it."""
    index = bisect_left(points, at)
    high = points[index]
    if high == at or index == 0:
        return value(high)
    low = points[index - 1]
    first, last = value(low), value(high)
    return first + (last - first) * (at - low) // (high - low)
