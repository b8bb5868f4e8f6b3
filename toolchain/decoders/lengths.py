"""Evaluation of an exported decoder's lengths: shapes, positions and masks, for one length of the past.

A tensor is known if it depends only on shapes, `attention_mask` and `position_ids`, not on the values of tokens, keys
or values. A comparison of two lengths of the past shows which known tensors change with it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from onnx import helper, numpy_helper

from toolchain.ir.graph import Values
from toolchain.onnx_model.model import OnnxModel
from toolchain.onnx_nodes.evaluation import Propagation, infer_outputs

_SMALL = 4096
"""Maximum size of constants from which evaluation starts, elements."""
_LARGE = 1 << 22
"""Maximum size of a known tensor, elements."""


class Span(NamedTuple):
    """Nodes from the output of `source` to the tensor at which the search began."""

    source: Any
    nodes: tuple[Any, ...]


class KnownTensors(Propagation):
    """Known tensors of a model with fixed dimensions: `constants`. `inputs`: values of its inputs."""

    def __init__(self, model: OnnxModel, inputs: Mapping[str, Values]) -> None:
        super().__init__(list(model.proto.opset_import), dict(model.info))
        self.model, self.constants = model, dict(inputs)
        self.nodes = list(model.graph.node)
        self.makers = {name: node for node in self.nodes for name in node.output if name}
        self._order = {node.output[0]: index for index, node in enumerate(self.nodes)}
        for node in self.nodes:
            self._follow(node)

    def constant(self, name: str) -> Values | None:
        """Return the values of a known tensor or an initializer; None for any other."""
        value = self.constants.get(name)
        return self.model.initializers.get(name) if value is None else value

    def _number(self, name: str) -> Values:
        return self.constants[name] if name in self.constants else self.model.initializers[name]

    def is_data(self, name: str) -> bool:
        """Check whether a tensor depends on the values of tokens, keys or values."""
        return bool(name) and name not in self.constants and name not in self.model.initializers

    def span(self, name: str, ends: Callable[[Any], bool]) -> Span | None:
        """Return the nodes from the only node that satisfies `ends` to a tensor; None if several nodes do, or the path
        starts at an input."""
        sources, nodes, todo = dict[str, Any](), dict[str, Any](), [name]
        while todo:
            node = self.makers.get(todo.pop())
            if node is None:
                return None
            if ends(node):
                sources[node.output[0]] = node
            elif node.output[0] not in nodes:
                nodes[node.output[0]] = node
                todo += [operand for operand in node.input if self.is_data(operand)]
        if len(sources) != 1:
            return None
        (source,) = sources.values()
        return Span(source, tuple(sorted(nodes.values(), key=lambda node: self._order[node.output[0]])))

    def through(self, span: Span, values: Values, target: str) -> Values:
        """Return the tensor at the end of a span when its source outputs `values`; an empty array if the evaluation
        fails."""
        values_by_name = {span.source.output[0]: values}
        for node in span.nodes:
            names = [name for name in node.input if name]
            feeds = {name: values_by_name[name] if name in values_by_name else self._number(name) for name in names}
            results = self._evaluated(node, feeds)
            if not results:
                return np.empty(0)
            values_by_name |= dict(zip(node.output, results, strict=False))
        return values_by_name[target]

    def _follow(self, node: Any) -> None:
        if self.follow_shape(node):
            return
        if self._begins(node):
            results = self._evaluated(node, {name: self._number(name) for name in node.input if name})
            for name, values in zip((name for name in node.output if name), results, strict=False):
                if values.size <= _LARGE:
                    self.know(name, values)
        if any(name and name not in self.info for name in node.output):
            small = {name: self._number(name) for name in node.input if name and not self.is_data(name)}
            with suppress(Exception):  # import refuses it by name
                self.info.update(infer_outputs(node, self.info, small, self._opsets))

    def _begins(self, node: Any) -> bool:
        """Check whether a node's outputs are known. Weights alone count only if they are small."""
        if "Random" in node.op_type or any(map(self.is_data, node.input)):
            return False
        constants = [self._number(name) for name in node.input if name]
        return any(name in self.constants for name in node.input) or all(values.size <= _SMALL for values in constants)


def are_different(values: Values | None, other: Values | None) -> bool:
    """Check whether two known values of a tensor differ."""
    return values is not None and other is not None and not are_equal(values, other)


def are_equal(values: Values, other: Values | None) -> bool:
    """Check whether two known values of a tensor have the same shape and elements."""
    return other is not None and values.shape == other.shape and np.array_equal(values, other)


def constant(values: Any, name: str) -> Any:
    """Return a Constant node."""
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(values)))


def rows_of(values: Values, table: Values, first: int, count: int) -> int | None:
    """Return the axis along which `values` are rows `first` to `first + count` of `table`; None if there is none."""
    for axis, size in enumerate(table.shape):
        if values.ndim == table.ndim and values.shape[axis] == count and first + count <= size:
            rows: Sequence[int] = range(first, first + count)
            if np.array_equal(values, table.take(rows, axis)):
                return axis
    return None
