"""Removal of transposes between image operations.

The device stores images as N x pixels x C, ONNX as N x C x pixels, so every convolution transposes its image to the
device's layout and back. Two such swaps cancel. Layers between them (elementwise operations, reductions over pixels,
concatenations of channels) work on the swapped tensor too, so the swap is moved after them.
"""

import math
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from toolchain.codegen.commands import Target
from toolchain.ir.graph import Attribute, Graph, LayerIR, Swapped, TensorIR, Values


class AxisSwap(NamedTuple):
    """Swap of axes: a tensor is `source`, batch x rows x columns, with rows and columns swapped."""

    source: str
    batch: int
    rows: int
    columns: int

    @property
    def size(self) -> tuple[int, int, int]:
        return self.batch, self.rows, self.columns

    def undoes(self, other: "AxisSwap") -> bool:
        return (self.batch, self.columns, self.rows) == other.size


def run(graph: Graph, target: Target) -> Graph:
    """Remove swaps that cancel, and move others after layers that work without them."""
    return _Layout(graph.copy()).run()


def swap_of(graph: Graph, layer: LayerIR) -> AxisSwap | None:
    """Return the swap of rows and columns that a COPY performs; None for any other COPY."""
    if layer.op_type != "COPY" or layer.integer("at_in") or layer.integer("at_out"):
        return None
    dims, take, put = (layer.integers(name) for name in ("dims", "from", "to"))
    if len(dims) == 2:
        dims, take, put = ((1, *dims), (dims[0] * dims[1], *take), (dims[0] * dims[1], *put))
    if len(dims) != 3:
        return None
    batch, columns, rows = dims
    complete = {graph.tensors[name].elements for name in (layer.inputs[0], layer.outputs[0])} == {
        batch * rows * columns
    }
    if not complete or take != (rows * columns, 1, columns) or put != (rows * columns, rows, 1):
        return None
    return AxisSwap(layer.inputs[0], batch, rows, columns)


def swap_layer(name: str, swap: AxisSwap, output: str) -> LayerIR:
    """Return the COPY that writes the swapped source to `output`."""
    step = swap.rows * swap.columns
    axes = [(swap.batch, step, step), (swap.columns, 1, swap.rows), (swap.rows, swap.columns, 1)][swap.batch == 1 :]
    dims, take, put = zip(*axes, strict=True)
    return LayerIR(name, "COPY", (swap.source,), (output,), {"dims": dims, "from": take, "to": put})


class _Layout:
    """State of the pass. `swaps`: stored tensor -> the swap that it holds."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.swaps: dict[str, AxisSwap] = {}
        self._first: dict[tuple[tuple[int, int, int], str], str] = {}
        """(size, source) of a swap -> first tensor that holds it."""
        self._parts: dict[str, list[LayerIR]] = {}
        self._joined = set[int]()
        """Ids of replaced layers that wrote parts of a tensor."""
        self._read = set[str]()
        """Stored tensors that earlier layers read."""
        self._names = Counter[str]()
        self._writers = Counter(graph.storage(layer.outputs[0]) for layer in graph.layers)
        self._views: dict[str, list[str]] = {}
        for tensor in filter(lambda candidate: candidate.view_of, graph.tensors.values()):
            self._views.setdefault(tensor.view_of, []).append(tensor.id)

    def run(self) -> Graph:
        graph, layers = self.graph, list[LayerIR]()
        for layer in graph.layers:
            for rewritten in self._rewritten(layer):
                self._read.update(map(graph.storage, rewritten.inputs))
                layers.append(rewritten)
        graph.layers = [layer for layer in layers if id(layer) not in self._joined]
        return _without_dead_copies(graph).dropped_unused()

    def _rewritten(self, layer: LayerIR) -> list[LayerIR]:
        graph, out = self.graph, layer.outputs[0]
        if self._writers[graph.storage(out)] > 1:
            return self._part(layer)
        swap = swap_of(graph, layer)
        if swap is not None and self._changes(swap.source):
            return [layer]
        if swap is not None:
            earlier = self._swap(swap.source)
            if earlier is not None and swap.undoes(earlier):
                self._alias(out, earlier.source)
                return []
            alias = self._first.get((swap.size, graph.storage(swap.source)))
            if alias is not None:
                self._alias(out, alias)
                return []
            self._hold(out, swap)
            return [layer]
        if layer.op_type in ("ELTWISE", "GELU"):
            return self._elementwise(layer) or [layer]
        if layer.op_type == "REDUCE":
            return [self._reduction(layer)]
        return [layer]

    def _swap(self, tensor: str) -> AxisSwap | None:
        return self.swaps.get(self.graph.storage(tensor))

    def _changes(self, tensor: str) -> bool:
        """Check whether a tensor has more than one value during a run."""
        stored = self.graph.storage(tensor)
        return self._writers[stored] + (stored in map(self.graph.storage, self.graph.inputs)) > 1

    def _hold(self, tensor: str, swap: AxisSwap) -> AxisSwap:
        """Record that `tensor` holds a swap."""
        stored = self.graph.storage(tensor)
        self.swaps[stored] = swap
        self._first.setdefault((swap.size, self.graph.storage(swap.source)), stored)
        return swap

    def _alias(self, name: str, source: str) -> None:
        """Make `name`, and all views of it, views of `source`."""
        tensors, stored = self.graph.tensors, self.graph.storage(source)
        views = [view for view in self._views.pop(name, ()) if tensors[view].view_of == name]
        for alias in (name, *views):
            tensors[alias] = replace(tensors[alias], view_of=stored)
            self._views.setdefault(stored, []).append(alias)

    def _elementwise(self, layer: LayerIR) -> list[LayerIR]:
        """Return the layer on the sources of its operands, then the swap of its result; empty if impossible."""
        swaps = [swap for name in layer.inputs if (swap := self._swap(name)) is not None]
        if not swaps or len({swap.size for swap in swaps}) > 1:
            return []
        swap = swaps[0]
        if math.prod(swap.size) < self.graph.tensors[layer.outputs[0]].elements:  # it is broadcast to the other operand
            return []
        inputs, attributes = [], dict(layer.attributes)
        for index, name in enumerate(layer.inputs):
            swapped = self._swap(name)
            elements = self.graph.tensors[name].elements
            if swapped is not None:
                inputs.append(swapped.source)
            elif elements == 1:
                inputs.append(name)
            else:
                values = self.graph.constant(name)
                if values is None or layer.text("function") in ("QUANT", "DEQUANT"):
                    return []
                turned = _turn(layer, index, values, swap)
                if turned.shape[0] == 1 and index == 1:
                    attributes |= {"m": swap.batch * swap.rows, "n": swap.columns, "broadcast": "ROW"}
                else:
                    turned = np.broadcast_to(turned, (swap.batch * swap.rows, swap.columns))
                    if index == 1 and "broadcast" in attributes:
                        attributes["broadcast"] = "FULL"
                inputs.append(self._constant(name, turned))
        out = layer.outputs[0]
        result = self._tensor(out, swap)
        moved = LayerIR(layer.id, layer.op_type, tuple(inputs), (result,), attributes)
        return [moved, swap_layer(f"{layer.id}.swap", self._hold(out, swap._replace(source=result)), out)]

    def _part(self, layer: LayerIR) -> list[LayerIR]:
        """Return a COPY into a part of a tensor. The last part of a concatenation of channels replaces all parts by
        copies without a swap."""
        stored = self.graph.storage(layer.outputs[0])
        parts = self._parts.setdefault(stored, [])
        parts.append(layer)
        if len(parts) < self._writers[stored] or stored in self._read:
            return [layer]
        joined = _joined(self.graph, parts, [self._swap(part.inputs[0]) for part in parts])
        if joined is None:
            return [layer]
        self._joined.update(map(id, parts))
        swaps, first, columns = joined
        swap = AxisSwap("", first.batch, first.rows, columns)
        result = self._tensor(layer.outputs[0], swap)
        layers = []
        for part, part_swap in zip(parts, swaps, strict=True):
            attributes: dict[str, Attribute] = {
                "dims": (first.batch * first.rows, part_swap.columns), "from": (part_swap.columns, 1),
                "to": (columns, 1), "at_out": part.integer("at_out") // first.rows,
            }  # fmt: skip
            layers.append(LayerIR(part.id, "COPY", (part_swap.source,), (result,), attributes))
        self._writers[stored] = 1
        holder = self._hold(stored, swap._replace(source=result))
        return [*layers, swap_layer(f"{layer.id}.swap", holder, layer.outputs[0])]

    def _reduction(self, layer: LayerIR) -> LayerIR:
        """Reduce over the rows of the source, with the same result in the same order."""
        swap = self._swap(layer.inputs[0])
        m, n = layer.integer("m"), layer.integer("n")
        if swap is None or layer.integer("k", 1) > 1 or (m, n) != (swap.batch * swap.columns, swap.rows):
            return layer
        return replace(layer, inputs=(swap.source,)).having(m=swap.batch, n=swap.rows, k=swap.columns)

    def _tensor(self, like: str, swap: AxisSwap) -> str:
        old, name = self.graph.tensors[like], self._new_name(like)
        self.graph.tensors[name] = TensorIR(name, old.role, swap.size, old.dtype)
        return name

    def _constant(self, like: str, values: Values) -> str:
        kind = self.graph.tensors[like].dtype
        return self.graph.add_weight(self._new_name(like), np.ascontiguousarray(values), kind)

    def _new_name(self, like: str) -> str:
        while True:
            count = self._names[like]
            self._names[like] += 1
            if (name := f"{like}.last{count or ''}") not in self.graph.tensors:
                return name


def _joined(
    graph: Graph, parts: list[LayerIR], swaps: list[AxisSwap | None]
) -> tuple[list[AxisSwap], AxisSwap, int] | None:  # fmt: skip
    """Return (swaps of the parts, first swap, total columns) of a concatenation of swapped tensors, or None."""
    present = [swap for swap in swaps if swap is not None]
    if len(present) < len(parts) or len({(swap.batch, swap.rows) for swap in present}) > 1:
        return None
    batch, rows, _ = present[0].size
    columns = graph.tensors[parts[0].outputs[0]].elements // (batch * rows)
    if sum(swap.columns for swap in present) != columns:
        return None
    for part, swap in zip(parts, present, strict=True):
        size = swap.columns * rows
        strides = [(batch, size), (size, 1), (columns * rows, 1)] if batch > 1 else [(size,), (1,), (1,)]
        facts = [part.integers(name) for name in ("dims", "from", "to")]
        if part.op_type != "COPY" or facts != strides or part.integer("at_in") or part.integer("at_out") % rows:
            return None
    return present, present[0], columns


def _turn(layer: LayerIR, index: int, values: Values, swap: AxisSwap) -> Values:
    """Return a constant operand in the layout of the source: batch x rows, or one row if all are equal."""
    batch, rows, columns = swap.size
    m, n = layer.integer("m"), layer.integer("n")
    broadcast = layer.text("broadcast", "FULL") if index == 1 else "FULL"
    if broadcast == "COLUMN" and n == rows:
        matrix = values.reshape(batch, columns)
        return matrix[:1] if (matrix == matrix[:1]).all() else np.repeat(matrix, rows, axis=0)
    spread = {"FULL": (m, n), "ROW": (1, n), "COLUMN": (m, 1)}[broadcast]
    image = np.broadcast_to(values.reshape(spread), (m, n)).reshape(batch, columns, rows)
    matrix = image.transpose(0, 2, 1).reshape(-1, columns)
    return matrix[:1] if (matrix == matrix[:1]).all() else matrix


def _without_dead_copies(graph: Graph) -> Graph:
    """Return the graph without COPY layers with unread results; `swapped` records the sources of removed swaps."""
    live = {graph.storage(name) for name in graph.outputs}
    layers, swapped = [], dict(graph.swapped)
    for layer in reversed(graph.layers):
        if layer.op_type == "COPY" and graph.storage(layer.outputs[0]) not in live:
            swap, out = swap_of(graph, layer), graph.tensors[layer.outputs[0]]
            if swap is not None:
                swapped[out.id] = Swapped(graph.storage(swap.source), swap.size, out.shape)
            continue
        live.update(graph.storage(name) for name in layer.inputs)
        layers.append(layer)
    return replace(graph, layers=layers[::-1], swapped=swapped)
