"""Operators that only move elements or change the shape."""

import numpy as np

from npu_device.abi.opcodes import DataType
from toolchain.onnx_model.node import Node
from toolchain.onnx_operators.copies import broadcast_tensor, copy, steps, transpose_tensor
from toolchain.onnx_operators.images import pad_into


def emit_view(node: Node) -> None:
    """Emit Reshape, Flatten, Squeeze, Unsqueeze and Identity as views."""
    node.view(node.tensor(0), node.out_info().shape, node.proto.output[0])


def transpose(node: Node) -> None:
    source = node.tensor(0)
    order = node.attribute("perm", list(range(len(source.shape)))[::-1])
    transpose_tensor(node, source, order, node.output())


def expand(node: Node) -> None:
    out = node.output()
    broadcast_tensor(node, node.tensor(0), out.shape, out)


def concat(node: Node) -> None:
    out = node.output()
    axis = node.axis(len(out.shape))
    at = 0
    for index in range(len(node.proto.input)):
        if 0 in node.shape(index):
            continue
        part = node.tensor(index)
        copy(node, part, out, part.shape, steps(part.shape), steps(out.shape), at_out=at * steps(out.shape)[axis])
        at += part.shape[axis]


def split(node: Node) -> None:
    source = node.tensor(0)
    axis = node.axis(len(source.shape), 0)
    at = 0
    for index in range(len(node.proto.output)):
        if 0 in node.out_info(index).shape:
            continue
        part = node.output(index)
        copy(
            node, source, part, part.shape, steps(source.shape), steps(part.shape), at_in=at * steps(source.shape)[axis]
        )
        at += part.shape[axis]


def slice_(node: Node) -> None:
    source, out = node.tensor(0), node.output()
    starts, ends = node.needed(1, "starts").reshape(-1), node.needed(2, "ends").reshape(-1)
    axes = node.needed(3, "axes").reshape(-1) if node.has(3) else np.arange(len(starts))
    strides = node.needed(4, "steps").reshape(-1) if node.has(4) else np.ones(len(starts), np.int64)
    counts = [len(values) for values in (starts, ends, axes, strides)]
    if len(set(counts)) > 1:
        node.refuse(
            f"{', '.join(map(str, counts))} starts, ends, axes and steps: must be one number of each: export again"
        )
    take, at = list(steps(source.shape)), 0
    for start, end, axis, step in zip(starts, ends, axes, strides, strict=True):
        axis = int(axis) % len(source.shape)
        first = max(slice(int(start), int(end), int(step)).indices(source.shape[axis])[0], 0)
        at += first * take[axis]
        take[axis] *= int(step)
    copy(node, source, out, out.shape, take, steps(out.shape), at_in=at)


def tile(node: Node) -> None:
    source, out = node.tensor(0), node.output()
    repeats = [int(count) for count in node.needed(1, "repeats")]
    dims = [size for pair in zip(repeats, source.shape, strict=True) for size in pair]
    take = [step for stride in steps(source.shape) for step in (0, stride)]
    copy(node, source, out, dims, take, steps(dims))


def repeats_or_crops(node: Node) -> bool:
    """Check whether a Pad repeats or crops the tensor."""
    return node.attribute("mode", "constant") != "constant" or bool((node.needed(1, "pads") < 0).any())


def pad(node: Node) -> None:
    source, out = node.tensor(0), node.output()
    pads = [int(size) for size in node.needed(1, "pads")]
    value = float(node.needed(2, "constant_value").reshape(())) if node.has(2) else 0.0
    axes = (
        [int(axis) % len(source.shape) for axis in node.needed(3, "axes")] if node.has(3) else range(len(source.shape))
    )
    before = [0] * len(source.shape)
    for index, axis in enumerate(axes):
        before[axis] = pads[index]
    pad_into(node, source, out, before, value)


def trilu(node: Node) -> None:
    """Emit a triangle of the source, and zeros."""
    source, out = node.tensor(0), node.output()
    k = int(node.needed(1, "k").reshape(())) if node.has(1) else 0
    square = np.ones(source.shape[-2:], np.uint8)
    triangle = node.weight(np.triu(square, k) if node.attribute("upper", 1) else np.tril(square, k), DataType.UINT8)
    mask, zeros = (broadcast_tensor(node, operand, out.shape) for operand in (triangle, node.scalar(0, source.dtype)))
    node.layer("ELTWISE", [mask, source, zeros], out, function="WHERE", m=1, n=out.elements)
