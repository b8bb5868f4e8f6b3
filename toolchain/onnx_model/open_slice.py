"""Slice with an end computed at run time: all rows up to the maximum end, and the count of valid rows."""

from typing import Any

import numpy as np
import onnx

from toolchain.onnx_model.open_rows import OpenRows

_END = np.iinfo(np.int32).max
"""End after all rows; negated, an end before all rows."""


def has_open_slice(graph: Any) -> bool:
    """Check whether the end of a Slice depends on values of an input, not only on shapes."""
    data_names = {value.name for value in graph.input}
    for node in graph.node:
        if node.op_type == "Slice" and len(node.input) > 2 and node.input[2] in data_names:
            return True
        if node.op_type not in ("Shape", "Size") and data_names.intersection(node.input):
            data_names.update(node.output)
    return False


class OpenSlices(OpenRows):
    """Rewriting of Slice with a computed end, in a graph that is built node by node."""

    def _open_slice(self, proto: Any) -> bool:
        """Rewrite a Slice with known starts and a single unknown end. Return False for any other node. The result has
        the maximum number of rows, with -1 after the end, and a count of valid rows."""
        if proto.op_type != "Slice" or len(proto.input) < 3:
            return False
        data, starts, ends, axes, steps = [*proto.input, "", ""][:5]
        if ends in self.constants or data in self.rows or not {data, ends} <= self.info.keys():
            return False  # for open rows, OpenRows reports unsupported forms
        if any(name and name not in self.constants for name in (starts, axes, steps)):
            return False
        shape, firsts = self.info[data].shape, self.constants[starts].reshape(-1).tolist()
        along = self.constants[axes].reshape(-1).tolist() if axes else range(len(firsts))
        strides = self.constants[steps].reshape(-1).tolist() if steps else [1] * len(firsts)
        lasts = self._elements(ends)
        unknown = [(index, last) for index, last in enumerate(lasts) if isinstance(last, str)]
        if len(unknown) != 1 or not len(lasts) == len(firsts) == len(strides) or 0 in strides:
            return False
        (index, end), axis = unknown[0], along[unknown[0][0]] % len(shape)
        stops = [(_END if step > 0 else -_END) if isinstance(last, str) else last
                 for last, step in zip(lasts, strides, strict=True)]  # fmt: skip
        ranges = [_places(first, last, step, shape[dim % len(shape)])
                 for first, last, step, dim in zip(firsts, stops, strides, along, strict=True)]  # fmt: skip
        if not all(ranges):
            return False
        places, name = ranges[index], proto.output[0]
        if len(firsts) > 1 or places != range(shape[axis]):
            bounds = [self._constant_of(f"{name}/{label}", np.array(values, np.int64))
                      for label, values in (("start", firsts), ("end", stops), ("axis", along), ("by", strides))
                      ]  # fmt: skip
            rows = self._node("Slice", [data, *bounds], f"{name}/rows")
        else:
            rows = data
        span = self._span(name, end, places, shape[axis])
        aside = np.arange(len(places)).reshape([-1, *[1] * (len(shape) - 1 - axis)]) * abs(places.step)
        before = self._node("Less", [self._constant_of(f"{name}/places", aside), span], f"{name}/before")
        fill = self._constant_of(f"{name}/fill", np.array(-1).astype(self.info[data].dtype))
        self._node("Where", [before, rows, fill], name)
        self._begin(name, axis, self._count(name, span, abs(places.step)))
        return True

    def _span(self, name: str, end: str, places: range, size: int) -> str:
        """Return the distance from the first index to the computed end, at least 0, in a dimension of `size` rows: [1],
        INT64."""
        last = size if places.step > 0 else -1
        numbers = {text: self._constant_of(f"{name}/{text}", np.array([value], np.int64))
                   for text, value in (("zero", 0), ("size", size), ("begin", places.start), ("vector", 1),
                                       ("behind", last))}  # fmt: skip
        wide = self._node("Cast", [end], f"{name}/wide", to=onnx.TensorProto.INT64)
        bound = self._node("Reshape", [wide, numbers["vector"]], f"{name}/given")
        backwards = self._node("Less", [bound, numbers["zero"]], f"{name}/backwards")
        counted = self._node("Add", [bound, numbers["size"]], f"{name}/counted")
        bound = self._node("Where", [backwards, counted, bound], f"{name}/last")
        bound = self._node("Min" if places.step > 0 else "Max", [bound, numbers["behind"]], f"{name}/least")
        order = [bound, numbers["begin"]] if places.step > 0 else [numbers["begin"], bound]
        return self._node("Max", [self._node("Sub", order, f"{name}/many"), numbers["zero"]], f"{name}/span")

    def _count(self, name: str, span: str, step: int) -> str:
        """Return the number of rows within a span: [1], INT64."""
        if step > 1:
            up = self._node("Add", [span, self._constant_of(f"{name}/up", np.array([step - 1]))], f"{name}/wider")
            span = self._node("Div", [up, self._constant_of(f"{name}/step", np.array([step]))], f"{name}/rounded")
        return span


def _places(first: int, last: int, step: int, size: int) -> range:
    """Return the indices of a Slice in a dimension, starting at a valid index; possibly empty."""
    begin = min(max(first + (size if first < 0 else 0), 0), size - (step < 0))
    end = last + (size if last < 0 else 0)
    return range(begin, min(max(end, 0), size) if step > 0 else min(max(end, -1), size - 1), step)
