"""The quantized tensors of a model: what QuantizeLinear makes and DequantizeLinear reads, with scale and zero point."""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from onnx import helper

from toolchain.ir.graph import Values
from toolchain.onnx_frontend.model import OnnxModel
from toolchain.onnx_frontend.scales import check_scale

BYTES = ("INT8", "UINT8")
NIBBLES = ("INT4", "UINT4")


class Factor(NamedTuple):
    """A quantized tensor: its codes, and what they stand for."""

    name: str
    scale: Values
    zero: int
    axis: int

    def same_grid(self, other: "Factor") -> bool:
        """Whether both have one scale, the same, and the same zero point."""
        return self.scale.size == other.scale.size == 1 and (self.scale, self.zero) == (other.scale, other.zero)


class QdqGraph:
    """The nodes of a model, with who makes and who reads each tensor."""

    def __init__(self, model: OnnxModel) -> None:
        self.model = model
        self.nodes = list(model.graph.node)
        self.makers = {name: node for node in self.nodes for name in node.output if name}
        self._readers = Counter(name for node in self.nodes for name in node.input)
        self._readers.update(model.outputs)

    def live(self, nodes: list[Any]) -> list[Any]:
        """Without the DequantizeLinear nodes that nobody reads any more."""
        wanted = {*self.model.outputs, *(name for node in nodes for name in node.input)}
        return [node for node in nodes if node.op_type != "DequantizeLinear" or wanted.intersection(node.output)]

    def only_reader(self, name: str) -> Any | None:
        """The node that alone reads a tensor, which the user does not get."""
        if self._readers[name] != 1 or name in self.model.outputs:
            return None
        return next(one for one in self.nodes if name in one.input)

    def factor(self, name: str) -> Factor | None:
        """The operand behind a DequantizeLinear with constant scales and one zero point."""
        node = self.makers.get(name)
        if node is None or node.op_type != "DequantizeLinear":
            return None
        attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        info = self.model.info.get(node.input[0])
        if info is None or info.type not in (*BYTES, *NIBBLES) or attributes.get("block_size"):
            return None
        return self._quantity(node, attributes.get("axis", 1), node.input[0], len(info.shape))

    def target(self, node: Any) -> Factor | None:
        """What a QuantizeLinear with one constant scale makes."""
        info = self.model.info.get(node.output[0])
        found = self._quantity(node, 0, node.output[0], 1)
        return found if info is not None and info.type in BYTES and found and found.scale.size == 1 else None

    def _quantity(self, node: Any, axis: int, name: str, rank: int) -> Factor | None:
        scale = self.model.initializers.get(node.input[1])
        zero: Values | None = np.zeros(1, np.int64)
        if len(node.input) > 2 and node.input[2]:
            zero = self.model.initializers.get(node.input[2])
        if scale is None or zero is None or scale.dtype != np.float32:
            return None
        check_scale(self.model, node, node.input[1], scale)
        zeros = np.unique(zero.astype(np.int64))
        return Factor(name, scale, int(zeros[0]), axis % max(rank, 1)) if zeros.size == 1 else None
