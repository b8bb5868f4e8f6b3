"""Lowering of linalg.generic and its named forms: elementwise operations, reductions and contractions over an iteration
space."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import ml_dtypes
from xdsl.dialects.builtin import AffineMapAttr, ArrayAttr, StringAttr
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.ir.affine import AffineConstantExpr, AffineDimExpr

from toolchain.mlir import scalars
from toolchain.mlir.emitter import MlirTensor, OnnxEmitter
from toolchain.mlir.text.source import op_name
from toolchain.mlir.text.values import FLOATS

CASTS = ("arith.extf", "arith.extsi", "arith.sitofp")
COMBINERS = {
    "arith.addf": ("ReduceSum", "Add", 0.0), "arith.addi": ("ReduceSum", "Add", 0.0),
    "arith.maxf": ("ReduceMax", "Max", float("-inf")), "arith.maximumf": ("ReduceMax", "Max", float("-inf")),
    "arith.maxnumf": ("ReduceMax", "Max", float("-inf")), "arith.maxsi": ("ReduceMax", "Max", float("-inf")),
    "arith.minf": ("ReduceMin", "Min", float("inf")), "arith.minimumf": ("ReduceMin", "Min", float("inf")),
    "arith.minnumf": ("ReduceMin", "Min", float("inf")), "arith.minsi": ("ReduceMin", "Min", float("inf")),
    "arith.mulf": ("ReduceProd", "Mul", 1.0), "arith.muli": ("ReduceProd", "Mul", 1.0),
    "arith.andi": ("ReduceAnd", "And", 1.0), "arith.ori": ("ReduceOr", "Or", 0.0),
}  # fmt: skip
"""Combiner of a reduction -> (ONNX reduction, binary operator, neutral element)."""


_NUMBERS = ("arith.maxnumf", "arith.minnumf")
"""Combiners that ignore NaN."""


class OperandMap(NamedTuple):
    """Indexing map of an operand: its dimensions in the iteration space, None for a broadcast dimension."""

    dims: tuple[int | None, ...]

    @property
    def named_dims(self) -> list[int]:
        return [dim for dim in self.dims if dim is not None]


def generic(e: OnnxEmitter) -> list[MlirTensor]:
    """Lower a linalg.generic to its results."""
    op = e.op
    maps, kinds = e.attribute("indexing_maps"), e.attribute("iterator_types")
    if not isinstance(maps, ArrayAttr) or not isinstance(kinds, ArrayAttr):
        e.refuse("needs indexing_maps and iterator_types")
    iterators = [_iterator(kind) for kind in kinds.data]
    spaces = [_space(e, affine_map, len(iterators)) for affine_map in maps.data]
    if any(kind not in ("parallel", "reduction") for kind in iterators):
        e.refuse(f"iterator types {', '.join(iterators)}: supported are parallel and reduction")
    reduced = [dim for dim, kind in enumerate(iterators) if kind == "reduction"]
    block = _body(e)
    if len(spaces) != len(op.operands) or len(block.args) != len(op.operands):
        e.refuse("needs an indexing map and an argument of its body for each operand")
    operands = [e.get(value) for value in op.operands]
    sizes = _sizes(e, operands, spaces, len(iterators))
    if reduced:
        return reduction(e, Reduction(block, operands, spaces, sizes, reduced))
    return elementwise(e, block, operands, spaces, sizes)


def _iterator(kind: object) -> str:
    return kind.data if isinstance(kind, StringAttr) else str(getattr(getattr(kind, "data", kind), "value", kind))


def _body(e: OnnxEmitter) -> Block:
    if len(e.op.regions) != 1 or len(e.op.regions[0].blocks) != 1:
        e.refuse("needs a body of one block")
    return e.op.regions[0].blocks[0]


def _space(e: OnnxEmitter, affine_map: object, rank: int) -> OperandMap:
    if not isinstance(affine_map, AffineMapAttr) or affine_map.data.num_symbols or affine_map.data.num_dims != rank:
        e.refuse(f"indexing map {affine_map}: supported are maps of the {rank} dimensions without symbols")
    dims: list[int | None] = []
    for result in affine_map.data.results:
        if isinstance(result, AffineDimExpr):
            dims.append(result.position)
        elif isinstance(result, AffineConstantExpr) and result.value == 0:
            dims.append(None)
        else:
            e.refuse(
                f"indexing map {affine_map.data}: supported are permutations and broadcasts; "
                f"write convolutions and pooling as named operations"
            )
    return OperandMap(tuple(dims))


def _sizes(e: OnnxEmitter, operands: Sequence[MlirTensor], spaces: Sequence[OperandMap], rank: int) -> tuple[int, ...]:
    sizes: dict[int, int] = {}
    for operand, space in zip(operands, spaces, strict=True):
        if operand.rank != len(space.dims) or len(set(space.named_dims)) != len(space.named_dims):
            e.refuse(f"an indexing map of {len(space.dims)} results for a tensor of {operand.rank} dimensions")
        for size, dim in zip(operand.shape, space.dims, strict=True):
            if dim is None and size != 1:
                e.refuse("an indexing map takes element 0 of a larger dimension: slice the operand")
            if dim is not None and sizes.setdefault(dim, size) != size:
                e.refuse(f"dimension {dim} is {sizes[dim]} and {size}")
    if len(sizes) != rank:
        e.refuse("an iteration dimension is in no indexing map")
    return tuple(sizes[dim] for dim in range(rank))


def aligned(e: OnnxEmitter, tensor: MlirTensor, space: OperandMap, order: Sequence[int]) -> MlirTensor:
    """Return the tensor with one dimension per dimension of `order`, of size 1 where the operand has none."""
    squeezed = e.reshape(tensor, [s for s, dim in zip(tensor.shape, space.dims, strict=True) if dim is not None])
    dims = sorted(space.named_dims, key=list(order).index)
    turned = e.transpose(squeezed, [space.named_dims.index(dim) for dim in dims])
    at = dict(zip(dims, turned.shape, strict=True))
    return e.reshape(turned, [at.get(dim, 1) for dim in order])


def _indices(e: OnnxEmitter, order: Sequence[int], sizes: tuple[int, ...]) -> list[MlirTensor]:
    """Return the index along each dimension of the iteration space."""
    ramps = scalars.iota(e, tuple(sizes[dim] for dim in order))
    return [ramps[order.index(dim)] for dim in range(len(sizes))]


def elementwise(
    e: OnnxEmitter, block: Block, operands: Sequence[MlirTensor], spaces: Sequence[OperandMap], sizes: tuple[int, ...]
) -> list[MlirTensor]:
    """Apply the body to whole tensors; all dimensions are parallel."""
    count = len(e.op.results)
    order = spaces[-1].named_dims
    for space in spaces[-count:]:
        if sorted(space.named_dims) != list(range(len(sizes))):
            e.refuse("the indexing map of a result must name every dimension")
    arguments: dict[SSAValue, MlirTensor] = {
        argument: aligned(e, operand, space, order)
        for argument, operand, space in zip(block.args, operands, spaces, strict=True)
        if list(argument.uses)
    }
    values = scalars.evaluate(e, block, arguments, _indices(e, order, sizes), count)
    results = []
    for tensor, space, operand in zip(values, spaces[-count:], operands[-count:], strict=True):
        full = e.expand(tensor, [sizes[dim] for dim in order])
        turned = e.transpose(full, [order.index(dim) for dim in space.named_dims])
        results.append(e.reshape(turned, operand.shape))
    return results


class Reduction(NamedTuple):
    """linalg.generic, or a named form of it, that reduces over the dimensions `reduced`."""

    block: Block
    operands: Sequence[MlirTensor]
    spaces: Sequence[OperandMap]
    sizes: tuple[int, ...]
    reduced: Sequence[int]

    def yielded(self, at: int) -> SSAValue | None:
        """Return the value that the body yields for a result; `at` counts from the end, -1 for the last."""
        last = self.block.last_op
        return None if last is None or len(last.operands) < -at else last.operands[at]


def reduction(e: OnnxEmitter, nest: Reduction) -> list[MlirTensor]:
    """Return the result, or a maximum or minimum with its index: exporters write softmax in that form."""
    results = len(e.op.results)
    if results == 1:
        return [_join(e, nest, -1, 1)]
    if results == 2 and (index := _position(e, nest)) is not None:
        return [_join(e, nest, -2, 2), index]
    e.refuse("a reduction with several results is not supported, but a maximum and its index: write one for each")


def _combiner(e: OnnxEmitter, nest: Reduction, at: int, uses: int) -> tuple[str, SSAValue]:
    """Return (combiner, value combined with the accumulator); `uses`: required number of uses of the accumulator."""
    yielded, total = nest.yielded(at), nest.block.args[at]
    joined = None if yielded is None else yielded.owner
    if not isinstance(joined, Operation) or op_name(joined) not in COMBINERS or total not in joined.operands:
        e.refuse(f"its body must join a value with the result so far by one of {', '.join(COMBINERS)}")
    value = next((operand for operand in joined.operands if operand is not total), None)
    if value is None or len(list(total.uses)) != uses:
        e.refuse("its body must use the result so far once")
    return op_name(joined), value


def _elements(e: OnnxEmitter, nest: Reduction, value: SSAValue, out: OperandMap) -> MlirTensor:
    """Return a value of the body for all elements, with the dimensions of the result first."""
    if sorted(out.named_dims) != [dim for dim in range(len(nest.sizes)) if dim not in nest.reduced]:
        e.refuse("the indexing map of the result must name every parallel dimension")
    order = [*out.named_dims, *nest.reduced]
    inputs = zip(nest.block.args, nest.operands, nest.spaces, strict=False)
    arguments: dict[SSAValue, MlirTensor] = {
        argument: aligned(e, operand, space, order) for argument, operand, space in list(inputs)[: -len(e.op.results)]
    }
    values = scalars.values_of(e, nest.block, arguments, _indices(e, order, nest.sizes), value)
    return e.expand(values.get(value) or e.get(value), [nest.sizes[dim] for dim in order])


def _join(e: OnnxEmitter, nest: Reduction, at: int, uses: int) -> MlirTensor:
    """Return one result of a reduction."""
    name, value = _combiner(e, nest, at, uses)
    operator, join, neutral = COMBINERS[name]
    out, start = nest.spaces[at], nest.operands[at]
    result = contraction(e, nest, value, out) if join == "Add" else None
    if result is None:
        full = _elements(e, nest, value, out)
        if name in _NUMBERS:
            number = e.elementwise("Equal", full, full, kind="BOOL")
            full = e.elementwise("Where", number, full, e.scalar(neutral, full.kind))
        result = e.reduce(operator, full, range(len(out.named_dims), full.rank))
    result = e.reshape(result, start.shape)
    if start.kind != result.kind:
        e.refuse(f"sums {result.kind} into {start.kind}: extend the elements in the body")
    return result if _neutral(start, join, neutral) else scalars.apply(e, name, [start, result])


def _neutral(start: MlirTensor, join: str, neutral: float) -> bool:
    """Check whether the initial value of a result is neutral."""
    return (
        start.equals(neutral)
        or (join == "Max" and is_extreme(start))
        or (join == "Min" and is_extreme(start, top=True))
    )


_BEYOND = {"Max": {"arith.cmpf": 2, "arith.cmpi": 4}, "Min": {"arith.cmpf": 4, "arith.cmpi": 2}}
"""Predicates of a new extremum: ogt and sgt for Max, olt and slt for Min."""


def _position(e: OnnxEmitter, nest: Reduction) -> MlirTensor | None:
    """Return the index of the first maximum or minimum that a body selects; None for any other body."""
    yielded, (values, indices) = nest.yielded(-1), nest.block.args[-2:]
    select = None if yielded is None else yielded.owner
    if not isinstance(select, Operation) or op_name(select) != "arith.select" or select.operands[2] is not indices:
        return None
    name, value = _combiner(e, nest, -2, 2)
    _, join, neutral = COMBINERS[name]
    compared, index = select.operands[0].owner, select.operands[1].owner
    while isinstance(index, Operation) and op_name(index) in ("arith.index_cast", "arith.trunci"):
        index = index.operands[0].owner
    if not isinstance(compared, Operation) or not isinstance(index, Operation) or op_name(index) != "linalg.index":
        return None
    outside, e.op = e.op, compared
    compares = op_name(compared) in _BEYOND.get(join, {}) and _BEYOND[join][op_name(compared)] == e.number("predicate")
    e.op = index
    along = [e.number("dim")] == list(nest.reduced)
    e.op = outside
    initial = _neutral(nest.operands[-2], join, neutral) and nest.operands[-1].equals(0)
    if not (compares and along and initial and tuple(compared.operands) == (value, values)):
        return None
    if not list(e.op.results[1].uses):
        return nest.operands[-1]
    full = _elements(e, nest, value, nest.spaces[-1])
    keys = full if join == "Max" else e.negative(full)
    place = e.node("ArgMax", [keys], "INT64", full.shape[:-1], axis=full.rank - 1, keepdims=0)
    return e.reshape(e.cast(place, nest.operands[-1].kind), nest.operands[-1].shape)


def is_extreme(tensor: MlirTensor, *, top: bool = False) -> bool:
    """Check whether all elements are the lowest or, with `top`, the highest number of their type, or infinite."""
    if tensor.values is None:
        return False
    kind = tensor.values.dtype
    if kind.kind in "iu":
        limits = (int(ml_dtypes.iinfo(kind).min), int(ml_dtypes.iinfo(kind).max))
    else:
        limits = (float(ml_dtypes.finfo(kind).min), float(ml_dtypes.finfo(kind).max))  # type: ignore[assignment]
    infinite = kind.kind not in "iu" and tensor.equals(float("inf") if top else float("-inf"))
    return infinite or tensor.equals(limits[top])


# -- contractions ------------------------------------------------------------------------------------------------------


def _factor(block: Block, value: SSAValue) -> tuple[int, str] | None:
    """Return (index of the block argument, cast) of a factor; None for any other value."""
    owner = value.owner
    cast = ""
    if isinstance(owner, Operation) and op_name(owner) in CASTS:
        cast, value = op_name(owner), owner.operands[0]
    return (value.index, cast) if isinstance(value, BlockArgument) and value.block is block else None


def contraction(e: OnnxEmitter, nest: Reduction, value: SSAValue, result: OperandMap) -> MlirTensor | None:
    """Return a sum of products of two operands as a matrix product, in the dimension order of the result; None for any
    other sum."""
    block, operands, spaces, sizes, reduced = nest
    owner = value.owner
    if not isinstance(owner, Operation) or op_name(owner) not in ("arith.mulf", "arith.muli"):
        return None
    factors = [_factor(block, operand) for operand in owner.operands]
    if factors[0] is None or factors[1] is None:
        return None
    (first, cast0), (second, cast1) = factors[0], factors[1]
    if len(operands) - 1 in (first, second):
        return None
    a, b = spaces[first].named_dims, spaces[second].named_dims
    if not set(reduced) <= set(a) & set(b):
        return None
    kind = operands[-1].kind
    left, right = operands[first], operands[second]
    integers = left.kind == right.kind == "INT8" and kind == "INT32" and cast0 == cast1 == "arith.extsi"
    if not integers and (left.kind not in FLOATS or right.kind not in FLOATS):
        return None
    if not integers:
        left, right = e.cast(left, kind), e.cast(right, kind)
    return sum_products(e, (left, right), (spaces[first], spaces[second], result), sizes, kind)


def sum_products(
    e: OnnxEmitter,
    factors: tuple[MlirTensor, MlirTensor],
    spaces: Sequence[OperandMap],
    sizes: tuple[int, ...],
    kind: str,
) -> MlirTensor:
    """Sum products over the dimensions absent from the result. `spaces`: maps of both factors and the result."""
    a, b, out = (space.named_dims for space in spaces)
    batch = [dim for dim in out if dim in a and dim in b]
    rows = [dim for dim in out if dim in a and dim not in b]
    columns = [dim for dim in out if dim in b and dim not in a]
    reduced = [dim for dim in range(len(sizes)) if dim not in out]

    def size(dims: Sequence[int]) -> int:
        return math.prod(sizes[dim] for dim in dims)

    lead = [size(batch)] if batch else []
    m = aligned(e, factors[0], spaces[0], [*batch, *rows, *reduced])
    n = aligned(e, factors[1], spaces[1], [*batch, *reduced, *columns])
    m = e.reshape(m, [*lead, size(rows), size(reduced)])
    n = e.reshape(n, [*lead, size(reduced), size(columns)])
    result = product(e, m, n, kind)
    order = [*batch, *rows, *columns]
    result = e.reshape(result, [sizes[dim] for dim in order])
    return e.transpose(result, [order.index(dim) for dim in out])


def contract(e: OnnxEmitter, operands: Sequence[MlirTensor], kind: str) -> MlirTensor:
    """Return a contraction with indexing maps as a matrix product."""
    maps = e.attribute("indexing_maps")
    if not isinstance(maps, ArrayAttr) or len(maps.data) != 3:
        e.refuse("needs three indexing_maps")
    rank = max(
        (affine_map.data.num_dims for affine_map in maps.data if isinstance(affine_map, AffineMapAttr)), default=0
    )
    spaces = [_space(e, affine_map, rank) for affine_map in maps.data]
    sizes = _sizes(e, operands, spaces, rank)
    a, b, out = (set(space.named_dims) for space in spaces)
    if not out <= a | b or {*range(rank)} - out - (a & b):
        e.refuse("its indexing maps are no product of matrices")
    return e.reshape(sum_products(e, (operands[0], operands[1]), spaces, sizes, kind), operands[2].shape)


def product(
    e: OnnxEmitter, a: MlirTensor, b: MlirTensor, kind: str, zeros: tuple[MlirTensor, MlirTensor] | None = None
) -> MlirTensor:
    """Return the product of matrices, or of batches of them; `zeros`: zero points of integers."""
    if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        e.refuse(f"shapes {list(a.shape)} and {list(b.shape)} do not fit each other")
    shape = (*a.shape[:-1], b.shape[-1])
    if a.kind in FLOATS:
        return e.node("MatMul", [e.cast(a, kind), e.cast(b, kind)], kind, shape)
    if a.kind not in ("INT8", "UINT8") or b.kind not in ("INT8", "UINT8") or kind != "INT32":
        e.refuse(f"a product of {a.kind} and {b.kind} into {kind}: supported are floats, and i8 into i32")
    return e.node("MatMulInteger", [a, b, *(zeros or ())], "INT32", shape)
