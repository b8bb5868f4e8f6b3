"""Fusion of float operators between DequantizeLinear and QuantizeLinear into integer products.

DequantizeLinear, (Conv | Gemm | MatMul), bias, Add of a dequantized residual, Relu or Clip, QuantizeLinear -> one node
of `DOMAIN` on integers, rescaled in its epilogue. A Clip implied by the range of the codes is dropped. Without a final
QuantizeLinear the result is float. 8-bit floats are fused in the same form, with a float result. Operators that only
move values between the two, with one scale, move the codes. All other nodes are unchanged.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
from onnx import helper

from toolchain.ir.graph import Values
from toolchain.onnx_frontend.qdq_graph import FLOATS, NIBBLES, Factor, QdqGraph, hoist_quantize, on_codes
from toolchain.onnx_model.model import OnnxModel
from toolchain.onnx_nodes.messages import attributes_of
from toolchain.onnx_nodes.view import node_name

DOMAIN = "pyv.qdq"
_ABSOLUTE = 1e-4
_RELATIVE = 1e-7
"""Tolerances of a bias for its conversion to INT32 steps: absolute in steps, relative for the rounding of its scale."""
_UNITS = ("transA", "alpha", "beta")
"""Attributes of Gemm that must have their defaults for fusion."""


class Fused(NamedTuple):
    """Nodes of a model after fusion, and additional constants."""

    nodes: list[Any]
    constants: dict[str, Values]
    floats: dict[str, str]
    """Node name of a float product with a quantized operand -> reason why it was not fused."""


class _Chain(NamedTuple):
    """Product and the nodes fused into it; `residual`: index of the node that adds a residual, 0 for none."""

    nodes: list[Any]
    residual: int


def fuse(model: OnnxModel, caches: Collection[str] = ()) -> Fused:
    """Return the nodes of a model with float products between quantized tensors replaced by integer products, and
    attention over `caches` on their codes. ModelError: such a cache is not stored as codes."""
    return _Fusion(model, caches).run()


class _Fusion:
    def __init__(self, model: OnnxModel, caches: Collection[str]) -> None:
        self._graph = QdqGraph(model, hoist_quantize(QdqGraph(model)))
        self._caches = caches
        self._model = model
        self._constants: dict[str, Values] = {}
        self._floats: dict[str, str] = {}

    def run(self) -> Fused:
        removed: set[int] = set()
        replacements: dict[int, Any] = {}
        for node in self._graph.nodes:
            if node.op_type in ("Conv", "Gemm", "MatMul") and node.domain in ("", "ai.onnx"):
                chain = self._chain(node)
                fused = self._product(chain)
                if fused is not None:
                    removed.update(map(id, chain.nodes[:-1]))
                    replacements[id(chain.nodes[-1])] = fused
            elif node.op_type == "Attention" and (coded := on_codes(self._graph, node, self._caches, DOMAIN)):
                removed.update(map(id, coded.gone))
                replacements[id(node)] = coded.node
        nodes = [replacements.get(id(node), node) for node in self._graph.nodes if id(node) not in removed]
        return Fused(self._graph.live(nodes), self._constants, self._floats)

    def _chain(self, node: Any) -> _Chain:
        """Return the product and its sole readers that can be fused: bias of MatMul, residual, Relu, Clip,
        QuantizeLinear. A residual must have the type of the result."""
        chain, residual = [node], 0
        for operator in ("Add", "Add", "Relu", "Clip", "QuantizeLinear"):
            following = self._graph.only_reader(chain[-1].output[0])
            if following is None or following.op_type != operator:
                continue
            if operator == "Clip" and not self._graph.implied(following):
                break
            if operator == "QuantizeLinear" and self._graph.target(following) is None:
                break
            if operator == "Add" and not (node.op_type == "MatMul" and self._bias_of(following, node)):
                if residual or self._residual(following, chain[-1]) is None:
                    break
                residual = len(chain)
            chain.append(following)
        if residual and not self._same_type(chain[residual], chain[residual - 1], chain[-1]):
            del chain[residual:]
            residual = 0
        return _Chain(chain, residual)

    def _residual(self, add: Any, product: Any) -> Factor | None:
        """Return the dequantized other operand of an Add if it has one scale and the same shape; None for any other."""
        other = next((name for name in add.input if name != product.output[0]), "")
        factor, info = self._graph.factor(other), self._model.info
        if factor is None or factor.scale.size != 1 or factor.name not in info or product.output[0] not in info:
            return None
        return factor if info[factor.name].shape == info[product.output[0]].shape else None

    def _same_type(self, add: Any, product: Any, last: Any) -> bool:
        residual, info = self._residual(add, product), self._model.info
        output_type = info[last.output[0]].type if _is(last, "QuantizeLinear") else ""
        return residual is not None and info[residual.name].type == output_type

    def _product(self, chain: _Chain) -> Any | None:
        """Return the fused node, or None; the chain is cut to the fused nodes."""
        nodes, residual = chain
        node, added = nodes[0], None
        a, b = self._graph.factor(node.input[0]), self._graph.factor(node.input[1])
        if a is None or b is None:
            if any(_is(self._graph.makers.get(name), "DequantizeLinear") for name in node.input[:2]):
                name = node.input[0 if a is None else 1]
                weights = ", so that codes of weights become numbers" if a is None else ""
                self._floats[node_name(node)] = f"{name} has no codes with constant scales and one zero point{weights}"
            return None
        kinds = {self._model.info[factor.name].type for factor in (a, b)}
        if obstacle := self._obstacle(node, a, b, kinds):
            self._floats[node_name(node)] = obstacle
            return None
        scale, zero = a.scale.astype(np.float64) * b.scale.astype(np.float64), 0
        attributes = {
            attribute.name: helper.get_attribute_value(attribute)
            for attribute in node.attribute
            if attribute.name not in _UNITS
        }
        bias = self._bias_name(nodes)
        steps = None if kinds & set(FLOATS) else self._integers(bias, scale) if bias else ""
        if steps is None:
            steps = ""
            del nodes[1 + (node.op_type == "MatMul") :]
        else:
            bias = ""
            if _is(nodes[-1], "Relu"):
                nodes.pop()  # of a float result: the pass `fusion` adds it to the epilogue
        if _is(nodes[-1], "QuantizeLinear"):
            target = self._graph.target(nodes[-1])
            assert target is not None
            step = np.float64(target.scale.reshape(-1)[0])
            scale, zero = scale / step, target.zero
            if residual:
                added = self._residual(nodes[residual], nodes[residual - 1])
                assert added is not None
                attributes |= {"zero_in2": added.zero, "residual_scale": float(added.scale.reshape(-1)[0] / step)}
        return helper.make_node(
            "QConv" if node.op_type == "Conv" else "QGemm",
            [a.name, b.name, steps, bias, "" if added is None else added.name], [nodes[-1].output[0]],
            name=node_name(node), domain=DOMAIN, zero0=a.zero, zero1=b.zero,
            zero_out=zero, scale=scale.reshape(-1).tolist(), relu=int(any(_is(node, "Relu") for node in nodes)),
            **attributes,
        )  # fmt: skip

    def _obstacle(self, node: Any, a: Factor, b: Factor, kinds: set[str]) -> str:
        """Return why a product of quantized tensors of types `kinds` has no integer form; empty if it has one.
        Per-channel scales must lie along the columns."""
        attributes = attributes_of(node)
        info = self._model.info[b.name]
        constant, rank = b.name in self._model.initializers, len(info.shape)
        column = 0 if node.op_type == "Conv" or attributes.get("transB") else rank - 1
        if a.scale.size != 1:
            return f"{a.name} has {a.scale.size} scales, and rows of a product have one"
        if kinds & set(FLOATS) and (len(kinds) > 1 or a.zero or b.zero):
            return f"types {' and '.join(sorted(kinds))}: FP8 needs one type and zero points of 0"
        for name, value in (("transA", 0), ("alpha", 1), ("beta", 1)):
            if attributes.get(name, value) != value:
                return f"attribute {name}={attributes[name]:g}: products of codes have {value}"
        if node.input[0] == node.input[1]:
            return "both operands are one tensor"
        if rank > 4 and attributes.get("group", 1) != 1:
            return f"group={attributes['group']} with {rank - 2} dimensions"
        if info.type in NIBBLES and not (constant and (rank == 2 or (node.op_type == "Conv" and rank <= 4))):
            return f"{b.name} of {info.type} is no constant matrix"
        if b.scale.size != 1 and not (b.axis == column and constant):
            return f"{b.name} has scales along axis {b.axis}, and columns of a product along {column}"
        return ""

    # -- bias ----------------------------------------------------------------------------------------------------------

    def _bias_name(self, chain: list[Any]) -> str:
        node = chain[0]
        if node.op_type == "MatMul":
            return self._bias_of(chain[1], node) or "" if len(chain) > 1 and chain[1].op_type == "Add" else ""
        return node.input[2] if len(node.input) > 2 else ""

    def _bias_of(self, add: Any, product: Any) -> str | None:
        """Return the other operand of an Add if it is a constant row."""
        other = next((name for name in add.input if name != product.output[0]), None)
        width = self._model.info[product.output[0]].shape[-1] if product.output[0] in self._model.info else 0
        values = None if other is None else self._values(other)
        return other if values is not None and values.shape == (width,) else None

    def _values(self, name: str) -> Values | None:
        """Return a constant, dequantized if necessary; None for any other tensor."""
        if name in self._model.initializers:
            return self._model.initializers[name]
        node = self._graph.makers.get(name)
        if node is None or node.op_type != "DequantizeLinear":
            return None
        codes, scale = (self._model.initializers.get(operand) for operand in node.input[:2])
        if codes is None or scale is None or codes.dtype != np.int32 or scale.size not in (1, codes.size):
            return None
        return codes * scale.astype(np.float64)

    def _integers(self, name: str, scale: Values) -> str | None:
        """Return a new INT32 constant with the bias in accumulator steps; None if it is not integral."""
        values = self._values(name)
        if values is None or values.ndim != 1 or scale.size not in (1, values.size):
            return None
        steps = values.astype(np.float64) / scale.reshape(-1)
        nearest = np.rint(steps)
        size = np.abs(nearest)
        if np.any(size >= 1 << 31) or np.any(np.abs(steps - nearest) > _ABSOLUTE + _RELATIVE * size):
            return None
        label = f"{name}.steps{len(self._constants)}"
        self._constants[label] = nearest.astype(np.int32)
        return label


def _is(node: Any, operator: str) -> bool:
    return node is not None and bool(node.op_type == operator)
