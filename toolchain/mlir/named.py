"""Lowering of the named operations of linalg."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xdsl.ir import SSAValue

from toolchain.mlir import generic, scalars, shapes
from toolchain.mlir.emitter import MlirTensor, OnnxEmitter
from toolchain.mlir.scalars import SCALARS
from toolchain.mlir.text.values import FLOATS

Lower = Callable[[OnnxEmitter], MlirTensor]


def _operands(e: OnnxEmitter, ins: int) -> tuple[list[MlirTensor], MlirTensor]:
    """Return (inputs, initial value of the result)."""
    if len(e.op.operands) != ins + 1:
        e.refuse(f"takes {ins} inputs and one output, got {len(e.op.operands)} operands")
    values = [e.get(operand) for operand in e.op.operands]
    return values[:-1], values[-1]


def _accumulate(e: OnnxEmitter, total: MlirTensor, start: MlirTensor) -> MlirTensor:
    if total.shape != start.shape:
        e.refuse(f"makes {list(total.shape)}, its output has {list(start.shape)}")
    return e.added(total, start)


# -- products ----------------------------------------------------------------------------------------------------------


def _product(turn_a: bool = False, turn_b: bool = False, rank: int = 2, zeros: bool = False) -> Lower:
    def lower(e: OnnxEmitter) -> MlirTensor:
        (a, b, *zero_points), start = _operands(e, 4 if zeros else 2)
        if e.attribute("indexing_maps") is not None:
            return _contract(e)
        for operand in (a, b):
            if operand.rank != rank:
                e.refuse(f"takes tensors of {rank} dimensions, got {operand.rank}")
        turned = [*range(rank - 2), rank - 1, rank - 2]
        a, b = e.transpose(a, turned) if turn_a else a, e.transpose(b, turned) if turn_b else b
        points = None
        if zeros:
            first, second = (e.needed(point, "a zero point") for point in zero_points)
            points = (e.scalar(float(first), a.kind), e.scalar(float(second), b.kind))
        return _accumulate(e, generic.product(e, a, b, start.kind, points), start)

    return lower


def _contract(e: OnnxEmitter) -> MlirTensor:
    (a, b), start = _operands(e, 2)
    return _accumulate(e, generic.contract(e, (a, b, start), start.kind), start)


def _tile(batch: int) -> Lower:
    """Return the lowering of mmt4d: row tiles times column tiles, with the second factor transposed. `batch`: number of
    leading dimensions."""

    def lower(e: OnnxEmitter) -> MlirTensor:
        (a, b), start = _operands(e, 2)
        if a.rank != batch + 4 or b.rank != batch + 4 or a.shape[:batch] != b.shape[:batch]:
            e.refuse(f"takes tensors of {batch + 4} dimensions")
        lead, (m, k, rows, depth), (n, k_b, columns, depth_b) = a.shape[:batch], a.shape[batch:], b.shape[batch:]
        if (k, depth) != (k_b, depth_b):
            e.refuse(f"tiles of {k} x {depth} and {k_b} x {depth_b} do not fit each other")

        def turned(x: MlirTensor, order: Sequence[int]) -> MlirTensor:
            return e.transpose(x, (*range(batch), *(batch + axis for axis in order)))

        left = e.reshape(turned(a, (0, 2, 1, 3)), (*lead, m * rows, k * depth))
        right = e.reshape(turned(b, (1, 3, 0, 2)), (*lead, k * depth, n * columns))
        result = e.reshape(generic.product(e, left, right, start.kind), (*lead, m, rows, n, columns))
        return _accumulate(e, turned(result, (0, 2, 1, 3)), start)

    return lower


def _vectors(a_rank: int, b_rank: int) -> Lower:
    """Return the lowering of matvec, vecmat, dot, batch_matvec: a vector is a matrix of one row or column."""

    def lower(e: OnnxEmitter) -> MlirTensor:
        (a, b), start = _operands(e, 2)
        if (a.rank, b.rank) != (a_rank, b_rank):
            e.refuse(f"takes tensors of {a_rank} and {b_rank} dimensions")
        left = e.reshape(a, (1, *a.shape)) if a_rank == 1 else a
        right = e.reshape(b, (*b.shape, 1)) if b_rank < a_rank or b_rank == 1 else b
        return _accumulate(e, e.reshape(generic.product(e, left, right, start.kind), start.shape), start)

    return lower


# -- images ------------------------------------------------------------------------------------------------------------

NHWC = (0, 3, 1, 2)
NCHW = (0, 2, 3, 1)


def to_nchw(e: OnnxEmitter, x: MlirTensor, layout: str) -> MlirTensor:
    """Move the channels of an image to dimension 1, if its layout (such as nhwc) has them last."""
    return e.transpose(x, (0, x.rank - 1, *range(1, x.rank - 1))) if layout[-1] == "c" else x


def from_nchw(e: OnnxEmitter, x: MlirTensor, layout: str) -> MlirTensor:
    return e.transpose(x, (0, *range(2, x.rank), 1)) if layout[-1] == "c" else x


def window(
    e: OnnxEmitter, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
    pads: Sequence[int] = (),
) -> tuple[list[int], dict[str, Any]]:  # fmt: skip
    """Return (sizes of the result, ONNX attributes) of windows over an image."""
    axes = len(kernel)
    pads = pads or [0] * (2 * axes)
    if min((*strides, *dilations, *kernel), default=1) < 1 or min(pads) < 0:
        e.refuse("strides, dilations and kernels must be positive, padding not negative")
    out = []
    for axis in range(axes):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        out.append((sizes[axis] + pads[axis] + pads[axis + axes] - reach) // strides[axis] + 1)
        if out[-1] < 1:
            e.refuse(f"a kernel that reaches over {reach} elements does not fit {sizes[axis]}")
    return out, {"strides": list(strides), "dilations": list(dilations), "pads": list(pads)}


def convolve(
    e: OnnxEmitter, x: MlirTensor, w: MlirTensor, kind: str, strides: Sequence[int], dilations: Sequence[int],
    pads: Sequence[int] = (), groups: int = 1, zeros: tuple[MlirTensor, MlirTensor] | None = None,
    bias: MlirTensor | None = None,
) -> MlirTensor:  # fmt: skip
    """Return a convolution in ONNX layout: x is n x c x h x w, w is cout x cin / groups x kh x kw, for one to three
    spatial axes."""
    if not 3 <= x.rank == w.rank <= 5 or w.shape[1] * groups != x.shape[1]:
        e.refuse(f"an image of {list(x.shape)} and weights of {list(w.shape)} do not fit each other")
    out, attributes = window(e, x.shape[2:], w.shape[2:], strides, dilations, pads)
    shape = (x.shape[0], w.shape[0], *out)
    attributes |= {"group": groups, "kernel_shape": list(w.shape[2:])}
    if x.kind in FLOATS:
        inputs = [e.cast(x, kind), e.cast(w, kind), *([] if bias is None else [bias])]
        return e.node("Conv", inputs, kind, shape, **attributes)
    if x.kind not in ("INT8", "UINT8") or w.kind not in ("INT8", "UINT8") or kind != "INT32":
        e.refuse(f"a convolution of {x.kind} and {w.kind} into {kind}: supported are floats, and i8 into i32")
    total = e.node("ConvInteger", [x, w, *(zeros or ())], "INT32", shape, **attributes)
    if bias is None:
        return total
    return e.added(total, e.reshape(bias, (1, bias.shape[0], *[1] * (x.rank - 2))))


def _steps(e: OnnxEmitter, axes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (strides, dilations) of windows."""
    unit = (1,) * axes
    return e.numbers("strides", unit, axes), e.numbers("dilations", unit, axes)


def _convolution(layout: str, order: Sequence[int]) -> Lower:
    """Return the lowering of a convolution; `order`: permutation of the weights to ONNX layout."""

    def lower(e: OnnxEmitter) -> MlirTensor:
        (x, w), start = _operands(e, 2)
        if x.rank != len(layout) or w.rank != len(order):
            e.refuse(f"takes an image of {len(layout)} dimensions and weights of {len(order)}")
        result = convolve(e, to_nchw(e, x, layout), e.transpose(w, order), start.kind, *_steps(e, len(layout) - 2))
        return _accumulate(e, from_nchw(e, result, layout), start)

    return lower


def _single(axes: int) -> Lower:
    """Return the lowering of a convolution of one single-channel image with one kernel."""

    def lower(e: OnnxEmitter) -> MlirTensor:
        (x, w), start = _operands(e, 2)
        if x.rank != axes or w.rank != axes:
            e.refuse(f"takes an image and weights of {axes} dimensions")
        unit = (1,) * axes
        product = convolve(e, e.reshape(x, (1, 1, *x.shape)), e.reshape(w, (1, 1, *w.shape)), start.kind, unit, unit)
        return _accumulate(e, e.reshape(product, start.shape), start)

    return lower


def _group(e: OnnxEmitter) -> MlirTensor:
    """Return the convolution of an image n x groups x c x h x w with weights groups x cout x c x kh x kw."""
    (x, w), start = _operands(e, 2)
    if x.rank != 5 or w.rank != 5:
        e.refuse("takes an image and weights of 5 dimensions")
    count, groups, channels, *size = x.shape
    result = convolve(
        e, e.reshape(x, (count, groups * channels, *size)), e.reshape(w, (w.shape[0] * w.shape[1], *w.shape[2:])),
        start.kind, *_steps(e, 2), groups=groups,
    )  # fmt: skip
    return _accumulate(e, e.reshape(result, start.shape), start)


def depthwise_weights(e: OnnxEmitter, w: MlirTensor) -> MlirTensor:
    """Return weights kh x kw x channels x multiplier in ONNX layout: one group of kernels per channel."""
    axes = w.rank - 2
    turned = e.transpose(w, (axes, axes + 1, *range(axes)))
    return e.reshape(turned, (w.shape[axes] * w.shape[axes + 1], 1, *w.shape[:axes]))


def _depthwise(layout: str, multiplied: bool) -> Lower:
    def lower(e: OnnxEmitter) -> MlirTensor:
        (x, w), start = _operands(e, 2)
        axes = len(layout) - 2
        if x.rank != len(layout) or w.rank != axes + 1 + multiplied:
            e.refuse(f"takes an image of {len(layout)} dimensions and weights of {axes + 1 + multiplied}")
        if layout[-1] != "c":
            w = e.transpose(w, (*range(1, w.rank), 0))
        w = w if multiplied else e.reshape(w, (*w.shape, 1))
        x = to_nchw(e, x, layout)
        product = convolve(e, x, depthwise_weights(e, w), start.kind, *_steps(e, axes), groups=x.shape[1])
        return _accumulate(e, e.reshape(from_nchw(e, product, layout), start.shape), start)

    return lower


def pool(
    e: OnnxEmitter, function: str, x: MlirTensor, kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int], pads: Sequence[int] = (), *, count_pads: bool = True,
) -> MlirTensor:  # fmt: skip
    """Return max, min, sum or average of windows; x is n x c x h x w, with one to three spatial axes."""
    if x.rank != len(kernel) + 2:
        e.refuse(f"an image has {len(kernel) + 2} dimensions, got {x.rank}")
    out, attributes = window(e, x.shape[2:], kernel, strides, dilations, pads)
    attributes["kernel_shape"] = list(kernel)
    shape = (*x.shape[:2], *out)
    if function == "min":
        return e.negative(pool(e, "max", e.negative(x), kernel, strides, dilations, pads))
    if function == "max":
        return e.node("MaxPool", [x], x.kind, shape, **attributes)
    result = e.node("AveragePool", [x], x.kind, shape, **attributes, count_include_pad=int(count_pads))
    return e.elementwise("Mul", result, e.scalar(math.prod(kernel), x.kind)) if function == "sum" else result


def _pooling(layout: str, function: str) -> Lower:
    def lower(e: OnnxEmitter) -> MlirTensor:
        (x, kernel), start = _operands(e, 2)
        axes = len(layout) - 2
        if kernel.rank != axes or x.kind != start.kind:
            e.refuse(f"needs a window of {axes} dimensions, and elements of one type")
        windows = pool(e, function, to_nchw(e, x, layout), kernel.shape, *_steps(e, axes))
        windows = from_nchw(e, windows, layout)
        if windows.shape != start.shape:
            e.refuse(f"makes {list(windows.shape)}, its output has {list(start.shape)}")
        if function == "sum":
            return e.added(windows, start)
        if generic.is_extreme(start, top=function == "min"):
            return windows
        return e.elementwise("Max" if function == "max" else "Min", start, windows)

    return lower


# -- shapes and elements -----------------------------------------------------------------------------------------------


def _fill(e: OnnxEmitter) -> MlirTensor:
    (value,), start = _operands(e, 1)
    return e.expand(e.cast(value, start.kind), start.shape)


def _transpose(e: OnnxEmitter) -> MlirTensor:
    (x,), _ = _operands(e, 1)
    return e.transpose(x, e.numbers("permutation", size=x.rank))


def _broadcast(e: OnnxEmitter) -> MlirTensor:
    (x,), start = _operands(e, 1)
    added = e.numbers("dimensions")
    if sorted({*added}) != sorted(added) or len(added) + x.rank != start.rank or any(
        not 0 <= dim < start.rank for dim in added
    ):  # fmt: skip
        e.refuse(f"dimensions {list(added)}: must name those of the output that the input does not have")
    sizes = iter(x.shape)
    return e.expand(e.reshape(x, [1 if dim in added else next(sizes) for dim in range(start.rank)]), start.shape)


def _softmax(e: OnnxEmitter) -> MlirTensor:
    (x,), _ = _operands(e, 1)
    axis = e.number("dimension")
    if not 0 <= axis < x.rank:
        e.refuse(f"dimension {axis}: the input has {x.rank}")
    return e.node("Softmax", [x], x.kind, x.shape, axis=axis)


def _reduce(e: OnnxEmitter) -> MlirTensor:
    operands, start = _operands(e, 1)
    axes = e.numbers("dimensions")
    rank = operands[0].rank
    if len({*axes}) != len(axes) or any(not 0 <= axis < rank for axis in axes):
        e.refuse(f"dimensions {list(axes)}: must be different dimensions of the {rank} of the input")
    spaces = [
        generic.OperandMap(tuple(range(rank))),
        generic.OperandMap(tuple(a for a in range(rank) if a not in axes)),
    ]
    block = generic._body(e)
    values = [*operands, start]
    sizes = generic._sizes(e, values, spaces, rank)
    return generic.reduction(e, generic.Reduction(block, values, spaces, sizes, list(axes)))[0]


def _map(e: OnnxEmitter) -> MlirTensor:
    operands, _ = _operands(e, len(e.op.operands) - 1)
    block = generic._body(e)
    if len(block.args) < len(operands) or not operands:
        e.refuse("needs an argument of its body for each input")
    arguments: dict[SSAValue, MlirTensor] = dict(zip(block.args, operands, strict=False))
    results = scalars.evaluate(e, block, arguments, scalars.iota(e, operands[0].shape))
    return e.expand(results[0], e.get(e.op.operands[-1]).shape)


def _elements(lower: Callable[..., MlirTensor], count: int) -> Lower:
    """Return the lowering of an elementwise operation whose operands have the shape of the result."""
    return lambda e: lower(e, *_operands(e, count)[0])


LINALG: Mapping[str, Lower] = {
    "matmul": _product(), "contract": _contract, "softmax": _softmax,
    "matmul_transpose_a": _product(turn_a=True),
    "matmul_transpose_b": _product(turn_b=True),
    "batch_matmul": _product(rank=3),
    "batch_matmul_transpose_a": _product(turn_a=True, rank=3),
    "batch_matmul_transpose_b": _product(turn_b=True, rank=3),
    "quantized_matmul": _product(zeros=True),
    "quantized_batch_matmul": _product(rank=3, zeros=True),
    "matvec": _vectors(2, 1), "vecmat": _vectors(1, 2), "dot": _vectors(1, 1), "batch_matvec": _vectors(3, 2),
    "conv_2d_nhwc_hwcf": _convolution("nhwc", (3, 2, 0, 1)),
    "conv_2d_nhwc_fhwc": _convolution("nhwc", (0, 3, 1, 2)),
    "conv_2d_nchw_fchw": _convolution("nchw", (0, 1, 2, 3)),
    "conv_2d_ngchw_gfchw": _group,
    "conv_1d_nwc_wcf": _convolution("nwc", (2, 1, 0)), "conv_1d_ncw_fcw": _convolution("ncw", (0, 1, 2)),
    "conv_3d_ndhwc_dhwcf": _convolution("ndhwc", (4, 3, 0, 1, 2)),
    "conv_3d_ncdhw_fcdhw": _convolution("ncdhw", (0, 1, 2, 3, 4)),
    "conv_1d": _single(1), "conv_2d": _single(2), "conv_3d": _single(3),
    "mmt4d": _tile(0), "batch_mmt4d": _tile(1), "pack": shapes.pack, "unpack": shapes.unpack,
    **{f"depthwise_conv_{len(layout) - 2}d_{layout}_{weights}": _depthwise(layout, weights.endswith("m"))
       for layout, forms in (("nwc", ("wc", "wcm")), ("ncw", ("cw",)), ("nhwc", ("hwc", "hwcm")), ("nchw", ("chw",)),
                             ("ndhwc", ("dhwc", "dhwcm")), ("ncdhw", ("cdhw",))) for weights in forms},
    **{f"pooling_{layout}_{name}": _pooling(layout, name)
       for layout in ("nwc", "ncw", "nhwc", "nchw", "ndhwc") for name in ("max", "min", "sum")
       if (layout, name) != ("ncw", "min")},
    "fill": _fill, "transpose": _transpose, "broadcast": _broadcast, "reduce": _reduce, "map": _map,
    **{name: _elements(SCALARS[f"math.{name}"], 1)
       for name in ("exp", "sqrt", "tanh", "erf", "log", "ceil", "floor", "round", "rsqrt")},
    "abs": _elements(SCALARS["math.absf"], 1), "negf": _elements(SCALARS["arith.negf"], 1),
    "copy": _elements(lambda e, x: x, 1), "reciprocal": _elements(scalars.same("Reciprocal"), 1),
    "square": _elements(lambda e, x: e.elementwise("Mul", x, x), 1),
    **{name: _elements(SCALARS[f"arith.{name}f"], 2) for name in ("add", "sub", "div", "max", "min")},
    "mul": _elements(SCALARS["arith.muli"], 2), "powf": _elements(SCALARS["math.powf"], 2),
    "select": _elements(SCALARS["arith.select"], 3),
}  # fmt: skip
"""Operation of linalg, without its dialect -> function that lowers it."""
