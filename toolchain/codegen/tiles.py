"""Tiles that fit: what one tile of a layer needs in the scratchpad, and where its buffers lie."""

from collections.abc import Iterator, Mapping
from typing import NoReturn

from npu_device.abi.memory_map import SPM_BASE, SPM_CLUSTER_STRIDE
from npu_device.abi.opcodes import BITS, CODEBOOK_BYTES, VQ_VECTOR, DataType, LoopOrder
from npu_device.memory.bitwidth import bytes_total, expansion
from npu_device.operations.loops import AXES, Loops, decode_loops
from npu_device.operations.windows import max_pixels
from toolchain.codegen.commands import Target
from toolchain.errors import ModelError
from toolchain.ir.graph import Graph, LayerIR
from toolchain.ir.operations import (
    CACHING,
    PRODUCTS,
    append_operands,
    channels_of,
    epilogue_of,
    filters_of,
    keys_of,
    matrix_of,
    windows_of,
)

GEMM_TILE = (128, 128, 64)
"""Of the default machine (docs/npu-timing.md)."""
ATTENTION_KEYS = 512
"""Of one tile of attention."""
SUM_BYTES = 4
"""Of one element of a sum."""
ELEMENTS = 4
"""That begin and end at a byte, whatever their type."""
SLOT = 64
"""Alignment of a buffer in the scratchpad."""
Tile = tuple[int, ...]
PLAIN = Loops(LoopOrder.OUTPUT, (), "", (1, 1, 1), True)
"""Loops over tiles alone, after which nothing stays."""


def bytes_of(elements: int, kind: DataType) -> int:
    return bytes_total(elements, BITS[kind])


def sum_type(graph: Graph, layer: LayerIR) -> DataType:
    """Return type of a product in the scratchpad: the output's, or fp32 while an epilogue follows."""
    out = graph.tensors[layer.outputs[0]].dtype
    return DataType.FP32 if out is not DataType.INT32 and finishes(layer) else out


def groups_of(layer: LayerIR, tile: Tile) -> int:
    """Return the groups of a convolution that a tile covers; 1 for others."""
    return max(1, tile[1] // filters_of(layer)) if layer.op_type == "CONV2D_T" else 1


def block_of(layer: LayerIR) -> tuple[int, int, int]:
    """Return M, N and K of a block of a product's loops; 0: one tile."""
    m, n, k = layer.integers("block") or (0, 0, 0)
    return m, n, k


def loops_of(layer: LayerIR, tile: Tile) -> Loops:
    """Return the loops of a product over tiles of this size; plain loops of other layers."""
    if layer.op_type not in PRODUCTS:
        return PLAIN
    return loops_over(whole(layer), tile, layer.integer("loop_order"), block_of(layer))


def loops_over(extent: Tile, tile: Tile, order: int, block: tuple[int, int, int]) -> Loops:
    """Return loops over tiles of a product of this extent, as the device decodes them."""
    m, n, k = extent
    return decode_loops(order, block, (tile[0], tile[1], tile[2]), (m, max(n, tile[1]), k))


def finishes(layer: LayerIR) -> bool:
    """Check whether a product has an epilogue."""
    return bool(layer.text("epilogue") or layer.text("activation"))


class TileSizes:
    """Scratchpad demand of a layer's tiles. Values that do not depend on the tile are computed once: thousands of tiles
    are tried."""

    def __init__(self, graph: Graph, layer: LayerIR, target: Target) -> None:
        self._graph, self._layer = graph, layer
        self._kinds = [graph.tensors[name].dtype for name in layer.inputs]
        self._out = graph.tensors[layer.outputs[0]].dtype
        tensors = dict(zip(("in0", "in1", "in2"), layer.inputs, strict=False))
        self._windows = windows_of(layer)
        self._product = layer.op_type in PRODUCTS
        if self._product:
            tensors |= epilogue_of(layer)
            self._sum, self._finishes, self._epilogue = sum_type(graph, layer), finishes(layer), layer.text("epilogue")
            self._acc_bytes, self._extent = target.acc_bytes, whole(layer)
            self._demands: dict[Tile, dict[str, int]] = {}
            self._nk, self._codebooks = layer.integer("in1_nk"), layer.integer("codebooks")
            self._columns = graph.tensors[tensors["scale"]].elements if "scale" in tensors else 0
        else:
            tensors |= dict(zip(("new_keys", "new_values"), append_operands(layer), strict=False))
        tensors["out"] = layer.outputs[0]
        self._shares = layer.integer("buffers", 1)
        self._staged_result = target.tile_form or "bias_column" in tensors
        """Whether vector commands work on the sum of a tile in the scratchpad."""
        self._in_place = {name for name, tensor in tensors.items() if graph.resident(tensor)}
        """Operands that stay in the scratchpad."""

    def staged(self, demand: dict[str, int]) -> dict[str, int]:
        """Return the part of `demand` that needs buffers: operands in the scratchpad are read and written in place."""
        return {name: size for name, size in demand.items() if name not in self._in_place}

    def buffers(
        self, demand: dict[str, int], ahead: int, loops: Loops = PLAIN
    ) -> dict[str, tuple[int, int]]:  # fmt: skip
        """Return (bytes of a buffer, buffers) by operand for a command that loads so many tiles ahead, for one engine:
        those of the device (`npu_device.operations.macro.workspace`). `loops`: of a product that are not plain."""
        count, copies = ahead + 1, {"sums": 1}
        if self._product and not self._staged_result:
            count, copies = min(2, ahead + 1), {"in0": ahead + 1, "in1": ahead + 1, "sums": 1, "codebook": 1}
        for name in loops.resident:
            image = name == "in0" and self._layer.op_type == "CONV2D_T"
            copies[name] = max(ahead + 1, loops.tiles("m" if image else AXES[name]))
        return {name: (size, copies.get(name, count)) for name, size in demand.items() if name not in self._in_place}

    def need(self, demand: dict[str, int], ahead: int, loops: Loops = PLAIN) -> int:
        """Return bytes of the scratchpad for a tile, by its `demand`, in each of the layer's parts of it."""
        return self._shares * bytes_in(self.buffers(demand, ahead, loops))

    def demand(self, tile: Tile, loops: Loops | None = None) -> dict[str, int]:
        """Return bytes in the scratchpad for one tile, by operand. `loops`: of a product, if not those of the
        layer."""
        if self._product:
            return self._of_product(tile, loops_of(self._layer, tile) if loops is None else loops)
        layer, kinds, out = self._layer, self._kinds, self._out
        m, n = tile
        if layer.op_type == "ATTN_T":
            return _attention(self._graph, layer, tile)
        if layer.op_type == "COPY":
            return {"in0": bytes_of(m * n, kinds[0])}
        if layer.op_type in CACHING:  # head by head, where it is converted
            return {
                "in0": max(
                    m * bytes_of(n // layer.integer("heads"), kind) * expansion(kind) for kind in (kinds[0], out)
                )
            }
        if layer.op_type == "POOL":
            return {"in0": bytes_of(max_pixels(self._windows, m) * n, kinds[0]), "out": bytes_of(m * n, out)}
        if layer.op_type == "REDUCE" and layer.integer("k") > 1:
            return {"in0": bytes_of(m * layer.integer("n") * n, kinds[0]), "out": bytes_of(m * n, out)}
        columns = 1 if layer.op_type == "REDUCE" else n
        demand = {"in0": bytes_of(m * n, kinds[0]), "out": bytes_of(m * columns, out)}
        if layer.op_type == "ELTWISE":
            demand |= {f"in{index}": bytes_of(m * n, kind) for index, kind in enumerate(kinds[1:], 1)}
        if layer.op_type == "LAYERNORM":
            demand["in1"] = (len(layer.inputs) - 1) * bytes_of(n, kinds[0])
        if layer.op_type == "ROPE":
            demand["in1"] = 2 * bytes_of(m * layer.integer("rotary") // 2, kinds[1])
        if layer.op_type == "GATHER":
            demand["in1"] = bytes_of(m, kinds[1])
        return demand

    def _of_product(self, tile: Tile, loops: Loops) -> dict[str, int]:
        demand = self._demands.get(tile)
        if demand is None:
            demand = self._demands[tile] = self._operands(tile)
        (m, n, k), (whole_m, whole_n, whole_k) = tile, self._extent
        sums = loops.open_sums((-(-whole_m // m), -(-whole_n // n), -(-whole_k // k))) * m * n * SUM_BYTES
        return demand | {"sums": sums} if sums > self._acc_bytes else demand

    def _operands(self, tile: Tile) -> dict[str, int]:
        """Return bytes for one tile of a product, without partial sums."""
        layer, kinds = self._layer, self._kinds
        m, n, k = tile
        source = (
            m * k
            if layer.op_type == "GEMM_T"
            else max_pixels(self._windows, m) * channels_of(layer) * groups_of(layer, tile)
        )
        weights = n * bytes_of(k, kinds[1]) if self._nk else k * bytes_of(n, kinds[1])
        demand = {"in0": bytes_of(source, kinds[0]), "in1": weights * expansion(kinds[1])}
        if self._codebooks:
            demand["codebook"] = self._codebooks * CODEBOOK_BYTES
        return demand | (self._result(m, n) if self._staged_result else self._direct_result(m, n))

    def _result(self, m: int, n: int) -> dict[str, int]:
        """Return bytes by operand of the vector commands that finish a sum."""
        demand = {"out": bytes_of(m * n, self._sum)}
        if self._finishes:
            demand |= {"bias": 4 * max(m, n), "final": bytes_of(m * n, self._out)}
        if "scale" in self._epilogue:
            demand["scale"] = 4 * n
        if "residual" in self._epilogue:
            demand["residual"] = demand["out"]
        return demand

    def _direct_result(self, m: int, n: int) -> dict[str, int]:
        """Return bytes by operand of the epilogue of a macro command."""
        result, steps = m * bytes_of(n, self._out), self._epilogue.split("+")
        demand = {"out": result}
        if "bias" in steps:
            demand["bias"] = n * SUM_BYTES
        if "scale" in steps:
            demand["scale"] = (n if self._columns > 2 else 1) * SUM_BYTES
        if "residual" in steps:
            demand["residual"] = result
        return demand


def _attention(graph: Graph, layer: LayerIR, tile: Tile) -> dict[str, int]:
    """Return bytes for a tile of queries x heads of a group, and keys; the scores are of all keys there can be."""
    rows, keys = tile
    group = layer.integer("heads") // layer.integer("kv_heads")
    size = layer.integer("n") // layer.integer("heads")
    covered = min(layer.integer("m"), -(-rows // group) + 1) * group * size
    q, kv = graph.tensors[layer.inputs[0]].dtype, graph.tensors[layer.inputs[1]].dtype
    row = bytes_of(size, kv) * expansion(kv)
    moved = {"in0": bytes_of(covered, q), "in1": row * keys, "in2": row * keys}
    for name, tensor in zip(("new_keys", "new_values"), append_operands(layer), strict=False):
        moved[name] = layer.integer("m") * bytes_of(size, graph.tensors[tensor].dtype)
    return moved | {"out": bytes_of(covered, q), "scores": rows * keys_of(layer) * SUM_BYTES}


def bytes_in(buffers: Mapping[str, tuple[int, int]]) -> int:
    """Return bytes of `TileSizes.buffers`."""
    return sum(padded(size) * copies for size, copies in buffers.values())


def padded(size: int) -> int:
    """Return bytes of a buffer up to the boundary of the next buffer."""
    return -(-size // SLOT) * SLOT


def whole(layer: LayerIR) -> Tile:
    """Return the layer as one tile."""
    if layer.op_type == "COPY":
        return 1, 1
    if layer.op_type == "ATTN_T":
        group = layer.integer("heads") // layer.integer("kv_heads")
        return layer.integer("m") * group, min(ATTENTION_KEYS, keys_of(layer))
    if layer.op_type in PRODUCTS:
        return matrix_of(layer)
    if layer.op_type == "POOL":
        return windows_of(layer).pixels, layer.integer("channels")
    if layer.op_type == "REDUCE" and layer.integer("k") > 1:
        return layer.integer("m"), layer.integer("k")
    return layer.integer("m"), layer.integer("n")


def fit(graph: Graph, layer: LayerIR, target: Target, ahead: int) -> Tile:
    """Return the first of `smaller` that fits with so many tiles ahead. ModelError names tensor, bytes and what would
    fit."""
    candidates = list(smaller(layer, _start(layer, target)))
    first = next((tile for tile in candidates if fits(graph, layer, tile, target, ahead)), None)
    if first is None:
        _refuse(graph, layer, candidates[-1], target, ahead)
    return first


def limited(graph: Graph, layer: LayerIR, target: Target, limit: Tile) -> Tile:
    """Return the tile of a product that the user wants, cut to the layer and to whole bytes, whole groups and whole
    vectors of a codebook. ModelError where none is left, or where the accumulator or the scratchpad has no space for
    it."""
    full, kinds = whole(layer), [graph.tensors[name].dtype for name in (*layer.inputs[:2], layer.outputs[0])]
    filters, groups = full[1], layer.integer("groups", 1)
    units = [1, max(_whole_bytes(kinds[1]), _whole_bytes(kinds[2])), max(map(_whole_bytes, kinds[:2]))]
    if layer.integer("codebooks"):
        units = [1, units[1] * VQ_VECTOR, units[2] * VQ_VECTOR]
    extent = (full[0], filters * groups, full[2])
    if limit[1] > filters:
        units[1] = filters
    tile = tuple(
        size if demand >= size else demand - demand % unit
        for size, demand, unit in zip(extent, limit, units, strict=True)
    )
    if not all(tile):
        nearest = tuple(max(size, min(unit, high)) for size, unit, high in zip(tile, units, extent, strict=True))
        raise ModelError(
            f"layer {layer.id} ({layer.op_type}): a tile of {_shape(limit)} is less than whole bytes, a group or "
            f"vectors of a codebook; the nearest that is not is {_shape(nearest)}: compiler.tile or compiler.layers"
        )
    need = tile[0] * tile[1] * SUM_BYTES
    if need > target.acc_bytes:
        rows = target.acc_bytes // (tile[1] * SUM_BYTES)
        nearest = (rows, *tile[1:]) if rows else (1, target.acc_bytes // SUM_BYTES, tile[2])
        raise ModelError(
            f"layer {layer.id} ({layer.op_type}): the sums of a tile of {_shape(tile)} need {need} bytes of "
            f"accumulator, there are {target.acc_bytes}: a tile of {_shape(nearest)}, or a larger npu.te.acc_bytes"
        )
    ahead = 1 if target.mapping.prefetch is None else target.mapping.prefetch
    if not fits(graph, layer, tile, target, ahead):
        _refuse(graph, layer, tile, target, ahead)
    return tile


def _whole_bytes(kind: DataType) -> int:
    """Return elements in whole bytes, at least."""
    return max(1, 8 // BITS[kind])


def fits(graph: Graph, layer: LayerIR, tile: Tile, target: Target, ahead: int) -> bool:
    """Check whether a tile fits the scratchpad while `ahead` more tiles are loaded."""
    sizes = TileSizes(graph, layer, target)
    loops = loops_of(layer, tile)
    return whole_vectors(layer, tile) and sizes.need(sizes.demand(tile), ahead, loops) <= target.workspace


def whole_vectors(layer: LayerIR, tile: Tile) -> bool:
    """Check whether a tile of weights begins and ends at vectors of its codebook; True without a codebook."""
    if not layer.integer("codebooks"):
        return True
    axis = 2 if layer.integer("in1_nk") else 1
    groups = layer.integer("groups", 1) if axis == 1 else 1
    return tile[axis] % VQ_VECTOR == 0 or tile[axis] in (whole(layer)[axis], whole(layer)[axis] * groups)


def smaller(layer: LayerIR, tile: Tile) -> Iterator[Tile]:
    """Yield a tile, and ever smaller tiles."""
    yield tile
    while (axis := _split(layer, tile)) is not None:
        tile = (*tile[:axis], _half(layer, tile[axis]), *tile[axis + 1 :])
        yield tile


def _half(layer: LayerIR, size: int) -> int:
    """Return half of a dimension; of a product whole bytes of weights of any width."""
    half = -(-size // 2)
    return -(-half // ELEMENTS) * ELEMENTS if layer.op_type in PRODUCTS and size > ELEMENTS else half


def _start(layer: LayerIR, target: Target) -> Tile:
    """Return the whole layer, of a product a tile of the plan's size whose sum the accumulator holds."""
    full = whole(layer)
    if layer.op_type not in PRODUCTS:
        return full
    tile = tuple(min(size, limit) for size, limit in zip(full, GEMM_TILE, strict=True))
    while tile[0] * tile[1] * SUM_BYTES > target.acc_bytes:
        if tile[0] == 1:
            raise ModelError(
                f"layer {layer.id} ({layer.op_type}): the sums of a tile of 1 x {tile[1]} need {tile[1] * SUM_BYTES} "
                f"bytes of accumulator, there are {target.acc_bytes}: a larger npu.te.acc_bytes"
            )
        tile = (-(-tile[0] // 2), tile[1], tile[2])
    return tile


def _split(layer: LayerIR, tile: Tile) -> int | None:
    """Return the dimension to halve; None: there is none left. A convolution's image does not shrink with its other
    dimensions, rows of norms and reductions cannot be cut."""
    if layer.op_type in ("GEMM_T", "ATTN_T"):
        axes = sorted(range(len(tile)), key=lambda axis: -tile[axis])
    elif layer.op_type in ("CONV2D_T", "POOL", "ELTWISE", "GELU") or (
        layer.op_type == "REDUCE" and layer.integer("k") > 1
    ):
        axes = list(range(len(tile)))
    else:
        axes = [0]
    return next((axis for axis in axes if tile[axis] > 1), None)


def tile_of(graph: Graph, layer: LayerIR, target: Target, ahead: int) -> Tile:
    """Return the tile that the pass `tiling` chose, or the largest where it did not run. ModelError when it does not
    fit with so many tiles ahead."""
    tile = layer.integers("tile") or fit(graph, layer, target, ahead)
    if not fits(graph, layer, tile, target, ahead):
        _refuse(graph, layer, tile, target, ahead)
    return tile


def whole_rows(graph: Graph, layer: LayerIR, tile: Tile, target: Target) -> Tile:
    """Return the tile of a POOL cut at a row of the result, of one at least. ModelError when that does not fit."""
    row = windows_of(layer).q
    tile = (max(row, tile[0] // row * row), tile[1])
    while not fits(graph, layer, tile, target, 0):
        if tile[1] == 1:
            _refuse(graph, layer, tile, target, 0)
        tile = (row, -(-tile[1] // 2))
    return tile


def _refuse(graph: Graph, layer: LayerIR, tile: Tile, target: Target, ahead: int) -> NoReturn:
    """Raises the error for a tile that does not fit: largest demand, scratchpad size, and a legal tile."""
    sizes = TileSizes(graph, layer, target)
    demand = sizes.staged(sizes.demand(tile))
    need = sizes.need(demand, ahead, loops_of(layer, tile))
    largest = max(demand, key=lambda name: demand[name])
    positions = {"in0": 0, "in1": 1, "in2": 2, "bias": 2, "residual": -1, "new_keys": -2, "new_values": -1}
    tensor = f"tensor {layer.inputs[positions[largest]] if largest in positions else layer.outputs[0]}"
    if largest == "sums":
        tensor = "the partial sums of a column of tiles"
    legal = next(
        (smaller_tile for smaller_tile in smaller(layer, tile) if fits(graph, layer, smaller_tile, target, ahead)), None
    )
    if legal is not None:
        remedy = f"a tile that fits is {_shape(legal)}"
    else:
        size = 1 << (need - 1).bit_length()
        size = size if size > target.spm_bytes + SLOT else 2 * size
        remedy = f"no tile fits, --set npu.spm.size={size}"
        if size > SPM_CLUSTER_STRIDE:
            remedy = f"no tile fits, not even the largest scratchpad of {SPM_CLUSTER_STRIDE}: a smaller shape"
    raise ModelError(
        f"layer {layer.id} ({layer.op_type}): a tile of {_shape(tile)} needs {need} bytes of scratchpad with its "
        f"buffers, {demand[largest]} of them for {tensor}; there are {target.workspace}: {remedy}"
    )


def _shape(tile: Tile) -> str:
    return " x ".join(map(str, tile))


SpmAddresses = dict[str, int]
"""Operand -> address."""


def buffers(demand: dict[str, int], count: int, target: Target, spread: bool) -> list[SpmAddresses]:
    """Return `count` sets of buffers. `spread`: every operand begins in a bank of its own while there are enough of
    them, so that the phases of a tile do not meet at one bank."""
    share = target.spm_bytes // count
    sets = []
    for index in range(count):
        base, at, addresses = SPM_BASE + index * share, 0, {}
        banks = -(-share // target.bank_bytes)
        aligned = sum(-(-size // target.bank_bytes) for size in demand.values()) <= banks
        for name, size in demand.items():
            addresses[name] = base + at
            unit = target.bank_bytes if spread and aligned and share % target.bank_bytes == 0 else SLOT
            at += -(-size // unit) * unit
        sets.append(addresses)
    return sets
