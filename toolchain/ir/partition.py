"""Partition of a layer into several that each compute a part of its result: some rows, columns, images or products.
Parts are views of the tensors, except the weights of a convolution, whose rows must be contiguous and are copied."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from npu_device.abi.opcodes import BITS
from toolchain.ir.graph import Attribute, Graph, LayerIR, Role, TensorIR, Values
from toolchain.ir.operations import epilogue_of, windows_of

BYTE = 8


@dataclass
class Partition:
    """Layers that replace a layer, with their additional tensors and constants."""

    layers: list[LayerIR] = field(default_factory=list)
    tensors: dict[str, TensorIR] = field(default_factory=dict)
    constants: dict[str, Values] = field(default_factory=dict)

    def added(self, graph: Graph) -> Graph:
        """Return the graph with these tensors added; its layers are unchanged."""
        return replace(graph, tensors=graph.tensors | self.tensors, constants=graph.constants | self.constants)


class IndivisibleError(Exception):
    """Layer that cannot be partitioned in this way."""


def _require(condition: bool) -> None:
    """Raise IndivisibleError unless a condition of a partition holds."""
    if not condition:
        raise IndivisibleError


def partitions(graph: Graph, layer: LayerIR, count: int) -> Iterator[Partition]:
    """Yield the partitions of a layer into `count` parts of about equal size, one per dimension."""
    for cut in CUTS.get(layer.op_type, ()):
        try:
            yield cut(_Cutter(graph, layer, count))
        except IndivisibleError:
            continue


class _Cutter:
    """Builder of a partition of one layer."""

    def __init__(self, graph: Graph, layer: LayerIR, count: int) -> None:
        self.graph, self.layer, self.count = graph, layer, count
        self.partition = Partition()

    def ranges(self, extent: int, unit: int = 1) -> list[tuple[int, int]]:
        """Return (first, count) of each part of a dimension; parts are multiples of `unit`, except the last."""
        _require(extent >= self.count * unit)
        blocks = -(-extent // unit)
        ends = [min(extent, blocks * index // self.count * unit) for index in range(self.count)] + [extent]
        return [(first, end - first) for first, end in pairwise(ends)]

    def rows(self, tensor: str, first: int, count: int, columns: int) -> str:
        """Return a view of some rows of `columns` elements."""
        entry = self.graph.tensors[tensor]
        pitch = entry.pitch or columns
        _require(not entry.pitch or entry.shape[-1] == columns)
        return self.view(tensor, (count, columns), first * pitch, entry.pitch, columns)

    def columns(self, tensor: str, first: int, count: int, rows: int, columns: int) -> str:
        """Return a view of some columns of a matrix."""
        entry = self.graph.tensors[tensor]
        return self.view(tensor, (rows, count), first, (entry.pitch or columns) if rows > 1 else 0, count)

    def view(self, tensor: str, shape: tuple[int, ...], offset: int, pitch: int, columns: int) -> str:
        """Return a view from element `offset` on, with rows of `columns` elements."""
        entry = self.graph.tensors[tensor]
        bits = BITS[entry.dtype]
        # rows of elements below 8 bits start at bytes
        _require(not any(value * bits % BYTE for value in (offset, pitch, columns)))
        stored, first = self.graph.storage(tensor), entry.offset + offset
        return self._named(TensorIR("", entry.role, shape, entry.dtype, stored, entry.storage_class, 0, first, pitch))

    def sliced(self, tensor: str, first: int, count: int, *, more: int = 0) -> str:
        """Return a copy of a range of the last dimension of weights, plus its last `more` elements."""
        entry, values = self.graph.tensors[tensor], self.graph.constant(tensor)
        _require((values is not None or entry.role is Role.WEIGHT) and not entry.view_of)
        name = self._named(replace(entry, shape=(*entry.shape[:-1], count + more)))
        if values is not None:
            part = values[..., first : first + count]
            part = np.concatenate([part, values[..., -more:]], -1) if more else part
            self.partition.constants[name] = np.ascontiguousarray(part)
        return name

    def _named(self, tensor: TensorIR) -> str:
        name = f"{self.layer.id}.part{len(self.partition.tensors)}"
        self.partition.tensors[name] = replace(tensor, id=name)
        return name

    def put(self, inputs: tuple[str, ...], output: str, **attributes: Attribute) -> None:
        """Add the next part."""
        index = len(self.partition.layers)
        name = f"{self.layer.id}.{index}" if index else self.layer.id
        part = replace(self.layer, id=name, inputs=inputs, outputs=(output,))
        self.partition.layers.append(part.having(**attributes))


# -- matrices ----------------------------------------------------------------------------------------------------------


def _matrix_rows(cut: _Cutter) -> Partition:
    """Partition a row-wise operation by rows."""
    layer = cut.layer
    m, n = layer.integer("m"), layer.integer("n")
    broadcast = layer.text("broadcast", "FULL")
    shared_operands = layer.op_type in ("LAYERNORM", "REDUCE") or layer.text("function") in ("QUANT", "DEQUANT")
    deep = layer.integer("k", 1)
    result = deep if layer.op_type == "REDUCE" else n
    for first, count in cut.ranges(m):
        operands = [cut.rows(layer.inputs[0], first, count, n * deep)]
        for index, name in enumerate(layer.inputs[1:], 1):
            shape = broadcast if index == 1 else "FULL"
            if shared_operands or shape in ("ROW", "SCALAR"):
                operands.append(name)
            else:
                operands.append(cut.rows(name, first, count, 1 if shape == "COLUMN" else n))
        cut.put(tuple(operands), cut.rows(layer.outputs[0], first, count, result), m=count)
    return cut.partition


def _epilogue(cut: _Cutter, take: Callable[[str, str], str]) -> tuple[str, ...]:
    """Return the operands of the epilogue, each cut by `take(step, tensor)`."""
    _require(not cut.layer.integer("codebooks"))
    return tuple(take(step, name) for step, name in epilogue_of(cut.layer).items())


def _by_rows(cut: _Cutter, first: int, count: int, columns: int) -> tuple[str, ...]:
    """Return the epilogue operands of a range of rows."""

    def take(step: str, name: str) -> str:
        if step in ("bias_column", "residual"):
            return cut.rows(name, first, count, 1 if step == "bias_column" else columns)
        return name

    return _epilogue(cut, take)


def _by_columns(cut: _Cutter, first: int, count: int, rows: int, columns: int) -> tuple[str, ...]:
    """Return the epilogue operands of a range of columns."""

    def take(step: str, name: str) -> str:
        elements = cut.graph.tensors[name].elements
        if step == "residual":
            return cut.columns(name, first, count, rows, columns)
        if step == "bias":
            return cut.columns(name, first, count, 1, columns)
        if step == "scale" and elements > 1:
            excess = elements - columns  # the factor of the residual
            if excess < 0:
                return name
            return (
                cut.sliced(name, first, count, more=excess) if excess else cut.columns(name, first, count, 1, columns)
            )
        return name

    return _epilogue(cut, take)


def _product_rows(cut: _Cutter) -> Partition:
    layer = cut.layer
    m, n, k = (layer.integer(name) for name in "mnk")
    _require(layer.integer("batch") == 1)
    for first, count in cut.ranges(m):
        operands = cut.rows(layer.inputs[0], first, count, k), layer.inputs[1], *_by_rows(cut, first, count, n)
        cut.put(operands, cut.rows(layer.outputs[0], first, count, n), m=count)
    return cut.partition


WIDTH = 16
"""Granularity of parts in columns, which keeps their rows aligned to DRAM accesses."""


def _product_columns(cut: _Cutter) -> Partition:
    layer = cut.layer
    m, n, k = (layer.integer(name) for name in "mnk")
    _require(layer.integer("batch") == 1)
    for first, count in cut.ranges(n, WIDTH):
        if layer.integer("in1_nk"):
            weights = cut.rows(layer.inputs[1], first, count, k)
        else:
            weights = cut.columns(layer.inputs[1], first, count, k, n)
        operands = layer.inputs[0], weights, *_by_columns(cut, first, count, m, n)
        cut.put(operands, cut.columns(layer.outputs[0], first, count, m, n), n=count)
    return cut.partition


def _products(cut: _Cutter) -> Partition:
    """Partition a batch of products."""
    layer = cut.layer
    m, n, k = (layer.integer(name) for name in "mnk")
    pitched = any(cut.graph.tensors[name].pitch for name in layer.inputs)
    _require(not pitched or "residual" not in layer.text("epilogue"))

    def operand(index: int, first: int, count: int, size: int) -> str:
        step, name = layer.integer(f"step{index}"), layer.inputs[index]
        if not step:
            return name
        return cut.view(name, ((count - 1) * step + size,), first * step, 0, size)

    for first, count in cut.ranges(layer.integer("batch")):

        def take(step: str, name: str, first: int = first, count: int = count) -> str:
            return cut.rows(name, first, count, m * n) if step == "residual" else name

        operands = operand(0, first, count, m * k), operand(1, first, count, k * n), *_epilogue(cut, take)
        cut.put(operands, cut.rows(layer.outputs[0], first, count, m * n), batch=count)
    return cut.partition


# -- images ------------------------------------------------------------------------------------------------------------


def _images(cut: _Cutter) -> Partition:
    """Partition a batch of images."""
    layer, shape = cut.layer, windows_of(cut.layer)
    deep, wide = _channels(layer)
    image, pixels = shape.h * shape.w * deep, shape.p * shape.q
    for first, count in cut.ranges(shape.batch):
        extra = _finish(cut, first * pixels, count * pixels, wide)
        out = cut.rows(layer.outputs[0], first * pixels, count * pixels, wide)
        cut.put((cut.rows(layer.inputs[0], first, count, image), *extra), out, batch=count)
    return cut.partition


def _image_rows(cut: _Cutter) -> Partition:
    """Partition one image by rows of pixels; each part includes the adjacent rows that its windows read."""
    layer, s = cut.layer, windows_of(cut.layer)
    _require(s.batch == 1)
    deep, wide = _channels(layer)
    for first, count in cut.ranges(s.p):
        begin, end = first * s.sh - s.pt, (first + count - 1) * s.sh - s.pt + (s.kh - 1) * s.dh + 1
        top, bottom = max(0, begin), min(s.h, end)
        _require(top < bottom)
        source = cut.rows(layer.inputs[0], top, bottom - top, s.w * deep)
        out = cut.rows(layer.outputs[0], first * s.q, count * s.q, wide)
        extra = _finish(cut, first * s.q, count * s.q, wide)
        cut.put((source, *extra), out, h=bottom - top, pt=top - begin, pb=end - bottom)
    return cut.partition


def _filters(cut: _Cutter) -> Partition:
    """Partition a convolution without groups by filters."""
    layer, pixels, wide = cut.layer, windows_of(cut.layer).pixels, cut.layer.integer("cout")
    _require(layer.integer("groups") == 1)
    for first, count in cut.ranges(wide, WIDTH):
        weights = cut.sliced(layer.inputs[1], first, count)
        operands = layer.inputs[0], weights, *_by_columns(cut, first, count, pixels, wide)
        cut.put(operands, cut.columns(layer.outputs[0], first, count, pixels, wide), cout=count)
    return cut.partition


def _channels(layer: LayerIR) -> tuple[int, int]:
    """Return (channels of the image, channels of the result)."""
    if layer.op_type == "POOL":
        return layer.integer("channels"), layer.integer("channels")
    return layer.integer("cin"), layer.integer("cout")


def _finish(cut: _Cutter, first: int, count: int, columns: int) -> tuple[str, ...]:
    """Return the operands after the image, for a range of pixels of the result."""
    layer = cut.layer
    return () if layer.op_type == "POOL" else (layer.inputs[1], *_by_rows(cut, first, count, columns))


# -- attention ---------------------------------------------------------------------------------------------------------


def _batches(cut: _Cutter) -> Partition:
    """Partition an attention without a cache by requests."""
    layer = cut.layer
    m, n, keys = (layer.integer(name) for name in ("m", "n", "keys"))
    wide = n // layer.integer("heads") * layer.integer("kv_heads")
    _require(not layer.integer("t_max") and len(layer.inputs) == 3)
    for first, count in cut.ranges(layer.integer("batch", 1)):
        query = cut.rows(layer.inputs[0], first * m, count * m, n)
        kv_operands = tuple(cut.rows(name, first, count, keys * wide) for name in layer.inputs[1:])
        cut.put((query, *kv_operands), cut.rows(layer.outputs[0], first * m, count * m, n), batch=count)
    return cut.partition


def _queries(cut: _Cutter) -> Partition:
    """Partition an attention in which every query sees all keys by queries."""
    layer = cut.layer
    m, n = layer.integer("m"), layer.integer("n")
    everything = not layer.integer("causal", 1) and not layer.integer("window") and layer.integer("batch", 1) == 1
    _require(everything and not layer.integer("t_max") and len(layer.inputs) == 3)
    for first, count in cut.ranges(m):
        query = cut.rows(layer.inputs[0], first, count, n)
        cut.put((query, *layer.inputs[1:]), cut.rows(layer.outputs[0], first, count, n), m=count)
    return cut.partition


CUTS: dict[str, tuple[Callable[[_Cutter], Partition], ...]] = {
    "GEMM_T": (_product_rows, _product_columns, _products),
    "CONV2D_T": (_images, _image_rows, _filters),
    "POOL": (_images, _image_rows),
    "ATTN_T": (_batches, _queries),
    **dict.fromkeys(("ELTWISE", "LAYERNORM", "SOFTMAX", "GELU", "REDUCE"), (_matrix_rows,)),
}
"""Operation -> functions that partition it."""
