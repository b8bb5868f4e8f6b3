"""Sequences of tensors, expanded at compile time; their lengths must be known then.

torch.jit.script writes them for a list in a program: SplitToSequence for `chunk`, SequenceInsert for `append`,
ConcatFromSequence for `cat` and `stack`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import helper

from toolchain.onnx_model.rewriter import Rewriter
from toolchain.onnx_nodes.messages import attributes_of


class Sequences(Rewriter):
    """Expansion of sequence operators in a graph that is rebuilt node by node."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._lists: dict[str, tuple[str, ...]] = {}
        """Sequence -> its tensors."""

    def _sequence(self, proto: Any) -> bool:
        """Expand a node on sequences to operations on tensors. Return False for any other node."""
        inputs = [name for name in proto.input if name]
        attributes = attributes_of(proto)
        match proto.op_type:
            case "Identity" if inputs and inputs[0] in self._lists:
                items_of_result = self._lists[inputs[0]]
            case "SequenceEmpty":
                items_of_result = ()
            case "SequenceConstruct":
                items_of_result = tuple(inputs)
            case "SequenceInsert":
                items = self._items(proto)
                at = self._place(proto, 2, len(items), len(items))
                items_of_result = (*items[:at], inputs[1], *items[at:])
            case "SequenceErase":
                items = self._items(proto)
                at = self._place(proto, 1, len(items) - 1, len(items) - 1)
                items_of_result = (*items[:at], *items[at + 1 :])
            case "SequenceAt":
                items = self._items(proto)
                item = items[self._place(proto, 1, len(items) - 1, 0)]
                self._add(helper.make_node("Identity", [item], proto.output))
                return True
            case "SequenceLength":
                self._constant_of(proto.output[0], np.array(len(self._items(proto)), np.int64))
                return True
            case "SplitToSequence":
                items_of_result = self._split(proto, attributes)
            case "ConcatFromSequence":
                self._joined(proto, attributes)
                return True
            case _:
                return False
        self._lists[proto.output[0]] = items_of_result
        return True

    def _items(self, proto: Any) -> tuple[str, ...]:
        if proto.input[0] not in self._lists:
            raise self._refuse(proto, f"what is in the sequence {proto.input[0]} is not known before the run")
        return self._lists[proto.input[0]]

    def _place(self, proto: Any, index: int, last: int, default: int) -> int:
        """Return an index, relative to the start."""
        if len(proto.input) <= index or not proto.input[index]:
            at = default
        elif proto.input[index] in self.constants:
            at = int(self.constants[proto.input[index]].reshape(-1)[0])
        else:
            raise self._refuse(proto, f"the position {proto.input[index]} is not known before the run: export the "
                               f"model with tensors in the place of a list")  # fmt: skip
        count = len(self._lists[proto.input[0]])
        if not -count <= at <= last:
            raise self._refuse(proto, f"position {at} in a sequence of {count}")
        return at + count if at < 0 else at

    def _split(self, proto: Any, attributes: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the parts of a tensor along an axis, by default of one row each."""
        x, sizes = proto.input[0], proto.input[1] if len(proto.input) > 1 else ""
        if x not in self.info or (sizes and sizes not in self.constants):
            raise self._refuse(proto, f"the shape of {x}, or its parts, are not known before the run: give the shapes "
                               f"of the inputs with --shape")  # fmt: skip
        shape = self.info[x].shape
        axis = int(attributes.get("axis", 0)) % len(shape)
        if not sizes:
            lengths = [1] * shape[axis]
        elif self.constants[sizes].ndim:
            lengths = [int(size) for size in self.constants[sizes]]
        else:
            part_size = int(self.constants[sizes])
            lengths = [min(part_size, shape[axis] - start) for start in range(0, shape[axis], part_size)]
        parts = tuple(f"{proto.output[0]}/{index}" for index in range(len(lengths)))
        rows = tuple(f"{name}/row" for name in parts) if not sizes and not attributes.get("keepdims", 1) else parts
        sizes_of_parts = self._constant_of(f"{proto.output[0]}/lengths", np.array(lengths, np.int64))
        self._add(helper.make_node("Split", [x, sizes_of_parts], rows, axis=axis))
        if rows != parts:
            along = self._constant_of(f"{proto.output[0]}/axis", np.array([axis], np.int64))
            for row, part in zip(rows, parts, strict=True):
                self._node("Squeeze", [row, along], part)
        return parts

    def _joined(self, proto: Any, attributes: Mapping[str, Any]) -> None:
        items, axis = self._items(proto), int(attributes["axis"])
        if not items:
            raise self._refuse(proto, "the sequence is empty")
        if attributes.get("new_axis", 0):
            along = self._constant_of(f"{proto.output[0]}/axis", np.array([axis], np.int64))
            rows = [f"{proto.output[0]}/{index}" for index in range(len(items))]
            for item, row in zip(items, rows, strict=True):
                self._node("Unsqueeze", [item, along], row)
            items = tuple(rows)
        self._add(helper.make_node("Concat", items, proto.output, axis=axis))


OPERATORS = (
    "ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert",
    "SequenceLength", "SplitToSequence",
)  # fmt: skip
