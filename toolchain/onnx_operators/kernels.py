"""Operators that are kernels on the core: NonZero, NonMaxSuppression, TopK (docs/firmware.md, "Kernels")."""

from collections.abc import Callable, Sequence

import numpy as np

from npu_device.abi.opcodes import DataType, Kernel
from toolchain.ir.graph import TensorIR
from toolchain.onnx_domains.on_core import MAX_RANK
from toolchain.onnx_model.node import Node

HEAP_WORDS, BOX_WORDS = 2, 8
"""Words of scratch memory per heap candidate, and per selected box of a class."""


def non_zero(node: Node) -> None:
    x = node.tensor(0)
    _layer(node, Kernel.NON_ZERO, [x], (*x.shape, *(0,) * (MAX_RANK - len(x.shape))))


def non_max_suppression(node: Node) -> None:
    boxes, scores = (node.tensor(index) for index in range(2))
    images, count, _ = boxes.shape
    max_boxes = int(node.needed(2, "max_output_boxes_per_class")[0])
    overlap, threshold = (int(node.needed(index, "threshold").view(np.uint32)[0]) for index in (3, 4))
    scratch = node.temporary((count * HEAP_WORDS + max_boxes * BOX_WORDS,), DataType.INT32)
    words = (images, count, scores.shape[1], max_boxes, overlap, threshold,
             node.attribute("center_point_box"), 0)  # fmt: skip
    _layer(node, Kernel.NON_MAX_SUPPRESSION, [boxes, scores], words, scratch)


def top_k(node: Node) -> None:
    x, (rows, k) = node.tensor(0), node.out_info().shape
    scratch = node.temporary((x.shape[1] * HEAP_WORDS,), DataType.INT32)
    _layer(node, Kernel.TOP_K, [x], (rows, x.shape[1], k, node.attribute("largest"), 0, 0, 0, 0), scratch)


def _layer(node: Node, kernel: Kernel, inputs: Sequence[TensorIR], words: tuple[int, ...], *scratch: TensorIR) -> None:
    out, count = node.output(0), node.output(1) if node.gives(1) else node.temporary((1,), DataType.INT32)
    m, n = out.shape
    node.layer("CORE", inputs, (out, count, *scratch), kernel=kernel.name, m=m, n=n, words=words)


KERNELS: dict[str, Callable[[Node], None]] = {
    "NonMaxSuppression": non_max_suppression,
    "NonZero": non_zero,
    "TopK": top_k,
}
"""Operators of the domain of kernels."""
