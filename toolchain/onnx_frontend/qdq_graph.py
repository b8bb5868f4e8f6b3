"""Quantized tensors of a model, between QuantizeLinear and DequantizeLinear, with scale and zero point.

Attention may keep keys and values as codes: DequantizeLinear of the past and of the new keys, Attention, and
QuantizeLinear of the present become one node of `toolchain.onnx_frontend.qdq.DOMAIN` on the codes. Past, present and
new tokens share one scale, so queries see exactly the keys and values that the cache stores.
"""

from collections.abc import Collection, Iterable
from copy import deepcopy
from typing import Any, NamedTuple, NoReturn

import numpy as np
from onnx import helper

from toolchain.errors import ModelError
from toolchain.ir.graph import Values
from toolchain.onnx_model.model import OnnxModel, check_scale
from toolchain.onnx_nodes.evaluation import TensorInfo
from toolchain.onnx_nodes.messages import attributes_of
from toolchain.onnx_nodes.view import node_name

BYTES = ("INT8", "UINT8")
NIBBLES = ("INT4", "UINT4")
FLOATS = ("FLOAT8E4M3FN", "FLOAT8E5M2")
"""8-bit float types of codes."""


class Factor(NamedTuple):
    """Quantized tensor: its codes, scale and zero point."""

    name: str
    scale: Values
    zero: int
    axis: int

    def same_grid(self, other: "Factor") -> bool:
        """Check whether both have a single, equal scale and equal zero points."""
        return self.scale.size == other.scale.size == 1 and (self.scale, self.zero) == (other.scale, other.zero)


class QdqGraph:
    """Nodes of a model, with the producer and the readers of each tensor."""

    def __init__(self, model: OnnxModel, nodes: Iterable[Any] | None = None) -> None:
        """`nodes`: by default those of the model."""
        self.model = model
        self.nodes = list(model.graph.node if nodes is None else nodes)
        self.makers = {name: node for node in self.nodes for name in node.output if name}
        self._outputs = frozenset(model.outputs)
        self._readers: dict[str, list[Any]] = {}
        for node in self.nodes:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)

    def live(self, nodes: list[Any]) -> list[Any]:
        """Return the nodes without unused DequantizeLinear nodes."""
        names = {*self._outputs, *(name for node in nodes for name in node.input)}
        return [node for node in nodes if node.op_type != "DequantizeLinear" or names.intersection(node.output)]

    def readers(self, name: str) -> int:
        """Return the number of nodes and model outputs that read a tensor."""
        return len(self._readers.get(name, ())) + (name in self._outputs)

    def only_reader(self, name: str) -> Any | None:
        """Return the only reader of a tensor; None if there are several or it is a model output."""
        readers = self._readers.get(name, ())
        return readers[0] if len(readers) == 1 and name not in self._outputs else None

    def factor(self, name: str) -> Factor | None:
        """Return the quantized operand of a DequantizeLinear with constant scales and one zero point; None for any
        other tensor."""
        node = self.makers.get(name)
        if node is None or node.op_type != "DequantizeLinear":
            return None
        attributes = attributes_of(node)
        info = self.model.info.get(node.input[0])
        if info is None or info.type not in (*BYTES, *NIBBLES, *FLOATS) or attributes.get("block_size"):
            return None
        return self._quantity(node, attributes.get("axis", 1), node.input[0], len(info.shape))

    def target(self, node: Any) -> Factor | None:
        """Return the output of a QuantizeLinear with a single constant scale; None for any other node."""
        info = self.model.info.get(node.output[0])
        quantity = self._quantity(node, 0, node.output[0], 1)
        return quantity if info is not None and info.type in BYTES and quantity and quantity.scale.size == 1 else None

    def implied(self, clip: Any) -> bool:
        """Check whether a QuantizeLinear, the only reader of a Clip with constant limits, gives the same codes without
        the Clip: the range of the codes lies within the limits."""
        quantizer = self.only_reader(clip.output[0])
        if quantizer is None or quantizer.op_type != "QuantizeLinear" or (factor := self.target(quantizer)) is None:
            return False
        kind = np.iinfo(self.model.info[factor.name].type.lower())
        for index, end in ((1, kind.min), (2, kind.max)):
            if index >= len(clip.input) or not clip.input[index]:
                continue
            limit = self.model.initializers.get(clip.input[index])
            if limit is None or limit.size != 1:
                return False
            code = np.rint(limit.reshape(-1)[0] / factor.scale.reshape(-1)[0]) + factor.zero
            if not (code <= end if index == 1 else code >= end):
                return False
        return True

    def _quantity(self, node: Any, axis: int, name: str, rank: int) -> Factor | None:
        scale = self.model.initializers.get(node.input[1])
        zero: Values | None = np.zeros(1, np.int64)
        if len(node.input) > 2 and node.input[2]:
            zero = self.model.initializers.get(node.input[2])
        if scale is None or zero is None or scale.dtype != np.float32:
            return None
        check_scale(self.model, node, node.input[1], scale)
        zeros = np.unique(zero.astype(np.int64))
        return Factor(name, scale, int(zeros[0]), axis % max(rank, 1)) if zeros.size == 1 else None


MOVES = ("MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze")
"""Operators that only move elements of their first input, and thus apply to codes unchanged."""
_MOVES = (*MOVES, "Concat", "DepthToSpace", "SpaceToDepth")
"""MOVES, and operators that move elements of several inputs."""


def hoist_quantize(graph: QdqGraph) -> list[Any]:
    """Move each QuantizeLinear before an operator that only moves values and feeds nothing else. The codes are equal,
    and a product before it can be fused. Types and shapes of new tensors are added to the model."""
    makers, replaced, removed = dict(graph.makers), dict[int, list[Any]](), set[int]()
    worklist = [node for node in graph.nodes if node.op_type == "QuantizeLinear"]
    while worklist:
        quantizer = worklist.pop()
        moved, target = makers.get(quantizer.input[0]), graph.target(quantizer)
        sole_reader = graph.readers(quantizer.input[0]) == 1
        if moved is None or moved.op_type not in _MOVES or len(moved.output) > 1 or target is None or not sole_reader:
            continue
        codes, quantizers = deepcopy(moved), list[Any]()
        for index, name in enumerate(moved.input if moved.op_type == "Concat" else moved.input[:1]):
            source, info = graph.factor(name), graph.model.info
            if source is not None and source.same_grid(target) and info[source.name].type == info[target.name].type:
                codes.input[index] = source.name
                continue
            if name not in info:
                break
            codes.input[index] = f"{quantizer.output[0]}.part{index}"
            info[codes.input[index]] = TensorInfo(info[target.name].type, info[name].shape)
            inputs = [name, *quantizer.input[1:]]
            label = f"{node_name(quantizer)}.part{index}"
            quantizers.append(helper.make_node("QuantizeLinear", inputs, [codes.input[index]], label))
        else:
            codes.output[0] = quantizer.output[0]
            for node in (*quantizers, codes):
                makers[node.output[0]] = node
            replaced[id(moved)] = [*quantizers, codes]
            removed.add(id(quantizer))
            worklist += quantizers
    nodes = (replacement for node in graph.nodes for replacement in replaced.get(id(node), (node,)))
    return [node for node in nodes if id(node) not in removed]


OPERATOR = "QAttention"
"""Attention on codes of K and V, of their past and present; scale_kv and zero_kv are those of K, then V."""
PARTS = ((1, 4, 1), (2, 5, 2))
"""(input of the new tokens, input of the past, output of the present) of keys, then of values."""


class OnCodes(NamedTuple):
    """Attention on codes, and the QuantizeLinear nodes that it replaces."""

    node: Any
    gone: list[Any]


def on_codes(graph: QdqGraph, node: Any, caches: Collection[str], domain: str) -> OnCodes | None:
    """Return the Attention on codes; None if its past is not dequantized from one of `caches`. ModelError: new tokens
    or present have other codes than the past."""
    pasts = [graph.makers.get(node.input[past]) for _, past, _ in PARTS if past < len(node.input)]
    if not any(maker is not None and maker.input[0] in caches for maker in pasts):
        return None
    inputs, outputs = list(node.input), list(node.output)
    removed, factors = [], []
    for new, past, present in PARTS:
        cache, token = graph.factor(node.input[past]), graph.factor(node.input[new])
        quantizer = graph.only_reader(node.output[present]) if present < len(node.output) else None
        present_factor = None if quantizer is None or quantizer.op_type != "QuantizeLinear" else graph.target(quantizer)
        _check(graph, node, new, cache, token, present_factor)
        assert cache is not None and token is not None and present_factor is not None
        inputs[past], inputs[new], outputs[present] = cache.name, token.name, present_factor.name
        removed.append(quantizer)
        factors.append(cache)
    attributes = attributes_of(node)
    coded = helper.make_node(
        OPERATOR, inputs, outputs, name=node_name(node), domain=domain, zero_kv=[factor.zero for factor in factors],
        scale_kv=[float(factor.scale.reshape(-1)[0]) for factor in factors], **attributes,
    )  # fmt: skip
    return OnCodes(coded, removed)


def _check(
    graph: QdqGraph, node: Any, new: int, cache: Factor | None, token: Factor | None, present: Factor | None
) -> None:
    """Raise ModelError unless past, new tokens and present are codes with equal type, scale and zero point."""

    def refuse(reason: str) -> NoReturn:
        raise ModelError(f"{graph.model.name}: node {node_name(node)} (Attention): {reason}")

    noun = ("keys", "values")[new - 1]
    if cache is None or cache.scale.size != 1 or graph.model.info[cache.name].type not in BYTES:
        refuse(f"the past of its {noun} must be INT8 or UINT8 behind DequantizeLinear with one constant scale")
    kind = graph.model.info[cache.name].type
    for factor, prefix in ((token, "the new"), (present, "the present")):
        if factor is None or not factor.same_grid(cache) or graph.model.info[factor.name].type != kind:
            refuse(f"{prefix} {noun} must be quantized as their past: {kind}, with its scale and zero point")
