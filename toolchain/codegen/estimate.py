"""How long a layer takes with a tile: a bound that ranks tiles, no prediction.

The larger of computation, and of the latencies and bytes on the DMA channels, which share the rate of the DRAM; and
what nothing hides: the first loads, the last tile, the last store. Shapes at the end of a dimension count as whole
tiles.
"""

from math import ceil, gcd, prod
from typing import NamedTuple

from npu_device.abi.opcodes import BITS, DataType, Opcode
from npu_device.memory.bitwidth import expanded
from toolchain.codegen.commands import Target
from toolchain.codegen.tiles import SLOT, Tile, bytes_of, demand, groups_of, staged, total, whole
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


def cycles(graph: Graph, layer: LayerIR, target: Target, tile: Tile, ahead: int = 1) -> int:
    """NPU cycles of a command of a layer, about, that loads so many tiles ahead. One of several `buffers` has its part
    of the engines, of the DMA channels and of the DRAM."""
    shares = layer.integer("buffers", SHARES)
    wanted = demand(graph, layer, tile)
    moved = staged(graph, layer, wanted)
    share = _engines(layer, target, tile, ahead, total(moved))
    ports = _ports(target, wanted)
    if layer.op_type in PRODUCTS:
        one, load = _product(graph, layer, target, tile, share, wanted, "residual" in moved)
    elif layer.op_type == "ATTN_T":
        one, load = _attention(graph, layer, target, tile, ports, share)
    elif layer.op_type in CACHING:  # rows of each head, there and away
        count = len(layer.outputs) * layer.integer("heads") * ceil(layer.integer("m") / tile[0])
        one, load = 0, Load(0, 2 * count * sum(wanted.values()), (1 + len(moved)) * count)
    else:
        count = _count(layer, tile)
        kind = graph.tensors[layer.inputs[0]].dtype
        work = ceil(prod(tile) * _operations(layer, target) / (target.lanes * target.ve_f_a[BITS[kind]]))
        one = target.vector_latency + max(ports, work)
        load = Load(ceil(count / share) * one, count * sum(moved.values()), count * len(moved))
    rate = min(max(1, target.dram_rate // layer.integer("clusters", 1)), target.channels * target.channel_rate)
    transfers = ceil(shares * (load.moves * target.latency / target.channels + load.moved / rate))
    exposed = 2 * target.latency + ceil(sum(moved.values()) / target.dram_rate) + one
    return max(load.computed, transfers) + min(load.computed, transfers) // OVERLAP + exposed


def computing(graph: Graph, layer: LayerIR, target: Target, count: int) -> int:
    """NPU cycles that so many engines need for a product at least."""
    if target.chain is not None:
        return 0
    a, w = (BITS[expanded(graph.tensors[name].dtype)] for name in layer.inputs[:2])
    rows, columns = target.array
    rate = rows * columns * (1 if target.systolic else target.f_a[a] * target.f_w[w])
    return ceil(macs(layer) / (rate * count))


def parts(layer: LayerIR, tile: Tile) -> int:
    """Of a product, what engines can share out among them."""
    (m, n, _), (rows, columns, _) = whole(layer), tile
    return _blocks(layer, tile) * max(ceil(m / rows), ceil(n / columns))


def _engines(layer: LayerIR, target: Target, tile: Tile, ahead: int, size: int) -> int:
    """Engines that can share a layer out: as many as have tiles of their own, and buffers of `size` bytes to load
    `ahead` of them."""
    if layer.op_type in PRODUCTS:
        there, chains = target.engines, parts(layer, tile)
    elif layer.op_type == "ATTN_T":
        there, chains = target.engines, layer.integer("kv_heads") * ceil(whole(layer)[0] / tile[0])
    else:
        there, chains = target.vectors, _count(layer, tile)
    room = target.workspace // layer.integer("buffers", SHARES)
    sets = room // max(1, size)
    return max(1, min(ceil(there / layer.integer("buffers", SHARES)), chains, sets // (ahead + 1)))


def _count(layer: LayerIR, tile: Tile) -> int:
    return prod(ceil(extent / size) for extent, size in zip(whole(layer), tile, strict=True))


def _ports(target: Target, wanted: dict[str, int]) -> int:
    """Cycles in which an engine takes the operands of a tile: they share a port, but reach over several banks."""
    return ceil(min(sum(wanted.values()), target.bank_bytes) / target.port)


def _operations(layer: LayerIR, target: Target) -> int:
    """Of the vector engine per element."""
    if layer.op_type == "POOL":
        return layer.integer("kh") * layer.integer("kw")
    cost = target.operations.get(Opcode[layer.op_type], 1)
    return cost * layer.integer("n") if layer.op_type == "REDUCE" else cost


def _product(
    graph: Graph, layer: LayerIR, target: Target, tile: Tile, share: int, wanted: dict[str, int], adds: bool
) -> tuple[int, Load]:
    """Engines that take the same image from its bank wait for each other: tiles of other columns have no image of their
    own."""
    m, n, k = whole(layer)
    rows, columns, depth = tile
    repeats, groups = _blocks(layer, tile), groups_of(layer, tile)
    down, across = ceil(m / rows), ceil(n / columns)
    steps, deep = _depth(layer, target, k, depth)
    one = max(_ports(target, wanted), _step(graph, layer, target, (rows, columns, deep), groups))
    outputs = repeats * down * across
    kinds = [graph.tensors[name].dtype for name in layer.inputs]
    if graph.resident(layer.inputs[0]):
        source = loads = 0
    elif layer.op_type == "GEMM_T":
        source, loads = bytes_of(m * k, kinds[0]) * across, outputs * steps
    else:
        source, loads = wanted["in0"] * down, repeats * down
    images = min(share, repeats * down) if layer.op_type == "CONV2D_T" else share
    taken = ceil(outputs / images) * steps * _ports(target, {"in0": wanted["in0"]})
    kind = graph.tensors[layer.outputs[0]].dtype
    result = bytes_of(m * n * groups, kind)
    if layer.op_type == "CONV2D_T":
        source = _accessed(source, groups * channels_of(layer), layer.integer("cin"), kinds[0])
        result = _accessed(result, columns, layer.integer("cout"), kind)
    out = 0 if graph.resident(layer.outputs[0]) else result
    extra = result if adds else 0
    weights = bytes_of(k * n * groups, kinds[1])
    if layer.integer("codebooks"):
        moved_codes, looked_up = _codes(layer, tile, (n, k)), _looked_up(target, n * k)
        weights = max(moved_codes, looked_up) + min(moved_codes, looked_up) // OVERLAP
    moved = repeats * (source + weights * down + out + extra)
    computed = max(ceil(outputs / share) * steps * one, taken)
    return one, Load(computed, moved, loads + outputs * (steps + bool(out)))


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


def _attention(graph: Graph, layer: LayerIR, target: Target, tile: Tile, ports: int, share: int) -> tuple[int, Load]:
    """Keys, then values, of each head pass by each block of rows."""
    rows, keys = tile
    heads, size = layer.integer("kv_heads"), layer.integer("n") // layer.integer("heads")
    steps = 2 * heads * ceil(whole(layer)[0] / rows) * ceil(keys_of(layer) / keys)
    moved = bytes_of(keys * size, graph.tensors[layer.inputs[1]].dtype)
    one = max(ports, _step(graph, layer, target, (rows, keys, size)))
    return one, Load(ceil(steps / share) * one, steps * moved, steps)


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


def _step(graph: Graph, layer: LayerIR, target: Target, tile: Tile, groups: int = 1) -> int:
    """One tile on one engine: folds of an array, which holds several groups where it can, or the roofline."""
    m, n, k = tile
    rows, columns = target.array
    a, w = (BITS[expanded(graph.tensors[name].dtype)] for name in layer.inputs[:2])
    if target.chain is not None:
        return groups * target.chain(m, n // groups, k, a, w)
    if target.systolic:
        filters = n // groups
        at_once = max(1, min(rows // k, columns // filters, groups))
        return ceil(groups / at_once) * ceil(k / rows) * ceil(filters / columns) * max(m, rows)
    return ceil(m * n * k / (rows * columns * target.f_a[a] * target.f_w[w]))
