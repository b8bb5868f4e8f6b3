"""Every layer is cut into tiles of which two sets of buffers fit half of the scratchpad: one set computes while the
other moves, and the next layer has the other half. Of those the one is taken that is fastest by `codegen.estimate`."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod

from toolchain.codegen.commands import Target
from toolchain.codegen.estimate import SHARES, cycles
from toolchain.codegen.tiles import SUM_BYTES, Tile, fit, fits, smaller, whole
from toolchain.ir.graph import Graph, LayerIR
from toolchain.ir.operations import PRODUCTS

DOUBLE = 2
"""Sets of buffers of a layer."""
ROWS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
COLUMNS = (32, 64, 128, 256)
DEPTHS = (64, 128, 256, 512, 1024, 2048, 4096)


def run(graph: Graph, target: Target) -> Graph:
    """Add `tile` and `buffers` to every layer. ModelError names a layer of which no tile fits."""
    layers = [layer.having(tile=_chosen(graph, layer, target), buffers=SHARES) for layer in graph.layers]
    return replace(graph, layers=layers)


def _chosen(graph: Graph, layer: LayerIR, target: Target) -> Tile:
    plain = fit(graph, layer, target, DOUBLE * SHARES)
    if layer.op_type in ("COPY", "ATTN_T"):
        return plain
    candidates = _products(layer, target) if layer.op_type in PRODUCTS else smaller(layer, plain)
    legal = [plain, *(tile for tile in candidates if fits(graph, layer, tile, target, DOUBLE * SHARES))]
    return min(legal, key=lambda tile: (cycles(graph, layer, target, tile), -prod(tile)))


def _products(layer: LayerIR, target: Target) -> Iterator[Tile]:
    """Tiles whose sum the accumulator holds."""
    sizes = [
        sorted({min(size, extent) for size in choices})
        for extent, choices in zip(whole(layer), (ROWS, COLUMNS, DEPTHS), strict=True)
    ]
    for tile in product(*sizes):
        if tile[0] * tile[1] * SUM_BYTES <= target.acc_bytes:
            yield tile
