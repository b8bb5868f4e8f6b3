"""Fusion of bias, residual and activation into the epilogue of the preceding product (docs/descriptor.md)."""

from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from npu_device.abi.opcodes import Activation, DataType, Eltwise
from toolchain.codegen.commands import Target
from toolchain.ir.graph import Graph, LayerIR
from toolchain.ir.operations import PRODUCTS
from toolchain.ir.uses import TensorUses

ACTIVATIONS = tuple(activation.name for activation in Activation if activation.name in Eltwise.__members__)
"""Activations that are functions of ELTWISE."""
FLOAT = (DataType.FP32, DataType.FP16, DataType.BF16)


def run(graph: Graph, target: Target) -> Graph:
    """Fuse a product, ADD of a bias per column or row, ADD of a tensor, and an activation into one product at the
    position of the last."""
    graph = graph.copy()
    uses, removed = TensorUses(graph), set[int]()
    outputs = {graph.storage(name) for name in graph.outputs}
    at = 0
    while at < len(graph.layers):
        layer = graph.layers[at]
        for product, operand in _before(graph, layer, uses, outputs):
            fused = _bias(graph, product, layer, operand) or _residual(graph, product, layer, operand)
            fused = fused or _activation(product, layer)
            if fused is not None:
                uses.replace((product, layer), (fused,))
                graph.layers[at] = fused
                removed.add(id(product))
                break
        else:
            at += 1
    graph.layers = [layer for layer in graph.layers if id(layer) not in removed]
    return graph.dropped_unused()


def _before(graph: Graph, layer: LayerIR, uses: TensorUses, outputs: Collection[str]) -> Iterator[tuple[LayerIR, int]]:
    """Yield (product whose only reader is `layer`, operand index)."""
    if layer.op_type not in ("ELTWISE", "GELU") or graph.tensors[layer.outputs[0]].dtype not in FLOAT:
        return
    for index, name in enumerate(layer.inputs):
        source = graph.storage(name)
        twice = sum(graph.storage(operand) == source for operand in layer.inputs) != 1
        if twice or source in outputs or uses.readers(source) != 1:
            continue
        maker = uses.only_maker(source)
        if maker is not None and maker.op_type in PRODUCTS and not maker.text("activation"):
            yield maker, index


def _columns(product: LayerIR) -> int:
    return product.integer("cout" if product.op_type == "CONV2D_T" else "n")


def _fuse(product: LayerIR, layer: LayerIR, step: str, tensor: str) -> LayerIR:
    epilogue = "+".join(filter(None, (product.text("epilogue"), step)))
    return replace(product, inputs=(*product.inputs, tensor), outputs=layer.outputs).having(epilogue=epilogue)


def _bias(graph: Graph, product: LayerIR, layer: LayerIR, operand: int) -> LayerIR | None:
    """Fuse a bias, in fp32 like the sum. A bias per row requires a single product of m rows."""
    epilogue = product.text("epilogue")
    if epilogue not in ("", "bias") or layer.text("function") != "ADD" or operand != 0:
        return None
    name, broadcast = layer.inputs[1], layer.text("broadcast")
    values = graph.constant(name)
    if values is None:
        return None
    if broadcast in ("ROW", "FULL") and values.size == _columns(product):
        return _row_bias(graph, product, layer)
    if broadcast != "COLUMN" or product.op_type != "GEMM_T" or layer.integer("m") != product.integer("m") or epilogue:
        return None
    if graph.tensors[name].dtype is not DataType.FP32 or product.integer("batch") != 1:
        return None
    return _fuse(product, layer, "bias_column", name)


def _row_bias(graph: Graph, product: LayerIR, layer: LayerIR) -> LayerIR | None:
    """Fuse the constant as bias, or add it to an existing bias."""
    name = layer.inputs[1]
    if not product.text("epilogue") and graph.tensors[name].dtype is DataType.FP32:
        return _fuse(product, layer, "bias", name)
    values = np.asarray(graph.constant(name)).astype(np.float32).reshape(-1)
    label = f"{name}.fp32"
    if product.text("epilogue"):
        first = graph.constant(product.inputs[2])
        if first is None:
            return None
        values, label = values + first.reshape(-1), f"{name}.sum"
        product = replace(product, inputs=product.inputs[:2]).having(epilogue="")
    return _fuse(product, layer, "bias", graph.add_weight(label, values, DataType.FP32))


def _residual(graph: Graph, product: LayerIR, layer: LayerIR, operand: int) -> LayerIR | None:
    """Fuse an ADD of a whole tensor with the type of the result. A bias per row would have to follow it."""
    if layer.text("function") != "ADD" or layer.text("broadcast") != "FULL" or len(layer.inputs) != 2:
        return None
    other = graph.tensors[layer.inputs[1 - operand]]
    if product.text("epilogue") not in ("", "bias") or other.dtype is not graph.tensors[layer.outputs[0]].dtype:
        return None
    return _fuse(product, layer, "residual", other.id)


def _activation(product: LayerIR, layer: LayerIR) -> LayerIR | None:
    if layer.op_type == "GELU":
        name = "GELU_TANH" if layer.integer("tanh") else "GELU"
    else:
        name = layer.text("function")
        if name == "CLIP" and (layer.real("low"), layer.real("high")) == (0, 6):
            name = "RELU6"
        if name not in ACTIVATIONS:
            return None
    return replace(product, outputs=layer.outputs).having(activation=name)
