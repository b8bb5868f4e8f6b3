"""Recognition of operators that exporters write as primitives: x * Sigmoid(x) is Swish, mean and variance are
LayerNormalization.

A pattern is an expression of ONNX operators; operands of Add and Mul match in either order. Inner tensors of a match
must have no other reader, so that nothing is computed twice. A match is replaced by one ONNX node.
"""

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from onnx import helper, numpy_helper

from toolchain.ir.graph import Values
from toolchain.onnx_model.model import OnnxModel
from toolchain.onnx_nodes.messages import attributes_of
from toolchain.onnx_nodes.view import node_name

_COMMUTATIVE = ("Add", "Mul")


class TensorPattern(NamedTuple):
    """Any tensor; equal names must match the same tensor."""

    name: str


class NumberPattern(NamedTuple):
    """Constant with one element: equal to the value up to rounding, or any value, bound to a name."""

    value: float = math.nan
    name: str = ""


class RowPattern(NamedTuple):
    """Constant with a value per column of the tensor `of` and its type."""

    name: str
    of: str


class LastAxis(NamedTuple):
    """Constant list with the last axis of the tensor `of`."""

    of: str


class Op:
    """Pattern of an operator; unnamed attributes must have their defaults."""

    def __init__(self, operator: str, *inputs: "Pattern", **attributes: float) -> None:
        self.operator, self.inputs, self.attributes = operator, inputs, attributes


class Either:
    """Pattern with alternatives."""

    def __init__(self, *patterns: "Pattern") -> None:
        self.patterns = patterns


Pattern = TensorPattern | NumberPattern | RowPattern | LastAxis | Op | Either


class RewriteRule(NamedTuple):
    """Rewrite rule of a pattern: inputs and attributes are names bound by the match, or numbers."""

    pattern: Pattern
    operator: str
    inputs: tuple[str, ...] = ("x",)
    attributes: Mapping[str, Any] = {}


def _product(*factors: Pattern) -> Either:
    """Return the product of three factors in any association."""
    return Either(*(Op("Mul", Op("Mul", *pair), rest) for *pair, rest in itertools.permutations(factors)))


_X = TensorPattern("x")
_ONE = NumberPattern(1)
_ROOT = math.sqrt(2)
_CUBIC = 0.044715
_SIXTH = {"alpha": 1 / 6, "beta": 0.5}


def _sixth(of: Pattern) -> Either:
    return Either(Op("Div", of, NumberPattern(6)), Op("Mul", of, NumberPattern(1 / 6)))


_CLIPPED = Op("Clip", Op("Add", _X, NumberPattern(3)), NumberPattern(0), NumberPattern(6))
_ERF = Op("Add", Op("Erf", Either(Op("Div", _X, NumberPattern(_ROOT)), Op("Mul", _X, NumberPattern(1 / _ROOT)))), _ONE)
_CUBE = Either(Op("Pow", _X, NumberPattern(3)), Op("Mul", _X, Op("Mul", _X, _X)))
_SUM = Either(
    Op("Add", _X, Op("Mul", _CUBE, NumberPattern(_CUBIC))),
    Op("Mul", _X, Op("Add", Op("Mul", NumberPattern(_CUBIC), Op("Mul", _X, _X)), _ONE)),
)
_TANH = Op("Add", Op("Tanh", Op("Mul", _SUM, NumberPattern(math.sqrt(2 / math.pi)))), _ONE)


def _normalize(x: Pattern) -> Either:
    """Return the pattern of a division by the root mean square of each row."""
    square = Either(Op("Pow", x, NumberPattern(2)), Op("Mul", x, x))
    root = Op("Sqrt", Op("Add", Op("ReduceMean", square, LastAxis("x")), NumberPattern(name="epsilon")))
    inverse = Either(Op("Reciprocal", root), Op("Div", _ONE, root))
    return Either(Op("Div", x, root), Op("Mul", x, inverse))


_DEVIATION = Op("Sub", _X, Op("ReduceMean", _X, LastAxis("x")))
_SCALED = Op("Mul", _normalize(_DEVIATION), RowPattern("scale", "x"))
_EPSILON = {"axis": -1, "epsilon": "epsilon"}

RULES = (
    RewriteRule(Op("Add", _SCALED, RowPattern("bias", "x")), "LayerNormalization", ("x", "scale", "bias"), _EPSILON),
    RewriteRule(_SCALED, "LayerNormalization", ("x", "scale"), _EPSILON),
    RewriteRule(Op("Mul", _normalize(_X), RowPattern("scale", "x")), "RMSNormalization", ("x", "scale"), _EPSILON),
    RewriteRule(_product(_X, _ERF, NumberPattern(0.5)), "Gelu"),
    RewriteRule(_product(_X, _TANH, NumberPattern(0.5)), "Gelu", attributes={"approximate": b"tanh"}),
    RewriteRule(Op("Mul", _X, Op("HardSigmoid", _X, **_SIXTH)), "HardSwish"),
    RewriteRule(Either(Op("Mul", _X, _sixth(_CLIPPED)), _sixth(Op("Mul", _X, _CLIPPED))), "HardSwish"),
    RewriteRule(_sixth(_CLIPPED), "HardSigmoid", attributes=_SIXTH),
    RewriteRule(Op("Mul", _X, Op("Tanh", Op("Softplus", _X))), "Mish"),
    RewriteRule(Op("Mul", _X, Op("Sigmoid", Either(_X, Op("Mul", _X, _ONE)))), "Swish"),
)
"""Rewrite rules, larger patterns first."""
DEFAULTS = {"alpha": 0.2, "beta": 0.5, "keepdims": 1, "noop_with_empty_axes": 0}
"""Defaults of the attributes of operators in patterns."""


class _Match(NamedTuple):
    named: Mapping[str, Any]
    nodes: tuple[Any, ...]


class Matcher:
    """Search for the matches of the rules in the nodes of a model."""

    def __init__(self, model: OnnxModel, nodes: list[Any]) -> None:
        self._model = model
        self._nodes = nodes
        self._constants = dict(model.initializers) | {
            node.output[0]: numpy_helper.to_array(node.attribute[0].t)
            for node in nodes if node.op_type == "Constant" and node.attribute[0].name == "value"
        }  # fmt: skip
        self._makers = {name: node for node in nodes for name in node.output if name}
        self._readers = Counter(name for node in nodes for name in node.input)
        self._readers.update(model.outputs)

    def replace_matches(self) -> list[Any]:
        """Return the nodes with each match of a rule replaced by a single node."""
        replacements: dict[int, Any] = {}
        removed: set[int] = set()
        for rule in RULES:
            for node in self._nodes:
                if id(node) in removed or id(node) in replacements or node.op_type not in _roots(rule.pattern):
                    continue
                match = next((candidate for candidate in self._match(rule.pattern, node.output[0], _Match({}, ())) if
                              self._closed(candidate, node, {*removed, *replacements})), None)  # fmt: skip
                if match is not None:
                    replacements[id(node)] = _node(rule, match.named, node)
                    removed.update(id(other) for other in match.nodes if other is not node)
        return [replacements.get(id(node), node) for node in self._nodes if id(node) not in removed]

    def _closed(self, match: _Match, root: Any, claimed: Collection[int]) -> bool:
        """Check whether the inner tensors have no other reader: neither a node nor a model output."""
        nodes = {id(node): node for node in match.nodes}
        reads = Counter(name for node in nodes.values() for name in node.input)
        inner = [name for node in nodes.values() if node is not root for name in node.output if name]
        return not nodes.keys() & claimed and all(self._readers[name] == reads[name] for name in inner)

    def _match(self, pattern: Pattern, name: str, match: _Match) -> Iterator[_Match]:
        """Yield every match of a pattern at a tensor."""
        if isinstance(pattern, Either):
            for alternative in pattern.patterns:
                yield from self._match(alternative, name, match)
        elif isinstance(pattern, Op):
            yield from self._operator(pattern, name, match)
        elif isinstance(pattern, TensorPattern):
            if match.named.get(pattern.name, name) == name:
                yield match._replace(named={**match.named, pattern.name: name})
        elif (value := self._constant(pattern, name, match)) is not None:
            yield match._replace(named={**match.named, **value})

    def _operator(self, pattern: Op, name: str, match: _Match) -> Iterator[_Match]:
        node = self._makers.get(name)
        if node is None or node.op_type != pattern.operator or node.domain not in ("", "ai.onnx"):
            return
        inputs = list(node.input)
        if len(inputs) != len(pattern.inputs) or not _has_attributes(node, pattern.attributes):
            return
        match = match._replace(nodes=(*match.nodes, node))
        orders = itertools.permutations(inputs) if node.op_type in _COMMUTATIVE else (tuple(inputs),)
        for order in dict.fromkeys(orders):
            yield from self._all(pattern.inputs, order, match)

    def _all(self, patterns: tuple[Pattern, ...], names: tuple[str, ...], match: _Match) -> Iterator[_Match]:
        if not patterns:
            yield match
            return
        for partial_match in self._match(patterns[0], names[0], match):
            yield from self._all(patterns[1:], names[1:], partial_match)

    def _constant(
        self, pattern: NumberPattern | RowPattern | LastAxis, name: str, match: _Match
    ) -> Mapping[str, Any] | None:
        """Return the bindings of a constant; None if it does not match."""
        values = self._constants.get(name)
        if values is None:
            return None
        if isinstance(pattern, NumberPattern):
            return _number(pattern, values)
        info = self._model.info.get(match.named.get(pattern.of, ""))
        if info is None or not info.shape:
            return None
        if isinstance(pattern, RowPattern):
            same = self._model.info[name].type == info.type
            return {pattern.name: name} if same and values.shape[-1:] == info.shape[-1:] == (values.size,) else None
        return {} if values.size == 1 and int(values.reshape(-1)[0]) in (-1, len(info.shape) - 1) else None


def _roots(pattern: Pattern) -> frozenset[str]:
    """Return the possible last operators of a pattern."""
    if isinstance(pattern, Either):
        return frozenset(itertools.chain.from_iterable(map(_roots, pattern.patterns)))
    return frozenset((pattern.operator,)) if isinstance(pattern, Op) else frozenset()


def _has_attributes(node: Any, expected: Mapping[str, float]) -> bool:
    """Check whether a node has these attributes, rounded to fp32 as in ONNX, and defaults for all others."""
    attributes = attributes_of(node)
    return all(
        name in DEFAULTS
        and np.float32(attributes.get(name, DEFAULTS[name])) == np.float32(expected.get(name, DEFAULTS[name]))
        for name in {*attributes, *expected}
    )


def _number(pattern: NumberPattern, values: Values) -> Mapping[str, Any] | None:
    if values.size != 1 or values.dtype.kind not in "fi":
        return None
    value = values.reshape(-1)[0]
    if pattern.name:
        return {pattern.name: float(value)}
    step = np.finfo(values.dtype).eps if values.dtype.kind == "f" else 0
    return {} if abs(float(value) - pattern.value) <= step * abs(pattern.value) else None


def _node(rule: RewriteRule, named: Mapping[str, Any], root: Any) -> Any:
    attributes = {key: named[value] if isinstance(value, str) else value for key, value in rule.attributes.items()}
    inputs = [named[name] for name in rule.inputs]
    return helper.make_node(rule.operator, inputs, [root.output[0]], name=node_name(root), **attributes)
