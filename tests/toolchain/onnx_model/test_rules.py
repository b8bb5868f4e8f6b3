"""What breaks the rules of ONNX is refused in one line, before anything is made of it. Each was found by fuzzing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from onnxruntime_reference import one_node, random

from pyv_npu.cli.shared.output import BAD_INPUT, exit_code_of_error
from pyv_npu.config import load as load_config
from pyv_npu.workloads.model import Model
from pyv_npu.workloads.model_file import Choices, inspect
from toolchain.onnx_nodes.evaluation import TensorInfo, infer_outputs

INT64 = TensorProto.INT64
IMAGE = np.ones((1, 1, 5, 5), np.float32)
BOXES, SCORES = np.zeros((1, 4, 4), np.float32), np.zeros((1, 1, 4), np.float32)


def relu(change: Callable[[Any], object]) -> Any:
    """A model of one node, changed."""
    model = one_node("Relu", {"x": IMAGE})
    change(model.graph)
    return model


def without_element_type(graph: Any) -> None:
    graph.input[0].type.tensor_type.elem_type = 0


def with_reference(graph: Any) -> None:
    graph.node[0].attribute.add(name="alpha", ref_attr_name="beta", type=1)


def of_two_lines(graph: Any) -> None:
    graph.node[0].name = "a\nb"
    graph.node[0].op_type = "Nothing"


def of_the_compiler(graph: Any) -> None:
    graph.node[0].domain = "pyv_npu.core"


def with_more_data_than_elements(graph: Any) -> None:
    graph.initializer.add(name="w", data_type=1, dims=[2], raw_data=bytes(12))


def with_invalid_function() -> Any:
    model = one_node("Relu", {"x": IMAGE})
    function = '<domain: "f", opset_import: ["" : 20]> F (a) => (b) { b = LayerNormalization <axis = 5> (c) }'
    model.functions.append(parser.parse_function(function))
    model.opset_import.append(helper.make_opsetid("f", 1))
    model.graph.node[0].CopyFrom(helper.make_node("F", ["x"], ["y"], domain="f"))
    return model


def not_utf8(model: Any, text: bytes, changed: bytes) -> bytes:
    return bytes(model.SerializeToString().replace(text, changed))


SLICE = """<ir_version: 8, opset_import: ["" : 20]>
g (float[4, 5] x) => (float[2, 5] y) <float[2] s = {0, 1}, int64[1] e = {3}> {
  n = Cast <to = 7> (s)
  y = Slice (x, n, e)
}"""


def frames_of(samples: int) -> Any:
    """Spectra of a signal, without the last one."""
    constants = {"step": np.array(160), "window": random(400)}
    model = one_node("STFT", {"x": random(1, samples)}, ("s",), constants=constants, order=["x", "step", "window"])
    last = numpy_helper.from_array(np.array([-1]), "last"), numpy_helper.from_array(np.array([1]), "axis")
    model.graph.initializer.extend([*last, numpy_helper.from_array(np.array([0]), "first")])
    model.graph.node.append(helper.make_node("Slice", ["s", "first", "last", "axis"], ["y"]))
    model.graph.output[0].name = "y"
    return model


MODELS: dict[str, tuple[Any, str]] = {
    "input without element type": (relu(without_element_type), "input x has no element type"),
    "attribute of a function outside of one": (relu(with_reference), "refers to beta, outside of a function"),
    "name of two lines": (relu(of_two_lines), "No Op registered for Nothing"),
    "domain of the compiler": (relu(of_the_compiler), "is that of the compiler"),
    "more data than elements": (relu(with_more_data_than_elements), "tensor w: cannot reshape array of size 3"),
    "function that reads nothing": (with_invalid_function(), "input 'c' of node"),
    "operator not UTF-8": (not_utf8(one_node("Relu", {"x": IMAGE}), b"Relu", b"Re\xffu"), "is not UTF-8"),
    "input not UTF-8": (
        not_utf8(one_node("Relu", {"image": IMAGE}), b"\n\x05image", b"\n\x05ima\xb0e"),
        "the name b'ima\\xb0e' is not UTF-8",
    ),
    "weights not UTF-8": (
        not_utf8(one_node("Add", {"x": IMAGE}, constants={"weights": random(5)}), b"weights", b"\xb0eights"),
        "the name b'\\xb0eights' is not UTF-8",
    ),
    "attribute not UTF-8": (
        not_utf8(one_node("Pad", {"x": IMAGE}, constants={"p": np.zeros(8, np.int64)}, mode="edge"), b"edge",
                 b"ed\xffe"),
        "attribute mode=ed",
    ),
    "axis of 33 bits, which ends the process in onnx": (
        one_node("LayerNormalization", {"x": IMAGE}, ("y", "m", "s"), constants={"w": random(5)}, axis=1 << 31),
        "attribute axis=2147483648: must be in",
    ),
    "more outputs than num_outputs, which ends the process in onnx": (
        one_node("Split", {"x": random(7)}, ("a", "b", "c", "d"), num_outputs=2),
        "attribute num_outputs=2: the node has 4",
    ),
    "TopK without k": (one_node("TopK", {"x": IMAGE}, ("v", "i"), kinds=[1, INT64]), "has input size 1 not in range"),
    "Compress of one input": (one_node("Compress", {"x": IMAGE}), "are not those of the operator"),
    "Scan without a body": (one_node("Scan", {"x": IMAGE}, num_scan_inputs=1), "Required attribute 'body' is missing"),
    "boxes of one dimension": (
        one_node("NonMaxSuppression", {"b": BOXES[0, 0], "s": SCORES}, kinds=[INT64]), "are not those of the operator",
    ),
    "boxes of two dimensions": (
        one_node("NonMaxSuppression", {"b": BOXES[0], "s": SCORES}, kinds=[INT64]), "are not those of the operator",
    ),
    "indices of two dimensions in three": (
        one_node("ScatterElements", {"x": random(3, 3, 4)},
                 constants={"i": np.zeros((2, 3), np.int64), "u": random(2, 3)}),
        "inputs of 3, 2, 2 dimensions: must have one number",
    ),
    "weights of five dimensions for four, 64 GiB": (
        one_node("Conv", {"x": IMAGE, "w": np.broadcast_to(np.float32(0), (32, 1, 3, 1 << 27, 4))},
                 kernel_shape=[3, 3]),
        "inputs of 4, 5 dimensions: must have one number",
    ),
    "more starts than ends": (
        parser.parse_model(SLICE),
        "2, 1, 2, 2 starts, ends, axes and steps: must be one number of each",
    ),
    "a constant without a value": (one_node("Constant", {}), "0 attributes: must be one, its value"),
    "indices of more dimensions than there are": (
        one_node("GatherND", {"x": random(2, 3)}, constants={"i": np.zeros((2, 3), np.int64)}), "Last dimension of",
    ),
    "padding of outputs beside SAME": (
        one_node("ConvTranspose", {"x": IMAGE}, constants={"w": random(1, 1, 3, 3)}, auto_pad="SAME_UPPER",
                 output_padding=[1, 1], strides=[2, 2]),
        "onnx and onnxruntime disagree on the shape",
    ),
    "weights of another width than the input": (
        one_node("RNN", {"x": random(3, 1, 4)}, constants={"w": random(1, 5, 7), "r": random(1, 5, 5)}, hidden_size=5),
        "input 1 (w) has shape [1, 5, 7]: 4 features of x and 5 of the state ask for [1, 5, 4]",
    ),
    "a state of another batch": (
        one_node("GRU", {"x": random(3, 2, 4)}, order=["x", "w", "r", "", "", "h"], hidden_size=5,
                 constants={"w": random(1, 15, 4), "r": random(1, 15, 5), "h": random(1, 1, 5)}),
        "input 5 (h) has shape [1, 1, 5]: 4 features of x and 5 of the state ask for [1, 2, 5]",
    ),
    "signal shorter than a frame, which ends the process in onnx behind it": (
        frames_of(1), "node n (STFT): the signal is shorter than a frame",
    ),
    "limits of several numbers": (
        one_node("Clip", {"x": random(2)}, constants={"low": random(2)}), "min has shape [2]: must be one number",
    ),
    "windows of 16 GiB": (
        one_node("MaxPool", {"x": IMAGE}, kernel_shape=[3, 3], pads=[1 << 15] * 4), "a tensor that the run writes has",
    ),
    "windows of 3.6 billion taps": (
        one_node("MaxPool", {"x": IMAGE}, ("y", "i"), kernel_shape=[50_000] * 2, pads=[49_999] * 4, strides=[9_999] * 2,
                 kinds=[1, INT64]),
        "becomes more than 20000 nodes",
    ),
    "a diagonal of 3 x 2^40": (
        one_node("EyeLike", {"x": np.broadcast_to(np.int32(0), (3, 1 << 40))}, kinds=[6]),
        "would be a constant of shape",
    ),
    "a matrix of 2^36 elements": (
        one_node("Resize", {"x": random(1, 1, 1, 1 << 15)}, constants={"s": np.float32([1, 1, 1, 64])}, mode="linear",
                 order=["x", "", "s"]),
        "needs a constant of shape [2097152, 32768]",
    ),
    "a border of 2^27 elements": (
        one_node("Conv", {"x": IMAGE, "w": np.broadcast_to(np.float32(0), (1, 1, 3, 1 << 27))}, kernel_shape=[3, 3],
                 pads=[1] * 4),
        "needs a constant of shape [134217",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_broken_rule_is_one_line(name: str, tmp_path: Path) -> None:
    model, text = MODELS[name]
    path = tmp_path / "m.onnx"
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    found = refusal(path)
    assert text in found and "\n" not in found


@pytest.mark.parametrize("operator", ["Compress", "GatherND"])
def test_nothing_follows_from_an_operator_without_its_operands(operator: str) -> None:
    node = helper.make_node(operator, ["x"], ["y"], domain="f")
    assert infer_outputs(node, {"x": TensorInfo("FLOAT", (2,))}, {}, [helper.make_opsetid("f", 1)]) == {}


def refusal(path: Path) -> str:
    try:
        return inspect(load_config([], None, {}).config, path, Choices()).refusal
    except Exception as error:
        assert exit_code_of_error(error) == BAD_INPUT
        return str(error)


def test_codes_of_16_bits_are_compared(tmp_path: Path) -> None:
    """INT16, which is INT32 on the device, goes back into the reference as INT16."""
    model = one_node("QuantizeLinear", {"x": random(3, 4)}, ("q",), opset=21, kinds=[TensorProto.INT16],
                     constants={"s": np.float32(0.01), "z": np.int16(5)})  # fmt: skip
    model.graph.node.append(helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], "d"))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, [3, 4]))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    config = load_config([], None, {"run.sim_level": "IA"}).config
    assert Model(path).prepare(config).run(config).detail.checks.outputs["y"]["ok"]
