"""NonMaxSuppression as a graph of ONNX's operators: how many boxes it selects is what the run decides.

All classes of all images are rows that are worked on side by side. Each step takes the best box of every row and
strikes out what lies over it. The result has a row for every box that could be selected: those that are come first, the
others are -1, and an output whose name has COUNT behind it says how many there are.
"""

import math

import numpy as np
from onnx import helper

from toolchain.onnx_nodes.parts import Parts

COUNT = ".count"
MAX_SELECTED = 256
"""Boxes of a class: each is found by a pass over all."""
MAX_PLACES = 1 << 24
"""Comparisons of rows of the result with classes."""


def non_max_suppression(parts: Parts) -> None:
    node = parts.node
    (images, boxes, _), classes = node.shape(0), node.shape(1)[1]
    wanted = int(node.needed(2, "max_output_boxes_per_class").reshape(-1)[0]) if node.has(2) else 0
    steps, rows = min(wanted, boxes), images * classes
    if steps <= 0:
        node.refuse(f"max_output_boxes_per_class {wanted}: no box is selected: give 1..{MAX_SELECTED}")
    if steps > MAX_SELECTED or rows * steps * rows > MAX_PLACES:
        node.refuse(f"max_output_boxes_per_class {steps} of {rows} classes: supported are up to {MAX_SELECTED}, and "
                    f"{MAX_PLACES} for classes^2 times it: give fewer")  # fmt: skip
    chosen, valid = _selected(parts, images, classes, boxes, steps)
    _packed(parts, chosen, valid, images, classes, steps)


def _corners(parts: Parts, images: int, boxes: int) -> list[str]:
    """Least and largest y and x of each box: images x 1 x boxes."""
    columns = [parts.reshaped(parts.sliced(parts.input(0), 2, at, at + 1), images, 1, boxes) for at in range(4)]
    if not parts.node.attribute("center_point_box", 0):
        pairs = ((columns[0], columns[2]), (columns[1], columns[3]))
        return [parts.make(which, *pair) for pair in pairs for which in ("Min", "Max")]
    made = []
    for centre, size in ((columns[1], columns[3]), (columns[0], columns[2])):
        half = parts.make("Div", size, parts.number(2))
        made += [parts.make(way, centre, half) for way in ("Sub", "Add")]
    return made


def _selected(parts: Parts, images: int, classes: int, boxes: int, steps: int) -> tuple[str, str]:
    """(images x classes x steps: the box that each step selects, 1 where it selects one)."""
    node, rows = parts.node, images * classes
    overlap = float(node.needed(3, "iou_threshold").reshape(-1)[0]) if node.has(3) else 0.0
    lowest, left = parts.number(-math.inf), parts.input(1)
    if node.has(4):
        least = parts.constant(node.needed(4, "score_threshold").reshape(-1)[:1])
        left = parts.make("Where", parts.make("Greater", left, least), left, lowest)
    low_y, high_y, low_x, high_x = corners = _corners(parts, images, boxes)
    area = parts.make("Mul", parts.make("Sub", high_x, low_x), parts.make("Sub", high_y, low_y))
    tables = [parts.reshaped(one, images * boxes) for one in (*corners, area)]
    first = np.repeat(np.arange(images, dtype=np.int64) * boxes, classes).reshape(images, classes, 1)
    offset, every = parts.constant(first), parts.constant(np.arange(boxes, dtype=np.int64).reshape(1, 1, -1))
    limit, places, valid = parts.number(overlap), [], []
    for step in range(steps):
        best = parts.make("ArgMax", left, axis=2)
        valid.append(parts.make("Greater", parts.make("ReduceMax", left, parts.integers(2)), lowest))
        places.append(best)
        if step == steps - 1:
            break
        own = parts.make("Add", best, offset) if images > 1 else best
        y0, y1, x0, x1, size = (parts.make("Gather", table, own) for table in tables)
        width = parts.make("Sub", parts.make("Min", high_x, x1), parts.make("Max", low_x, x0))
        height = parts.make("Sub", parts.make("Min", high_y, y1), parts.make("Max", low_y, y0))
        common = parts.make("Mul", parts.make("Relu", width), parts.make("Relu", height))
        together = parts.make("Sub", parts.make("Add", area, size), common)
        over = parts.make("Greater", parts.make("Div", common, together), limit)
        struck = parts.make("Or", over, parts.make("Equal", best, every))
        left = parts.make("Where", struck, lowest, left)
    flags = parts.cast(parts.joined(valid, 2), np.float32)
    return parts.reshaped(parts.joined(places, 2), rows * steps), parts.reshaped(flags, rows, steps)


def _packed(parts: Parts, chosen: str, valid: str, images: int, classes: int, steps: int) -> None:
    """The rows of the result: those of a class follow each other, so that its number of boxes says where the next
    begins."""
    rows, total = images * classes, images * classes * steps
    count = parts.make("ReduceSum", valid, parts.integers(1), keepdims=1)
    end = parts.make("MatMul", parts.constant(np.tri(rows, dtype=np.float32)), count)
    start = parts.reshaped(parts.make("Sub", end, count), rows)
    slots = np.arange(total)
    behind = parts.make("Less", parts.reshaped(end, 1, rows), parts.constant((slots + 0.5).astype(np.float32)[:, None]))
    row = parts.make("ReduceSum", parts.cast(behind, np.float32), parts.integers(1), keepdims=0)
    row = parts.make("Min", parts.cast(row, np.int64), parts.constant(np.array(rows - 1)))
    step = parts.make("Sub", parts.constant(slots), parts.cast(parts.make("Gather", start, row), np.int64))
    step = parts.make("Min", step, parts.constant(np.array(steps - 1)))
    place = parts.make("Add", parts.make("Mul", row, parts.constant(np.array(steps))), step)
    columns = [
        parts.make("Gather", parts.constant(np.arange(rows) // classes), row),
        parts.make("Gather", parts.constant(np.arange(rows) % classes), row),
        parts.make("Gather", chosen, place),
    ]
    found = parts.cast(parts.reshaped(parts.sliced(end, 0, rows - 1, rows), 1), np.int64)
    here = parts.reshaped(parts.make("Less", parts.constant(slots), found), total, 1)
    made = parts.joined([parts.reshaped(one, total, 1) for one in columns], 1)
    parts.result("Where", here, made, parts.constant(np.array(-1)))
    parts.nodes.append(helper.make_node("Identity", [found], [f"{parts.node.proto.output[0]}{COUNT}"]))
