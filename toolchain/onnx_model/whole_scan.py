"""Scan with independent steps, as one step on whole tensors.

Exporters of scikit-learn write pairwise distances between two tables in this form: each step takes one row of a table,
subtracts it from the other table and adds the squares. Unrolled, that is one step per row.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from toolchain.ir.graph import Values
from toolchain.onnx_model.open_rows import ELEMENTWISE
from toolchain.onnx_model.opset import upgrade_node
from toolchain.onnx_nodes.evaluation import TensorInfo
from toolchain.onnx_nodes.messages import attributes_of, renamed


class WholeScan:
    """Nodes of such a Scan. `info` and `constants`: shapes and values of tensors outside its body; `names`: inner name
    -> outer name of inputs and captured tensors; `prefix`: prefix of inner tensors."""

    def __init__(
        self, version: int, info: Mapping[str, TensorInfo], constants: Mapping[str, Values], names: Mapping[str, str],
        prefix: str,
    ) -> None:  # fmt: skip
        self.nodes: list[Any] = []
        self._version, self._info, self._prefix = version, info, prefix
        self._names, self._constants = dict(names), dict(constants)
        self._ranks: dict[str, int] = {}
        """Rank of each inner tensor within one step."""
        self._stacked: set[str] = set()
        """Tensors that differ between steps; their first dimension is that of the steps."""

    def build(self, body: Any, scanned: Sequence[str], state: int, outputs: Sequence[str]) -> bool:
        """Build the form for whole tensors. Return False if none exists. The first `state` inputs stay constant,
        `scanned` inputs are sliced by rows, and the rows of the results form `outputs`."""
        for name in scanned:
            if name not in self._info or not self._info[name].shape:
                return False
            self._ranks[name] = len(self._info[name].shape) - 1
            self._stacked.add(name)
        for tensor in body.initializer:
            self._constant(self._inside(tensor.name), np.asarray(numpy_helper.to_array(tensor)))
        if not all(self._follow(node) for node in body.node):
            return False
        ends = [self._names.get(value.name, value.name) for value in body.output]
        starts = [self._names[value.name] for value in body.input[:state]]
        if ends[:state] != starts or not all(name in self._stacked for name in ends[state:]):
            return False
        self.nodes += [helper.make_node("Identity", pair[:1], pair[1:]) for pair in zip(ends, outputs, strict=True)
                       if pair[1]]  # fmt: skip
        return True

    def _inside(self, name: str) -> str:
        self._names[name] = self._prefix + name
        return self._names[name]

    def _constant(self, name: str, values: Values) -> None:
        self._constants[name], self._ranks[name] = values, values.ndim
        self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(values)))

    def _follow(self, node: Any) -> bool:
        """Apply a node of the body to whole tensors. Return False if that is not possible."""
        if node.op_type == "Identity":
            self._names[node.output[0]] = self._names.get(node.input[0], node.input[0])
            return True
        proto = renamed(node, self._names)
        proto.output[:] = [self._inside(name) if name else "" for name in node.output]
        return all(map(self._part, upgrade_node(proto, self._version, self._constants.get)))

    def _part(self, proto: Any) -> bool:
        attributes = attributes_of(proto)
        ranks = [self._rank(name) for name in proto.input if name]
        if proto.op_type == "Constant" and "value" in attributes:
            self._constant(proto.output[0], np.asarray(numpy_helper.to_array(attributes["value"])))
            return True
        if None in ranks or len(proto.output) != 1:
            return False
        ranks_of_inputs = [rank for rank in ranks if rank is not None]
        if proto.op_type in ELEMENTWISE:
            rank = max(ranks_of_inputs)
            for index, name in enumerate(proto.input):
                if name in self._stacked and self._ranks[name] < rank:
                    proto.input[index] = self._widened(name, rank, f"{proto.output[0]}/{index}")
        elif proto.op_type.startswith("Reduce") and len(proto.input) == 2 and proto.input[1] in self._constants:
            axes = [int(axis) for axis in self._constants[proto.input[1]].reshape(-1)]
            axes = axes or list(range(ranks_of_inputs[0]))
            along = f"{proto.output[0]}/axes"
            if proto.input[0] in self._stacked:
                self._constant(along, np.array([axis + 1 if axis >= 0 else axis for axis in axes], np.int64))
                proto.input[1] = along
            rank = ranks_of_inputs[0] if attributes.get("keepdims", 1) else ranks_of_inputs[0] - len(axes)
        else:
            return False
        self._ranks[proto.output[0]] = rank
        if not self._stacked.isdisjoint(proto.input):
            self._stacked.add(proto.output[0])
        self.nodes.append(proto)
        return True

    def _rank(self, name: str) -> int | None:
        if name in self._ranks:
            return self._ranks[name]
        return len(self._info[name].shape) if name in self._info else None

    def _widened(self, name: str, rank: int, result: str) -> str:
        """Return a tensor of all steps with dimensions of size 1 inserted after the first, as required for
        broadcasting."""
        axes = list(range(1, 1 + rank - self._ranks[name]))
        self._constant(f"{result}/axes", np.array(axes, np.int64))
        self.nodes.append(helper.make_node("Unsqueeze", [name, f"{result}/axes"], [result]))
        self._ranks[result] = rank
        self._stacked.add(result)
        return result
