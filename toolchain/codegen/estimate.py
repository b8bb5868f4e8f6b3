"""How long a layer takes with a tile: a bound that ranks tiles, no prediction.

The largest of computation, bytes at the rate of the DRAM, and bytes and latencies on the DMA channels; and what nothing
hides: the first loads, the last tile, the last store. Shapes at the end of a dimension count as whole tiles.
"""

from math import ceil, prod
from typing import NamedTuple

from npu_device.abi.opcodes import BITS
from toolchain.codegen.commands import Target
from toolchain.codegen.tiles import Tile, bytes_of, demand, total, whole
from toolchain.ir.graph import Graph, LayerIR
from toolchain.ir.operations import PRODUCTS, windows_of

OPERATIONS = {"GELU": 8, "SOFTMAX": 6, "LAYERNORM": 6}
"""Of the vector engine per element (docs/npu-timing.md, "Duration of a step"); 1 for others."""

SHARES = 2
"""Layers that have a part of the scratchpad at the same time."""


class Load(NamedTuple):
    """What a layer asks of the device."""

    computed: int
    """Cycles of its engines."""
    moved: int
    """Bytes."""
    moves: int


def cycles(graph: Graph, layer: LayerIR, target: Target, tile: Tile) -> int:
    """NPU cycles of a layer, about."""
    if layer.op_type in PRODUCTS:
        return _product(graph, layer, target, tile)
    wanted = demand(graph, layer, tile)
    count = prod(ceil(extent / size) for extent, size in zip(whole(layer), tile, strict=True))
    kind = graph.tensors[layer.inputs[0]].dtype
    ports = ceil(sum(wanted.values()) / target.port)
    work = max(ports, prod(tile) * _operations(layer) * BITS[kind] // (8 * target.lanes))
    computed = ceil(count / engines(graph, layer, target, tile)) * work
    return _overlapped(target, wanted, work, Load(computed, count * sum(wanted.values()), count * len(wanted)))


def engines(graph: Graph, layer: LayerIR, target: Target, tile: Tile, ahead: int = 1) -> int:
    """Engines that can share a layer out: as many as have tiles of their own, and buffers to load `ahead` of them."""
    if layer.op_type in PRODUCTS:
        (m, n, _), (rows, columns, _) = whole(layer), tile
        repeats = layer.integer("batch" if layer.op_type == "GEMM_T" else "groups")
        there, chains = target.engines, repeats * max(ceil(m / rows), ceil(n / columns))
    else:
        there = target.vectors
        chains = prod(ceil(extent / size) for extent, size in zip(whole(layer), tile, strict=True))
    room = target.spm_bytes // layer.integer("buffers", SHARES) // total(demand(graph, layer, tile))
    return max(1, min(there, chains, room // (ahead + 1)))


def _operations(layer: LayerIR) -> int:
    if layer.op_type == "POOL":
        return layer.integer("kh") * layer.integer("kw")
    return layer.integer("n") if layer.op_type == "REDUCE" else OPERATIONS.get(layer.op_type, 1)


def _product(graph: Graph, layer: LayerIR, target: Target, tile: Tile) -> int:
    m, n, k = whole(layer)
    rows, columns, depth = tile
    repeats = layer.integer("batch" if layer.op_type == "GEMM_T" else "groups")
    down, across = ceil(m / rows), ceil(n / columns)
    steps, deep = _depth(layer, target, k, depth)
    wanted = demand(graph, layer, tile)
    ports = ceil((wanted["in0"] + wanted["in1"]) / target.port)
    one = max(ports, _step(graph, layer, target, (rows, columns, deep)))
    outputs = repeats * down * across
    share = engines(graph, layer, target, tile)
    kinds = [graph.tensors[name].dtype for name in layer.inputs]
    if layer.op_type == "GEMM_T":
        source, loads = bytes_of(m * k, kinds[0]) * across, outputs * steps
    else:
        source, loads = wanted["in0"] * down, repeats * down
    out = bytes_of(m * n, graph.tensors[layer.outputs[0]].dtype)
    extra = out if "residual" in layer.text("epilogue") else 0
    moved = repeats * (source + bytes_of(k * n, kinds[1]) * down + out + extra)
    work = Load(ceil(outputs / share) * steps * one, moved, loads + outputs * (steps + 1))
    return _overlapped(target, wanted, one, work)


def _depth(layer: LayerIR, target: Target, k: int, depth: int) -> tuple[int, int]:
    """(steps, depth of a step): with one product per kernel position a step stays within the channels."""
    if layer.op_type == "GEMM_T" or not target.kernel_position:
        return ceil(k / depth), depth
    shape = windows_of(layer)
    channels = k // (shape.kh * shape.kw)
    return shape.kh * shape.kw * ceil(channels / depth), min(depth, channels)


def _step(graph: Graph, layer: LayerIR, target: Target, tile: Tile) -> int:
    """One tile on one engine: folds of an array (docs/npu-timing.md, "Engines"), or the roofline."""
    m, n, k = tile
    rows, columns = target.array
    if target.systolic:
        return ceil(k / rows) * ceil(n / columns) * max(m, rows)
    bits = prod(BITS[graph.tensors[name].dtype] for name in layer.inputs[:2])
    return ceil(m * n * k * bits / (64 * rows * columns))


def _overlapped(target: Target, tile: dict[str, int], one: int, load: Load) -> int:
    """`tile`: bytes of one tile, `one`: its computation; `load`: of the whole layer."""
    dram = ceil(load.moved / target.dram_rate)
    channels = ceil((load.moves * target.latency + load.moved / target.channel_rate) / target.channels)
    exposed = 2 * target.latency + ceil(sum(tile.values()) / target.dram_rate) + one
    return max(load.computed, dram, channels) + exposed
