"""Quantized operators of com.microsoft: DequantizeLinear, the floating-point operator, QuantizeLinear.

The compiler fuses a product between the two into an integer product (`toolchain.onnx_frontend.qdq`).
"""

import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from toolchain.ir.graph import Values
from toolchain.onnx_nodes.parts import Compose, Decomposition


def _numbers(parts: Decomposition, index: int, **attributes: int) -> str:
    """Dequantize the codes of an input; the next two inputs are their scale and zero point."""
    zero = [parts.input(index + 2)] if parts.node.has(index + 2) else []
    return parts.make("DequantizeLinear", parts.input(index), parts.input(index + 1), *zero, **attributes)


def _codes(parts: Decomposition, x: str, scale: int) -> None:
    """Compose the result: quantize with the scale at input `scale` and the zero point at the next input."""
    if parts.node.has(scale + 1):
        zero = parts.input(scale + 1)
    else:
        zero = parts.constant(np.zeros((), parts.kind))
    parts.result("QuantizeLinear", x, parts.input(scale), zero)


def unary(operator: str) -> Compose:
    def compose(parts: Decomposition) -> None:
        _codes(parts, parts.make(operator, _numbers(parts, 0)), 3)

    return compose


def leaky_relu(parts: Decomposition) -> None:
    _codes(parts, parts.make("LeakyRelu", _numbers(parts, 0), alpha=parts.node.attribute("alpha", 0.01)), 3)


def binary(operator: str) -> Compose:
    def compose(parts: Decomposition) -> None:
        _codes(parts, parts.make(operator, _numbers(parts, 0), _numbers(parts, 3)), 6)

    return compose


def where(parts: Decomposition) -> None:
    selected = parts.make("Where", parts.input(0), _numbers(parts, 1), _numbers(parts, 4))
    zero = parts.input(8) if parts.node.has(8) else parts.constant(np.zeros((), parts.node.numpy_type(1)))
    parts.result("QuantizeLinear", selected, parts.input(7), zero)


def concat(parts: Decomposition) -> None:
    node = parts.node
    inputs = [_numbers(parts, index) for index in range(2, len(node.proto.input), 3)]
    joined = parts.make("Concat", *inputs, axis=node.attribute("axis"))
    parts.result("QuantizeLinear", joined, parts.input(0), parts.input(1))


def pooled(operator: str) -> Compose:
    def compose(parts: Decomposition) -> None:
        node, rank = parts.node, len(parts.node.shape(0))
        last = bool(node.attribute("channels_last", 0))
        attributes = {name: value for name, value in node.attributes.items() if name != "channels_last"}
        x = _numbers(parts, 0)
        if last:
            x = parts.make("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)])
        x = parts.make(operator, x, **attributes)
        if last:
            x = parts.make("Transpose", x, perm=[0, *range(2, rank), 1])
        _codes(parts, x, 3)

    return compose


def softmax(parts: Decomposition) -> None:
    """Compose Softmax; below opset 13 the dimensions from the axis on are flattened."""
    node, shape = parts.node, parts.node.shape(0)
    opset = int(node.attribute("opset", 0))
    axis = node.axis(len(shape), -1 if opset >= 13 else 1)
    x = _numbers(parts, 0)
    if opset >= 13 or axis == len(shape) - 1:
        result = parts.make("Softmax", x, axis=axis)
    else:
        flat = parts.make("Softmax", parts.make("Flatten", x, axis=axis), axis=1)
        result = parts.reshaped(flat, *shape)
    _codes(parts, result, 3)


def gemm(parts: Decomposition) -> None:
    """Compose Gemm: the scale of the bias is the product of both scales. Without an output scale the result is
    float."""
    node = parts.node
    columns = 0 if node.attribute("transB", 0) else 1
    per_column = math.prod(node.shape(4)) > 1
    attributes = {name: node.attribute(name) for name in ("alpha", "transA", "transB") if name in node.attributes}
    operands = [_numbers(parts, 0), _numbers(parts, 3, **({"axis": columns} if per_column else {}))]
    if node.has(6):
        scale = parts.make("Mul", parts.input(1), parts.input(4))
        if per_column:
            operands.append(parts.make("Mul", parts.make("Cast", parts.input(6), to=1), scale))
        else:
            scalar = parts.make("Reshape", scale, parts.constant(np.zeros(0, np.int64)))
            operands.append(parts.make("Mul", parts.make("Cast", parts.input(6), to=1), scalar))
    if node.has(7):
        _codes(parts, parts.make("Gemm", *operands, **attributes), 7)
    else:
        parts.result("Gemm", *operands, **attributes)


# -- integer products with floating-point results ----------------------------------------------------------------------


def _scale(parts: Decomposition, product: str, scales: list[str], bias: int) -> None:
    """Compose the result: integers times scales, plus a bias."""
    x = parts.make("Cast", product, to=1)
    for scale in scales[:-1]:
        x = parts.make("Mul", x, scale)
    if parts.node.has(bias):
        parts.result("Add", parts.make("Mul", x, scales[-1]), parts.input(bias))
    else:
        parts.result("Mul", x, scales[-1])


def dynamic_matmul(parts: Decomposition) -> None:
    node = parts.node
    codes, scale, zero = parts.several(3, "DynamicQuantizeLinear", parts.input(0))
    zeros = [parts.input(3)] if node.has(3) else []
    product = parts.make("MatMulInteger", codes, parts.input(1), zero, *zeros)
    _scale(parts, product, [scale, parts.input(2)], 4)


def integer_matmul(parts: Decomposition) -> None:
    node = parts.node
    zeros = [parts.input(index) if node.has(index) else "" for index in (4, 5)]
    while zeros and not zeros[-1]:
        zeros.pop()
    product = parts.make("MatMulInteger", parts.input(0), parts.input(1), *zeros)
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
    weights = parts.constant(np.ascontiguousarray(codes.T).astype(_STORED[bits]))
    by_block = parts.constant(np.ascontiguousarray(scales.reshape(columns, blocks).T))
    if node.has(3):
        zeros = node.needed(3, "zero_points")
        if zeros.dtype != np.uint8:
            node.refuse(f"data type {node.info(3).type} of zero_points is not supported: supported is UINT8")
        zero = unpack(zeros.reshape(columns, -1), bits, blocks).T
    else:
        zero = np.full((blocks, columns), 1 << bits - 1)
    numbers = parts.make(
        "DequantizeLinear", weights, by_block, parts.constant(np.ascontiguousarray(zero).astype(_STORED[bits])),
        axis=0, block_size=size,
    )  # fmt: skip
    x = parts.input(0)
    if int(node.attribute("accuracy_level", 0)) == _ROUNDED:
        x = _round(parts, x, node.shape(0), size)
    if node.has(5):
        parts.result("Add", parts.make("MatMul", x, numbers), parts.input(5))
    else:
        parts.result("MatMul", x, numbers)


_ROUNDED = 4
"""Accuracy level with 8-bit codes of activations."""


def _round(parts: Decomposition, x: str, shape: Sequence[int], size: int) -> str:
    """Round activations to 127 steps of the maximum of their block."""
    *_, width = shape
    blocks, lead = -(-width // size), [0] * (len(shape) - 1)  # for any number of tokens
    if blocks * size > width:
        pads = parts.integers(*[0] * (2 * len(shape) - 1), blocks * size - width)
        x = parts.make("Pad", x, pads)
    x = parts.reshaped(x, *lead, blocks, size)
    step = parts.make("Div", parts.make("ReduceMax", parts.make("Abs", x), parts.integers(-1)), parts.number(127))
    step = parts.make("Where", parts.make("Equal", step, parts.number(0)), parts.number(1), step)
    x = parts.make("Mul", parts.make("Round", parts.make("Div", x, step)), step)
    x = parts.reshaped(x, *lead, blocks * size)
    return parts.sliced(x, len(shape) - 1, 0, width) if blocks * size > width else x


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

    def gather(values: Values, *split: int) -> str:
        rows_of_tokens = parts.make("Gather", parts.constant(np.ascontiguousarray(values)), parts.input(1), axis=0)
        return parts.reshaped(rows_of_tokens, *lead, blocks, *split)

    numbers = parts.cast(gather(rows, size), scales.dtype)
    moved = parts.make("Sub", numbers, gather(zero.astype(scales.dtype), 1))
    wide_rows = parts.reshaped(parts.make("Mul", moved, gather(scales, 1)), *lead, blocks * size)
    parts.result("Identity", wide_rows if columns == blocks * size else parts.sliced(wide_rows, len(lead), 0, columns))


def unpack(packed: Values, bits: int, count: int) -> Values:
    """Return `count` codes from each row of bytes, lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = packed[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return np.asarray(codes.reshape(*packed.shape[:-1], -1)[..., :count])
