"""Conversion of a model to the canonical form that the compiler reads: the operators of `opset.NEWEST`, no control
flow.

Operators of other domains (`toolchain.onnx_domains.domains`) are decomposed into ONNX's, nodes of older operator sets
are raised (`toolchain.onnx_model.opset`). An `If` with a condition known at compile time is replaced by its branch, any
other by both branches and a choice. A `Loop` with a known number of steps is unrolled, and so is a `Scan`; any other
`Loop` is unrolled to its maximum, with a choice after each step. Known values are constants, shapes, and values derived
from them.
"""

from collections.abc import Container, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from toolchain.errors import ModelError
from toolchain.ir.graph import Values
from toolchain.onnx_domains import on_core
from toolchain.onnx_domains.domains import decompose, is_foreign
from toolchain.onnx_model.control_flow import ControlFlow, Names
from toolchain.onnx_model.file import RESHAPES
from toolchain.onnx_model.open_slice import OpenSlices, has_open_slice
from toolchain.onnx_model.opset import NEWEST, upgrade_node
from toolchain.onnx_model.sequences import OPERATORS as SEQUENCES
from toolchain.onnx_model.sequences import Sequences
from toolchain.onnx_nodes.evaluation import TensorInfo, evaluate
from toolchain.onnx_nodes.messages import assign, live_nodes, renamed, subgraphs

_CONTROL = ("If", "Loop", "Scan")
_ONNX = ("", "ai.onnx")


def has_control_flow(nodes: Any) -> bool:
    """Check whether a node is control flow or works on sequences."""
    return any(node.op_type in (*_CONTROL, *SEQUENCES) and node.domain in _ONNX for node in nodes)


def canonical(
    model: Any, name: str, version: int, external: Mapping[str, Values], steps: Mapping[str, int]
) -> None:  # fmt: skip
    """Convert an onnx.ModelProto to canonical form, in place. `version`: its operator set; `steps`: Loop name ->
    maximum number of steps, for a Loop whose number of steps is known only at run time. ModelError: no canonical form
    exists."""
    _without_optional_inputs(model)
    _constants_as_initializers(model.graph, model.opset_import, external)
    nodes = model.graph.node
    follow = has_control_flow(nodes) or any(map(is_foreign, nodes)) or has_open_slice(model.graph)
    if version >= NEWEST and not follow:
        return
    work = _Canonical(model, name, version, external, follow=follow, steps=steps)
    rewritten = work.run()
    assign(model.graph.node, rewritten)
    _outputs_as_tensors(model.graph, work.info, work.rows)
    if any(node.domain == on_core.DOMAIN for node in rewritten):
        model.functions.extend(on_core.functions(max(version, NEWEST)))
        model.opset_import.append(helper.make_opsetid(on_core.DOMAIN, 1))
    if version < NEWEST:
        next(entry for entry in model.opset_import if entry.domain in _ONNX).version = NEWEST
        model.ir_version = max(model.ir_version, 10)


def _outputs_as_tensors(graph: Any, info: Mapping[str, TensorInfo], rows: Container[str]) -> None:
    """Convert the types of string and dictionary outputs to those of the decomposed operators. The importer refuses by
    name the operator of an unconverted output. Outputs with an open row count get the maximum shape."""
    for value in graph.output:
        kind, shape_info = value.type.tensor_type.elem_type, info.get(value.name)
        other = kind in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING) or value.name in rows
        if shape_info is not None and other:
            value.CopyFrom(shape_info.value_info(value.name))
        elif not value.type.HasField("tensor_type"):
            value.CopyFrom(helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, None))


def _without_optional_inputs(model: Any) -> None:
    """Remove inputs with a value: before version 4 of the file format, every initializer was also an input."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    assign(model.graph.input, (value for value in model.graph.input if value.name not in initializers))
    model.ir_version = max(model.ir_version, 7)


def _constants_as_initializers(graph: Any, opsets: Sequence[Any], external: Mapping[str, Values]) -> None:
    """Convert Constant nodes, and their reshapes, to initializers, so that weights are in one place. Identity nodes of
    shared weights, which exporters write, are removed."""
    nodes_left, outputs = [], {value.name for value in graph.output}
    tensors, shared = {tensor.name: tensor for tensor in graph.initializer}, dict[str, str]()
    for node in graph.node:
        rename(node, shared)
        constant = None
        if node.domain in _ONNX and len(node.output) == 1 and node.output[0] not in outputs:
            if node.op_type == "Identity" and (node.input[0] in tensors or node.input[0] in external):
                shared[node.output[0]] = node.input[0]
                continue
            constant = _constant_of(node, tensors, opsets)
        if constant is None:
            nodes_left.append(node)
            continue
        constant.name = node.output[0]
        graph.initializer.append(constant)
        tensors[constant.name] = graph.initializer[-1]
    assign(graph.node, nodes_left)


def rename(node: Any, names: Names) -> None:
    """Rename the tensors that a node and its subgraphs read."""
    if not names:
        return
    for index, name in enumerate(node.input):
        node.input[index] = names.get(name, name)
    for graph in subgraphs(node):
        inner_names = {value.name for values in (graph.input, graph.initializer) for value in values}
        inner_names.update(name for inner in graph.node for name in inner.output)
        outer = {name: new for name, new in names.items() if name not in inner_names}
        for inner in graph.node:
            rename(inner, outer)
        for value in graph.output:
            value.name = outer.get(value.name, value.name)


def _constant_of(node: Any, tensors: Mapping[str, Any], opsets: Sequence[Any]) -> Any | None:
    """Return the tensor of a Constant node or of a reshaped constant; None for any other node."""
    if node.op_type == "Constant":
        values = [attribute.t for attribute in node.attribute if attribute.name == "value"]
        return deepcopy(values[0]) if values else None
    if node.op_type not in RESHAPES or not all(name in tensors for name in node.input if name):
        return None
    try:
        feeds = {name: np.asarray(numpy_helper.to_array(tensors[name])) for name in node.input if name}
        return numpy_helper.from_array(evaluate(node, feeds, opsets)[0])
    except Exception:  # import reports the node
        return None


class _Canonical(ControlFlow, Sequences, OpenSlices):
    def __init__(self, model: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(model, *arguments, **options)
        self._initializers = {tensor.name: tensor for tensor in model.graph.initializer}

    def run(self) -> list[Any]:
        for proto in self._graph.node:
            self._visit(proto, {})
        for value in self._graph.output:
            if value.name in self._lists:
                raise ModelError(
                    f"{self._name}: output {value.name}: a sequence: export the model with its tensors as outputs"
                )
        self._count_outputs()
        outputs = {value.name for value in self._graph.output}
        return live_nodes(self._nodes, outputs) if self._follow else self._nodes

    def _count_outputs(self) -> None:
        """Add a row count output for each output with an open row count."""
        for name in [value.name for value in self._graph.output if value.name in self.rows]:
            number, count = self.rows[name].number, f"{name}{on_core.COUNT}"
            if number != count:
                self._plain("Identity", [number], count)
            self._add_output(count)

    def _visit(self, proto: Any, names: Names) -> None:
        """Visit a node of the graph or of a subgraph."""
        if names:
            proto = renamed(proto, names)
        try:
            parts = upgrade_node(proto, self._version, self._value)
        except ModelError as error:
            raise self._refuse(proto, str(error)) from None
        for part in parts:
            if is_foreign(part):
                self._decompose(part)
            elif part.op_type in _CONTROL and part.domain in _ONNX and any(part.output):
                try:
                    {"If": self._if, "Loop": self._loop, "Scan": self._scan}[part.op_type](part, names)
                except (StopIteration, IndexError, ValueError):  # the model is not checked yet
                    reason = "its inputs, outputs or subgraphs are not those of the operator: export the model again"
                    raise self._refuse(part, reason) from None
            else:
                self._add(part)

    def _value(self, name: str) -> Values | None:
        """Return the values of a constant tensor; None for any other."""
        if name in self.constants or name not in self._initializers:
            return self.constants.get(name)
        return np.asarray(numpy_helper.to_array(self._initializers[name]))

    def _decompose(self, proto: Any) -> None:
        """Add the ONNX operators that replace an operator of another domain."""
        proto, constants = self._close_inputs(proto), dict(self.constants)
        for name in proto.input:
            if name in self._external:
                constants[name] = self._external[name]
            elif name in self._tensors and name not in constants:
                constants[name] = np.asarray(numpy_helper.to_array(self._tensors[name]))
        open_inputs = any(name and name not in self.info and name not in constants for name in proto.input)
        if open_inputs and any(node.domain not in (*_ONNX, on_core.DOMAIN) for node in self._nodes):
            self._append(proto)  # the importer refuses the operator before it by name
            return
        parts = decompose(proto, self._name, self._version, self.info, constants)
        for name, values in parts.constants.items():
            self._graph.initializer.append(numpy_helper.from_array(values, name))
            self._initializer(self._graph.initializer[-1])
        self._graph.value_info.extend(info.value_info(name) for name, info in parts.infos.items())
        self.info |= parts.infos
        for name, (count, axis) in parts.counts.items():
            self._begin(name, axis, count)
        for node in parts.nodes:
            self._add(node)

    def _add(self, proto: Any) -> None:
        """Add a node with the names of the graph."""
        if self._follow and proto.domain in _ONNX:
            if self._sequence(proto) or self._open_slice(proto):
                return
            try:
                if self._open_rows(proto):
                    return
            except ModelError as error:
                raise self._refuse(proto, str(error)) from None
        self._append(proto)
