"""Decompositions of operators that select elements: by index, by size, by mask."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from toolchain.onnx_nodes.evaluation import TensorInfo
from toolchain.onnx_nodes.parts import CORE, Decomposition
from toolchain.onnx_nodes.view import NodeView

MAX_PASSES = 16
"""Maximum k of TopK on the engines, which need one pass over the rows per element. The core is faster for larger k."""
MAX_ADDED = 1 << 24
"""Maximum number of comparisons between positions and indices for a scatter."""


def top_k(parts: Decomposition) -> None:
    """Compose TopK: find the maximum, replace it by -infinity, and repeat. If the maximum is itself -infinity, select
    the first element not selected before. A kernel on the core serves large k, and integers."""
    node, shape = parts.node, parts.node.shape(0)
    axis, k = node.axis(len(shape), -1), int(node.needed(1, "K").reshape(-1)[0])
    if k > MAX_PASSES or np.dtype(parts.kind).kind != "f":
        _sort(parts, axis, k)
        return
    largest, x = bool(node.attribute("largest", 1)), parts.input(0)
    remaining = x if largest else parts.make("Neg", x)
    places = np.arange(shape[axis]).reshape([-1 if at == axis else 1 for at in range(len(shape))])
    positions, lowest, along = parts.constant(places.astype(np.int64)), parts.number(-math.inf), parts.integers(axis)
    values, indices = [], []
    candidates, zero = parts.constant(np.ones(shape, np.int8)), parts.constant(np.array(0, np.int8))
    for step in range(k):
        values.append(parts.make("ReduceMax", remaining, along))
        indices.append(parts.make("ArgMax", remaining, axis=axis))
        if step > 0:
            first = parts.make("ArgMax", candidates, axis=axis)
            indices[-1] = parts.make("Where", parts.make("Equal", values[-1], lowest), first, indices[-1])
        if step < k - 1:
            selected = parts.make("Equal", indices[-1], positions)
            remaining, candidates = (
                parts.make("Where", selected, *pair) for pair in ((lowest, remaining), (zero, candidates))
            )
    if node.gives(0):
        values_joined = parts.joined(values, axis)
        parts.result("Identity" if largest else "Neg", values_joined)
    if node.gives(1):
        parts.result("Identity", parts.joined(indices, axis), index=1)


def _sort(parts: Decomposition, axis: int, k: int) -> None:
    """Compose TopK with kernel TOP_K, which finds the indices in rows."""
    node, shape, last = parts.node, parts.node.shape(0), len(parts.node.shape(0)) - 1
    order = [at for at in range(last + 1) if at != axis] + [axis]
    inverse = [order.index(at) for at in range(last + 1)]
    x = parts.input(0) if axis == last else parts.make("Transpose", parts.input(0), perm=order)
    rows, columns = math.prod(shape) // shape[axis], shape[axis]
    places = parts.make(
        "TopK", parts.reshaped(x, rows, columns), domain=CORE, k=k, largest=int(node.attribute("largest", 1))
    )
    parts.infos[places] = TensorInfo("INT64", (rows, k))
    indices = parts.reshaped(places, *(shape[at] for at in order[:-1]), k)
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
        parts.result("Identity", parts.sliced(parts.input(0), time, -1, -(1 << 31), -1))
        return
    x, turned = parts.input(0), [1, 0, *range(2, len(shape))]
    if time == 0:
        x = parts.make("Transpose", x, perm=turned)
    positions = parts.constant(np.arange(steps).reshape(1, -1))
    length = parts.reshaped(parts.cast(parts.input(1), np.int64), count, 1)
    reversed_places = parts.make("Sub", parts.make("Sub", length, positions), parts.integers(1))
    places = parts.make("Where", parts.make("Less", positions, length), reversed_places, positions)
    places = parts.make("Add", places, parts.constant(np.arange(count).reshape(-1, 1) * steps))
    width = math.prod(shape[2:])
    rows = parts.make("Gather", parts.reshaped(x, count * steps, width), parts.reshaped(places, count * steps), axis=0)
    if time == 1:
        parts.reshaped_result(rows)
    else:
        parts.result("Transpose", parts.reshaped(rows, count, steps, *shape[2:]), perm=turned)


def one_hot(parts: Decomposition) -> None:
    """Compose OneHot: compare the indices with all positions."""
    node, shape = parts.node, parts.node.shape(0)
    depth = int(node.needed(1, "depth").reshape(-1)[0])
    axis = int(node.attribute("axis", -1)) % (len(shape) + 1)
    parts.node.check_constant(depth)
    indices = parts.input(0)
    if np.dtype(parts.kind).kind == "f":
        indices = parts.cast(indices, np.int64)
    count = parts.constant(np.array(depth, np.int64))
    if node.numpy_type(0) == np.int32:
        indices = parts.cast(indices, np.int64)
    negative = parts.make("Less", indices, parts.constant(np.array(0, np.int64)))
    indices = parts.make("Where", negative, parts.make("Add", indices, count), indices)
    spread = parts.reshaped(indices, *shape[:axis], 1, *shape[axis:])
    places = np.arange(depth).reshape([-1 if at == axis else 1 for at in range(len(shape) + 1)])
    mask = parts.make("Equal", spread, parts.constant(places.astype(np.int64)))
    mask = parts.reshaped(mask, *node.out_info().shape)
    off, on = (parts.reshaped(parts.sliced(parts.input(2), 0, at, at + 1), 1) for at in (0, 1))
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
        indices = _positive(parts, parts.cast(parts.input(1), np.int64), shape[axis])
        steps = parts.make("Mul", indices, parts.constant(np.array(step, np.int64)))
        places = parts.make("Add", steps, parts.constant(base))
    parts.result("Gather", parts.reshaped(parts.input(0), math.prod(shape)), places, axis=0)


def _positive(parts: Decomposition, indices: str, size: int) -> str:
    """Convert negative indices to indices from the start."""
    negative = parts.make("Less", indices, parts.constant(np.array(0, np.int64)))
    return parts.make("Where", negative, parts.make("Add", indices, parts.constant(np.array(size, np.int64))), indices)


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
        total = parts.constant(offset)
        columns = parts.reshaped(parts.cast(parts.input(1), np.int64), count, depth)
        for at, step in enumerate(steps):
            column = parts.reshaped(parts.sliced(columns, 1, at, at + 1), count)
            term = parts.make("Mul", _positive(parts, column, lead[batch + at]), parts.constant(np.array(step)))
            total = parts.make("Add", total, term)
        places = total
    table = parts.reshaped(parts.input(0), math.prod(lead), max(1, math.prod(row)))
    parts.reshaped_result(parts.make("Gather", table, places, axis=0))


def scatter_elements(parts: Decomposition) -> None:
    """Compose ScatterElements. With constant indices, a Gather selects each result element from the data or the
    updates."""
    node, shape = parts.node, parts.node.shape(0)
    if reduction := _reduction(node):
        scatter = _compare(parts)
        _turn_back(parts, scatter, _reduce(parts, scatter, reduction))
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


def _reduce(parts: Decomposition, scatter: "_Compared", reduction: _Reduction) -> str:
    """Reduce each element of the data with its updates, by comparison of all positions along the axis with each
    index."""
    neutral, kind = reduction.neutral, np.dtype(parts.kind)
    if math.isinf(neutral) and kind.kind != "f":  # the device stores INT64 as INT32
        limits = np.iinfo(np.int32 if kind.itemsize > 4 else kind)
        neutral = limits.max if neutral > 0 else limits.min
    updates = parts.reshaped(scatter.updates, 1, scatter.indices, scatter.width)
    values = parts.make("Where", scatter.mask, updates, parts.number(neutral))
    total = parts.make(reduction.many, values, parts.integers(1), keepdims=0)
    return parts.make(reduction.pair, parts.reshaped(scatter.data, scatter.size, scatter.width), total)


def _place(parts: Decomposition) -> None:
    """Select each element of the data or its last update, for indices known only at run time."""
    scatter = _compare(parts)
    count, width = scatter.indices, scatter.width
    last = _last(parts, scatter.mask, count, [1, count, 1])
    row = parts.make("Max", last, parts.constant(np.array(0)))
    place = parts.make("Add", parts.make("Mul", row, parts.constant(np.array(width))), parts.constant(np.arange(width)))
    updates = parts.make("Gather", parts.reshaped(scatter.updates, count * width), place)
    data = parts.reshaped(scatter.data, scatter.size, width)
    _turn_back(parts, scatter, parts.make("Where", _none(parts, last), data, updates))


def _last(parts: Decomposition, mask: str, count: int, shape: list[int]) -> str:
    """Return the last update of each position, along dimension 1; -1 for none."""
    number = parts.constant(np.arange(count).reshape(shape))
    return parts.make("ReduceMax", parts.make("Where", mask, number, parts.constant(np.array(-1))), parts.integers(1),
                      keepdims=0)  # fmt: skip


def _none(parts: Decomposition, last: str) -> str:
    return parts.make("Less", last, parts.constant(np.array(0)))


class _Compared(NamedTuple):
    """Comparison of positions along an axis with the indices: positions x indices x other elements."""

    mask: str
    data: str
    updates: str
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
    data, indices, updates = (
        parts.make("Transpose", parts.input(at), perm=order) if axis else parts.input(at) for at in range(3)
    )
    indices = _positive(parts, parts.reshaped(parts.cast(indices, np.int64), 1, count, width), size)
    mask = parts.make("Equal", indices, parts.constant(np.arange(size, dtype=np.int64).reshape(-1, 1, 1)))
    return _Compared(mask, data, updates, size, count, width, order)


def _compare_singly(parts: Decomposition, axis: int) -> _Compared:
    """Compare the positions of all elements, for indices that cover only a part of the other axes."""
    node, shape, indices_shape = parts.node, parts.node.shape(0), parts.node.shape(1)
    size, count = math.prod(shape), math.prod(indices_shape)
    _bound(node, size, count, 1)
    base = _offsets(shape, indices_shape, axis)
    places = _positive(parts, parts.cast(parts.input(1), np.int64), shape[axis])
    step = parts.constant(np.array(math.prod(shape[axis + 1 :]), np.int64))
    places = parts.make("Add", parts.make("Mul", places, step), parts.constant(base))
    positions = parts.constant(np.arange(size, dtype=np.int64).reshape(-1, 1, 1))
    mask = parts.make("Equal", parts.reshaped(places, 1, count, 1), positions)
    return _Compared(mask, parts.input(0), parts.input(2), size, count, 1, list(range(len(shape))))


def _bound(node: NodeView, size: int, count: int, width: int) -> None:
    if size * count * width > MAX_ADDED:
        node.refuse(f"{size} places, {count} computed indices, {width} elements of each: more than {MAX_ADDED} "
                    f"comparisons: bind smaller dimensions with --shape")  # fmt: skip


def _turn_back(parts: Decomposition, scatter: _Compared, result: str) -> None:
    """Compose the result, with the axis moved back."""
    shape, order = parts.node.shape(0), scatter.order
    if order[0] == 0:
        parts.reshaped_result(result)
        return
    rows = parts.reshaped(result, *(shape[at] for at in order))
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
    columns = parts.reshaped(parts.cast(parts.input(1), np.int64), count, depth)
    places = ""
    for at, step in enumerate(steps):
        column = _positive(parts, parts.reshaped(parts.sliced(columns, 1, at, at + 1), 1, count), shape[at])
        term = parts.make("Mul", column, parts.constant(np.array(step)))
        places = parts.make("Add", places, term) if places else term
    mask = parts.make("Equal", places, parts.constant(np.arange(size).reshape(-1, 1)))
    if reduction:
        column_mask = parts.reshaped(mask, size, count, 1)
        scatter = _Compared(column_mask, parts.input(0), parts.input(2), size, count, width, [0])
        parts.reshaped_result(_reduce(parts, scatter, reduction))
        return
    last = _last(parts, mask, count, [1, count])
    row = parts.make("Max", last, parts.constant(np.array(0)))
    rows = parts.make("Gather", parts.reshaped(parts.input(2), count, width), row)
    untouched = parts.reshaped(_none(parts, last), size, 1)
    parts.reshaped_result(parts.make("Where", untouched, parts.reshaped(parts.input(0), size, width), rows))


def _merge(parts: Decomposition, places: np.ndarray, row: int) -> None:
    """Compose rows of the data, replaced at `places` by the updates; the last of duplicates wins."""
    node = parts.node
    count = math.prod(node.shape(0)) // row
    order = np.arange(count)
    order[places] = count + np.arange(len(places))
    data, updates = parts.reshaped(parts.input(0), count, row), parts.reshaped(parts.input(2), len(places), row)
    table = parts.joined([data, updates], 0)
    parts.reshaped_result(parts.make("Gather", table, parts.constant(order.astype(np.int64)), axis=0))


def compress(parts: Decomposition) -> None:
    """Compose Compress with a constant condition."""
    node, condition = parts.node, parts.node.needed(1, "condition")
    places = parts.constant(np.flatnonzero(condition).astype(np.int64))
    x, axis = parts.input(0), node.attribute("axis")
    if axis is None:
        x, axis = parts.reshaped(x, -1), 0
    parts.result("Gather", x, places, axis=axis)


_DROPPED = 0.5
"""Default ratio of a Dropout."""


def dropout(parts: Decomposition) -> None:
    """Compose Dropout as identity: outside of training and at ratio 0 it has no effect."""
    node = parts.node
    if node.has(2) and bool(node.needed(2, "training_mode").reshape(-1)[0]):
        ratio = float(node.needed(1, "ratio").reshape(-1)[0]) if node.has(1) else _DROPPED
        if ratio:
            node.refuse(f"training_mode is true at ratio {ratio:g}: supported are inference, and ratio 0")
    parts.result("Identity", parts.input(0))
    if node.gives(1):
        parts.result("Expand", parts.constant(np.array(True)), parts.integers(*node.shape(0)), index=1)
