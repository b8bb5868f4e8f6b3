"""Tensors with an open row count, known only at run time.

Such a tensor has space for the maximum number of rows. The valid rows come first, and a one-element tensor holds their
count. An elementwise operator keeps rows in place. A reduction replaces invalid rows by its neutral element (0 for a
sum, the lowest number for a maximum). Valid rows of several tensors are packed together (`Compress`, whose kernel runs
on the core).
"""

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import onnx
from onnx import helper

from toolchain.errors import ModelError
from toolchain.onnx_model.open_shapes import OpenShapes
from toolchain.onnx_nodes.evaluation import TensorInfo
from toolchain.onnx_nodes.messages import attributes_of
from toolchain.onnx_nodes.parts import ValidRows

ELEMENTWISE = frozenset((
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Div", "Equal", "Erf", "Exp", "Floor", "Greater", "GreaterOrEqual",
    "HardSwish", "Identity", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or",
    "Pow", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sqrt", "Sub", "Sum", "Tanh", "Where", "Xor",
))  # fmt: skip
"""Elementwise operators, whose inputs are broadcast to the output."""
_BATCHED = {
    "AveragePool": 0, "BatchNormalization": 0, "Conv": 0, "ConvTranspose": 0, "Gemm": 0, "GlobalAveragePool": 0,
    "MatMul": 0, "MaxPool": 0, "Resize": 0, "RoiAlign": 1,
}  # fmt: skip
"""Operators that process the rows (dimension 0) of one input independently -> index of that input."""
_RESHAPES = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")
_NEUTRAL: dict[str, float] = {
    "ArgMax": -math.inf, "ArgMin": math.inf, "LogSoftmax": -math.inf, "ReduceL1": 0, "ReduceL2": 0,
    "ReduceLogSum": 0, "ReduceLogSumExp": -math.inf, "ReduceMax": -math.inf, "ReduceMin": math.inf, "ReduceProd": 1,
    "ReduceSum": 0, "ReduceSumSquare": 0, "Softmax": -math.inf,
}  # fmt: skip
"""Reductions -> neutral element."""
_NOTHING = {"NonZero": {0: 0.0}, "Compress": {1: 0.0}, "NonMaxSuppression": {1: -math.inf}}
"""Operators that search for rows -> input index -> value that matches nothing."""
_JOINS = "it joins rows of {0}, of which the run decides how many count: cut the model before it, {0} an output"


class OpenRows(OpenShapes):
    """Rules for tensors with open rows, in a graph that is built node by node."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.rows: dict[str, ValidRows] = {}

    def _open_rows(self, proto: Any) -> bool:
        """Rewrite a node with an input or output whose shape is known only at run time. Return False for any other
        node. ModelError: the node has no such form."""
        try:
            return self._follow_rows(proto)
        except LookupError:  # types and shapes do not match the operator
            opened = self._opened(proto)
            if not opened:
                return False
            raise ModelError(_JOINS.format(opened[0])) from None

    def _opened(self, proto: Any) -> list[str]:
        """Return the inputs with open rows."""
        return [name for name in proto.input if name in self.rows]

    def _follow_rows(self, proto: Any) -> bool:
        opened, rule = self._opened(proto), _RULES.get(proto.op_type)
        if not opened and rule not in _BY_SHAPE:
            return self._vector(proto)
        if rule is not None and rule(self, proto):
            return True
        if not opened:
            return False
        axes = {_axis(proto, at, self.rows[name].axis, self.info) for at, name in enumerate(proto.input)
                if name in self.rows}  # fmt: skip
        if len(axes) > 1 or None in axes:
            raise ModelError(_JOINS.format(opened[0]))
        self._append(proto)
        (axis,) = axes
        for name in proto.output:
            if name and axis is not None:
                self.rows[name] = self._as_many(opened[0], name, axis)
        return True

    # -- pieces --------------------------------------------------------------------------------------------------------

    def _begin(self, name: str, axis: int, count: str) -> None:
        """Register a tensor with open rows and the tensor that holds their count."""
        self.rows[name] = ValidRows(count, axis)
        self.constants.pop(name, None)  # the number of valid elements is known only at run time
        if count not in self.constants:
            extent = np.array([self.info[name].shape[axis]])
            _, max_count = self._limits.get(count, (extent, extent))
            self._limits[count] = np.zeros_like(extent), np.minimum(max_count, extent)

    def _as_many(self, source: str, name: str, axis: int) -> ValidRows:
        """Return the rows of a tensor computed from `source`; a reshape may merge or split their dimension."""
        extent, size = self.info[source].shape[self.rows[source].axis], self.info[name].shape[axis]
        count = self.rows[source].number
        if size > extent:
            count = self._plain("Mul", [count, self._constant_of(f"{name}/each", [size // extent])], f"{name}/many")
        elif size < extent:
            count = self._plain("Div", [count, self._constant_of(f"{name}/each", [extent // size])], f"{name}/many")
        return ValidRows(count, axis)

    def _mask(self, name: str) -> str:
        """Return the mask of valid rows: bools that broadcast to the tensor."""
        count, axis = self.rows[name].number, self.rows[name].axis
        shape = self.info[name].shape
        places = np.arange(shape[axis]).reshape([-1, *[1] * (len(shape) - 1 - axis)])
        mask = f"{count}/first{'x'.join(map(str, places.shape))}"
        if mask not in self.info:
            self._plain("Less", [self._constant_of(f"{mask}/places", places), count], mask)
        return mask

    def _fill(self, name: str, value: float, label: str) -> str:
        """Return the tensor with a number in its invalid rows."""
        kind = self.info[name].dtype
        if kind == np.bool_:
            return self._plain("And", [name, self._mask(name)], f"{label}/filled")
        if kind.kind in "iu" and math.isinf(value):
            limits = np.iinfo(kind if kind.itemsize < 4 else np.int32)
            value = limits.max if value > 0 else limits.min
        fill = self._constant_of(f"{label}/fill", np.array(value).astype(kind))
        return self._plain("Where", [self._mask(name), name, fill], f"{label}/filled")

    def _least(self, first: str, second: str, name: str) -> str:
        if first == second:
            return first
        return self._plain("Min", [first, second], name)

    # -- shapes --------------------------------------------------------------------------------------------------------

    def _shape(self, proto: Any) -> bool:
        name = proto.input[0]
        if name not in self.rows:
            return False
        values: list[int | str] = list(self.info[name].shape)
        values[self.rows[name].axis] = self.rows[name].number
        attributes = attributes_of(proto)
        values = values[slice(attributes.get("start", 0), attributes.get("end"))]
        self._shape_of(values, (len(values),), proto.output[0])
        return True

    def _fill_shape(self, proto: Any) -> bool:
        """Follow ConstantOfShape and Expand."""
        expands, out = proto.op_type == "Expand", proto.output[0]
        extent = self._shape_bound(proto.input[int(expands)])
        if extent is None:
            return False
        sizes, at, element = extent
        source = [proto.input[0]] if expands else []
        shape = self._constant_of(f"{out}/room", np.array(sizes, np.int64))
        node = helper.make_node(proto.op_type, [*source, shape], [out], proto.name)
        node.attribute.extend(proto.attribute)
        if expands and source[0] in self.rows:
            before = self.rows[source[0]].axis + len(sizes) - len(self.info[source[0]].shape)
            if before != at:
                return False
        self._append(node)
        at += len(self.info[out].shape) - len(sizes)
        if self.info[out].shape[at] != sizes[at - len(self.info[out].shape)]:
            return False
        self._begin(out, at, self._number_of(element, f"{out}/many"))
        return True

    def _range(self, proto: Any) -> bool:
        first, last, step = proto.input
        limit = self._elements(last) if last not in self.constants else []
        if len(limit) != 1 or not {first, step} <= self.constants.keys() or int(self.constants[step]) != 1:
            return False
        bound, start, out = self._bound(limit[0]), int(self.constants[first]), proto.output[0]
        if bound is None or bound <= start:
            return False
        self._constant_of(out, np.arange(start, bound, dtype=self.constants[first].dtype))
        count = self._number_of(limit[0], f"{out}/limit")
        if start:
            count = self._plain("Sub", [count, self._constant_of(f"{out}/start", [start])], f"{out}/span")
        limits = self._limits_of(count)
        if limits is None or limits[0].min() < 0:
            count = self._plain("Max", [count, self._constant_of(f"{out}/none", [0])], f"{out}/many")
        self._begin(out, 0, count)
        return True

    def _reshape(self, proto: Any) -> bool:
        """Follow a Reshape; an open target shape is replaced by its maximum."""
        data, out = proto.input[0], proto.output[0]
        node = deepcopy(proto)
        if proto.op_type == "Reshape" and proto.input[1] not in self.constants:
            extent = self._shape_bound(proto.input[1])
            if extent is None:
                return False
            node.input[1] = self._constant_of(f"{out}/room", np.array(extent[0], np.int64))
        elif data not in self.rows:
            return False
        self._append(node)
        if data in self.rows:
            (_, axis), shape, after = self.rows[data], self.info[data].shape, self.info[out].shape
            ahead = math.prod(shape[:axis])
            places = [
                at
                for at, size in enumerate(after)
                if math.prod(after[:at]) == ahead
                and size > 0
                and (size % shape[axis] == 0 or shape[axis] % size == 0)
                and (size > 1 or shape[axis] == 1)
            ]
            if not places:
                raise ModelError(_JOINS.format(data))
            self.rows[out] = self._as_many(data, out, places[0])
        return True

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _elementwise(self, proto: Any) -> bool:
        """Follow an elementwise operator; operands with space for more rows than others are cut."""
        rank = max(len(self.info[name].shape) for name in proto.input if name in self.info)
        opened = {name: rank - len(self.info[name].shape) + self.rows[name].axis for name in proto.input
                  if name in self.rows}  # fmt: skip
        if len(set(opened.values())) != 1:
            return False
        (axis,) = set(opened.values())
        shapes = {name: (1,) * (rank - len(self.info[name].shape)) + self.info[name].shape
                  for name in proto.input if name}  # fmt: skip
        extent = {name: shape[axis] for name, shape in shapes.items() if name in opened or shape[axis] > 1}
        min_extent = min(extent.values())
        if max(extent[name] for name in opened) == min_extent:
            return False
        node = deepcopy(proto)
        for at, name in enumerate(proto.input):
            if name in opened and extent[name] > min_extent:
                node.input[at] = self._cut(name, min_extent, f"{proto.output[0]}/cut{at}")
        return self._open_rows(node)

    def _cut(self, name: str, size: int, label: str) -> str:
        """Return the first `size` rows of a tensor."""
        bounds = [self._constant_of(f"{label}/{bound}", [value])
                  for bound, value in (("start", 0), ("end", size), ("axis", self.rows[name].axis))]  # fmt: skip
        self._plain("Slice", [name, *bounds], label)
        self.rows[label] = self.rows[name]
        return label

    def _from_first(self, places: str, count: str, zero: str, out: str, label: str) -> str:
        """Convert negative indices, relative to the last valid row, to indices from the first row."""
        ahead = self._plain("Add", [places, count], f"{out}/ahead")
        negative = self._plain("Less", [places, zero], f"{out}/negative")
        return self._plain("Where", [negative, ahead, places], f"{out}/{label}")

    def _gather(self, proto: Any) -> bool:
        """Follow a Gather; negative indices are relative to the last valid row."""
        data, places = proto.input
        if data not in self.rows or _axis_of(proto, len(self.info[data].shape), 0) != self.rows[data].axis:
            return self._vector(proto)
        if places in self.constants and (self.constants[places] >= 0).all():
            self._append(proto)
            return True
        out = proto.output[0]
        zero, wide = self._constant_of(f"{out}/zero", np.array(0, np.int64)), places
        if self.info[places].type != "INT64":
            wide = self._plain("Cast", [places], f"{out}/wide", to=onnx.TensorProto.INT64)
        at = self._from_first(wide, self.rows[data].number, zero, out, "at")
        if not self.info[places].shape:  # adding the count made it a vector
            at = self._plain("Reshape", [at, self._constant_of(f"{out}/scalar", np.zeros(0, np.int64))], f"{out}/one")
        node = deepcopy(proto)
        node.input[1] = at
        self._append(node)
        if places in self.rows:
            self._begin(out, self.rows[data].axis + self.rows[places].axis, self.rows[places].number)
        return True

    def _pad(self, proto: Any) -> bool:
        """Follow a Pad along other dimensions than that of the rows."""
        data, pads, _, axes = [*proto.input, "", ""][:4]
        if data not in self.rows or pads not in self.constants or (axes and axes not in self.constants):
            return False
        rank, sizes = len(self.info[data].shape), self.constants[pads].reshape(2, -1)
        along = (self.constants[axes] % rank).tolist() if axes else list(range(rank))
        if self.rows[data].axis in along and sizes[:, along.index(self.rows[data].axis)].any():
            return False
        self._append(proto)
        self.rows[proto.output[0]] = self.rows[data]
        return True

    def _gather_nd(self, proto: Any) -> bool:
        """Follow a GatherND with open rows of indices; the indices of valid rows must be valid in the data."""
        data, places = proto.input
        if attributes_of(proto).get("batch_dims", 0) or places not in self.rows:
            return False
        axis, deep = self.rows[places].axis, self.info[places].shape[-1]
        if axis == len(self.info[places].shape) - 1 or (data in self.rows and self.rows[data].axis >= deep):
            return False
        self._append(proto)
        self._begin(proto.output[0], axis, self.rows[places].number)
        return True

    def _slice(self, proto: Any) -> bool:
        data, starts, ends, axes, steps = [*proto.input, "", ""][:5]
        if data not in self.rows:
            return self._vector(proto)
        if any(name not in self.constants for name in (starts, axes, steps) if name):
            return False
        rank, rows, out = len(self.info[data].shape), self.rows[data], proto.output[0]
        firsts = self.constants[starts].reshape(-1).tolist()
        along = (self.constants[axes].reshape(-1) % rank).tolist() if axes else list(range(len(firsts)))
        strides = self.constants[steps].reshape(-1).tolist() if steps else [1] * len(firsts)
        lasts = self._elements(ends)
        if rows.axis not in along and ends in self.constants:
            self._append(proto)
            self.rows[out] = rows
            return True
        at = along.index(rows.axis) if rows.axis in along else 0
        if rows.axis not in along or len(lasts) != len(firsts) or firsts[at] < 0 or strides[at] != 1:
            return False
        size, last, first = self.info[data].shape[rows.axis], lasts[at], firsts[at]
        if any(isinstance(end, str) for end in lasts[:at] + lasts[at + 1 :]):
            return False
        bound = self._bound(last)
        until = size if bound is None or bound < 0 else min(bound, size)  # negative: relative to the last valid row
        if first >= until:
            return False
        ends = np.array([*lasts[:at], until, *lasts[at + 1 :]], np.int64)
        self._plain("Slice", [data, starts, self._constant_of(f"{out}/ends", ends), *filter(None, (axes, steps))], out)
        count, zero = rows.number, self._constant_of(f"{out}/none", [0])
        if last != bound or until < size or bound < 0:
            end = self._number_of(last, f"{out}/last")
            if bound is None or bound < 0:
                end = self._from_first(end, count, zero, out, "end")
            count = self._least(count, end, f"{out}/until")
        if first:
            count = self._plain("Sub", [count, self._constant_of(f"{out}/first", [first])], f"{out}/behind")
        if first or bound is None or bound < 0:
            count = self._plain("Max", [count, zero], f"{out}/many")
        self._begin(out, rows.axis, count)
        return True

    def _top(self, proto: Any) -> bool:
        x, out = proto.input[0], next(name for name in proto.output if name)
        limit = self._elements(proto.input[1])
        axis = _axis_of(proto, len(self.info[x].shape), -1)
        joined = x in self.rows and self.rows[x].axis == axis
        if len(limit) != 1 or (x in self.rows and not joined) or (not joined and isinstance(limit[0], int)):
            return False
        bound = self._bound(limit[0])
        if bound is None:
            return False
        size = self.info[x].shape[axis]
        count = self._number_of(limit[0], f"{out}/k")
        if joined:
            lowest = -math.inf if attributes_of(proto).get("largest", 1) else math.inf
            count = self._least(count, self.rows[x].number, f"{out}/many")
            x = self._fill(x, lowest, out)
        extent = self._constant_of(f"{out}/room", [min(bound, size)])
        node = helper.make_node("TopK", [x, extent], list(proto.output), proto.name)
        node.attribute.extend(proto.attribute)
        self._append(node)
        for name in filter(None, proto.output):
            self._begin(name, axis, count)
        return True

    def _concat(self, proto: Any) -> bool:
        """Follow a Concat: the valid rows of all operands are packed."""
        out, rank = proto.output[0], len(self.info[proto.input[0]].shape)
        axis = _axis_of(proto, rank, 0)
        opened = self._opened(proto)
        if any(self.rows[name].axis != axis for name in opened):
            return self._elementwise(proto)
        if not opened:
            return False
        masks = []
        for at, name in enumerate(proto.input):
            size = self.info[name].shape[axis]
            flat = self._constant_of(f"{out}/{at}/size", [size])
            masks.append(self._plain("Reshape", [self._mask(name), flat], f"{out}/{at}/counts") if name in self.rows
                         else self._constant_of(f"{out}/{at}/counts", np.ones(size, np.bool_)))  # fmt: skip
        joined = self._plain("Concat", list(proto.input), f"{out}/whole", axis=axis)
        condition = self._plain("Concat", masks, f"{out}/counts", axis=0)
        self._decompose(helper.make_node("Compress", [joined, condition], [out], out, axis=axis))
        return True

    def _reduce(self, proto: Any) -> bool:
        """Follow a reduction; invalid rows hold the neutral element."""
        x = proto.input[0]
        if x not in self.rows:
            return False
        rows, rank, attributes = self.rows[x], len(self.info[x].shape), attributes_of(proto)
        if proto.op_type.startswith("Reduce"):
            places = proto.input[1] if len(proto.input) > 1 else ""
            if places and places not in self.constants:
                return False
            listed = self.constants[places].reshape(-1).tolist() if places else list(attributes.get("axes", []))
            axes = [axis % rank for axis in listed] or (
                [] if attributes.get("noop_with_empty_axes") else [*range(rank)]
            )
        else:
            axes = [_axis_of(proto, rank, 0 if proto.op_type.startswith("Arg") else -1)]
        closed = rows.axis in axes
        node = deepcopy(proto)
        if closed:
            node.input[0] = self._fill(x, _NEUTRAL[proto.op_type], proto.output[0])
        self._append(node)
        if proto.op_type.endswith("oftmax"):
            self.rows[proto.output[0]] = rows
        elif not closed:
            removed = 0 if attributes.get("keepdims", 1) else sum(axis < rows.axis for axis in axes)
            self.rows[proto.output[0]] = ValidRows(rows.number, rows.axis - removed)
        return True

    def _mean(self, proto: Any) -> bool:
        """Follow a mean: the sum divided by the number of valid elements."""
        out = proto.output[0]
        node = deepcopy(proto)
        node.op_type, node.output[0] = "ReduceSum", f"{out}/sum"
        rows, shape = self.rows[proto.input[0]], self.info[proto.input[0]].shape
        if not self._reduce(node):
            return False
        reduced = math.prod(shape) // math.prod(self.info[node.output[0]].shape)
        kind = self.info[proto.input[0]].code
        number = self._constant_of(f"{out}/each", [reduced])
        if node.output[0] not in self.rows:
            other_count = self._constant_of(f"{out}/others", [reduced // shape[rows.axis]])
            number = self._plain("Mul", [rows.number, other_count], f"{out}/number")
        if not self.info[node.output[0]].shape:
            scalar = self._constant_of(f"{out}/shape", np.zeros(0, np.int64))
            number = self._plain("Reshape", [number, scalar], f"{out}/one")
        self._plain("Div", [node.output[0], self._plain("Cast", [number], f"{out}/by", to=kind)], out)
        if node.output[0] in self.rows:
            self.rows[out] = self.rows[node.output[0]]
        return True

    def _scatter(self, proto: Any) -> bool:
        """Follow a scatter; updates of invalid rows go to an additional last row, which is removed."""
        data, places, updates = proto.input
        along, out = self.rows.get(places), proto.output[0]
        axis = _axis_of(proto, len(self.info[data].shape), 0) if proto.op_type == "ScatterElements" else 0
        if along is None or along.axis != axis or self.rows.get(updates, along).axis != axis:
            return False
        if data in self.rows and self.rows[data].axis != axis:
            return False
        extent, shape = self.info[places].shape[axis], list(self.info[data].shape)
        if self.info[updates].shape[axis] > extent and updates in self.rows:
            updates = self._cut(updates, extent, f"{out}/updates")
        size = shape[axis]
        shape[axis] = 1
        kind = self.info[data].dtype
        last = self._constant_of(f"{out}/last", np.zeros(shape, kind))
        longer = self._plain("Concat", [data, last], f"{out}/longer", axis=axis)
        node = deepcopy(proto)
        node.input[0], node.input[1], node.input[2] = longer, self._fill(places, size, out), updates
        node.output[0] = f"{out}/written"
        self._append(node)
        bounds = [
            self._constant_of(f"{out}/{bound}", [value]) for bound, value in (("from", 0), ("to", size), ("of", axis))
        ]
        self._plain("Slice", [node.output[0], *bounds], out)
        if data in self.rows:
            self.rows[out] = self.rows[data]
        return True

    def _choose(self, condition: str, yes: str, no: str, name: str) -> bool:
        """Add a choice between the results of two branches, with equal shapes or different row counts. Return False if
        one tensor cannot hold both."""
        results = yes, no
        infos = [self.info.get(result) for result in results]
        if infos[0] is None or infos[1] is None or infos[0].type != infos[1].type:
            return False
        shapes = [infos[0].shape, infos[1].shape]
        opened = {self.rows[result].axis for result in results if result in self.rows}
        if shapes[0] == shapes[1] and not opened:
            self._plain("Where", [condition, yes, no], name)
            return True
        axes = opened | {at for at, sizes in enumerate(zip(*shapes, strict=False)) if sizes[0] != sizes[1]}
        if len(axes) != 1 or len(shapes[0]) != len(shapes[1]) or not (opened or 0 in shapes[0] + shapes[1]):
            return False
        (axis,) = axes
        sizes = [shape[axis] for shape in shapes]
        counts = [
            self.rows[result].number if result in self.rows else self._constant_of(f"{name}/{at}/rows", [sizes[at]])
            for at, result in enumerate(results)
        ]
        if 0 in sizes:
            self._plain("Identity", [no if sizes[0] == 0 else yes], name)
        else:
            kind = infos[0].dtype
            padded = []
            for at, result in enumerate(results):
                missing = [*shapes[at][:axis], max(sizes) - sizes[at], *shapes[at][axis + 1 :]]
                filler = self._constant_of(f"{name}/{at}/rest", np.zeros(missing, kind)) if missing[axis] else ""
                padded.append(
                    self._plain("Concat", [result, filler], f"{name}/{at}/all", axis=axis) if filler else result
                )
            self._plain("Where", [condition, *padded], name)
        self._begin(name, axis, self._plain("Where", [condition, *counts], f"{name}/many"))
        return True

    def _close_inputs(self, proto: Any) -> Any:
        """Return an operator that searches for rows, with inputs whose invalid rows match nothing."""
        open_inputs = {at for at, name in enumerate(proto.input) if name in self.rows}
        if not open_inputs & _NOTHING.get(proto.op_type, {}).keys():
            return proto
        node = deepcopy(proto)
        for at, value in _NOTHING[proto.op_type].items():
            if at in open_inputs:
                node.input[at] = self._fill(proto.input[at], value, next(filter(None, proto.output)))
        return node


_Rule = Callable[[OpenRows, Any], bool]
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(ELEMENTWISE, OpenRows._elementwise),
    **dict.fromkeys(_NEUTRAL, OpenRows._reduce),
    **dict.fromkeys(_RESHAPES, OpenRows._reshape),
    "Concat": OpenRows._concat,
    "ConstantOfShape": OpenRows._fill_shape,
    "Expand": OpenRows._fill_shape,
    "Gather": OpenRows._gather,
    "GatherND": OpenRows._gather_nd,
    "Pad": OpenRows._pad,
    "Range": OpenRows._range,
    "ReduceMean": OpenRows._mean,
    "ScatterElements": OpenRows._scatter,
    "ScatterND": OpenRows._scatter,
    "Shape": OpenRows._shape,
    "Slice": OpenRows._slice,
    "TopK": OpenRows._top,
}
"""Rules of operators whose handling changes the node; False: the node is unchanged."""
_BY_SHAPE = (OpenRows._fill_shape, OpenRows._range, OpenRows._reshape, OpenRows._top)
"""Rules of operators with open shapes."""


def _axis_of(proto: Any, rank: int, usual: int) -> int:
    return int(attributes_of(proto).get("axis", usual)) % max(rank, 1)


def _axis(proto: Any, at: int, axis: int, info: Mapping[str, TensorInfo]) -> int | None:
    """Return the output dimension that holds the rows of input `at`; None for none."""
    kind, shape = proto.op_type, info[proto.input[at]].shape
    attributes = attributes_of(proto)
    if kind in ELEMENTWISE or kind == "Expand":
        rank = max(len(info[name].shape) for name in proto.input if name in info)
        return axis + rank - len(shape)
    if kind == "Transpose":
        return list(attributes.get("perm") or range(len(shape))[::-1]).index(axis)
    if kind == "Gather":
        along = int(attributes.get("axis", 0)) % len(info[proto.input[0]].shape)
        if at == 1:
            return along + axis
        return None if axis == along else axis + (len(info[proto.input[1]].shape) - 1 if axis > along else 0)
    if kind == "CumSum":
        return axis if at == 0 and not attributes.get("reverse") else None
    if kind in ("Concat", "Split"):
        return axis if _axis_of(proto, len(shape), 0) != axis else None
    if _BATCHED.get(kind) == at and axis == 0 and not attributes.get("transA") and len(shape) > 1:
        return 0
    if kind == "RoiAlign" and at == 2:
        return 0
    return None
