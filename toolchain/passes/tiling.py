"""Every layer is cut into the tiles that are fastest by `codegen.estimate`, of those of which two sets of buffers fit:
one set computes while the other moves.

A layer that runs alone has all of the scratchpad. Where commands of one layer, or layers for other engines, can run at
the same time, each has half of it; so have layers for the same engines where that saves time.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from itertools import accumulate, pairwise, product
from math import prod
from sys import maxsize
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npu_device.abi.extended import Residence
from npu_device.abi.opcodes import BITS, DataType, LoopOrder
from npu_device.operations.loops import ORDER_MASK, Loops
from toolchain.codegen.commands import Objective, Residency, Target
from toolchain.codegen.estimate import SHARES, Estimate
from toolchain.codegen.product_cost import computing
from toolchain.codegen.tiles import (
    SLOT,
    SUM_BYTES,
    Tile,
    TileSizes,
    fit,
    limited,
    loops_of,
    loops_over,
    smaller,
    whole,
    whole_vectors,
)
from toolchain.errors import ModelError
from toolchain.ir.graph import Attribute, Graph, LayerIR
from toolchain.ir.operations import PRODUCTS, channels_of, keys_of
from toolchain.passes.choices import choices, form
from toolchain.passes.schedule import cycles as bound
from toolchain.passes.schedule import dependencies

CLOSE = 250
"""Of tiles that differ by less than one part in so many the largest is taken: the device has fewer to walk through."""
RANKED = 16
"""Denominator of the tolerance: `ranked` has all mappings within one part in so many of the lowest cost."""
GAIN = 8
"""Layers share the scratchpad where that saves one part in so many of their time."""
PLACEMENT = ("rank", "phase", "cluster", "turn")
"""Attributes that say when and where a layer runs, and nothing of how."""
REORDER = 128
"""Denominator of the part of its time that a product must save for weights to stay instead of sums."""
CUT = 64
"""Denominator of the same for blocks that are cut along k, whose estimate is less exact: at 128 layer `wide` of
tests/pyv_npu/workloads/test_monotone.py takes 16 % more with 1 MiB of scratchpad than with half of it."""
CHOSEN = ("tile", "buffers", "loop_order", "block")
"""Attributes that the pass adds."""
AHEAD = 1
"""Tiles that a layer loads ahead at least: one set of buffers computes while the other moves."""
ROWS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
COLUMNS = (32, 64, 128, 256, 512, 1024, 2048)
DEPTHS = (64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 4096)
DEPTH_STEP = 16
MAX_CYCLES = 1 << 40
"""Cycles at which layers count as equally long: their sums fit 64 bits."""
KEYS = (1024, 2048, 4096, 8192)
"""Of a tile of attention of a single query, which sees all of them."""


def run(graph: Graph, target: Target) -> Graph:
    """Add `tile` and `buffers` to every layer of an engine that has no tile. ModelError names one of which no tile
    fits."""
    chosen: dict[Hashable, Mapping[str, Attribute]] = {}
    before = choices("tiling", target)
    layers = []
    for layer, company in zip(graph.layers, _companies(graph), strict=True):
        if not layer.integers("tile") and layer.op_type != "CORE":
            key = company, signature(graph, layer), target.mapping.tile_of(layer.id)
            if key not in chosen:
                record_key = company, form(graph, [layer]), target.mapping.tile_of(layer.id)
                if record_key not in before:
                    attributes = _tile(graph, layer, target, company).attributes
                    before[record_key] = [{name: attributes[name] for name in CHOSEN if name in attributes}]
                (chosen[key],) = before[record_key]
            layer = layer.having(**chosen[key])
        layers.append(layer)
    return replace(graph, layers=layers)


class Company(Enum):
    """Class of the layers and commands that could run at the same time as a layer, on its cluster."""

    NONE = 0
    SAME = 1
    """Independent layers for the same engines."""
    OTHER = 2
    """Commands of the layer itself, or layers for other engines whose time counts."""


def _companies(graph: Graph) -> list[Company]:
    engines = np.array([layer.op_type in (*PRODUCTS, "ATTN_T") for layer in graph.layers], bool)
    times = np.array([min(bound(graph, layer), MAX_CYCLES) for layer in graph.layers], np.int64)
    clusters = np.array([layer.integer("cluster") for layer in graph.layers])
    companies = []
    for index, (layer, free) in enumerate(zip(graph.layers, independent_layers(graph), strict=True)):
        others = free[clusters[free] == clusters[index]]
        parallel = int(times[others[engines[others] != engines[index]]].sum())
        same = int(times[index] + times[others].sum()) - parallel
        if layer.integer("batch", 1) > 1 or parallel * GAIN > same:
            companies.append(Company.OTHER)
        else:
            companies.append(Company.SAME if len(others) else Company.NONE)
    return companies


def independent_layers(graph: Graph) -> Iterator[NDArray[np.int64]]:
    """Yield for each layer those of its phase that could run at the same time."""
    return independent(dependencies(graph), [layer.integer("phase") for layer in graph.layers])


def independent(before: Sequence[set[int]], phases: Sequence[int]) -> Iterator[NDArray[np.int64]]:
    """Yield for each layer those of its phase that need not come before or behind it: these are in its part."""
    phase = np.array(phases, np.int64)
    for start, end in pairwise(_parts(before)):
        count = end - start
        earlier, later = [0] * count, [0] * count
        for index in range(count):
            for predecessor in before[start + index]:
                if predecessor >= start:
                    earlier[index] |= earlier[predecessor - start] | 1 << predecessor - start
        for index in reversed(range(count)):
            for predecessor in before[start + index]:
                if predecessor >= start:
                    later[predecessor - start] |= later[index] | 1 << index
        everything = (1 << count) - 1
        for index in range(count):
            free = everything & ~(earlier[index] | later[index] | 1 << index)
            bits = np.frombuffer(free.to_bytes(count // 8 + 1, "little"), np.uint8)
            layers = start + np.flatnonzero(np.unpackbits(bits, bitorder="little")[:count])
            yield layers[phase[layers] == phase[start + index]]


def _parts(before: Sequence[set[int]]) -> list[int]:
    """Splits the layer graph at its articulation points; returns the first index of each part, then the number of
    layers."""
    count = len(before)
    nearest: dict[int, int] = {}
    for index, names in enumerate(before):
        for name in names:
            nearest.setdefault(name, index)
    met = Counter(nearest.values())
    last_inputs = Counter(max(names) for names in before if names)
    ends = accumulate(1 - met[index] for index in range(count))
    starts = reversed(list(accumulate(1 - last_inputs[index] for index in reversed(range(count)))))
    narrow = [index for index, (end, start) in enumerate(zip(ends, starts, strict=True)) if end == start == 1]
    return sorted({0, count, *narrow, *(index + 1 for index in narrow)})


def signature(graph: Graph, layer: LayerIR) -> Hashable:
    """Return the properties that decide a tile: equal layers have equal tiles."""
    names = *layer.inputs, *layer.outputs
    tensors = tuple((graph.tensors[name].dtype, graph.resident(name), graph.tensors[name].pitch) for name in names)
    attributes = tuple(item for item in layer.attributes.items() if item[0] not in PLACEMENT)
    return layer.op_type, tensors, attributes


def _tile(graph: Graph, layer: LayerIR, target: Target, company: Company) -> LayerIR:
    """Return the layer with the tile and the part of the scratchpad that take the least time."""
    if layer.integer("buffers"):
        return _chosen(graph, layer, target).layer
    whole_scratchpad = layer.having(buffers=1)
    if company is Company.NONE or (company is Company.SAME and target.mapping.objective is not Objective.CYCLES):
        return _chosen(graph, whole_scratchpad, target).layer
    try:
        part = _chosen(graph, layer.having(buffers=SHARES), target)
    except ModelError:  # no tile fits its part
        return _chosen(graph, whole_scratchpad, target).layer
    if company is Company.OTHER:
        return part.layer
    entire = _chosen(graph, whole_scratchpad, target)
    gain = SHARES * entire.cost - part.cost
    return part.layer if gain * GAIN > SHARES * entire.cost else entire.layer


class Choice(NamedTuple):
    layer: LayerIR
    cost: int
    """Cost by the user's objective."""


def fastest(graph: Graph, layer: LayerIR, target: Target, buffers: int = 1) -> Choice:
    """Return the layer with the tile that takes the least time where it runs alone, or is one of several that share
    the scratchpad."""
    return _chosen(graph, layer.having(buffers=buffers), target)


def _chosen(graph: Graph, layer: LayerIR, target: Target) -> Choice:
    """Return the best tile, of a product in the best order of its loops."""
    if layer.op_type not in PRODUCTS:
        return _in_order(graph, layer, target)
    layer = layer.without("loop_order", "block")
    decided, residency = target.mapping.loop_order, target.mapping.residency
    if residency is not None and residency is not Residency.NONE:
        return _resident(graph, layer, target, residency)
    weight = layer.having(loop_order=int(LoopOrder.WEIGHT))
    if decided is LoopOrder.WEIGHT:
        return _in_order(graph, weight, target)
    choice = _in_order(graph, layer, target)
    if decided is LoopOrder.OUTPUT:
        return choice
    try:
        other = _in_order(graph, weight, target)
    except ModelError:  # the tile that the user wants leaves no space for partial sums
        return choice
    if (choice.cost - other.cost) * REORDER > choice.cost:
        choice = other
    if residency is Residency.NONE or target.mapping.tile_of(layer.id) is not None or block_obstacle(layer, target):
        return choice
    return _in_blocks(graph, layer, target, choice.cost) or choice


def block_obstacle(layer: LayerIR, target: Target) -> str:
    """Return the reason why a product has no loops over blocks; empty: it may have them."""
    if target.tile_form:
        return "commands in tile form have no blocks"
    if layer.integer("batch", 1) > 1:
        return "a batch of products has no blocks"
    if target.te.kind == "systolic_ws_pipe":
        return "engines of npu.te.kind = systolic_ws_pipe take tiles fold by fold"
    if target.te.conv_lowering == "kernel_position":
        return "npu.te.conv_lowering = kernel_position moves weights kernel by kernel"
    return ""


def _resident(graph: Graph, layer: LayerIR, target: Target, residency: Residency) -> Choice:
    """Return the best tile of a product of which an operand stays in the scratchpad as the user wants. ModelError names
    a layer that cannot follow."""
    remedy = f"compiler.residency = {residency}: auto or none"
    order = LoopOrder.WEIGHT if residency is Residency.WEIGHTS else LoopOrder.OUTPUT
    if target.mapping.loop_order not in (None, order):
        needed, fixed = (option.name.lower() for option in (order, target.mapping.loop_order))
        rule = f"needs compiler.loop_order = {needed}, here it is {fixed}"
        raise ModelError(f"compiler.residency = {residency} {rule}: change one of them, or set either to auto")
    if reason := block_obstacle(layer, target):
        raise ModelError(f"layer {layer.id} ({layer.op_type}): {reason}; {remedy}")
    choice = _in_blocks(graph, layer, target, residency=residency)
    if choice is None and residency is Residency.OUTPUTS:  # those of a single tile stay in the accumulator
        return _in_order(graph, layer, target)
    if choice is None:
        reason = f"no block of tiles fits {target.workspace} bytes of scratchpad"
        raise ModelError(f"layer {layer.id} ({layer.op_type}): {reason}; {remedy}, or a larger npu.spm.size")
    return choice


def _in_blocks(
    graph: Graph, layer: LayerIR, target: Target, plain: int = maxsize, residency: Residency | None = None
) -> Choice | None:
    """Return a product with loops over blocks, of which operands stay in the workspace, where that costs clearly less
    than `plain`, the cost of its best tile without them. `residency`: the operand, None: any."""
    limit = plain - plain // REORDER
    timed = target.mapping.objective is Objective.CYCLES
    if timed and computing(graph, layer, target, target.engines) >= limit:
        return None
    estimate, best = Estimate(graph, layer, target), -1
    product_cost = estimate.product
    assert product_cost is not None
    mappings = [
        mapping for mapping in blocked_tiles(graph, layer, target, estimate.sizes)
        if residency in (None, mapping.residency)
    ]  # fmt: skip
    bounds = [
        product_cost.lower_bound(mapping.tile, mapping.demand, mapping.loops, limit) if timed else 0
        for mapping in mappings
    ]
    for index in sorted(range(len(mappings)), key=bounds.__getitem__):
        if bounds[index] > limit:
            break
        cost = estimate.cost(mappings[index].tile, mappings[index].demand, mappings[index].loops)
        if mappings[index].residency is Residency.OUTPUTS:
            cost += cost // CUT
        if (cost, index) < (limit, best):
            limit, best = cost, index
    return None if best < 0 else Choice(mappings[best].apply_to(layer), limit)


class BlockedTile(NamedTuple):
    """A tile, and loops over blocks of such tiles."""

    tile: Tile
    order: int
    block: tuple[int, int, int]
    residency: Residency
    loops: Loops
    demand: dict[str, int]
    """`TileSizes.demand`."""

    def apply_to(self, layer: LayerIR) -> LayerIR:
        """Return the layer with this mapping."""
        return layer.having(tile=self.tile, loop_order=self.order, block=self.block)


def blocked_tiles(graph: Graph, layer: LayerIR, target: Target, sizes: TileSizes) -> Iterator[BlockedTile]:
    """Tiles of a product in each order over blocks, in the largest block that fits: a smaller block needs no more."""
    extent, limit = whole(layer), target.mapping.tile_of(layer.id)
    tiles: Iterable[Tile] = _products(layer, target, graph.tensors[layer.inputs[0]].dtype)
    if limit is not None:
        tiles = (limited(graph, layer, target, limit),)
    for tile in tiles:
        if not whole_vectors(layer, tile):
            continue
        for order, blocks in _blocks(tile, extent, layer.op_type == "CONV2D_T"):
            candidate = _in_largest_block(sizes, target.workspace, extent, tile, order, blocks)
            if candidate is not None:
                yield candidate


def _in_largest_block(
    sizes: TileSizes, workspace: int, extent: Tile, tile: Tile, order: int, blocks: Sequence[tuple[int, int, int]]
) -> BlockedTile | None:
    """Return the tile in the first of the blocks, the largest first, that fits."""

    def in_block(block: tuple[int, int, int]) -> BlockedTile:
        loops = loops_over(extent, tile, order, block)
        residency = Residency.INPUTS if block[2] >= extent[2] else Residency.OUTPUTS
        if order & ORDER_MASK == LoopOrder.WEIGHT:
            residency = Residency.WEIGHTS
        return BlockedTile(tile, order, block, residency, loops, sizes.demand(tile, loops))

    def fits(block: tuple[int, int, int]) -> bool:
        candidate = in_block(block)
        return sizes.need(candidate.demand, AHEAD, candidate.loops) <= workspace

    at = bisect_left(blocks, True, key=fits)
    return in_block(blocks[at]) if at < len(blocks) else None


STAY = Residence.IN0 | Residence.IN1 | Residence.SHARED


def _blocks(tile: Tile, extent: Tile, image: bool) -> Iterator[tuple[int, list[tuple[int, int, int]]]]:
    """Orders of loops over blocks, and sizes of their blocks, the largest first: rows of in0 that stay while columns of
    in1 pass, columns of in1 that stay while rows pass, sums that stay while both pass along k (not of an `image`)."""
    m, n, k = tile
    yield int(LoopOrder.OUTPUT | STAY), [(rows, n, extent[2]) for rows in _parts_of(extent[0], m)]
    yield int(LoopOrder.WEIGHT | STAY), [(m, columns, extent[2]) for columns in _parts_of(extent[1], n)]
    if k < extent[2] and not image:
        for rows in _parts_of(extent[0], m)[:3]:
            yield int(LoopOrder.OUTPUT | STAY), [(rows, columns, k) for columns in _parts_of(extent[1], n)]


def _parts_of(extent: int, size: int) -> list[int]:
    """Return the blocks of whole tiles of `size` that cut a dimension into about equal parts, the largest first."""
    tiles = -(-extent // size)
    return sorted({-(-tiles // parts) * size for parts in range(1, min(tiles, 64) + 1)}, reverse=True)


def _in_order(graph: Graph, layer: LayerIR, target: Target) -> Choice:
    """Return the best tile in the order that the layer has."""
    limit = target.mapping.tile_of(layer.id)
    if limit is not None and layer.op_type in PRODUCTS:
        tile, estimate = limited(graph, layer, target, limit), Estimate(graph, layer, target)
        return Choice(layer.having(tile=tile), estimate.cost(tile))
    times = _times(graph, layer, target, CLOSE)
    min_time = min(times.values())
    tile = max((tile for tile, time in times.items() if (time - min_time) * CLOSE <= min_time), key=prod)
    return Choice(layer.having(tile=tile), times[tile])


def ranked(graph: Graph, layer: LayerIR, target: Target) -> list[Choice]:
    """Return a product with each tile that fits in each order of its loops that the user allows, the lowest cost by
    estimate first: all within one part in `RANKED` of the lowest, and perhaps others."""
    choices, loop_order, residency = list[Choice](), target.mapping.loop_order, target.mapping.residency
    if residency in (None, Residency.NONE):
        for order in (LoopOrder.OUTPUT, LoopOrder.WEIGHT) if loop_order is None else (loop_order,):
            ordered = layer.having(loop_order=int(order)) if order else layer
            for tile, cost in _times(graph, ordered, target, RANKED).items():
                choices.append(Choice(ordered.having(tile=tile), cost))
    automatic = residency is None and loop_order is None and target.mapping.tile_of(layer.id) is None
    if (automatic or residency not in (None, Residency.NONE)) and not block_obstacle(layer, target):
        estimate = Estimate(graph, layer, target)
        product_cost = estimate.product if target.mapping.objective is Objective.CYCLES else None
        min_cost = min((choice.cost for choice in choices), default=maxsize)
        for blocked in blocked_tiles(graph, layer, target, estimate.sizes):
            tile, demand, loops, limit = blocked.tile, blocked.demand, blocked.loops, min_cost + min_cost // RANKED
            if residency not in (None, blocked.residency):
                continue
            if product_cost and product_cost.lower_bound(tile, demand, loops, limit) > limit:
                continue
            cost = estimate.cost(tile, demand, loops)
            choices.append(Choice(blocked.apply_to(layer), cost))
            min_cost = min(min_cost, cost)
    return sorted(choices, key=lambda choice: choice.cost)


def _times(graph: Graph, layer: LayerIR, target: Target, tolerance: int) -> dict[Tile, int]:
    """Return the estimated cost of each tile that fits, in the order that the layer has: all within one part in
    `tolerance` of the least cost, and perhaps others."""
    default_tile = fit(graph, layer, target, AHEAD)
    candidates: Iterable[Tile] = smaller(layer, default_tile)
    if layer.op_type in PRODUCTS:
        candidates = _products(layer, target, graph.tensors[layer.inputs[0]].dtype)
    elif layer.op_type == "ATTN_T":
        candidates = _keys(layer, default_tile)
    elif layer.op_type == "COPY":
        candidates = ()
    estimate = Estimate(graph, layer, target)
    product_cost = estimate.product if target.mapping.objective is Objective.CYCLES else None
    times = {default_tile: estimate.cost(default_tile)}
    min_time = times[default_tile]
    bounds = dict[Tile, tuple[int, dict[str, int], Loops]]()
    for tile in candidates:
        if tile == default_tile or not whole_vectors(layer, tile):
            continue
        demand, loops = estimate.sizes.demand(tile), loops_of(layer, tile)
        if estimate.sizes.need(demand, AHEAD, loops) <= target.workspace:
            limit = min_time + min_time // tolerance
            bounds[tile] = product_cost.lower_bound(tile, demand, loops, limit) if product_cost else 0, demand, loops
    for tile, (lower_bound, demand, loops) in sorted(bounds.items(), key=lambda item: item[1][0]):
        if (lower_bound - min_time) * tolerance > min_time:
            break
        times[tile] = estimate.cost(tile, demand, loops)
        min_time = min(min_time, times[tile])
    return {tile: times[tile] for tile in (default_tile, *bounds) if tile in times}


def _products(layer: LayerIR, target: Target, kind: DataType) -> Iterator[Tile]:
    """Tiles whose sum the accumulator holds. Those of a convolution with groups have a part of a group, or several
    groups."""
    rows, columns = (
        sorted({min(size, extent) for size in choices})
        for extent, choices in zip(whole(layer)[:2], (ROWS, COLUMNS), strict=True)
    )
    filters, groups = whole(layer)[1], layer.integer("groups", 1)
    if groups > 1:
        unit = max(1, SLOT * 8 // BITS[kind] // min(filters, channels_of(layer)))
        columns += [filters * count for count in _shares(groups, unit) if filters * count <= COLUMNS[-1]]
    for tile in product(rows, columns, _depths(whole(layer)[2])):
        if tile[0] * tile[1] * SUM_BYTES <= target.acc_bytes:
            yield tile


def _shares(groups: int, unit: int) -> list[int]:
    """Return the numbers of groups that a tile may have: parts that are about equal, of whole accesses of DRAM."""
    counts = {min(groups, -(-groups // (parts * unit)) * unit) for parts in range(1, max(1, groups // unit) + 1)}
    return sorted(count for count in counts if count > 1)


def _depths(extent: int) -> list[int]:
    """Return equal parts of a dimension, as deep as DEPTHS: a shallow last tile would leave the DMA without work."""
    counts = {-(-extent // depth) for depth in DEPTHS}
    depths = {min(extent, -(-extent // (count * DEPTH_STEP)) * DEPTH_STEP) for count in counts}
    return sorted(depth for depth in depths if not extent % depth or extent % depth * 4 >= depth * 3) or [min(depths)]


def _keys(layer: LayerIR, plain: Tile) -> Iterator[Tile]:
    """Yield larger tiles of keys for one query without a window: others would move keys that they do not see."""
    if layer.integer("m") == 1 and not layer.integer("window"):
        yield from ((plain[0], min(keys, keys_of(layer))) for keys in KEYS)
