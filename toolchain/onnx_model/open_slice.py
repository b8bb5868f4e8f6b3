"""A Slice to an end that the run computes: all rows up to the last there can be, and how many of them count."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from toolchain.ir.graph import Values
from toolchain.onnx_domains import on_core
from toolchain.onnx_model.open_rows import OpenRows
from toolchain.onnx_nodes.evaluation import TensorInfo

_REST = np.iinfo(np.int32).max
"""An end behind every row."""


def has_open_slice(graph: Any) -> bool:
    """Whether the end of a Slice follows from values of an input, not from shapes only."""
    given = {value.name for value in graph.input}
    for node in graph.node:
        if node.op_type == "Slice" and len(node.input) > 2 and node.input[2] in given:
            return True
        if node.op_type not in ("Shape", "Size") and given.intersection(node.input):
            given.update(node.output)
    return False


class OpenSlices(ABC):
    """What becomes of such nodes in a graph that is made node by node."""

    info: dict[str, TensorInfo]
    _known: dict[str, Values]
    _rows: OpenRows

    @abstractmethod
    def _counted(self, name: str, axis: int, count: str) -> None:
        """A tensor with rows of which so many count."""

    @abstractmethod
    def _made(self, operator: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """A node with one output; the name of that."""

    @abstractmethod
    def _number(self, name: str, values: Values) -> str:
        """A constant; its name."""

    def _open_slice(self, proto: Any) -> bool:
        """Whether a node is a Slice of one dimension by steps of 1, from a start that is known to an end that is not;
        then nodes are added that make all rows behind the start, -1 in those behind the end, and an output of the
        model with the number of those before it."""
        if proto.op_type != "Slice" or len(proto.input) < 3:
            return False
        data, starts, ends, axes, steps = [*proto.input, "", ""][:5]
        if ends in self._known or data in self._rows or not {data, ends} <= self.info.keys():
            return False  # of rows that the run counts, OpenRows says what cannot be
        if any(name and name not in self._known for name in (starts, axes, steps)):
            return False
        first, shape = self._known[starts].reshape(-1), self.info[data].shape
        if first.size != 1 or (steps and self._known[steps].reshape(-1)[0] != 1):
            return False
        axis = int(self._known[axes].reshape(-1)[0]) % len(shape) if axes else 0
        size = shape[axis]
        begin = min(max(int(first[0]) + (size if first[0] < 0 else 0), 0), size)
        rows, name = size - begin, proto.output[0]
        if not rows:
            return False
        info = self.info[data]
        if begin:
            bounds = [self._number(f"{name}/{what}", np.array([at], np.int64))
                      for what, at in (("start", begin), ("end", _REST), ("axis", axis))]  # fmt: skip
            data = self._made("Slice", [data, *bounds], f"{name}/rows")
        count = self._made("Identity", [self._count(name, ends, begin, size)], f"{name}{on_core.COUNT}")
        places = np.arange(rows).reshape([rows, *[1] * (len(shape) - 1 - axis)])
        before = self._made("Less", [self._number(f"{name}/places", places), count], f"{name}/before")
        kind = helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(info.type))
        fill = self._number(f"{name}/fill", np.array(-1).astype(kind))
        self._made("Where", [before, data, fill], name)
        self._counted(name, axis, count)
        return True

    def _count(self, name: str, ends: str, begin: int, size: int) -> str:
        """How many rows lie between row `begin` and the computed end, of a dimension of `size` rows: [1], INT64."""
        numbers = {text: self._number(f"{name}/{text}", np.array([value], np.int64))
                   for text, value in (("zero", 0), ("size", size), ("begin", begin), ("vector", 1))}  # fmt: skip
        wide = self._made("Cast", [ends], f"{name}/wide", to=onnx.TensorProto.INT64)
        end = self._made("Reshape", [wide, numbers["vector"]], f"{name}/given")
        backwards = self._made("Less", [end, numbers["zero"]], f"{name}/backwards")
        behind = self._made("Add", [end, numbers["size"]], f"{name}/behind")
        end = self._made("Where", [backwards, behind, end], f"{name}/last")
        end = self._made("Min", [end, numbers["size"]], f"{name}/least")
        count = self._made("Sub", [end, numbers["begin"]], f"{name}/many")
        return self._made("Max", [count, numbers["zero"]], f"{name}/count")
