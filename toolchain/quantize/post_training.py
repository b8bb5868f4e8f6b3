"""Post-training quantization: conversion of a float model to one with QuantizeLinear and DequantizeLinear around
products.

Activations have one scale by their range in samples: UINT8 for non-negative ranges, else symmetric INT8. Weights are
symmetric INT8 codes of the QConfig's width with a scale per output channel, biases INT32 in accumulator steps. The
other operand of an addition to a convolution has the type of the sum. Linear and cubic Resizes become products of
constants and pixels. All other operators stay float. Batch normalization is folded into the weights of the preceding
convolution.

With 8-bit floats, only the operands of products are converted: activations with one scale, weights with one per output
channel, so that the largest value maps to the largest number of the type. Results, biases and all else stay float.
"""

from collections import Counter
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from npu_device.abi.opcodes import DataType
from toolchain.errors import ModelError
from toolchain.onnx_model.model import OnnxModel, prepare
from toolchain.onnx_nodes.images import resize
from toolchain.onnx_nodes.parts import Decomposition
from toolchain.onnx_nodes.view import NodeView
from toolchain.quantize.products import FloatQuantizer, ProductQuantizer
from toolchain.quantize.qconfig import QConfig
from toolchain.quantize.scales import Samples


def without_batchnorm(model: OnnxModel) -> Any:
    """Return a copy of the model with constant batch normalizations after convolutions folded into their weights."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    graph, weights = proto.graph, dict(model.initializers)
    readers = Counter(name for node in graph.node for name in node.input)
    makers = {name: node for node in graph.node for name in node.output}
    for node in list(graph.node):
        conv = makers.get(node.input[0]) if node.op_type == "BatchNormalization" else None
        if conv is None or conv.op_type != "Conv" or readers[node.input[0]] != 1 or len(node.output) != 1:
            continue
        constants = [weights.get(name) for name in (*conv.input[1:], *node.input[1:])]
        if node.input[0] in model.outputs or any(values is None for values in constants):
            continue
        scale, offset, mean, variance = (np.asarray(weights[name], np.float64) for name in node.input[1:])
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        factor = scale / np.sqrt(variance + attributes.get("epsilon", 1e-5))
        kernel = weights[conv.input[1]]
        bias = weights[conv.input[2]] if len(conv.input) > 2 else np.zeros(len(factor))
        folded = {
            f"{node.output[0]}.kernel": kernel * factor.reshape(-1, *[1] * (kernel.ndim - 1)),
            f"{node.output[0]}.offset": (bias - mean) * factor + offset,
        }
        for name, values in folded.items():
            weights[name] = values.astype(kernel.dtype)
            graph.initializer.append(numpy_helper.from_array(weights[name], name))
        del conv.input[1:]
        conv.input.extend(folded)
        conv.output[0] = node.output[0]
        graph.node.remove(node)
    return proto


def with_resizes_as_products(model: OnnxModel) -> OnnxModel:
    """Return the model with linear and cubic Resizes as products, as on the device, so that they get scales; the model
    itself without such Resizes."""
    proto, nodes, products = onnx.ModelProto(), list[Any](), 0
    proto.CopyFrom(model.proto)
    for node in model.proto.graph.node:
        parts = Decomposition(NodeView(node, model.name, model.opset, model.info, model.initializers))
        try:
            if node.op_type == "Resize" and parts.node.attribute("mode", "nearest") != "nearest":
                resize(parts)
        except ModelError:  # compilation reports the error
            parts.nodes = []
        products += len(parts.nodes)
        nodes += parts.nodes or [node]
        proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in parts.constants.items())
    if not products:
        return model
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return prepare(proto, model.name)


def quantize_model(
    model: OnnxModel, samples: Samples, config: QConfig | None = None, kind: DataType = DataType.INT8,
    method: str = "minmax", *, open_shapes: bool = False,
) -> OnnxModel:  # fmt: skip
    """Return the model in INT8 or 8-bit floats, calibrated on the inputs `samples` by a method of
    `toolchain.quantize.ranges`; `config` may request narrower weights, which are narrower codes in INT8. `open_shapes`:
    the model also serves other shapes than those of the samples, so values derived from shapes are not folded.
    ModelError: there is nothing to quantize, or a sample does not match the model."""
    floats = kind is not DataType.INT8
    model = model.with_initializers()
    if not (floats or open_shapes):
        model = with_resizes_as_products(model)
    proto, config = without_batchnorm(model), config or QConfig()
    if floats:
        return FloatQuantizer(model, proto, samples, config, method, kind).run()
    return ProductQuantizer(model, proto, samples, config, method, open_shapes=open_shapes).run()
