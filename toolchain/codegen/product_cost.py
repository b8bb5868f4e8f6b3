"""Time of a product (GEMM_T, CONV2D_T) with a tile and an order of its loops, by the rules of the device in closed
form: it ranks mappings.

Engines, DMA channels, DRAM and the ports of banks each have their work; the largest is the body of the command, and
before and behind it are the first loads and the last store. Moves at the end of a dimension count by their part of a
tile.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, pairwise
from itertools import product as product_of
from math import ceil, gcd, prod
from sys import maxsize
from typing import NamedTuple

from npu_device.abi.memory_map import SPM_BASE
from npu_device.abi.opcodes import BITS, DataType, LoopOrder
from npu_device.config import TeConfig
from npu_device.cost.tensor import gemm_rate, product
from npu_device.memory.bitwidth import ceil_div, expanded
from npu_device.operations.loops import AXES, MAX_SHARERS, Loops
from npu_device.operations.macro.workspace import Reserved, Site
from npu_device.operations.windows import all_pixels
from toolchain.codegen.commands import Target
from toolchain.codegen.tiles import (
    SUM_BYTES,
    Tile,
    TileSizes,
    bytes_in,
    bytes_of,
    groups_of,
    loops_of,
    padded,
    whole,
)
from toolchain.ir.graph import Graph, LayerIR
from toolchain.ir.operations import channels_of, macs, windows_of

TRAFFIC = 32
"""A mapping may be slower by at most 1/TRAFFIC of the DRAM time that it saves. Without it a product of
tests/toolchain/passes/test_depthwise_tiles.py moves 1.3 times its operands, with it at most 1.2 times; from 8 to 64 it
changes cycles of the models of tests/toolchain/passes/test_product_cost.py by at most 1.2 %."""

IDLE = Fraction(1, 2)
"""Part of the latency of loads in which the DRAM waits for all channels: 0 where they take turns, 1 where they begin
together. Calibrated: `scripts/bench mapping --calibrate` prints the cycles of products for several values."""

OUTER_TRIPS, INNER_TRIPS = 3, 12
"""Maximum number of simulated trips of an outer loop, and of the innermost loop. The others take the mean of the
second half of the simulated trips, without the last."""

step_cycles = lru_cache(maxsize=1 << 16)(lambda *shape: product(*shape).cycles)


class OperandStream(NamedTuple):
    """One operand between DRAM and the scratchpad."""

    moves: int
    size: int
    """Bytes of all moves, partial DRAM bursts included."""
    longest: int
    """NPU cycles of a move on an idle DRAM, without latency."""
    late: bool = False
    """Whether only the write-out needs it."""
    write: bool = False


class Level(NamedTuple):
    """A loop of an engine over tiles or blocks of them."""

    axis: str
    """m, n or k; g: tiles of groups."""
    trips: int
    stays: frozenset[str]
    """Operands that move in the first trip only."""


class Ports(NamedTuple):
    """NPU cycles of the ports of banks in a step of an engine."""

    continues: int
    """Mean NPU cycles of the busiest bank in a step that continues a sum."""
    completes: int
    """Mean NPU cycles of the busiest bank in a step that completes a sum."""
    port_cycles: tuple[int, int]
    """NPU cycles of the accesses to in0, and to in1."""
    delays: dict[str, int]
    """Additional NPU cycles of a load by operand, since the engine reads the bank that it fills."""


class Turn(NamedTuple):
    """A step of an engine in its loops."""

    moving: frozenset[str]
    """Operands that are loaded for it."""
    begins: bool
    """Whether a result begins."""
    completes: bool


class Walk(NamedTuple):
    """Simulation of the steps of an engine, of the loads ahead of them, and of the stores of results. The DRAM serves
    loads and stores in the order of issue. All engines are in the same step."""

    levels: list[Level]
    loads: dict[frozenset[str], int]
    """NPU cycles of the DRAM for the loads of a step of all engines, by the operands that move."""
    store: int
    """NPU cycles of the DRAM for a store of results; 0: results stay in the scratchpad."""
    step: int
    """NPU cycles of a step."""
    latency: int
    ahead: int
    """Steps by which loads run ahead."""
    open_sums: bool
    """Whether a result needs its buffer with its last step only."""

    def cycles(self) -> int:
        """Return the NPU cycles from the first load to the end of the last store."""
        short = [level._replace(trips=min(level.trips, OUTER_TRIPS)) for level in self.levels]
        if short:
            short[-1] = short[-1]._replace(trips=min(self.levels[-1].trips, INNER_TRIPS))
        turns = _turns(tuple(short), frozenset().union(*self.loads))
        count, buffers = len(turns), min(2, self.ahead + 1)
        ready, ends, stored, begun, busy = [0] * count, [0], [0] * buffers, 0, 0
        for index in range(-self.ahead, count + 1):
            if index > 0:
                turn = turns[index - 1]
                start = max(ends[-1], ready[index - 1])
                if turn.completes if self.open_sums else turn.begins:
                    start = max(start, stored[begun])
                    begun += 1
                ends.append(start + self.step)
            following = index + self.ahead
            if following < count and turns[following].moving:
                busy = max(busy, ends[-1]) + self.loads[turns[following].moving]
                ready[following] = busy + self.latency
            if index > 0 and turns[index - 1].completes and self.store:
                busy = max(busy, ends[-1]) + self.store
                stored.append(busy + self.latency)
            elif index > 0 and turns[index - 1].completes:
                stored.append(0)
        steps = (end - before for before, end in pairwise(ends))
        return self._whole(0, steps, short) + max(0, stored[-1] - ends[-1])

    def _whole(self, depth: int, steps: Iterator[int], short: list[Level]) -> int:
        """Return the NPU cycles of the loops from `depth` on, extrapolated from the simulated iterations."""
        if depth == len(short):
            return next(steps)
        trips = [self._whole(depth + 1, steps, short) for _ in range(short[depth].trips)]
        steady = trips[len(trips) // 2 : -1] or trips  # the last trip of k also stores
        return sum(trips) + (self.levels[depth].trips - len(trips)) * sum(steady) // len(steady)


@lru_cache(maxsize=1 << 12)
def _turns(levels: tuple[Level, ...], names: frozenset[str]) -> tuple[Turn, ...]:
    """Enumerate the iterations of a loop nest, with their loads and results."""
    turns, sums = list[Turn](), [level.axis == "k" for level in levels]
    for trip in product_of(*(range(level.trips) for level in levels)):
        stay = frozenset().union(*(level.stays for level, index in zip(levels, trip, strict=True) if index))
        k = [(index, level.trips) for level, index, inner in zip(levels, trip, sums, strict=True) if inner]
        begins, completes = not any(index for index, _ in k), all(index == count - 1 for index, count in k)
        turns.append(Turn(names - stay, begins, completes))
    return tuple(turns)


class LoopNest(NamedTuple):
    """A loop nest over tiles."""

    blocks: int
    """Number of tiles along the groups of a convolution."""
    tiles_m: int
    tiles_n: int
    tiles_k: int
    depth: int
    """Elements of a step along k."""
    chains: int
    image: bool
    """Whether in0 is the image of a convolution, which stays for all k tiles."""
    by_columns: bool
    """Whether a chain has all tiles of a column, or of a row."""
    lanes: int
    """Number of engines among which the chains are distributed."""
    rounds: tuple[int, int]
    """(rounds in which the engines take the tiles, tiles) of a block along the shared axis, if engines have an operand
    in common: all finish a block of it before one starts the next."""
    loops: Loops

    @property
    def weight_stationary(self) -> bool:
        return self.loops.order is LoopOrder.WEIGHT

    def moves(self, name: str) -> int:
        """Moves of in0 or in1."""
        loops, counts = self.loops, (self.tiles_m, self.tiles_n, self.tiles_k)
        if not loops.plain:
            axes = _axes(name, self.image)
            tiles = (self.tiles_m if "m" in axes else self.tiles_n) * (self.tiles_k if "k" in axes else 1)
            return self.blocks * tiles * loops.passes(axes, counts)
        if self.image and name == "in0":
            return self.steps if self.weight_stationary else self.blocks * self.tiles_m
        return self.steps // self.tiles_m if name == "in1" and self.weight_stationary else self.steps

    def levels(self, names: Iterable[str]) -> list[Level]:
        """Return the loops of an engine, the outermost first, and the operands of `names` that move in their first
        trip only."""
        counts = {"m": self.tiles_m, "n": self.tiles_n, "k": self.tiles_k}
        order, block = self.loops.order.axes, dict(zip("mnk", self.loops.block, strict=True))
        levels = [Level("g", self.blocks, frozenset())]
        if self.loops.plain:
            weights = self.weight_stationary
            stays = {"in0": "nk" if self.image and not weights else "", "in1": "m" if weights else "", "out": "k"}
            for axis in order:
                levels.append(Level(axis, counts[axis], frozenset(name for name in names if axis in stays[name])))
        else:
            axes = {name: _axes(name, self.image) for name in names}
            outer = {axis: ceil_div(counts[axis], block[axis]) for axis in order}
            for index, axis in enumerate(order):
                inner = {deeper for deeper in order[index + 1 :] if outer[deeper] > 1}
                same = frozenset(
                    name for name in names
                    if axis not in axes[name] and (name == "out" or not inner & set(axes[name]))
                )  # fmt: skip
                levels.append(Level(axis, outer[axis], same))
            for axis in order:
                same = frozenset(name for name in names if axis not in axes[name])
                levels.append(Level(axis, min(block[axis], counts[axis]), same))
        lanes = self.lanes
        for axis in (self.shared_axis, "g", "n"):
            for index in reversed(range(len(levels))):
                if levels[index].axis == axis:
                    part = min(lanes, levels[index].trips)
                    levels[index] = levels[index]._replace(trips=ceil_div(levels[index].trips, part))
                    lanes = ceil_div(lanes, part)
        return [level for level in levels if level.trips > 1]

    @property
    def open_sums(self) -> bool:
        """Check whether the sums of several results are open at the same time."""
        return self.loops.open_sums((self.tiles_m, self.tiles_n, self.tiles_k)) > 1

    @property
    def shared_axis(self) -> str:
        """Axis along which engines share tiles out."""
        if not self.loops.plain:
            return self.loops.shared_axis
        return "n" if self.by_columns else "m"

    @property
    def outputs(self) -> int:
        return self.blocks * self.tiles_m * self.tiles_n

    @property
    def steps(self) -> int:
        return self.outputs * self.tiles_k


class Traffic(NamedTuple):
    """All streams of a command."""

    size: int
    """Bytes."""
    begin: int
    """NPU cycles of the first loads."""
    moved: int
    """NPU cycles of all moves."""
    end: int
    """NPU cycles of the last store."""
    latency: int
    """NPU cycles of the first load and of the last store without their bytes."""
    preference: int
    """NPU cycles that are added for bytes (`TRAFFIC`)."""

    def cycles(self, engines: int, last: int) -> int:
        """Return the NPU cycles of the command. `engines`: cycles of the engines; `last`: cycles of the last tile."""
        return max(self.begin + engines + self.end, self.latency + self.moved + last) + self.preference


Sizes = dict[str, int]
Buffers = dict[str, tuple[int, int]]
Banks = tuple[int, ...]


class ProductCost:
    """Cost of a product with any tile. Facts that do not depend on the tile are looked up once."""

    def __init__(self, graph: Graph, layer: LayerIR, target: Target, sizes: TileSizes) -> None:
        self._layer, self._target, self._sizes = layer, target, sizes
        self._extent = whole(layer)
        kinds = [graph.tensors[name].dtype for name in layer.inputs[:2]]
        self._kinds = (*kinds, graph.tensors[layer.outputs[0]].dtype)
        self._bits = tuple(BITS[expanded(kind)] for kind in kinds)
        pitches = [graph.tensors[name].pitch for name in (*layer.inputs[:2], layer.outputs[0])]
        _, n, k = self._extent
        self._groups, self._conv = layer.integer("groups", 1), layer.op_type == "CONV2D_T"
        self._windows = windows_of(layer)
        self._nk = bool(layer.integer("in1_nk"))
        extents = (layer.integer("cin") if self._conv else k, k if self._nk else n * self._groups, n * self._groups)
        self._rows = [
            bytes_of(pitch or extent, kind) for pitch, extent, kind in zip(pitches, extents, self._kinds, strict=True)
        ]
        """Bytes from row to row in DRAM of in0, in1 and the result."""
        self._shares, self._batch = layer.integer("buffers", 1), layer.integer("batch", 1)
        self._engines, self._spread = layer.integer("engines") or target.engines, bool(layer.integer("spread", 1))
        self._rate = (target.dram_rate / layer.integer("clusters", 1)).as_integer_ratio()
        self._channels = target.channels * target.outstanding

    def estimate(
        self, tile: Tile, ahead: int, demand: Sizes, loops: Loops | None = None
    ) -> tuple[int, int, int]:  # fmt: skip
        """Return estimates of (NPU cycles of the layer alone, bytes of DRAM, bytes that engines read in the
        scratchpad) with `ahead` tiles loaded ahead. `demand`: `TileSizes.demand`; `loops`: if not those of the
        layer."""
        loops = loops_of(self._layer, tile) if loops is None else loops
        buffers = self._sizes.buffers(demand, ahead, loops)
        nest = self._nest(tile, buffers, loops)
        streams = self._streams(tile, nest, buffers, demand)
        step, reads = self._step(tile, nest), self._reads(tile, demand)
        ports = self._ports(tile, nest, buffers, reads, step)
        middle, last = max(step, ports.continues), max(step, ports.completes)
        for name, delay in ports.delays.items():
            streams[name] = streams[name]._replace(longest=streams[name].longest + delay)
        computed = self._compute(tile, nest, middle, last, ports.port_cycles)
        traffic = self._traffic(streams, nest)
        walk = self._walk(streams, nest, ahead, computed).cycles() - traffic.begin - traffic.end
        engines = max(computed, walk, self._in_place(tile, nest, buffers, reads))
        command = traffic.cycles(engines, last)
        read = nest.steps * (reads["in0"] + reads["in1"])
        if self._batch == 1:
            return command, traffic.size, read
        cycles = max(ceil_div(command, self._shares), traffic.moved, computed * nest.lanes // self._target.engines)
        return self._batch * cycles, self._batch * traffic.size, self._batch * read

    def lower_bound(self, tile: Tile, demand: Sizes, loops: Loops, limit: int = maxsize) -> int:
        """Return a lower bound of `estimate`, without bank conflicts and stalls; of a batch, the bound of one product.
        If the computation alone exceeds `limit`, traffic is not estimated."""
        prefetch = self._target.mapping.prefetch
        buffers = self._sizes.buffers(demand, 1 if prefetch is None else min(1, prefetch), loops)
        nest = self._nest(tile, buffers, loops)
        step = self._step(tile, nest)
        computed = self._compute(tile, nest, step, step)
        if computed > limit:
            return computed
        return self._traffic(self._streams(tile, nest, buffers, demand), nest).cycles(computed, step)

    def _reads(self, tile: Tile, demand: Sizes) -> Sizes:
        """Return the bytes of operands per step of an engine; of an image, those of kernel positions and channels."""
        if not self._conv:
            return demand
        channels = channels_of(self._layer)
        elements = tile[0] * ceil_div(tile[2], channels) * min(tile[2], channels) * groups_of(self._layer, tile)
        part = ceil_div(demand["in0"] * min(tile[2], channels), channels)
        return {**demand, "in0": min(part, bytes_of(elements, self._kinds[0]))}

    def _step(self, tile: Tile, nest: LoopNest) -> int:
        """Return the NPU cycles of an engine for a tile."""
        (m, n, _), groups = self._extent, groups_of(self._layer, tile)
        shape = min(tile[0], m), min(tile[1], n * groups), nest.depth
        cycles: int = step_cycles(
            self._target.te, *shape, *self._bits, nest.weight_stationary and nest.tiles_m > 1, groups
        )
        return cycles

    def _traffic(self, streams: dict[str, OperandStream], nest: LoopNest) -> Traffic:
        latency = self._target.latency
        occupied = size = first = begin = end = 0
        for name, (moves, total, longest, late, write) in streams.items():
            size += total
            occupied += moves * (longest + (0 if write else latency))
            if write:
                end += max(longest, self._transfer((moves % nest.lanes or nest.lanes) * total // moves)) + latency
            elif not late:
                first += total * (1 if name == nest.loops.common else min(nest.lanes, moves)) // moves
                begin = max(begin, longest)
        if begin:
            begin = max(begin, self._transfer(first)) + latency
        moves = sum(stream.moves for stream in streams.values() if not stream.write)
        idle = moves * latency * IDLE.numerator // IDLE.denominator // self._channels
        moved = max(self._transfer(size) + idle, occupied // self._channels)
        ends = latency * (bool(begin) + bool(end))
        return Traffic(size, begin, moved, end, ends, self._transfer(size) // TRAFFIC)

    def _transfer(self, size: int) -> int:
        """Return the NPU cycles in which the DRAM transfers `size` bytes."""
        rate, cycles = self._rate
        return size * cycles // rate

    def lanes(self, tile: Tile, ahead: int, demand: Sizes | None = None, loops: Loops | None = None) -> int:
        """Return the number of engines that compute tiles."""
        loops = loops_of(self._layer, tile) if loops is None else loops
        demand = self._sizes.demand(tile, loops) if demand is None else demand
        return self._nest(tile, self._sizes.buffers(demand, ahead, loops), loops).lanes

    def _nest(self, tile: Tile, buffers: Buffers, loops: Loops) -> LoopNest:
        """Return the loop nest of an engine. Engines share out the chains of steps, as far as there are `buffers` for
        them: columns where weights stay, pixels of a convolution of which there are several tiles, else tiles of the
        result."""
        (m, n, k), target = self._extent, self._target
        tiles_m, tiles_n, tiles_k, depth = ceil_div(m, tile[0]), ceil_div(n, tile[1]), ceil_div(k, tile[2]), tile[2]
        blocks = ceil_div(self._groups, groups_of(self._layer, tile))
        if self._conv and target.te.conv_lowering == "kernel_position":  # a step stays within the channels
            shape = self._windows
            channels = k // (shape.kh * shape.kw)
            tiles_k, depth = shape.kh * shape.kw * ceil_div(channels, depth), min(depth, channels)
        by_columns = loops.order is LoopOrder.WEIGHT or (self._conv and blocks * tiles_m == 1)
        by_rows = self._conv
        if not loops.plain:
            by_columns, by_rows = loops.shared_axis == "n", True
        chains = blocks * tiles_n if by_columns else blocks * tiles_m * (1 if by_rows else tiles_n)
        capacity, engines = target.workspace // self._shares, self._engines
        if loops.common:
            engines = min(engines, MAX_SHARERS)
            shared = {name: buffer for name, buffer in buffers.items() if name in (loops.common, "sums")}
            buffers = {name: buffer for name, buffer in buffers.items() if name not in shared}
            capacity -= bytes_in(shared)
        need = bytes_in(buffers)
        lanes = max(1, min(engines, chains, capacity // max(1, need)))
        rounds = 1, lanes
        counts = tiles_m, tiles_n, tiles_k
        if loops.common and (blocks > 1 or loops.parts(_axes(loops.common, self._conv), counts)):
            tiles = loops.block["mnk".index(loops.shared_axis)]
            rounds = ceil_div(tiles, lanes), tiles
        return LoopNest(blocks, tiles_m, tiles_n, tiles_k, depth, chains, self._conv, by_columns, lanes, rounds, loops)

    def _compute(
        self, tile: Tile, nest: LoopNest, middle: int, last: int, port_cycles: tuple[int, int] = (0, 0)
    ) -> int:
        """Return the cycles of the busiest engine: chains at the end of a dimension are shorter. `port_cycles`: cycles
        of the ports of in0 and in1 in a step."""
        m, n, k = self._extent
        result = ((nest.tiles_k - 1) * middle + last) * k // (nest.tiles_k * nest.depth)
        rows, columns = (m, tile[0], nest.tiles_m, port_cycles[1]), (n, tile[1], nest.tiles_n, port_cycles[0])
        (extent, size, count, reads), across = (columns, rows) if nest.by_columns else (rows, columns)
        saved = _saved(result, *across, nest.tiles_k)
        single = nest.outputs == nest.chains  # a chain is a tile of the result
        chain = result if single else nest.outputs // nest.chains * (across[2] * result - saved) // across[2]
        narrow = range(across[2] - 1, nest.chains, across[2]) if single and saved else ()
        short = _saved(chain, extent, size, count, reads, nest.steps // nest.chains)
        ends = nest.chains // count
        busiest = 0
        for lane in range(nest.lanes):
            chains = (nest.chains - lane - 1) // nest.lanes + 1
            whole_chains = max(0, (nest.chains - ends - lane - 1) // nest.lanes + 1)
            ends_across = sum(index % nest.lanes == lane for index in narrow)
            busiest = max(busiest, chains * chain - (chains - whole_chains) * short - ends_across * saved)
        return busiest * nest.rounds[0] * nest.lanes // nest.rounds[1]

    def _streams(self, tile: Tile, nest: LoopNest, buffers: Buffers, demand: Sizes) -> dict[str, OperandStream]:
        """Return the streams between DRAM and the scratchpad; operands at the end of a dimension are smaller."""
        layer, (m, n, k) = self._layer, self._extent
        columns = min(tile[1], n * self._groups)
        part_m, part_k = (m, nest.tiles_m * tile[0]), (k, nest.tiles_k * nest.depth)
        part_n = (n, nest.tiles_n * tile[1]) if tile[1] <= n else (1, 1)
        streams = dict[str, OperandStream]()
        if "in0" in buffers and self._conv:
            row = bytes_of(channels_of(layer) * groups_of(layer, tile), self._kinds[0])
            pixels = demand["in0"] // row
            mean = all_pixels(self._windows, tile[0]), pixels * nest.tiles_m
            stride = self._rows[0] * self._windows.step
            streams["in0"] = self._stream(nest.moves("in0"), pixels, row, stride, mean)
        elif "in0" in buffers:
            row = bytes_of(nest.depth, self._kinds[0])
            streams["in0"] = self._stream(nest.moves("in0"), tile[0], row, self._rows[0], part_m, part_k)
        if "in1" in buffers:
            rows, row = (columns, nest.depth) if self._nk else (nest.depth, columns)
            row = bytes_of(row, self._kinds[1])
            streams["in1"] = self._stream(nest.moves("in1"), rows, row, self._rows[1], part_n, part_k)
        for name in ("bias", "scale"):
            if name in buffers:
                size = buffers[name][0]
                streams[name] = self._stream(nest.outputs, 1, size, size, part_n)._replace(late=True)
        row = bytes_of(columns, self._kinds[2])
        if "residual" in buffers:
            residual = self._stream(nest.outputs, tile[0], row, self._rows[2], part_m, part_n)
            streams["residual"] = residual._replace(late=True)
        if "out" in buffers:
            result = self._stream(nest.outputs, tile[0], row, self._rows[2], part_m, part_n)
            streams["out"] = result._replace(write=True)
        return streams

    def _stream(
        self, moves: int, rows: int, row: int, stride: int, part: tuple[int, int], other: tuple[int, int] = (1, 1)
    ) -> OperandStream:
        """Moves of `rows` of `row` bytes that lie `stride` bytes apart; on average a part of them."""
        target, payload = self._target, rows * row
        if row >= stride or rows == 1:
            aligned, bursts = padded(payload), ceil_div(payload, target.channel_rate)
        else:
            unit = gcd(gcd(row, stride), target.alignment)
            aligned = rows * (row + target.alignment - unit)
            bursts = rows * ceil_div(row, target.channel_rate)
        ports = min(payload, target.bank_bytes) // target.port
        longest = max(bursts, ports, self._transfer(aligned))
        size = moves * aligned * part[0] * other[0] // (part[1] * other[1])
        if self._kinds[1] is DataType.VQ8 and stride == self._rows[1]:
            longest = max(longest, ceil_div(payload * 8, min(target.lookups, target.port // 2)))
        return OperandStream(moves, size, longest)

    def _walk(self, streams: dict[str, OperandStream], nest: LoopNest, ahead: int, computed: int) -> Walk:
        """Return the simulation of the loops of one engine, whose computations take `computed` cycles."""
        loads = {name: stream for name, stream in streams.items() if name in AXES}
        levels, latency = nest.levels(loads), self._target.latency
        steps = prod(level.trips for level in levels)
        durations = dict[frozenset[str], int]()
        for count in range(1, len(loads) + 1):
            for names in combinations(loads, count):
                size = busy = 0
                for name in names:
                    stream = loads[name]
                    share, lane = (1, 1) if name == nest.loops.common else (nest.steps, steps)
                    size += share * stream.size // (lane * stream.moves)
                    busy += share * (stream.longest + latency) // lane
                longest = max(loads[name].longest for name in names)
                durations[frozenset(names)] = max(self._transfer(size), busy // self._channels, longest)
        results = prod(level.trips for level in levels if level.axis != "k")
        store = size = 0
        for stream in streams.values():
            if stream.write or stream.late:
                size += stream.size
                store = max(store, stream.longest)
        store = max(store, self._transfer(size) // results) if "out" in streams else 0
        return Walk(levels, durations, store, computed // steps, latency, ahead, nest.open_sums)

    def _ports(self, tile: Tile, nest: LoopNest, buffers: Buffers, demand: Sizes, step: int) -> Ports:
        """Return the cycles of ports of banks in a step, over the buffers that take turns. All engines meet at an
        operand that they have in common. `step`: NPU cycles of an engine for a tile."""
        target, banks = self._target, self._banks(nest, buffers)
        sizes = {name: demand[name] for name in ("in0", "in1", "out")}
        if "sums" in demand:
            sizes["sums"] = tile[0] * tile[1] * SUM_BYTES
        operands, port_cycles = list[tuple[str, int, Banks | None]](), dict[str, int]()
        steps = ceil_div(nest.steps, nest.lanes)
        turns = max((len(bank) for bank in banks.values()), default=1)
        for name, size in sizes.items():
            extent, whole_size = (self._extent[1], tile[1]) if name == "in1" else (self._extent[0], tile[0])
            port_cycles[name] = cycles = ceil_div(_in_bank(size, extent, whole_size, target.bank_bytes), target.port)
            bank = banks.get(name)
            if name == nest.loops.common and name in buffers:  # which also fills there
                beside = target.bank_bytes, max(target.bank_bytes, prod(buffers[name]))
                uses = nest.steps + nest.moves(name) * beside[0] // beside[1]
                cycles = ceil_div(cycles * min(nest.lanes, nest.rounds[1]) * uses, nest.steps)
            elif bank and name in AXES:  # which stays for some steps
                moves = ceil_div(nest.moves(name), nest.lanes)
                bank = tuple(bank[turn * moves // steps % len(bank)] for turn in range(turns))
            operands.append((name, cycles, bank))
        continues = completes = 0
        delays = dict.fromkeys((name for name, _, bank in operands if bank and name in AXES), 0)
        for turn in range(turns):
            complete, partial = dict[object, int](), dict[object, int]()
            for name, cycles, bank in operands:
                at: object = bank[turn % len(bank)] if bank else name
                for ports, names in ((complete, "in0 in1 out"), (partial, "in0 in1 sums")):
                    if name in names:
                        ports[at] = ports.get(at, 0) + cycles
            continues += max(partial.values())
            completes += max(complete.values())
            period = max(step, *complete.values())
            for name, cycles, bank in operands:
                if bank and name in delays:  # which fills its buffer of the next lap
                    reads = partial.get(bank[turn % len(bank) - 1], 0)
                    delays[name] += min(reads, cycles * reads // max(1, period - reads))
        continues, completes = ceil_div(continues, turns), ceil_div(completes, turns)
        if nest.loops.common in buffers and "sums" in buffers:
            continues = max(
                continues, self._beside_sums(tile, nest, buffers, {name: cycles for name, cycles, _ in operands})
            )
        operand_cycles = port_cycles["in0"], port_cycles["in1"]
        return Ports(continues, completes, operand_cycles, {name: delay // turns for name, delay in delays.items()})

    def _beside_sums(self, tile: Tile, nest: LoopNest, buffers: Buffers, cycles: dict[str, int]) -> int:
        """Return the port cycles in a step of the busiest bank with sums. They follow the operand that engines have in
        common, so a bank may contain sums of several engines and the end of that operand."""
        bank, capacity, common = self._target.bank_bytes, self._target.workspace // self._shares, nest.loops.common
        placed = {name: buffers[name] for name in (common, "sums")}
        site = Site(SPM_BASE, capacity, self._target.acc_bytes, bank)
        slots = Reserved(site, SPM_BASE, capacity, placed, tuple(placed)).slots(nest.lanes)
        begin, first = (slots[name].addresses[0] - SPM_BASE for name in placed)
        starts = [first + lane * slots["sums"].lane_stride for lane in range(nest.lanes)]
        size, fullest = tile[0] * tile[1] * SUM_BYTES, 0
        for low in range(first // bank * bank, starts[-1] + size, bank):
            high = low + bank
            inside = sum(max(0, min(high, start + size) - max(low, start)) for start in starts)
            overlap = max(0, min(high, first) - max(low, begin))
            fullest = max(fullest, cycles["sums"] * inside // size + cycles[common] * overlap // (first - begin))
        return fullest

    def _in_place(self, tile: Tile, nest: LoopNest, buffers: Buffers, demand: Sizes) -> int:
        """Return the cycles of banks whose operands all engines use: they stay in the scratchpad, or are the image
        that all engines share."""
        image = self._conv and nest.loops.plain and not nest.weight_stationary and nest.by_columns and nest.lanes > 1
        (m, _, k), whole_m = self._extent, nest.tiles_m * tile[0]
        parts = {
            "in0": Fraction(m, whole_m) if self._conv else Fraction(m * k, whole_m * nest.tiles_k * nest.depth),
            "in1": Fraction(k, nest.tiles_k * nest.depth), "out": Fraction(m, whole_m),
        }  # fmt: skip
        cycles = 0
        for name, part in parts.items():
            if name not in buffers or (image and name == "in0"):
                count = nest.outputs if name == "out" else nest.steps
                cycles += ceil(count * ceil_div(demand[name], self._target.port) * part)
        if image and "in0" in buffers:  # in a bank of the first engine, which also has weights of its own there
            banks = self._banks(nest, buffers)
            if "in1" in banks:
                beside = banks["in1"].count(banks["in0"][0])
                uses = (nest.steps + nest.moves("in1")) // nest.lanes * beside // len(banks["in1"])
                cycles += uses * ceil_div(min(demand["in1"], self._target.bank_bytes), self._target.port)
        return cycles

    def _banks(self, nest: LoopNest, buffers: Buffers) -> dict[str, Banks]:
        """Return the banks of the private buffers of an engine, by operand."""
        target, common = self._target, (nest.loops.common, "sums") if nest.loops.common else ()
        count = target.workspace // self._shares // nest.lanes // target.bank_bytes if self._spread else 0
        private = tuple((name, buffer) for name, buffer in buffers.items() if name not in common)
        return _banks_of(private, target.bank_bytes, count)


def _saved(result: int, extent: int, size: int, count: int, port_cycles: int, steps: int) -> int:
    """Return the cycles that the partial last of `count` tiles saves along a dimension. A tile of `size` elements takes
    `result` cycles. The last tile ends at `extent`; it takes at least `steps` times `port_cycles`, since the operand
    without this dimension is read whole."""
    missing = max(0, size * count - extent) if size <= extent else 0
    return min(result * missing // size, max(0, result - steps * port_cycles))


def _axes(operand: str, image: bool) -> str:
    """Return the dimensions along which in0, in1 or out has tiles. `image`: in0 is that of a convolution."""
    return "mn" if operand == "out" else "m" if image and operand == "in0" else AXES[operand]


def _in_bank(size: int, extent: int, step: int, bank: int) -> int:
    """Return the bytes of a tile in its fullest bank: the mean over the tiles of `step` into which `extent` is cut,
    scaled to a full tile of `size` bytes."""
    if size <= bank or extent <= step:
        return min(size, bank)
    last = size * (extent % step) // step
    tiles = extent // step
    return size * (tiles * bank + min(last, bank)) // (tiles * size + last)


@lru_cache(maxsize=1 << 16)
def _banks_of(buffers: tuple[tuple[str, tuple[int, int]], ...], bank_bytes: int, count: int) -> dict[str, Banks]:
    """Return the banks of the buffers of each operand where the device places them for an engine with `count` banks;
    0: one behind the other."""
    size = count * bank_bytes
    slots = Reserved(Site(SPM_BASE, size, 0, bank_bytes), SPM_BASE, size, dict(buffers)).slots(1)
    return {
        name: tuple((address - SPM_BASE) // bank_bytes for address in slot.addresses) for name, slot in slots.items()
    }


def computing(graph: Graph, layer: LayerIR, target: Target, count: int) -> int:
    """Return a lower bound of the NPU cycles of a product on `count` engines."""
    te = target.te
    if te.kind == "chained_ve" or te.ideal:
        return 0
    bits = [BITS[expanded(graph.tensors[name].dtype)] for name in layer.inputs[:2]]
    return ceil(macs(layer) / (_max_rate(te, bits[0], bits[1]) * count))


def _max_rate(te: TeConfig, bits_a: int, bits_w: int) -> Fraction:
    """Return the maximum number of MACs of an engine in a cycle."""
    by_bits = te.kind == "roofline" and te.speed == "by_bits"
    return gemm_rate(te, bits_w, bits_a) if by_bits else Fraction(te.rows * te.columns)
