"""Transformers as exporters write them, with dynamic axes: shapes through Slice, Expand, Where and Range, INT8 by our
own quantization and by that of onnxruntime."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from model_runs import execute
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from onnxruntime_reference import by_onnxruntime

from npu_device.config import NpuConfig
from pyv_npu.cli import main
from pyv_npu.workloads import ia
from pyv_npu.workloads.checks import compare, precision
from toolchain.codegen import Target
from toolchain.compiler import Compiled, compile_model
from toolchain.ir.operations import PRODUCTS
from toolchain.onnx_model.model import OnnxModel, prepare

SIZE, HEADS, TOKENS, WORDS, LONGEST = 32, 2, 12, 50, 24
SHAPES = {"batch": (1,), "seq": (TOKENS,)}


class Encoder:
    """A layer of an encoder, with operators that TorchScript's exporter writes at opset 14 for open dimensions."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(3)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, values: Any, kind: Any = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, kind), name))
        return name

    def weight(self, *shape: int, scale: float = 0.2) -> str:
        return self.constant(self.random.standard_normal(shape) * scale, np.float32)

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], f"/layer/{name}", **attributes))
        return name

    def size(self, name: str, axis: int) -> str:
        """A dimension of a tensor, as a number."""
        return self.node("Gather", self.node("Shape", name), self.constant(axis), axis=0)

    def list_of(self, *sizes: str) -> str:
        return self.node("Concat", *(self.node("Unsqueeze", one, self.constant([0])) for one in sizes), axis=0)

    def linear(self, x: str, rows: int, columns: int) -> str:
        return self.node("Add", self.weight(columns), self.node("MatMul", x, self.weight(rows, columns)))

    def normalized(self, x: str) -> str:
        apart = self.node("Sub", x, self.node("ReduceMean", x, axes=[-1]))
        square = self.node("ReduceMean", self.node("Pow", apart, self.constant(2, np.float32)), axes=[-1])
        root = self.node("Sqrt", self.node("Add", square, self.constant(1e-12, np.float32)))
        scaled = self.node("Mul", self.node("Div", apart, root), self.constant(np.ones(SIZE), np.float32))
        return self.node("Add", scaled, self.constant(np.zeros(SIZE), np.float32))

    def positions(self, tokens: str) -> str:
        """Slice of a table by the number of tokens."""
        end = self.node("Unsqueeze", self.size(tokens, 1), self.constant([0]))
        table, one, axis = self.constant(np.arange(LONGEST)[None]), self.constant([1]), self.constant([1])
        rows = self.node("Slice", table, self.constant([0]), end, axis, one)
        return self.node("Gather", self.weight(LONGEST, SIZE, scale=1), rows)

    def distances(self, tokens: str) -> str:
        """DeBERTa: query - key from two Ranges, expanded to every head."""
        zero, one, size = self.constant(0), self.constant(1), self.size(tokens, 1)
        row = self.node("Range", zero, size, one)
        apart = self.node("Sub", self.node("Unsqueeze", row, self.constant([1])),
                          self.node("Unsqueeze", row, self.constant([0])))  # fmt: skip
        near = self.node("Abs", apart)
        shape = self.list_of(self.size(tokens, 0), self.constant(HEADS), size, size)
        return self.node("Expand", self.node("Unsqueeze", near, self.constant([0, 1])), shape)

    def mask(self, tokens: str, mask: str) -> str:
        """Expand to a shape of which Where chooses the dimensions, -1 for those that stay."""
        wide = self.node("Unsqueeze", self.node("Unsqueeze", mask, self.constant([1])), self.constant([2]))
        size = self.size(tokens, 1)
        asked = self.list_of(self.size(tokens, 0), self.constant(1), size, self.constant(-1))
        ones = self.node(
            "ConstantOfShape", self.constant([4]), value=helper.make_tensor("v", TensorProto.INT64, [1], [1])
        )
        stays = self.node("Equal", asked, self.node("Mul", ones, self.constant(-1)))
        open_mask = self.node("Expand", wide, self.node("Where", stays, ones, asked))
        number = self.node("Sub", self.constant(1, np.float32), self.node("Cast", open_mask, to=TensorProto.FLOAT))
        return self.node("Mul", number, self.constant(np.finfo(np.float32).min, np.float32))

    def heads_of(self, x: str) -> str:
        shape = self.list_of(self.size(x, 0), self.size(x, 1), self.constant(HEADS), self.constant(SIZE // HEADS))
        return self.node("Transpose", self.node("Reshape", x, shape), perm=[0, 2, 1, 3])

    def attention(self, x: str, tokens: str, mask: str) -> str:
        query, key, value = (self.heads_of(self.linear(x, SIZE, SIZE)) for _ in range(3))
        scores = self.node("MatMul", query, self.node("Transpose", key, perm=[0, 1, 3, 2]))
        scores = self.node("Div", scores, self.constant(np.sqrt(SIZE / HEADS), np.float32))
        by_distance = self.node("MatMul", query, self.weight(SIZE // HEADS, LONGEST))
        scores = self.node("Add", scores, self.node("GatherElements", by_distance, self.distances(tokens), axis=-1))
        scores = self.node("Softmax", self.node("Add", scores, self.mask(tokens, mask)), axis=-1)
        mixed = self.node("Transpose", self.node("MatMul", scores, value), perm=[0, 2, 1, 3])
        shape = self.list_of(self.size(mixed, 0), self.size(mixed, 1), self.constant(SIZE))
        return self.linear(self.node("Reshape", mixed, shape), SIZE, SIZE)

    def model(self) -> onnx.ModelProto:
        words = self.node("Gather", self.weight(WORDS, SIZE, scale=1), "input_ids")
        x = self.normalized(self.node("Add", words, self.positions("input_ids")))
        x = self.normalized(self.node("Add", self.attention(x, "input_ids", "attention_mask"), x))
        inner = self.linear(x, SIZE, 2 * SIZE)
        erf = self.node("Erf", self.node("Div", inner, self.constant(np.sqrt(2), np.float32)))
        gelu = self.node("Mul", self.node("Mul", inner, self.node("Add", erf, self.constant(1, np.float32))),
                         self.constant(0.5, np.float32))  # fmt: skip
        x = self.normalized(self.node("Add", self.linear(gelu, 2 * SIZE, SIZE), x))
        self.nodes.append(helper.make_node("Identity", [x], ["y"], "/layer/y"))
        inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "seq"])
                  for name in ("input_ids", "attention_mask")]  # fmt: skip
        output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "seq", SIZE])
        graph = helper.make_graph(self.nodes, "encoder", inputs, [output], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


PRODUCTS_OF_ENCODER = 9


def feeds(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    mask = np.ones((1, TOKENS), np.int64)
    mask[0, TOKENS - seed % 4 :] = 0
    return {"input_ids": random.integers(0, WORDS, (1, TOKENS)), "attention_mask": mask}


@pytest.fixture(scope="module")
def exported() -> onnx.ModelProto:
    return Encoder().model()


def bound(proto: onnx.ModelProto) -> OnnxModel:
    open_shapes = {value.dim_param for one in proto.graph.input for value in one.type.tensor_type.shape.dim} - {""}
    shapes = {name: SHAPES[name] for name in open_shapes}
    return prepare(onnx.ModelProto.FromString(proto.SerializeToString()), "m", shapes)


def types_of(compiled: Compiled) -> list[set[str]]:
    tensors = compiled.graph.tensors
    layers = [layer for layer in compiled.graph.layers if layer.op_type in (*PRODUCTS, "ATTN_T")]
    return [{tensors[name].dtype.name for name in layer.inputs[:2]} for layer in layers]


def signal_to_noise(want: list[Any], got: list[Any]) -> float:
    """In dB, of several runs."""
    noise = sum(float(((a - b).astype(np.float64) ** 2).sum()) for a, b in zip(want, got, strict=True))
    return 10 * np.log10(sum(float((a.astype(np.float64) ** 2).sum()) for a in want) / max(noise, 1e-30))


def test_every_tensor_has_type_and_shape(exported: onnx.ModelProto) -> None:
    model = bound(exported)
    assert [name for node in model.graph.node for name in node.output if name not in model.info] == []
    made = onnx.ModelProto.FromString(exported.SerializeToString())
    names = [name for node in made.graph.node for name in node.output if name != "y"]
    made.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    for name, values in by_onnxruntime(made, feeds(1)).items():
        assert model.info[name].shape == values.shape, name
        assert helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(model.info[name].type)) == values.dtype


def test_every_product_is_converted(exported: onnx.ModelProto) -> None:
    compiled = compile_model(bound(exported), Target(), precision="int8", samples=[feeds(seed) for seed in range(4)])
    assert len(types_of(compiled)) == PRODUCTS_OF_ENCODER and all(
        kinds <= {"INT8", "UINT8"} for kinds in types_of(compiled)
    )
    assert compiled.float_products == {}
    outputs, codes = ia.observed(compiled, NpuConfig(), feeds(5))
    checks = compare(compiled, outputs, feeds(5), codes)
    assert checks.outputs["y"]["ok"] and checks.codes["ok"]


class Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self._samples: Iterator[Any] = iter([feeds(seed) for seed in range(4)])

    def get_next(self) -> Any:
        return next(self._samples, None)


@pytest.mark.parametrize("per_channel", [False, True])
def test_static_quantization_of_onnxruntime(exported: onnx.ModelProto, per_channel: bool, tmp_path: Path) -> None:
    """As it ships: every product in INT8, and the outputs of onnxruntime. Our own quantization of the same float model
    is no worse than 1 dB below."""
    onnx.save(exported, tmp_path / "m.onnx")
    logging.disable(logging.WARNING)
    kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    quantize_static(tmp_path / "m.onnx", tmp_path / "q.onnx", Reader(), per_channel=per_channel, **kinds)
    logging.disable(logging.NOTSET)
    shipped, tests = onnx.load(tmp_path / "q.onnx"), [feeds(seed) for seed in range(10, 18)]
    compiled = compile_model(bound(shipped), Target())
    assert len(types_of(compiled)) == PRODUCTS_OF_ENCODER and all(
        kinds <= {"INT8", "UINT8"} for kinds in types_of(compiled)
    )
    assert compiled.float_products == {}
    theirs = [by_onnxruntime(shipped, one)["y"] for one in tests]
    ours = [execute(compiled, NpuConfig(), one)["y"] for one in tests]
    want = [by_onnxruntime(exported, one)["y"] for one in tests]
    assert signal_to_noise(theirs, ours) > signal_to_noise(want, theirs) + 6  # ties between codes
    converted = compile_model(bound(exported), Target(), precision="int8", samples=[feeds(seed) for seed in range(4)])
    own = [execute(converted, NpuConfig(), one)["y"] for one in tests]
    assert signal_to_noise(want, own) > signal_to_noise(want, theirs) - 1


def test_operands_of_every_kind_are_converted() -> None:
    """An operand that is an output of the model too, weights that nodes make of constants, with a scale for each
    channel, and a constant first operand."""
    random = np.random.default_rng(2)
    channels = np.float32(10.0) ** -np.arange(6, dtype=np.float32)[:, None]
    constants = {"w": random.standard_normal((6, 6)), "v": random.standard_normal((6, 6)) * channels,
                 "first": random.standard_normal((4, 3))}  # fmt: skip
    tensors = [numpy_helper.from_array(values.astype(np.float32), name) for name, values in constants.items()]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Transpose", ["v"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["a", "turned"], ["b"]),
        helper.make_node("MatMul", ["first", "b"], ["y"]),
    ]
    values = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 6])]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "aby"]
    graph = helper.make_graph(nodes, "g", values, outputs, tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    samples = [{"x": random.standard_normal((3, 6)).astype(np.float32)} for _ in range(4)]
    compiled = compile_model(bound(proto), Target(), precision="int8", samples=samples)
    assert types_of(compiled) == [{"INT8"}] * 3 and compiled.float_products == {}
    outputs_of, codes = ia.observed(compiled, NpuConfig(), samples[0])
    assert all(one["ok"] for one in compare(compiled, outputs_of, samples[0], codes).outputs.values())
    want = by_onnxruntime(proto, samples[0])
    error = np.abs(outputs_of["b"] - want["b"]).max(axis=0) / np.abs(want["b"]).max(axis=0)
    assert error.max() < 0.05  # the smallest channel has 1e-5 of the largest


def layers_of(nodes: Any, inputs: Any, tensors: Any, **how: Any) -> Compiled:
    """A model compiled, whose outputs at IA are those of onnx.reference."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    graph = helper.make_graph(nodes, "g", values, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
                              [numpy_helper.from_array(one, name) for name, one in tensors.items()])  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    random = np.random.default_rng(4)
    samples = [{name: random.standard_normal(shape).astype(np.float32) for name, shape in inputs.items()} for _ in "ab"]
    compiled = compile_model(bound(proto), Target(), samples=samples, **how)
    outputs, codes = ia.observed(compiled, NpuConfig(), samples[0])
    assert compare(compiled, outputs, samples[0], codes).outputs["y"]["ok"]
    return compiled


def test_codes_are_moved_and_joined() -> None:
    """QuantizeLinear behind Concat and Transpose becomes the end of the products before them, with one scale."""
    weights = np.random.default_rng(5).standard_normal((3, 6, 6)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["p"]),
        helper.make_node("MatMul", ["x", "b"], ["q"]),
        helper.make_node("Concat", ["p", "q"], ["r"], axis=0),
        helper.make_node("Transpose", ["r"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["c", "t"], ["y"]),
    ]
    compiled = layers_of(nodes, {"x": (4, 6)}, dict(zip("abc", weights, strict=True)), precision="int8")
    tensors = compiled.graph.tensors
    products = [layer for layer in compiled.graph.layers if layer.op_type in PRODUCTS]
    assert [tensors[layer.outputs[0]].dtype.name for layer in products] == ["INT8", "INT8", "FP32"]
    functions = [layer.text("function") for layer in compiled.graph.layers]
    assert functions.count("QUANT") == 1 and "DEQUANT" not in functions  # the input of the model


def test_casts_to_the_same_type_hide_no_pattern() -> None:
    scale, offset, epsilon = np.full(8, 2, np.float32), np.ones(8, np.float32), np.float32(1e-5)
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["f"], ["m"], axes=[-1]),
        helper.make_node("Sub", ["f", "m"], ["d"]),
        helper.make_node("Pow", ["d", "two"], ["s"]),
        helper.make_node("ReduceMean", ["s"], ["v"], axes=[-1]),
        helper.make_node("Add", ["v", "epsilon"], ["e"]),
        helper.make_node("Sqrt", ["e"], ["r"]),
        helper.make_node("Div", ["d", "r"], ["n"]),
        helper.make_node("Cast", ["n"], ["h"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["h", "scale"], ["p"]),
        helper.make_node("Add", ["p", "offset"], ["y"]),
    ]
    tensors = {"two": np.float32(2), "epsilon": epsilon, "scale": scale, "offset": offset}
    assert [layer.op_type for layer in layers_of(nodes, {"x": (3, 8)}, tensors).graph.layers] == ["LAYERNORM"]


@pytest.mark.parametrize(("bend", "op_type"), [(0, "COPY"), (1, "GATHER")])
def test_relative_positions_are_copies(bend: int, op_type: str) -> None:
    """Constant indices with one step along each dimension; with another at one place they are looked up."""
    places = np.arange(5)[:, None] - np.arange(5) + 5
    places[4, 4] -= bend
    nodes = [helper.make_node("GatherElements", ["x", "places"], ["y"], axis=-1)]
    tensors = {"places": np.broadcast_to(places, (2, 3, 5, 5)).copy()}
    assert [layer.op_type for layer in layers_of(nodes, {"x": (2, 3, 5, 12)}, tensors).graph.layers] == [op_type]


def mixed(folder: Path) -> Path:
    """Products that INT8 reaches, and such that it does not."""
    random = np.random.default_rng(1)
    constants = {"w": (6, 6), "v": (6, 6), "lw": (1, 16, 6), "lr": (1, 16, 4)}
    tensors = [numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)
               for name, shape in constants.items()]  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "plain"),
        helper.make_node("Gemm", ["a", "v"], ["b"], "half", alpha=0.5),
        helper.make_node("Cast", ["b"], ["c"], "narrow", to=TensorProto.FLOAT16),
        helper.make_node("Transpose", ["c"], ["d"], "turn", perm=[1, 0]),
        helper.make_node("MatMul", ["c", "d"], ["e"], "gram"),
        helper.make_node("Unsqueeze", ["b", "axis"], ["s"], "steps"),
        helper.make_node("LSTM", ["s", "lw", "lr"], ["y"], "memory", hidden_size=4),
    ]  # fmt: skip
    tensors.append(numpy_helper.from_array(np.array([1]), "axis"))
    values = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 6])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
               helper.make_tensor_value_info("e", TensorProto.FLOAT16, None)]  # fmt: skip
    graph = helper.make_graph(nodes, "g", values, outputs, tensors)
    path = folder / "mixed.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_layers_that_stay_floats_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["run", str(mixed(tmp_path)), "--precision", "int8", "--sim-level", "IA_TIMING"]
    found = []
    for more in ([], ["--timing-only"]):
        assert main([*line, *more, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["model"]["precision"])
        assert main([*line, *more]) == 0
        text = capsys.readouterr().out
        assert "half: attribute alpha=0.5: products of codes have 1" in text
        assert "gram: c is FLOAT16: only products of FLOAT are converted" in text
    assert found[0] == found[1]
    named = {name.partition("/")[0]: reason for name, reason in found[0]["floats"].items()}
    assert named.keys() == {"half", "gram", "memory"}
    assert named["memory"] == "part of LSTM: converted are Conv, Gemm, MatMul"


def test_operands_that_are_not_quantized_are_named() -> None:
    """A model that ships with codes for one operand of a product."""
    tensors = [numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"), numpy_helper.from_array(np.float32(0.1), "s"),
               numpy_helper.from_array(np.int8(0), "z")]  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("MatMul", ["d", "w"], ["y"], "product"),
        helper.make_node("MatMul", ["x", "w"], ["p"], "other"),
    ]
    values = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4])]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "yp"]
    graph = helper.make_graph(nodes, "g", values, outputs, tensors)
    made = prepare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "m")
    reasons = precision(compile_model(made, Target()))["floats"]
    assert reasons == {"product": "w has no codes with constant scales and one zero point"}
