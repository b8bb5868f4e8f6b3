"""Quantized operators of com.microsoft: DequantizeLinear, the floating-point operator, QuantizeLinear.

The compiler fuses a product between the two into an integer product (`toolchain.onnx_frontend.qdq`).
"""

import math
from collections.abc import Sequence
from functools import reduce
from operator import mul

import ml_dtypes
import numpy as np

from toolchain.ir.graph import Values
from toolchain.onnx_nodes.parts import Compose, Decomposition, Tensor


def _numbers(parts: Decomposition, index: int, **attributes: int) -> Tensor:
    """Dequantize the codes of an input; the next two inputs are their scale and zero point."""
    operands = parts.input(index), parts.input(index + 1), parts.optional(index + 2)
    return parts.make("DequantizeLinear", *operands, **attributes)


def _codes(parts: Decomposition, x: Tensor, scale: int, codes: int = 0) -> None:
    """Compose the result: quantize with the scale at input `scale` and the zero point at the next input, to the type of
    input `codes`."""
    zero = parts.optional(scale + 1) or np.zeros((), parts.node.numpy_type(codes))
    parts.result("QuantizeLinear", x, parts.input(scale), zero)


def elementwise(operator: str, *inputs: int, scale: int) -> Compose:
    """Return the decomposition into an operator on the codes at `inputs`; `scale`: input with that of the result."""

    def compose(parts: Decomposition) -> None:
        operands = [_numbers(parts, index) for index in inputs]
        _codes(parts, parts.make(operator, *operands, **parts.node.attributes), scale)

    return compose


def where(parts: Decomposition) -> None:
    _codes(parts, parts.input(0).where(_numbers(parts, 1), _numbers(parts, 4)), 7, 1)


def concat(parts: Decomposition) -> None:
    node = parts.node
    inputs = [_numbers(parts, index) for index in range(2, len(node.proto.input), 3)]
    _codes(parts, parts.make("Concat", *inputs, axis=node.attribute("axis")), 0)


def pooled(operator: str) -> Compose:
    def compose(parts: Decomposition) -> None:
        node, rank = parts.node, len(parts.node.shape(0))
        last = bool(node.attribute("channels_last", 0))
        attributes = {name: value for name, value in node.attributes.items() if name != "channels_last"}
        x = _numbers(parts, 0)
        if last:
            x = x.transpose(0, rank - 1, *range(1, rank - 1))
        x = parts.make(operator, x, **attributes)
        if last:
            x = x.transpose(0, *range(2, rank), 1)
        _codes(parts, x, 3)

    return compose


def softmax(parts: Decomposition) -> None:
    """Compose Softmax; below opset 13 the dimensions from the axis on are flattened."""
    node, shape = parts.node, parts.node.shape(0)
    opset = int(node.attribute("opset", 0))
    axis = node.axis(len(shape), -1 if opset >= 13 else 1)
    x = _numbers(parts, 0)
    if opset >= 13 or axis == len(shape) - 1:
        x = parts.make("Softmax", x, axis=axis)
    else:
        x = parts.make("Softmax", parts.make("Flatten", x, axis=axis), axis=1).reshape(*shape)
    _codes(parts, x, 3)


def gemm(parts: Decomposition) -> None:
    """Compose Gemm: the scale of the bias is the product of both scales. Without an output scale the result is
    float."""
    node = parts.node
    columns = 0 if node.attribute("transB", 0) else 1
    per_column = math.prod(node.shape(4)) > 1
    attributes = {name: node.attribute(name) for name in ("alpha", "transA", "transB") if name in node.attributes}
    operands = [_numbers(parts, 0), _numbers(parts, 3, **{"axis": columns} if per_column else {})]
    if node.has(6):
        scale = parts.input(1) * parts.input(4)
        scale = scale if per_column else scale.reshape()
        operands.append(parts.input(6).cast(np.float32) * scale)
    if node.has(7):
        _codes(parts, parts.make("Gemm", *operands, **attributes), 7)
    else:
        parts.result("Gemm", *operands, **attributes)


# -- integer products with floating-point results ----------------------------------------------------------------------


def _scale(parts: Decomposition, product: Tensor, scales: list[Tensor], bias: int) -> None:
    """Compose the result: integers times scales, plus a bias."""
    parts.output(parts.plus(reduce(mul, scales, product.cast(np.float32)), bias))


def dynamic_matmul(parts: Decomposition) -> None:
    codes, scale, zero = parts.several(3, "DynamicQuantizeLinear", parts.input(0))
    product = parts.make("MatMulInteger", codes, parts.input(1), zero, parts.optional(3))
    _scale(parts, product, [scale, parts.input(2)], 4)


def integer_matmul(parts: Decomposition) -> None:
    product = parts.make("MatMulInteger", parts.input(0), parts.input(1), parts.optional(4), parts.optional(5))
    _scale(parts, product, [parts.input(2), parts.input(3)], 6)


_STORED = {2: ml_dtypes.uint4, 4: ml_dtypes.uint4, 8: np.uint8}
"""Bits of a code -> ONNX storage type."""


def matmul_nbits(parts: Decomposition) -> None:
    """Compose MatMulNBits: weights in blocks along K, each with a scale and a zero point; they remain codes
    (`passes.weight_groups`). At accuracy level 4 activations are rounded to 127 steps of their block's maximum, as in
    onnxruntime."""
    node = parts.node
    size, rows, columns, bits = (int(node.attribute(name)) for name in ("block_size", "K", "N", "bits"))
    if bits not in _STORED:
        node.refuse(f"attribute bits={bits}: supported are {', '.join(map(str, _STORED))}")
    if node.has(4):
        order = node.needed(4, "g_idx")
        if not np.array_equal(order, np.arange(rows) // size):
            node.refuse("input g_idx is supported where the blocks are in order")
    packed, scales = node.needed(1, "B"), node.needed(2, "scales")
    blocks = -(-rows // size)
    codes = unpack(packed.reshape(columns, -1), bits, blocks * size)[:, :rows]
    weights = np.ascontiguousarray(codes.T).astype(_STORED[bits])
    by_block = np.ascontiguousarray(scales.reshape(columns, blocks).T)
    if node.has(3):
        zeros = node.needed(3, "zero_points")
        if zeros.dtype != np.uint8:
            node.refuse(f"data type {node.info(3).type} of zero_points is not supported: supported is UINT8")
        zero = unpack(zeros.reshape(columns, -1), bits, blocks).T
    else:
        zero = np.full((blocks, columns), 1 << bits - 1)
    zero = np.ascontiguousarray(zero).astype(_STORED[bits])
    numbers = parts.make("DequantizeLinear", weights, by_block, zero, axis=0, block_size=size)
    x = parts.input(0)
    if int(node.attribute("accuracy_level", 0)) == _ROUNDED:
        x = _round(parts, x, node.shape(0), size)
    parts.output(parts.plus(x @ numbers, 5))


_ROUNDED = 4
"""Accuracy level with 8-bit codes of activations."""


def _round(parts: Decomposition, x: Tensor, shape: Sequence[int], size: int) -> Tensor:
    """Round activations to 127 steps of the maximum of their block."""
    *_, width = shape
    blocks, lead = -(-width // size), [0] * (len(shape) - 1)  # for any number of tokens
    if blocks * size > width:
        x = parts.make("Pad", x, [*[0] * (2 * len(shape) - 1), blocks * size - width])
    x = x.reshape(*lead, blocks, size)
    step = parts.make("ReduceMax", abs(x), [-1]) / 127
    step = step.equal(0).where(1, step)
    x = (parts.make("Round", x / step) * step).reshape(*lead, blocks * size)
    return x.slice(len(shape) - 1, 0, width) if blocks * size > width else x


def gather_blocks(parts: Decomposition) -> None:
    """Compose GatherBlockQuantized: gather rows of codes with a scale and zero point per block, and dequantize."""
    node = parts.node
    size, bits = int(node.attribute("block_size", 128)), int(node.attribute("bits", 4))
    table, scales, rank = node.needed(0, "data"), node.needed(2, "scales"), len(node.shape(0))
    along = [int(node.attribute(name, default)) % rank for name, default in (("gather_axis", 0), ("quantize_axis", 1))]
    if rank != 2 or along != [0, 1] or table.dtype != np.uint8 or bits not in (4, 8):
        node.refuse("supported are rows (gather_axis 0) of a matrix of UINT8, blocks along them, and bits of 4 or 8")
    blocks = scales.shape[1]
    codes = unpack(table, bits, table.shape[1] * 8 // bits)
    columns = codes.shape[1]
    rows = np.pad(codes, ((0, 0), (0, blocks * size - columns)))
    zeros = node.needed(3, "zero_points") if node.has(3) else None
    zero = np.full(scales.shape, 1 << bits - 1) if zeros is None else unpack(zeros, bits, blocks)
    lead = [0] * len(node.shape(1))  # for any number of tokens

    def gather(values: Values, *split: int) -> Tensor:
        rows_of_tokens = parts.make("Gather", np.ascontiguousarray(values), parts.input(1), axis=0)
        return rows_of_tokens.reshape(*lead, blocks, *split)

    moved = gather(rows, size).cast(scales.dtype) - gather(zero.astype(scales.dtype), 1)
    wide_rows = (moved * gather(scales, 1)).reshape(*lead, blocks * size)
    parts.result("Identity", wide_rows if columns == blocks * size else wide_rows.slice(len(lead), 0, columns))


def unpack(packed: Values, bits: int, count: int) -> Values:
    """Return `count` codes from each row of bytes, lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = packed[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return np.asarray(codes.reshape(*packed.shape[:-1], -1)[..., :count])
