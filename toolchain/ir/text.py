"""NPU-IR as parseable text, and as JSON lines.

One line per tensor and layer. Constants of up to 64 elements are written in full, larger ones as a hash; their values
are absent from a parsed graph.
"""

import ast
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from npu_device.abi.opcodes import DataType
from toolchain.errors import ToolchainError
from toolchain.ir.data_types import NUMPY
from toolchain.ir.graph import Attribute, Graph, LayerIR, Role, TensorIR, Values

SHOWN = 64
"""Maximum number of elements of a constant written in full."""

_TENSOR = re.compile(r"tensor (\S+): (\w+) (\w+) (\[[\d, ]*\])(?: \{(.*?)\})?(?: = (.+))?")
_LAYER = re.compile(r"layer (\S+): (\S+(?:, \S+)*) = (\w+)\(([^)]*)\)(?: \{(.*)\})?")


def render(graph: Graph) -> str:
    """Return the text of a graph."""
    return "\n".join(_lines(graph)) + "\n"


def _lines(graph: Graph) -> Iterator[str]:
    yield f"graph {graph.name}"
    for tensor in graph.tensors.values():
        head = f"tensor {tensor.id}: {tensor.role} {tensor.dtype.name} {list(tensor.shape)}"
        values = graph.constants.get(tensor.id)
        yield head + _attributes(tensor.settings) + ("" if values is None else f" = {_constant(values)}")
    yield f"inputs {', '.join(graph.inputs)}"
    for layer in graph.layers:
        head = f"layer {layer.id}: {', '.join(layer.outputs)} = {layer.op_type}({', '.join(layer.inputs)})"
        yield head + _attributes(layer.attributes)
    yield f"outputs {', '.join(graph.outputs)}"


def _constant(values: Values) -> str:
    if values.size > SHOWN:
        return f"sha256:{hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()}"
    return str([float(value) if values.dtype.kind not in "iu" else int(value) for value in values.reshape(-1)])


def _attributes(values: Mapping[str, Attribute]) -> str:
    shown = (f"{name}: {list(value) if isinstance(value, tuple) else repr(value)}" for name, value in values.items())
    return f" {{{', '.join(shown)}}}" if values else ""


def _read_attributes(text: str | None) -> dict[str, Any]:
    values = ast.literal_eval("{" + re.sub(r"(\w+): ", r"'\1': ", text or "") + "}")
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def parse(text: str) -> Graph:
    """Parse the text of a graph. ToolchainError names the invalid line."""
    graph = Graph("")
    for number, line in enumerate(text.splitlines(), 1):
        word, _, rest = line.partition(" ")
        try:
            if word == "graph":
                graph.name = rest
            elif word == "tensor":
                _read_tensor(graph, line)
            elif word == "layer":
                _read_layer(graph, line)
            elif word in ("inputs", "outputs"):
                setattr(graph, word, tuple(rest.split(", ")) if rest else ())
            elif line.strip():
                raise ValueError(f"{word} is no statement")
        except (ValueError, KeyError, SyntaxError, TypeError) as error:
            raise ToolchainError(f"line {number}: {error}; write it as `render` does: {line}") from None
    return graph


def _read_tensor(graph: Graph, line: str) -> None:
    match = _TENSOR.fullmatch(line)
    if match is None:
        raise ValueError("a tensor is `tensor ID: ROLE TYPE [SHAPE] {FIELDS}`")
    name, role, kind, shape, settings, values = match.groups()
    size = tuple(ast.literal_eval(shape))
    tensor = graph.tensors[name] = TensorIR(name, Role(role), size, DataType[kind], **_read_attributes(settings))
    if values is not None and not values.startswith("sha256:"):
        read = ast.literal_eval(values.replace("inf", "1e999").replace("nan", "None"))
        numbers = [float("nan") if value is None else value for value in read]
        graph.constants[name] = np.array(numbers).astype(NUMPY[tensor.dtype]).reshape(tensor.shape)


def _read_layer(graph: Graph, line: str) -> None:
    match = _LAYER.fullmatch(line)
    if match is None:
        raise ValueError("a layer is `layer ID: OUTPUTS = OP(INPUTS) {ATTRIBUTES}`")
    name, outputs, op_type, inputs, attributes = match.groups()
    operands = tuple(inputs.split(", ")), tuple(outputs.split(", "))
    graph.layers.append(LayerIR(name, op_type, *operands, _read_attributes(attributes)))


def json_lines(graph: Graph, stage: str) -> Iterator[str]:
    """Yield a JSON object per layer; `stage` names the preceding pass."""
    for layer in graph.layers:
        tensor = graph.tensors[layer.outputs[0]]
        yield json.dumps(
            {
                "stage": stage, "id": layer.id, "op": layer.op_type, "inputs": layer.inputs, "outputs": layer.outputs,
                "qbits": tensor.qbits, **layer.attributes,
            }
        )  # fmt: skip
