"""Tensors of which the run decides how many rows count.

Such a tensor has room for all rows that there can be; those that count are the first of them, and a tensor of one
number says how many they are. What operators do with rows follows: one that keeps rows apart leaves them where they
are; one that joins them reads numbers in the place of the others that do not change its result (nothing of a sum,
the lowest of a largest); rows of several tensors are moved together (`Compress`, whose kernel is on the core).

Shapes of such tensors, and what is computed from those, are numbers of the run. The most that they can be is known,
and gives the room of what has such a shape.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from toolchain.errors import ModelError
from toolchain.ir.graph import Values
from toolchain.onnx_nodes.evaluation import MAX_FOLDED, TensorInfo, evaluate
from toolchain.onnx_nodes.parts import Counted

APART = frozenset((
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Div", "Equal", "Erf", "Exp", "Floor", "Greater", "GreaterOrEqual",
    "HardSwish", "Identity", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or",
    "Pow", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sqrt", "Sub", "Sum", "Tanh", "Where", "Xor",
))  # fmt: skip
"""Operators whose inputs are broadcast to their output, element by element."""
_BATCHED = {
    "AveragePool": 0, "BatchNormalization": 0, "Conv": 0, "ConvTranspose": 0, "Gemm": 0, "GlobalAveragePool": 0,
    "MatMul": 0, "MaxPool": 0, "Resize": 0, "RoiAlign": 1,
}  # fmt: skip
"""Operators that treat each row of one input, of dimension 0, by itself -> the place of that input."""
_SHAPED = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")
_NEUTRAL: dict[str, float] = {
    "ArgMax": -math.inf, "ArgMin": math.inf, "LogSoftmax": -math.inf, "ReduceL1": 0, "ReduceL2": 0,
    "ReduceLogSum": 0, "ReduceLogSumExp": -math.inf, "ReduceMax": -math.inf, "ReduceMin": math.inf, "ReduceProd": 1,
    "ReduceSum": 0, "ReduceSumSquare": 0, "Softmax": -math.inf,
}  # fmt: skip
"""Operators that join the elements of dimensions -> the number that changes nothing there."""
_MONOTONE = frozenset((
    "Add", "Cast", "Ceil", "Concat", "Floor", "Gather", "Identity", "Max", "Min", "Mul", "ReduceMax", "ReduceMin",
    "ReduceProd", "Reshape", "Shape", "Slice", "Squeeze", "Unsqueeze",
))  # fmt: skip
"""Operators on sizes whose results are the largest where their operands are."""
_JOINS = "it joins rows of {0}, of which the run decides how many count: cut the model before it, {0} an output"


class OpenRows(ABC):
    """What becomes of such tensors in a graph that is made node by node."""

    info: dict[str, TensorInfo]
    known: dict[str, Values]
    _opsets: Sequence[Any]

    def __init__(self) -> None:
        self.rows: dict[str, Counted] = {}
        self._largest: dict[str, Values] = {}

    @abstractmethod
    def _append(self, proto: Any) -> None:
        """A node as it is."""

    @abstractmethod
    def _elements(self, name: str) -> list[int | str]:
        """Those of a vector: numbers, and tensors of one element; none where nothing is known of them."""

    def _follow_largest(self, proto: Any) -> None:
        """The most that the elements of a small tensor can be."""
        if proto.op_type not in _MONOTONE or proto.output[0] in self.known:
            return
        feeds = {name: values for name in proto.input if name and (values := self._limit(name)) is not None}
        if not feeds or len(feeds) < len(set(filter(None, proto.input))):
            return
        if any(values.size > MAX_FOLDED for values in feeds.values()):
            return
        try:
            self._largest[proto.output[0]] = evaluate(proto, feeds, self._opsets)[0]
        except Exception:  # named when the whole model is checked
            return

    def _limit(self, name: str) -> Values | None:
        """The most that the elements of a tensor can be, as far as it is known."""
        return self.known[name] if name in self.known else self._largest.get(name)

    def _open_rows(self, proto: Any) -> bool:
        """Whether a node reads such tensors, or makes one of a shape that the run decides; then what it becomes is
        added. ModelError: it has no such form."""
        try:
            return self._followed(proto)
        except LookupError:  # types and shapes are not those of the operator
            found = [name for name in proto.input if name in self.rows]
            if not found:
                return False
            raise ModelError(_JOINS.format(found[0])) from None

    def _followed(self, proto: Any) -> bool:
        found = [name for name in proto.input if name in self.rows]
        rule = _RULES.get(proto.op_type)
        if rule is None and proto.op_type in _NEUTRAL:
            rule = OpenRows._reduced
        if not found and rule not in _OF_SHAPES:
            return self._vector(proto)
        if rule is not None:
            if rule(self, proto):
                return True
            if not found:
                return False
        axes = {_axis(proto, at, self.rows[name].axis, self.info) for at, name in enumerate(proto.input)
                if name in self.rows}  # fmt: skip
        if len(axes) > 1 or None in axes:
            raise ModelError(_JOINS.format(found[0]))
        self._append(proto)
        (axis,) = axes
        for name in proto.output:
            if name and axis is not None:
                self.rows[name] = self._as_many(found[0], name, axis)
        return True

    # -- pieces --------------------------------------------------------------------------------------------------------

    def _plain(self, operator: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        self._append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def _constant_of(self, name: str, values: Any) -> str:
        if name not in self.known:
            self._plain("Constant", [], name, value=onnx.numpy_helper.from_array(np.asarray(values)))
        return name

    def _begin(self, name: str, axis: int, count: str) -> None:
        """A tensor has rows of which so many count."""
        self.rows[name] = Counted(count, axis)
        self.known.pop(name, None)  # of what counts only the run knows how much there is
        if count not in self.known:
            room = np.array([self.info[name].shape[axis]])
            self._largest[count] = np.minimum(self._largest.get(count, room), room)

    def _as_many(self, source: str, name: str, axis: int) -> Counted:
        """The rows of a tensor that is made of another's; rows of several dimensions may be one, and the other way
        round."""
        room, made = self.info[source].shape[self.rows[source].axis], self.info[name].shape[axis]
        count = self.rows[source].number
        if made > room:
            count = self._plain("Mul", [count, self._constant_of(f"{name}/each", [made // room])], f"{name}/many")
        elif made < room:
            count = self._plain("Div", [count, self._constant_of(f"{name}/each", [room // made])], f"{name}/many")
        return Counted(count, axis)

    def _number_of(self, element: int | str, name: str) -> str:
        """An element of a shape as a tensor of one number."""
        if isinstance(element, int):
            return self._constant_of(name, [element])
        if self.info[element] == TensorInfo("INT64", (1,)):
            return element
        flat = self._plain("Reshape", [element, self._constant_of(f"{name}/one", [1])], f"{name}/flat")
        return self._plain("Cast", [flat], name, to=onnx.TensorProto.INT64)

    def _bound(self, element: int | str) -> int | None:
        if isinstance(element, int):
            return element
        values = self._limit(element)
        return None if values is None else int(values.reshape(-1)[0])

    def _counts(self, name: str) -> str:
        """Which rows count: a tensor of bools that is broadcast to the tensor."""
        count, axis = self.rows[name].number, self.rows[name].axis
        shape = self.info[name].shape
        places = np.arange(shape[axis]).reshape([-1, *[1] * (len(shape) - 1 - axis)])
        mask = f"{count}/first{'x'.join(map(str, places.shape))}"
        if mask not in self.info:
            self._plain("Less", [self._constant_of(f"{mask}/places", places), count], mask)
        return mask

    def _filled(self, name: str, value: float, label: str) -> str:
        """The tensor with a number in rows that do not count."""
        kind = helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(self.info[name].type))
        if kind == np.bool_:
            return self._plain("And", [name, self._counts(name)], f"{label}/filled")
        if kind.kind in "iu" and math.isinf(value):
            limits = np.iinfo(kind if kind.itemsize < 4 else np.int32)
            value = limits.max if value > 0 else limits.min
        fill = self._constant_of(f"{label}/fill", np.array(value).astype(kind))
        return self._plain("Where", [self._counts(name), name, fill], f"{label}/filled")

    def _least(self, first: str, second: str, name: str) -> str:
        if first == second:
            return first
        return self._plain("Min", [first, second], name)

    # -- shapes --------------------------------------------------------------------------------------------------------

    def _vector(self, proto: Any) -> bool:
        """Whether a node takes elements of a shape of which the run decides others, or chooses among such; then these
        are added."""
        if proto.op_type not in ("Equal", "Gather", "Slice", "Where"):
            return False
        values = [[] if name in self.known else self._elements(name) for name in proto.input]
        if not any(len(one) > 1 for one in values):
            return False
        values = [one or (self._elements(name) if name in self.known and self.known[name].ndim == 1 else [])
                  for one, name in zip(values, proto.input, strict=True)]  # fmt: skip
        if proto.op_type in ("Gather", "Slice"):
            feeds = {proto.input[0]: np.arange(len(values[0]))}
            feeds |= {name: self.known[name] for name in proto.input[1:] if name in self.known}
            if len(feeds) < len(set(filter(None, proto.input))):
                return False
            try:
                taken = evaluate(proto, feeds, self._opsets)[0]
            except Exception:  # named when the whole model is checked
                return False
            self._shape_of([values[0][at] for at in taken.reshape(-1)], taken.shape, proto.output[0])
            return True
        if len({len(one) for one in values}) > 1:
            return False
        if proto.op_type == "Where":
            chosen = [yes if flag else no for flag, yes, no in zip(*values, strict=True)]
            if any(isinstance(flag, str) for flag in values[0]):
                return False
            self._shape_of(chosen, (len(chosen),), proto.output[0])
            return True
        pairs = list(zip(*values, strict=True))
        if any(isinstance(one, str) and (isinstance(other, str) or other >= 0)
               for pair in pairs for one, other in (pair, pair[::-1])):  # fmt: skip
            return False
        equal = [first == second for first, second in pairs]  # no size is less than 0
        self._constant_of(proto.output[0], np.array(equal))
        return True

    def _shape_of(self, values: Sequence[int | str], shape: Sequence[int], name: str) -> None:
        """A tensor of such elements."""
        if all(isinstance(one, int) for one in values):
            self._constant_of(name, np.array(values, np.int64).reshape(shape))
            return
        parts = [self._number_of(one, f"{name}/{at}") for at, one in enumerate(values)]
        if len(shape) == 1 and len(parts) > 1:
            self._plain("Concat", parts, name, axis=0)
        else:
            self._plain("Reshape", [parts[0], self._constant_of(f"{name}/shape", np.array(shape, np.int64))], name)

    def _shape(self, proto: Any) -> bool:
        name = proto.input[0]
        if name not in self.rows:
            return False
        values: list[int | str] = list(self.info[name].shape)
        values[self.rows[name].axis] = self.rows[name].number
        attributes = _attributes(proto)
        values = values[slice(attributes.get("start", 0), attributes.get("end"))]
        self._shape_of(values, (len(values),), proto.output[0])
        return True

    def _room(self, name: str) -> tuple[list[int], int, str] | None:
        """(the most that a shape can be, the dimension that the run decides, the tensor of that); None: it decides
        none, or several."""
        values = self._elements(name) if name not in self.known else []
        most = [self._bound(one) for one in values]
        open_places = [at for at, one in enumerate(values) if isinstance(one, str)]
        if len(open_places) != 1 or None in most:
            return None
        at = open_places[0]
        return [size for size in most if size is not None], at, str(values[at])

    def _of_shape(self, proto: Any) -> bool:
        """ConstantOfShape, Expand."""
        expands, out = proto.op_type == "Expand", proto.output[0]
        room = self._room(proto.input[int(expands)])
        if room is None:
            return False
        sizes, at, element = room
        source = [proto.input[0]] if expands else []
        shape = self._constant_of(f"{out}/room", np.array(sizes, np.int64))
        made = helper.make_node(proto.op_type, [*source, shape], [out], proto.name)
        made.attribute.extend(proto.attribute)
        if expands and source[0] in self.rows:
            before = self.rows[source[0]].axis + len(sizes) - len(self.info[source[0]].shape)
            if before != at:
                return False
        self._append(made)
        at += len(self.info[out].shape) - len(sizes)
        if self.info[out].shape[at] != sizes[at - len(self.info[out].shape)]:
            return False
        self._begin(out, at, self._number_of(element, f"{out}/many"))
        return True

    def _range(self, proto: Any) -> bool:
        first, last, step = proto.input
        limit = self._elements(last) if last not in self.known else []
        if len(limit) != 1 or first not in self.known or step not in self.known or int(self.known[step]) != 1:
            return False
        bound, start, out = self._bound(limit[0]), int(self.known[first]), proto.output[0]
        if bound is None or bound <= start:
            return False
        self._constant_of(out, np.arange(start, bound, dtype=self.known[first].dtype))
        count = self._number_of(limit[0], f"{out}/limit")
        if start:
            count = self._plain("Sub", [count, self._constant_of(f"{out}/start", [start])], f"{out}/many")
        self._begin(out, 0, count)
        return True

    def _shaped(self, proto: Any) -> bool:
        """The same elements in another shape; one that the run decides is that of all rows."""
        data, out = proto.input[0], proto.output[0]
        made = onnx.NodeProto.FromString(proto.SerializeToString())
        if proto.op_type == "Reshape" and proto.input[1] not in self.known:
            room = self._room(proto.input[1])
            if room is None:
                return False
            made.input[1] = self._constant_of(f"{out}/room", np.array(room[0], np.int64))
        elif data not in self.rows:
            return False
        self._append(made)
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
        """Rows of operands that have room for more than others are cut."""
        rank = max(len(self.info[name].shape) for name in proto.input if name in self.info)
        opened = {name: rank - len(self.info[name].shape) + self.rows[name].axis for name in proto.input
                  if name in self.rows}  # fmt: skip
        if len(set(opened.values())) != 1:
            return False
        (axis,) = set(opened.values())
        shapes = {name: (1,) * (rank - len(self.info[name].shape)) + self.info[name].shape
                  for name in proto.input if name}  # fmt: skip
        room = {name: shape[axis] for name, shape in shapes.items() if name in opened or shape[axis] > 1}
        least = min(room.values())
        if max(room[name] for name in opened) == least:
            return False
        made = onnx.NodeProto.FromString(proto.SerializeToString())
        for at, name in enumerate(proto.input):
            if name in opened and room[name] > least:
                made.input[at] = self._cut(name, least, f"{proto.output[0]}/cut{at}")
        return self._open_rows(made)

    def _cut(self, name: str, size: int, label: str) -> str:
        """The first rows of a tensor."""
        bounds = [self._constant_of(f"{label}/{what}", [value])
                  for what, value in (("start", 0), ("end", size), ("axis", self.rows[name].axis))]  # fmt: skip
        self._plain("Slice", [name, *bounds], label)
        self.rows[label] = self.rows[name]
        return label

    def _gather(self, proto: Any) -> bool:
        """Rows from the end are counted from the last that counts."""
        data, places = proto.input
        if data not in self.rows or _axis_of(proto, len(self.info[data].shape), 0) != self.rows[data].axis:
            return self._vector(proto)
        if places in self.known and (self.known[places] >= 0).all():
            self._append(proto)
            return True
        out = proto.output[0]
        zero = self._constant_of(f"{out}/zero", np.array(0, np.int64))
        count, wide = self.rows[data].number, places
        if self.info[places].type != "INT64":
            wide = self._plain("Cast", [places], f"{out}/wide", to=onnx.TensorProto.INT64)
        ahead = self._plain("Add", [wide, count], f"{out}/ahead")
        negative = self._plain("Less", [wide, zero], f"{out}/negative")
        at = self._plain("Where", [negative, ahead, wide], f"{out}/at")
        if not self.info[places].shape:  # the count has made a vector of it
            at = self._plain("Reshape", [at, self._constant_of(f"{out}/scalar", np.zeros(0, np.int64))], f"{out}/one")
        made = onnx.NodeProto.FromString(proto.SerializeToString())
        made.input[1] = at
        self._append(made)
        if places in self.rows:
            self._begin(out, self.rows[data].axis + self.rows[places].axis, self.rows[places].number)
        return True

    def _gather_nd(self, proto: Any) -> bool:
        """Of rows of places; those that count are among the first of the data."""
        data, places = proto.input
        if _attributes(proto).get("batch_dims", 0) or places not in self.rows:
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
        if any(name not in self.known for name in (starts, axes, steps) if name):
            return False
        rank, rows, out = len(self.info[data].shape), self.rows[data], proto.output[0]
        firsts = self.known[starts].reshape(-1).tolist()
        along = (self.known[axes].reshape(-1) % rank).tolist() if axes else list(range(len(firsts)))
        every = self.known[steps].reshape(-1).tolist() if steps else [1] * len(firsts)
        lasts = self._elements(ends)
        if rows.axis not in along and ends in self.known:
            self._append(proto)
            self.rows[out] = rows
            return True
        at = along.index(rows.axis) if rows.axis in along else 0
        if rows.axis not in along or len(lasts) != len(firsts) or firsts[at] < 0 or every[at] != 1:
            return False
        size, last, first = self.info[data].shape[rows.axis], lasts[at], firsts[at]
        if any(isinstance(one, str) for one in lasts[:at] + lasts[at + 1 :]):
            return False
        bound = self._bound(last)
        until = size if bound is None or bound < 0 else min(bound, size)  # less than 0: from the last that counts
        if first >= until:
            return False
        room = np.array([*lasts[:at], until, *lasts[at + 1 :]], np.int64)
        self._plain("Slice", [data, starts, self._constant_of(f"{out}/ends", room), *filter(None, (axes, steps))], out)
        count, zero = rows.number, self._constant_of(f"{out}/none", [0])
        if last != bound or until < size or bound < 0:
            end = self._number_of(last, f"{out}/last")
            if bound is None or bound < 0:
                ahead = self._plain("Add", [end, count], f"{out}/ahead")
                negative = self._plain("Less", [end, zero], f"{out}/negative")
                end = self._plain("Where", [negative, ahead, end], f"{out}/end")
            count = self._least(count, end, f"{out}/until")
        if first:
            count = self._plain("Sub", [count, self._constant_of(f"{out}/first", [first])], f"{out}/behind")
        if first or bound is None or bound < 0:
            count = self._plain("Max", [count, zero], f"{out}/many")
        self._begin(out, rows.axis, count)
        return True

    def _top(self, proto: Any) -> bool:
        x, out = proto.input[0], next(name for name in proto.output if name)
        wanted = self._elements(proto.input[1])
        axis = _axis_of(proto, len(self.info[x].shape), -1)
        joined = x in self.rows and self.rows[x].axis == axis
        if len(wanted) != 1 or (x in self.rows and not joined) or (not joined and isinstance(wanted[0], int)):
            return False
        bound = self._bound(wanted[0])
        if bound is None:
            return False
        size = self.info[x].shape[axis]
        count = self._number_of(wanted[0], f"{out}/k")
        if joined:
            lowest = -math.inf if _attributes(proto).get("largest", 1) else math.inf
            count = self._least(count, self.rows[x].number, f"{out}/many")
            x = self._filled(x, lowest, out)
        room = self._constant_of(f"{out}/room", [min(bound, size)])
        made = helper.make_node("TopK", [x, room], list(proto.output), proto.name)
        made.attribute.extend(proto.attribute)
        self._append(made)
        for name in filter(None, proto.output):
            self._begin(name, axis, count)
        return True

    def _concatenated(self, proto: Any) -> bool:
        """Rows that count, of all operands one behind the other."""
        out, rank = proto.output[0], len(self.info[proto.input[0]].shape)
        axis = _axis_of(proto, rank, 0)
        opened = [name for name in proto.input if name in self.rows]
        if any(self.rows[name].axis != axis for name in opened):
            return self._elementwise(proto)
        if not opened:
            return False
        masks = []
        for at, name in enumerate(proto.input):
            size = self.info[name].shape[axis]
            flat = self._constant_of(f"{out}/{at}/size", [size])
            masks.append(self._plain("Reshape", [self._counts(name), flat], f"{out}/{at}/counts") if name in self.rows
                         else self._constant_of(f"{out}/{at}/counts", np.ones(size, np.bool_)))  # fmt: skip
        whole = self._plain("Concat", list(proto.input), f"{out}/whole", axis=axis)
        self._compress(whole, self._plain("Concat", masks, f"{out}/counts", axis=0), out, axis)
        return True

    @abstractmethod
    def _compress(self, data: str, condition: str, name: str, axis: int) -> None:
        """The rows for which a condition holds."""

    def _reduced(self, proto: Any) -> bool:
        """A reduction: rows that do not count change nothing."""
        x = proto.input[0]
        if x not in self.rows:
            return False
        rows, rank, attributes = self.rows[x], len(self.info[x].shape), _attributes(proto)
        if proto.op_type.startswith("Reduce"):
            given = proto.input[1] if len(proto.input) > 1 else ""
            if given and given not in self.known:
                return False
            listed = self.known[given].reshape(-1).tolist() if given else list(attributes.get("axes", []))
            axes = [one % rank for one in listed] or ([] if attributes.get("noop_with_empty_axes") else [*range(rank)])
        else:
            axes = [_axis_of(proto, rank, 0 if proto.op_type.startswith("Arg") else -1)]
        closed = rows.axis in axes
        made = onnx.NodeProto.FromString(proto.SerializeToString())
        if closed:
            made.input[0] = self._filled(x, _NEUTRAL[proto.op_type], proto.output[0])
        self._append(made)
        if proto.op_type.endswith("oftmax"):
            self.rows[proto.output[0]] = rows
        elif not closed:
            gone = 0 if attributes.get("keepdims", 1) else sum(one < rows.axis for one in axes)
            self.rows[proto.output[0]] = Counted(rows.number, rows.axis - gone)
        return True

    def _mean(self, proto: Any) -> bool:
        """A sum over as many rows as count."""
        out = proto.output[0]
        made = onnx.NodeProto.FromString(proto.SerializeToString())
        made.op_type, made.output[0] = "ReduceSum", f"{out}/sum"
        rows, shape = self.rows[proto.input[0]], self.info[proto.input[0]].shape
        if not self._reduced(made):
            return False
        reduced = math.prod(shape) // math.prod(self.info[made.output[0]].shape)
        kind = onnx.TensorProto.DataType.Value(self.info[proto.input[0]].type)
        number = self._constant_of(f"{out}/each", [reduced])
        if made.output[0] not in self.rows:
            each = self._constant_of(f"{out}/others", [reduced // shape[rows.axis]])
            number = self._plain("Mul", [rows.number, each], f"{out}/number")
        if not self.info[made.output[0]].shape:
            scalar = self._constant_of(f"{out}/shape", np.zeros(0, np.int64))
            number = self._plain("Reshape", [number, scalar], f"{out}/one")
        self._plain("Div", [made.output[0], self._plain("Cast", [number], f"{out}/by", to=kind)], out)
        if made.output[0] in self.rows:
            self.rows[out] = self.rows[made.output[0]]
        return True

    def _scattered(self, proto: Any) -> bool:
        """Rows of updates that do not count go to a row behind the others, which is cut off."""
        data, places, updates = proto.input
        along, out = self.rows.get(places), proto.output[0]
        axis = _axis_of(proto, len(self.info[data].shape), 0) if proto.op_type == "ScatterElements" else 0
        if along is None or along.axis != axis or self.rows.get(updates, along).axis != axis:
            return False
        if data in self.rows and self.rows[data].axis != axis:
            return False
        room, shape = self.info[places].shape[axis], list(self.info[data].shape)
        if self.info[updates].shape[axis] > room and updates in self.rows:
            updates = self._cut(updates, room, f"{out}/updates")
        size = shape[axis]
        shape[axis] = 1
        kind = helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(self.info[data].type))
        last = self._constant_of(f"{out}/last", np.zeros(shape, kind))
        longer = self._plain("Concat", [data, last], f"{out}/longer", axis=axis)
        made = onnx.NodeProto.FromString(proto.SerializeToString())
        made.input[0], made.input[1], made.input[2] = longer, self._filled(places, size, out), updates
        made.output[0] = f"{out}/written"
        self._append(made)
        bounds = [
            self._constant_of(f"{out}/{what}", [value]) for what, value in (("from", 0), ("to", size), ("of", axis))
        ]
        self._plain("Slice", [made.output[0], *bounds], out)
        if data in self.rows:
            self.rows[out] = self.rows[data]
        return True

    def _choose(self, condition: str, yes: str, no: str, name: str) -> bool:
        """Whether results of two branches can be one tensor, which is added: they have one shape, or differ in how many
        rows count."""
        infos = [self.info.get(one) for one in (yes, no)]
        if infos[0] is None or infos[1] is None or infos[0].type != infos[1].type:
            return False
        shapes = [infos[0].shape, infos[1].shape]
        opened = {self.rows[one].axis for one in (yes, no) if one in self.rows}
        if shapes[0] == shapes[1] and not opened:
            self._plain("Where", [condition, yes, no], name)
            return True
        axes = opened | {at for at, sizes in enumerate(zip(*shapes, strict=False)) if sizes[0] != sizes[1]}
        if len(axes) != 1 or len(shapes[0]) != len(shapes[1]) or not (opened or 0 in shapes[0] + shapes[1]):
            return False
        (axis,) = axes
        sizes = [shape[axis] for shape in shapes]
        counts = [self.rows[one].number if one in self.rows else self._constant_of(f"{name}/{at}/rows", [sizes[at]])
                  for at, one in enumerate((yes, no))]  # fmt: skip
        if 0 in sizes:
            self._plain("Identity", [no if sizes[0] == 0 else yes], name)
        else:
            kind = helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(infos[0].type))
            padded = []
            for at, one in enumerate((yes, no)):
                missing = [*shapes[at][:axis], max(sizes) - sizes[at], *shapes[at][axis + 1 :]]
                rest = self._constant_of(f"{name}/{at}/rest", np.zeros(missing, kind)) if missing[axis] else ""
                padded.append(self._plain("Concat", [one, rest], f"{name}/{at}/all", axis=axis) if rest else one)
            self._plain("Where", [condition, *padded], name)
        self._begin(name, axis, self._plain("Where", [condition, *counts], f"{name}/many"))
        return True

    def _closed_inputs(self, proto: Any) -> Any:
        """An operator that finds rows, with nothing to be found in rows that do not count."""
        made = onnx.NodeProto.FromString(proto.SerializeToString())
        filled = {"NonZero": {0: 0.0}, "Compress": {1: 0.0}, "NonMaxSuppression": {1: -math.inf}}
        for at, value in filled.get(proto.op_type, {}).items():
            if at < len(proto.input) and proto.input[at] in self.rows:
                made.input[at] = self._filled(proto.input[at], value, next(filter(None, proto.output)))
        return made


_Rule = Callable[[OpenRows, Any], bool]
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(APART, OpenRows._elementwise),
    **dict.fromkeys(_SHAPED, OpenRows._shaped),
    "Concat": OpenRows._concatenated,
    "ConstantOfShape": OpenRows._of_shape,
    "Expand": OpenRows._of_shape,
    "Gather": OpenRows._gather,
    "GatherND": OpenRows._gather_nd,
    "Range": OpenRows._range,
    "ReduceMean": OpenRows._mean,
    "ScatterElements": OpenRows._scattered,
    "ScatterND": OpenRows._scattered,
    "Shape": OpenRows._shape,
    "Slice": OpenRows._slice,
    "TopK": OpenRows._top,
}
"""Operators -> what becomes of those that need more than themselves; False: it is the node as it is."""
_OF_SHAPES = (OpenRows._of_shape, OpenRows._range, OpenRows._shaped, OpenRows._top)
"""Those of shapes that the run decides."""


def _attributes(proto: Any) -> dict[str, Any]:
    return {one.name: helper.get_attribute_value(one) for one in proto.attribute}


def _axis_of(proto: Any, rank: int, usual: int) -> int:
    return int(_attributes(proto).get("axis", usual)) % max(rank, 1)


def _axis(proto: Any, at: int, axis: int, info: Mapping[str, TensorInfo]) -> int | None:
    """The dimension of the output that has the rows of input `at`; None: there is none."""
    kind, shape = proto.op_type, info[proto.input[at]].shape
    attributes = _attributes(proto)
    if kind in APART or kind == "Expand":
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
