"""Kernels of firmware in C (docs/firmware.md, "Kernels"), for IA, which has no core."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import BITS, DataType, Kernel, Opcode
from npu_device.memory.memory import Memory
from npu_device.operations.kernels import elements
from npu_device.operations.kernels.elements import Values


class KernelResult(NamedTuple):
    """Result of a kernel."""

    rows: Values
    """INT32, of its full size."""
    number: int


def run(memory: Memory, descriptor: Descriptor, block: Extended) -> None:
    """Execute a CORE command, with its operands in `memory`."""
    words, kernel = block.words(Opcode.CORE), Kernel(descriptor.function)
    places = (descriptor.in0_addr, descriptor.type_in0), (descriptor.in1_addr, descriptor.type_in1)
    shapes = operand_shapes(kernel, words["core_words"])
    operands = [_read(memory, *place, shape) for place, shape in zip(places, shapes, strict=False)]
    result = execute(kernel, operands, words["core_words"])
    memory.write_bytes(descriptor.out_addr, result.rows.astype("<i4").tobytes())
    memory.write_bytes(words["core_count"], result.number.to_bytes(4, "little"))


def _read(memory: Memory, address: int, kind: int, shape: tuple[int, ...]) -> Values:
    count, element = int(np.prod(shape)), DataType(kind)
    data = memory.read(address, count * BITS[element] // 8)
    assert data is not None, "operands are in DRAM"
    return elements.decode(np.frombuffer(data, np.uint8), element, 1, count).reshape(shape)


def operand_shapes(kernel: Kernel, words: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the shapes of the operands of a kernel with these words."""
    if kernel is Kernel.NON_ZERO:
        return [tuple(size for size in words if size)]
    if kernel is Kernel.TOP_K:
        return [words[:2]]
    images, count, classes = words[:3]
    return [(images, count, 4), (images, classes, count)]


def execute(kernel: Kernel, operands: Sequence[Values], words: tuple[int, ...]) -> KernelResult:
    """Return the result of a kernel on operands of `operand_shapes`."""
    return _KERNELS[kernel](operands, words)


def _non_zero(operands: Sequence[Values], words: tuple[int, ...]) -> KernelResult:
    (values,) = operands
    rows = np.full((values.ndim, values.size), -1)
    places = np.argwhere(values != 0).T
    rows[:, : places.shape[1]] = places
    return KernelResult(rows, places.shape[1])


def _non_max_suppression(operands: Sequence[Values], words: tuple[int, ...]) -> KernelResult:
    images, _, classes, max_boxes, *floats, centres, _ = words
    overlap, threshold = np.array(floats, np.uint32).view(np.float32)
    coordinates, scores = operands
    rows, end = np.full((images * classes * max_boxes, 3), -1), 0
    for image, label in np.ndindex(images, classes):
        boxes, label_scores = _corners(coordinates[image], bool(centres)), scores[image, label]
        order = np.argsort(-label_scores, kind="stable")
        candidates, chosen = order[label_scores[order] > threshold], 0
        while len(candidates) and chosen < max_boxes:
            rows[end], end, chosen = (image, label, candidates[0]), end + 1, chosen + 1
            candidates = candidates[1:][~_overlaps(boxes[candidates[0]], boxes[candidates[1:]], overlap)]
    return KernelResult(rows, end)


def _corners(boxes: Values, centres: bool) -> Values:
    """Return the minimum and maximum y and x of each box: boxes x 4."""
    if centres:
        middle, half = boxes[:, 1::-1], boxes[:, :1:-1] / np.float32(2)
        return np.concatenate([middle - half, middle + half], 1)
    return np.concatenate([np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], 1)


def _overlaps(box: Values, others: Values, overlap: Any) -> Values:
    """Return which boxes overlap a box so much that they are suppressed."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    side, size, sizes = high - low, box[2:] - box[:2], others[:, 2:] - others[:, :2]
    common, first, second = side[:, 1] * side[:, 0], size[1] * size[0], sizes[:, 1] * sizes[:, 0]
    union = first + second - common
    with np.errstate(all="ignore"):
        share = common / union
    valid = (side > 0).all(1) & (common > 0) & (first > 0) & (second > 0) & (union > 0)
    return valid & (share > overlap)


def _top_k(operands: Sequence[Values], words: tuple[int, ...]) -> KernelResult:
    (values,), (k, largest) = operands, words[2:4]
    keys = _keys(values) if largest else -_keys(values)
    return KernelResult(np.argsort(-keys, axis=1, kind="stable")[:, :k], k)


def _keys(values: Values) -> Values:
    """Return integers in the order of numbers: -0 is 0, and not-a-number lies beyond the infinities."""
    if values.dtype.kind != "f":
        return values.astype(np.int64)
    bits = values.astype(np.float32).view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


_KERNELS: dict[Kernel, Callable[[Sequence[Values], tuple[int, ...]], KernelResult]] = {
    Kernel.NON_ZERO: _non_zero,
    Kernel.NON_MAX_SUPPRESSION: _non_max_suppression,
    Kernel.TOP_K: _top_k,
}
