"""Tensors with more rows than the run fills: which they are, and what may follow.

An operator that keeps rows apart leaves the rows that count in front. One that joins them would mix those that count
with those that do not, and is refused.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import helper

from toolchain.errors import ModelError
from toolchain.ir.graph import Values
from toolchain.onnx_nodes.evaluation import TensorInfo

APART = frozenset((
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Div", "Equal", "Erf", "Exp", "Floor", "Greater", "GreaterOrEqual",
    "Identity", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal",
    "Relu", "Round", "Sigmoid", "Sign", "Sqrt", "Sub", "Sum", "Tanh", "Where",
))  # fmt: skip
"""Operators whose inputs are broadcast to their output, element by element."""
_SHAPED = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")


class OpenRows:
    """Tensor -> dimension of its rows."""

    def __init__(self) -> None:
        self._axes: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._axes

    def begin(self, name: str, axis: int) -> None:
        """A dimension of a tensor has rows that may not count."""
        self._axes[name] = axis

    def follow(self, proto: Any, info: Mapping[str, TensorInfo], known: Mapping[str, Values]) -> None:
        """What a node makes of such tensors. ModelError: it joins their rows."""
        inputs = [name for name in proto.input if name in self._axes]
        if not inputs:
            return
        axes = {_axis(proto, at, self._axes, info, known) for at, name in enumerate(proto.input) if name in self._axes}
        if len(axes) > 1 or None in axes:
            raise ModelError(
                f"it joins rows of {inputs[0]}, of which the run decides how many count: cut the model before it, "
                f"{inputs[0]} an output"
            )
        self._axes.update((name, axis) for name in proto.output if name for axis in axes if axis is not None)


def _axis(
    proto: Any, at: int, axes: Mapping[str, int], info: Mapping[str, TensorInfo], known: Mapping[str, Values]
) -> int | None:
    """The dimension of the output that has the rows of input `at`; None: there is none."""
    name, kind = proto.input[at], proto.op_type
    made = info.get(proto.output[0])
    if made is None or name not in info:
        return None
    axis, shape, out = axes[name], info[name].shape, made.shape
    attributes = {one.name: helper.get_attribute_value(one) for one in proto.attribute}
    if kind in APART:
        axis += len(out) - len(shape)
        return axis if out[axis] == shape[axes[name]] else None
    if kind in _SHAPED and at == 0:
        before = math.prod(shape[:axis])
        found = (one for one, size in enumerate(out) if size == shape[axis] and math.prod(out[:one]) == before)
        return next(found, None)
    if kind == "Transpose":
        order = attributes.get("perm") or list(range(len(shape)))[::-1]
        return int(list(order).index(axis))
    if kind == "Gather":
        along = int(attributes.get("axis", 0)) % len(info[proto.input[0]].shape)
        if at == 1:
            return along + axis
        return None if axis == along else axis + (len(out) - len(shape) if axis > along else 0)
    if kind == "GatherND" and at == 1 and axis < len(shape) - 1:
        return axis
    if kind == "Concat":
        return axis if int(attributes["axis"]) % len(shape) != axis else None
    if kind in ("Softmax", "LogSoftmax"):
        return axis if int(attributes.get("axis", -1)) % len(shape) != axis else None
    if kind == "Slice" and at == 0:
        return axis if _in_front(proto, axis, len(shape), known) else None
    return None


def _in_front(proto: Any, axis: int, rank: int, known: Mapping[str, Values]) -> bool:
    """Whether a Slice takes the first rows, or all."""
    names = [*proto.input[1:], "", "", "", ""][:4]
    if any(name and name not in known for name in names):
        return False
    starts = known[names[0]].reshape(-1)
    along = known[names[2]].reshape(-1) % rank if names[2] else np.arange(len(starts))
    steps = known[names[3]].reshape(-1) if names[3] else np.ones(len(starts), np.int64)
    return all(one != axis or (first == 0 and step == 1) for one, first, step in zip(along, starts, steps, strict=True))
