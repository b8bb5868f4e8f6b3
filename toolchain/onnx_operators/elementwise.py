"""Elementwise operators with one, two or three operands that broadcast to each other."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from npu_device.abi.opcodes import DataType
from toolchain.ir.data_types import FLOATS, INTEGERS, LARGER, ONNX, SHORT
from toolchain.ir.graph import Attribute, TensorIR
from toolchain.onnx_model.node import Node
from toolchain.onnx_operators.copies import broadcast_tensor, check_broadcast, copy, steps

Lower = Callable[[Node], None]
_COMMUTATIVE = frozenset(("ADD", "MUL", "MAX", "MIN", "EQUAL", "AND", "OR", "XOR"))


def split(shape: Sequence[int], target_shape: Sequence[int]) -> tuple[str, int, int] | None:
    """Return (broadcast, m, n) that read a tensor with shape `target_shape`; None if it must be expanded."""
    total = math.prod(target_shape)
    padded = (*[1] * (len(target_shape) - len(shape)), *shape)
    if math.prod(shape) == total:
        return "FULL", 1, total
    if math.prod(shape) == 1:
        return "SCALAR", 1, total
    for axis in range(len(target_shape) + 1):
        rows, columns = math.prod(target_shape[:axis]), math.prod(target_shape[axis:])
        if math.prod(padded[:axis]) == 1 and tuple(padded[axis:]) == tuple(target_shape[axis:]):
            return "ROW", rows, columns
        if math.prod(padded[axis:]) == 1 and tuple(padded[:axis]) == tuple(target_shape[:axis]):
            return "COLUMN", rows, columns
    return None


def apply(
    node: Node, function: str, first: TensorIR, second: TensorIR, target: TensorIR | None = None
) -> TensorIR:  # fmt: skip
    """Emit an ELTWISE layer of two operands, and return its result, by default a new tensor of their type. A broadcast
    that the layer does not support is expanded first."""
    if target is None:
        larger = first if second.elements == 1 else second if first.elements == 1 else None
        shape = np.broadcast_shapes(first.shape, second.shape) if larger is None else larger.shape
        target = node.temporary(shape, first.dtype)
    shape = target.shape
    for operand in (first, second):
        check_broadcast(node, operand, shape)
    if math.prod(first.shape) != target.elements and function in _COMMUTATIVE:
        first, second = second, first
    first = broadcast_tensor(node, first, shape)
    layout = split(second.shape, shape)
    if layout is None:
        second = broadcast_tensor(node, second, shape)
        layout = ("FULL", 1, target.elements)
    broadcast, m, n = layout
    node.layer("ELTWISE", [first, second], target, function=function, m=m, n=n, broadcast=broadcast)
    return target


def apply_unary(node: Node, function: str, x: TensorIR, target: TensorIR, **attributes: Attribute) -> TensorIR:
    """Emit an ELTWISE layer of one operand, and return its result."""
    node.layer("ELTWISE", [x], target, function=function, m=1, n=x.elements, **attributes)
    return target


def cast_to(node: Node, x: TensorIR, kind: DataType) -> TensorIR:
    """Return a tensor in another type."""
    return x if x.dtype is kind else apply_unary(node, "CAST", x, node.temporary(x.shape, kind))


def unary(function: str) -> Lower:
    def lower(node: Node) -> None:
        out = node.output()
        apply_unary(node, function, node.tensor(0), out)

    return lower


def binary(function: str) -> Lower:
    def lower(node: Node) -> None:
        first, second = node.tensor(0), node.tensor(1)
        if first.dtype is not second.dtype:
            node.refuse(f"operands of types {first.dtype.name} and {second.dtype.name}; both must have one type")
        if node.info(0).type == "BOOL" and function not in ("EQUAL", "MIN", "MAX"):
            node.refuse("data type BOOL is not supported")
        apply(node, function, first, second, node.output())

    return lower


def power(node: Node) -> None:
    """Emit Pow; integer exponents are converted to floats."""
    base, exponent = node.tensor(0), node.tensor(1)
    if base.dtype not in FLOATS:
        node.refuse(f"base of type {node.info(0).type}: supported are floats, and integers with constant exponents")
    exponent = cast_to(node, exponent, base.dtype)
    apply(node, "POW", base, exponent, node.output())


def variadic(function: str) -> Lower:
    def lower(node: Node) -> None:
        out = node.output()
        total = node.tensor(0)
        count = len(node.proto.input)
        if count == 1:
            copy(node, total, out, total.shape, steps(total.shape), steps(total.shape))
        for index in range(1, count):
            target = out if index == count - 1 else node.temporary(out.shape, out.dtype)
            apply(node, function, total, node.tensor(index), target)
            total = target

    return lower


def negative(node: Node) -> None:
    out = node.output()
    if out.dtype is DataType.UINT8:
        node.refuse("data type UINT8 is not supported")
    apply(node, "MUL", node.tensor(0), node.scalar(-1, out.dtype), out)


def absolute(node: Node) -> None:
    """Emit the maximum of x and -x."""
    x, out = node.tensor(0), node.output()
    if out.dtype is DataType.UINT8:
        node.refuse("data type UINT8 is not supported")
    apply(node, "MAX", x, apply(node, "MUL", x, node.scalar(-1, x.dtype)), out)


def reciprocal(node: Node) -> None:
    out = node.output()
    apply(node, "DIV", node.scalar(1, out.dtype), node.tensor(0), out)


def logical_not(node: Node) -> None:
    apply(node, "EQUAL", node.tensor(0), node.scalar(0, DataType.UINT8), node.output())


def gelu(node: Node) -> None:
    out = node.output()
    approximate = node.attribute("approximate", "none")
    if approximate not in ("none", "tanh"):
        node.refuse(f"attribute approximate={approximate}: supported are none, tanh")
    node.layer("GELU", [node.tensor(0)], out, m=1, n=out.elements, tanh=int(approximate == "tanh"))


def clip(node: Node) -> None:
    out = node.output()
    limits: list[float] = []
    unbounded = np.array((-(1 << 31), (1 << 31) - 1) if out.dtype in INTEGERS else (-math.inf, math.inf))
    for index, name in ((1, "min"), (2, "max")):
        value = node.needed(index, name) if node.has(index) else unbounded[index - 1]
        if value.size != 1:
            node.refuse(f"{name} has shape {list(value.shape)}: must be one number")
        limits.append(int(value.item()) if out.dtype in INTEGERS else float(value.item()))
    apply_unary(node, "CLIP", node.tensor(0), out, low=min(limits), high=limits[1])


def where(node: Node) -> None:
    out = node.output()
    condition, yes, no = (broadcast_tensor(node, node.tensor(index), out.shape) for index in range(3))
    node.layer("ELTWISE", [condition, yes, no], out, function="WHERE", m=1, n=out.elements)


def cast(node: Node) -> None:
    source, target = node.info(0).type, node.out_info().type
    if source not in ONNX or target not in ONNX:
        node.refuse(f"cast from {source} to {target}: supported types are {', '.join(ONNX)}")
    out = node.output()
    if target == "BOOL" and source != "BOOL":
        zero, equal = node.scalar(0, node.tensor(0).dtype), node.temporary(out.shape, DataType.UINT8)
        apply(node, "EQUAL", node.tensor(0), zero, equal)
        apply(node, "EQUAL", equal, node.scalar(0, DataType.UINT8), out)
        return
    if target in SHORT and source not in (target, "BOOL", "UINT8") and (source, target) != ("INT8", "INT16"):
        wide = apply_unary(node, "CAST", node.tensor(0), node.temporary(out.shape, out.dtype))
        wrap_to_int16(node, wide, target, out)
        return
    if "FLOAT8" in source + target:
        node.refuse(f"cast from {source} to {target}: FLOAT8 saturates on the device, ONNX's rules differ")
    apply_unary(node, "CAST", node.tensor(0), out)


# -- bits --------------------------------------------------------------------------------------------------------------


def wrap_to_int16(node: Node, x: TensorIR, kind: str, out: TensorIR) -> None:
    """Emit INT32 modulo the range of INT16 or UINT16."""
    if kind == "UINT16":
        apply(node, "AND", x, node.scalar(SHORT[kind][1], x.dtype), out)
        return
    places = node.scalar(16, x.dtype)
    apply(node, "SHR", apply(node, "SHL", x, places), places, out)


def bitwise_not(node: Node) -> None:
    out, unsigned = node.output(), {"UINT8": 255, "UINT16": SHORT["UINT16"][1]}
    apply(node, "XOR", node.tensor(0), node.scalar(unsigned.get(node.info(0).type, -1), out.dtype), out)


def bit_shift(node: Node) -> None:
    """Lower BitShift of unsigned integers. UINT32 and UINT64 are held in INT32, so the highest bit is filled with 0."""
    x, places, out, kind = node.tensor(0), node.tensor(1), node.output(), node.info(0).type
    shift_left = str(node.attribute("direction", "")) == "LEFT"
    if shift_left and kind == "UINT16":
        wrap_to_int16(node, apply(node, "SHL", x, places), kind, out)
    elif shift_left or kind not in LARGER:
        apply(node, "SHL" if shift_left else "SHR", x, places, out)
    else:
        moved = apply(node, "SHR", x, places)
        bits = apply(node, "SUB", node.scalar(32, out.dtype), places, node.temporary(places.shape, out.dtype))
        above = apply(node, "SHL", node.scalar(1, out.dtype), bits, node.temporary(places.shape, out.dtype))
        apply(node, "AND", moved, apply(node, "SUB", above, node.scalar(1, out.dtype)), out)
