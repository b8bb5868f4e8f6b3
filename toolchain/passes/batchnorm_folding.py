"""Folding of a constant factor per channel, as of a batch normalization after a product, into the product's weights.

A bias between the two is scaled too and follows the factor: (x + b) f = x f + b f. A scalar factor is expanded to all
channels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from toolchain.codegen.commands import Target
from toolchain.ir.data_types import FLOATS
from toolchain.ir.graph import Graph, LayerIR, Values
from toolchain.ir.operations import PRODUCTS, matrix_of
from toolchain.ir.uses import TensorUses


def run(graph: Graph, target: Target) -> Graph:
    """Fold an ELTWISE MUL with one constant factor per row or column into the weights of the preceding product."""
    graph = graph.copy()
    readers: dict[str, list[int]] = {}
    for at, layer in enumerate(graph.layers):
        for stored in {graph.storage(name) for name in layer.inputs}:
            readers.setdefault(stored, []).append(at)
    for layer in list(graph.layers):
        if layer.op_type in PRODUCTS:
            _numbers_as_rows(graph, layer, readers)
    uses, places = TensorUses(graph), {layer.id: at for at, layer in enumerate(graph.layers)}
    folded = set[str]()
    for layer in list(graph.layers):
        layer = _before_bias(graph, layer, uses, places)
        product = _product(graph, layer, uses)
        if product is None:
            continue
        rows = layer.text("broadcast") == "COLUMN"
        side = 0 if rows else 1
        factor, weights = graph.constant(layer.inputs[1]), graph.constant(product.inputs[side])
        if factor is None or weights is None or not _fits(product, layer, rows):
            continue
        scaled = _scale(product, weights, np.asarray(factor).reshape(-1), rows).astype(weights.dtype)
        inputs, kind = list(product.inputs), graph.tensors[product.inputs[side]].dtype
        inputs[side] = graph.add_weight(f"{inputs[side]}.scaled.{layer.id}", scaled, kind)
        product_layer = replace(product, inputs=tuple(inputs), outputs=layer.outputs)
        uses.replace((product, layer), (product_layer,))
        graph.layers[places[product_layer.id]] = product_layer
        folded.add(layer.id)
    graph.layers = [layer for layer in graph.layers if layer.id not in folded]
    return graph.dropped_unused()


def _numbers_as_rows(graph: Graph, product: LayerIR, readers: Mapping[str, Sequence[int]]) -> None:
    """Expand scalar sums and factors after a product, and those as large as its only row, to rows. `readers`: stored
    tensor -> indices of the layers that read it."""
    columns, source = matrix_of(product)[1] * product.integer("groups", 1), product.outputs[0]
    while len(places := readers.get(graph.storage(source), ())) == 1:
        (at,) = places
        layer = graph.layers[at]
        if layer.op_type != "ELTWISE" or layer.text("function") not in ("ADD", "MUL"):
            return
        constant = graph.constant(layer.inputs[1])
        if graph.storage(layer.inputs[0]) != graph.storage(source) or constant is None:
            return
        if layer.text("broadcast") == "FULL" and constant.size == columns:
            graph.layers[at] = layer.having(m=1, n=columns, broadcast="ROW")
        elif layer.text("broadcast") == "SCALAR":
            old = graph.tensors[layer.inputs[1]]
            row_of_number = np.full(columns, np.asarray(constant).reshape(-1)[0])
            name = graph.add_weight(f"{old.id}.row.{layer.id}", row_of_number, old.dtype)
            rows = graph.tensors[layer.outputs[0]].elements // columns
            row = replace(layer, inputs=(layer.inputs[0], name))
            graph.layers[at] = row.having(m=rows, n=columns, broadcast="ROW")
        source = layer.outputs[0]


def _before_bias(graph: Graph, layer: LayerIR, uses: TensorUses, places: dict[str, int]) -> LayerIR:
    """Swap a factor with a preceding addition of constants and return the factor; any other layer is returned
    unchanged. `places`: layer name -> index in the graph."""
    before = _maker(graph, layer, uses)
    if before is None or before.op_type != "ELTWISE" or before.text("function") != "ADD":
        return layer
    names = ("m", "n", "broadcast")
    equal = [layer.attributes.get(name) for name in names] == [before.attributes.get(name) for name in names]
    factor, bias = graph.constant(layer.inputs[1]), graph.constant(before.inputs[1])
    if not equal or factor is None or bias is None:
        return layer
    old = graph.tensors[before.inputs[1]]
    scaled = (bias.astype(np.float64).reshape(-1) * factor.astype(np.float64).reshape(-1)).astype(bias.dtype)
    name = graph.add_weight(f"{old.id}.scaled.{layer.id}", scaled.reshape(old.shape), old.dtype)
    first = replace(layer, inputs=(before.inputs[0], layer.inputs[1]), outputs=before.outputs)
    second = replace(before, inputs=(before.outputs[0], name), outputs=layer.outputs)
    uses.replace((before, layer), (first, second))
    places[first.id], places[second.id] = places[before.id], places[layer.id]
    for moved in (first, second):
        graph.layers[places[moved.id]] = moved
    return first


def _maker(graph: Graph, layer: LayerIR, uses: TensorUses) -> LayerIR | None:
    """Return the only writer of a factor's operand, if the factor is the only reader; else None."""
    if layer.op_type != "ELTWISE" or layer.text("function") != "MUL":
        return None
    if layer.text("broadcast") not in ("ROW", "COLUMN") or graph.tensors[layer.outputs[0]].dtype not in FLOATS:
        return None
    source = graph.storage(layer.inputs[0])
    if source in map(graph.storage, graph.outputs) or uses.readers(source) > 1:
        return None
    return uses.only_maker(source)


def _product(graph: Graph, layer: LayerIR, uses: TensorUses) -> LayerIR | None:
    """Return the product that a factor can be folded into; None for none."""
    maker = _maker(graph, layer, uses)
    if maker is None or maker.op_type not in PRODUCTS or maker.text("epilogue") or maker.text("activation"):
        return None
    return maker


def _fits(product: LayerIR, layer: LayerIR, rows: bool) -> bool:
    """Check whether the factor's rows or columns match those of the product, and the whole batch shares its weights."""
    if product.op_type == "CONV2D_T":
        return not rows and layer.integer("n") == product.integer("cout")
    if product.integer("batch") != 1:
        return False
    return layer.integer("m") == product.integer("m") if rows else layer.integer("n") == product.integer("n")


def _scale(product: LayerIR, weights: Values, factor: Values, rows: bool) -> Values:
    wide = factor.astype(np.float64)
    matrix = weights.astype(np.float64)
    if rows or product.integer("in1_nk"):
        return (matrix.reshape(len(wide), -1) * wide[:, None]).reshape(weights.shape)
    return (matrix.reshape(-1, len(wide)) * wide).reshape(weights.shape)
