"""Simulations of the parts of a step at CA_HYBRID, of commands that the compiler made.

Where operands of attention and of products lie decides what they take: in the scratchpad, where all activations of the
step are few, or in DRAM. A part is simulated as it lies in the step, and counted from the end of the layer before it.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from npu_device.config import NpuConfig
from npu_device.kv_quant.policies import FP16, DeviceStorage
from pyv_npu.workloads.compiled import target_of
from pyv_npu.workloads.timing import run_commands
from toolchain.decoders.mixed_step import Chunk, Parts, compile_mixed_step, is_resident
from toolchain.decoders.shapes import Job, Shape

ROOM = 256_000_000_000
"""Bytes of DRAM of a simulation at least: what fits is a question of blocks."""


class Timed(NamedTuple):
    """A simulation."""

    cycles: int
    ends: tuple[int, ...]
    """Of each layer."""
    layers: dict[str, int]
    """Cycle in which the last command of each layer of commands completed."""

    @property
    def period(self) -> int:
        """From the end of the last layer but one to that of the last."""
        return self.ends[-1] - self.ends[-2] if len(self.ends) > 1 else self.ends[-1]

    def attention(self, layer: int) -> tuple[int, int, int]:
        """Cycles of positions, appends and attention of a layer, each from the end of the one before."""
        ends = [self.layers[f"layer{layer}.attention.qkv"]]
        for part in (".rope.", ".update", ".heads"):
            own = [end for one, end in self.layers.items() if one.startswith(f"layer{layer}.attention") and part in one]
            ends.append(max(own, default=ends[-1]))
        return ends[1] - ends[0], ends[2] - ends[1], ends[3] - ends[2]


@dataclass(frozen=True)
class Simulator:
    """A model on a device."""

    npu: NpuConfig
    shape: Shape
    weight_bits: int

    def run(
        self, chunks: Sequence[Chunk], parts: Parts, layers: int = 1, kv: DeviceStorage = FP16, resident: bool = True
    ) -> Timed:
        """Simulate parts of a step; not `resident`: activations are in DRAM however few they are."""
        room = max(self.npu.dram.size, ROOM)  # steps of two layers are simulated, whatever the model has
        npu = replace(self.npu, dram=replace(self.npu.dram, size=room))
        job = Job(self.shape, layers, 1, 1, self.weight_bits, lambda layer, head: kv.bits, storage=kv)
        passes = "all" if resident else "all,-residency"
        made = compile_mixed_step(job, target_of(npu), chunks, parts, passes)
        run = run_commands(made.commands, npu, memory=made.memory)
        ends = dict.fromkeys(range(layers), 0)
        for name, cycle in run.layers:
            if name.startswith("layer"):
                index = int(name[len("layer") :].partition(".")[0])
                ends[index] = max(ends[index], cycle)
        return Timed(run.cycles, tuple(ends.values()), dict(run.layers))


def spaced(fine: int, top: int, per_octave: int) -> list[int]:
    """Points of an axis: 0, steps of `fine` up to four of them, then some for each doubling, to `top` or beyond."""
    made = [0, *range(fine, 4 * fine, fine)]
    octave = 4 * fine
    while made[-1] < top:
        made += [octave + octave * index // per_octave for index in range(per_octave)]
        octave *= 2
    return made


def between(points: Sequence[int], at: int, value: Callable[[int], int]) -> int:
    """The value at a place, linear between the points around it."""
    index = bisect_left(points, at)
    high = points[index]
    if high == at or index == 0:
        return value(high)
    low = points[index - 1]
    first, last = value(low), value(high)
    return first + (last - first) * (at - low) // (high - low)


ROWS = [1, 4, 16, 32, *(at for at in spaced(8, 1 << 20, 32) if at >= 64)]
"""Rows of products that are simulated. Tiles change with the rows, and what products take with them, by a fifth: points
are close."""
MOST_SMOOTH = 64
"""Rows up to which reading the weights takes longer than multiplying with them."""
BEND = 8
"""So many rows more than there are may be paid for between two points, else tiles change between them: so they do where
more rows take less."""
HEADS = [1, 4, 16, 32, *(at for at in spaced(64, 1 << 20, 2) if at >= 64)]
"""Requests whose output matrix is simulated."""


@dataclass
class ProductTimes:
    """Cycles of all but attention: they do not depend on how keys and values are stored."""

    simulator: Simulator
    simulated: int = 0
    _steps: dict[tuple[int, bool], Timed] = field(default_factory=dict)
    _heads: dict[int, int] = field(default_factory=dict)
    _sums: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    _inside: dict[tuple[int, int], bool] = field(default_factory=dict)

    def resident(self, rows: int, requests: int) -> bool:
        """Whether the activations of a step stay in the scratchpad."""
        key = rows, requests
        if key not in self._inside:
            one = self.simulator
            job = Job(one.shape, 1, 1, 1, one.weight_bits)
            first = Chunk(rows - requests + 1, 0)
            self._inside[key] = is_resident(job, target_of(one.npu), [first, *[Chunk(1, 0)] * (requests - 1)])
        return self._inside[key]

    def of(self, rows: int, requests: int) -> tuple[int, int]:
        """(cycles around the layers, cycles of the products of a layer) of a step."""
        key = rows, requests
        if key not in self._sums:
            resident = self.resident(rows, requests)
            near = self._around(rows, resident)
            head = between(HEADS, requests, self._head_at) - self._head_at(1)
            edge = between(near, rows, lambda point: self._edge_at(point, resident))
            self._sums[key] = edge + head, between(near, rows, lambda point: self._layer_at(point, resident))
        return self._sums[key]

    def _around(self, rows: int, resident: bool) -> list[int]:
        """The points between which the rows are linear: closer ones where tiles change."""
        at = bisect_left(ROWS, rows)
        low, high = ROWS[max(0, at - 1)], ROWS[at]
        if resident and not self.resident(high, 1):
            return [rows]
        while low < rows < high:
            less, more = self._layer_at(low, resident), self._layer_at(high, resident)
            if high <= MOST_SMOOTH or less <= more <= less * (high + BEND) // low:
                break
            middle = (low + high) // 2
            low, high = (low, middle) if rows <= middle else (middle, high)
        return [low, high] if low < high else [low]

    def _step(self, rows: int, resident: bool) -> Timed:
        key = rows, resident
        if key not in self._steps:
            self.simulated += 1
            self._steps[key] = self.simulator.run([Chunk(rows, 0)], Parts.PRODUCTS, 2, resident=resident)
        return self._steps[key]

    def _layer_at(self, rows: int, resident: bool) -> int:
        made = self._step(rows, resident)
        return made.period - sum(made.attention(1))

    def _edge_at(self, rows: int, resident: bool) -> int:
        """What is around the layers, with one row of the output matrix."""
        made = self._step(rows, resident)
        return made.cycles - 2 * made.period

    def _head_at(self, requests: int) -> int:
        if requests not in self._heads:
            self.simulated += 1
            made = self.simulator.run([Chunk(1, 0)] * requests, Parts.HEAD)
            self._heads[requests] = made.cycles - made.layers["x"]
        return self._heads[requests]
