"""Lowering of the dialect tensor: reshapes, slices, padding."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from xdsl.dialects.builtin import ArrayAttr
from xdsl.ir import Block

from toolchain.mlir import scalars
from toolchain.mlir.emitter import MlirTensor, OnnxEmitter
from toolchain.mlir.text.values import NUMPY, integers

Lower = Callable[[OnnxEmitter], MlirTensor]


_OPERANDS = (-(1 << 63), -1)
"""Placeholders for an operand in a static attribute: of MLIR 16 and later, and of earlier versions."""


def _static(e: OnnxEmitter, count: int) -> list[MlirTensor]:
    if len(e.op.operands) != count:
        e.refuse("offsets, sizes and padding must be constants in its attributes: fold the operands")
    return [e.get(value) for value in e.op.operands]


def _empty(e: OnnxEmitter) -> MlirTensor:
    """Return undefined elements as zeros, broadcast without memory of their own."""
    _static(e, 0)
    kind, shape = e.typed(e.op.results[0].type)
    return e.expand(e.scalar(0, kind), shape)


def _groups(e: OnnxEmitter) -> list[tuple[int, ...]]:
    attribute = e.attribute("reassociation")
    if not isinstance(attribute, ArrayAttr):
        e.refuse("needs attribute reassociation")
    return [integers(group) or () for group in attribute.data]


def _collapse(e: OnnxEmitter) -> MlirTensor:
    (x,) = _static(e, 1)
    groups = _groups(e)
    _check_groups(e, groups, x.rank)
    return e.reshape(x, [math.prod(x.shape[axis] for axis in group) for group in groups])


def _expand(e: OnnxEmitter) -> MlirTensor:
    x = e.get(e.op.operands[0])
    _, shape = e.typed(e.op.results[0].type)
    groups = _groups(e)
    _check_groups(e, groups, len(shape))
    if [math.prod(shape[axis] for axis in group) for group in groups] != list(x.shape):
        e.refuse(f"{list(x.shape)} does not expand to {list(shape)} by {[list(group) for group in groups]}")
    return e.reshape(x, shape)


def _check_groups(e: OnnxEmitter, groups: Sequence[Sequence[int]], rank: int) -> None:
    if groups and [axis for group in groups for axis in group] != list(range(rank)):
        e.refuse(f"reassociation {[list(group) for group in groups]}: must name {rank} dimensions in their order")


def _reshape(e: OnnxEmitter) -> MlirTensor:
    x, _ = _static(e, 2)
    return e.reshape(x, e.typed(e.op.results[0].type)[1])


def _cast(e: OnnxEmitter) -> MlirTensor:
    (x,) = _static(e, 1)
    return x


def _box(e: OnnxEmitter, tensors: int, rank: int) -> list[tuple[int, ...]]:
    """Return (offsets, sizes, strides) from attributes, or from constant operands after the `tensors` tensors."""
    operands = [e.get(value) for value in e.op.operands[tensors:]]
    box = list[tuple[int, ...]]()
    for name in ("offsets", "sizes", "strides"):
        numbers = list[int]()
        for number in e.numbers(f"static_{name}", size=rank):
            if number in _OPERANDS and operands:
                number = int(e.needed(operands.pop(0), f"one of its {name}").reshape(()))
            numbers.append(number)
        box.append(tuple(numbers))
    if operands:
        e.refuse("has an operand that no dimension takes")
    return box


def _extract(e: OnnxEmitter) -> MlirTensor:
    x = e.get(e.op.operands[0])
    part = e.slice(x, *_box(e, 1, x.rank))
    return e.reshape(part, e.typed(e.op.results[0].type)[1])


def _insert(e: OnnxEmitter) -> MlirTensor:
    part, into = (e.get(value) for value in e.op.operands[:2])
    offsets, sizes, strides = _box(e, 2, into.rank)
    if any(stride != 1 for stride in strides):
        e.refuse(f"strides {list(strides)}: must be 1: insert the parts one by one")
    for offset, size, length in zip(offsets, sizes, into.shape, strict=True):
        if not 0 <= offset <= offset + size <= length:
            e.refuse(f"elements {offset}..{offset + size - 1} are not in a dimension of {length}")
    return insert_part(e, e.reshape(part, sizes), into, offsets, 0)


def insert_part(e: OnnxEmitter, part: MlirTensor, into: MlirTensor, offsets: Sequence[int], axis: int) -> MlirTensor:
    """Return `into` with `part` inserted at `offsets`, by concatenation of slices along each dimension."""
    while axis < into.rank and part.shape[axis] == into.shape[axis]:
        axis += 1
    if axis == into.rank:
        return part
    first, last = offsets[axis], offsets[axis] + part.shape[axis]

    def piece(begin: int, end: int) -> list[MlirTensor]:
        if begin == end:
            return []
        starts = [begin if dim == axis else 0 for dim in range(into.rank)]
        sizes = [end - begin if dim == axis else size for dim, size in enumerate(into.shape)]
        return [e.slice(into, starts, sizes, [1] * into.rank)]

    (middle,) = piece(first, last)
    pieces = [*piece(0, first), insert_part(e, part, middle, offsets, axis + 1), *piece(last, into.shape[axis])]
    return e.concat(pieces, axis)


def _pad(e: OnnxEmitter) -> MlirTensor:
    (x,) = _static(e, 1)
    low, high = (e.numbers(f"static_{name}", size=x.rank) for name in ("low", "high"))
    block = e.op.regions[0].blocks[0] if e.op.regions and e.op.regions[0].blocks else Block()
    value = scalars.evaluate(e, block, {}, [])[0]
    if value.values is None:
        e.refuse("its body must yield a constant")
    return e.pad(x, low, high, value)


def _concat(e: OnnxEmitter) -> MlirTensor:
    return e.concat([e.get(value) for value in e.op.operands], e.number("dim"))


def _splat(e: OnnxEmitter) -> MlirTensor:
    (x,) = _static(e, 1)
    return e.expand(x, e.typed(e.op.results[0].type)[1])


def _elements(e: OnnxEmitter) -> MlirTensor:
    kind, shape = e.typed(e.op.results[0].type)
    parts = [e.needed(e.get(value), "every element") for value in e.op.operands]
    return e.constant(np.array([part.reshape(()) for part in parts]).astype(NUMPY[kind]).reshape(shape))


def _extract_element(e: OnnxEmitter) -> MlirTensor:
    x, *at = (e.get(value) for value in e.op.operands)
    indices = [int(e.needed(index, "an index").reshape(())) for index in at]
    return e.reshape(e.slice(x, indices, [1] * x.rank, [1] * x.rank), ())


def _tiling(e: OnnxEmitter, rank: int) -> tuple[list[int], list[int], list[int]]:
    """Return (order of the outer dimensions, tiled dimensions, tile sizes) of pack and unpack."""
    order = list(e.numbers("outer_dims_perm", ())) or list(range(rank))
    places, tiles = list(e.numbers("inner_dims_pos")), list(e.numbers("static_inner_tiles"))
    valid = len(places) == len(tiles) == len({*places}) and all(0 <= dim < rank for dim in places) and min(tiles) > 0
    if not valid or sorted(order) != list(range(rank)):
        e.refuse(f"tiles {tiles} of dimensions {places} in the order {order}: must be of {rank} dimensions, each once")
    return order, places, tiles


def pack(e: OnnxEmitter) -> MlirTensor:
    """Split dimensions into tiles, with the tile dimensions last. The last tile of a dimension may be padded."""
    x, _, *padding = (e.get(value) for value in e.op.operands)
    order, places, tiles = _tiling(e, x.rank)
    sizes = [tiles[places.index(dim)] if dim in places else 1 for dim in range(x.rank)]
    missing = [-size % tile for size, tile in zip(x.shape, sizes, strict=True)]
    if any(missing) and not padding:
        e.refuse(f"tiles {tiles} do not divide {list(x.shape)}: give padding_value")
    if any(missing):
        e.needed(padding[0], "padding_value")
        x = e.pad(x, [0] * x.rank, missing, padding[0])
    split = [part for size, tile in zip(x.shape, sizes, strict=True) for part in (size // tile, tile)]
    turned = e.transpose(e.reshape(x, split), _packed_order(order, places, x.rank))
    return e.reshape(turned, e.typed(e.op.results[0].type)[1])


def unpack(e: OnnxEmitter) -> MlirTensor:
    """Invert `pack` and remove the padding."""
    x = e.get(e.op.operands[0])
    _, shape = e.typed(e.op.results[0].type)
    order, places, tiles = _tiling(e, len(shape))
    sizes = [tiles[places.index(dim)] if dim in places else 1 for dim in range(len(shape))]
    split = [part for size, tile in zip(shape, sizes, strict=True) for part in (-(-size // tile), tile)]
    turn = _packed_order(order, places, len(shape))
    tiled = e.reshape(x, [split[axis] for axis in turn])
    untiled = e.transpose(tiled, [turn.index(axis) for axis in range(len(turn))])
    full = [count * tile for count, tile in zip(split[::2], split[1::2], strict=True)]
    return e.slice(e.reshape(untiled, full), [0] * len(shape), shape, [1] * len(shape))


def _packed_order(order: Sequence[int], places: Sequence[int], rank: int) -> list[int]:
    """Return the dimensions of (count, tile) pairs in the order of a packed tensor; tiles of size 1 come last."""
    others = [dim for dim in range(rank) if dim not in places]
    return [*(2 * dim for dim in order), *(2 * dim + 1 for dim in (*places, *others))]


TENSOR: Mapping[str, Lower] = {
    "empty": _empty, "cast": _cast, "collapse_shape": _collapse, "expand_shape": _expand, "reshape": _reshape,
    "extract_slice": _extract, "insert_slice": _insert, "pad": _pad, "concat": _concat, "splat": _splat,
    "from_elements": _elements, "extract": _extract_element,
    "pack": pack, "unpack": unpack,
}  # fmt: skip
"""Operation of tensor, without its dialect -> function that lowers it."""
