"""Operators that read rows of a table: Gather, RotaryEmbedding. Positions are INT32 on the device."""

import math
from typing import NamedTuple

import numpy as np

from npu_device.abi.opcodes import DataType
from toolchain.ir.graph import TensorIR
from toolchain.onnx_model.node import Node
from toolchain.onnx_operators.copies import broadcast_tensor, copy, steps, transpose_tensor


def gather(node: Node) -> None:
    """Emit a gather of table rows, with the axis moved to the front. Constant indices with a uniform stride along each
    of their dimensions, such as relative positions, become a copy."""
    data, out = node.tensor(0), node.output()
    axis = node.axis(len(data.shape), 0)
    constant = node.constant(1)
    if constant is not None:
        _check(node, constant, data.shape[axis])
    walk = None if constant is None or not constant.size else _walk(constant % data.shape[axis])
    if walk is not None:
        strides = steps(data.shape)
        dims = (*data.shape[:axis], *walk.dims, *data.shape[axis + 1 :])
        along = (*strides[:axis], *(step * strides[axis] for step in walk.steps), *strides[axis + 1 :])
        copy(node, data, out, dims, along, steps(dims), at_in=walk.first * strides[axis])
        return
    indices = node.tensor(1)
    rank = len(data.shape)
    table = transpose_tensor(node, data, (axis, *(a for a in range(rank) if a != axis)))
    if not axis:
        gather_rows(node, table, indices, out)
        return
    rows = node.temporary((*indices.shape, *table.shape[1:]), data.dtype)
    gather_rows(node, table, indices, rows)
    count = len(indices.shape)
    order = (*range(count, count + axis), *range(count), *range(count + axis, len(rows.shape)))
    transpose_tensor(node, rows, order, out)


class _IndexWalk(NamedTuple):
    """Indices as a first index plus strides times coordinates."""

    first: int
    dims: tuple[int, ...]
    steps: tuple[int, ...]


def _walk(indices: np.ndarray) -> _IndexWalk | None:
    """Return the indices as an affine walk; None if they are not one."""
    first = int(indices.reshape(-1)[0])
    along = [np.moveaxis(indices, axis, 0).reshape(size, -1)[:2, 0] for axis, size in enumerate(indices.shape)]
    strides = tuple(int(pair[-1] - pair[0]) for pair in along)
    places = sum((np.arange(size) * step).reshape([-1 if dim == axis else 1 for dim in range(indices.ndim)])
                 for axis, (size, step) in enumerate(zip(indices.shape, strides, strict=True)))  # fmt: skip
    return _IndexWalk(first, indices.shape, strides) if np.array_equal(first + places, indices) else None


def _check(node: Node, indices: np.ndarray, rows: int) -> None:
    wrong = indices[(indices < -rows) | (indices >= rows)]
    if wrong.size:
        node.refuse(f"index {int(wrong[0])}: the axis has {rows} elements, indices are {-rows}..{rows - 1}")


def gather_rows(node: Node, table: TensorIR, indices: TensorIR, out: TensorIR) -> None:
    """Emit a GATHER layer: rows of the table along its first axis."""
    if indices.dtype is not DataType.INT32:
        node.refuse(f"indices of type {indices.dtype.name}: supported are INT32, INT64")
    node.layer("GATHER", [table, indices], out, m=indices.elements, n=math.prod(table.shape[1:]), k=table.shape[0])


def rotary_embedding(node: Node) -> None:
    """Emit ROPE on rows (batch, length, heads x size), one per position; tables with a position list are gathered."""
    x, out = node.tensor(0), node.output()
    four = len(x.shape) == 4
    heads = x.shape[1] if four else int(node.attribute("num_heads", 0))
    if not heads:
        node.refuse("attribute num_heads is needed where the input has three dimensions")
    rows = transpose_tensor(node, x, (0, 2, 1, 3)) if four else x
    batch, length = rows.shape[:2]
    size = math.prod(rows.shape[2:]) // heads
    rotary = int(node.attribute("rotary_embedding_dim", 0)) or size
    for index in (1, 2):
        if node.tensor(index).shape[-1] != rotary // 2:
            node.refuse(
                f"{node.tensor(index).id} of shape {list(node.tensor(index).shape)}: must have {rotary // 2} columns"
            )
    tables = []
    for index in (1, 2):
        table = node.tensor(index)
        if node.has(3):
            picked = node.temporary((batch, length, rotary // 2), table.dtype)
            gather_rows(node, table, broadcast_tensor(node, node.tensor(3), (batch, length)), picked)
            table = picked
        tables.append(broadcast_tensor(node, table, (batch, length, rotary // 2)))
    turned = node.temporary(rows.shape, x.dtype) if four else out
    node.layer(
        "ROPE", [rows, *tables], turned, m=batch * length, n=heads * size, heads=heads, rotary=rotary,
        neighbours=int(bool(node.attribute("interleaved", 0))),
    )  # fmt: skip
    if four:
        transpose_tensor(node, turned, (0, 2, 1, 3), out)
