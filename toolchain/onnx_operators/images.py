"""Convolution and pooling of one- and two-dimensional images, which the device stores with channels last (NHWC).

Each operator transposes its image to NHWC and back; the pass `layout` removes transposes that cancel. 3-D images, and
windows that the device does not support, become products or reductions of patches.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from npu_device.abi.opcodes import BITS, DataType
from npu_device.operations import windows as device
from toolchain.ir.data_types import FLOATS
from toolchain.ir.graph import Attribute, TensorIR
from toolchain.onnx_model.node import Node
from toolchain.onnx_operators.copies import broadcast_tensor, copy, steps, transpose_tensor
from toolchain.onnx_operators.elementwise import apply
from toolchain.onnx_operators.linear import product


class SpatialWindows(NamedTuple):
    """Windows, with one value per spatial dimension."""

    kernel: tuple[int, ...]
    output: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]


def windows(node: Node, image: Sequence[int], kernel: Sequence[int], output: Sequence[int]) -> SpatialWindows:
    """Return the windows of a node on an image (batch, channels, spatial...)."""
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
    return SpatialWindows(tuple(kernel), tuple(output), strides, dilations, tuple(before), tuple(after))


def pad_tensor(node: Node, x: TensorIR, before: Sequence[int], after: Sequence[int], value: float) -> TensorIR:
    """Return the tensor padded with `value`."""
    if not any((*before, *after)):
        return x
    shape = tuple(low + size + high for low, size, high in zip(before, x.shape, after, strict=True))
    out = node.temporary(shape, x.dtype)
    pad_into(node, x, out, before, value)
    return out


def pad_into(node: Node, x: TensorIR, out: TensorIR, before: Sequence[int], value: float) -> None:
    """Emit copies of the tensor into a larger tensor filled with `value`."""
    node.check_constant(out.shape[-1])
    border = node.weight(np.full(out.shape[-1:], value), x.dtype)
    copy(node, border, out, out.shape, [*[0] * (len(out.shape) - 1), 1], steps(out.shape))
    put = steps(out.shape)
    at = sum(low * step for low, step in zip(before, put, strict=True))
    copy(node, x, out, x.shape, steps(x.shape), put, at_out=at)


def rows_of_windows(node: Node, x: TensorIR, shape: SpatialWindows) -> TensorIR:
    """Return all windows of a padded image, one per row: (batch, output..., channels, kernel...)."""
    rank = len(shape.kernel)
    return _windows_of(node, x, shape, (0, *range(2, 2 + rank), 1, *range(2 + rank, 2 + 2 * rank)))


def patches(node: Node, x: TensorIR, shape: SpatialWindows, *, windows_last: bool, border: float = 0) -> TensorIR:
    """Return all windows: (batch, channels, kernel..., output...), or (batch, channels, output..., kernel...) unless
    `windows_last`."""
    x, rank = pad_tensor(node, x, (0, 0, *shape.before), (0, 0, *shape.after), border), len(shape.kernel)
    outer, inner = range(2, 2 + rank), range(2 + rank, 2 + 2 * rank)
    order = (0, 1, *inner, *outer) if windows_last else (0, 1, *outer, *inner)
    if math.prod(shape.kernel) == 1 and not any(stride > 1 for stride in shape.strides):
        dims = (*x.shape[:2], *shape.output, *shape.kernel)
        return node.view(x, [dims[axis] for axis in order])
    return _windows_of(node, x, shape, order)


def _windows_of(node: Node, x: TensorIR, shape: SpatialWindows, order: Sequence[int]) -> TensorIR:
    """Emit a copy of all windows: dimensions batch, channels, output..., kernel... in an order."""
    take = steps(x.shape)
    inner = [step * distance for step, distance in zip(take[2:], shape.dilations, strict=True)]
    outer = [step * distance for step, distance in zip(take[2:], shape.strides, strict=True)]
    dims, strides = (*x.shape[:2], *shape.output, *shape.kernel), (*take[:2], *outer, *inner)
    sizes = [dims[axis] for axis in order]
    target = node.temporary(sizes, x.dtype)
    copy(node, x, target, sizes, [strides[axis] for axis in order], steps(sizes))
    return target


MAX_WORD = (1 << 16) - 1
"""Maximum of the device's 16-bit fields for images and windows."""


def convolution(node: Node) -> None:
    """Emit Conv; the bias is added per channel."""
    x, w, out = node.tensor(0), node.tensor(1), node.output()
    if x.dtype is not w.dtype:
        node.refuse(f"operands of types {x.dtype.name} and {w.dtype.name}; both must have one type")
    if out.dtype not in FLOATS:
        node.refuse(f"data type {out.dtype.name} is not supported")
    groups = groups_of(node, x, w)
    shape = windows(node, x.shape, w.shape[2:], out.shape[2:])
    bias = node.tensor(2) if node.has(2) else None
    on_device = device_windows(x, shape)
    if on_device is not None and w.shape[0] <= MAX_WORD and not _spread_rows(x, on_device):
        convolve(node, (x, w, out), on_device, groups, bias)
        return
    total = out if bias is None else node.temporary(out.shape, out.dtype)
    _product_of_patches(node, (x, w, total), shape, groups)
    if bias is not None:
        apply(node, "ADD", total, node.view(bias, (*bias.shape, *(1,) * len(shape.kernel))), out)


MAX_SPREAD = 1 << 19
"""Maximum size of the rows spanned by a dilated window, bytes: the device also loads the rows between taps. Our choice,
a quarter of the default scratchpad."""


def _spread_rows(x: TensorIR, shape: device.Windows) -> bool:
    """Check whether a dilation is so wide that a tile of a window may not fit; the pixels are then gathered as
    patches."""
    rows = (shape.kh - 1) * shape.dh + 1
    return shape.dh > 1 and rows * shape.w * x.shape[1] * BITS[x.dtype] // 8 > MAX_SPREAD


def groups_of(node: Node, x: TensorIR, w: TensorIR) -> int:
    """Return the attribute group. ModelError: it does not match the channels of image and weights."""
    groups, channels = int(node.attribute("group", 1)), x.shape[1]
    if groups < 1 or w.shape[1] * groups != channels or w.shape[0] % groups:
        node.refuse(
            f"attribute group={groups} with {channels} channels and weights {list(w.shape)}: channels must be group x "
            f"{w.shape[1]}, and outputs a multiple of group"
        )
    return groups


def convolve(
    node: Node,
    tensors: tuple[TensorIR, TensorIR, TensorIR],
    shape: device.Windows,
    groups: int,
    bias: TensorIR | None = None,
    *more: TensorIR,
    **attributes: Attribute,
) -> None:
    """Emit a convolution from NCHW to NCHW with weights Cout x Cin / groups x kernel: a CONV2D_T layer, or a product of
    pixels and weights if each pixel sees only itself. `more` and `attributes` belong to the epilogue; `bias` is a
    separate layer, for the pass `fusion`."""
    x, w, out = tensors
    pixels, cout = shape.pixels // shape.batch, w.shape[0]
    kernel = transpose_tensor(node, node.view(w, (cout, w.shape[1], shape.kh * shape.kw)), (2, 1, 0))
    image = channels_last(node, x)
    result = _before_channels_first(node, out)
    total = result if bias is None else node.temporary((shape.batch, pixels, cout), out.dtype)
    if shape.pointwise and groups == 1:
        product(node, [image, kernel, *more], total, (shape.pixels, cout, x.shape[1]), **attributes)
    else:
        usual: dict[str, Attribute] = {**shape._asdict(), "cin": x.shape[1], "cout": cout, "groups": groups}
        node.layer("CONV2D_T", [image, kernel, *more], total, **usual, **attributes)
    if bias is not None:
        node.layer(
            "ELTWISE", [total, bias], result, function="ADD", m=shape.pixels, n=cout, broadcast="ROW"
        )  # fmt: skip
    _channels_first(node, result, out)


def _product_of_patches(
    node: Node, tensors: tuple[TensorIR, TensorIR, TensorIR], shape: SpatialWindows, groups: int
) -> None:
    """Emit, per image and group, weights (cout x cin kernel) times patches (cin kernel x pixels)."""
    x, w, out = tensors
    batch, cin = x.shape[:2]
    m, k, n = w.shape[0] // groups, cin // groups * math.prod(shape.kernel), math.prod(shape.output)
    columns = patches(node, x, shape, windows_last=True)
    if groups == 1:
        product(node, [w, columns], out, (m, n, k), batch=batch, step1=k * n)
        return
    if batch > 1:
        w = broadcast_tensor(node, w, (batch, *w.shape))
    product(node, [w, columns], out, (m, n, k), batch=batch * groups, step0=m * k, step1=k * n)


def maximum_pool(node: Node) -> None:
    x, out = node.tensor(0), node.output()
    shape = windows(node, x.shape, node.attribute("kernel_shape"), out.shape[2:])
    if _pool(node, x, out, shape, "MAX"):
        return
    lowest = -math.inf if x.dtype in FLOATS else {DataType.INT8: -128, DataType.UINT8: 0}.get(x.dtype, -(1 << 31))
    _reduce_windows(node, x, out, shape, "MAX", lowest)


def _reduce_windows(
    node: Node, x: TensorIR, out: TensorIR, shape: SpatialWindows, function: str, border: float = 0
) -> None:  # fmt: skip
    windows_of_x = patches(node, x, shape, windows_last=False, border=border)
    node.layer("REDUCE", [windows_of_x], out, function=function, m=out.elements, n=math.prod(shape.kernel))


def average_pool(node: Node) -> None:
    """Emit the mean of each window, over its elements in the image or in the padded image."""
    x, out = node.tensor(0), node.output()
    shape = windows(node, x.shape, node.attribute("kernel_shape"), out.shape[2:])
    pads = node.attribute("pads", [0] * 2 * len(shape.kernel))
    if (mode := node.attribute("auto_pad", "NOTSET")) != "NOTSET":
        pads = [*shape.before, *(shape.after if mode != "VALID" else shape.before)]
    counted = bool(node.attribute("count_include_pad", 0)) and any((*shape.before, *shape.after))
    overhang = any(low > high for low, high in zip(_needed(x, shape), pads[len(shape.kernel) :], strict=True))
    if not (counted and overhang) and _pool(node, x, out, shape, "AVG", **({"count_pads": 1} if counted else {})):
        return
    total = node.temporary(out.shape, out.dtype)
    _reduce_windows(node, x, total, shape, "SUM")
    counts = np.ones(())
    for axis, size in enumerate(x.shape[2:]):
        first = np.arange(shape.output[axis]) * shape.strides[axis] - shape.before[axis]
        at = first[:, None] + np.arange(shape.kernel[axis]) * shape.dilations[axis]
        low, high = 0, size
        if counted:
            low, high = -pads[axis], size + pads[len(shape.kernel) + axis]
        counts = np.multiply.outer(counts, ((at >= low) & (at < high)).sum(axis=1))
    apply(node, "DIV", total, node.weight(counts, out.dtype), out)


def _pool(
    node: Node, x: TensorIR, out: TensorIR, shape: SpatialWindows, function: str, **attributes: Attribute
) -> bool:
    """Emit a POOL layer and return True if the device supports the windows."""
    on_device = device_windows(x, shape)
    if on_device is None or device.blind(on_device):
        return False
    result = _before_channels_first(node, out)
    usual: dict[str, Attribute] = {**on_device._asdict(), "channels": x.shape[1]}
    node.layer("POOL", [channels_last(node, x)], result, function=function, **usual, **attributes)
    _channels_first(node, result, out)
    return True


def _needed(x: TensorIR, shape: SpatialWindows) -> list[int]:
    """Return per dimension how far the last window extends beyond the image; negative if it ends before."""
    return [
        (count - 1) * stride + (taps - 1) * dilation + 1 - size - before
        for count, stride, taps, dilation, size, before in zip(
            shape.output, shape.strides, shape.kernel, shape.dilations, x.shape[2:], shape.before, strict=True
        )
    ]


def device_windows(x: TensorIR, shape: SpatialWindows) -> device.Windows | None:
    """Return the windows in the device's form; None if it does not support them. A 1-D image, or one row, becomes one
    column, since tiles have whole rows."""
    rank = len(shape.kernel)
    if rank > 2:
        return None
    after = [max(0, need) for need in _needed(x, shape)]
    last = slice(rank - 1, rank) if rank == 1 or _is_a_row(x, shape, after) else slice(0, 2)
    missing = 2 - len(range(rank)[last])
    rows = [tuple(values[last]) + (1,) * missing
            for values in (x.shape[2:], shape.kernel, shape.strides, shape.dilations)]  # fmt: skip
    pads = [tuple(values[last]) + (0,) * missing for values in (shape.before, after)]
    fitted = device.Windows(x.shape[0], *(size for pair in (*rows, *pads) for size in pair))
    if not all(0 <= value <= MAX_WORD for value in (*fitted, x.shape[1])):
        return None
    return fitted if (fitted.p, fitted.q) == (*shape.output[last], *(1,) * missing) else None


def _is_a_row(x: TensorIR, shape: SpatialWindows, after: Sequence[int]) -> bool:
    """Check whether a 2-D image is a single row, and so are its windows."""
    return x.shape[2] == shape.kernel[0] == shape.output[0] == 1 and not shape.before[0] and not after[0]


def channels_last(node: Node, x: TensorIR) -> TensorIR:
    """Transpose N x C x pixels to N x pixels x C."""
    batch, channels = x.shape[:2]
    pixels = math.prod(x.shape[2:])
    if _same_either_way(x.shape):
        return node.view(x, (batch, pixels, channels))
    return transpose_tensor(node, node.view(x, (batch, channels, pixels)), (0, 2, 1))


def _before_channels_first(node: Node, out: TensorIR) -> TensorIR:
    """Return a tensor N x pixels x C for the result of a layer, which `_channels_first` transposes to `out`."""
    if _same_either_way(out.shape):
        return out
    return node.temporary((out.shape[0], math.prod(out.shape[2:]), out.shape[1]), out.dtype)


def _channels_first(node: Node, result: TensorIR, out: TensorIR) -> None:
    if result is not out:
        transpose_tensor(node, result, (0, 2, 1), out)


def _same_either_way(shape: Sequence[int]) -> bool:
    return shape[1] == 1 or math.prod(shape[2:]) == 1
