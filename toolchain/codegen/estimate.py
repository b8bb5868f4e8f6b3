"""How long a layer takes with a tile: a bound that ranks tiles, no prediction.

The larger of computation, and of the latencies and bytes on the DMA channels, which share the rate of the DRAM; and
what nothing hides: the first loads, the last tile, the last store. Shapes at the end of a dimension count as whole
tiles.
"""

from fractions import Fraction
from math import ceil, gcd, prod
from typing import NamedTuple

from npu_device.abi.opcodes import BITS, DataType, LoopOrder, Opcode
from npu_device.memory.bitwidth import expanded
from toolchain.codegen.commands import Target
from toolchain.codegen.tiles import SLOT, SUM_BYTES, Tile, TileSizes, bytes_of, groups_of, total, whole
from toolchain.ir.graph import Graph, LayerIR
from toolchain.ir.operations import CACHING, PRODUCTS, channels_of, keys_of, macs, windows_of

OVERLAP = 16
"""Computation and transfers hide each other but for one part in so many."""
SHARES = 2
"""Layers that have a part of the scratchpad at the same time."""


class Load(NamedTuple):
    """What a layer asks of the device."""

    computed: int
    """Cycles of its engines."""
    moved: int
    """Bytes."""
    moves: int
    read: int = 0
    """Bytes that engines read in the scratchpad, of products."""


class Estimate:
    """Of a layer with any tile. What does not depend on the tile is looked up once."""

    def __init__(self, graph: Graph, layer: LayerIR, target: Target) -> None:
        self.sizes = TileSizes(graph, layer, target)
        self._layer, self._target = layer, target
        self._whole, self._kinds = whole(layer), [graph.tensors[name].dtype for name in layer.inputs]
        self._out = graph.tensors[layer.outputs[0]].dtype
        self._weight_stationary = layer.integer("loop_order") == LoopOrder.WEIGHT
        self._in_place = graph.resident(layer.inputs[0]), graph.resident(layer.outputs[0])
        self._shares = layer.integer("buffers", SHARES)
        self._rate = min(
            max(1, target.dram_rate // layer.integer("clusters", 1)), target.channels * target.channel_rate
        )
        self._products = Fraction(1)
        """Of an engine in a cycle."""
        if layer.op_type in (*PRODUCTS, "ATTN_T"):
            self._bits = tuple(BITS[expanded(kind)] for kind in self._kinds[:2])
            rows, columns = target.array
            self._products = rows * columns * Fraction(target.f_a[self._bits[0]]) * target.f_w[self._bits[1]]

    def cycles(self, tile: Tile, ahead: int = 1, wanted: dict[str, int] | None = None) -> int:
        """NPU cycles of a command of the layer, about, that loads so many tiles ahead."""
        return self._bound(tile, ahead, self.sizes.demand(tile) if wanted is None else wanted)[0]

    def cost(self, tile: Tile, ahead: int = 1, wanted: dict[str, int] | None = None) -> int:
        """The same by the user's objective, as far as tiles decide it."""
        cycles, load = self._bound(tile, ahead, self.sizes.demand(tile) if wanted is None else wanted)
        mapping = self._target.mapping
        energy = mapping.energy
        return mapping.objective.cost(
            cycles, load.moved * energy.moved + load.read * energy.read + cycles * energy.idle
        )  # fmt: skip

    def _bound(self, tile: Tile, ahead: int, wanted: dict[str, int]) -> tuple[int, Load]:
        """NPU cycles of a command, and the load that they come from. One of several `buffers` has its part of the
        engines, of the DMA channels and of the DRAM. `wanted`: the tile's `TileSizes.demand`."""
        layer, target, shares = self._layer, self._target, self._shares
        moved = self.sizes.staged(wanted)
        sums = moved.pop("sums", 0)
        share = self._engines(tile, ahead, total(moved), sums)
        operands = {name: size for name, size in wanted.items() if name != "sums"}
        if sums:
            operands["out"] = tile[0] * tile[1] * SUM_BYTES
        ports = _ports(target, operands)
        if layer.op_type in PRODUCTS:
            one, load = self._product(tile, share, wanted, ports, "residual" in moved)
        elif layer.op_type == "ATTN_T":
            one, load = self._attention(tile, ports, share)
        elif layer.op_type in CACHING:  # rows of each head, there and away
            count = len(layer.outputs) * layer.integer("heads") * -(-layer.integer("m") // tile[0])
            one, load = 0, Load(0, 2 * count * sum(wanted.values()), (1 + len(moved)) * count)
        else:
            count = self._count(tile)
            speed = target.lanes * target.ve_f_a[BITS[self._kinds[0]]]
            one = target.vector_latency + max(ports, ceil(prod(tile) * _operations(layer, target) / speed))
            load = Load(-(-count // share) * one, count * sum(moved.values()), count * len(moved))
        overlapping = target.channels * target.outstanding
        transfers = ceil(shares * (load.moves * target.latency / overlapping + load.moved / self._rate))
        exposed = 2 * target.latency + ceil(sum(moved.values()) / target.dram_rate) + one
        return max(load.computed, transfers) + min(load.computed, transfers) // OVERLAP + exposed, load

    def _engines(self, tile: Tile, ahead: int, size: int, sums: int) -> int:
        """Engines that can share the layer out: as many as have tiles of their own, partial sums of `sums` bytes, and
        buffers of `size` bytes to load `ahead` of them."""
        layer, target = self._layer, self._target
        if layer.op_type in PRODUCTS:
            there, chains = target.engines, parts(layer, tile, self._whole)
        elif layer.op_type == "ATTN_T":
            there, chains = target.engines, layer.integer("kv_heads") * -(-self._whole[0] // tile[0])
        else:
            there, chains = target.vectors, self._count(tile)
        lanes = target.workspace // max(1, self._shares * (size * (ahead + 1) + sums))
        return max(1, min(-(-there // self._shares), chains, lanes))

    def _count(self, tile: Tile) -> int:
        return prod(-(-extent // size) for extent, size in zip(self._whole, tile, strict=True))

    def _product(self, tile: Tile, share: int, wanted: dict[str, int], ports: int, adds: bool) -> tuple[int, Load]:
        """Engines that take the same image from its bank wait for each other: tiles of other columns have no image of
        their own."""
        layer, target, kinds = self._layer, self._target, self._kinds
        m, n, k = self._whole
        rows, columns, depth = tile
        repeats, groups = _blocks(layer, tile), groups_of(layer, tile)
        down, across = -(-m // rows), -(-n // columns)
        steps, deep = _depth(layer, target, k, depth)
        one = max(ports, self._step((rows, columns, deep), groups))
        outputs = repeats * down * across
        image, weight = layer.op_type == "CONV2D_T", self._weight_stationary
        if self._in_place[0]:
            source = loads = 0
        elif not image:
            source, loads = bytes_of(m * k, kinds[0]) * across, outputs * steps
        else:
            passes = across * steps if weight else 1
            source, loads = wanted["in0"] * down * passes, repeats * down * passes
        images = min(share, repeats * down) if image and not weight else share
        taken = -(-outputs // images) * steps * _ports(target, {"in0": wanted["in0"]})
        result = bytes_of(m * n * groups, self._out)
        if image:
            source = _accessed(source, groups * channels_of(layer), layer.integer("cin"), kinds[0])
            result = _accessed(result, columns, layer.integer("cout"), self._out)
        out = 0 if self._in_place[1] else result
        extra = result if adds else 0
        weights = bytes_of(k * n * groups, kinds[1])
        if layer.integer("codebooks"):
            moved_codes, looked_up = _codes(layer, tile, (n, k)), _looked_up(target, n * k)
            weights = max(moved_codes, looked_up) + min(moved_codes, looked_up) // OVERLAP
        if weight:
            down = 1
        moved = repeats * (source + weights * down + out + extra)
        computed = max(-(-outputs // share) * steps * one, taken)
        read = outputs * steps * (wanted["in0"] + wanted["in1"])
        return one, Load(computed, moved, loads + repeats * across * down * steps + outputs * bool(out), read)

    def _attention(self, tile: Tile, ports: int, share: int) -> tuple[int, Load]:
        """Keys, then values, of each head pass by each block of rows."""
        layer, (rows, keys) = self._layer, tile
        heads, size = layer.integer("kv_heads"), layer.integer("n") // layer.integer("heads")
        steps = 2 * heads * -(-self._whole[0] // rows) * -(-keys_of(layer) // keys)
        moved = bytes_of(keys * size, self._kinds[1])
        one = max(ports, self._step((rows, keys, size)))
        return one, Load(-(-steps // share) * one, steps * moved, steps)

    def _step(self, tile: Tile, groups: int = 1) -> int:
        """One tile on one engine: folds of an array, which holds several groups where it can, or the roofline."""
        m, n, k = tile
        target = self._target
        if target.chain is not None:
            return groups * target.chain(m, n // groups, k, *self._bits)
        if target.systolic:
            rows, columns = target.array
            filters = n // groups
            at_once = max(1, min(rows // k, columns // filters, groups))
            return -(-groups // at_once) * -(-k // rows) * -(-filters // columns) * max(m, rows)
        rate = self._products
        return -(-m * n * k * rate.denominator // rate.numerator)


def computing(graph: Graph, layer: LayerIR, target: Target, count: int) -> int:
    """NPU cycles that so many engines need for a product at least."""
    if target.chain is not None:
        return 0
    a, w = (BITS[expanded(graph.tensors[name].dtype)] for name in layer.inputs[:2])
    rows, columns = target.array
    rate = rows * columns * (1 if target.systolic else target.f_a[a] * target.f_w[w])
    return ceil(macs(layer) / (rate * count))


def parts(layer: LayerIR, tile: Tile, extent: Tile | None = None) -> int:
    """Chains of steps of a product, which engines can share out among them. `extent`: of the `whole` layer."""
    (m, n, _), (rows, columns, _) = extent or whole(layer), tile
    if layer.integer("loop_order") == LoopOrder.WEIGHT:
        return _blocks(layer, tile) * -(-n // columns)
    return _blocks(layer, tile) * max(-(-m // rows), -(-n // columns))


def _ports(target: Target, wanted: dict[str, int]) -> int:
    """Cycles in which an engine takes the operands of a tile: they share a port, but reach over several banks."""
    return ceil(min(sum(wanted.values()), target.bank_bytes) / target.port)


def _operations(layer: LayerIR, target: Target) -> int:
    """Of the vector engine per element."""
    if layer.op_type == "POOL":
        return layer.integer("kh") * layer.integer("kw")
    cost = target.operations.get(Opcode[layer.op_type], 1)
    return cost * layer.integer("n") if layer.op_type == "REDUCE" else cost


def _accessed(size: int, columns: int, extent: int, kind: DataType) -> int:
    """Bytes of a part of a matrix as accesses to DRAM move them, on average, where its rows have `columns` of
    `extent`."""
    row = bytes_of(columns, kind)
    return size if columns >= extent else size * (row + SLOT - gcd(row, SLOT)) // row


def _codes(layer: LayerIR, tile: Tile, extent: tuple[int, int]) -> int:
    """Bytes of codes of vectors as accesses to DRAM move them: the rows of a tile are short."""
    rows, columns, part = (*extent, tile[2]) if layer.integer("in1_nk") else (*extent[::-1], tile[1])
    return rows * ceil(columns / part) * -(-bytes_of(part, DataType.VQ8) // SLOT) * SLOT


def _looked_up(target: Target, elements: int) -> int:
    """Bytes that could move in the time in which elements are expanded."""
    rate = min(target.lookups, target.port // 2) * target.channels
    return ceil(elements / rate) * min(target.dram_rate, target.channels * target.channel_rate)


def _depth(layer: LayerIR, target: Target, k: int, depth: int) -> tuple[int, int]:
    """(steps, depth of a step): with one product per kernel position a step stays within the channels."""
    if layer.op_type == "GEMM_T" or not target.kernel_position:
        return ceil(k / depth), depth
    shape = windows_of(layer)
    channels = k // (shape.kh * shape.kw)
    return shape.kh * shape.kw * ceil(channels / depth), min(depth, channels)


def _blocks(layer: LayerIR, tile: Tile) -> int:
    """Tiles of groups."""
    return ceil(layer.integer("groups", 1) / groups_of(layer, tile))
