"""Windows that slide over an image: of Conv and of pooling."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from toolchain.ir.graph import TensorIR
from toolchain.onnx_frontend.copies import copy, steps
from toolchain.onnx_frontend.node import Node


class Windows(NamedTuple):
    """Per spatial dimension."""

    kernel: tuple[int, ...]
    output: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]


def windows(node: Node, image: Sequence[int], kernel: Sequence[int], output: Sequence[int]) -> Windows:
    """The geometry that the attributes of a node give for an image (batch, channels, spatial...)."""
    rank = len(image) - 2
    strides = tuple(node.attribute("strides", [1] * rank))
    dilations = tuple(node.attribute("dilations", [1] * rank))
    pads = node.attribute("pads", [0] * 2 * rank)
    before, after = list(pads[:rank]), list(pads[rank:])
    mode = node.attribute("auto_pad", "NOTSET")
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        node.refuse(f"attribute auto_pad={mode}: supported are NOTSET, VALID, SAME_UPPER, SAME_LOWER")
    for axis in range(rank):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        need = (output[axis] - 1) * strides[axis] + reach - image[2 + axis]
        if mode.startswith("SAME"):
            small, large = max(need, 0) // 2, max(need, 0) - max(need, 0) // 2
            before[axis], after[axis] = (small, large) if mode == "SAME_UPPER" else (large, small)
        elif mode == "VALID":
            before[axis] = after[axis] = 0
        after[axis] = max(after[axis], need - before[axis])  # ceil_mode reaches beyond the padding
    return Windows(tuple(kernel), tuple(output), strides, dilations, tuple(before), tuple(after))


def padded(node: Node, x: TensorIR, before: Sequence[int], after: Sequence[int], value: float) -> TensorIR:
    """The tensor with `value` around it."""
    if not any((*before, *after)):
        return x
    shape = tuple(low + size + high for low, size, high in zip(before, x.shape, after, strict=True))
    out = node.temporary(shape, x.dtype)
    _fill(node, x, out, before, value)
    return out


def _fill(node: Node, x: TensorIR, out: TensorIR, before: Sequence[int], value: float) -> None:
    border = node.weight(np.full(out.shape[-1:], value), x.dtype)
    copy(node, border, out, out.shape, [*[0] * (len(out.shape) - 1), 1], steps(out.shape))
    put = steps(out.shape)
    at = sum(low * step for low, step in zip(before, put, strict=True))
    copy(node, x, out, x.shape, steps(x.shape), put, at_out=at)


def pad_into(node: Node, x: TensorIR, out: TensorIR, before: Sequence[int], value: float) -> None:
    """The tensor into a larger one that is `value` elsewhere."""
    _fill(node, x, out, before, value)


def rows_of_windows(node: Node, x: TensorIR, shape: Windows) -> TensorIR:
    """All windows of a padded image, one row each: (batch, output..., channels, kernel...)."""
    take = steps(x.shape)
    inner = [step * distance for step, distance in zip(take[2:], shape.dilations, strict=True)]
    outer = [step * distance for step, distance in zip(take[2:], shape.strides, strict=True)]
    dims = (x.shape[0], *shape.output, x.shape[1], *shape.kernel)
    target = node.temporary(dims, x.dtype)
    copy(node, x, target, dims, (take[0], *outer, take[1], *inner), steps(dims))
    return target


def patches(node: Node, x: TensorIR, shape: Windows, *, windows_last: bool, border: float = 0) -> TensorIR:
    """All windows: (batch, channels, kernel..., output...) or, windows first, (batch, channels, output...,
    kernel...)."""
    x = padded(node, x, (0, 0, *shape.before), (0, 0, *shape.after), border)
    batch, channels = x.shape[:2]
    take = steps(x.shape)
    inner = [step * distance for step, distance in zip(take[2:], shape.dilations, strict=True)]
    outer = [step * distance for step, distance in zip(take[2:], shape.strides, strict=True)]
    dims, taken = (
        ((batch, channels, *shape.kernel, *shape.output), (*take[:2], *inner, *outer))
        if windows_last
        else ((batch, channels, *shape.output, *shape.kernel), (*take[:2], *outer, *inner))
    )
    if math.prod(shape.kernel) == 1 and not any(stride > 1 for stride in shape.strides):
        return node.view(x, dims)
    target = node.temporary(dims, x.dtype)
    copy(node, x, target, dims, taken, steps(dims))
    return target
