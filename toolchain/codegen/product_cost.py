"""Time of a product (GEMM_T, CONV2D_T) with a tile and an order of its loops, by the rules of the device in closed
form: it ranks mappings.

Engines, DMA channels, DRAM and the ports of banks each have their work; the largest is the body of the command, and
before and behind it are the first loads and the last store. Moves at the end of a dimension count by their part of a
tile.
"""

from fractions import Fraction
from functools import lru_cache
from math import ceil, gcd
from typing import NamedTuple

from npu_device.abi.memory_map import SPM_BASE
from npu_device.abi.opcodes import BITS, DataType, LoopOrder
from npu_device.config import TeConfig
from npu_device.cost.tensor import ceil_div, gemm_rate, product
from npu_device.memory.bitwidth import expanded
from npu_device.operations.loops import AXES, MAX_SHARERS, Loops
from npu_device.operations.macro.workspace import Reserved, Site
from npu_device.operations.windows import all_pixels
from toolchain.codegen.commands import Target
from toolchain.codegen.tiles import SUM_BYTES, Tile, TileSizes, bytes_in, bytes_of, groups_of, loops_of, padded, whole
from toolchain.ir.graph import Graph, LayerIR
from toolchain.ir.operations import channels_of, macs, windows_of

TRAFFIC = 32
"""A mapping may be slower by one part in so many of the time of the DRAM bytes that it saves. Without it a product of
tests/toolchain/passes/test_depthwise_tiles.py moves 1.3 times its operands, with it at most 1.2 times; from 8 to 64 it
changes cycles of the models of tests/toolchain/passes/test_product_cost.py by at most 1.2 %."""

step_cycles = lru_cache(maxsize=1 << 16)(lambda *shape: product(*shape).cycles)


class Stream(NamedTuple):
    """One operand between DRAM and the scratchpad."""

    moves: int
    size: int
    """Bytes of all moves, as accesses to DRAM move them."""
    longest: int
    """NPU cycles of a move, without latency, that has the DRAM for itself."""
    late: bool = False
    """Whether only the write-out needs it."""
    write: bool = False


class Nest(NamedTuple):
    """A loop nest over tiles."""

    blocks: int
    """Tiles of groups."""
    tiles_m: int
    tiles_n: int
    tiles_k: int
    depth: int
    """Elements along k of a step."""
    chains: int
    by_columns: bool
    """Whether a chain has all tiles of a column, or of a row."""
    lanes: int
    """Engines that share the chains out."""
    loops: Loops

    @property
    def weight_stationary(self) -> bool:
        return self.loops.order is LoopOrder.WEIGHT

    def moves(self, name: str, image: bool) -> int:
        """Moves of in0 or in1. `image`: in0 is that of a convolution, which stays for all k tiles."""
        loops, counts = self.loops, (self.tiles_m, self.tiles_n, self.tiles_k)
        if not loops.plain:
            axes = "m" if image else AXES[name]
            tiles = (self.tiles_m if "m" in axes else self.tiles_n) * (self.tiles_k if "k" in axes else 1)
            return self.blocks * tiles * loops.passes(axes, counts)
        if image:
            return self.steps if self.weight_stationary else self.blocks * self.tiles_m
        return self.steps // self.tiles_m if name == "in1" and self.weight_stationary else self.steps

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

    def cycles(self, engines: int) -> int:
        """NPU cycles of the command, whose engines need so many."""
        return self.begin + max(engines, self.moved) + self.end


Sizes = dict[str, int]
Buffers = dict[str, tuple[int, int]]
Banks = tuple[int, ...]


class ProductCost:
    """Cost of a product with any tile. Facts that do not depend on the tile are looked up once."""

    def __init__(self, graph: Graph, layer: LayerIR, target: Target, sizes: TileSizes) -> None:
        self._layer, self._target, self._sizes = layer, target, sizes
        self._whole = whole(layer)
        kinds = [graph.tensors[name].dtype for name in layer.inputs[:2]]
        self._kinds = (*kinds, graph.tensors[layer.outputs[0]].dtype)
        self._bits = tuple(BITS[expanded(kind)] for kind in kinds)
        pitches = [graph.tensors[name].pitch for name in (*layer.inputs[:2], layer.outputs[0])]
        _, n, k = self._whole
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
        self._rate = max(1, target.dram_rate // layer.integer("clusters", 1))
        self._channels = target.channels * target.outstanding

    def estimate(
        self, tile: Tile, ahead: int, demand: Sizes, loops: Loops | None = None
    ) -> tuple[int, int, int]:  # fmt: skip
        """NPU cycles of the layer alone, about, bytes of DRAM, and bytes that engines read in the scratchpad, with
        `ahead` tiles loaded ahead. `demand`: `TileSizes.demand`; `loops`: if not those of the layer."""
        loops = loops_of(self._layer, tile) if loops is None else loops
        buffers = self._sizes.buffers(demand, ahead, loops)
        nest = self._nest(tile, buffers, loops)
        streams = self._streams(tile, nest, buffers, demand)
        step = self._step(tile, nest)
        middle, last = (max(step, ports) for ports in self._ports(tile, nest, buffers, demand))
        computed = self._compute(tile, nest, middle, last)
        engines = max(
            computed + self._waits(streams, nest, ahead, middle, computed), self._in_place(tile, nest, buffers, demand)
        )
        if (
            loops.common in buffers and loops.block[2] >= nest.tiles_k
        ):  # else a block is short, and the next one loads beside it
            engines = max(engines, self._fill(streams, nest, computed))
        traffic = self._traffic(streams)
        command = traffic.cycles(engines) + (last if traffic.moved > engines else 0)
        read = nest.steps * (demand["in0"] + demand["in1"])
        if self._batch == 1:
            return command, traffic.size, read
        cycles = max(ceil_div(command, self._shares), traffic.moved, computed * nest.lanes // self._target.engines)
        return self._batch * cycles, self._batch * traffic.size, self._batch * read

    def lower_bound(self, tile: Tile, ahead: int, demand: Sizes, loops: Loops) -> int:
        """NPU cycles that `estimate` is not below, without those of banks and of engines that wait: of one product."""
        buffers = self._sizes.buffers(demand, ahead, loops)
        nest = self._nest(tile, buffers, loops)
        step = self._step(tile, nest)
        return self._traffic(self._streams(tile, nest, buffers, demand)).cycles(self._compute(tile, nest, step, step))

    def _step(self, tile: Tile, nest: Nest) -> int:
        """NPU cycles of an engine for a tile."""
        (m, n, _), groups = self._whole, groups_of(self._layer, tile)
        shape = min(tile[0], m), min(tile[1], n * groups), nest.depth
        cycles: int = step_cycles(
            self._target.te, *shape, *self._bits, nest.weight_stationary and nest.tiles_m > 1, groups
        )
        return cycles

    def _traffic(self, streams: list[Stream]) -> Traffic:
        latency = self._target.latency
        occupied = size = first = begin = end = 0
        for moves, total, longest, late, write in streams:
            size += total
            occupied += moves * (longest + (0 if write else latency))
            if write:
                end += longest + latency
            elif not late:
                first += total // moves
                begin = max(begin, longest)
        if begin:
            begin = max(begin, first // self._rate) + latency
        moved = max(size // self._rate, occupied // self._channels)
        return Traffic(size, begin + size // (self._rate * TRAFFIC), moved, end)

    def lanes(self, tile: Tile, ahead: int) -> int:
        """Engines that take part."""
        loops = loops_of(self._layer, tile)
        return self._nest(tile, self._sizes.buffers(self._sizes.demand(tile), ahead, loops), loops).lanes

    def _nest(self, tile: Tile, buffers: Buffers, loops: Loops) -> Nest:
        """Engines share out the chains of steps, as far as there are `buffers` for them: columns where weights stay,
        pixels of a convolution of which there are several tiles, else tiles of the result."""
        (m, n, k), target = self._whole, self._target
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
        room, most = target.workspace // self._shares, self._engines
        if loops.common:
            most = min(most, MAX_SHARERS)
            shared = {name: buffer for name, buffer in buffers.items() if name in (loops.common, "sums")}
            buffers = {name: buffer for name, buffer in buffers.items() if name not in shared}
            room -= bytes_in(shared)
        need = bytes_in(buffers)
        lanes = max(1, min(most, chains, room // max(1, need)))
        return Nest(blocks, tiles_m, tiles_n, tiles_k, depth, chains, by_columns, lanes, loops)

    def _compute(self, tile: Tile, nest: Nest, middle: int, last: int) -> int:
        """Cycles of the engine that has most to do: chains at the end of a dimension are shorter."""
        m, n, k = self._whole
        outputs = nest.outputs // nest.chains
        chain = outputs * ((nest.tiles_k - 1) * middle + last) * k // (nest.tiles_k * nest.depth)
        extent, size, count = (n, tile[1], nest.tiles_n) if nest.by_columns else (m, tile[0], nest.tiles_m)
        short = max(0, size * count - extent) if size <= extent else 0
        if nest.by_columns:
            chain = chain * m // (nest.tiles_m * tile[0])
        elif tile[1] <= n:
            chain = chain * n // (nest.tiles_n * tile[1])
        ends = nest.chains // count
        busiest = 0
        for lane in range(nest.lanes):
            chains = (nest.chains - lane - 1) // nest.lanes + 1
            whole_chains = max(0, (nest.chains - ends - lane - 1) // nest.lanes + 1)
            busiest = max(busiest, chains * chain - (chains - whole_chains) * chain * short // size)
        return busiest

    def _streams(self, tile: Tile, nest: Nest, buffers: Buffers, demand: Sizes) -> list[Stream]:
        """Streams between DRAM and the scratchpad; operands at the end of a dimension are smaller."""
        layer, (m, n, k) = self._layer, self._whole
        columns = min(tile[1], n * self._groups)
        part_m, part_k = (m, nest.tiles_m * tile[0]), (k, nest.tiles_k * nest.depth)
        part_n = (n, nest.tiles_n * tile[1]) if tile[1] <= n else (1, 1)
        streams = list[Stream]()
        if "in0" in buffers and self._conv:
            row = bytes_of(channels_of(layer) * groups_of(layer, tile), self._kinds[0])
            pixels = demand["in0"] // row
            mean = all_pixels(self._windows, tile[0]), pixels * nest.tiles_m
            streams.append(self._stream(nest.moves("in0", True), pixels, row, self._rows[0], mean))
        elif "in0" in buffers:
            row = bytes_of(nest.depth, self._kinds[0])
            streams.append(self._stream(nest.moves("in0", False), tile[0], row, self._rows[0], part_m, part_k))
        if "in1" in buffers:
            rows, row = (columns, nest.depth) if self._nk else (nest.depth, columns)
            row = bytes_of(row, self._kinds[1])
            streams.append(self._stream(nest.moves("in1", False), rows, row, self._rows[1], part_n, part_k))
        for name in ("bias", "scale"):
            if name in buffers:
                size = buffers[name][0]
                streams.append(self._stream(nest.outputs, 1, size, size, part_n)._replace(late=True))
        row = bytes_of(columns, self._kinds[2])
        if "residual" in buffers:
            residual = self._stream(nest.outputs, tile[0], row, self._rows[2], part_m, part_n)
            streams.append(residual._replace(late=True))
        if "out" in buffers:
            result = self._stream(nest.outputs, tile[0], row, self._rows[2], part_m, part_n)
            streams.append(result._replace(write=True))
        return streams

    def _stream(
        self, moves: int, rows: int, row: int, stride: int, part: tuple[int, int], other: tuple[int, int] = (1, 1)
    ) -> Stream:
        """Moves of `rows` of `row` bytes that lie `stride` bytes apart; on average a part of them."""
        target, payload = self._target, rows * row
        if row >= stride or rows == 1:
            aligned, bursts = padded(payload), ceil_div(payload, target.channel_rate)
        else:
            unit = gcd(gcd(row, stride), target.alignment)
            aligned = rows * (row + target.alignment - unit)
            bursts = rows * ceil_div(row, target.channel_rate)
        ports = min(payload, target.bank_bytes) // target.port
        longest = max(bursts, ports, aligned // self._rate)
        size = moves * aligned * part[0] * other[0] // (part[1] * other[1])
        if self._kinds[1] is DataType.VQ8 and stride == self._rows[1]:
            longest = max(longest, ceil_div(payload * 8, min(target.lookups, target.port // 2)))
        return Stream(moves, size, longest)

    def _waits(self, streams: list[Stream], nest: Nest, ahead: int, middle: int, computed: int) -> int:
        """Cycles in which an engine waits for buffers: loads that come `ahead` tiles early are not there in time, or
        the result before the last is not away."""
        latency, lanes, steps = self._target.latency, nest.lanes, nest.steps
        waits = moves = busy = 0
        for count, size, longest, late, write in streams:
            load = max(longest, lanes * size // count // self._rate)
            if write:
                outputs = ceil_div(nest.outputs, lanes)
                waits = max(waits, outputs * (longest + latency - (computed // outputs if ahead else 0)))
                continue
            moves += count
            busy += count * load
            if not late and count < steps:  # behind several tiles that need nothing
                waits = max(waits, count * (latency + load - ahead * middle) // lanes)
        if moves:
            queue = max(1, ceil_div(moves * lanes, steps * self._channels))
            turn = (latency * queue + busy // steps + middle) // (ahead + 1)
            waits = max(waits, ceil_div(steps, lanes) * (turn - middle))
        return waits

    def _fill(self, streams: list[Stream], nest: Nest, computed: int) -> int:
        """Cycles of engines that wait for a block of the operand that they have in common: it moves while they are at
        its first uses, and at the last ones of the block before."""
        loops, image = nest.loops, self._conv and nest.loops.common == "in0"
        axes = "m" if image else AXES[loops.common]
        counts = {"m": nest.tiles_m, "n": nest.tiles_n, "k": nest.tiles_k}
        blocks = nest.blocks * loops.passes(axes, (nest.tiles_m, nest.tiles_n, nest.tiles_k))
        for axis, size in zip("mnk", loops.block, strict=True):
            blocks *= ceil_div(counts[axis], size) if axis in axes else 1
        stream = streams[0] if loops.common == "in0" else [x for x in streams if not x.late | x.write][-1]
        load = max(stream.size // self._rate, stream.moves * stream.longest // self._channels) // blocks
        use = computed * nest.lanes // max(1, nest.chains * blocks)
        return computed + max(0, load - use) + (blocks - 1) * max(0, load - 2 * use)

    def _ports(self, tile: Tile, nest: Nest, buffers: Buffers, demand: Sizes) -> tuple[int, int]:
        """Cycles of the fullest bank in a step, over the buffers that take turns: (of one that continues a sum, of one
        that completes it)."""
        target = self._target
        room = target.workspace // self._shares // nest.lanes // target.bank_bytes if self._spread else 0
        banks = _banks_of(tuple(buffers.items()), target.bank_bytes, room)
        operands = [(name, ceil_div(demand[name], target.port), banks.get(name)) for name in ("in0", "in1", "out")]
        if "sums" in demand:
            operands.append(("sums", ceil_div(tile[0] * tile[1] * SUM_BYTES, target.port), banks["sums"]))
        turns = max((len(bank) for _, _, bank in operands if bank), default=1)
        continues = completes = 0
        for turn in range(turns):
            read, both, partial = dict[object, int](), dict[object, int](), dict[object, int]()
            for name, cycles, bank in operands:
                at: object = bank[turn % len(bank)] if bank else name
                for ports, names in ((read, "in0 in1"), (both, "in0 in1 out"), (partial, "in0 in1 sums")):
                    if name in names:
                        ports[at] = ports.get(at, 0) + cycles
            continues += max(partial.values())
            completes += max(both.values())
        return ceil_div(continues, turns), ceil_div(completes, turns)

    def _in_place(self, tile: Tile, nest: Nest, buffers: Buffers, demand: Sizes) -> int:
        """Cycles of banks whose operands all engines use: they stay in the scratchpad, or are the one image that the
        engines have in common."""
        common = nest.loops.common
        if self._conv and nest.loops.plain and not nest.weight_stationary and nest.by_columns and nest.lanes > 1:
            common = "in0"
        (m, _, k), whole_m = self._whole, nest.tiles_m * tile[0]
        parts = {
            "in0": Fraction(m, whole_m) if self._conv else Fraction(m * k, whole_m * nest.tiles_k * nest.depth),
            "in1": Fraction(k, nest.tiles_k * nest.depth), "out": Fraction(m, whole_m),
        }  # fmt: skip
        uses = list[int]()
        for name, part in parts.items():
            if name not in buffers or name == common:
                count = nest.steps if name != "out" else nest.outputs
                if name == nest.loops.common and name in buffers:  # which also fills there
                    count += nest.moves(name, self._conv and name == "in0")
                uses.append(ceil(count * ceil_div(demand[name], self._target.port) * part))
                if name == nest.loops.common and "sums" in demand:  # those of an engine lie beside it
                    uses[-1] += nest.steps // nest.lanes * ceil_div(tile[0] * tile[1] * SUM_BYTES, self._target.port)
        return sum(uses)


@lru_cache(maxsize=1 << 16)
def _banks_of(buffers: tuple[tuple[str, tuple[int, int]], ...], bank_bytes: int, count: int) -> dict[str, Banks]:
    """Banks of the buffers of each operand where the device places them for an engine with `count` banks; 0: one behind
    the other."""
    size = count * bank_bytes
    slots = Reserved(Site(SPM_BASE, size, 0, bank_bytes), SPM_BASE, size, dict(buffers)).slots(1)
    return {
        name: tuple((address - SPM_BASE) // bank_bytes for address in slot.addresses) for name, slot in slots.items()
    }


def computing(graph: Graph, layer: LayerIR, target: Target, count: int) -> int:
    """NPU cycles that so many engines need for a product at least."""
    te = target.te
    if te.kind == "chained_ve" or te.ideal:
        return 0
    bits = [BITS[expanded(graph.tensors[name].dtype)] for name in layer.inputs[:2]]
    return ceil(macs(layer) / (_most(te, bits[0], bits[1]) * count))


def _most(te: TeConfig, bits_a: int, bits_w: int) -> Fraction:
    """MACs of an engine in a cycle, at most."""
    by_bits = te.kind == "roofline" and te.speed == "by_bits"
    return gemm_rate(te, bits_w, bits_a) if by_bits else Fraction(te.rows * te.columns)
