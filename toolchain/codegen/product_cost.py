"""How long a product (GEMM_T, CONV2D_T) takes with a tile and an order of its loops, by the rules of the device in
closed form: what ranks mappings.

Engines, DMA channels, DRAM and the ports of banks each have their work; the largest is the body of the command, and
before and behind it are the first loads and the last store. Moves at the end of a dimension count by their part of a
tile.
"""

from fractions import Fraction
from functools import lru_cache
from math import ceil, gcd
from typing import NamedTuple

from npu_device.abi.opcodes import BITS, DataType, LoopOrder
from npu_device.config import TeConfig
from npu_device.cost.tensor import ceil_div, gemm_rate, product
from npu_device.memory.bitwidth import expanded
from npu_device.operations.loops import AXES, MAX_SHARERS, Loops
from npu_device.operations.windows import all_pixels
from toolchain.codegen.commands import Target
from toolchain.codegen.tiles import SUM_BYTES, Tile, TileSizes, bytes_of, groups_of, loops_of, padded, whole
from toolchain.ir.graph import Graph, LayerIR
from toolchain.ir.operations import channels_of, macs, windows_of

OVERLAP = 8
"""Engines and transfers hide each other but for one part in so many of the shorter one."""
TRAFFIC = 32
"""Bytes of DRAM cost one part in so many of their time where something else is the limit."""
TOGETHER = 3, 4
"""Part of the accesses to operands that stay in the scratchpad which meet at one bank."""

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
    down: int
    across: int
    deep: int
    depth: int
    """Of a step."""
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
        """Of in0 or in1. `image`: in0 is that of a convolution, which is there for all k tiles."""
        loops, counts = self.loops, (self.down, self.across, self.deep)
        if not loops.plain:
            axes = "m" if image else AXES[name]
            tiles = (self.down if "m" in axes else self.across) * (self.deep if "k" in axes else 1)
            return self.blocks * tiles * loops.passes(axes, counts)
        if image:
            return self.steps if self.weight_stationary else self.blocks * self.down
        return self.steps // self.down if name == "in1" and self.weight_stationary else self.steps

    @property
    def outputs(self) -> int:
        return self.blocks * self.down * self.across

    @property
    def steps(self) -> int:
        return self.outputs * self.deep


Sizes = dict[str, int]
Buffers = dict[str, tuple[int, int]]


class ProductCost:
    """Of a product with any tile. What does not depend on the tile is looked up once."""

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

    def bound(
        self, tile: Tile, ahead: int, wanted: Sizes, loops: Loops | None = None
    ) -> tuple[int, int, int]:  # fmt: skip
        """NPU cycles of the layer alone, about, bytes of DRAM, and bytes that engines read in the scratchpad, with
        `ahead` tiles loaded ahead. `wanted`: `TileSizes.demand`; `loops`: if not those of the layer."""
        target, (m, n, _) = self._target, self._whole
        loops = loops_of(self._layer, tile) if loops is None else loops
        buffers = self._sizes.buffers(wanted, ahead, loops)
        nest = self._nest(tile, buffers, loops)
        streams = self._streams(tile, nest, buffers, wanted)
        together = groups_of(self._layer, tile)
        kept = nest.weight_stationary and nest.down > 1
        shape = min(tile[0], m), min(tile[1], n * together), nest.depth
        one: int = step_cycles(target.te, *shape, *self._bits, kept, together)
        middle, last = (max(one, ports) for ports in self._ports(tile, nest, buffers, wanted))
        computed = self._computed(tile, nest, middle, last)
        engines = max(
            computed + self._waits(streams, nest, ahead, middle, computed), self._in_place(tile, nest, buffers, wanted)
        )
        if (
            loops.common in buffers and loops.block[2] >= nest.deep
        ):  # else a block is short, and the next one loads beside it
            engines = max(engines, self._filled(streams, nest, computed))
        held = size = first = begin = end = 0
        for moves, total, longest, late, write in streams:
            size += total
            held += moves * (longest + (0 if write else target.latency))
            if write:
                end += longest + target.latency
            elif not late:
                first += total // moves
                begin = max(begin, longest)
        moved = max(size // self._rate, held // self._channels)
        if begin:
            begin = max(begin, first // self._rate) + target.latency
        begin += size // (self._rate * TRAFFIC)
        alone = begin + max(engines, moved) + min(engines, moved) // OVERLAP + (last if moved > engines else 0) + end
        read = nest.steps * (wanted["in0"] + wanted["in1"])
        if self._batch == 1:
            return alone, size, read
        cycles = max(ceil_div(alone, self._shares), moved, computed * nest.lanes // target.engines)
        return self._batch * cycles, self._batch * size, self._batch * read

    def moved(self, tile: Tile, loops: Loops, wanted: Sizes) -> int:
        """NPU cycles of the DRAM for in0 and in1, at least."""
        buffers = self._sizes.buffers(wanted, 1, loops)
        nest = self._nest(tile, buffers, loops)
        size = sum(
            nest.moves(name, self._conv and name == "in0") * wanted[name] for name in ("in0", "in1") if name in buffers
        )
        return size // self._rate // 2

    def lanes(self, tile: Tile, ahead: int) -> int:
        """Engines that take part."""
        loops = loops_of(self._layer, tile)
        return self._nest(tile, self._sizes.buffers(self._sizes.demand(tile), ahead, loops), loops).lanes

    def _nest(self, tile: Tile, buffers: Buffers, loops: Loops) -> Nest:
        """Engines share out the chains of steps, as far as there are `buffers` for them: columns where weights stay,
        pixels of a convolution of which there are several tiles, else tiles of the result."""
        (m, n, k), target = self._whole, self._target
        down, across, deep, depth = ceil_div(m, tile[0]), ceil_div(n, tile[1]), ceil_div(k, tile[2]), tile[2]
        blocks = ceil_div(self._groups, groups_of(self._layer, tile))
        if self._conv and target.te.conv_lowering == "kernel_position":  # a step stays within the channels
            shape = self._windows
            channels = k // (shape.kh * shape.kw)
            deep, depth = shape.kh * shape.kw * ceil_div(channels, depth), min(depth, channels)
        by_columns = loops.order is LoopOrder.WEIGHT or (self._conv and blocks * down == 1)
        by_rows = self._conv
        if not loops.plain:
            by_columns, by_rows = loops.shared_axis == "n", True
        chains = blocks * across if by_columns else blocks * down * (1 if by_rows else across)
        room, most = target.workspace // self._shares, self._engines
        if loops.common:
            most = min(most, MAX_SHARERS)
            shared = {name: one for name, one in buffers.items() if name in (loops.common, "sums")}
            buffers = {name: one for name, one in buffers.items() if name not in shared}
            room -= _bytes(shared)
        need = _bytes(buffers)
        lanes = max(1, min(most, chains, room // max(1, need)))
        return Nest(blocks, down, across, deep, depth, chains, by_columns, lanes, loops)

    def _computed(self, tile: Tile, nest: Nest, middle: int, last: int) -> int:
        """Cycles of the engine that has most to do: chains at the end of a dimension are shorter."""
        m, n, k = self._whole
        outputs = nest.outputs // nest.chains
        chain = outputs * ((nest.deep - 1) * middle + last) * k // (nest.deep * nest.depth)
        extent, size, count = (n, tile[1], nest.across) if nest.by_columns else (m, tile[0], nest.down)
        short = max(0, size * count - extent) if size <= extent else 0
        if nest.by_columns:
            chain = chain * m // (nest.down * tile[0])
        elif tile[1] <= n:
            chain = chain * n // (nest.across * tile[1])
        ends = nest.chains // count
        most = 0
        for lane in range(nest.lanes):
            chains = (nest.chains - lane - 1) // nest.lanes + 1
            whole_chains = max(0, (nest.chains - ends - lane - 1) // nest.lanes + 1)
            most = max(most, chains * chain - (chains - whole_chains) * chain * short // size)
        return most

    def _streams(self, tile: Tile, nest: Nest, buffers: Buffers, wanted: Sizes) -> list[Stream]:
        """What moves between DRAM and the scratchpad; operands at the end of a dimension are smaller."""
        layer, (m, n, k) = self._layer, self._whole
        columns = min(tile[1], n * self._groups)
        part_m, part_k = (m, nest.down * tile[0]), (k, nest.deep * nest.depth)
        part_n = (n, nest.across * tile[1]) if tile[1] <= n else (1, 1)
        streams = list[Stream]()
        if "in0" in buffers and self._conv:
            row = bytes_of(channels_of(layer) * groups_of(layer, tile), self._kinds[0])
            pixels = wanted["in0"] // row
            mean = all_pixels(self._windows, tile[0]), pixels * nest.down
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
        waits = moves = taken = 0
        for count, size, longest, late, write in streams:
            load = max(longest, lanes * size // count // self._rate)
            if write:
                outputs = ceil_div(nest.outputs, lanes)
                waits = max(waits, outputs * (longest + latency - (computed // outputs if ahead else 0)))
                continue
            moves += count
            taken += count * load
            if not late and count < steps:  # behind several tiles that need nothing
                waits = max(waits, count * (latency + load - ahead * middle) // lanes)
        if moves:
            queue = max(1, ceil_div(moves * lanes, steps * self._channels))
            turn = (latency * queue + taken // steps + middle) // (ahead + 1)
            waits = max(waits, ceil_div(steps, lanes) * (turn - middle))
        return waits

    def _filled(self, streams: list[Stream], nest: Nest, computed: int) -> int:
        """Cycles of engines that wait for a block of the operand that they have in common: it moves while they are at
        its first uses, and at the last ones of the block before."""
        loops, image = nest.loops, self._conv and nest.loops.common == "in0"
        axes = "m" if image else AXES[loops.common]
        counts = {"m": nest.down, "n": nest.across, "k": nest.deep}
        blocks = nest.blocks * loops.passes(axes, (nest.down, nest.across, nest.deep))
        for axis, size in zip("mnk", loops.block, strict=True):
            blocks *= ceil_div(counts[axis], size) if axis in axes else 1
        stream = streams[0] if loops.common == "in0" else next(one for one in streams[::-1] if not one.late | one.write)
        load = max(stream.size // self._rate, stream.moves * stream.longest // self._channels) // blocks
        one = computed * nest.lanes // max(1, nest.chains * blocks)
        return computed + max(0, load - one) + (blocks - 1) * max(0, load - 2 * one)

    def _ports(self, tile: Tile, nest: Nest, buffers: Buffers, wanted: Sizes) -> tuple[int, int]:
        """Cycles of the fullest bank in a step, over the buffers that take turns: (of one that continues a sum, of one
        that completes it)."""
        target = self._target
        sizes = tuple((padded(size), copies) for size, copies in buffers.values())
        room = target.workspace // self._shares // nest.lanes // target.bank_bytes if self._spread else 0
        banks = dict(zip(buffers, _placed(sizes, target.bank_bytes, room), strict=True))
        used = [(name, ceil_div(wanted[name], target.port), banks.get(name)) for name in ("in0", "in1", "out")]
        if "sums" in wanted:
            used.append(("sums", ceil_div(tile[0] * tile[1] * SUM_BYTES, target.port), banks["sums"]))
        turns = max((len(bank) for _, _, bank in used if bank), default=1)
        continues = completes = 0
        for turn in range(turns):
            read, both, partial = dict[object, int](), dict[object, int](), dict[object, int]()
            for name, cycles, bank in used:
                at: object = bank[turn % len(bank)] if bank else name
                for ports, names in ((read, "in0 in1"), (both, "in0 in1 out"), (partial, "in0 in1 sums")):
                    if name in names:
                        ports[at] = ports.get(at, 0) + cycles
            continues += max(partial.values())
            completes += max(both.values())
        return ceil_div(continues, turns), ceil_div(completes, turns)

    def _in_place(self, tile: Tile, nest: Nest, buffers: Buffers, wanted: Sizes) -> int:
        """Cycles of banks whose operands all engines use: they stay in the scratchpad, or are the one image that the
        engines have in common."""
        common = nest.loops.common
        if self._conv and nest.loops.plain and not nest.weight_stationary and nest.by_columns and nest.lanes > 1:
            common = "in0"
        (m, _, k), whole_m = self._whole, nest.down * tile[0]
        parts = {
            "in0": Fraction(m, whole_m) if self._conv else Fraction(m * k, whole_m * nest.deep * nest.depth),
            "in1": Fraction(k, nest.deep * nest.depth), "out": Fraction(m, whole_m),
        }  # fmt: skip
        uses = list[int]()
        for name, part in parts.items():
            if name not in buffers or name == common:
                count = nest.steps if name != "out" else nest.outputs
                if name == nest.loops.common and name in buffers:  # which also fills there
                    count += nest.moves(name, self._conv and name == "in0")
                uses.append(ceil(count * ceil_div(wanted[name], self._target.port) * part))
                if name == nest.loops.common and "sums" in wanted:  # those of an engine lie beside it
                    uses[-1] += nest.steps // nest.lanes * ceil_div(tile[0] * tile[1] * SUM_BYTES, self._target.port)
        return max(max(uses), sum(uses) * TOGETHER[0] // TOGETHER[1]) if uses else 0


def _bytes(buffers: Buffers) -> int:
    return sum(padded(size) * copies for size, copies in buffers.values())


@lru_cache(maxsize=1 << 16)
def _placed(sizes: tuple[tuple[int, int], ...], bank_bytes: int, banks: int) -> list[tuple[int, ...]]:
    """Banks of the buffers of each operand, as the device places them (`Reserved.slots`): each buffer in the next of
    `banks` that has room for it, or else one behind the other."""
    flat = [size for size, copies in sizes for _ in range(copies)]
    places, free, end = list[int](), [bank_bytes] * banks, 0
    for index, size in enumerate(flat if banks > 1 else ()):
        order = ((index + step) % banks for step in range(banks))
        bank = next((bank for bank in order if size <= free[bank]), None)
        if bank is None:
            places.clear()
            break
        places.append(bank)
        free[bank] -= size
    if not places:
        for size in flat:
            places.append(end // bank_bytes)
            end += size
    taken = iter(places)
    return [tuple(next(taken) for _ in range(copies)) for _, copies in sizes]


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
