"""Decompositions of window pools and global pools into convolutions, slices and reductions."""

import math
from collections.abc import Sequence

import numpy as np

from toolchain.onnx_nodes.parts import Decomposition
from toolchain.onnx_nodes.view import NodeView


def global_lp_pool(parts: Decomposition) -> None:
    node = parts.node
    axes = parts.integers(*range(2, len(node.shape(0))))
    p = int(node.attribute("p", 2))
    _root(parts, parts.make("ReduceSum", _powers(parts, parts.input(0), p), axes), p)


def global_max_pool(parts: Decomposition) -> None:
    axes = parts.integers(*range(2, len(parts.node.shape(0))))
    parts.result("ReduceMax", parts.input(0), axes)


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
        x = parts.make("Pad", x, parts.integers(*widths), parts.number(lowest))
    along, slices, steps = parts.integers(*range(2, 2 + rank)), [], _steps(node, shape[2:])
    for at in np.ndindex(*kernel):
        starts = [place * dilation for place, dilation in zip(at, dilations, strict=True)]
        ends = [start + (size - 1) * stride + 1 for start, size, stride in zip(starts, sizes, strides, strict=True)]
        part = parts.make("Slice", x, parts.integers(*starts), parts.integers(*ends), along, parts.integers(*strides))
        slices.append(parts.make("Unsqueeze", part, parts.integers(0)))
    stacked = parts.joined(slices, 0)
    if node.gives(0):
        parts.result("ReduceMax", stacked, parts.integers(0), keepdims=0)
    first = np.arange(math.prod(shape[:2])).reshape(*shape[:2], *[1] * rank) * math.prod(shape[2:])
    inside = np.zeros([1] * rank, np.int64)
    for axis, size in enumerate(sizes):
        line = (np.arange(size) * strides[axis] - pads[axis]) * steps[axis]
        inside = inside + line.reshape([-1 if dim == axis else 1 for dim in range(rank)])
    tap_offsets = [sum(place * dilation * step for place, dilation, step in zip(at, dilations, steps, strict=True))
            for at in np.ndindex(*kernel)]  # fmt: skip
    offsets = parts.make("Gather", parts.integers(*tap_offsets), parts.make("ArgMax", stacked, axis=0, keepdims=0))
    parts.result("Add", parts.constant(first + inside), offsets, index=1)


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
    parts.node.check_constant(*covered)
    background = parts.constant(np.zeros(math.prod(covered), parts.kind))
    places, values = (parts.reshaped(parts.input(index), math.prod(shape)) for index in (1, 0))
    image = parts.reshaped(parts.make("ScatterElements", background, places, values, axis=0), *covered)
    trailing = [length - size for size, length in zip(covered, out, strict=True)]
    parts.result("Pad", image, parts.integers(*[0] * len(out), *trailing))


def lp_pool(parts: Decomposition) -> None:
    """Compose LpPool: the root of sums of powers, by a zero-padded convolution with ones per channel."""
    node, channels, p = parts.node, parts.node.shape(0)[1], int(parts.node.attribute("p", 2))
    kernel, strides, dilations, pads = _windows(node)
    parts.node.check_constant(channels, *kernel)
    box = parts.constant(np.ones((channels, 1, *kernel), parts.kind))
    powers = _powers(parts, parts.input(0), p)
    sums = parts.make("Conv", powers, box, group=channels, kernel_shape=kernel, strides=strides, dilations=dilations,
                      pads=pads)  # fmt: skip
    _root(parts, sums, p)


def _powers(parts: Decomposition, x: str, p: int) -> str:
    return parts.make("Mul", x, x) if p == 2 else parts.make("Pow", parts.make("Abs", x), parts.number(p))


def _root(parts: Decomposition, sums: str, p: int) -> None:
    """Add the result, the p-th root."""
    if p == 2:
        parts.result("Sqrt", sums)
    else:
        parts.result("Pow", sums, parts.number(1 / p))
