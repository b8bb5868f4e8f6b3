"""--precision fp8: codes and scales against ml_dtypes and onnx.reference, and models that are in fp8 themselves."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from model_runs import execute
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from npu_device.abi.opcodes import DataType
from npu_device.config import NpuConfig
from pyv_npu.cli import main
from pyv_npu.workloads import ia
from pyv_npu.workloads.checks import check_codes, compare
from pyv_npu.workloads.data import random_inputs, samples
from toolchain.codegen import Target
from toolchain.compiler import Compiled, compile_model
from toolchain.examples import EXAMPLES
from toolchain.onnx_model.model import prepare
from toolchain.quantize.post_training import without_batchnorm
from toolchain.quantize.precision import FP8

KINDS = {"fp8": ml_dtypes.float8_e4m3fn, "fp8_e5m2": ml_dtypes.float8_e5m2}
LARGEST = {"fp8": 448.0, "fp8_e5m2": 57344.0}
"""OCP 8-bit Floating Point Specification, revision 1.0, table 1."""


def compiled(name: str, precision: str) -> Compiled:
    model = prepare(EXAMPLES[name](), name)
    return compile_model(model, Target(), precision=precision, samples=samples(model, (), 1))


@pytest.mark.parametrize("precision", KINDS)
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_weights_have_a_scale_per_channel_and_the_codes_of_ml_dtypes(name: str, precision: str) -> None:
    """Each output channel by itself: its largest value is the largest of the type, the others are rounded once."""
    made = prepare(EXAMPLES[name](), name)
    original = without_batchnorm(made)
    floats = {one.name: numpy_helper.to_array(one) for one in original.graph.initializer}
    proto = compile_model(made, Target(), precision=precision, samples=samples(made, (), 1)).model.proto
    constants = {one.name: numpy_helper.to_array(one) for one in proto.graph.initializer}
    readers = {node.output[0]: node for node in proto.graph.node}
    checked = 0
    for node in proto.graph.node:
        source = readers.get(node.input[1]) if node.op_type in ("Conv", "Gemm", "MatMul") else None
        if source is None or source.input[0] not in constants:
            continue
        codes, scales = (constants[one] for one in source.input)
        axis = next(one.i for one in source.attribute if one.name == "axis")
        before = floats[next(one for one in original.graph.node if one.output[0] == node.output[0]).input[1]]
        for channel in range(codes.shape[axis]):
            own, got = np.take(before, channel, axis), np.take(codes, channel, axis)
            scale = np.float32(np.abs(own).max() / LARGEST[precision])
            assert scales[channel] == pytest.approx(scale, rel=1e-6)
            assert got.dtype == KINDS[precision]
            assert np.array_equal(got, np.clip(own / scales[channel], -LARGEST[precision], LARGEST[precision]).astype(
                KINDS[precision]))  # fmt: skip
        checked += 1
    assert checked >= 2


def coded(kind: int, scales: np.ndarray[Any, Any], **attributes: int) -> Any:
    """x through codes and back."""
    value = helper.make_tensor_value_info
    constants = [
        numpy_helper.from_array(scales.astype(np.float32), "s"),
        helper.make_tensor("z", kind, scales.shape, np.zeros(scales.size)),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **attributes),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], axis=1),
    ]
    graph = helper.make_graph(nodes, "g", [value("x", 1, [64, 8])], [value("y", 1, [64, 8])], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])


@pytest.mark.parametrize("kind", [TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2])
@pytest.mark.parametrize("scales", [np.array(0.37), np.geomspace(1e-6, 1e3, 8)])
def test_codes_are_those_of_onnx_bit_for_bit(kind: int, scales: np.ndarray[Any, Any]) -> None:
    """Over the whole range: numbers between two codes, below the smallest, beyond the largest, zeros."""
    proto = coded(kind, scales, axis=1, saturate=1)
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((64, 8)) * np.geomspace(1e-7, 1e8, 64)[:, None] * scales).astype(np.float32)
    x[0], x[1] = 0.0, -0.0
    model = compile_model(prepare(proto, "q"), Target())
    (y,) = execute(model, NpuConfig(), {"x": x}).values()
    (want,) = ReferenceEvaluator(proto).run(None, {"x": x})
    assert y.tobytes() == np.asarray(want).tobytes()


def test_what_the_device_does_not_do_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(coded(TensorProto.FLOAT8E5M2, np.array(1.0), saturate=0), tmp_path / "q.onnx")
    assert main(["run", str(tmp_path / "q.onnx")]) == 65
    assert "attribute saturate=0: supported is 1" in capsys.readouterr().err
    onnx.save(EXAMPLES["mlp"](), tmp_path / "m.onnx")
    (tmp_path / "c.yaml").write_text("qbits_weight_default: 4\n")
    words = ["run", str(tmp_path / "m.onnx"), "--precision", "fp8"]
    assert main([*words, "--qconfig", str(tmp_path / "c.yaml")]) == 65
    assert "--precision fp8 with QConfig weights: fp8 is their width; drop one" in capsys.readouterr().err
    onnx.save(EXAMPLES["mlp_int8"](), tmp_path / "i.onnx")
    assert main(["run", str(tmp_path / "i.onnx"), "--precision", "fp8"]) == 65
    assert "--precision fp8: the model is quantized already: drop the option" in capsys.readouterr().err
    onnx.save(EXAMPLES["decoder"](), tmp_path / "d.onnx")
    assert main(["run", str(tmp_path / "d.onnx"), "--precision", "fp8", "--generate", "1", "--prompt", "1"]) == 64
    assert "takes --passes, --granularity, --submit, --qconfig and --precision int8" in capsys.readouterr().err


@pytest.mark.parametrize("precision", KINDS)
def test_products_are_of_fp8_and_move_a_quarter_of_the_weights(precision: str) -> None:
    graph, wide = compiled("mlp", precision).graph, compile_model(prepare(EXAMPLES["mlp"](), "m"), Target()).graph
    products, before = ([la for la in one.layers if la.op_type == "GEMM_T"] for one in (graph, wide))
    assert {graph.tensors[name].dtype for la in products for name in la.inputs[:2]} == {FP8[precision]}
    sizes, full = (
        [one.tensors[la.inputs[1]].size for la in layers] for one, layers in ((graph, products), (wide, before))
    )
    assert full == [4 * size for size in sizes]
    assert all("scale" in la.text("epilogue") for la in products)
    assert {graph.tensors[la.outputs[0]].dtype for la in products} == {DataType.FP32}


@pytest.mark.parametrize("precision", KINDS)
def test_a_wrong_code_is_found(precision: str) -> None:
    """The check sees one code that is two steps off, and more than its share of single steps."""
    model = compiled("mlp", precision)
    inputs = random_inputs(model, 3)
    outputs, codes = ia.observed(model, NpuConfig(), inputs)
    assert compare(model, outputs, inputs, codes).codes["differ"] == 0
    name = next(iter(codes))
    exact = codes[name]
    bits = exact.view(np.uint8).copy()
    at = np.unravel_index(np.argmax(bits & 0x7F), bits.shape)
    bits[at] -= 2
    assert not check_codes([(bits.view(exact.dtype), exact)])["ok"]
    bits[at] += 1
    one = check_codes([(bits.view(exact.dtype), exact)])
    assert one["ok"] and (one["differ"], one["steps"]) == (1, 1)
