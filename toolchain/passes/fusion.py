"""Bias and activation become the epilogue of the product before them."""

import numpy as np

from npu_device.abi.opcodes import DataType
from toolchain.codegen.commands import Target
from toolchain.ir.graph import Graph, LayerIR, Role, TensorIR

ACTIVATIONS = ("RELU", "SIGMOID", "TANH")
FLOAT = (DataType.FP32, DataType.FP16, DataType.BF16)


def run(graph: Graph, target: Target) -> Graph:
    """GEMM_T, then ADD of a bias per column or row, then an activation -> one GEMM_T."""
    graph = graph.copy()
    at = 0
    while at < len(graph.layers):
        layer = graph.layers[at]
        product = _before(graph, layer)
        fused = None if product is None else (_bias(graph, product, layer) or _activation(product, layer))
        if product is None or fused is None:
            at += 1
            continue
        graph.layers[graph.layers.index(product)] = fused
        graph.layers.remove(layer)
    return graph.dropped_unused()


def _before(graph: Graph, layer: LayerIR) -> LayerIR | None:
    """The product whose only use `layer` is."""
    if layer.op_type not in ("ELTWISE", "GELU"):
        return None
    source = graph.storage(layer.inputs[0])
    if source in map(graph.storage, graph.outputs) or len(graph.readers(source)) != 1:
        return None
    makers = [one for one in graph.layers if graph.storage(one.outputs[0]) == source]
    if len(makers) != 1 or makers[0].op_type != "GEMM_T" or makers[0].text("activation"):
        return None
    if graph.tensors[layer.outputs[0]].dtype not in FLOAT or any(graph.storage(n) == source for n in layer.inputs[1:]):
        return None
    return makers[0]


def _bias(graph: Graph, product: LayerIR, layer: LayerIR) -> LayerIR | None:
    """With the bias in fp32, as the sum is."""
    if product.text("epilogue") or layer.attributes.get("function") != "ADD":
        return None
    form = {"ROW": ("bias", "n"), "COLUMN": ("bias_column", "m")}.get(layer.text("broadcast"))
    values = graph.constant(layer.inputs[1])
    if form is None or values is None or layer.integer(form[1]) != product.integer(form[1]):
        return None
    name = layer.inputs[1]
    narrow = graph.tensors[name].dtype is not DataType.FP32
    if form[0] == "bias_column" and (narrow or product.integer("batch") != 1):
        return None
    if narrow:
        name = f"{name}.fp32"
        graph.tensors[name] = TensorIR(name, Role.WEIGHT, values.shape, DataType.FP32)
        graph.constants[name] = values.astype(np.float32)
    attributes = {**product.attributes, "epilogue": form[0]}
    return LayerIR(product.id, "GEMM_T", (*product.inputs, name), layer.outputs, attributes)


def _activation(product: LayerIR, layer: LayerIR) -> LayerIR | None:
    if layer.op_type == "GELU":
        name = "GELU_TANH" if layer.integer("tanh") else "GELU"
    else:
        name = layer.text("function")
        if name not in ACTIVATIONS:
            return None
    return LayerIR(product.id, "GEMM_T", product.inputs, layer.outputs, {**product.attributes, "activation": name})
