"""Batch normalization of an ONNX model, in the weights of the convolution before it."""

from collections import Counter
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from toolchain.onnx_frontend.model import OnnxModel


def without_batchnorm(model: OnnxModel) -> Any:
    """A copy of the model whose constant batch normalizations behind convolutions are in their weights."""
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
        attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        factor = scale / np.sqrt(variance + attributes.get("epsilon", 1e-5))
        kernel = weights[conv.input[1]]
        bias = weights[conv.input[2]] if len(conv.input) > 2 else np.zeros(len(factor))
        made = {
            f"{node.output[0]}.kernel": kernel * factor.reshape(-1, *[1] * (kernel.ndim - 1)),
            f"{node.output[0]}.offset": (bias - mean) * factor + offset,
        }
        for name, values in made.items():
            weights[name] = values.astype(kernel.dtype)
            graph.initializer.append(numpy_helper.from_array(weights[name], name))
        del conv.input[1:]
        conv.input.extend(made)
        conv.output[0] = node.output[0]
        graph.node.remove(node)
    return proto
