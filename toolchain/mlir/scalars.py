"""Lowering of arith and math: elementwise operations, in bodies of linalg and on whole tensors."""

import math
from collections.abc import Callable, Mapping
from inspect import signature

import numpy as np
from xdsl.ir import Block, SSAValue

from toolchain.mlir.emitter import MlirTensor, OnnxEmitter
from toolchain.mlir.text.source import op_name

Lower = Callable[..., MlirTensor]
_BYTE = 1 << 8
ASSERTION = "cf.assert"
"""Assertion, assumed to hold: exporters guard indices with it."""


def same(operator: str) -> Lower:
    """Return the lowering to one ONNX operator."""
    return lambda e, *inputs: e.elementwise(operator, *inputs)


def _cast(e: OnnxEmitter, x: MlirTensor) -> MlirTensor:
    kind, _ = e.typed(e.op.results[0].type)
    return e.cast(x, kind)


def _signed(e: OnnxEmitter, x: MlirTensor) -> MlirTensor:
    """Convert an integer to a wider integer or a float; i1 true is -1."""
    return e.elementwise("Neg", _cast(e, x)) if x.kind == "BOOL" else _cast(e, x)


def _unsigned(e: OnnxEmitter, x: MlirTensor) -> MlirTensor:
    if x.kind == "INT8":
        x = e.elementwise("BitwiseAnd", e.cast(x, "INT32"), e.scalar(_BYTE - 1, "INT32"))
    elif x.kind not in ("BOOL", "UINT8"):
        e.refuse(f"takes i1 and bytes, got {x.kind}: extend with arith.extsi")
    return _cast(e, x)


def _narrower(e: OnnxEmitter, x: MlirTensor) -> MlirTensor:
    """Return the low bits of an integer."""
    kind, _ = e.typed(e.op.results[0].type)
    if kind == "BOOL":
        return e.cast(e.elementwise("BitwiseAnd", x, e.scalar(1, x.kind)), kind)
    if kind == "INT8":
        low = e.elementwise("BitwiseAnd", x, e.scalar(_BYTE - 1, x.kind))
        high = e.elementwise("Greater", low, e.scalar(_BYTE // 2 - 1, x.kind), kind="BOOL")
        x = _select(e, high, e.elementwise("Sub", low, e.scalar(_BYTE, x.kind)), low)
    return e.cast(x, kind)


def _product(e: OnnxEmitter, x: MlirTensor, y: MlirTensor) -> MlirTensor:
    if x.kind == "INT64" and (x.values is None or y.values is None):
        e.refuse("a product of i64 has more bits than the 32 of the device's integers: use i32, or floats")
    return e.elementwise("Mul", x, y)


def _number(operator: str) -> Lower:
    """Return the lowering of a maximum or minimum that ignores NaN."""

    def lower(e: OnnxEmitter, x: MlirTensor, y: MlirTensor) -> MlirTensor:
        result = e.elementwise(operator, x, y)
        for value, other in ((x, y), (y, x)):
            if value.values is None or np.isnan(value.values.astype(np.float32)).any():
                result = _select(e, e.elementwise("Equal", value, value, kind="BOOL"), result, other)
        return result

    return lower


def _subtract(e: OnnxEmitter, x: MlirTensor, y: MlirTensor) -> MlirTensor:
    return e.elementwise("Neg", y) if x.equals(0) else e.elementwise("Sub", x, y)


def _select(e: OnnxEmitter, condition: MlirTensor, x: MlirTensor, y: MlirTensor) -> MlirTensor:
    return e.elementwise("Where", condition, x, y)


def select_by_sign(e: OnnxEmitter, x: MlirTensor, yes: MlirTensor, no: MlirTensor) -> MlirTensor:
    """Select one of two tensors by the sign of x."""
    return _select(e, e.elementwise("Less", x, e.scalar(0, x.kind), kind="BOOL"), yes, no)


def round_half_away(e: OnnxEmitter, x: MlirTensor) -> MlirTensor:
    """Round to the nearest integer, halves away from zero. The fraction is exact, so no sum rounds."""
    size = e.elementwise("Abs", x)
    floor = e.elementwise("Floor", size)
    low = e.elementwise("Less", e.elementwise("Sub", size, floor), e.scalar(0.5, x.kind), kind="BOOL")
    nearest = _select(e, low, floor, e.elementwise("Add", floor, e.scalar(1, x.kind)))
    return select_by_sign(e, x, e.negative(nearest), nearest)


def _truncate(e: OnnxEmitter, x: MlirTensor) -> MlirTensor:
    return select_by_sign(e, x, e.elementwise("Ceil", x), e.elementwise("Floor", x))


def _scale(operator: str, before: float = 1, after: float = 1, add: float = 0, less: float = 0) -> Lower:
    """Return the lowering of operator(x * before + add) * after - less."""

    def lower(e: OnnxEmitter, x: MlirTensor) -> MlirTensor:
        x = x if before == 1 else e.elementwise("Mul", x, e.scalar(before, x.kind))
        result = e.elementwise(operator, x if add == 0 else e.elementwise("Add", x, e.scalar(add, x.kind)))
        result = result if after == 1 else e.elementwise("Mul", result, e.scalar(after, x.kind))
        return result if less == 0 else e.elementwise("Sub", result, e.scalar(less, x.kind))

    return lower


def _extract(e: OnnxEmitter, table: MlirTensor, *indices: MlirTensor) -> MlirTensor:
    """Return one element per index: whole rows if the other indices enumerate a row, else single elements."""
    if len(indices) != table.rank or not indices:
        e.refuse(f"takes {table.rank} indices, got {len(indices)}")
    first, *others = indices
    rank = len(np.broadcast_shapes(*(index.shape for index in indices))) - len(others)
    ramps = iota(e, (*[1] * rank, *table.shape[1:]))[rank:]
    if all(_same_values(*pair) for pair in zip(others, ramps, strict=True)) and first.rank == len(ramps) + rank:
        rows = e.reshape(first, first.shape[:rank]) if math.prod(first.shape[rank:]) == 1 else None
        if rows is not None:
            return e.node("Gather", [table, rows], table.kind, (*rows.shape, *table.shape[1:]), axis=0)
    at = first
    for size, index in zip(table.shape[1:], others, strict=True):
        at = e.elementwise("Add", e.elementwise("Mul", at, e.scalar(size, at.kind)), e.cast(index, at.kind))
    flat = e.reshape(table, (math.prod(table.shape),))
    return e.node("Gather", [flat, at], table.kind, at.shape, axis=0)


def _same_values(x: MlirTensor, y: MlirTensor) -> bool:
    return x.values is not None and y.values is not None and np.array_equal(x.values, y.values)


_INTEGER_PREDICATES = ("Equal", "!Equal", "Less", "!Greater", "Greater", "!Less",
                       "Less", "!Greater", "Greater", "!Less")  # fmt: skip
"""Operators of eq ne slt sle sgt sge ult ule ugt uge; ! inverts the result."""
_UNSIGNED = 6
"""First predicate of unsigned integers."""
_FLOAT_PREDICATES = (
    "", "Equal", "Greater", "Greater|Equal", "Less", "Less|Equal", "Less|Greater", "Less|Greater|Equal",
    "!Less|Greater", "!Less|Equal", "!Less", "!Greater|Equal", "!Greater", "!Equal", "!Less|Greater|Equal", "!",
)  # fmt: skip
"""Operators of false oeq ogt oge olt ole one ord ueq ugt uge ult ule une uno true, by predicate number. A comparison
with NaN is false, an inverted one true."""


def _compare(predicates: tuple[str, ...]) -> Lower:
    def lower(e: OnnxEmitter, x: MlirTensor, y: MlirTensor) -> MlirTensor:
        number = e.number("predicate")
        if not 0 <= number < len(predicates):
            e.refuse(f"predicate {number}: must be 0..{len(predicates) - 1}")
        comparisons, inverted = predicates[number].removeprefix("!"), predicates[number].startswith("!")
        if not comparisons:
            return e.expand(e.scalar(inverted, "BOOL"), np.broadcast_shapes(x.shape, y.shape))
        if predicates is _INTEGER_PREDICATES and number >= _UNSIGNED:
            x, y = (_order(e, operand) for operand in (x, y))
        result, *parts = (e.elementwise(operator, x, y, kind="BOOL") for operator in comparisons.split("|"))
        for part in parts:
            result = e.elementwise("Or", result, part)
        return e.node("Not", [result], "BOOL", result.shape) if inverted else result

    return lower


def _order(e: OnnxEmitter, x: MlirTensor) -> MlirTensor:
    """Return integers whose signed order is the unsigned order of x: the highest bit is inverted."""
    if x.kind == "INT64":
        e.refuse("an unsigned comparison of i64 is not supported: use a signed one, or i32")
    wide = e.cast(x, "INT32")
    return e.elementwise("BitwiseXor", wide, e.scalar(-(1 << 31), "INT32")) if x.kind in ("INT32", "INT8") else wide


def _bits(operator: str) -> Lower:
    def lower(e: OnnxEmitter, x: MlirTensor, y: MlirTensor) -> MlirTensor:
        return e.elementwise(operator if x.kind == "BOOL" else f"Bitwise{operator}", x, y)

    return lower


SCALARS: Mapping[str, Lower] = {
    "arith.addf": same("Add"), "arith.addi": same("Add"), "arith.subf": _subtract, "arith.subi": _subtract,
    "arith.mulf": same("Mul"), "arith.muli": _product, "arith.divf": same("Div"), "arith.divsi": same("Div"),
    "arith.maxf": same("Max"), "arith.maximumf": same("Max"), "arith.maxnumf": _number("Max"),
    "arith.minf": same("Min"), "arith.minimumf": same("Min"), "arith.minnumf": _number("Min"),
    "arith.maxsi": same("Max"), "arith.minsi": same("Min"), "arith.negf": same("Neg"),
    "arith.extf": _cast, "arith.truncf": _cast, "arith.extsi": _signed, "arith.extui": _unsigned,
    "arith.trunci": _narrower, "arith.sitofp": _signed, "arith.uitofp": _unsigned, "arith.fptosi": _cast,
    "arith.index_cast": _cast, "arith.select": _select,
    "arith.cmpf": _compare(_FLOAT_PREDICATES),
    "arith.cmpi": _compare(_INTEGER_PREDICATES),
    "arith.andi": _bits("And"), "arith.ori": _bits("Or"), "arith.xori": _bits("Xor"),
    "math.exp": same("Exp"), "math.sqrt": same("Sqrt"),
    "math.rsqrt": lambda e, x: e.elementwise("Reciprocal", e.elementwise("Sqrt", x)),
    "math.tanh": same("Tanh"),
    "math.erf": same("Erf"), "math.sin": same("Sin"), "math.cos": same("Cos"), "math.powf": same("Pow"),
    "math.log": same("Log"), "math.ceil": same("Ceil"), "math.floor": same("Floor"), "math.round": round_half_away,
    "math.roundeven": same("Round"), "math.trunc": _truncate, "math.exp2": _scale("Exp", before=math.log(2)),
    "math.expm1": _scale("Exp", less=1), "math.log1p": _scale("Log", add=1),
    "math.log2": _scale("Log", after=1 / math.log(2)), "math.log10": _scale("Log", after=1 / math.log(10)),
    "math.absf": same("Abs"), "math.absi": same("Abs"),
    "math.fma": lambda e, x, y, z: e.elementwise("Add", e.elementwise("Mul", x, y), z),
    "math.fpowi": lambda e, x, y: e.elementwise("Pow", x, e.cast(y, x.kind)),
    "tensor.extract": _extract,
}  # fmt: skip
"""Operation -> function `lower(emitter, *operands)`; `emitter.op` is the operation."""


_YIELDS = ("linalg.yield", "tensor.yield")


def values_of(
    e: OnnxEmitter, block: Block, arguments: Mapping[SSAValue, MlirTensor], indices: list[MlirTensor],
    last: SSAValue | None = None,
) -> dict[SSAValue, MlirTensor]:  # fmt: skip
    """Evaluate a body on whole broadcast tensors and return its values, up to the value `last`. `indices`: index along
    each dimension."""
    values, outside = dict(arguments), e.op
    for op in block.ops:
        name, e.op = op_name(op), op
        if name in _YIELDS or last in values:
            break
        if name == ASSERTION:
            continue
        if name == "arith.constant":
            values[op.results[0]] = e.constant_of(e.attribute("value"))
        elif name == "linalg.index":
            dimension = e.number("dim")
            if not 0 <= dimension < len(indices):
                e.refuse(f"dimension {dimension}: there are {len(indices)}")
            values[op.results[0]] = indices[dimension]
        else:
            values[op.results[0]] = apply(e, name, [values.get(value) or e.get(value) for value in op.operands])
    e.op = outside
    return values


def evaluate(
    e: OnnxEmitter, block: Block, arguments: Mapping[SSAValue, MlirTensor], indices: list[MlirTensor], count: int = 1
) -> list[MlirTensor]:
    """Evaluate a body and return the `count` tensors that it yields."""
    values, last = values_of(e, block, arguments, indices), block.last_op
    if last is None or op_name(last) not in _YIELDS:
        e.refuse("its body yields nothing")
    outside, e.op = e.op, last
    if len(last.operands) != count:
        e.refuse(f"yields {len(last.operands)} values, needs {count}")
    e.op = outside
    return [values.get(value) or e.get(value) for value in last.operands]


def apply(e: OnnxEmitter, name: str, operands: list[MlirTensor]) -> MlirTensor:
    """Lower an operation of arith or math."""
    lower = SCALARS.get(name)
    if lower is None:
        e.refuse(f"this operation is not supported; supported of its dialect are {', '.join(_like(name))}")
    parameters = signature(lower)
    try:
        parameters.bind(e, *operands)
    except TypeError:
        e.refuse(f"takes operands {', '.join([*parameters.parameters][1:])}, got {len(operands)}")
    return lower(e, *operands)


def _like(name: str) -> list[str]:
    dialect = name.partition(".")[0]
    return [scalar for scalar in SCALARS if scalar.startswith(f"{dialect}.")] or list(SCALARS)


def iota(e: OnnxEmitter, sizes: tuple[int, ...]) -> list[MlirTensor]:
    """Return the index along each dimension, as constants that broadcast."""
    return [e.constant(ramp) for ramp in np.indices(sizes, np.int64, sparse=True)] if sizes else []
