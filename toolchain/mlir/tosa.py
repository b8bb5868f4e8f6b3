"""Lowering of tosa, in the form of MLIR 16 and of later versions: zero points, shapes and padding are attributes in one
and operands in the other."""

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from xdsl.dialects.builtin import FloatAttr, IntegerAttr
from xdsl.ir import Attribute

from toolchain.ir.graph import Values
from toolchain.mlir import named, rescaling, scalars
from toolchain.mlir.emitter import MlirTensor, OnnxEmitter
from toolchain.mlir.generic import product
from toolchain.mlir.text.values import FLOATS, NUMPY

Lower = Callable[[OnnxEmitter], MlirTensor]
Pair = tuple[MlirTensor, MlirTensor]


def operands(e: OnnxEmitter, low: int, high: int | None = None) -> list[MlirTensor]:
    tensors = [e.get(value) for value in e.op.operands]
    if not low <= len(tensors) <= (low if high is None else high):
        e.refuse(f"takes {low} operands, got {len(tensors)}")
    return tensors


def result(e: OnnxEmitter) -> tuple[str, tuple[int, ...]]:
    return e.typed(e.op.results[0].type)


def zero_points(e: OnnxEmitter, operands_of_zeros: Sequence[MlirTensor], *names: str) -> list[int]:
    """Return zero points from operands, quantization_info or attributes; 0 by default."""
    if operands_of_zeros:
        return [int(np.asarray(e.needed(operand, "a zero point")).reshape(-1)[0]) for operand in operands_of_zeros]
    info = e.attribute("quantization_info")
    numbers = dict(re.findall(r"(\w+)\s*=\s*(-?\d+)", str(info))) if info is not None else {}
    return [int(numbers.get(name, 0)) or e.number(name, 0) for name in names]


def _numbers(
    e: OnnxEmitter, name: str, operands_of_numbers: Sequence[MlirTensor], size: int | None = None
) -> tuple[int, ...]:
    """Return a list of integers from a constant operand or an attribute."""
    if operands_of_numbers:
        values = np.asarray(e.needed(operands_of_numbers[0], name)).reshape(-1)
        return e.sized(tuple(int(value) for value in values), size, name)
    return e.numbers(name, size=size)


# -- products and images -----------------------------------------------------------------------------------------------


def _pads(e: OnnxEmitter) -> tuple[int, int, int, int]:
    """Return the pads in ONNX order: top, left, bottom, right."""
    top, bottom, left, right = e.numbers("pad", (0, 0, 0, 0), 4)
    return top, left, bottom, right


def _zeros(e: OnnxEmitter, x: MlirTensor, w: MlirTensor, points: Sequence[int]) -> Pair | None:
    return (e.scalar(points[0], x.kind), e.scalar(points[1], w.kind)) if x.kind not in FLOATS else None


def _convolution(depthwise: bool) -> Lower:
    def lower(e: OnnxEmitter) -> MlirTensor:
        x, w, bias, *extra = operands(e, 3, 5)
        kind, shape = result(e)
        points = zero_points(e, extra, "input_zp", "weight_zp")
        x = e.transpose(x, named.NHWC) if x.rank == 4 else e.refuse(f"an image has 4 dimensions, got {x.rank}")
        weights = named.depthwise_weights(e, w) if depthwise else e.transpose(w, (0, 3, 1, 2))
        bias = e.cast(e.expand(bias, (weights.shape[0],)), kind)
        floats = x.kind in FLOATS
        image_out = named.convolve(
            e, x, weights, kind, e.numbers("stride", (1, 1), 2), e.numbers("dilation", (1, 1), 2), _pads(e),
            x.shape[1] if depthwise else 1, _zeros(e, x, weights, points),
            None if floats and bias.equals(0) else bias,
        )  # fmt: skip
        return e.reshape(e.transpose(image_out, named.NCHW), shape)

    return lower


def _fully_connected(e: OnnxEmitter) -> MlirTensor:
    x, w, bias, *extra = operands(e, 3, 5)
    kind, _ = result(e)
    points = zero_points(e, extra, "input_zp", "weight_zp")
    if x.rank != 2 or w.rank != 2:
        e.refuse("takes matrices")
    turned = e.transpose(w, (1, 0))
    return e.added(product(e, x, turned, kind, _zeros(e, x, w, points)), e.cast(bias, kind))


def _matmul(e: OnnxEmitter) -> MlirTensor:
    a, b, *extra = operands(e, 2, 4)
    if a.rank != 3 or b.rank != 3:
        e.refuse("takes lists of matrices")
    return product(e, a, b, result(e)[0], _zeros(e, a, b, zero_points(e, extra, "a_zp", "b_zp")))


def _max_pool(e: OnnxEmitter) -> MlirTensor:
    (x,) = operands(e, 1)
    x = named.to_nchw(e, x, "nhwc")
    image_out = named.pool(e, "max", x, e.numbers("kernel", size=2), e.numbers("stride", size=2), (1, 1), _pads(e))
    return e.transpose(image_out, named.NCHW)


def _avg_pool(e: OnnxEmitter) -> MlirTensor:
    x, *extra = operands(e, 1, 3)
    kernel, stride, pads = e.numbers("kernel", size=2), e.numbers("stride", size=2), _pads(e)
    points = zero_points(e, extra, "input_zp", "output_zp")
    image = named.to_nchw(e, x, "nhwc")
    if x.kind in FLOATS:
        image_out = named.pool(e, "avg", image, kernel, stride, (1, 1), pads, count_pads=False)
        return e.transpose(image_out, named.NCHW)
    if any(pads):
        e.refuse("an average of integers with padding is not supported: pad the input, or use floats")
    weights = e.constant(np.ones((image.shape[1], 1, *kernel), NUMPY[x.kind]))
    zeros = (e.scalar(points[0], x.kind), e.scalar(0, x.kind))
    total = named.convolve(e, image, weights, "INT32", stride, (1, 1), groups=image.shape[1], zeros=zeros)
    count = kernel[0] * kernel[1]
    k = (count - 1).bit_length()
    scale = rescaling.Rescale(((((1 << 30) + 1) << k) // count,), (30 + k,), 0, points[1], False)
    return e.transpose(rescaling.rescale_codes(e, total, scale, result(e)[0]), named.NCHW)


# -- elements ----------------------------------------------------------------------------------------------------------


def _same(operator: str, count: int) -> Lower:
    def lower(e: OnnxEmitter) -> MlirTensor:
        inputs = operands(e, count)
        kind, shape = result(e)
        return e.expand(e.elementwise(operator, *inputs, kind="BOOL" if kind == "BOOL" else ""), shape)

    return lower


def _or_equal(e: OnnxEmitter) -> MlirTensor:
    x, y = operands(e, 2)
    return e.elementwise("Or", *(e.elementwise(name, x, y, kind="BOOL") for name in ("Greater", "Equal")))


def _multiply(e: OnnxEmitter) -> MlirTensor:
    x, y, *extra = operands(e, 2, 3)
    kind, _ = result(e)
    shift = _numbers(e, "shift", extra)[0] if extra else e.number("shift", 0)
    if shift:
        e.refuse(f"shift {shift} is not supported: use tosa.rescale behind it")
    return e.elementwise("Mul", e.cast(x, kind), e.cast(y, kind))


def _negate(e: OnnxEmitter) -> MlirTensor:
    x, *extra = operands(e, 1, 3)
    points = zero_points(e, extra, "input1_zp", "output_zp") if x.kind not in FLOATS else [0, 0]
    if any(points) or x.kind == "INT8":
        wide = e.cast(x, "INT32")
        total = e.elementwise("Sub", e.scalar(points[0] + points[1], "INT32"), wide)
        return rescaling.saturate(e, total, x.kind)
    return e.negative(x)


def _clamp(e: OnnxEmitter) -> MlirTensor:
    (x,) = operands(e, 1)
    ends = []
    for name in ("min", "max"):
        value = e.attribute(f"{name}_val", f"{name}_fp" if x.kind in FLOATS else f"{name}_int")
        if not isinstance(value, FloatAttr | IntegerAttr):
            e.refuse(f"needs attribute {name}_fp, {name}_int or {name}_val")
        end = float(value.value.data)
        ends.append(end if x.kind in FLOATS else rescaling.within(end, x.kind))
    return e.node("Clip", [x, *(e.scalar(end, x.kind) for end in ends)], x.kind, x.shape)


def _cast(e: OnnxEmitter) -> MlirTensor:
    """Cast floats to the nearest integer, halves away from zero, as MLIR 16 does."""
    (x,) = operands(e, 1)
    kind, _ = result(e)
    if x.kind not in FLOATS or kind in (*FLOATS, "BOOL"):
        if kind == "INT8" and x.kind not in ("BOOL", "INT8", *FLOATS):
            e.refuse("drops high bits, which no command does: use tosa.rescale")
        return e.cast(x, kind)
    half = scalars.select_by_sign(e, x, e.scalar(-0.5, x.kind), e.scalar(0.5, x.kind))
    nearest = e.elementwise("Add", x, half)
    if kind in ("INT8", "UINT8"):
        nearest = rescaling.clip(e, nearest, kind)
    return e.cast(nearest, kind)


# -- shapes and lookups ------------------------------------------------------------------------------------------------


def const(e: OnnxEmitter) -> MlirTensor:
    operands(e, 0)
    return e.constant_of(e.attribute("value", "values"))


def _along_axis(e: OnnxEmitter) -> tuple[MlirTensor, int]:
    """Return (operand, axis) of an operation along a single axis."""
    (x,) = operands(e, 1)
    axis = e.number("axis")
    if not 0 <= axis < x.rank:
        e.refuse(f"axis {axis}: the tensor has {x.rank} dimensions")
    return x, axis


def _reduce(operator: str) -> Lower:
    def lower(e: OnnxEmitter) -> MlirTensor:
        x, axis = _along_axis(e)
        reduced = e.reduce(operator, x, [axis])
        return e.reshape(reduced, [1 if dim == axis else size for dim, size in enumerate(x.shape)])

    return lower


def _argmax(e: OnnxEmitter) -> MlirTensor:
    x, axis = _along_axis(e)
    shape = [size for dim, size in enumerate(x.shape) if dim != axis]
    return e.cast(e.node("ArgMax", [x], "INT64", shape, axis=axis, keepdims=0), result(e)[0])


def _reshape(e: OnnxEmitter) -> MlirTensor:
    x, *_ = operands(e, 1, 2)
    return e.reshape(x, result(e)[1])


def _transpose(e: OnnxEmitter) -> MlirTensor:
    x, *extra = operands(e, 1, 2)
    return e.transpose(x, _numbers(e, "perms", extra, x.rank))


def _concat(e: OnnxEmitter) -> MlirTensor:
    return e.concat([e.get(value) for value in e.op.operands], e.number("axis"))


def _slice(e: OnnxEmitter) -> MlirTensor:
    x, *extra = operands(e, 1, 3)
    start, size = _numbers(e, "start", extra[:1], x.rank), _numbers(e, "size", extra[1:], x.rank)
    return e.slice(x, start, size, [1] * x.rank)


def _pad(e: OnnxEmitter) -> MlirTensor:
    x, *extra = operands(e, 2, 3)
    amounts = _numbers(e, "padding", extra[:1], 2 * x.rank)
    zero = 0 if x.kind in FLOATS or len(extra) > 1 else zero_points(e, (), "input_zp")[0]
    value = extra[1] if len(extra) > 1 else e.scalar(zero, x.kind)
    e.needed(value, "the value of the padding")
    return e.pad(x, amounts[::2], amounts[1::2], value)


def _tile(e: OnnxEmitter) -> MlirTensor:
    x, *extra = operands(e, 1, 2)
    times = _numbers(e, "multiples", extra, x.rank)
    shape = [size * count for size, count in zip(x.shape, times, strict=True)]
    return e.node("Tile", [x, e.index(*times)], x.kind, shape)


def _gather(e: OnnxEmitter) -> MlirTensor:
    """Gather from values n x k x c at indices n x w."""
    values, indices = operands(e, 2)
    if values.rank != 3 or indices.rank != 2 or values.shape[0] != indices.shape[0]:
        e.refuse("takes values of n x k x c and indices of n x w")
    parts = []
    count, rows, columns = values.shape
    for at in range(count):
        table = e.reshape(e.slice(values, [at, 0, 0], [1, rows, columns], [1, 1, 1]), (rows, columns))
        index = e.reshape(e.slice(indices, [at, 0], [1, indices.shape[1]], [1, 1]), (indices.shape[1],))
        table_rows = e.node("Gather", [table, index], values.kind, (indices.shape[1], columns), axis=0)
        parts.append(e.reshape(table_rows, (1, *table_rows.shape)))
    return e.concat(parts, 0)


def _reverse(e: OnnxEmitter) -> MlirTensor:
    x, axis = _along_axis(e)
    ends = [e.index(number) for number in (-1, -(1 << 63), axis, -1)]
    return e.node("Slice", [x, *ends], x.kind, x.shape)


def _scatter(e: OnnxEmitter) -> MlirTensor:
    """Scatter into values n x k x c: rows n x w x c replace those at indices n x w."""
    values, indices, rows = operands(e, 3)
    count, width = indices.shape if indices.rank == 2 else (0, 0)
    if values.rank != 3 or rows.shape != (count, width, values.shape[2]) or values.shape[0] != count:
        e.refuse("takes values of n x k x c, indices of n x w and rows of n x w x c")
    batches = e.constant(np.broadcast_to(np.arange(count, dtype=np.int64).reshape(-1, 1, 1), (count, width, 1)))
    pairs = e.concat([batches, e.reshape(e.cast(indices, "INT64"), (count, width, 1))], 2)
    return e.node("ScatterND", [values, pairs, rows], values.kind, values.shape)


def _transpose_convolution(e: OnnxEmitter) -> MlirTensor:
    """Lower to ConvTranspose with weights (cout, kh, kw, cin). Positive `out_pad` adds rows of the bias, negative
    removes rows."""
    x, w, bias, *_ = operands(e, 3, 5)
    kind, shape = result(e)
    if x.rank != 4 or w.rank != 4 or x.kind not in FLOATS:
        e.refuse("takes an image and weights of 4 dimensions, of floats")
    top, bottom, left, right = e.numbers("out_pad", (0, 0, 0, 0), 4)
    strides = e.numbers("stride", (1, 1), 2)
    full_size = [(size - 1) * stride + kernel + min(0, low) + min(0, high) for size, stride, kernel, low, high in zip(
        x.shape[1:3], strides, w.shape[1:3], (top, left), (bottom, right), strict=True)]  # fmt: skip
    if min(full_size) < 1:
        e.refuse("out_pad takes every row away: use less")
    image_out = e.node(
        "ConvTranspose", [e.cast(e.transpose(x, named.NHWC), kind), e.cast(e.transpose(w, (3, 0, 1, 2)), kind)], kind,
        (x.shape[0], w.shape[0], *full_size), strides=list(strides), kernel_shape=list(w.shape[1:3]),
        pads=[max(0, -amount) for amount in (top, left, bottom, right)],
    )  # fmt: skip
    image_out = e.transpose(image_out, named.NCHW)
    image_out = e.pad(
        image_out, (0, max(0, top), max(0, left), 0), (0, max(0, bottom), max(0, right), 0), e.scalar(0, kind)
    )
    return e.reshape(e.added(image_out, e.cast(bias, kind)), shape)


def _resize(e: OnnxEmitter) -> MlirTensor:
    """Resize an image n x h x w x c: nearest or bilinear along rows and columns."""
    x, *extra = operands(e, 1, 4)
    scale, offset = _numbers(e, "scale", extra[:1], 4), _numbers(e, "offset", extra[1:2], 2)
    mode = str(e.attribute("mode") or "")
    linear = "BILINEAR" in mode
    if x.rank != 4 or min(scale) < 1:
        e.refuse("takes an image of 4 dimensions and positive scales")
    if linear and x.kind not in FLOATS:
        e.refuse(f"bilinear of {x.kind} is not supported: use floats, or NEAREST_NEIGHBOR")
    _, shape = result(e)
    for axis in (1, 2):
        above, below = scale[2 * axis - 2 : 2 * axis]
        place = np.arange(shape[axis]) * below + offset[axis - 1]
        low, remainder = place // above, place % above
        rows = [np.clip(row, 0, x.shape[axis] - 1) for row in (low, low + 1)]
        if not linear:
            x = _take(e, x, np.where(2 * remainder >= above, rows[1], rows[0]), axis)
            continue
        first, second = (_take(e, x, row, axis) for row in rows)
        weights = (remainder / above).reshape([-1 if dim == axis else 1 for dim in range(4)]).astype(NUMPY[x.kind])
        parts = [e.elementwise("Mul", part, e.constant(weight, x.kind))
                 for part, weight in ((first, 1 - weights), (second, weights))]  # fmt: skip
        x = e.elementwise("Add", *parts)
    return e.expand(x, shape)


def _take(e: OnnxEmitter, x: MlirTensor, rows: Values, axis: int) -> MlirTensor:
    """Return the elements of one dimension at indices `rows`."""
    shape = [len(rows) if dim == axis else size for dim, size in enumerate(x.shape)]
    return e.node("Gather", [x, e.constant(rows.astype(np.int64))], x.kind, shape, axis=axis)


def _table(e: OnnxEmitter) -> MlirTensor:
    """Look up bytes in a table of 256 values."""
    x, *extra = operands(e, 1, 2)
    table = extra[0] if extra else e.constant_of(e.attribute("table"))
    values = e.needed(table, "the table")
    if x.kind != "INT8" or values.size != 256:
        e.refuse(f"a table of {values.size} values for {x.kind}: supported are 256 for i8")
    return rescaling.lookup(e, x, np.asarray(values).reshape(-1), result(e)[0])


def _rescale(e: OnnxEmitter) -> MlirTensor:
    x, *extra = operands(e, 1, 5)
    if len(extra) not in (0, 2, 4):
        e.refuse(f"takes 1, 3 or 5 operands, got {1 + len(extra)}")
    multipliers, shifts = _numbers(e, "multiplier", extra[:1]), _numbers(e, "shift", extra[1:2])
    points = zero_points(e, extra[2:], "input_zp", "output_zp")
    mode = str(e.attribute("rounding_mode") or "")
    twice = _flag(e.attribute("double_round")) or "DOUBLE" in mode
    if not _flag(e.attribute("scale32"), True):
        e.refuse("multipliers of 16 bits are not supported: export with scale32 = true")
    if len(multipliers) != len(shifts) or len(shifts) not in (1, x.shape[-1] if x.rank else 1):
        e.refuse(f"{len(multipliers)} multipliers and {len(shifts)} shifts: needs one, or one per channel, of each")
    scale = rescaling.Rescale(multipliers, shifts, points[0], points[1], twice)
    return rescaling.rescale_codes(e, x, scale, result(e)[0])


def _flag(value: Attribute | None, otherwise: bool = False) -> bool:
    return bool(value.value.data) if isinstance(value, IntegerAttr) else otherwise


TOSA: Mapping[str, Lower] = {
    "const": const, "const_shape": const, "conv2d": _convolution(False), "depthwise_conv2d": _convolution(True),
    "fully_connected": _fully_connected, "matmul": _matmul, "max_pool2d": _max_pool, "avg_pool2d": _avg_pool,
    "add": _same("Add", 2), "sub": _same("Sub", 2), "mul": _multiply, "maximum": _same("Max", 2),
    "minimum": _same("Min", 2), "pow": _same("Pow", 2), "div": _same("Div", 2), "int_div": _same("Div", 2),
    "equal": _same("Equal", 2), "greater": _same("Greater", 2), "greater_equal": _or_equal,
    "logical_and": _same("And", 2), "logical_or": _same("Or", 2), "logical_not": _same("Not", 1),
    "select": _same("Where", 3), "abs": _same("Abs", 1), "exp": _same("Exp", 1), "tanh": _same("Tanh", 1),
    "sigmoid": _same("Sigmoid", 1), "erf": _same("Erf", 1), "reciprocal": _same("Reciprocal", 1),
    "rsqrt": lambda e: scalars.SCALARS["math.rsqrt"](e, *operands(e, 1)),
    "log": _same("Log", 1), "ceil": _same("Ceil", 1), "floor": _same("Floor", 1), "sin": _same("Sin", 1),
    "cos": _same("Cos", 1), "negate": _negate, "clamp": _clamp, "cast": _cast,
    "identity": lambda e: operands(e, 1)[0], "reduce_sum": _reduce("ReduceSum"), "reduce_max": _reduce("ReduceMax"),
    "reduce_min": _reduce("ReduceMin"), "argmax": _argmax, "reshape": _reshape, "transpose": _transpose,
    "concat": _concat, "slice": _slice, "pad": _pad, "tile": _tile, "gather": _gather, "table": _table,
    "rescale": _rescale, "reverse": _reverse, "scatter": _scatter, "transpose_conv2d": _transpose_convolution,
    "resize": _resize, "reduce_prod": _reduce("ReduceProd"), "reduce_product": _reduce("ReduceProd"),
    "reduce_all": _reduce("ReduceAnd"), "reduce_any": _reduce("ReduceOr"),
}  # fmt: skip
"""Operation of tosa, without its dialect -> function that lowers it."""
