"""Decompositions of image operators into products and copies: Resize, ConvTranspose, LRN, Pad with repetition."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from toolchain.ir.graph import Values
from toolchain.onnx_nodes.parts import Decomposition, Tensor
from toolchain.onnx_nodes.view import NodeView

# -- Pad ---------------------------------------------------------------------------------------------------------------


def pad(parts: Decomposition) -> None:
    """Compose Pad axis by axis; negative pads crop."""
    node, x = parts.node, parts.input(0)
    shape, mode = node.shape(0), node.attribute("mode", "constant")
    rank = len(shape)
    pads = [int(size) for size in node.needed(1, "pads")]
    axes = [int(axis) % rank for axis in node.needed(3, "axes")] if node.has(3) else list(range(rank))
    if mode not in ("constant", "reflect", "edge", "wrap"):
        node.refuse(f"attribute mode={mode}: supported are constant, reflect, edge, wrap")
    amounts = [0] * 2 * rank
    for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        start, end = max(0, -before), shape[axis] - max(0, -after)
        if (start, end) != (0, shape[axis]):
            x = x.slice(axis, start, end)
        widths = amounts[axis], amounts[rank + axis] = max(0, before), max(0, after)
        if mode != "constant" and any(widths):
            x = _take(x, axis, np.pad(np.arange(end - start), widths, mode=mode))
    if mode == "constant" and any(amounts):
        parts.result("Pad", x, amounts, *[parts.input(2)] if node.has(2) else [])
    else:
        parts.result("Identity", x)


def _take(x: Tensor, axis: int, order: Values) -> Tensor:
    """Return rows of an axis in the given order; runs of consecutive rows become slices."""
    runs = _runs([int(index) for index in order])
    if len(runs) > _RUNS:
        return x.parts.make("Gather", x, order.astype(np.int64), axis=axis)
    return x.parts.joined([x.slice(axis, first, first + step * count, step) for first, step, count in runs], axis)


_RUNS = 16
"""Maximum number of slices before a Gather replaces them."""


def _runs(order: list[int]) -> list[tuple[int, int, int]]:
    """Return (first, step, count) of each run with a step of 1 or -1."""
    runs: list[tuple[int, int, int]] = []
    for index in order:
        first, step, count = runs[-1] if runs else (index, 0, 0)
        step = index - first if count == 1 else step
        if count and abs(step) == 1 and index == first + step * count:
            runs[-1] = (first, step, count + 1)
        else:
            runs.append((index, 1, 1))
    return runs


# -- Resize ------------------------------------------------------------------------------------------------------------


def resize(parts: Decomposition) -> None:
    """Compose Resize axis by axis: a product with interpolation weights, or copies for nearest-neighbour."""
    node, x = parts.node, parts.input(0)
    shape, target = node.shape(0), node.out_info().shape
    rank, mode = len(shape), node.attribute("mode", "nearest")
    axes = [axis % rank for axis in node.attribute("axes", range(rank))]
    scales = _scales(node, shape, target, axes)
    roi = node.needed(1, "roi").astype(np.float64) if node.has(1) else np.zeros(0)
    now = list(shape)
    for index, axis in enumerate(axes):
        region = (float(roi[index]), float(roi[len(axes) + index])) if roi.size else (0.0, 1.0)
        at = _coordinates(node, shape[axis], target[axis], scales[index], region)
        if mode == "nearest":
            order = _nearest(node, at, shape[axis])
            if not np.array_equal(order, np.arange(shape[axis])):
                x = _pick(x, now, axis, order)
        else:
            weights = _weights(node, mode, at, shape[axis], scales[index])
            if weights.shape[0] != weights.shape[1] or not np.array_equal(weights, np.eye(len(weights))):
                x = _mix(x, now, axis, weights.astype(parts.kind))
        now[axis] = target[axis]
    parts.result("Identity", x)


def _scales(node: NodeView, shape: Sequence[int], target: Sequence[int], axes: Sequence[int]) -> list[float]:
    """Return output pixels per input pixel, for each axis."""
    if node.has(2) and (scales := node.needed(2, "scales")).size:
        return [float(scale) for scale in scales.reshape(-1)]
    policy = node.attribute("keep_aspect_ratio_policy", "stretch")
    target_scales = [target[axis] / shape[axis] for axis in axes]
    if policy == "stretch":
        return target_scales
    sizes = [int(size) for size in node.needed(3, "sizes")]
    ratios = [size / shape[axis] for size, axis in zip(sizes, axes, strict=True)]
    return [min(ratios) if policy == "not_larger" else max(ratios)] * len(axes)


def _coordinates(node: NodeView, size: int, length: int, scale: float, region: tuple[float, float]) -> Values:
    """Return the input coordinate of each output pixel."""
    mode = node.attribute("coordinate_transformation_mode", "half_pixel")
    x = np.arange(length, dtype=np.float64)
    match mode:
        case "half_pixel":
            return (x + 0.5) / scale - 0.5
        case "half_pixel_symmetric":
            exact = scale * size
            offset = size / 2 * (1 - length / exact)
            return offset + (x + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (x + 0.5) / scale - 0.5 if length > 1 else np.zeros(length)
        case "align_corners":
            exact = scale * size
            return x * (size - 1) / (exact - 1) if length > 1 else np.zeros(length)
        case "asymmetric":
            return x / scale
        case "tf_crop_and_resize":
            start, end = region
            if length > 1:
                at = start * (size - 1) + x * (end - start) * (size - 1) / (length - 1)
            else:
                at = np.full(length, 0.5 * (start + end) * (size - 1))
            if ((at < 0) | (at > size - 1)).any():
                node.refuse("roi reaches beyond the image: extrapolation is not supported")
            return at
    node.refuse(f"attribute coordinate_transformation_mode={mode} is not supported")


def _nearest(node: NodeView, at: Values, size: int) -> Values:
    mode = node.attribute("nearest_mode", "round_prefer_floor")
    rules: dict[str, Callable[[Values], Values]] = {
        "round_prefer_floor": lambda x: np.ceil(x - 0.5), "round_prefer_ceil": lambda x: np.floor(x + 0.5),
        "floor": np.floor, "ceil": np.ceil,
    }  # fmt: skip
    if mode not in rules:
        node.refuse(f"attribute nearest_mode={mode}: supported are {', '.join(rules)}")
    nearest = np.rint(at)
    exact = np.where(np.abs(at - nearest) < 1e-6, nearest, at)  # rounded as in fp32, like other implementations
    return np.clip(np.asarray(rules[mode](exact)), 0, size - 1).astype(np.int64)


def _weights(node: NodeView, mode: str, at: Values, size: int, scale: float) -> Values:
    """Return interpolation weights, output pixels x input pixels."""
    if mode not in ("linear", "cubic"):
        node.refuse(f"attribute mode={mode}: supported are nearest, linear, cubic")
    a = float(node.attribute("cubic_coeff_a", -0.75))
    shrink = min(1.0, scale) if node.attribute("antialias", 0) else 1.0
    reach = (1 if mode == "linear" else 2) / shrink
    node.check_constant(len(at), size)
    weights = np.zeros((len(at), size))
    outside = bool(node.attribute("exclude_outside", 0))
    for row, x in enumerate(at):
        first, last = math.floor(x - reach), math.ceil(x + reach)
        taps = np.arange(first, last + 1)
        values = _kernel(mode, np.abs(taps - x) * shrink, a)
        if outside:
            values = np.where((taps < 0) | (taps >= size), 0, values)
        np.add.at(weights[row], np.clip(taps, 0, size - 1), values / values.sum())
    return weights


def _kernel(mode: str, distance: Values, a: float) -> Values:
    if mode == "linear":
        return np.maximum(0, 1 - distance)
    inner = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = a * (((distance - 5) * distance + 8) * distance - 4)
    return np.where(distance <= 1, inner, np.where(distance < 2, far, 0))


def _pick(x: Tensor, shape: list[int], axis: int, order: Values) -> Tensor:
    """Return pixels in the given order; uniform repetition is one copy."""
    size, times = shape[axis], len(order) // shape[axis]
    if times * size == len(order) and np.array_equal(order, np.repeat(np.arange(size), times)):
        lead, trail = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        wide = x.parts.make("Expand", x.reshape(lead, size, 1, trail), [lead, size, times, trail])
        return wide.reshape(*shape[:axis], len(order), *shape[axis + 1 :])
    return _take(x, axis, order)


def _mix(x: Tensor, shape: list[int], axis: int, weights: Values) -> Tensor:
    """Return weighted sums of pixels along an axis."""
    lead, trail = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    product = x.reshape(lead, shape[axis]) @ weights.T if trail == 1 else weights @ x.reshape(lead, shape[axis], trail)
    return product.reshape(*shape[:axis], len(weights), *shape[axis + 1 :])


# -- ConvTranspose -----------------------------------------------------------------------------------------------------


def transposed_convolution(parts: Decomposition) -> None:
    """Compose ConvTranspose: a convolution of the image with zeros inserted between pixels, or without them if windows
    do not overlap."""
    node = parts.node
    x, weights, shape = parts.input(0), node.needed(1, "W"), node.shape(0)
    rank, groups = len(shape) - 2, int(node.attribute("group", 1))
    kernel = weights.shape[2:]
    if str(node.attribute("auto_pad", "")).startswith("SAME") and any(node.attribute("output_padding", [])):
        node.refuse(f"auto_pad={node.attribute('auto_pad')} with output_padding: onnx and onnxruntime disagree on the "
                    "shape: export the model with pads")  # fmt: skip
    strides, dilations = (list(node.attribute(name, [1] * rank)) for name in ("strides", "dilations"))
    before, after = _transposed_pads(node, shape[2:], kernel, strides, dilations)
    columns = weights.shape[1]
    grouped = weights.reshape(groups, weights.shape[0] // groups, columns, *kernel)
    plain = grouped.swapaxes(1, 2).reshape(groups * columns, weights.shape[0] // groups, *kernel)
    bias = [parts.input(2)] if node.has(2) else []
    disjoint = list(kernel) == strides and dilations == [1] * rank and not any((*before, *after)) and groups == 1
    if disjoint and columns * math.prod(kernel) <= _MAX_CHANNELS:
        _compose_disjoint(parts, x, plain, bias, list(shape))
        return
    spread = _with_zeros(parts, x, list(shape), strides)
    full = [(size - 1) * dilation for size, dilation in zip(kernel, dilations, strict=True)]
    pads = [*(size - low for size, low in zip(full, before, strict=True)),
            *(size - high for size, high in zip(full, after, strict=True))]  # fmt: skip
    for axis in range(rank):  # negative pads crop
        low, high = -min(0, pads[axis]), -min(0, pads[rank + axis])
        if low or high:
            size = (shape[2 + axis] - 1) * strides[axis] + 1
            spread = spread.slice(2 + axis, low, size - high)
    flipped = np.flip(plain, tuple(range(2, 2 + rank)))
    parts.result(
        "Conv", spread, np.ascontiguousarray(flipped), *bias, pads=[max(0, size) for size in pads],
        dilations=dilations, group=groups, kernel_shape=list(kernel),
    )  # fmt: skip


_MAX_CHANNELS = (1 << 16) - 1


def _transposed_pads(
    node: NodeView, image: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return (pads cropped at the start, pads cropped at the end) of the full result; negative pads extend it."""
    rank, output = len(image), node.out_info().shape[2:]
    output_padding = list(node.attribute("output_padding", [0] * rank))
    pads = list(node.attribute("pads", [0] * 2 * rank))
    mode = node.attribute("auto_pad", "NOTSET")
    before, after = [], []
    for axis in range(rank):
        uncut = (image[axis] - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1
        total = max(0, uncut + output_padding[axis] - output[axis])
        if node.attribute("output_shape") is not None or mode.startswith("SAME"):
            low = total // 2 if mode == "SAME_UPPER" else total - total // 2
        else:
            low = pads[axis] if mode == "NOTSET" else 0
        before.append(low)
        after.append(uncut - output[axis] - low)
    return before, after


def _with_zeros(parts: Decomposition, x: Tensor, shape: list[int], strides: Sequence[int]) -> Tensor:
    """Insert stride - 1 zeros between the pixels."""
    if all(stride == 1 for stride in strides):
        return x
    rank = len(strides)
    dims = [*shape[:2], *(size for pixels in shape[2:] for size in (pixels, 1))]
    pads = [0, 0, *(size for stride in strides for size in (0, stride - 1))]
    wide = parts.make("Pad", x.reshape(*dims), [0] * len(dims) + pads)
    result = wide.reshape(*shape[:2], *(size * stride for size, stride in zip(shape[2:], strides, strict=True)))
    ends = [(size - 1) * stride + 1 for size, stride in zip(shape[2:], strides, strict=True)]
    return parts.make("Slice", result, [0] * rank, ends, [*range(2, 2 + rank)])


def _compose_disjoint(parts: Decomposition, x: Tensor, weights: Values, bias: list[Tensor], shape: list[int]) -> None:
    """Compose non-overlapping windows: a product expands each pixel to its window."""
    node, rank = parts.node, len(shape) - 2
    channels, cin, *kernel = weights.shape
    taps = math.prod(kernel)
    rows = weights.reshape(channels, cin, taps).transpose(0, 2, 1).reshape(channels * taps, cin, *[1] * rank)
    split = parts.make("Conv", x, np.ascontiguousarray(rows)).reshape(shape[0], channels, *kernel, *shape[2:])
    woven = split.transpose(0, 1, *(axis for pair in range(rank) for axis in (2 + rank + pair, 2 + pair)))
    if bias:
        parts.result("Add", woven.reshape(*node.out_info().shape), bias[0].reshape(channels, *[1] * rank))
    else:
        parts.reshaped_result(woven)


# -- normalization -----------------------------------------------------------------------------------------------------


def local_response(parts: Decomposition) -> None:
    """Compose LRN: sums over neighbouring channels are a product with a band matrix."""
    node, x = parts.node, parts.input(0)
    batch, channels, *spatial = node.shape(0)
    size = int(node.attribute("size"))
    alpha, beta, bias = node.attribute("alpha", 1e-4), node.attribute("beta", 0.75), node.attribute("bias", 1.0)
    node.check_constant(channels, channels)
    distance = np.arange(channels) - np.arange(channels)[:, None]
    band = (distance >= -((size - 1) // 2)) & (distance <= size // 2)
    squares = (x * x).reshape(batch, channels, math.prod(spatial))
    sums = band.astype(parts.kind) * np.array(alpha / size, parts.kind) @ squares
    power = parts.make("Pow", sums + float(bias), float(beta))
    parts.result("Div", x, power.reshape(batch, channels, *spatial))


def instance_normalization(parts: Decomposition) -> None:
    """Compose InstanceNormalization, per channel and image."""
    node = parts.node
    batch, channels, *spatial = node.shape(0)
    pixels = parts.input(0).reshape(batch, channels, math.prod(spatial))
    deviations = pixels - parts.make("ReduceMean", pixels, [-1])
    variance = parts.make("ReduceMean", deviations * deviations, [-1])
    root = parts.make("Sqrt", variance + node.attribute("epsilon", 1e-5))
    scale, bias = (parts.input(index).reshape(channels, 1) for index in (1, 2))
    parts.reshaped_result(deviations / root * scale + bias)


def columns_to_image(parts: Decomposition) -> None:
    """Compose Col2Im as a transposed convolution with a one-hot kernel."""
    node = parts.node
    images, rows, columns = node.shape(0)
    image, block = node.needed(1, "image_shape").tolist(), node.needed(2, "block_shape").tolist()
    rank, taps = len(image), math.prod(block)
    strides, dilations = (list(node.attribute(name, [1] * rank)) for name in ("strides", "dilations"))
    pads, channels = list(node.attribute("pads", [0] * 2 * rank)), rows // taps
    sides = list(zip(image, block, strides, dilations, strict=True))
    windows = [
        (size + pads[at] + pads[rank + at] - (taps - 1) * dilation - 1) // stride + 1
        for at, (size, taps, stride, dilation) in enumerate(sides)
    ]
    if rows % taps or math.prod(windows) != columns:
        node.refuse(f"shape {list(node.shape(0))} for image_shape {image} and block_shape {block}: must be a multiple "
                    f"of {taps} rows, and {math.prod(windows)} columns")  # fmt: skip
    identity = np.tile(np.eye(taps, dtype=parts.kind).reshape(taps, 1, *block), (channels, *[1] * (rank + 1)))
    output_padding = [
        size + pads[at] + pads[rank + at] - (windows[at] - 1) * stride - (taps - 1) * dilation - 1
        for at, (size, taps, stride, dilation) in enumerate(sides)
    ]
    image_out = parts.make(
        "ConvTranspose", parts.input(0).reshape(images, rows, *windows), identity, group=channels, kernel_shape=block,
        strides=strides, dilations=dilations, pads=pads, output_padding=output_padding,
    )  # fmt: skip
    parts.reshaped_result(image_out)


def depth_to_space(parts: Decomposition) -> None:
    """Compose DepthToSpace: blocks of channels become blocks of pixels."""
    size, (images, channels, height, width) = _block(parts), parts.node.shape(0)
    depth = channels // (size * size)
    if parts.node.attribute("mode", "DCR") == "CRD":
        turned = parts.input(0).reshape(images, depth, size, size, height, width).transpose(0, 1, 4, 2, 5, 3)
    else:
        turned = parts.input(0).reshape(images, size, size, depth, height, width).transpose(0, 3, 4, 1, 5, 2)
    parts.reshaped_result(turned)


def space_to_depth(parts: Decomposition) -> None:
    """Compose SpaceToDepth: blocks of pixels become blocks of channels."""
    size, (images, channels, height, width) = _block(parts), parts.node.shape(0)
    blocks = parts.input(0).reshape(images, channels, height // size, size, width // size, size)
    parts.reshaped_result(blocks.transpose(0, 3, 5, 1, 2, 4))


def _block(parts: Decomposition) -> int:
    """Return the side length of a block, pixels."""
    node, size = parts.node, int(parts.node.attribute("blocksize", 0))
    _, channels, *sides = node.shape(0)
    deep = node.proto.op_type == "DepthToSpace"
    if size < 1 or (channels % (size * size) if deep else any(side % size for side in sides)):
        node.refuse(f"blocksize={size} with shape {node.shape(0)}: must divide "
                    f"{'the channels, squared' if deep else 'height and width'}")  # fmt: skip
    return size
