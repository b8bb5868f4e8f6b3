"""Operators along an axis, which is moved to the end, since the device works on rows."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from toolchain.ir.data_types import FLOATS
from toolchain.ir.graph import TensorIR
from toolchain.onnx_model.node import Node
from toolchain.onnx_operators.copies import broadcast_tensor, copy, steps, transpose_tensor
from toolchain.onnx_operators.elementwise import apply, apply_unary


def softmax(node: Node) -> None:
    source, out = node.tensor(0), node.output()
    axis = node.axis(len(source.shape), -1)
    order = [*(a for a in range(len(source.shape)) if a != axis), axis]
    n = source.shape[axis]
    if order == sorted(order):
        node.layer("SOFTMAX", [source], out, m=source.elements // n, n=n)
        return
    moved = transpose_tensor(node, source, order)
    result = node.temporary(moved.shape, source.dtype)
    node.layer("SOFTMAX", [moved], result, m=source.elements // n, n=n)
    transpose_tensor(node, result, [order.index(a) for a in range(len(order))], out)


def normalization(function: str) -> Callable[[Node], None]:
    def lower(node: Node) -> None:
        x, out = node.tensor(0), node.output()
        if node.attribute("stash_type", 1) != 1:
            node.refuse(f"attribute stash_type={node.attribute('stash_type')}: supported is 1 (float32)")
        axis = node.axis(len(x.shape), -1)
        m, n = math.prod(x.shape[:axis]), math.prod(x.shape[axis:])
        operands = [node.tensor(1), *([node.tensor(2)] if function == "LAYER" and node.has(2) else [])]
        for weight in operands:
            if weight.dtype is not x.dtype:
                node.refuse(f"scale or bias {weight.id}: must be of type {x.dtype.name}")
        epsilon = float(node.attribute("epsilon", 1e-5))
        rows = [_row(node, weight, x.shape[axis:]) for weight in operands]
        steps: list[tuple[str, TensorIR]] = []
        if any(row is None for row in rows):  # weights that differ between rows are applied after normalization
            steps = [(name, weight) for name, weight in zip(("MUL", "ADD"), operands, strict=False)]
            rows = []
        weights = [row for row in rows if row is not None] or [node.weight(np.ones(n), x.dtype)]
        if function == "LAYER" and len(weights) == 1:
            weights.append(node.weight(np.zeros(n), x.dtype))
        targets = [*(node.temporary(x.shape, x.dtype) for _ in steps), out]
        node.layer("LAYERNORM", [x, *weights], targets[0], function=function, m=m, n=n, epsilon=epsilon)
        for (name, weight), before, after in zip(steps, targets, targets[1:], strict=False):
            apply(node, name, before, weight, after)
        if len([name for name in node.proto.output if name]) > 1:
            _statistics(node, x, m, n, epsilon)

    return lower


def _row(node: Node, weight: TensorIR, shape: tuple[int, ...]) -> TensorIR | None:
    """Return a scale or bias with one element per element of a row; None if rows differ."""
    lead, tail = weight.shape[: -len(shape)], weight.shape[-len(shape) :]
    if math.prod(lead) != 1:
        return None
    if math.prod(tail) == math.prod(shape):
        return weight
    return broadcast_tensor(node, node.view(weight, tail) if lead else weight, shape)


def _statistics(node: Node, x: TensorIR, m: int, n: int, epsilon: float) -> None:
    """Emit the outputs Mean and InvStdDev = 1 / sqrt(variance + epsilon), per row."""
    mean = node.output(1) if node.proto.output[1] else node.temporary((m, 1), x.dtype)
    node.layer("REDUCE", [x], mean, function="MEAN", m=m, n=n)
    if len(node.proto.output) < 3 or not node.proto.output[2]:
        return
    deviation, square = (node.temporary((m, n), x.dtype) for _ in range(2))
    variance, shifted, root = (node.temporary((m, 1), x.dtype) for _ in range(3))
    node.layer("ELTWISE", [x, mean], deviation, function="SUB", m=m, n=n, broadcast="COLUMN")
    apply(node, "MUL", deviation, deviation, square)
    node.layer("REDUCE", [square], variance, function="MEAN", m=m, n=n)
    apply(node, "ADD", variance, node.scalar(epsilon, x.dtype), shifted)
    node.layer("ELTWISE", [shifted], root, function="SQRT", m=1, n=m)
    inverse = node.output(2)
    apply(node, "DIV", node.weight(np.ones(inverse.shape), x.dtype), node.view(root, inverse.shape), inverse)


def batch_normalization(node: Node) -> None:
    """Emit y = x a + b with a = scale / sqrt(var + epsilon) and b = bias - mean a, computed once per channel."""
    if node.attribute("training_mode", 0):
        node.refuse("attribute training_mode=1: supported is 0")
    x, out = node.tensor(0), node.output()
    constants = [node.constant(index) for index in range(1, 5)]
    epsilon = float(node.attribute("epsilon", 1e-5))
    spatial = (1,) * (len(x.shape) - 2)
    shape = (x.shape[1], *spatial)
    if all(values is not None for values in constants):
        scale, bias, mean, variance = (np.asarray(values, np.float64) for values in constants)
        factor = scale / np.sqrt(variance + epsilon)
        multiplier = node.weight(factor.reshape(shape), x.dtype)
        offset = node.weight((bias - mean * factor).reshape(shape), x.dtype)
    else:
        multiplier, offset = _factors(node, epsilon, shape)
    scaled = apply(node, "MUL", x, multiplier, node.temporary(out.shape, out.dtype))
    apply(node, "ADD", scaled, offset, out)


def _factors(node: Node, epsilon: float, shape: tuple[int, ...]) -> tuple[TensorIR, TensorIR]:
    scale, bias, mean, variance = (node.tensor(index) for index in range(1, 5))
    if len({tensor.dtype for tensor in (scale, bias, mean, variance, node.tensor(0))}) > 1:
        node.refuse("scale, bias, mean and variance must have the type of the input")

    shifted = apply(node, "ADD", variance, node.scalar(epsilon, scale.dtype))
    root = apply_unary(node, "SQRT", shifted, node.temporary(scale.shape, scale.dtype))
    multiplier = apply(node, "DIV", scale, root)
    offset = apply(node, "SUB", bias, apply(node, "MUL", mean, multiplier))
    return node.view(multiplier, shape), node.view(offset, shape)


def reduction(function: str) -> Callable[[Node], None]:
    def lower(node: Node) -> None:
        source, out = node.tensor(0), node.output()
        if out.dtype not in FLOATS and function == "MEAN":
            node.refuse(f"data type {out.dtype.name} is not supported")
        if node.info(0).type == "BOOL" and function != "MAX":
            node.refuse("data type BOOL is not supported")
        axes = _axes(node, len(source.shape))
        if axes is None:
            node.view(source, out.shape, out.id)
            return
        _reduce(node, function, source, axes, out)

    return lower


def _axes(node: Node, rank: int) -> list[int] | None:
    """Return the axes of a reduction; None if nothing is reduced."""
    axes = node.attribute("axes")
    if axes is None and node.has(1):
        axes = [int(axis) for axis in node.needed(1, "axes").reshape(-1)]
    if not axes:
        return None if node.attribute("noop_with_empty_axes", 0) else list(range(rank))
    return sorted(int(axis) % rank for axis in axes)


def _reduce(node: Node, function: str, source: TensorIR, axes: Sequence[int], out: TensorIR) -> None:
    order = [*(a for a in range(len(source.shape)) if a not in axes), *axes]
    moved = transpose_tensor(node, source, order)
    n = math.prod(source.shape[a] for a in axes)
    m, parts = source.elements // n, _parts(n) if function != "ARGMAX" else 1
    if parts > 1:  # a whole row must fit the scratchpad
        once = node.temporary((m * parts, 1), source.dtype)
        node.layer("REDUCE", [moved], once, function=function, m=m * parts, n=n // parts)
        moved, n = once, parts
    node.layer("REDUCE", [moved], out, function=function, m=m, n=n)


LONG = 1 << 16
"""Maximum number of elements of a row reduced at once; longer rows are split into equal parts, whose results are
reduced."""


def _parts(n: int) -> int:
    """Return the minimum number of equal parts of at most `LONG` elements; 1 if there is no such split."""
    return next((count for count in range(-(-n // LONG), math.isqrt(n) + 1) if n % count == 0), 1)


def argmax(node: Node) -> None:
    """Emit the index of the first maximum; for the last one, the axis is reversed."""
    source, out = node.tensor(0), node.output()
    axis = node.axis(len(source.shape), 0)
    if not node.attribute("select_last_index", 0):
        _reduce(node, "ARGMAX", source, [axis], out)
        return
    backwards, index = node.temporary(source.shape, source.dtype), node.temporary(out.shape, out.dtype)
    put, last = steps(source.shape), source.shape[axis] - 1
    take = (*put[:axis], -put[axis], *put[axis + 1 :])
    copy(node, source, backwards, source.shape, take, put, at_in=last * put[axis])
    _reduce(node, "ARGMAX", backwards, [axis], index)
    apply(node, "SUB", node.weight(np.full(out.shape, last), out.dtype), index, out)


def global_average(node: Node) -> None:
    source = node.tensor(0)
    _reduce(node, "MEAN", source, range(2, len(source.shape)), node.output())
