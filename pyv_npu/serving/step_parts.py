"""Simulations of the parts of a step at CA_HYBRID, on commands of the compiler.

Operands of attention are in the scratchpad or in DRAM, as in the step. The time of a part begins at the end of the
layer before it.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple, TypeVar

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

K = TypeVar("K")
V = TypeVar("V")
MIN_DRAM_BYTES = 256_000_000_000
"""Minimum bytes of DRAM in a simulation: capacity is checked in blocks, not here."""


class Timed(NamedTuple):
    """Result of a simulation."""

    layers: dict[str, int]
    """Layer of commands -> cycle in which its last command completes."""
    ends: tuple[int, ...]
    """Last cycle of each layer of the model."""

    @property
    def cycles(self) -> int:
        return max(self.layers.values())

    @property
    def period(self) -> int:
        """Cycles of the last layer."""
        return self.ends[-1] - self.ends[-2] if len(self.ends) > 1 else self.ends[-1]

    def attention(self, layer: int) -> tuple[int, int, int]:
        """Return the cycles of positions, appends and attention of a layer, each from the end of the part before."""
        ends = [self.layers[f"layer{layer}.attention.qkv"]]
        for part in (".rope.", ".update", ".heads"):
            part_ends = [
                end for name, end in self.layers.items() if name.startswith(f"layer{layer}.attention") and part in name
            ]
            ends.append(max(part_ends, default=ends[-1]))
        return ends[1] - ends[0], ends[2] - ends[1], ends[3] - ends[2]

    @property
    def between(self) -> int:
        """Cycles from the end of attention in the first layer to its begin in the second."""
        return self.layers["layer1.attention.qkv"] - self.layers["layer0.attention.heads"]


@dataclass(frozen=True)
class Simulator:
    """Simulator of a model on a device."""

    npu: NpuConfig
    shape: Shape
    weight_bits: int
    mapping: MappingOptions = AUTOMATIC
    """Mapping of products; the compiler chooses by its estimate, as simulation of each step would take too long."""

    @property
    def target(self) -> Target:
        """Device as seen by the compiler."""
        return target_of(self._device, self.mapping)._replace(measured=None)

    def run(
        self,
        chunks: Sequence[Chunk],
        parts: Parts,
        layers: int = 1,
        kv: KvMethod = FP16,
        resident: bool = True,
        concurrency: int = 1,
    ) -> Timed:
        """Simulate parts of a step; not `resident`: activations are always in DRAM. `concurrency`: as in
        `compile_mixed_step`."""
        npu = self._device
        bits = KV_BITS if kv.encoded else kv.bits
        shape = replace(self.shape, layers=max(layers, self.shape.layers))  # the time between layers needs two
        job = Job(shape, layers, 1, 1, self.weight_bits, lambda layer, head: bits, storage=kv)
        passes = "all" if resident else "all,-residency"
        step = compile_mixed_step(job, self.target, chunks, parts, passes, concurrency)
        layer_cycles = dict(layer_ends(step.commands, npu, step.memory, self.plans))
        ends = dict.fromkeys(range(layers), 0)
        for name, cycle in layer_cycles.items():
            if name.startswith("layer"):
                index = int(name[len("layer") :].partition(".")[0])
                ends[index] = max(ends[index], cycle)
        return Timed(layer_cycles, tuple(ends.values()))

    @property
    def products(self) -> "Simulator":
        """Simulator of everything but attention, shared by devices that differ only in `npu.kv_quant`."""
        return replace(self, npu=replace(self.npu, kv_quant=KvQuantConfig()))

    @cached_property
    def plans(self) -> Plans:
        """Plans of commands, shared by all simulations."""
        return Plans(self._device)

    @property
    def _device(self) -> NpuConfig:
        """Device with sufficient DRAM for every simulation."""
        return replace(self.npu, dram=replace(self.npu.dram, size=max(self.npu.dram.size, MIN_DRAM_BYTES)))

    def swap(self, tokens: int, out: bool, block_size: int, kv: KvMethod) -> int:
        """Return the cycles of the copies of a request's keys and values in a layer to or from swap space."""
        npu, shape, at, runs = self._device, self.shape, DRAM_BASE + DRAM_CORE_VISIBLE, list[CacheRun]()
        sides = kv.written(shape.cache_heads, shape.cache_dim)[: shape.cache_sides]
        for token, rows in [(size, len(list(run))) for side in sides for size, run in groupby(side)]:
            runs.append(CacheRun(at, rows, token, tokens * token))
            at += rows * tokens * token
        size = block_bytes(runs, block_size)
        blocks = range(at, at + -(-tokens // block_size) * size, size)
        commands = copies(runs, tokens, block_size, blocks, target_of(npu), out)
        return max(end for _, end in layer_ends(commands, npu, plans=self.plans))


def spaced(fine: int, top: int, per_octave: int) -> list[int]:
    """Return the points of an axis: 0, four steps of `fine`, then `per_octave` per doubling, to at least `top`."""
    points = [0, *range(fine, 4 * fine, fine)]
    octave = 4 * fine
    while points[-1] < top:
        points += [octave + octave * index // per_octave for index in range(per_octave)]
        octave *= 2
    return points


def between(points: Sequence[int], at: int, value: Callable[[int], int]) -> int:
    """Interpolate a value linearly between the points around `at`."""
    return all_between(points, at, lambda point: (value(point),))[0]


def all_between(points: Sequence[int], at: int, values: Callable[[int], Sequence[int]]) -> Sequence[int]:
    """Interpolate several values linearly between the points around `at`."""
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
"""First simulated numbers of rows of products: pairs of a size that mostly fills its tiles, and a row more, which
begins another tile."""
STRAIGHT = 250
"""Reciprocal of the maximum deviation from a line at the midpoint, and at the midpoint of a half, for interpolation.
Otherwise each half is split further: tiles change with the rows, and times of products by up to a fifth."""
CLOSEST = 256
"""Reciprocal of the minimum distance between points, relative to their rows."""
EDGES = [1, *(32 * 8**power for power in range(6))]
"""Numbers of rows at which the time around the layers is simulated."""
LM_HEAD_REQUESTS = [1, 4, 16, 32, *(at for at in spaced(64, 1 << 20, 2) if at >= 64)]
"""Numbers of requests at which the output matrix is simulated."""


class Memo(dict[K, V]):
    """Values by key, computed on first use and counted."""

    def __init__(self, compute: Callable[[K], V]) -> None:
        super().__init__()
        self._compute = compute
        self.count = 0

    def __missing__(self, key: K) -> V:
        self.count += 1
        self[key] = value = self._compute(key)
        return value


class ProductTimes:
    """Cycles of everything but attention, independent of the storage of keys and values."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self._layers = Memo[int, int](lambda rows: simulator.run([Chunk(rows, 0)], Parts.BETWEEN, 2).between)
        self._edges = Memo(self._edge_at)
        self._heads = Memo(self._head_at)
        self._by_shape: dict[Shape, ProductTimes] = {}
        self.layer = Memo[int, int](lambda rows: between(self._straight(rows), rows, self._layers.__getitem__))
        """Rows -> cycles of the products of a layer."""
        self.edge = Memo(self._edge)
        """(rows, requests) -> cycles of a step outside the layers."""

    @property
    def _cycles(self) -> dict[str, Memo[int, int]]:
        """Part -> size -> cycles."""
        return {"layers": self._layers, "edges": self._edges, "heads": self._heads}

    @property
    def simulated(self) -> int:
        return sum(part.count for part in self._cycles.values())

    def table(self) -> dict[str, list[list[int]]]:
        """Return all simulated cycles, for `restore`."""
        return {name: [[*item] for item in sorted(part.items())] for name, part in self._cycles.items()}

    def restore(self, table: Mapping[str, Sequence[Sequence[int]]]) -> None:
        """Restore the result of `table`."""
        for name, part in self._cycles.items():
            part.update((size, cycles) for size, cycles in table.get(name, ()))

    @cached_property
    def resident_rows(self) -> int:
        """Maximum rows of a step whose operands of attention stay in the scratchpad."""
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
        """Return the times of layers of another shape; a sliding window does not change the times of products."""
        products = replace(shape, window=0)
        if products == replace(self.simulator.shape, window=0, whole_every=0):
            return self
        return self._by_shape.setdefault(products, ProductTimes(replace(self.simulator, shape=products)))

    @property
    def total(self) -> int:
        """Number of simulations for all shapes of layers."""
        return self.simulated + sum(layer.simulated for layer in self._by_shape.values())

    def _edge(self, step: tuple[int, int]) -> int:
        rows, requests = step
        head = between(LM_HEAD_REQUESTS, requests, self._heads.__getitem__) - self._heads[1]
        return between(EDGES, rows, self._edges.__getitem__) + head

    def _straight(self, rows: int) -> list[int]:
        """Return the points around `rows` between which times are linear in two successive halvings. One halving is
        not enough: the midpoint of a curve that is point-symmetric about it lies on the line, too."""
        at = bisect_left(ROWS, rows)
        points, straight = ROWS[max(0, at - 1) : at + 1], False
        while len(points) == 2 and points[0] < rows < points[1]:
            low, high = points
            middle = (low + high) // 2
            if high - low <= max(1, low // CLOSEST):
                break
            low_cycles, middle_cycles, high_cycles = map(self._layers.__getitem__, (low, middle, high))
            line = low_cycles + (high_cycles - low_cycles) * (middle - low) // (high - low)
            points, before = [low, middle] if rows <= middle else [middle, high], straight
            straight = abs(middle_cycles - line) * STRAIGHT <= line
            if before and straight:
                break
        return points

    def _edge_at(self, rows: int) -> int:
        """Return the cycles outside the layers, with one row of the output matrix."""
        run = self.simulator.run([Chunk(rows, 0)], Parts.PRODUCTS, 2)
        self._layers.setdefault(rows, run.between)
        return run.cycles - 2 * run.period

    def _head_at(self, requests: int) -> int:
        run = self.simulator.run([Chunk(1, 0)] * requests, Parts.HEAD)
        return run.cycles - run.layers["x"]
