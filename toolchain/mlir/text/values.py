"""Types and constants of MLIR, ONNX and numpy."""

import math
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from xdsl.context import Context
from xdsl.dialect_interfaces.op_asm import OpAsmDialectInterface
from xdsl.dialects import builtin as b
from xdsl.ir import Attribute

from toolchain.ir.graph import Values

MAX_BYTES = 1 << 34
"""Maximum size of a tensor, bytes, by the device's address space."""

_FLOATS: dict[type[Attribute], str] = {b.Float32Type: "FLOAT", b.Float16Type: "FLOAT16", b.BFloat16Type: "BFLOAT16",
                                        b.Float64Type: "FLOAT"}  # fmt: skip
"""Float types -> ONNX type. Inside a module f64 is computed as f32, since the device has no f64."""
_INTEGERS = {1: "BOOL", 8: "INT8", 32: "INT32", 64: "INT64"}
FLOATS = ("FLOAT", "FLOAT16", "BFLOAT16")
NUMPY = {kind: helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(kind))
         for kind in (*FLOATS, "BOOL", "INT8", "UINT8", "INT32", "INT64")}  # fmt: skip
"""ONNX element type -> array type."""
SUPPORTED = "f32, f16, bf16, i1, i8, ui8, i32, i64"


def element(kind: Attribute) -> str | None:
    """Return the ONNX name of an element type; None for an unsupported type."""
    if isinstance(kind, b.IntegerType):
        unsigned = kind.signedness.data is b.Signedness.UNSIGNED
        return {8: "UINT8"}.get(kind.width.data) if unsigned else _INTEGERS.get(kind.width.data)
    if isinstance(kind, b.IndexType) or sizes_of(kind) is not None:
        return "INT64"
    return _FLOATS.get(type(kind))


def sizes_of(kind: Attribute) -> tuple[int, ...] | None:
    """Return the shape of a list of sizes, such as !tosa.shape<4>; None for any other type."""
    if isinstance(kind, b.UnregisteredAttr) and kind.attr_name.data == "tosa.shape" and kind.value.data.isdecimal():
        return (int(kind.value.data),)
    return None


def shape_of(kind: Attribute) -> tuple[int, ...] | None:
    """Return the shape of a ranked tensor, () for a scalar; None for any other type or an unknown dimension."""
    if isinstance(kind, b.TensorType):
        shape = tuple(kind.get_shape())
        return None if any(size < 0 for size in shape) else shape
    return sizes_of(kind) or (() if element(kind) else None)


def type_problem(kind: Attribute) -> str:
    """Return why a type is not supported; "" if it is."""
    if isinstance(kind, b.TensorType):
        inside = kind.element_type
        if shape_of(kind) is None:
            return f"type {kind}: give every dimension a size"
    else:
        inside = kind
    if element(inside) is None:
        return f"type {kind}: supported are ranked tensors of {SUPPORTED}"
    if math.prod(shape_of(kind) or ()) * 8 > MAX_BYTES:
        return f"type {kind}: holds more than {MAX_BYTES // 8} elements: use a smaller tensor"
    if 0 in (shape_of(kind) or ()):
        return f"type {kind}: holds no element: drop it"
    return ""


def argument_problem(kind: Attribute) -> str:
    """Return why the type of an argument or result is not supported; "" if it is."""
    double = isinstance(getattr(kind, "element_type", kind), b.Float64Type)
    return f"type {kind}: supported are ranked tensors of {SUPPORTED}" if double else type_problem(kind)


def constant(value: Attribute, context: Context) -> Values | None:
    """Return the values of an attribute in the shape of its type, with stride 0 for equal elements; None if it is not a
    constant."""
    if isinstance(value, b.IntegerAttr | b.FloatAttr):
        kind = element(value.type)
        return None if kind is None else np.array(value.value.data).astype(NUMPY[kind])
    if isinstance(value, b.DenseIntOrFPElementsAttr):
        kind, shape = element(value.type.element_type), shape_of(value.type)
        if kind is None or shape is None:
            return None
        return _shape(np.frombuffer(value.data.data, _store(value.type.element_type, kind)), kind, shape)
    if isinstance(value, b.DenseResourceAttr):
        return _resource(value, context)
    return None


def _store(inside: Attribute, kind: str) -> np.dtype[Any]:
    """Return the type in which xDSL packs an element: i1 as a byte, index as 64 bits."""
    if isinstance(inside, b.Float64Type):
        return np.dtype(np.float64)
    return np.dtype(np.int8) if kind == "BOOL" else NUMPY[kind]


def _shape(values: Values, kind: str, shape: tuple[int, ...]) -> Values | None:
    values = values.astype(NUMPY[kind])
    if values.size == math.prod(shape):
        return values.reshape(shape)
    return np.broadcast_to(values.reshape(()), shape) if values.size == 1 else None


def _resource(value: b.DenseResourceAttr, context: Context) -> Values | None:
    """Return the values of a resource: hexadecimal, four bytes of alignment, then the elements."""
    assert isinstance(value.type, b.TensorType)
    kind, shape = element(value.type.element_type), shape_of(value.type)
    blobs = context.get_dialect("builtin").get_interface(OpAsmDialectInterface)
    text = None if blobs is None else blobs.lookup(value.resource_handle.data)
    if kind is None or shape is None or not text:
        return None
    try:
        data = bytes.fromhex(text.removeprefix('"').removesuffix('"').removeprefix("0x"))[4:]
    except ValueError:
        return None
    stored = _store(value.type.element_type, kind)
    if len(data) != math.prod(shape) * stored.itemsize:
        return None
    return _shape(np.frombuffer(data, stored), kind, shape)


def splat(values: Values) -> Any | None:
    """Return the common value of all elements; None if they are not stored as one value."""
    if values.size == 1:
        return values.reshape(-1)[0]
    if values.strides and not any(values.strides):
        return values[(0,) * values.ndim]
    return None


MAX_INTEGERS = 64
"""Maximum number of integers in an array attribute, such as a shape or strides."""
_WIDTHS = (8, 16, 32, 64)
"""Supported widths of integers in an array attribute, bits."""


def integers(value: Attribute | None) -> tuple[int, ...] | None:
    """Return the integers of an array attribute in any of its forms; None for any other attribute."""
    if isinstance(value, b.DenseArrayBase):
        kind = value.elt_type
        if not isinstance(kind, b.IntegerType) or kind.width.data not in _WIDTHS:
            return None
        return tuple(int(element) for element in value.get_values())
    if isinstance(value, b.ArrayAttr):
        if not all(isinstance(entry, b.IntegerAttr) for entry in value.data):
            return None
        return tuple(entry.value.data for entry in value.data)
    if isinstance(value, b.DenseIntOrFPElementsAttr):
        kind, count = value.type.element_type, math.prod(value.type.get_shape())
        if not isinstance(kind, b.IntegerType | b.IndexType) or count > MAX_INTEGERS:
            return None
        values = tuple(int(element) for element in value.get_values())
        return values * count if len(values) == 1 else values
    if isinstance(value, b.IntegerAttr):
        return (value.value.data,)
    return None
