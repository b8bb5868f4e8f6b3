"""Decompositions of window pools and global pools into convolutions, slices and reductions."""

import math
from collections.abc import Sequence

import numpy as np

from toolchain.onnx_nodes.parts import Decomposition, Tensor, places_along
from toolchain.onnx_nodes.view import NodeView


def global_lp_pool(parts: Decomposition) -> None:
    node = parts.node
    p, axes = int(node.attribute("p", 2)), [*range(2, len(node.shape(0)))]
    _root(parts, parts.make("ReduceSum", _powers(parts.input(0), p), axes), p)


def global_max_pool(parts: Decomposition) -> None:
    parts.result("ReduceMax", parts.input(0), [*range(2, len(parts.node.shape(0)))])


def _windows(node: NodeView) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return (kernel, strides, dilations, pads) of a pool, with pads extended to the range of the output windows."""
    kernel, image = list(node.attribute("kernel_shape")), node.shape(0)[2:]
    strides, dilations = (list(node.attribute(name, [1] * len(kernel))) for name in ("strides", "dilations"))
    mode, pads = str(node.attribute("auto_pad", "NOTSET")), list(node.attribute("pads", [0] * 2 * len(kernel)))
    sides = zip(image, node.out_info().shape[2:], kernel, strides, dilations, strict=True)
    for axis, (size, windows, taps, stride, dilation) in enumerate(sides):
        total = (windows - 1) * stride + (taps - 1) * dilation + 1 - size
        if mode.startswith("SAME"):
            pads[axis] = max(total, 0) // 2 if mode == "SAME_UPPER" else (max(total, 0) + 1) // 2
        pads[len(kernel) + axis] = max(total - pads[axis], 0)
    return kernel, strides, dilations, pads


def has_indices(node: NodeView) -> bool:
    """Check whether a MaxPool returns the indices of the maxima."""
    return node.gives(1)


def maximum_with_places(parts: Decomposition) -> None:
    """Compose MaxPool with indices: for each kernel position, the elements of all windows are a slice of the image; the
    slices are compared."""
    node, shape = parts.node, parts.node.shape(0)
    kernel, strides, dilations, pads = _windows(node)
    rank, sizes = len(kernel), node.out_info().shape[2:]
    lowest = -math.inf if np.dtype(parts.kind).kind == "f" else np.iinfo(parts.kind).min
    x, widths = parts.input(0), [0, 0, *pads[:rank], 0, 0, *pads[rank:]]
    if any(pads):
        x = parts.make("Pad", x, widths, lowest)
    slices, steps = [], _steps(node, shape[2:])
    for at in np.ndindex(*kernel):
        starts = [place * dilation for place, dilation in zip(at, dilations, strict=True)]
        ends = [start + (size - 1) * stride + 1 for start, size, stride in zip(starts, sizes, strides, strict=True)]
        part = parts.make("Slice", x, starts, ends, [*range(2, 2 + rank)], strides)
        slices.append(parts.make("Unsqueeze", part, [0]))
    stacked = parts.joined(slices, 0)
    if node.gives(0):
        parts.result("ReduceMax", stacked, [0], keepdims=0)
    first = np.arange(math.prod(shape[:2])).reshape(*shape[:2], *[1] * rank) * math.prod(shape[2:])
    inside = np.zeros([1] * rank, np.int64)
    for axis in range(rank):
        inside = inside + (places_along(axis, sizes) * strides[axis] - pads[axis]) * steps[axis]
    tap_offsets = [int(np.multiply(dilations, steps) @ at) for at in np.ndindex(*kernel)]
    offsets = parts.make("Gather", tap_offsets, parts.make("ArgMax", stacked, axis=0, keepdims=0))
    parts.result("Add", first + inside, offsets, index=1)


def _steps(node: NodeView, image: Sequence[int]) -> list[int]:
    """Return the index distance between adjacent pixels along each axis, in MaxPool's indices."""
    sizes = list(image)
    if node.attribute("storage_order", 0):
        return [math.prod(sizes[:axis]) for axis in range(len(sizes))]
    return [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]


def unpool(parts: Decomposition) -> None:
    """Compose MaxUnpool: scatter each element to its index in the image covered by the windows. A larger requested
    shape is padded with zeros at the end."""
    node, shape, out = parts.node, parts.node.shape(0), parts.node.out_info().shape
    kernel = node.attribute("kernel_shape")
    strides, pads = (
        list(node.attribute(name, [default] * 2 * len(kernel))) for name, default in (("strides", 1), ("pads", 0))
    )
    covered = list(shape[:2])
    for axis, (size, taps) in enumerate(zip(shape[2:], kernel, strict=True)):
        covered.append((size - 1) * strides[axis] + taps - pads[axis] - pads[len(kernel) + axis])
    if any(size > length for size, length in zip(covered, out, strict=True)):
        node.refuse(f"output_shape {list(out)}: must be at least {covered}, which the windows cover")
    node.check_constant(*covered)
    background = np.zeros(math.prod(covered), parts.kind)
    places, values = (parts.input(index).reshape(math.prod(shape)) for index in (1, 0))
    image = parts.make("ScatterElements", background, places, values, axis=0).reshape(*covered)
    parts.result("Pad", image, [*[0] * len(out), *(length - size for size, length in zip(covered, out, strict=True))])


def lp_pool(parts: Decomposition) -> None:
    """Compose LpPool: the root of sums of powers, by a zero-padded convolution with ones per channel."""
    node, channels, p = parts.node, parts.node.shape(0)[1], int(parts.node.attribute("p", 2))
    kernel, strides, dilations, pads = _windows(node)
    node.check_constant(channels, *kernel)
    box = np.ones((channels, 1, *kernel), parts.kind)
    sums = parts.make("Conv", _powers(parts.input(0), p), box, group=channels, kernel_shape=kernel, strides=strides,
                      dilations=dilations, pads=pads)  # fmt: skip
    _root(parts, sums, p)


def _powers(x: Tensor, p: int) -> Tensor:
    return x * x if p == 2 else x.parts.make("Pow", abs(x), p)


def _root(parts: Decomposition, sums: Tensor, p: int) -> None:
    """Add the result, the p-th root."""
    parts.output(parts.make("Sqrt", sums) if p == 2 else parts.make("Pow", sums, 1 / p))
