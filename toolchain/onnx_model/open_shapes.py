"""Shapes with dimensions known only at run time, and values computed from them.

Their maximum is known at compile time and determines the size of a tensor.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import onnx

from toolchain.ir.graph import Values
from toolchain.onnx_model.rewriter import Rewriter
from toolchain.onnx_nodes.evaluation import MAX_FOLDED, TensorInfo, evaluate

_ON_DATA = frozenset((
    "Gather", "ReduceMax", "ReduceMin", "ReduceProd", "Reshape", "Slice", "Squeeze", "Unsqueeze",
))  # fmt: skip
"""Operators of `_MONOTONE` in the first input; the other inputs are indices and must be constant."""
_MONOTONE = frozenset(("Add", "Cast", "Ceil", "Concat", "Floor", "Identity", "Max", "Min")) | _ON_DATA
"""Operators whose result is minimal and maximal where their operands are."""
_BY_SIGN = frozenset(("Mul", "Sub"))
"""Operators whose result is minimal and maximal at limits of their operands, depending on signs."""
_EXACT = 1 << 31
"""Bound of limits whose sums and products fit INT64."""
Elements = list[list[int | str]]
"""Elements of each input: integers, or names of one-element tensors."""
Limits = tuple[Values, Values]
"""(minimum, maximum) of each element of a tensor."""


class OpenShapes(Rewriter):
    """Elements of open shapes, in a graph that is rebuilt node by node."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits: dict[str, Limits] = {}

    def _append(self, proto: Any) -> None:
        super()._append(proto)
        if self._follow:
            self._follow_limits(proto)

    def _follow_limits(self, proto: Any) -> None:
        """Record the limits of the elements of a small tensor."""
        operator, names = proto.op_type, [name for name in proto.input if name]
        if operator not in _MONOTONE | _BY_SIGN or proto.output[0] in self.constants:
            return
        if operator in _ON_DATA and any(name not in self.constants for name in names[1:]):
            return
        if operator in _BY_SIGN and len(set(names)) < len(names):
            return
        limits = [pair for name in names if (pair := self._limits_of(name)) is not None]
        if not limits or len(limits) < len(names) or not _within(operator, limits):
            return
        ends = product(*limits) if operator in _BY_SIGN else zip(*limits, strict=True)
        try:
            results = [evaluate(proto, dict(zip(names, values, strict=True)), self._opsets)[0] for values in ends]
        except Exception:  # the check of the whole model reports the node
            return
        if operator != "Cast" or all(_same(*pair) for pair in zip(limits[0], results, strict=True)):
            self._limits[proto.output[0]] = np.minimum.reduce(results), np.maximum.reduce(results)

    def _limits_of(self, name: str) -> Limits | None:
        """Return the limits of the elements of a tensor; None if they are unknown."""
        return (self.constants[name],) * 2 if name in self.constants else self._limits.get(name)

    def _elements(self, name: str) -> list[int | str]:
        """Return the elements of a vector: known integers, and names of one-element tensors; empty if unknown."""
        if name in self.constants:
            return [int(value) for value in self.constants[name].reshape(-1)]
        maker, info = self._producers.get(name), self.info.get(name)
        if info is None or math.prod(info.shape) == 1:
            return [name] if info is not None else []
        if maker is None or len(info.shape) != 1 or maker.op_type not in ("Cast", "Concat", "Identity", "Reshape"):
            return []
        parts = [self._elements(part) for part in (maker.input if maker.op_type == "Concat" else maker.input[:1])]
        return [element for part in parts for element in part] if all(parts) else []

    def _number_of(self, element: int | str, name: str) -> str:
        """Return an element of a shape as a one-element INT64 tensor."""
        if isinstance(element, int):
            return self._constant_of(name, [element])
        if self.info[element] == TensorInfo("INT64", (1,)):
            return element
        flat = self._plain("Reshape", [element, self._constant_of(f"{name}/one", [1])], f"{name}/flat")
        return self._plain("Cast", [flat], name, to=onnx.TensorProto.INT64)

    def _bound(self, element: int | str) -> int | None:
        """Return the maximum of an element; None if it is unknown."""
        if isinstance(element, int):
            return element
        limits = self._limits_of(element)
        return None if limits is None else int(limits[1].reshape(-1)[0])

    def _shape_bound(self, name: str) -> tuple[list[int], int, str] | None:
        """Return (maximum shape, index of the open dimension, tensor with its size); None unless one dimension is
        open."""
        values = self._elements(name) if name not in self.constants else []
        bounds = [self._bound(element) for element in values]
        open_places = [at for at, element in enumerate(values) if isinstance(element, str)]
        if len(open_places) != 1 or None in bounds:
            return None
        at = open_places[0]
        return [size for size in bounds if size is not None], at, str(values[at])

    def _vector(self, proto: Any) -> bool:
        """Add a node on elements of a shape that is partly known only at run time. Return False for any other node."""
        rule = _ON_ELEMENTS.get(proto.op_type)
        if rule is None:
            return False
        values = [[] if name in self.constants else self._elements(name) for name in proto.input]
        if not any(len(elements) > 1 for elements in values):
            return False
        values = [
            elements or (self._elements(name) if name in self.constants and self.constants[name].ndim == 1 else [])
            for elements, name in zip(values, proto.input, strict=True)
        ]
        return rule(self, proto, values)

    def _take(self, proto: Any, values: Elements) -> bool:
        """Follow Gather and Slice."""
        feeds = {proto.input[0]: np.arange(len(values[0]))}
        feeds |= {name: self.constants[name] for name in proto.input[1:] if name in self.constants}
        if len(feeds) < len(set(filter(None, proto.input))):
            return False
        try:
            places = evaluate(proto, feeds, self._opsets)[0]
        except Exception:  # the check of the whole model reports the node
            return False
        self._shape_of([values[0][at] for at in places.reshape(-1)], places.shape, proto.output[0])
        return True

    def _where(self, proto: Any, values: Elements) -> bool:
        if len({len(elements) for elements in values}) > 1 or any(isinstance(flag, str) for flag in values[0]):
            return False
        elements = [yes if flag else no for flag, yes, no in zip(*values, strict=True)]
        self._shape_of(elements, (len(elements),), proto.output[0])
        return True

    def _equal(self, proto: Any, values: Elements) -> bool:
        """Follow an Equal between sizes known only at run time and negative numbers."""
        if len(values[0]) != len(values[1]):
            return False
        pairs = list(zip(*values, strict=True))
        if any(isinstance(first, str) and (isinstance(second, str) or second >= 0)
               for pair in pairs for first, second in (pair, pair[::-1])):  # fmt: skip
            return False
        self._constant_of(proto.output[0], np.array([first == second for first, second in pairs]))
        return True

    def _shape_of(self, values: Sequence[int | str], shape: Sequence[int], name: str) -> None:
        """Add a tensor with these elements."""
        if all(isinstance(element, int) for element in values):
            self._constant_of(name, np.array(values, np.int64).reshape(shape))
            return
        parts = [self._number_of(element, f"{name}/{at}") for at, element in enumerate(values)]
        if len(shape) == 1 and len(parts) > 1:
            self._plain("Concat", parts, name, axis=0)
        else:
            self._plain("Reshape", [parts[0], self._constant_of(f"{name}/shape", np.array(shape, np.int64))], name)


def _within(operator: str, limits: Iterable[Limits]) -> bool:
    """Check whether results at the limits equal those of unbounded integers."""
    values = [end for pair in limits for end in pair]
    if any(end.size > MAX_FOLDED for end in values):
        return False
    if operator == "ReduceProd":
        return all(end.size > 0 and end.min() >= 0 and end.astype(np.float64).prod() < _EXACT for end in values)
    return operator not in {"Add", *_BY_SIGN} or all((np.abs(end.astype(np.float64)) < _EXACT).all() for end in values)


def _same(before: Values, after: Values) -> bool:
    """Check whether a Cast changed numbers by less than 1."""
    return bool((np.abs(after.astype(np.float64) - before.astype(np.float64)) < 1).all())


_ON_ELEMENTS: Mapping[str, Callable[[OpenShapes, Any, Elements], bool]] = {
    "Equal": OpenShapes._equal,
    "Gather": OpenShapes._take,
    "Slice": OpenShapes._take,
    "Where": OpenShapes._where,
}
