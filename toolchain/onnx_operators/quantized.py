"""Integer operators: their products are exact, with zero points, and the epilogue rescales them."""

import math
from typing import NamedTuple

import numpy as np
from onnx import helper

from npu_device.abi.opcodes import DataType
from toolchain.ir.graph import Attribute, TensorIR, Values
from toolchain.onnx_model.model import check_scale
from toolchain.onnx_model.node import Node
from toolchain.onnx_nodes.evaluation import evaluate
from toolchain.onnx_operators.copies import transpose_tensor
from toolchain.onnx_operators.elementwise import apply, apply_unary
from toolchain.onnx_operators.images import (
    channels_last,
    convolve,
    device_windows,
    groups_of,
    pad_tensor,
    rows_of_windows,
    windows,
)
from toolchain.onnx_operators.linear import product, product_list

_RESULT_SCALE = 6
"""Input of QLinearConv and QLinearMatMul with the scale of the result."""


class Quantity(NamedTuple):
    """Scale and zero point of an operand."""

    scale: Values
    zero: int


def _quantity(node: Node, scale: int, zero: int) -> Quantity:
    factor = np.asarray(node.needed(scale, "scale"))
    if factor.dtype not in (np.float32, np.float16):
        node.refuse(f"scale {node.proto.input[scale]} of type {factor.dtype}: supported are float32, float16")
    check_scale(node.model, node.proto, node.proto.input[scale], factor, divides=scale == _RESULT_SCALE)
    return Quantity(factor.reshape(-1).astype(np.float32), _zero(node, zero))


def _zero(node: Node, index: int) -> int:
    """Return a zero point; all elements must be equal."""
    if not node.has(index):
        return 0
    values = np.unique(node.needed(index, "zero point"))
    if values.size != 1:
        node.refuse(f"zero points {node.proto.input[index]} differ: supported is one for the whole tensor")
    return int(values[0])


def matmul_integer(node: Node) -> None:
    """Emit int32 products of INT8 and UINT8. For a zero point of A known only at run time, (A - za) (B - zb) = A (B -
    zb) - za s, where s are the column sums of B - zb."""
    a, b, out = node.tensor(0), node.tensor(1), node.output()
    if not node.has(2) or node.constant(2) is not None:
        product_list(node, a, b, out, zero0=_zero(node, 2), zero1=_zero(node, 3))
        return
    if len(b.shape) != 2 or math.prod(node.info(2).shape) != 1:
        node.refuse("a zero point of A that is no constant must be one value, and B a matrix")
    wide = DataType.INT32
    total, zero, correction = (node.temporary(shape, wide) for shape in (out.shape, (1,), (b.shape[1],)))
    product_list(node, a, b, total, zero0=0, zero1=_zero(node, 3))
    apply_unary(node, "CAST", node.tensor(2), zero)
    apply(node, "SUB", total, apply(node, "MUL", _column_sums(node, b, _zero(node, 3)), zero, correction), out)


def _column_sums(node: Node, b: TensorIR, zero: int) -> TensorIR:
    """Return the column sums of B - zero, INT32."""
    values, wide = node.constant(1), DataType.INT32
    if values is not None:
        return node.weight((values.astype(np.int64) - zero).sum(axis=0), wide)
    columns = transpose_tensor(node, b, (1, 0))
    elements, sums, shifted = (node.temporary(shape, wide) for shape in (columns.shape, (b.shape[1],), (b.shape[1],)))
    apply_unary(node, "CAST", columns, elements)
    node.layer("REDUCE", [elements], sums, function="SUM", m=b.shape[1], n=b.shape[0])
    return apply(node, "SUB", sums, node.scalar(zero * b.shape[0], wide), shifted)


def convolution_integer(node: Node) -> None:
    """Emit int32 convolutions; padding has the value of the zero point. For a zero point of X known only at run time,
    conv(X - zx, W - zw) = conv(X, W - zw) - zx conv(1, W - zw), with the last term folded."""
    x, w, out = node.tensor(0), node.tensor(1), node.output()
    if not node.has(2) or node.constant(2) is not None:
        _convolve(node, (x, w, out), _Finish(zeros=(_zero(node, 2), _zero(node, 3), 0, 0)))
        return
    if node.constant(1) is None or math.prod(node.info(2).shape) != 1:
        node.refuse("a zero point of x that is no constant must be one value, and w constant")
    wide = DataType.INT32
    total, correction = (node.temporary(out.shape, wide) for _ in range(2))
    zero = node.temporary((1,), wide)
    _convolve(node, (x, w, total), _Finish(zeros=(0, _zero(node, 3), 0, 0)))
    apply_unary(node, "CAST", node.tensor(2), zero)
    sums = node.weight(np.broadcast_to(_kernel_sums(node, x.shape), out.shape), wide)
    apply(node, "SUB", total, apply(node, "MUL", sums, zero, correction), out)


def _kernel_sums(node: Node, shape: tuple[int, ...]) -> Values:
    """Return conv(1, W - zw) of one image, by ONNX's own definition."""
    names = ["x", "w", "", "zw"][: 4 if node.has(3) else 2]
    feeds = {"x": np.ones((1, *shape[1:]), np.uint8), "w": node.needed(1, "w")}
    feeds |= {"zw": node.needed(3, "zero point")} if node.has(3) else {}
    proto = helper.make_node("ConvInteger", names, ["y"], **node.attributes)
    return np.asarray(evaluate(proto, feeds, node.model.proto.opset_import)[0])


def _multiplier(node: Node, a: Quantity, b: Quantity, y: Quantity) -> TensorIR:
    if a.scale.size != 1 or y.scale.size != 1:
        node.refuse("scales of input and output must be one for the whole tensor")
    return node.weight(a.scale * b.scale / y.scale, DataType.FP32)


def qlinear_matmul(node: Node) -> None:
    """Emit rint((A - za) (B - zb) sa sb / sy) + zy; sb may be a scale per column."""
    a, b, out = node.tensor(0), node.tensor(3), node.output()
    left, right, result = (_quantity(node, scale, scale + 1) for scale in (1, 4, 6))
    if right.scale.size not in (1, out.shape[-1]):
        node.refuse(f"b_scale of {right.scale.size} elements: must be 1 or one per column, {out.shape[-1]}")
    product_list(
        node, a, b, out, _multiplier(node, left, right, result), epilogue="scale", zero0=left.zero, zero1=right.zero,
        zero_out=result.zero,
    )  # fmt: skip


def qlinear_convolution(node: Node) -> None:
    """Emit rint(conv(X - zx, W - zw) sx sw / sy) + zy; sw may be a scale per channel."""
    x, w, out = node.tensor(0), node.tensor(3), node.output()
    image, weights, result = (_quantity(node, scale, scale + 1) for scale in (1, 4, 6))
    if weights.scale.size not in (1, w.shape[0]):
        node.refuse(f"w_scale of {weights.scale.size} elements: must be 1 or one per channel, {w.shape[0]}")
    bias, zeros = node.tensor(8) if node.has(8) else None, (image.zero, weights.zero, 0, result.zero)
    _convolve(node, (x, w, out), _Finish(_multiplier(node, image, weights, result), bias, zeros=zeros))


class _Finish(NamedTuple):
    """Epilogue of a product; without fields the sum is the result."""

    scale: TensorIR | None = None
    bias: TensorIR | None = None
    """INT32 bias, in steps of the sum."""
    residual: TensorIR | None = None
    zeros: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Zero points of A, B, the residual and the result."""
    relu: bool = False

    def tensors(self, residual: TensorIR | None) -> list[TensorIR]:
        """Return the operands in epilogue order; `residual`: the residual in the layout of the layer."""
        return [tensor for tensor in (self.bias, residual, self.scale) if tensor is not None]

    def attributes(self) -> dict[str, Attribute]:
        names = zip(("bias", "residual", "scale"), (self.bias, self.residual, self.scale), strict=True)
        epilogue = "+".join(name for name, tensor in names if tensor is not None)
        result: dict[str, Attribute] = {"zero0": self.zeros[0], "zero1": self.zeros[1]}
        if epilogue:
            result |= {"epilogue": epilogue, "zero_out": self.zeros[3]}
        if self.residual is not None:
            result["zero_in2"] = self.zeros[2]
        return result | ({"activation": "RELU"} if self.relu else {})


def _convolve(
    node: Node, tensors: tuple[TensorIR, TensorIR, TensorIR], finish: _Finish, bias: TensorIR | None = None
) -> None:
    """Emit a convolution; `bias` is added to a float result. 3-D images become patches times weights, with one row per
    pixel, so that scale and bias are per column."""
    x, w, out = tensors
    shape = windows(node, x.shape, w.shape[2:], out.shape[2:])
    groups = groups_of(node, tensors[0], tensors[1])
    on_device = device_windows(x, shape)
    if on_device is not None:
        residual = None if finish.residual is None else channels_last(node, finish.residual)
        convolve(node, tensors, on_device, groups, bias, *finish.tensors(residual), **finish.attributes())
        return
    if groups != 1:
        node.refuse(f"attribute group={groups} with {len(shape.kernel)} dimensions: supported is 1")
    cout, k = w.shape[0], math.prod(w.shape[1:])
    rank, last = len(out.shape), (0, *range(2, len(out.shape)), 1)
    x = pad_tensor(node, x, (0, 0, *shape.before), (0, 0, *shape.after), finish.zeros[0])
    rows = node.temporary((x.shape[0], *shape.output, cout), out.dtype)
    residual = None if finish.residual is None else transpose_tensor(node, finish.residual, last)
    product(
        node, [rows_of_windows(node, x, shape), w, *finish.tensors(residual)], rows, (rows.elements // cout, cout, k),
        in1_nk=1, **finish.attributes(),
    )  # fmt: skip
    if bias is not None:
        rows = apply(node, "ADD", rows, bias, node.temporary(rows.shape, rows.dtype))
    transpose_tensor(node, rows, (0, rank - 1, *range(1, rank - 1)), out)


def emit_fused(node: Node) -> None:
    """Emit QGemm and QConv of `toolchain.onnx_frontend.qdq`: A, B, bias in steps of the sum, bias of a float result,
    residual with the type of the result."""
    a, b, out = node.tensor(0), node.tensor(1), node.output()
    finish, bias = _finish(node, out), node.tensor(3) if node.has(3) else None
    if node.proto.op_type == "QConv":
        _convolve(node, (a, b, out), finish, bias)
        return
    total = out if bias is None else node.temporary(out.shape, out.dtype)
    tensors, attributes = finish.tensors(finish.residual), finish.attributes()
    if node.attribute("transB", 0):
        m, k = a.shape
        product(node, [a, b, *tensors], total, (m, b.shape[0], k), in1_nk=1, **attributes)
    else:
        product_list(node, a, b, total, *tensors, **attributes)
    if bias is not None:
        apply(node, "ADD", total, bias, out)


def _finish(node: Node, out: TensorIR) -> _Finish:
    """Return the epilogue of a fused node. The multiplier of a residual follows those of the channels."""
    scale = np.array(node.attribute("scale"))
    residual = node.tensor(4) if node.has(4) else None
    if residual is not None:
        channels = out.shape[1 if node.proto.op_type == "QConv" else -1]
        scale = np.append(np.broadcast_to(scale, (channels,)), node.attribute("residual_scale"))
    zero0, zero1, zero2, zero_out = (int(node.attribute(f"zero{of}", 0)) for of in ("0", "1", "_in2", "_out"))
    return _Finish(
        node.weight(scale, DataType.FP32), node.tensor(2) if node.has(2) else None, residual,
        (zero0, zero1, zero2, zero_out), bool(node.attribute("relu")),
    )  # fmt: skip
