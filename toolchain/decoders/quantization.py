"""INT8 decoders: post-training quantization of products and caches, calibrated on prompts."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import helper
from onnx.reference import ReferenceEvaluator

from toolchain.decoders.decoder import Decoder, make_decoder
from toolchain.decoders.reference import empty_past, step_feeds
from toolchain.onnx_frontend.qdq_graph import PARTS
from toolchain.onnx_nodes.messages import assign
from toolchain.onnx_nodes.view import node_name
from toolchain.onnx_reference.corrected import CORRECTED
from toolchain.quantize.post_training import quantize_model
from toolchain.quantize.products import PRODUCTS
from toolchain.quantize.qconfig import QConfig
from toolchain.quantize.scales import pair, scale_of

Prompts = Sequence[Sequence[int]]


def in_int8(
    decoder: Decoder, prompts: Prompts, config: QConfig | None = None, method: str = "minmax"
) -> Decoder:  # fmt: skip
    """Return the decoder with QuantizeLinear and DequantizeLinear around its products; caches keep their type.

    `prompts`: tokens for the calibration of ranges; `config` may request narrower weights. ModelError as
    `toolchain.quantize.post_training.quantize_model`.
    """
    samples = [step_feeds(decoder, prompt, empty_past(decoder)) for prompt in prompts]
    model = quantize_model(decoder.model(len(prompts[0])), samples, config, method=method, open_shapes=True)
    _free(model.proto, decoder)
    attended = [node_name(node) for node in model.proto.graph.node if node.op_type == "Attention"]
    floats = {**model.floats, **dict.fromkeys(attended, f"Attention: converted are {', '.join(PRODUCTS)}")}
    return replace(make_decoder(model.proto, decoder.name), original=decoder, floats=floats)


def _free(proto: Any, decoder: Decoder) -> None:
    """Restore the symbolic shapes of inputs and outputs, so that numbers of tokens stay open."""
    original = decoder.proto.graph
    inputs = [value for value in original.input if value.name not in decoder.external]
    for field, infos in ((proto.graph.input, inputs), (proto.graph.output, original.output)):
        assign(field, infos)
    del proto.graph.value_info[:]


def with_int8_caches(decoder: Decoder, prompts: Prompts) -> Decoder:
    """Return the decoder with INT8 caches. New keys and values are quantized with one scale each before Attention. Its
    past comes from DequantizeLinear; QuantizeLinear computes the present. Already quantized caches keep their codes."""
    proto = deepcopy(decoder.proto)
    graph, result = proto.graph, list[Any]()
    makers = {name: node for node in graph.node for name in node.output}
    kinds = {initializer.name: initializer.data_type for initializer in graph.initializer}
    values = {value.name: value for value in (*graph.input, *graph.output)}
    largest = _largest(decoder, [node.input[new] for node in graph.node for new, _, _ in _parts(node)], prompts)
    for node in graph.node:
        quantizers = []
        for new, past, present in _parts(node):
            name, maker = node.input[new], makers.get(node.input[new])
            if maker is not None and maker.op_type == "DequantizeLinear":
                grid = list(maker.input[1:])
            else:
                codes = pair(name, scale_of(-largest[name], largest[name]))
                result += codes.nodes
                graph.initializer.extend(codes.constants)
                kinds |= {constant.name: constant.data_type for constant in codes.constants}
                node.input[new], grid = f"{name}.dq", list(codes.nodes[1].input[1:])
            before, after = node.input[past], node.output[present]
            node.input[past], node.output[present] = f"{before}.dq", f"{after}.float"
            result.append(helper.make_node("DequantizeLinear", [before, *grid], [f"{before}.dq"], name=f"{before}.dq"))
            quantizers.append(helper.make_node("QuantizeLinear", [f"{after}.float", *grid], [after], name=f"{after}.q"))
            for outside in (before, after):
                values[outside].type.tensor_type.elem_type = kinds[grid[1]]
        result += [node, *quantizers]
    assign(graph.node, result)
    return make_decoder(proto, decoder.name, decoder.external)


def _parts(node: Any) -> tuple[tuple[int, int, int], ...]:
    return PARTS if node.op_type == "Attention" else ()


def _largest(decoder: Decoder, names: Sequence[str], prompts: Prompts) -> dict[str, float]:
    """Return the maximum absolute value of each tensor over the prompts."""
    evaluator = ReferenceEvaluator(decoder.proto, new_ops=CORRECTED)
    maxima = dict.fromkeys(names, 0.0)
    for prompt in prompts:
        results: Any = evaluator.run(list(names), step_feeds(decoder, prompt, empty_past(decoder)))
        for name, values in zip(names, results, strict=True):
            maxima[name] = max(maxima[name], float(np.abs(values).max()))
    return maxima
