"""Copies and broadcasts of tensors, as used by Transpose, Expand, Slice and others."""

import math
from collections.abc import Sequence

import numpy as np

from toolchain.ir.data_types import PACKED
from toolchain.ir.graph import Attribute, TensorIR, steps
from toolchain.onnx_model.node import Node


def copy(
    node: Node,
    source: TensorIR,
    target: TensorIR,
    dims: Sequence[int],
    take: Sequence[int],
    put: Sequence[int],
    at_in: int = 0,
    at_out: int = 0,
) -> None:
    """Emit a COPY layer of `dims` elements, with strides `take` in the source and `put` in the target."""
    loops = [(d, a, b) for d, a, b in zip(dims, take, put, strict=True) if d != 1] or [(1, 1, 1)]
    merged = [loops[0]]
    for size, a, b in loops[1:]:
        outer, outer_a, outer_b = merged[-1]
        if outer_a == size * a and outer_b == size * b:
            merged[-1] = (outer * size, a, b)
        else:
            merged.append((size, a, b))
    columns = tuple(zip(*merged, strict=True))
    attributes: dict[str, Attribute] = {"dims": columns[0], "from": columns[1], "to": columns[2]}
    if at_in:
        attributes["at_in"] = at_in
    if at_out:
        attributes["at_out"] = at_out
    node.layer("COPY", [source], target, **attributes)


def transpose_tensor(node: Node, source: TensorIR, order: Sequence[int], target: TensorIR | None = None) -> TensorIR:
    """Return the tensor with permuted axes. Elements smaller than a byte are moved at compile time."""
    shape = tuple(source.shape[axis] for axis in order)
    if source.dtype in PACKED.values():
        return node.weight(np.transpose(node.values(source), order), source.dtype)
    if target is None:
        if list(order) == sorted(order):
            return source
        target = node.temporary(shape, source.dtype)
    strides = steps(source.shape)
    copy(node, source, target, shape, [strides[axis] for axis in order], steps(shape))
    return target


def broadcast_steps(shape: Sequence[int], target_shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides that read a tensor with a broadcast shape, elements."""
    padded = (*[1] * (len(target_shape) - len(shape)), *shape)
    return tuple(0 if size == 1 else step for size, step in zip(padded, steps(padded), strict=True))


def check_broadcast(node: Node, source: TensorIR, shape: Sequence[int]) -> None:
    """Refuse a tensor that neither has the elements of a shape nor broadcasts to it."""
    tail = source.shape[max(0, len(source.shape) - len(shape)) :]
    leading_ones = source.elements == math.prod(tail)
    fits = leading_ones and all(size in (1, goal) for size, goal in zip(reversed(tail), reversed(shape), strict=False))
    if not fits and source.elements != math.prod(shape):
        node.refuse(f"{source.id} of shape {list(source.shape)} does not broadcast to {list(shape)}")


def broadcast_tensor(node: Node, source: TensorIR, shape: Sequence[int], target: TensorIR | None = None) -> TensorIR:
    """Return the tensor broadcast to a shape."""
    check_broadcast(node, source, shape)
    if target is None:
        if math.prod(source.shape) == math.prod(shape):
            return source if source.shape == tuple(shape) else node.view(source, shape)
        target = node.temporary(shape, source.dtype)
    copy(node, source, target, shape, broadcast_steps(source.shape, shape), steps(shape))
    return target
