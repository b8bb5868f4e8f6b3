"""Mutated ONNX models, with the structure of real ones: the node tests of the onnx package, windows of its light models
and of those that a folder has, the examples and decoders of this package, functions, subgraphs."""

import math
import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from fuzz_inputs import INTERESTING, FoundError, flipped, refused
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper, parser, shape_inference
from onnx.backend.test.case.node import collect_testcases

from pyv_npu.config import load as load_config
from pyv_npu.workloads.data import RUNS
from pyv_npu.workloads.decoder import Generation
from pyv_npu.workloads.generation import GenerationRequest
from pyv_npu.workloads.model import Model
from pyv_npu.workloads.model_file import Choices, inspect
from toolchain.examples import DECODERS, EXAMPLES
from toolchain.onnx_frontend.table import OPERATORS
from toolchain.onnx_model.opset import OLDEST
from toolchain.quantize.precision import CALIBRATED

MOST_WEIGHTS = 1 << 18
"""Bytes of the weights of a window."""
LONGEST = 6
"""Nodes of a window."""
SMALL = 1 << 22
"""Bytes of DRAM of a model that runs."""
EXTREMES = (-(1 << 63), -(1 << 31), -2, -1, *INTERESTING, 1 << 40, (1 << 63) - 1)
FLOATS = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0, -1.0, 1e38, 1e-45)
FUNCTION = '<domain: "f", opset_import: ["" : 20, "f" : 1]> F (a) => (b) { c = Relu (a) b = Neg (c) }'


# -- seeds -------------------------------------------------------------------------------------------------------------


@cache
def node_tests() -> tuple[bytes, ...]:
    """The models of the onnx package's tests of operators; some inputs are initializers, as exporters write them."""
    made = []
    for case in collect_testcases(None):
        if case.model is None or case.model.ByteSize() > MOST_WEIGHTS or not case.data_sets:
            continue
        model = ModelProto.FromString(case.model.SerializeToString())
        inputs, _ = case.data_sets[0]
        made.append(model.SerializeToString())
        for value, data in zip(list(model.graph.input), inputs, strict=False):
            tensor = data if isinstance(data, TensorProto) else None
            if tensor is None and isinstance(data, np.ndarray) and value.type.HasField("tensor_type"):
                tensor = numpy_helper.from_array(data, value.name)
            if tensor is not None and tensor.ByteSize() < MOST_WEIGHTS and value is not model.graph.input[0]:
                model.graph.initializer.append(tensor)
                model.graph.initializer[-1].name = value.name
        made.append(model.SerializeToString())
    return tuple(made)


@cache
def whole_models(folder: Path | None = None) -> tuple[bytes, ...]:
    """Light models of the onnx package, and those of a folder, with the shapes of their tensors."""
    places = [Path(onnx.__file__).parent / "backend" / "test" / "data" / "light", *([folder] if folder else [])]
    made = []
    for path in sorted(path for place in places for path in place.rglob("*.onnx")):
        try:
            model = onnx.load(path)
            for tensor in model.graph.initializer:
                if len(tensor.raw_data) > MOST_WEIGHTS:
                    tensor.raw_data = b""
            if model.opset_import[0].version >= OLDEST:
                made.append(shape_inference.infer_shapes(model).SerializeToString())
        except Exception:
            continue
    return tuple(made)


@cache
def _parsed(data: bytes) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A model, its values by name, and its initializers."""
    model = ModelProto.FromString(data)
    graph = model.graph
    values = {value.name: value for value in (*graph.input, *graph.value_info, *graph.output)}
    return model, values, {tensor.name: tensor for tensor in graph.initializer}


def window(chance: random.Random, data: bytes) -> Any | None:
    """A few nodes in a row of a model, as a model; None where its weights are large or a shape is not known."""
    model, values, weights = _parsed(data)
    nodes = model.graph.node
    first = chance.randrange(len(nodes))
    part = nodes[first : first + chance.randint(1, LONGEST)]
    made = {name for node in part for name in node.output if name}
    read = dict.fromkeys(name for node in part for name in node.input if name and name not in made)
    constants = [weights[name] for name in read if name in weights]
    free = [name for name in read if name not in weights]
    makers = {name: node for node in nodes for name in node.output}
    before = [makers[name] for name in free if name in makers and makers[name].op_type == "Constant"]
    free = [name for name in free if name not in makers or makers[name].op_type != "Constant"]
    sizes = (helper.tensor_dtype_to_np_dtype(one.data_type).itemsize * math.prod(one.dims) for one in constants)
    if sum(sizes) > MOST_WEIGHTS or not set(free) <= values.keys():
        return None
    outputs = [name for name in made if name not in {name for node in part for name in node.input}]
    inputs = [onnx.ValueInfoProto.FromString(values[name].SerializeToString()) for name in free]
    for value in inputs:
        for dim in value.type.tensor_type.shape.dim:
            if not dim.HasField("dim_value"):
                dim.dim_value = 1
            dim.dim_value = min(dim.dim_value, 32) if chance.random() < 0.2 else dim.dim_value
    graph = helper.make_graph(
        [*before, *part], "window", inputs,
        [values.get(name) or helper.make_empty_tensor_value_info(name) for name in outputs], constants,
    )  # fmt: skip
    return helper.make_model(
        graph, opset_imports=list(model.opset_import), functions=list(model.functions), ir_version=model.ir_version
    )


@cache
def own_models() -> tuple[bytes, ...]:
    """The examples that are small."""
    names = ("mlp", "cnn", "mlp_qdq", "gemm", "gemm_fp16", "mlp_int8")
    return tuple(EXAMPLES[name]().SerializeToString() for name in names)


@cache
def decoders() -> tuple[bytes, ...]:
    return tuple(DECODERS[name]().SerializeToString() for name in ("decoder_kv", "decoder_concat", "decoder_kv_int8"))


FOLDER: Path | None = None
"""Of further models."""


def seed_model(chance: random.Random) -> Any:
    kind = chance.random()
    if kind < 0.55:
        return ModelProto.FromString(chance.choice(node_tests()))
    while kind < 0.85:
        made = window(chance, chance.choice(whole_models(FOLDER)))
        if made is not None:
            return made
    return ModelProto.FromString(chance.choice(own_models()))


# -- mutations ---------------------------------------------------------------------------------------------------------


def _graphs(graph: Any) -> list[Any]:
    """A graph and all inside of it."""
    found = [graph]
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                found += _graphs(inner)
    return found


def _tensors(graph: Any) -> list[Any]:
    inside = [one.t for node in graph.node for one in node.attribute if one.HasField("t")]
    return [*graph.initializer, *inside]


def _attribute(chance: random.Random, graph: Any) -> None:
    """A value, the type, the name or the whole of an attribute."""
    nodes = [node for node in graph.node if node.attribute]
    if not nodes:
        _foreign_attribute(chance, graph)
        return
    node = chance.choice(nodes)
    attribute = chance.choice(node.attribute)
    kind = chance.randrange(10)
    if kind == 0:
        node.attribute.remove(attribute)
    elif kind == 1:
        _foreign_attribute(chance, graph)
    elif kind == 2:
        attribute.type = chance.randrange(15)
    elif kind == 3:
        node.attribute.append(attribute)
    elif kind == 4:
        attribute.ref_attr_name = "alpha"
    elif attribute.ints and kind < 8:
        part = chance.randrange(4)
        if part == 0:
            del attribute.ints[chance.randrange(len(attribute.ints))]
        elif part == 1:
            attribute.ints.append(chance.choice(EXTREMES))
        else:
            attribute.ints[chance.randrange(len(attribute.ints))] = chance.choice(EXTREMES)
    elif attribute.type == AttributeProto.INT:
        attribute.i = chance.choice(EXTREMES)
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = chance.choice(FLOATS)
    elif attribute.type == AttributeProto.STRING:
        attribute.s = chance.choice((b"", b"linear", b"SAME_UPPER", b"\xff\xfe", b"x" * 5000, attribute.s[:-1]))
    elif attribute.type == AttributeProto.GRAPH:
        attribute.ClearField("g")
    else:
        attribute.ClearField(chance.choice(("ints", "floats", "strings", "t", "g")))


def _foreign_attribute(chance: random.Random, graph: Any) -> None:
    """An attribute that some operator has, of some type."""
    names = [name for row in OPERATORS.values() for name in row.attributes]
    value = chance.choice((chance.choice(EXTREMES), 1, 0, 2.5, "linear", b"\xff", [1, 2], [], [1.0], ["a"]))
    node = chance.choice(graph.node)
    if value == []:
        node.attribute.add(name=chance.choice(names), type=AttributeProto.INTS)
    else:
        node.attribute.append(helper.make_attribute(chance.choice(names), value))


def _edges(chance: random.Random, graph: Any) -> None:
    """Names, numbers and order of what nodes read and make."""
    node = chance.choice(graph.node)
    names = [name for one in graph.node for name in (*one.input, *one.output)] or ["x"]
    names += [value.name for value in (*graph.input, *graph.initializer)]
    field = chance.choice((node.input, node.input, node.output))
    kind = chance.randrange(6)
    if kind == 0 and field:
        field[chance.randrange(len(field))] = chance.choice((*names, "", "nowhere"))
    elif kind == 1 and field:
        del field[chance.randrange(len(field)) :]
    elif kind == 2:
        field.extend([chance.choice((*names, ""))] * chance.randint(1, 3))
    elif kind == 3 and len(graph.node) > 1:
        first, second = chance.sample(range(len(graph.node)), 2)
        moved = NodeProto.FromString(graph.node[first].SerializeToString())
        graph.node[first].CopyFrom(graph.node[second])
        graph.node[second].CopyFrom(moved)
    elif kind == 4:
        graph.node.remove(node)
    else:
        graph.node.append(NodeProto.FromString(node.SerializeToString()))
    if not graph.node:
        graph.node.add(op_type="Relu", input=["x"], output=["y"])


def _operator(chance: random.Random, graph: Any) -> None:
    node = chance.choice(graph.node)
    kind = chance.randrange(5)
    if kind < 3:
        node.op_type = chance.choice((*OPERATORS, *OTHERS))
    elif kind == 3:
        node.domain = chance.choice(("com.microsoft", "f", "ai.onnx.ml", "ai.onnx", "nowhere", "pyv_npu.core"))
    else:
        node.name = chance.choice(("", "a b:c", "x" * 3000, "\n", "é"))


def _tensor(chance: random.Random, graph: Any) -> None:
    """Type, shape, values or place of a constant."""
    tensors = _tensors(graph)
    if not tensors:
        return
    tensor = chance.choice(tensors)
    kind = chance.randrange(9)
    if kind == 0:
        tensor.data_type = chance.randrange(28)
    elif kind == 1 and tensor.dims:
        tensor.dims[chance.randrange(len(tensor.dims))] = chance.choice(EXTREMES)
    elif kind == 2:
        tensor.dims.append(chance.choice((1, 0, *EXTREMES)))
    elif kind == 3:
        del tensor.dims[chance.randrange(len(tensor.dims) + 1) :]
    elif kind == 4:
        tensor.ClearField(chance.choice(("raw_data", "float_data", "int64_data", "int32_data", "dims", "data_type")))
    elif kind == 5:
        tensor.float_data.extend([1.0, 2.0])
    elif kind == 6:
        tensor.data_location = TensorProto.EXTERNAL
        if chance.random() < 0.7:
            tensor.ClearField("raw_data")
            for key, value in (("location", chance.choice(("/etc/passwd", "../x", "fuzzed.onnx", "", "a\0"))),
                               ("offset", chance.choice(("0", "-1", "x", "99999999999999999999"))),
                               ("length", chance.choice(("0", "-1", "16", "x")))):  # fmt: skip
                if chance.random() < 0.8:
                    tensor.external_data.add(key=key, value=value)
    else:
        try:
            values = np.array(numpy_helper.to_array(tensor))
        except Exception:
            return
        if values.size and values.dtype.kind in "iuf":
            flat = values.reshape(-1)
            wanted = chance.choice(EXTREMES if values.dtype.kind in "iu" else FLOATS)
            if values.dtype.kind in "iu":
                limits = np.iinfo(values.dtype)
                wanted = min(max(wanted, limits.min), limits.max)
            with np.errstate(all="ignore"):
                flat[chance.randrange(flat.size)] = wanted
            tensor.CopyFrom(numpy_helper.from_array(flat.reshape(values.shape), tensor.name))


def _value(chance: random.Random, graph: Any) -> None:
    """Type and shape of what a graph says of its tensors."""
    values = [*graph.input, *graph.input, *graph.output, *graph.value_info]
    if not values:
        return
    value = chance.choice(values)
    kind = chance.randrange(9)
    shape = value.type.tensor_type.shape
    if kind == 0:
        value.type.tensor_type.elem_type = chance.choice((0, 0, *range(1, 28)))
    elif kind < 4 and shape.dim:
        dim = chance.choice(shape.dim)
        if kind == 1:
            dim.dim_param = chance.choice(("N", "", "?", "a b"))
        else:
            dim.dim_value = chance.choice((1, 2, 5, *EXTREMES))
    elif kind == 4 and shape.dim:
        del shape.dim[chance.randrange(len(shape.dim)) :]
    elif kind == 5:
        shape.dim.add().dim_value = chance.choice((0, 1, 4))
    elif kind == 6:
        value.type.Clear()
        if chance.random() < 0.5:
            value.type.sequence_type.elem_type.tensor_type.elem_type = 1
    elif kind == 7:
        chance.choice((graph.input, graph.output)).append(value)
    else:
        value.name = chance.choice(("", "other", graph.node[0].output[0] if graph.node[0].output else "y"))


def _model(chance: random.Random, model: Any) -> None:
    """Operator sets, version of the format, functions."""
    kind = chance.randrange(6)
    if kind == 0 and model.opset_import:
        chance.choice(model.opset_import).version = chance.choice((-1, 0, *range(1, 28), 1 << 40))
    elif kind == 1:
        model.ir_version = chance.choice((0, 1, 3, 4, 7, 13, 99, 1 << 40))
    elif kind == 2:
        del model.opset_import[:]
    elif kind == 3:
        model.opset_import.add(domain=chance.choice(("com.microsoft", "ai.onnx.ml", "f", "")), version=1)
    else:
        function = parser.parse_function(FUNCTION)
        if chance.random() < 0.7:
            _node_of(chance, function)
        model.functions.append(function)
        model.opset_import.add(domain="f", version=1)
        nodes = [node for node in model.graph.node if node.input and node.output]
        if nodes:
            node = chance.choice(nodes)
            call = helper.make_node("F", [node.input[0]], [node.output[0]], domain="f")
            if chance.random() < 0.3:
                call.attribute.append(helper.make_attribute("alpha", 1.0))
            node.CopyFrom(call)


def _node_of(chance: random.Random, function: Any) -> None:
    node = chance.choice(function.node)
    kind = chance.randrange(7)
    if kind == 0:
        node.op_type = chance.choice((*OPERATORS, "F", "Loop"))
        node.domain = chance.choice(("", "f", "com.microsoft"))
    elif kind == 1:
        del node.input[:]
    elif kind == 2:
        node.attribute.add(name="axis", ref_attr_name="axis", type=AttributeProto.INT)
    elif kind == 3:
        del function.output[:]
    elif kind == 4:
        function.opset_import[0].version = chance.choice((-1, 0, 1, 7, 99))
    elif kind == 5:
        del node.output[:]
    else:
        node.CopyFrom(helper.make_node("F", list(node.input), list(node.output), domain="f"))


OTHERS = ("", "If", "Loop", "NonMaxSuppression", "NonZero", "Nothing", "Scan", "Scatter", "SequenceConstruct",
          "StringConcat", "Unique", "Upsample")  # fmt: skip
"""Operators beside those of the table."""
MUTATIONS: Sequence[Callable[[random.Random, Any], None]] = (
    _attribute, _attribute, _attribute, _edges, _edges, _operator, _tensor, _tensor, _tensor, _value, _value,
)  # fmt: skip


def mutated(chance: random.Random, model: Any) -> bytes:
    """The bytes of a model that some changes were made to."""
    for _ in range(chance.choice((0, 1, 1, 1, 1, 2, 2, 3))):
        if chance.random() < 0.08:
            _model(chance, model)
            continue
        graph = chance.choice(_graphs(model.graph))
        if graph.node:
            chance.choice(MUTATIONS)(chance, graph)
    data = model.SerializeToString()
    if chance.random() < 0.1 and data:
        head = chance.choice((100, 400, len(data)))
        data = flipped(data[:head], chance, 2) + data[head:]
    return bytes(data)


# -- what is done with them --------------------------------------------------------------------------------------------


def onnx_models(chance: random.Random, folder: Path) -> bool:
    """Looked into and compiled, run where it is small, some in another precision or as decoders."""
    path = folder / "fuzzed.onnx"
    generates = chance.random() < 0.05
    model = ModelProto.FromString(chance.choice(decoders())) if generates else seed_model(chance)
    path.write_bytes(mutated(chance, model))
    config: Any = load_config([], None, {"run.sim_level": "IA"}).config
    precision = chance.choice(("fp16", "bf16", "int8", "fp8")) if chance.random() < 0.15 else ""
    try:
        if generates:
            Generation(path, GenerationRequest(prompt=(1, 2), new=2)).prepare(config)
            return True
        choices = Choices(precision=precision, calibration_runs=1 if precision in CALIBRATED else RUNS)
        found = inspect(config, path, choices)
        if found.refusal:
            if "\n" in found.refusal or not found.refusal.strip():
                raise FoundError(f"refused in other than one line: {found.refusal!r}")
            return False
        rows = dict(found.rows)
        if int(rows["DRAM"].removesuffix(" bytes").replace(",", "")) < SMALL:
            Model(path, choices).prepare(config).run(config).json  # noqa: B018
    except Exception as error:
        return not refused(error)
    return True
