"""ONNX operators whose result size the run determines: kernels on the core (docs/firmware.md, "Kernels").

A node becomes one of DOMAIN with two outputs: the maximum number of rows, padded with -1, and the count of valid rows.
The count is a model output with suffix COUNT. Each node of DOMAIN is a function of ONNX operators, which the reference
evaluates.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from toolchain.onnx_nodes.evaluation import TensorInfo
from toolchain.onnx_nodes.parts import CORE as DOMAIN
from toolchain.onnx_nodes.parts import Composition, Decomposition, Tensor, ValidRows

COUNT = ".count"
MAX_RANK = 8
MAX_ROWS = 1 << 26
"""Maximum size of a result, elements."""
MAX_UNIQUE = 1 << 12
"""Maximum input size of Unique, elements: counting compares all pairs."""


def _attribute_reference(name: str, source: str) -> Any:
    """Return the integer attribute `name` of a node in a function, a reference to the function's attribute `source`."""
    return onnx.AttributeProto(name=name, ref_attr_name=source, type=onnx.AttributeProto.INT)


def _function(opset: int, name: str, inputs: Sequence[str], axis: int, *attributes: str) -> Any:
    """Return a function of the ONNX operator `name`. It counts the rows along an axis and pads them with -1 to
    attribute `rows`."""
    make = helper.make_node
    first, limit = make(name, inputs, ["found"]), make("Constant", [], ["limit"])
    first.attribute.extend(_attribute_reference(attribute, attribute) for attribute in attributes)
    limit.attribute.append(_attribute_reference("value_int", "rows"))
    nodes = [
        first, limit, make("Shape", ["found"], ["count"], start=axis, end=axis + 1),
        make("Sub", ["limit", "count"], ["missing"]), make("Constant", [], ["before"], value_ints=[0]),
        make("Concat", ["before", "missing"], ["pads"], axis=0), make("Constant", [], ["fill"], value_int=-1),
        make("Constant", [], ["along"], value_ints=[axis]), make("Pad", ["found", "pads", "fill", "along"], ["y"]),
    ]  # fmt: skip
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_function(DOMAIN, name, inputs, ["y", "count"], nodes, opsets, ["rows", *attributes])


_SUPPRESSION = ("boxes", "scores", "most", "overlap", "least")


def functions(opset: int) -> list[Any]:
    """Return the functions of DOMAIN for a model of this operator set."""
    suppression = _function(opset, "NonMaxSuppression", _SUPPRESSION, 0, "center_point_box")
    return [_function(opset, "NonZero", ["x"], 1), suppression]


def _count_rows(parts: Decomposition, operator: str, operands: Sequence[Tensor], name: str, axis: int,
                shape: Sequence[int], **attributes: Any) -> Tensor:  # fmt: skip
    """Add the node of DOMAIN with output `name`, whose dimension `axis` holds the rows."""
    if math.prod(shape) > MAX_ROWS:
        parts.node.refuse(
            f"a result of up to {list(shape)}: supported are up to {MAX_ROWS} elements: use a smaller input"
        )
    count = f"{next(output for output in parts.node.proto.output if output)}{COUNT}"
    label = f"{parts.node.name}/{operator}"
    inputs = [operand.name for operand in operands]
    node = helper.make_node(operator, inputs, [name, count], label, domain=DOMAIN, rows=shape[axis], **attributes)
    parts.nodes.append(node)
    parts.counts[name] = ValidRows(count, axis)
    parts.infos |= {name: TensorInfo("INT64", tuple(shape)), count: TensorInfo("INT64", (1,))}
    return Tensor(parts, name, np.int64)


def non_zero(parts: Decomposition) -> None:
    shape = parts.node.shape(0)
    if not 1 <= len(shape) <= MAX_RANK or 0 in shape:
        parts.node.refuse(f"an input of shape {list(shape)}: supported are 1..{MAX_RANK} dimensions with elements")
    _count_rows(parts, "NonZero", [parts.input(0)], parts.node.proto.output[0], 1, (len(shape), math.prod(shape)))


def compress(parts: Decomposition) -> None:
    """Compose a Gather of the indices with a true condition; Compress with a constant condition is unchanged."""
    node = parts.node
    if node.constant(1) is not None:
        parts.nodes.append(node.proto)
        return
    data, shape = parts.input(0), node.shape(0)
    axis = 0 if node.attribute("axis") is None else node.axis(len(shape))
    if node.attribute("axis") is None and len(shape) > 1:
        data, shape = data.reshape(math.prod(shape)), (math.prod(shape),)
    if node.shape(1)[0] > shape[axis]:
        node.refuse(f"a condition of {node.shape(1)[0]} elements for an axis of {shape[axis]}: give it as many")
    rows = node.shape(1)[0]
    places = _count_rows(parts, "NonZero", [parts.input(1)], f"{node.proto.output[0]}/places", 1, (1, rows))
    parts.result("Gather", data, places.reshape(rows), axis=axis)


def unique(parts: Decomposition) -> None:
    """Compose Unique: unique elements in sorted order, and the first index of each."""
    node, shape = parts.node, parts.node.shape(0)
    if (node.attribute("axis") is not None and len(shape) > 1) or not node.attribute("sorted", 1):
        node.refuse("attributes axis, sorted=0: supported are all elements of a tensor, in order")
    size = math.prod(shape)
    if not 0 < size <= MAX_UNIQUE:
        node.refuse(f"{size} elements: supported are 1..{MAX_UNIQUE}: use a smaller input")
    values, order = parts.several(2, "TopK", parts.input(0).reshape(size), [size], axis=0, largest=0)
    new = order.equal(order)
    if size > 1:
        repeats = values.slice(0, 1, size).equal(values.slice(0, 0, size - 1))
        new = parts.joined([new.slice(0, 0, 1), parts.make("Not", repeats)], 0)
    rows = _count_rows(parts, "NonZero", [new], f"{node.name}/places", 1, (1, size)).reshape(size)
    group = parts.make("CumSum", new.cast(np.int64), [0]) - [1]
    if node.gives(0):
        parts.result("Gather", values, rows, axis=0)
    if node.gives(1):
        parts.result("Gather", order, rows, index=1, axis=0)
    if node.gives(2):
        inverse = parts.several(2, "TopK", order, [size], axis=0, largest=0)[1]
        parts.result("Gather", group, inverse, index=2, axis=0)
    if node.gives(3):
        equal = parts.constant(np.arange(size).reshape(-1, 1)).equal(group).cast(np.float32)
        counts = parts.make("ReduceSum", equal, [1], keepdims=0).cast(np.int64)
        parts.result("Gather", counts, parts.make("Gather", group, rows, axis=0), index=3, axis=0)


def non_max_suppression(parts: Decomposition) -> None:
    node = parts.node
    (images, boxes, _), classes = node.shape(0), node.shape(1)[1]
    limit = node.number(2, "max_output_boxes_per_class") if node.has(2) else 0
    count = min(limit, boxes)
    if count <= 0:
        node.refuse(f"max_output_boxes_per_class {limit}: no box is selected: give 1 or more")
    overlap = float(node.needed(3, "iou_threshold").reshape(-1)[0]) if node.has(3) else 0.0
    threshold = float(node.needed(4, "score_threshold").reshape(-1)[0]) if node.has(4) else -math.inf
    numbers = map(parts.constant, ([count], np.array([overlap], np.float32), np.array([threshold], np.float32)))
    _count_rows(
        parts, "NonMaxSuppression", [parts.input(0), parts.input(1), *numbers], node.proto.output[0], 0,
        (images * classes * count, 3), center_point_box=int(node.attribute("center_point_box", 0)),
    )  # fmt: skip


ON_CORE: dict[str, Composition] = {
    "Compress": Composition("a computed condition: kernel NON_ZERO on the core, Gather", compress, ("axis",)),
    "NonMaxSuppression": Composition(
        "kernel NON_MAX_SUPPRESSION on the core", non_max_suppression, ("center_point_box",)
    ),
    "NonZero": Composition("kernel NON_ZERO on the core", non_zero),
    "Unique": Composition("kernels TOP_K, NON_ZERO on the core, Gather", unique, ("axis", "sorted")),
}
"""Operators with data-dependent shapes, decomposed before shape inference."""
