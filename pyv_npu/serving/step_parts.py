"""Simulations of the parts of a step at CA_HYBRID, of commands that the compiler made.

Operands of attention lie in the scratchpad or in DRAM, as they do in the step. A part is counted from the end of the
layer before it.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

from npu_device.abi.memory_map import DRAM_BASE, DRAM_CORE_VISIBLE
from npu_device.config import KvQuantConfig, NpuConfig
from npu_device.issue.plans import Plans
from npu_device.kv_quant.methods import FP16, KvMethod
from pyv_npu.workloads.compiled import target_of
from pyv_npu.workloads.timing import layer_ends
from toolchain.codegen.commands import AUTOMATIC, MappingOptions, Target
from toolchain.decoders.mixed_step import Chunk, Parts, compile_mixed_step, is_resident
from toolchain.decoders.shapes import KV_BITS, Job, Shape
from toolchain.decoders.swap import CacheRun, block_bytes, copies

ROOM = 256_000_000_000
"""Bytes of DRAM of a simulation at least: what fits is a question of blocks."""


class Timed(NamedTuple):
    """A simulation."""

    layers: dict[str, int]
    """Cycle in which the last command of each layer of commands completed."""
    ends: tuple[int, ...]
    """Cycle of each layer of the model."""

    @property
    def cycles(self) -> int:
        return max(self.layers.values())

    @property
    def period(self) -> int:
        """From the end of the last layer but one to that of the last."""
        return self.ends[-1] - self.ends[-2] if len(self.ends) > 1 else self.ends[-1]

    def attention(self, layer: int) -> tuple[int, int, int]:
        """Cycles of positions, appends and attention of a layer, each from the end of the part before."""
        ends = [self.layers[f"layer{layer}.attention.qkv"]]
        for part in (".rope.", ".update", ".heads"):
            part_ends = [
                end for name, end in self.layers.items() if name.startswith(f"layer{layer}.attention") and part in name
            ]
            ends.append(max(part_ends, default=ends[-1]))
        return ends[1] - ends[0], ends[2] - ends[1], ends[3] - ends[2]

    @property
    def between(self) -> int:
        """From the end of attention in the first layer to its begin in the second."""
        return self.layers["layer1.attention.qkv"] - self.layers["layer0.attention.heads"]


@dataclass(frozen=True)
class Simulator:
    """A model on a device."""

    npu: NpuConfig
    shape: Shape
    weight_bits: int
    mapping: MappingOptions = AUTOMATIC
    """Mapping of products; where the compiler decides, by its estimate: there are many steps."""

    @property
    def target(self) -> Target:
        """The device as the compiler sees it."""
        return target_of(self._roomy, self.mapping)._replace(measured=None)

    def run(
        self,
        chunks: Sequence[Chunk],
        parts: Parts,
        layers: int = 1,
        kv: KvMethod = FP16,
        resident: bool = True,
        beside: int = 1,
    ) -> Timed:
        """Simulate parts of a step; not `resident`: activations are in DRAM however few they are. `beside`: as of
        `compile_mixed_step`."""
        npu = self._roomy
        bits = KV_BITS if kv.encoded else kv.bits
        shape = replace(self.shape, layers=max(layers, self.shape.layers))  # the time between layers needs two
        job = Job(shape, layers, 1, 1, self.weight_bits, lambda layer, head: bits, storage=kv)
        passes = "all" if resident else "all,-residency"
        step = compile_mixed_step(job, self.target, chunks, parts, passes, beside)
        layer_cycles = dict(layer_ends(step.commands, npu, step.memory, self.plans))
        ends = dict.fromkeys(range(layers), 0)
        for name, cycle in layer_cycles.items():
            if name.startswith("layer"):
                index = int(name[len("layer") :].partition(".")[0])
                ends[index] = max(ends[index], cycle)
        return Timed(layer_cycles, tuple(ends.values()))

    @property
    def products(self) -> "Simulator":
        """Simulator of all but attention: devices that differ in `npu.kv_quant` alone share it."""
        return replace(self, npu=replace(self.npu, kv_quant=KvQuantConfig()))

    @cached_property
    def plans(self) -> Plans:
        """Plans of commands that its simulations have in common."""
        return Plans(self._roomy)

    @property
    def _roomy(self) -> NpuConfig:
        """Device with memory for whatever is simulated."""
        return replace(self.npu, dram=replace(self.npu.dram, size=max(self.npu.dram.size, ROOM)))

    def swap(self, tokens: int, out: bool, block_size: int, kv: KvMethod) -> int:
        """Cycles of the copies of a request's keys and values in a layer to swap space, or back."""
        npu, shape, at, runs = self._roomy, self.shape, DRAM_BASE + DRAM_CORE_VISIBLE, list[CacheRun]()
        sides = kv.written(shape.cache_heads, shape.cache_dim)[: shape.cache_sides]
        for token, rows in [(size, len(list(run))) for side in sides for size, run in groupby(side)]:
            runs.append(CacheRun(at, rows, token, tokens * token))
            at += rows * tokens * token
        size = block_bytes(runs, block_size)
        blocks = range(at, at + -(-tokens // block_size) * size, size)
        commands = copies(runs, tokens, block_size, blocks, target_of(npu), out)
        return max(end for _, end in layer_ends(commands, npu, plans=self.plans))


def spaced(fine: int, top: int, per_octave: int) -> list[int]:
    """Points of an axis: 0, steps of `fine` up to four of them, then some for each doubling, to `top` or beyond."""
    points = [0, *range(fine, 4 * fine, fine)]
    octave = 4 * fine
    while points[-1] < top:
        points += [octave + octave * index // per_octave for index in range(per_octave)]
        octave *= 2
    return points


def between(points: Sequence[int], at: int, value: Callable[[int], int]) -> int:
    """Return the value at a place, linear between the points around it."""
    return all_between(points, at, lambda point: (value(point),))[0]


def all_between(points: Sequence[int], at: int, values: Callable[[int], Sequence[int]]) -> Sequence[int]:
    """Return several values at a place, each linear between the points around it."""
    index = bisect_left(points, at)
    high = points[index]
    if high == at or index == 0:
        return values(high)
    low = points[index - 1]
    return [
        first + (last - first) * (at - low) // (high - low)
        for first, last in zip(values(low), values(high), strict=True)
    ]


ROWS = [1, *(at + more for at in (4, 16, 32, *spaced(32, 1 << 20, 2)[2:]) for more in (0, 1))]
"""Rows of products that are simulated first: tiles are full at most of them, and a row more begins another."""
STRAIGHT = 250
"""Times are interpolated between two points where the midpoint, and the midpoint of a half, is within one part in so
many of the line. Elsewhere each half is split further: tiles change with the rows, and times of products with them, by
up to a fifth."""
CLOSEST = 256
"""Points are not closer than one part in so many of their rows."""
EDGES = [1, *(32 * 8**power for power in range(6))]
"""Rows of which all but the layers is simulated."""
LM_HEAD_REQUESTS = [1, 4, 16, 32, *(at for at in spaced(64, 1 << 20, 2) if at >= 64)]
"""Requests whose output matrix is simulated."""


@dataclass
class ProductTimes:
    """Cycles of all but attention: they do not depend on how keys and values are stored."""

    simulator: Simulator
    simulated: int = 0
    _layers: dict[int, int] = field(default_factory=dict)
    _edges: dict[int, int] = field(default_factory=dict)
    _heads: dict[int, int] = field(default_factory=dict)
    _around: dict[tuple[int, int], int] = field(default_factory=dict)
    _products: dict[int, int] = field(default_factory=dict)
    _by_shape: "dict[Shape, ProductTimes]" = field(default_factory=dict)

    @property
    def _cycles(self) -> dict[str, dict[int, int]]:
        """Cycles by size, of each part."""
        return {"layers": self._layers, "edges": self._edges, "heads": self._heads}

    def table(self) -> dict[str, list[list[int]]]:
        """Cycles that were simulated, to be kept."""
        return {name: [[*item] for item in sorted(part.items())] for name, part in self._cycles.items()}

    def restore(self, table: Mapping[str, Sequence[Sequence[int]]]) -> None:
        """Take on what `table` gave."""
        for name, part in self._cycles.items():
            part.update((size, cycles) for size, cycles in table.get(name, ()))

    @cached_property
    def resident_rows(self) -> int:
        """The most rows of a step of which the operands of attention stay in the scratchpad."""
        simulator = self.simulator
        job, target = Job(simulator.shape, 1, 1, 1, simulator.weight_bits), target_of(simulator.npu)
        low, high = 0, 1
        while is_resident(job, target, high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if is_resident(job, target, middle) else (low, middle)
        return low

    def of_shape(self, shape: Shape) -> "ProductTimes":
        """Return the times of another kind of layers; a sliding window does not change those of products."""
        products = replace(shape, window=0)
        if products == replace(self.simulator.shape, window=0, whole_every=0):
            return self
        return self._by_shape.setdefault(products, ProductTimes(replace(self.simulator, shape=products)))

    @property
    def total(self) -> int:
        """Simulations of all kinds of layers."""
        return self.simulated + sum(other.simulated for other in self._by_shape.values())

    def edge(self, rows: int, requests: int) -> int:
        """Cycles of a step around the layers."""
        if (rows, requests) not in self._around:
            head = between(LM_HEAD_REQUESTS, requests, self._head_at) - self._head_at(1)
            self._around[rows, requests] = between(EDGES, rows, self._edge_at) + head
        return self._around[rows, requests]

    def layer(self, rows: int) -> int:
        """Cycles of the products of a layer."""
        if rows not in self._products:
            self._products[rows] = between(self._straight(rows), rows, self._layer_at)
        return self._products[rows]

    def _straight(self, rows: int) -> list[int]:
        """Points around some rows between which times lie on a line, as two halvings in succession show: one
        midpoint lies on the line of a curve that is point-symmetric about it."""
        at = bisect_left(ROWS, rows)
        near, straight = ROWS[max(0, at - 1) : at + 1], False
        while len(near) == 2 and near[0] < rows < near[1]:
            low, high = near
            middle = (low + high) // 2
            if high - low <= max(1, low // CLOSEST):
                break
            less, half, more = map(self._layer_at, (low, middle, high))
            line = less + (more - less) * (middle - low) // (high - low)
            near, before = [low, middle] if rows <= middle else [middle, high], straight
            straight = abs(half - line) * STRAIGHT <= line
            if before and straight:
                break
        return near

    def _layer_at(self, rows: int) -> int:
        if rows not in self._layers:
            self.simulated += 1
            self._layers[rows] = self.simulator.run([Chunk(rows, 0)], Parts.BETWEEN, 2).between
        return self._layers[rows]

    def _edge_at(self, rows: int) -> int:
        """Cycles around the layers, with one row of the output matrix."""
        if rows not in self._edges:
            self.simulated += 1
            run = self.simulator.run([Chunk(rows, 0)], Parts.PRODUCTS, 2)
            self._edges[rows] = run.cycles - 2 * run.period
            self._layers.setdefault(rows, run.between)
        return self._edges[rows]

    def _head_at(self, requests: int) -> int:
        if requests not in self._heads:
            self.simulated += 1
            run = self.simulator.run([Chunk(1, 0)] * requests, Parts.HEAD)
            self._heads[requests] = run.cycles - run.layers["x"]
        return self._heads[requests]
