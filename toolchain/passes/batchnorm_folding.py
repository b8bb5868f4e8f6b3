"""A constant factor per channel, as batch normalization leaves it behind a product, goes into the product's weights."""

import numpy as np

from toolchain.codegen.commands import Target
from toolchain.ir.graph import Graph, LayerIR, Role, TensorIR, Values


def run(graph: Graph, target: Target) -> Graph:
    """GEMM_T then ELTWISE MUL with one constant factor per row or column -> GEMM_T with scaled weights."""
    graph = graph.copy()
    for layer in list(graph.layers):
        product = _product(graph, layer)
        if product is None:
            continue
        rows = layer.text("broadcast") == "COLUMN"
        side = 0 if rows else 1
        factor, weights = graph.constant(layer.inputs[1]), graph.constant(product.inputs[side])
        if factor is None or weights is None or not _fits(product, layer, rows):
            continue
        scaled = _scaled(product, weights, np.asarray(factor).reshape(-1), rows)
        name = f"{product.inputs[side]}.scaled.{layer.id}"
        old = graph.tensors[product.inputs[side]]
        graph.tensors[name] = TensorIR(name, Role.WEIGHT, old.shape, old.dtype)
        graph.constants[name] = scaled.astype(weights.dtype)
        inputs = list(product.inputs)
        inputs[side] = name
        at = graph.layers.index(product)
        graph.layers[at] = LayerIR(product.id, "GEMM_T", tuple(inputs), layer.outputs, product.attributes)
        graph.layers.remove(layer)
    return graph.dropped_unused()


def _product(graph: Graph, layer: LayerIR) -> LayerIR | None:
    """The product that a factor can go into."""
    if layer.op_type != "ELTWISE" or layer.text("function") != "MUL":
        return None
    if layer.text("broadcast") not in ("ROW", "COLUMN") or graph.tensors[layer.outputs[0]].dtype.name == "INT32":
        return None
    source = graph.storage(layer.inputs[0])
    if source in map(graph.storage, graph.outputs) or len(graph.readers(source)) > 1:
        return None
    makers = [one for one in graph.layers if graph.storage(one.outputs[0]) == source]
    if len(makers) != 1 or makers[0].op_type != "GEMM_T" or makers[0].text("epilogue") or makers[0].text("activation"):
        return None
    return makers[0]


def _fits(product: LayerIR, layer: LayerIR, rows: bool) -> bool:
    """The factor's rows or columns are those of the product, and its weights are shared by the whole list."""
    if rows:
        one = product.integer("batch") == 1 or not product.integer("step0")
        return one and product.integer("batch") == 1 and layer.integer("m") == product.integer("m")
    return layer.integer("n") == product.integer("n") and (product.integer("batch") == 1)


def _scaled(product: LayerIR, weights: Values, factor: Values, rows: bool) -> Values:
    m, n, k = (product.integer(name) for name in "mnk")
    wide = factor.astype(np.float64)
    matrix = weights.astype(np.float64)
    if rows:
        return (matrix.reshape(m, k) * wide[:, None]).reshape(weights.shape)
    if product.integer("in1_nk"):
        return (matrix.reshape(n, k) * wide[:, None]).reshape(weights.shape)
    return (matrix.reshape(k, n) * wide).reshape(weights.shape)
