"""View of a node at compile time: attributes, types and shapes, values of constants."""

import math
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
from onnx import AttributeProto, helper

from toolchain.errors import ModelError
from toolchain.ir.graph import Values
from toolchain.onnx_nodes.evaluation import TensorInfo, info_of

MAX_CONSTANT = 1 << 26
"""Maximum size of a constant that a decomposition creates, elements."""


class NodeView:
    """Node of the model `model` in operator set `opset`. `infos` and `constants`: types and shapes, and values, of
    tensors by name."""

    def __init__(
        self, proto: Any, model: str, opset: int, infos: Mapping[str, TensorInfo], constants: Mapping[str, Values]
    ) -> None:
        self.proto = proto
        self.name = node_name(proto)
        self._location = f"{model}: node {self.name} ({proto.op_type}, opset {opset})"
        self._infos = infos
        self._constants = constants
        self._protos = {entry.name: entry for entry in proto.attribute}
        self._values = dict[str, Any]()

    def refuse(self, reason: str) -> NoReturn:
        """Raise ModelError for this node, with the unsupported part."""
        raise ModelError(f"{self._location}: {reason}")

    def check_constant(self, *shape: int) -> None:
        """Raise ModelError for a constant of excessive size, before it is allocated."""
        if math.prod(shape) > MAX_CONSTANT:
            self.refuse(
                f"it needs a constant of shape {list(shape)}: the most is {MAX_CONSTANT} elements: smaller shapes"
            )

    @property
    def attributes(self) -> dict[str, Any]:
        """Explicit attributes, in the representation of onnx.helper."""
        return {name: self._value(name) for name in self._protos}

    def _value(self, name: str) -> Any:
        if name not in self._values:
            self._values[name] = helper.get_attribute_value(self._protos[name])
        return self._values[name]

    def attribute(self, name: str, otherwise: Any = None) -> Any:
        value = self._value(name) if name in self._protos else otherwise
        return _text(value) if isinstance(value, bytes) else value

    def texts(self, name: str) -> list[str]:
        """Return an attribute with a list of strings."""
        return [_text(value) for value in self.attribute(name, [])]

    def numbers(self, name: str) -> Values:
        """Return an attribute with a list of integers or floats as an array of INT64 or DOUBLE, empty if absent. It
        creates no list of Python objects, which would take gigabytes for a forest."""
        proto = self._protos.get(name)
        if proto is None:
            return np.zeros(0, np.int64)
        floats = proto.type == AttributeProto.FLOATS
        field = proto.floats if floats else proto.ints
        return np.fromiter(field, np.float64 if floats else np.int64, len(field))

    def codes(self, name: str, codes: Mapping[bytes, int]) -> Values:
        """Return an attribute's list of strings as an array of INT8 codes; -1 for a string without a code."""
        field = self._protos[name].strings if name in self._protos else ()
        return np.fromiter((codes.get(text, -1) for text in field), np.int8, len(field))

    def axis(self, rank: int, otherwise: int | None = None) -> int:
        """Return the attribute axis as a non-negative number. ModelError: it is invalid for the rank."""
        axis = int(self.attribute("axis", otherwise))
        if not -rank <= axis < rank:
            self.refuse(f"attribute axis={axis}: the tensor has {rank} dimensions")
        return axis % rank

    def has(self, index: int) -> bool:
        """Check whether the node has an optional input."""
        return index < len(self.proto.input) and bool(self.proto.input[index])

    def gives(self, index: int) -> bool:
        """Check whether the node has an optional output."""
        return index < len(self.proto.output) and bool(self.proto.output[index])

    def info(self, index: int) -> TensorInfo:
        return self._info(self.proto.input[index])

    def shape(self, index: int) -> tuple[int, ...]:
        return self.info(index).shape

    def out_info(self, index: int = 0) -> TensorInfo:
        return self._info(self.proto.output[index])

    def numpy_type(self, index: int) -> Any:
        """Return the array type of an input."""
        return self.info(index).dtype

    def is_typed(self, name: str) -> bool:
        """Check whether type and shape of a tensor are known."""
        return name in self._infos or name in self._constants

    def _info(self, name: str) -> TensorInfo:
        info, values = self._infos.get(name), self._constants.get(name)
        if info is None and values is not None:
            return info_of(values)
        if info is None:
            self.refuse(f"the shape of {name} is not known before the run; give the shapes of the inputs with --shape")
        return info

    def constant(self, index: int) -> Values | None:
        """Return the values of a constant input; None for any other."""
        return self._constants.get(self.proto.input[index])

    def needed(self, index: int, label: str) -> Values:
        """Return the values of an input that must be constant."""
        values = self.constant(index)
        if values is None:
            self.refuse(f"{label} ({self.proto.input[index]}) must be constant")
        return values

    def number(self, index: int, label: str) -> int:
        """Return the integer in a one-element input that must be constant."""
        return int(self.needed(index, label).reshape(-1)[0])


def _text(value: bytes) -> str:
    """Decode a string; invalid UTF-8 results in a name that matches nothing."""
    return value.decode(errors="replace")


def node_name(proto: Any) -> str:
    """Return the name of a node for messages."""
    return str(proto.name or f"{proto.op_type}_{''.join(proto.output[:1])}")
