"""How long a layer takes with a tile: a bound that ranks tiles, no prediction.

The larger of computation, and of the latencies and bytes on the DMA channels, which share the rate of the DRAM; and
what nothing hides: the first loads, the last tile, the last store. Shapes at the end of a dimension count as whole
tiles.
"""

from math import ceil, prod
from typing import NamedTuple

from npu_device.abi.opcodes import BITS, Opcode
from npu_device.cost.durations import VECTOR_OPS
from toolchain.codegen.commands import Target
from toolchain.codegen.tiles import Tile, bytes_of, demand, staged, total, whole
from toolchain.ir.graph import Graph, LayerIR
from toolchain.ir.operations import PRODUCTS, keys_of, windows_of

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
    share = engines(graph, layer, target, tile, ahead)
    ports = _ports(target, wanted)
    if layer.op_type in PRODUCTS:
        one, load = _product(graph, layer, target, tile, ports, share)
    elif layer.op_type == "ATTN_T":
        one, load = _attention(graph, layer, target, tile, ports, share)
    elif layer.op_type == "KV_APPEND":  # rows of each head, there and away
        count = layer.integer("heads") * ceil(layer.integer("m") / tile[0])
        one, load = 0, Load(0, 2 * count * sum(wanted.values()), (1 + len(moved)) * count)
    else:
        count = _count(layer, tile)
        kind = graph.tensors[layer.inputs[0]].dtype
        work = ceil(prod(tile) * _operations(layer) * BITS[kind] / (8 * target.lanes))
        one = target.vector_latency + max(ports, work)
        load = Load(ceil(count / share) * one, count * sum(moved.values()), count * len(moved))
    rate = min(target.dram_rate, target.channels * target.channel_rate)
    transfers = ceil(shares * (load.moves * target.latency / target.channels + load.moved / rate))
    exposed = 2 * target.latency + ceil(sum(moved.values()) / target.dram_rate) + one
    return max(load.computed, transfers) + min(load.computed, transfers) // OVERLAP + exposed


def engines(graph: Graph, layer: LayerIR, target: Target, tile: Tile, ahead: int = 1) -> int:
    """Engines that can share a layer out: as many as have tiles of their own, and buffers to load `ahead` of them."""
    if layer.op_type in PRODUCTS:
        (m, n, _), (rows, columns, _) = whole(layer), tile
        repeats = 1 if layer.op_type == "GEMM_T" else layer.integer("groups")
        there, chains = target.engines, repeats * max(ceil(m / rows), ceil(n / columns))
    elif layer.op_type == "ATTN_T":
        there, chains = target.engines, layer.integer("kv_heads") * ceil(whole(layer)[0] / tile[0])
    else:
        there, chains = target.vectors, _count(layer, tile)
    room = target.workspace // layer.integer("buffers", SHARES)
    sets = room // max(1, total(staged(graph, layer, demand(graph, layer, tile))))
    return max(1, min(ceil(there / layer.integer("buffers", SHARES)), chains, sets // (ahead + 1)))


def _count(layer: LayerIR, tile: Tile) -> int:
    return prod(ceil(extent / size) for extent, size in zip(whole(layer), tile, strict=True))


def _ports(target: Target, wanted: dict[str, int]) -> int:
    """Cycles in which an engine takes the operands of a tile: they share a port, but reach over several banks."""
    return ceil(min(sum(wanted.values()), target.bank_bytes) / target.port)


def _operations(layer: LayerIR) -> int:
    """Of the vector engine per element."""
    if layer.op_type == "POOL":
        return layer.integer("kh") * layer.integer("kw")
    return layer.integer("n") if layer.op_type == "REDUCE" else VECTOR_OPS.get(Opcode[layer.op_type], 1)


def _product(graph: Graph, layer: LayerIR, target: Target, tile: Tile, ports: int, share: int) -> tuple[int, Load]:
    m, n, k = whole(layer)
    rows, columns, depth = tile
    repeats = 1 if layer.op_type == "GEMM_T" else layer.integer("groups")
    down, across = ceil(m / rows), ceil(n / columns)
    steps, deep = _depth(layer, target, k, depth)
    wanted = demand(graph, layer, tile)
    one = max(ports, _step(graph, layer, target, (rows, columns, deep)))
    outputs = repeats * down * across
    kinds = [graph.tensors[name].dtype for name in layer.inputs]
    if graph.resident(layer.inputs[0]):
        source = loads = 0
    elif layer.op_type == "GEMM_T":
        source, loads = bytes_of(m * k, kinds[0]) * across, outputs * steps
    else:
        source, loads = wanted["in0"] * down, repeats * down
    result = bytes_of(m * n, graph.tensors[layer.outputs[0]].dtype)
    out = 0 if graph.resident(layer.outputs[0]) else result
    extra = result if "residual" in staged(graph, layer, wanted) else 0
    moved = repeats * (source + bytes_of(k * n, kinds[1]) * down + out + extra)
    return one, Load(ceil(outputs / share) * steps * one, moved, loads + outputs * (steps + bool(out)))


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


def _step(graph: Graph, layer: LayerIR, target: Target, tile: Tile) -> int:
    """One tile on one engine: folds of an array, or the roofline."""
    m, n, k = tile
    rows, columns = target.array
    if target.systolic:
        return ceil(k / rows) * ceil(n / columns) * max(m, rows)
    bits = prod(BITS[graph.tensors[name].dtype] for name in layer.inputs[:2])
    return ceil(m * n * k * bits / (64 * rows * columns))
