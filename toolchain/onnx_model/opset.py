"""Conversion of nodes from older operator sets to a newer set.

Most operators are unchanged except for additional types. `RULES` holds those whose attributes, inputs or semantics
changed after opset 7, with the rewrite according to ONNX's change log (https://onnx.ai/onnx/operators).
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
from onnx import helper, numpy_helper

from toolchain.errors import ModelError
from toolchain.ir.graph import Values

OLDEST = 7
"""Oldest supported operator set."""
NEWEST = 23
"""Target operator set of the conversion: the newest that the operator table requires."""


ConstantLookup = Callable[[str], Values | None]
"""Function that returns the values of a constant tensor; None for any other tensor."""


class Draft:
    """Node under conversion; `before` and `after` are additional nodes."""

    def __init__(self, proto: Any, lookup: ConstantLookup) -> None:
        self.proto = deepcopy(proto)
        self.lookup = lookup
        self.before: list[Any] = []
        self.after: list[Any] = []

    def take(self, name: str, otherwise: Any = None) -> Any:
        """Return the value of an attribute and remove it from the node."""
        for index, entry in enumerate(self.proto.attribute):
            if entry.name == name:
                value = helper.get_attribute_value(entry)
                del self.proto.attribute[index]
                return value
        return otherwise

    def attribute(self, name: str, otherwise: Any = None) -> Any:
        matches = [entry for entry in self.proto.attribute if entry.name == name]
        return helper.get_attribute_value(matches[0]) if matches else otherwise

    def put(self, **attributes: Any) -> None:
        """Set attributes."""
        for name, value in attributes.items():
            self.take(name)
            self.proto.attribute.append(helper.make_attribute(name, value))

    def constant(self, index: int, values: Any) -> None:
        """Set an input to constant values."""
        while len(self.proto.input) <= index:
            self.proto.input.append("")
        name = f"{self.proto.output[0]}/input{index}"
        tensor = numpy_helper.from_array(np.asarray(values), name)
        self.before.append(helper.make_node("Constant", [], [name], value=tensor))
        self.proto.input[index] = name

    def like(self, index: int, value: float) -> None:
        """Set an input to a number of the first input's type."""
        self.constant(index, np.array(value, np.float32))
        plain = self.proto.input[index]
        self.proto.input[index] = f"{plain}/cast"
        self.before.append(helper.make_node("CastLike", [plain, self.proto.input[0]], [self.proto.input[index]]))

    def refuse(self, reason: str) -> None:
        raise ModelError(reason)


class OpsetRule(NamedTuple):
    """Rewrite rule for nodes of an operator set below `version`."""

    version: int
    rewrite: Callable[[Draft], None]


def _input(name: str, index: int, dtype: Any = np.int64, otherwise: Any = None) -> Callable[[Draft], None]:
    """Return a rewrite that converts an attribute to an input."""

    def rewrite(draft: Draft) -> None:
        values = draft.take(name, otherwise)
        if values is not None:
            draft.constant(index, np.array(values, dtype))

    return rewrite


def _clip(draft: Draft) -> None:
    for index, name in ((1, "min"), (2, "max")):
        value = draft.take(name)
        if value is not None:
            draft.like(index, value)


def _pad(draft: Draft) -> None:
    pads, value = draft.take("pads"), draft.take("value", 0.0)
    draft.constant(1, np.array(pads, np.int64))
    if value:
        draft.like(2, value)


def _dropout(draft: Draft) -> None:
    draft.take("ratio")


def _split(draft: Draft) -> None:
    if len(draft.proto.input) < 2 or not draft.proto.input[1]:
        draft.put(num_outputs=len(draft.proto.output))


def _top_k(draft: Draft) -> None:
    draft.constant(1, np.array([draft.take("k")], np.int64))


def _batch_normalization(draft: Draft) -> None:
    if draft.take("spatial", 1) != 1:
        draft.refuse("attribute spatial=0 of opset 7 is not supported: statistics are those of a channel")


def _resize(draft: Draft) -> None:
    """Rewrite Resize: opset 10 counts steps from the first pixel; nearest is the pixel below when enlarging and above
    when shrinking."""
    scales = draft.lookup(draft.proto.input[1])
    draft.put(coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    draft.proto.input.insert(1, "")
    if scales is None or draft.attribute("mode", b"nearest") != b"nearest" or not (scales < 1).any():
        return
    if (scales > 1).any():
        larger = Draft(draft.proto, draft.lookup)
        larger.proto.input[0] = f"{draft.proto.output[0]}/smaller"
        larger.proto.name += "/larger"
        larger.constant(2, np.maximum(scales, 1))
        draft.after += [*larger.before, larger.proto]
        draft.proto.output[0] = larger.proto.input[0]
        draft.constant(2, np.minimum(scales, 1))
    draft.put(nearest_mode="ceil")


def _roi_align(draft: Draft) -> None:
    draft.put(coordinate_transformation_mode="output_half_pixel")


def _upsample(draft: Draft) -> None:
    draft.proto.op_type = "Resize"
    _resize(draft)


def _scatter(draft: Draft) -> None:
    draft.proto.op_type = "ScatterElements"


def _softmax(draft: Draft) -> None:
    """Rewrite Softmax: before opset 13, all dimensions from the axis on are flattened."""
    x, y, axis = draft.proto.input[0], draft.proto.output[0], draft.attribute("axis", 1)
    flat, rows, shape = (f"{y}/{name}" for name in ("flat", "of_rows", "shape"))
    draft.before.append(helper.make_node("Flatten", [x], [flat], f"{draft.proto.name}/flat", axis=axis))
    draft.proto.input[0], draft.proto.output[0] = flat, rows
    draft.put(axis=1)
    draft.after.append(helper.make_node("Shape", [x], [shape]))
    draft.after.append(helper.make_node("Reshape", [rows, shape], [y], f"{draft.proto.name}/shape"))


def _group_normalization(draft: Draft) -> None:
    """Expand scale and bias of each group to its channels."""
    x, groups, y = draft.proto.input[0], draft.attribute("num_groups"), draft.proto.output[0]
    names = {name: f"{y}/{name}" for name in ("channels", "groups", "per_group", "one", "last", "every", "flat")}
    for name, values in (("groups", [groups]), ("one", [1]), ("last", [-1, 1]), ("flat", [-1])):
        tensor = numpy_helper.from_array(np.array(values, np.int64))
        draft.before.append(helper.make_node("Constant", [], [names[name]], value=tensor))
    draft.before += [
        helper.make_node("Shape", [x], [names["channels"]], start=1, end=2),
        helper.make_node("Div", [names["channels"], names["groups"]], [names["per_group"]]),
        helper.make_node("Concat", [names["one"], names["per_group"]], [names["every"]], axis=0),
    ]
    for index in (1, 2):
        source, column, wide, flat = draft.proto.input[index], *(f"{y}/{part}{index}" for part in ("a", "b", "c"))
        draft.before += [
            helper.make_node("Reshape", [source, names["last"]], [column]),
            helper.make_node("Tile", [column, names["every"]], [wide]),
            helper.make_node("Reshape", [wide, names["flat"]], [flat]),
        ]
        draft.proto.input[index] = flat


def _grid_sample(draft: Draft) -> None:
    mode = draft.attribute("mode", b"bilinear").decode(errors="replace")
    draft.put(mode={"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))


def _mean_variance(draft: Draft) -> None:
    """Write the default axes explicitly, since shape inference lacks the default of MeanVarianceNormalization."""
    draft.put(axes=draft.attribute("axes", [0, 2, 3]))


def _stft(draft: Draft) -> None:
    """Write the default of STFT explicitly, since shape inference assumes another one."""
    draft.put(onesided=draft.attribute("onesided", 1))


_AXES = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")

RULES: dict[str, tuple[OpsetRule, ...]] = {
    "BatchNormalization": (OpsetRule(9, _batch_normalization),),
    "Clip": (OpsetRule(11, _clip),),
    "DFT": (OpsetRule(20, _input("axis", 2, otherwise=1)),),
    "Dropout": (OpsetRule(12, _dropout),),
    "GridSample": (OpsetRule(20, _grid_sample),),
    "GroupNormalization": (OpsetRule(21, _group_normalization),),
    "Hardmax": (OpsetRule(13, _softmax),),
    "LogSoftmax": (OpsetRule(13, _softmax),),
    "MeanVarianceNormalization": (OpsetRule(NEWEST, _mean_variance),),
    "Pad": (OpsetRule(11, _pad),),
    **{f"Reduce{kind}": (OpsetRule(18, _input("axes", 1)),) for kind in _AXES},
    "ReduceSum": (OpsetRule(13, _input("axes", 1)),),
    "Resize": (OpsetRule(11, _resize),),
    "RoiAlign": (OpsetRule(16, _roi_align),),
    "Scatter": (OpsetRule(11, _scatter),),
    "Slice": tuple(OpsetRule(10, _input(*pair)) for pair in (("starts", 1), ("ends", 2), ("axes", 3))),
    "Softmax": (OpsetRule(13, _softmax),),
    "Split": (OpsetRule(13, _input("split", 1)), OpsetRule(18, _split)),
    "STFT": (OpsetRule(NEWEST, _stft),),
    "Squeeze": (OpsetRule(13, _input("axes", 1)),),
    "TopK": (OpsetRule(10, _top_k),),
    "Unsqueeze": (OpsetRule(13, _input("axes", 1)),),
    "Upsample": (OpsetRule(9, _input("scales", 1, np.float32)), OpsetRule(10, _upsample)),
}
"""Operator -> its rules, oldest first."""


def upgrade_node(proto: Any, version: int, constant_of: ConstantLookup) -> list[Any]:
    """Return the nodes of operator set `NEWEST` that replace a node of set `version`. ModelError: the node cannot be
    converted."""
    if version >= NEWEST or proto.domain not in ("", "ai.onnx"):
        return [proto]
    rules = [rule for rule in RULES.get(proto.op_type, ()) if rule.version > version]
    if not rules:
        return [proto]
    draft = Draft(proto, constant_of)
    for rule in rules:
        rule.rewrite(draft)
    return [*draft.before, draft.proto, *draft.after]
