"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear: conversions between numbers and codes."""

from typing import NamedTuple

import numpy as np

from npu_device.abi.opcodes import DataType
from toolchain.ir.data_types import INTEGERS, SHORT
from toolchain.ir.graph import Attribute, TensorIR, Values
from toolchain.onnx_model.model import check_scale
from toolchain.onnx_model.node import Node
from toolchain.onnx_operators.elementwise import apply, apply_unary, cast_to

F8 = frozenset((DataType.E4M3FN, DataType.E5M2))
LIMITS = {"INT8": (-128, 127), "UINT8": (0, 255), **SHORT}
"""ONNX type of codes -> their (minimum, maximum)."""


class _Grid(NamedTuple):
    """Scales and zero points, in shapes that broadcast to the tensor."""

    scale: Values
    zero: Values

    @property
    def single(self) -> bool:
        return self.scale.size == 1 and self.zero.size == 1


def _grid(node: Node, shape: tuple[int, ...]) -> _Grid:
    """Return the grid of a tensor: one scale, one per index along an axis, or one per block along it."""
    scale = node.needed(1, "scale")
    if scale.dtype != np.float32:
        node.refuse(f"scale of type {scale.dtype}: supported is float32")
    check_scale(node.model, node.proto, node.proto.input[1], scale)
    zero = node.needed(2, "zero point").astype(np.int64) if node.has(2) else np.zeros((), np.int64)
    if scale.size == 1:
        return _Grid(scale.reshape(1), zero.reshape(-1)[:1])
    axis, block = node.axis(len(shape), 1), int(node.attribute("block_size", 0))
    if block:
        elements = (slice(None),) * axis + (slice(shape[axis]),)
        grids = (np.repeat(values, block, axis)[elements] if values.ndim else values for values in (scale, zero))
    else:
        along = [-1 if dim == axis else 1 for dim in range(len(shape))]
        grids = (values.reshape(along) for values in (scale, zero))
    return _Grid(*grids)


def quantize(node: Node) -> None:
    x, out = node.tensor(0), node.output()
    code = node.out_info().type
    if code not in LIMITS and out.dtype not in F8:
        node.refuse(f"result of type {code}: supported are {', '.join(LIMITS)}, E4M3FN, E5M2")
    grid = _grid(node, x.shape)
    if out.dtype in F8:
        _round(node, x, grid, out)
        return
    if grid.single and code in SHORT:
        _codes(node, x, node.weight(grid.scale, DataType.FP32), node.weight(grid.zero, DataType.INT32), code, out)
        return
    if grid.single:
        scale, zero = float(grid.scale[0]), int(grid.zero[0])
        factor = node.weight(grid.scale, DataType.FP32)
        node.layer("ELTWISE", [x, factor], out, function="QUANT", m=1, n=out.elements, scale=scale, zero=zero)
        return
    if x.dtype is not DataType.FP32:
        node.refuse(f"several scales with data type {x.dtype.name}: supported is FP32")
    steps = apply(node, "DIV", x, node.weight(grid.scale, DataType.FP32), node.temporary(x.shape, DataType.FP32))
    _codes(node, steps, node.weight(np.ones(1), DataType.FP32), node.weight(grid.zero, DataType.INT32), code, out)


def _round(node: Node, x: TensorIR, grid: _Grid, out: TensorIR) -> None:
    """Emit x / scale as 8-bit floats with saturation."""
    if node.attribute("saturate", 1) != 1:
        node.refuse("attribute saturate=0: supported is 1, values beyond the largest become the largest")
    if grid.zero.any():
        node.refuse(f"zero point of {out.dtype.name}: supported is 0")
    steps, wide = node.temporary(x.shape, DataType.FP32), cast_to(node, x, DataType.FP32)
    apply_unary(node, "CAST", apply(node, "DIV", wide, node.weight(grid.scale, DataType.FP32), steps), out)


def _codes(node: Node, x: TensorIR, scale: TensorIR, zero: TensorIR, code: str, out: TensorIR) -> None:
    """Emit rint(x / scale) + zero, clipped, for zero points in a tensor or 16-bit codes."""
    steps, moved, clipped = (node.temporary(x.shape, DataType.INT32) for _ in range(3))
    node.layer("ELTWISE", [x, scale], steps, function="QUANT", m=1, n=x.elements, zero=0)
    if node.graph.constant(scale.id) is not None:  # a scale computed at run time covers all values
        steps = apply_unary(node, "CLIP", steps, node.temporary(x.shape, DataType.INT32), low=-_FAR, high=_FAR)
    low, high = LIMITS[code]
    apply_unary(node, "CLIP", apply(node, "ADD", steps, zero, moved), clipped, low=low, high=high)
    apply_unary(node, "CAST", clipped, out)


_FAR = 1 << 17
"""Clip limit in steps from the zero point, beyond all codes: adding the zero point to larger values could wrap."""


def dequantize(node: Node) -> None:
    x, out = node.tensor(0), node.output()
    if x.dtype not in INTEGERS | F8:
        node.refuse(f"input of type {x.dtype.name}: supported are {', '.join(LIMITS)}, INT32, E4M3FN, E5M2")
    grid = _grid(node, x.shape)
    if x.dtype in F8:
        _widen(node, x, grid, out)
        return
    if grid.single and (x.dtype is not DataType.INT32 or not grid.zero.any()):
        scale, zero = float(grid.scale[0]), int(grid.zero[0])
        factor = node.weight(grid.scale, DataType.FP32)
        node.layer("ELTWISE", [x, factor], out, function="DEQUANT", m=1, n=out.elements, scale=scale, zero=zero)
        return
    if out.dtype is not DataType.FP32:
        several = "several scales" if not grid.single else f"codes of {node.info(0).type}"
        node.refuse(f"{several} with a result of {out.dtype.name}: supported is FP32")
    wide, difference = (node.temporary(x.shape, DataType.INT32) for _ in range(2))
    real = node.temporary(x.shape, DataType.FP32)
    apply(node, "SUB", apply_unary(node, "CAST", x, wide), node.weight(grid.zero, DataType.INT32), difference)
    apply_unary(node, "CAST", difference, real)
    apply(node, "MUL", real, node.weight(grid.scale, DataType.FP32), out)


def _widen(node: Node, x: TensorIR, grid: _Grid, out: TensorIR) -> None:
    """Emit 8-bit floats times their scale."""
    if grid.zero.any():
        node.refuse(f"zero point of {x.dtype.name}: supported is 0")
    if out.dtype is not DataType.FP32:
        node.refuse(f"input of type {x.dtype.name} with a result of {out.dtype.name}: supported is FP32")
    apply(node, "MUL", cast_to(node, x, DataType.FP32), node.weight(grid.scale, DataType.FP32), out)


def dynamic_quantize(node: Node) -> None:
    """Emit UINT8 codes over the range of the values and 0; the scale is computed at run time."""
    x = node.tensor(0)
    y, scale, zero = (node.output(index) for index in range(3))
    fp32, rounded = DataType.FP32, (1,)

    def step(function: str, *inputs: TensorIR, out: TensorIR | None = None, **attributes: Attribute) -> TensorIR:
        target = out or node.temporary(rounded, fp32)
        broadcast: dict[str, Attribute] = {"broadcast": "FULL"} if len(inputs) > 1 else {}
        node.layer("ELTWISE", inputs, target, function=function, m=1, n=1, **broadcast, **attributes)
        return target

    negative, high, low = (node.temporary(shape, fp32) for shape in (x.shape, rounded, rounded))
    zero_scalar, minus = node.scalar(0, fp32), node.scalar(-1, fp32)
    apply(node, "MUL", x, minus, negative)
    node.layer("REDUCE", [x], high, function="MAX", m=1, n=x.elements)
    node.layer("REDUCE", [negative], low, function="MAX", m=1, n=x.elements)
    top, bottom = step("MAX", high, zero_scalar), step("MAX", low, zero_scalar)
    width = step("ADD", top, bottom)
    flat = node.temporary(rounded, DataType.UINT8)
    step("EQUAL", width, zero_scalar, out=flat)
    safe = node.temporary(rounded, fp32)
    node.layer("ELTWISE", [flat, node.scalar(1, fp32), width], safe, function="WHERE", m=1, n=1)
    step("DIV", safe, node.scalar(255, fp32), out=node.view(scale, rounded))
    scale = node.view(scale, rounded)
    # the zero point is rint(bottom / scale): QUANT rounds and clips to 0..255
    step("QUANT", step("DIV", bottom, scale), node.scalar(1, fp32), out=node.view(zero, rounded), zero=0, scale=1.0)
    offset = node.temporary(rounded, DataType.INT32)
    step("CAST", node.view(zero, rounded), out=offset)
    _codes(node, x, scale, offset, "UINT8", y)
