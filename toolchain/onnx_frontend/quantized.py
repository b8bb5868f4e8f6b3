"""Operators on integers: their products are exact, with zero points, and scaled down by the epilogue."""

import math
from typing import NamedTuple

import numpy as np

from npu_device.abi.opcodes import DataType
from toolchain.ir.graph import Attribute, TensorIR, Values
from toolchain.onnx_frontend.copies import transposed
from toolchain.onnx_frontend.linear import product_list
from toolchain.onnx_frontend.node import Node
from toolchain.onnx_frontend.windows import padded, patches, rows_of_windows, windows


class Quantity(NamedTuple):
    """Scale and zero point of an operand."""

    scale: Values
    zero: int


def _quantity(node: Node, scale: int, zero: int) -> Quantity:
    factor = np.asarray(node.needed(scale, "scale"))
    if factor.dtype != np.float32:
        node.refuse(f"scale {node.proto.input[scale]} of type {factor.dtype}: supported is float32")
    return Quantity(factor.reshape(-1), _zero(node, zero))


def _zero(node: Node, index: int) -> int:
    """A zero point; lists must hold one value."""
    if not node.has(index):
        return 0
    values = np.unique(node.needed(index, "zero point"))
    if values.size != 1:
        node.refuse(f"zero points {node.proto.input[index]} differ: supported is one for the whole tensor")
    return int(values[0])


def matmul_integer(node: Node) -> None:
    """int32 products of INT8 and UINT8."""
    a, b = node.tensor(0), node.tensor(1)
    zeros: dict[str, Attribute] = {"zero0": _zero(node, 2), "zero1": _zero(node, 3)}
    product_list(node, a, b, node.output(), **zeros)


def convolution_integer(node: Node) -> None:
    """Per image and group: weights times patches; padding holds the zero point."""
    x, w, out = node.tensor(0), node.tensor(1), node.output(kind=DataType.INT32)
    shape = windows(node, x.shape, w.shape[2:], out.shape[2:])
    if int(node.attribute("group", 1)) != 1:
        node.refuse(f"attribute group={node.attribute('group')}: supported is 1")
    zero = _zero(node, 2)
    columns = patches(node, x, shape, windows_last=True, border=zero)
    k, n = math.prod(w.shape[1:]), math.prod(shape.output)
    node.layer(
        "GEMM_T", [w, columns], out, batch=x.shape[0], m=w.shape[0], n=n, k=k, step0=0, step1=k * n,
        zero0=_zero(node, 3), zero1=zero,
    )  # fmt: skip


def _multiplier(node: Node, a: Quantity, b: Quantity, y: Quantity) -> TensorIR:
    if a.scale.size != 1 or y.scale.size != 1:
        node.refuse("scales of input and output must be one for the whole tensor")
    return node.weight(a.scale * b.scale / y.scale, DataType.FP32)


def qlinear_matmul(node: Node) -> None:
    """rint((A - za) (B - zb) sa sb / sy) + zy; sb may be one per column."""
    a, b, out = node.tensor(0), node.tensor(3), node.output()
    left, right, result = (_quantity(node, scale, scale + 1) for scale in (1, 4, 6))
    if right.scale.size not in (1, out.shape[-1]):
        node.refuse(f"b_scale of {right.scale.size} elements: must be 1 or one per column, {out.shape[-1]}")
    product_list(
        node, a, b, out, _multiplier(node, left, right, result), epilogue="scale", zero0=left.zero, zero1=right.zero,
        zero_out=result.zero,
    )  # fmt: skip


def qlinear_convolution(node: Node) -> None:
    """Patches times weights, one row per pixel, so that scale and bias are per column; then back to NCHW."""
    x, w, out = node.tensor(0), node.tensor(3), node.output()
    if int(node.attribute("group", 1)) != 1:
        node.refuse(f"attribute group={node.attribute('group')}: supported is 1")
    image, weights, result = (_quantity(node, scale, scale + 1) for scale in (1, 4, 6))
    shape = windows(node, x.shape, w.shape[2:], out.shape[2:])
    cout, k = w.shape[0], math.prod(w.shape[1:])
    if weights.scale.size not in (1, cout):
        node.refuse(f"w_scale of {weights.scale.size} elements: must be 1 or one per channel, {cout}")
    x = padded(node, x, (0, 0, *shape.before), (0, 0, *shape.after), image.zero)
    pixels = x.shape[0] * math.prod(shape.output)
    inputs = [rows_of_windows(node, x, shape), w]
    epilogue = "scale"
    if node.has(8):
        inputs.append(node.tensor(8))
        epilogue = "bias+scale"
    inputs.append(_multiplier(node, image, weights, result))
    rows = node.temporary((x.shape[0], *shape.output, cout), out.dtype)
    node.layer(
        "GEMM_T", inputs, rows, batch=1, m=pixels, n=cout, k=k, step0=0, step1=0, in1_nk=1, epilogue=epilogue,
        zero0=image.zero, zero1=weights.zero, zero_out=result.zero,
    )  # fmt: skip
    rank = len(rows.shape)
    transposed(node, rows, (0, rank - 1, *range(1, rank - 1)), out)
