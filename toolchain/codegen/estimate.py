"""Estimate of a layer's time with a tile: a bound that ranks tiles, no prediction.

The larger of computation, and of the latencies and bytes on the DMA channels, which share the rate of the DRAM; and
what nothing overlaps: the first loads, the last tile after its loads, the last store. Shapes at the end of a dimension
count as whole tiles. `product_cost` estimates products in more detail.
"""

from fractions import Fraction
from math import ceil, prod
from typing import NamedTuple

from npu_device.abi.opcodes import BITS, Opcode
from npu_device.cost.tensor import product
from npu_device.memory.bitwidth import expanded
from npu_device.operations.loops import Loops
from toolchain.codegen.commands import Target
from toolchain.codegen.product_cost import ProductCost
from toolchain.codegen.tiles import Tile, TileSizes, bytes_of, loops_of, whole
from toolchain.ir.graph import Graph, LayerIR
from toolchain.ir.operations import CACHING, PRODUCTS, keys_of

FARTHEST = 4
"""Tiles that a layer loads ahead, at most. Calibrated: `scripts/bench mapping --calibrate` prints the cycles of
products for several values."""
SHARES = 2
"""Layers that have a part of the scratchpad at the same time."""


class Load(NamedTuple):
    """Load of a layer on the device."""

    computed: int
    """Cycles of its engines."""
    moved: int
    """Bytes."""
    moves: int
    read: int = 0
    """Bytes that engines read in the scratchpad, of products."""


class Estimate:
    """Estimate of a layer with any tile. Facts that do not depend on the tile are looked up once."""

    def __init__(self, graph: Graph, layer: LayerIR, target: Target) -> None:
        self.sizes = TileSizes(graph, layer, target)
        self._layer, self._target = layer, target
        self._extent, self._kinds = whole(layer), [graph.tensors[name].dtype for name in layer.inputs]
        self._out = graph.tensors[layer.outputs[0]].dtype
        self._shares = layer.integer("buffers", SHARES)
        self._rate: Fraction = min(
            target.dram_rate / layer.integer("clusters", 1), Fraction(target.channels * target.channel_rate)
        )
        self.product = ProductCost(graph, layer, target, self.sizes) if layer.op_type in PRODUCTS else None

    def cycles(self, tile: Tile, ahead: int) -> int:
        """Return the NPU cycles of a command of the layer, about, that loads so many tiles ahead."""
        return self._estimate(tile, ahead, self.sizes.demand(tile), loops_of(self._layer, tile))[0]

    def cost(self, tile: Tile, demand: dict[str, int] | None = None, loops: Loops | None = None) -> int:
        """Return the cost of a command by the user's objective, as far as tiles decide it. `demand`: the tile's
        `TileSizes.demand`; `loops`: of a product, if not those of the layer."""
        loops = loops_of(self._layer, tile) if loops is None else loops
        demand = self.sizes.demand(tile, loops) if demand is None else demand
        cycles, load = self._estimate(tile, self.distance(tile, demand, loops), demand, loops)
        mapping = self._target.mapping
        energy = mapping.energy
        return mapping.objective.cost(
            cycles, load.moved * energy.moved + load.read * energy.read + cycles * energy.idle
        )  # fmt: skip

    def distance(self, tile: Tile, demand: dict[str, int] | None = None, loops: Loops | None = None) -> int:
        """Return the tiles to load ahead: as many as fit with the engines that take part for a single tile ahead; 0
        where no tile fits."""
        decided = self._target.mapping.prefetch
        if decided is not None and self.product is not None:
            return decided
        loops = loops_of(self._layer, tile) if loops is None else loops
        demand = self.sizes.demand(tile, loops) if demand is None else demand
        if self.sizes.need(demand, 1, loops) > self._target.workspace:
            return 0
        engines = self._engines(tile, 1, demand, loops)
        for ahead in range(FARTHEST, 1, -1):
            fits = self.sizes.need(demand, ahead, loops) <= self._target.workspace
            if fits and self._engines(tile, ahead, demand, loops) == engines:
                return ahead
        return 1

    def _estimate(self, tile: Tile, ahead: int, demand: dict[str, int], loops: Loops) -> tuple[int, Load]:
        """Return the NPU cycles of a command, and the load that they come from. A layer that shares the scratchpad
        takes `buffers` times as long: on average it has that part of the engines, the DMA channels and the DRAM."""
        layer, target, shares = self._layer, self._target, self._shares
        if self.product is not None:
            cycles, moved_bytes, read = self.product.estimate(tile, ahead, demand, loops)
            return cycles, Load(0, moved_bytes, 0, read)
        moved = self.sizes.staged(demand)
        share = self._engines(tile, ahead, demand)
        in_place = max((size for name, size in demand.items() if name not in moved), default=0)
        ports = ceil(min(max(sum(demand.values()), share * in_place), target.bank_bytes) / target.port)
        if layer.op_type == "ATTN_T":
            step, load = self._attention(tile, ports, share)
        elif layer.op_type in CACHING:  # rows of each head, there and away
            count = len(layer.outputs) * layer.integer("heads") * -(-layer.integer("m") // tile[0])
            step, load = 0, Load(0, 2 * count * sum(demand.values()), (1 + len(moved)) * count)
        else:
            count = self._count(tile)
            speed = target.lanes * target.ve_f_a[BITS[self._kinds[0]]]
            step = target.vector_latency + max(ports, ceil(prod(tile) * _operations(layer, target) / speed))
            load = Load(shares * -(-count // share) * step, count * sum(moved.values()), count * len(moved))
        overlapping = target.channels * target.outstanding
        transfers = ceil(shares * (load.moves * target.latency / overlapping + load.moved / self._rate))
        exposed = 2 * target.latency + ceil(sum(moved.values()) / target.dram_rate)
        if not load.moved:  # all operands in place
            return load.computed, load
        return max(load.computed, transfers + step) + exposed, load

    def _engines(self, tile: Tile, ahead: int, demand: dict[str, int], loops: Loops | None = None) -> int:
        """Return the engines that share the layer out: those with tiles of their own, and buffers to load `ahead` of
        them. An attention has its part of the engines, a vector layer all of them for its part of the time."""
        layer, target = self._layer, self._target
        if self.product is not None:
            return self.product.lanes(tile, ahead, demand, loops)
        if layer.op_type == "ATTN_T":
            units = -(-target.engines // self._shares)  # attentions of several requests run side by side
            chains = layer.integer("kv_heads") * -(-self._extent[0] // tile[0])
        else:
            units, chains = target.vectors, self._count(tile)
        lanes = target.workspace // max(1, self.sizes.need(demand, ahead))
        return max(1, min(units, chains, lanes))

    def _count(self, tile: Tile) -> int:
        return prod(-(-extent // size) for extent, size in zip(self._extent, tile, strict=True))

    def _attention(self, tile: Tile, ports: int, share: int) -> tuple[int, Load]:
        """Keys, then values, of each head pass by each block of rows."""
        layer, target, (rows, keys) = self._layer, self._target, tile
        heads, size = layer.integer("kv_heads"), layer.integer("n") // layer.integer("heads")
        steps = 2 * heads * -(-self._extent[0] // rows) * -(-keys_of(layer) // keys)
        moved = bytes_of(keys * size, self._kinds[1])
        bits_q, bits_kv = (BITS[expanded(kind)] for kind in self._kinds[:2])
        step = max(ports, product(target.te, rows, keys, size, bits_q, bits_kv).cycles)
        return step, Load(-(-steps // share) * step, steps * moved, steps)


def _operations(layer: LayerIR, target: Target) -> int:
    """Return the operations of the vector engine per element."""
    if layer.op_type == "POOL":
        return layer.integer("kh") * layer.integer("kw")
    cost = target.operations.get(Opcode[layer.op_type], 1)
    return cost * layer.integer("n") if layer.op_type == "REDUCE" else cost
