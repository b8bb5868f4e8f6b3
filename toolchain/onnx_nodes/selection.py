"""Decompositions of operators that select elements: by index, by size, by mask."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from toolchain.ir.graph import Values
from toolchain.onnx_nodes.evaluation import TensorInfo
from toolchain.onnx_nodes.parts import CORE, Decomposition, Tensor, places_along
from toolchain.onnx_nodes.view import NodeView

MAX_PASSES = 16
"""Maximum k of TopK on the engines, which need one pass over the rows per element. The core is faster for larger k."""
MAX_ADDED = 1 << 24
"""Maximum number of comparisons between positions and indices for a scatter."""


def top_k(parts: Decomposition) -> None:
    """Compose TopK: find the maximum, replace it by -infinity, and repeat. If the maximum is itself -infinity, select
    the first element not selected before. A kernel on the core serves large k, and integers."""
    node, shape = parts.node, parts.node.shape(0)
    axis, k = node.axis(len(shape), -1), node.number(1, "K")
    if k > MAX_PASSES or np.dtype(parts.kind).kind != "f":
        _sort(parts, axis, k)
        return
    largest, x = bool(node.attribute("largest", 1)), parts.input(0)
    remaining = x if largest else -x
    positions, lowest = parts.constant(places_along(axis, shape)), parts.number(-math.inf)
    values, indices = [], []
    candidates, zero = parts.constant(np.ones(shape, np.int8)), parts.constant(np.array(0, np.int8))
    for step in range(k):
        values.append(parts.make("ReduceMax", remaining, [axis]))
        indices.append(parts.make("ArgMax", remaining, axis=axis))
        if step > 0:
            first = parts.make("ArgMax", candidates, axis=axis)
            indices[-1] = values[-1].equal(lowest).where(first, indices[-1])
        if step < k - 1:
            selected = indices[-1].equal(positions)
            remaining, candidates = selected.where(lowest, remaining), selected.where(zero, candidates)
    if node.gives(0):
        parts.result("Identity" if largest else "Neg", parts.joined(values, axis))
    if node.gives(1):
        parts.result("Identity", parts.joined(indices, axis), index=1)


def _sort(parts: Decomposition, axis: int, k: int) -> None:
    """Compose TopK with kernel TOP_K, which finds the indices in rows."""
    node, shape, last = parts.node, parts.node.shape(0), len(parts.node.shape(0)) - 1
    order = [at for at in range(last + 1) if at != axis] + [axis]
    inverse = [order.index(at) for at in range(last + 1)]
    x = parts.input(0) if axis == last else parts.input(0).transpose(*order)
    rows, columns = math.prod(shape) // shape[axis], shape[axis]
    places = parts.make("TopK", x.reshape(rows, columns), domain=CORE, k=k, largest=int(node.attribute("largest", 1)))
    parts.infos[places.name] = TensorInfo("INT64", (rows, k))
    indices = places.reshape(*(shape[at] for at in order[:-1]), k)
    for index in (0, 1):
        if not node.gives(index):
            continue
        result = indices if index else parts.make("GatherElements", x, indices, axis=last)
        if axis == last:
            parts.result("Identity", result, index=index)
        else:
            parts.result("Transpose", result, index=index, perm=inverse)


def reverse_sequence(parts: Decomposition) -> None:
    """Compose ReverseSequence: reverse the leading elements of each sequence; their number may be computed."""
    node, shape, lengths = parts.node, parts.node.shape(0), parts.node.constant(1)
    time, batch = (int(node.attribute(f"{name}_axis", at)) for at, name in enumerate(("time", "batch")))
    if {time, batch} != {0, 1}:
        node.refuse(f"attributes time_axis={time}, batch_axis={batch}: must be 0 and 1, or 1 and 0")
    steps, count = shape[time], shape[batch]
    if lengths is not None and (lengths == steps).all():
        parts.result("Identity", parts.input(0).slice(time, -1, -(1 << 31), -1))
        return
    x, turned = parts.input(0), [1, 0, *range(2, len(shape))]
    if time == 0:
        x = x.transpose(*turned)
    positions = parts.constant(np.arange(steps).reshape(1, -1))
    length = parts.input(1).cast(np.int64).reshape(count, 1)
    reversed_places = length - positions - [1]
    places = (positions < length).where(reversed_places, positions) + np.arange(count).reshape(-1, 1) * steps
    rows = x.reshape(count * steps, math.prod(shape[2:]))
    rows = parts.make("Gather", rows, places.reshape(count * steps), axis=0)
    if time == 1:
        parts.reshaped_result(rows)
    else:
        parts.result("Transpose", rows.reshape(count, steps, *shape[2:]), perm=turned)


def one_hot(parts: Decomposition) -> None:
    """Compose OneHot: compare the indices with all positions."""
    node, shape = parts.node, parts.node.shape(0)
    depth, axis = node.number(1, "depth"), int(node.attribute("axis", -1)) % (len(shape) + 1)
    node.check_constant(depth)
    indices = parts.input(0)
    indices = _positive(indices if indices.dtype == np.int64 else indices.cast(np.int64), depth)
    spread = indices.reshape(*shape[:axis], 1, *shape[axis:])
    mask = spread.equal(places_along(axis, (*shape[:axis], depth, *shape[axis:]))).reshape(*node.out_info().shape)
    off, on = (parts.input(2).slice(0, at, at + 1).reshape(1) for at in (0, 1))
    parts.result("Where", mask, on, off)


def _offsets(shape: Sequence[int], indices_shape: Sequence[int], axis: int) -> Any:
    """Return the offset of each index in a flat table of this shape, excluding the part along the axis."""
    grids = enumerate(np.indices(indices_shape, sparse=True))
    offsets = (grid * math.prod(shape[at + 1 :]) for at, grid in grids if at != axis)
    return sum(offsets, start=np.zeros(indices_shape, np.int64))


def gather_elements(parts: Decomposition) -> None:
    """Compose GatherElements as a Gather from the flat data."""
    node, shape = parts.node, parts.node.shape(0)
    axis = node.axis(len(shape), 0)
    step, base = math.prod(shape[axis + 1 :]), _offsets(shape, node.shape(1), axis)
    constant = node.constant(1)
    if constant is not None:
        places = parts.constant((base + constant % shape[axis] * step).astype(np.int64))
    else:
        places = _positive(parts.input(1).cast(np.int64), shape[axis]) * step + base
    parts.result("Gather", parts.input(0).reshape(math.prod(shape)), places, axis=0)


def _positive(indices: Tensor, size: int) -> Tensor:
    """Convert negative indices (INT64) to indices from the start."""
    return (indices < 0).where(indices + size, indices)


def gather_nd(parts: Decomposition) -> None:
    """Compose GatherND as a Gather of rows from a table that flattens the indexed dimensions."""
    node, shape, indices = parts.node, parts.node.shape(0), parts.node.shape(1)
    batch, depth = int(node.attribute("batch_dims", 0)), indices[-1]
    lead, count = shape[: batch + depth], math.prod(indices[:-1])
    row = shape[batch + depth :]
    offset = np.zeros(count, np.int64)
    if batch:
        inner = math.prod(lead[batch:])
        offset = np.repeat(np.arange(math.prod(shape[:batch])) * inner, count // math.prod(shape[:batch]))
    steps = [math.prod(lead[batch + at + 1 :]) for at in range(depth)]
    constant = node.constant(1)
    if constant is not None:
        flat = constant.reshape(count, depth) % np.array(lead[batch:])
        places = parts.constant((flat @ np.array(steps, np.int64) + offset).astype(np.int64))
    else:
        places = parts.constant(offset)
        columns = parts.input(1).cast(np.int64).reshape(count, depth)
        for at, step in enumerate(steps):
            places = places + _positive(columns.slice(1, at, at + 1).reshape(count), lead[batch + at]) * step
    table = parts.input(0).reshape(math.prod(lead), max(1, math.prod(row)))
    parts.reshaped_result(parts.make("Gather", table, places, axis=0))


def scatter_elements(parts: Decomposition) -> None:
    """Compose ScatterElements. With constant indices, a Gather selects each result element from the data or the
    updates."""
    node, shape = parts.node, parts.node.shape(0)
    if reduction := _reduction(node):
        scatter = _compare(parts)
        _restore_axis(parts, scatter, _reduce(parts, scatter, reduction))
        return
    indices = node.constant(1)
    if indices is None:
        _place(parts)
        return
    axis = node.axis(len(shape), 0)
    base = _offsets(shape, indices.shape, axis) + indices % shape[axis] * math.prod(shape[axis + 1 :])
    _merge(parts, base.reshape(-1), 1)


class _Reduction(NamedTuple):
    """Reduction of an element with its updates: binary operator, reduction operator, neutral element."""

    pair: str
    many: str
    neutral: float


_REDUCTIONS = {
    "add": _Reduction("Add", "ReduceSum", 0), "max": _Reduction("Max", "ReduceMax", -math.inf),
    "min": _Reduction("Min", "ReduceMin", math.inf), "mul": _Reduction("Mul", "ReduceProd", 1),
}  # fmt: skip


def _reduction(node: NodeView) -> _Reduction | None:
    """Return the reduction of a node; None if the last update replaces an element."""
    name = str(node.attribute("reduction", "none"))
    if name != "none" and name not in _REDUCTIONS:
        node.refuse(f"attribute reduction={name}: supported are none, {', '.join(_REDUCTIONS)}")
    return _REDUCTIONS.get(name)


def _reduce(parts: Decomposition, scatter: "_Compared", reduction: _Reduction) -> Tensor:
    """Reduce each element of the data with its updates, by comparison of all positions along the axis with each
    index."""
    neutral, kind = reduction.neutral, np.dtype(parts.kind)
    if math.isinf(neutral) and kind.kind != "f":  # the device stores INT64 as INT32
        limits = np.iinfo(np.int32 if kind.itemsize > 4 else kind)
        neutral = limits.max if neutral > 0 else limits.min
    updates = scatter.updates.reshape(1, scatter.indices, scatter.width)
    total = parts.make(reduction.many, scatter.mask.where(updates, neutral), [1], keepdims=0)
    return parts.make(reduction.pair, scatter.data.reshape(scatter.size, scatter.width), total)


def _place(parts: Decomposition) -> None:
    """Select each element of the data or its last update, for indices known only at run time."""
    scatter = _compare(parts)
    count, width = scatter.indices, scatter.width
    last = _last(scatter.mask, np.arange(count).reshape(1, count, 1))
    place = last.max(0) * width + np.arange(width)
    updates = parts.make("Gather", scatter.updates.reshape(count * width), place)
    data = scatter.data.reshape(scatter.size, width)
    _restore_axis(parts, scatter, (last < 0).where(data, updates))


def _last(mask: Tensor, numbers: Values) -> Tensor:
    """Return the last update of each position, along dimension 1; -1 for none."""
    return mask.parts.make("ReduceMax", mask.where(numbers, -1), [1], keepdims=0)


class _Compared(NamedTuple):
    """Comparison of positions along an axis with the indices: positions x indices x other elements."""

    mask: Tensor
    data: Tensor
    updates: Tensor
    size: int
    indices: int
    width: int
    order: list[int]
    """Permutation that moves the axis first."""


def _compare(parts: Decomposition) -> _Compared:
    node, shape, indices_shape = parts.node, parts.node.shape(0), parts.node.shape(1)
    axis, rank = node.axis(len(shape), 0), len(shape)
    order = [axis, *(at for at in range(rank) if at != axis)]
    rows, columns = [shape[at] for at in order], [indices_shape[at] for at in order]
    if rows[1:] != columns[1:]:
        return _compare_singly(parts, axis)
    size, count, width = rows[0], columns[0], math.prod(rows[1:])
    _bound(node, size, count, width)
    data, indices, updates = (parts.input(at).transpose(*order) if axis else parts.input(at) for at in range(3))
    indices = _positive(indices.cast(np.int64).reshape(1, count, width), size)
    mask = indices.equal(np.arange(size, dtype=np.int64).reshape(-1, 1, 1))
    return _Compared(mask, data, updates, size, count, width, order)


def _compare_singly(parts: Decomposition, axis: int) -> _Compared:
    """Compare the positions of all elements, for indices that cover only a part of the other axes."""
    node, shape, indices_shape = parts.node, parts.node.shape(0), parts.node.shape(1)
    size, count = math.prod(shape), math.prod(indices_shape)
    _bound(node, size, count, 1)
    places = _positive(parts.input(1).cast(np.int64), shape[axis]) * math.prod(shape[axis + 1 :])
    places = (places + _offsets(shape, indices_shape, axis)).reshape(1, count, 1)
    mask = places.equal(np.arange(size, dtype=np.int64).reshape(-1, 1, 1))
    return _Compared(mask, parts.input(0), parts.input(2), size, count, 1, list(range(len(shape))))


def _bound(node: NodeView, size: int, count: int, width: int) -> None:
    if size * count * width > MAX_ADDED:
        node.refuse(f"{size} places, {count} computed indices, {width} elements of each: more than {MAX_ADDED} "
                    f"comparisons: bind smaller dimensions with --shape")  # fmt: skip


def _restore_axis(parts: Decomposition, scatter: _Compared, result: Tensor) -> None:
    """Compose the result, with the axis moved back."""
    shape, order = parts.node.shape(0), scatter.order
    if order[0] == 0:
        parts.reshaped_result(result)
        return
    rows = result.reshape(*(shape[at] for at in order))
    parts.result("Transpose", rows, perm=[order.index(at) for at in range(len(order))])


def scatter_nd(parts: Decomposition) -> None:
    """Compose ScatterND as ScatterElements on rows."""
    node, shape = parts.node, parts.node.shape(0)
    indices, depth, reduction = node.constant(1), node.shape(1)[-1], _reduction(parts.node)
    steps = [math.prod(shape[at + 1 : depth]) for at in range(depth)]
    if indices is None or reduction:
        _place_rows(parts, steps, reduction)
        return
    flat = indices.reshape(-1, depth) % np.array(shape[:depth])
    _merge(parts, flat @ np.array(steps, np.int64), math.prod(shape[depth:]))


def _place_rows(parts: Decomposition, steps: list[int], reduction: _Reduction | None) -> None:
    """Apply `_place` or `_reduce` to rows."""
    node, shape, depth = parts.node, parts.node.shape(0), len(steps)
    size, width, count = math.prod(shape[:depth]), math.prod(shape[depth:]), math.prod(node.shape(1)[:-1])
    _bound(node, size, count, width if reduction else 1)
    columns = parts.input(1).cast(np.int64).reshape(count, depth)
    places = None
    for at, step in enumerate(steps):
        term = _positive(columns.slice(1, at, at + 1).reshape(1, count), shape[at]) * step
        places = term if places is None else places + term
    assert places is not None
    mask = places.equal(np.arange(size).reshape(-1, 1))
    if reduction:
        scatter = _Compared(mask.reshape(size, count, 1), parts.input(0), parts.input(2), size, count, width, [0])
        parts.reshaped_result(_reduce(parts, scatter, reduction))
        return
    last = _last(mask, np.arange(count).reshape(1, count))
    row = last.max(0)
    rows = parts.make("Gather", parts.input(2).reshape(count, width), row)
    untouched = (last < 0).reshape(size, 1)
    parts.reshaped_result(untouched.where(parts.input(0).reshape(size, width), rows))


def _merge(parts: Decomposition, places: np.ndarray, row: int) -> None:
    """Compose rows of the data, replaced at `places` by the updates; the last of duplicates wins."""
    node = parts.node
    count = math.prod(node.shape(0)) // row
    order = np.arange(count)
    order[places] = count + np.arange(len(places))
    table = parts.joined([parts.input(0).reshape(count, row), parts.input(2).reshape(len(places), row)], 0)
    parts.reshaped_result(parts.make("Gather", table, order.astype(np.int64), axis=0))


def compress(parts: Decomposition) -> None:
    """Compose Compress with a constant condition."""
    node, condition = parts.node, parts.node.needed(1, "condition")
    x, axis = parts.input(0), node.attribute("axis")
    if axis is None:
        x, axis = x.reshape(-1), 0
    parts.result("Gather", x, np.flatnonzero(condition).astype(np.int64), axis=axis)


_DROPPED = 0.5
"""Default ratio of a Dropout."""


def dropout(parts: Decomposition) -> None:
    """Compose Dropout as identity: outside of training and at ratio 0 it has no effect."""
    node = parts.node
    if node.has(2) and node.number(2, "training_mode"):
        ratio = float(node.needed(1, "ratio").reshape(-1)[0]) if node.has(1) else _DROPPED
        if ratio:
            node.refuse(f"training_mode is true at ratio {ratio:g}: supported are inference, and ratio 0")
    parts.result("Identity", parts.input(0))
    if node.gives(1):
        parts.result("Expand", np.array(True), node.shape(0), index=1)
