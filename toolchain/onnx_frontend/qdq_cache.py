"""Attention whose keys and values are kept as integers: past, present and the new tokens are codes of one scale.

DequantizeLinear of the past and of the new keys, Attention, QuantizeLinear of the present -> one node of
`toolchain.onnx_frontend.qdq.DOMAIN` on the codes. What is appended to the cache then is what the queries see.
"""

from collections.abc import Collection
from typing import Any, NamedTuple, NoReturn

from onnx import helper

from toolchain.errors import ModelError
from toolchain.onnx_frontend.node import node_name
from toolchain.onnx_frontend.qdq_graph import BYTES, Factor, QdqGraph

OPERATOR = "QAttention"
"""Attention with codes of K and V, of their past and of their present; scale_kv and zero_kv of K, then of V."""
PARTS = ((1, 4, 1), (2, 5, 2))
"""(input with the new tokens, input with the past, output with the present) of keys, then of values."""


class OnCodes(NamedTuple):
    """The node on codes, and the QuantizeLinear nodes that it takes in."""

    node: Any
    gone: list[Any]


def on_codes(graph: QdqGraph, node: Any, caches: Collection[str], domain: str) -> OnCodes | None:
    """The Attention on codes; None where its past is no DequantizeLinear of one of `caches`. ModelError: it is, and the
    new tokens or the present have other codes."""
    pasts = [graph.makers.get(node.input[past]) for _, past, _ in PARTS if past < len(node.input)]
    if not any(maker is not None and maker.input[0] in caches for maker in pasts):
        return None
    inputs, outputs = list(node.input), list(node.output)
    gone, factors = [], []
    for new, past, present in PARTS:
        cache, token = graph.factor(node.input[past]), graph.factor(node.input[new])
        quantizer = graph.only_reader(node.output[present]) if present < len(node.output) else None
        made = None if quantizer is None or quantizer.op_type != "QuantizeLinear" else graph.target(quantizer)
        _check(graph, node, new, cache, token, made)
        assert cache is not None and token is not None and made is not None
        inputs[past], inputs[new], outputs[present] = cache.name, token.name, made.name
        gone.append(quantizer)
        factors.append(cache)
    kept = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    coded = helper.make_node(
        OPERATOR, inputs, outputs, name=node_name(node), domain=domain, zero_kv=[one.zero for one in factors],
        scale_kv=[float(one.scale.reshape(-1)[0]) for one in factors], **kept,
    )  # fmt: skip
    return OnCodes(coded, gone)


def _check(
    graph: QdqGraph, node: Any, new: int, cache: Factor | None, token: Factor | None, present: Factor | None
) -> None:
    """ModelError where past, new tokens and present are not codes of one type, scale and zero point."""

    def refuse(what: str) -> NoReturn:
        raise ModelError(f"{graph.model.name}: node {node_name(node)} (Attention): {what}")

    which = ("keys", "values")[new - 1]
    if cache is None or cache.scale.size != 1 or graph.model.info[cache.name].type not in BYTES:
        refuse(f"the past of its {which} must be INT8 or UINT8 behind DequantizeLinear with one constant scale")
    kind = graph.model.info[cache.name].type
    for found, where in ((token, "the new"), (present, "the present")):
        if found is None or not found.same_grid(cache) or graph.model.info[found.name].type != kind:
            refuse(f"{where} {which} must be quantized as their past: {kind}, with its scale and zero point")
