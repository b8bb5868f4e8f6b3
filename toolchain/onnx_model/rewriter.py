"""Graph of a model that is rebuilt node by node, with types, shapes and values of its tensors."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from toolchain.errors import ModelError
from toolchain.ir.graph import Values
from toolchain.onnx_model.opset import NEWEST
from toolchain.onnx_nodes.evaluation import MAX_FOLDED, Propagation, TensorInfo, tensor_info, type_name
from toolchain.onnx_nodes.view import node_name

MAX_NODES = 50_000
"""Maximum number of nodes of a model without control flow."""
Names = Mapping[str, str]
"""Name in a subgraph -> name in the enclosing graph."""


class Rewriter(Propagation, ABC):
    """Nodes of a model during conversion. `follow`: propagate values and shapes, because a node depends on them."""

    def __init__(self, model: Any, name: str, version: int, external: Mapping[str, Values], *, follow: bool) -> None:
        super().__init__([helper.make_opsetid("", max(version, NEWEST))], {})
        self._graph, self._name, self._version, self._follow = model.graph, name, version, follow
        self._external = external
        self._nodes: list[Any] = []
        self._producers: dict[str, Any] = {}
        """Producer of each tensor."""
        self._tensors: dict[str, Any] = {}
        if follow:
            self.info = {value.name: info for value in model.graph.input if (info := tensor_info(value)) is not None}
            for tensor in model.graph.initializer:
                self._initializer(tensor)

    @abstractmethod
    def _visit(self, proto: Any, names: Names) -> None:
        """Visit a node of the graph or of a subgraph."""

    @abstractmethod
    def _decompose(self, proto: Any) -> None:
        """Add the ONNX operators that replace an operator of another domain."""

    @abstractmethod
    def _add(self, proto: Any) -> None:
        """Add a node by the rules of its operator and operands."""

    def _append(self, proto: Any) -> None:
        """Add a node unchanged."""
        self._nodes.append(proto)
        if len(self._nodes) > MAX_NODES:
            raise ModelError(f"{self._name}: more than {MAX_NODES} nodes behind loops and branches: export fewer steps")
        if self._follow:
            self._producers.update((name, proto) for name in proto.output if name)
            self.follow_node(proto)

    def _refuse(self, proto: Any, reason: str) -> ModelError:
        return ModelError(f"{self._name}: node {node_name(proto)} ({proto.op_type}, opset {self._version}): {reason}")

    def _initializer(self, tensor: Any) -> None:
        """Record type, shape and small values of an initializer."""
        self._tensors[tensor.name] = tensor
        self.info[tensor.name] = TensorInfo(type_name(tensor.data_type), tuple(tensor.dims))
        if np.prod(tensor.dims) <= MAX_FOLDED:
            try:
                self.constants[tensor.name] = np.asarray(numpy_helper.to_array(tensor))
            except (ValueError, TypeError, KeyError) as error:
                raise ModelError(f"{self._name}: tensor {tensor.name}: {error}; export the model again") from None

    def _node(self, operator: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """Add a node with one output by the rules, and return the name of the output."""
        self._add(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def _plain(self, operator: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        self._append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def _constant_of(self, name: str, values: Any) -> str:
        if name not in self.constants:
            self._plain("Constant", [], name, value=numpy_helper.from_array(np.asarray(values)))
        return name
