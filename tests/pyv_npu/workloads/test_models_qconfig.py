"""--qconfig: weights of 8, 4 and 2 bits, against onnx.reference with what their codes stand for."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from model_runs import execute, run_compiled
from onnx import TensorProto, helper, numpy_helper

from npu_device.config import NpuConfig
from pyv_npu import Simulator
from pyv_npu.cli import main
from pyv_npu.config import Config, with_values
from pyv_npu.config.yaml_file import load_qconfig
from pyv_npu.errors import BadInputError
from pyv_npu.workloads import ia
from pyv_npu.workloads.checks import compare, converted_error, precision
from pyv_npu.workloads.data import random_inputs
from pyv_npu.workloads.timing import run_commands
from toolchain.codegen import GRANULARITIES, Target
from toolchain.compiler import Compiled, compile_model
from toolchain.errors import ModelError
from toolchain.examples import EXAMPLES
from toolchain.onnx_model.model import prepare
from toolchain.quantize.qconfig import QConfig
from toolchain.quantize.scales import least_squares_scales


def compiled(name: str, config: QConfig, **options: str) -> Compiled:
    return compile_model(prepare(EXAMPLES[name](), name), Target(qconfig=config), **options)  # type: ignore[arg-type]


def write(folder: Path, text: str) -> Path:
    path = folder / "q.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ["", "fp16"])
@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("name", ["mlp", "cnn", "decoder"])
def test_narrow_weights_compute_what_their_codes_stand_for(name: str, bits: int, kind: str) -> None:
    model = compiled(name, QConfig(weight=bits), precision=kind)
    inputs = random_inputs(model, 2)
    outputs, codes = ia.observed(model, NpuConfig(), inputs)
    for check in compare(model, outputs, inputs, codes).outputs.values():
        assert check["ok"] and check["limit"] <= 2e-3, check
    assert f"{kind or 'fp32'} x int{bits}" in precision(model)["products"]
    assert all(error is not None and error > 1e-3 for error in converted_error(model, outputs, inputs).values())


def scaled_convolution() -> onnx.ModelProto:
    """A factor that becomes part of the weights; nodes have no names, and both products share a tensor."""
    random = np.random.default_rng(5)
    made = {"w": (4, 4, 3, 3), "f": (4, 1, 1), "b": (4,)}
    constants = [numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)
                 for name, shape in made.items()]  # fmt: skip
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1] * 4), helper.make_node("Mul", ["c", "f"], ["m"]),
             helper.make_node("Conv", ["m", "w"], ["y"])]  # fmt: skip
    return whole(nodes, {"x": (1, 4, 6, 6)}, ["y"], constants)


def normalized_convolution() -> onnx.ModelProto:
    random = np.random.default_rng(6)
    shapes = {"w": (4, 4, 1, 1), **dict.fromkeys(("scale", "offset", "mean", "variance"), (4,))}
    constants = [numpy_helper.from_array(random.uniform(0.5, 1.5, shape).astype(np.float32), name)
                 for name, shape in shapes.items()]  # fmt: skip
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Sigmoid", ["c"], ["s"]),
             helper.make_node("Conv", ["s", "w"], ["d"]),
             helper.make_node("BatchNormalization", ["d", "scale", "offset", "mean", "variance"], ["y"])]  # fmt: skip
    return whole(nodes, {"x": (1, 4, 5, 5)}, ["y"], constants)


def recurrent(operator: str, gates: int) -> onnx.ModelProto:
    random = np.random.default_rng(7)
    constants = [numpy_helper.from_array(random.uniform(-0.5, 0.5, shape).astype(np.float32), name)
                 for name, shape in {"w": (1, gates * 8, 6), "r": (1, gates * 8, 8)}.items()]  # fmt: skip
    nodes = [helper.make_node(operator, ["x", "w", "r"], ["y"], hidden_size=8)]
    return whole(nodes, {"x": (3, 1, 6)}, ["y"], constants)


def selected_boxes() -> onnx.ModelProto:
    """A product before a kernel on the core."""
    weights = numpy_helper.from_array(np.linspace(-1, 1, 48, dtype=np.float32).reshape(6, 8), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["r"]),
             helper.make_node("NonZero", ["r"], ["y"])]  # fmt: skip
    return whole(nodes, {"x": (3, 6)}, ["p", "y"], [weights])


def whole(nodes: Any, inputs: Any, outputs: Any, constants: Any) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    kinds = {"NonZero": TensorProto.INT64}
    made = {name: kinds.get(node.op_type, TensorProto.FLOAT) for node in nodes for name in node.output}
    results = [helper.make_tensor_value_info(name, made[name], None) for name in outputs]
    graph = helper.make_graph(nodes, "g", values, results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "mul": scaled_convolution, "batchnorm": normalized_convolution, "boxes": selected_boxes,
    **{name: partial(recurrent, name, gates) for name, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1))},
}  # fmt: skip


@pytest.mark.parametrize("passes", ["all", "-fusion,-batchnorm-folding"])
@pytest.mark.parametrize("name", MODELS)
def test_the_reference_has_the_weights_that_the_compiler_narrows(name: str, passes: str) -> None:
    model = compile_model(prepare(MODELS[name](), name), Target(qconfig=QConfig(weight=4)), passes=passes)
    inputs = random_inputs(model, 2)
    outputs, codes = ia.observed(model, NpuConfig(), inputs)
    for check in compare(model, outputs, inputs, codes).outputs.values():
        assert check["ok"] and check["error"] < 1e-6, check
    assert precision(model)["products"] == ["fp32 x int4"]
    changed = {key: values + np.float32(1e-3 * (values.dtype == np.float32)) for key, values in outputs.items()}
    assert not all(one["ok"] for one in compare(model, changed, inputs, codes).outputs.values())


def chained() -> onnx.ModelProto:
    """Products with rows that a group does not divide, transposed weights, bias, residual and an activation."""
    random = np.random.default_rng(9)
    shapes = {"w": (80, 48), "v": (80, 48), "b": (80,), "u": (80, 80)}
    constants = [numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)
                 for name, shape in shapes.items()]  # fmt: skip
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]),
             helper.make_node("Gemm", ["a", "v", "b"], ["g"], transB=1), helper.make_node("Relu", ["g"], ["r"]),
             helper.make_node("MatMul", ["r", "u"], ["m"]), helper.make_node("Add", ["m", "x"], ["y"])]  # fmt: skip
    return whole(nodes, {"x": (5, 80)}, ["y"], constants)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("kind", ["", "fp16"])
@pytest.mark.parametrize("group", [32, 64])
def test_groups_of_weights_compute_what_their_codes_stand_for(group: int, kind: str, granularity: str) -> None:
    target = Target(qconfig=QConfig(weight=4, group=group))
    model = compile_model(prepare(chained(), "m"), target, precision=kind, granularity=granularity)
    inputs = random_inputs(model, 2)
    outputs, codes = ia.observed(model, NpuConfig(), inputs)
    (check,) = compare(model, outputs, inputs, codes).outputs.values()
    assert check["ok"] and check["limit"] <= 2e-3
    (loss,) = converted_error(model, outputs, inputs).values()
    assert loss is not None and loss > 1e-3
    if not kind:
        result = run_compiled(with_values(Config(), {"npu.mode": "tight"}), model, inputs)
        assert result.correct and result.detail.outputs["y"].tobytes() == outputs["y"].tobytes()


def nearest(weights: np.ndarray, size: int) -> np.ndarray:
    """Weights rounded to 4 bits in blocks of rows whose scales reach their largest number, as MatMulNBits has them."""
    blocks = weights.astype(np.float64).reshape(-1, size, weights.shape[1])
    scales = np.abs(blocks).max(axis=1, keepdims=True) / 7
    return (np.rint(blocks / scales) * scales).reshape(weights.shape)


def test_smaller_groups_and_searched_scales_lose_less() -> None:
    """At each size less than rounding to the nearest does, with weights of which a few are large."""
    random = np.random.default_rng(1)
    weights = random.standard_t(4, (256, 96)).astype(np.float32)
    proto = whole([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (16, 256)}, ["y"],
                  [numpy_helper.from_array(weights, "w")])  # fmt: skip
    x = random.standard_normal((16, 256)).astype(np.float32)
    want = x.astype(np.float64) @ weights
    losses = []
    for group in (0, 128, 64, 32):
        model = compile_model(prepare(proto, "m"), Target(qconfig=QConfig(weight=4, group=group)))
        losses.append(float(np.square(execute(model, NpuConfig(), {"x": x})["y"] - want).sum()))
        assert losses[-1] < 0.95 * float(np.square(x @ nearest(weights, group or 256) - want).sum())
    assert losses == sorted(losses, reverse=True) and losses[0] > 1.5 * losses[-1]
    rows = weights.T.astype(np.float64)
    for top in (1, 7):
        largest = np.abs(rows).max(axis=1, keepdims=True) / top
        searched = least_squares_scales(rows, top)[:, None]
        errors = [np.square(np.clip(np.rint(rows / one), -top, top) * one - rows).sum() for one in (largest, searched)]
        assert errors[1] < 0.9 * errors[0]


@pytest.mark.parametrize("tokens", [4, 64])
def test_codes_in_blocks_are_kept_where_they_are_faster(tokens: int) -> None:
    """The sums of blocks go through DRAM: with many tokens that is more than the codes save."""
    random = np.random.default_rng(3)
    constants = [numpy_helper.from_array(random.integers(0, 256, (256, 8, 16)).astype(np.uint8), "codes"),
                 numpy_helper.from_array(random.random((256, 8)).astype(np.float32), "scales")]  # fmt: skip
    node = helper.make_node("MatMulNBits", ["x", "codes", "scales"], ["y"], domain="com.microsoft", K=256, N=256,
                            bits=4, block_size=32)  # fmt: skip
    proto = whole([node], {"x": (tokens, 256)}, ["y"], constants)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    cycles = [
        run_commands(compile_model(prepare(proto, "m"), Target(), passes=passes).commands, NpuConfig()).cycles
        for passes in ("all", "-quantization")
    ]
    assert cycles[0] < cycles[1] if tokens == 4 else cycles[0] == cycles[1]


@pytest.mark.parametrize(("bits", "gain"), [(4, 10), (2, 6)])
@pytest.mark.parametrize("group", [0, 32])
def test_gptq_rounds_for_the_activations(bits: int, gain: float, group: int) -> None:
    """Rows of 32 directions and some noise, as activations of transformers have few directions: dB of the product."""
    random = np.random.default_rng(1)
    weights, directions = random.standard_t(4, (256, 96)).astype(np.float32), random.standard_normal((32, 256))
    shown, x = (
        (random.standard_normal((rows, 32)) @ directions + 0.1 * random.standard_normal((rows, 256))).astype(np.float32)
        for rows in (256, 16)
    )
    proto = whole([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (16, 256)}, ["y"],
                  [numpy_helper.from_array(weights, "w")])  # fmt: skip
    want = x.astype(np.float64) @ weights
    samples = [{"x": rows} for rows in shown.reshape(16, 16, 256)]
    losses = []
    for rounding in ("nearest", "gptq"):
        target = Target(qconfig=QConfig(weight=bits, group=group, rounding=rounding))
        model = compile_model(prepare(proto, "m"), target, samples=samples)
        losses.append(float(np.square(execute(model, NpuConfig(), {"x": x})["y"] - want).sum()))
    assert 10 * np.log10(losses[0] / losses[1]) > gain


def test_gptq_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Random inputs where none are given; the outputs are those of the model with these codes."""
    path = tmp_path / "m.onnx"
    onnx.save(EXAMPLES["mlp"](), path)
    errors = []
    for rounding in ("nearest", "gptq"):
        config = write(tmp_path, f"{{qbits_weight_default: 2, rounding: {rounding}}}")
        options = ["--qconfig", str(config), "--sim-level", "IA", "--json"]
        assert main(["run", str(path), *options, *(["--calibration", "8"] if rounding == "gptq" else [])]) == 0
        model = json.loads(capsys.readouterr().out)["model"]
        assert model["checks"]["y"]["ok"]
        errors.append(model["original_error"]["y"])
    assert errors[1] < errors[0]
    assert main(["run", "llama2-7b", "--qconfig", str(config)]) == 65
    assert "QConfig rounding gptq: a built-in model has no weights: drop it" in capsys.readouterr().err


def test_gptq_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=":1: rounding: up: must be one of nearest, gptq"):
        load_qconfig(write(tmp_path, "rounding: up\n"))
    with pytest.raises(BadInputError, match="rounding: gptq: no weights have 4 or 2 bits: qbits_weight_default: 4"):
        load_qconfig(write(tmp_path, "{qbits_weight_default: 8, rounding: gptq}\n"))
    config = QConfig(weight=4, rounding="gptq")
    with pytest.raises(ModelError, match="QConfig rounding: gptq needs inputs, which this command has not"):
        compiled("mlp", config)
    with pytest.raises(ModelError, match="--precision int8 with QConfig rounding gptq: weights of floats only"):
        compiled("mlp", config, precision="int8")


def test_groups_that_cannot_be_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadInputError, match=":1: group_size: 48: must be one of 0, 32, 64, 128"):
        load_qconfig(write(tmp_path, "group_size: 48\n"))
    with pytest.raises(BadInputError, match="group_size: no weights have 8, 4 or 2 bits: qbits_weight_default: 4"):
        load_qconfig(write(tmp_path, "group_size: 32\n"))
    path = write(tmp_path, "{qbits_weight_default: 4, group_size: 32}\n")
    assert main(["run", "llama2-7b", "--qconfig", str(path)]) == 65
    assert "a built-in model has a scale for each channel" in capsys.readouterr().err
    with pytest.raises(ModelError, match="--precision int8 with QConfig group_size 32: sums of codes have one scale"):
        compiled("mlp", QConfig(weight=4, group=32), precision="int8")


def test_the_reference_goes_on_with_the_codes_of_activations() -> None:
    """Weights of a float product behind activations of codes, an image among them, which its layout swaps."""
    random = np.random.default_rng(8)
    constants = [numpy_helper.from_array(np.float32(0.05), "s"), numpy_helper.from_array(np.int8(0), "z"),
                 *(numpy_helper.from_array(random.standard_normal((4, 4, 1, 1)).astype(np.float32), name)
                   for name in ("w", "v"))]  # fmt: skip
    nodes = [helper.make_node("Conv", ["x", "v"], ["c"]), helper.make_node("QuantizeLinear", ["c", "s", "z"], ["q"]),
             helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
             helper.make_node("Conv", ["d", "w"], ["y"])]  # fmt: skip
    model = compile_model(prepare(whole(nodes, {"x": (1, 4, 9, 9)}, ["y"], constants), "m"), Target(
        qconfig=QConfig(weight=8)))  # fmt: skip
    inputs = random_inputs(model, 2)
    outputs, codes = ia.observed(model, NpuConfig(), inputs)
    checks = compare(model, outputs, inputs, codes)
    assert checks.outputs["y"]["ok"] and checks.codes["ok"] and checks.codes["elements"] == 4 * 81
    moved = {name: np.clip(values, -100, 100) + np.int8(1) for name, values in codes.items()}
    checks = compare(model, outputs, inputs, moved)
    assert not checks.outputs["y"]["ok"] and checks.codes["differ"] == 4 * 81


def test_layers_that_are_not_the_model_are_an_error() -> None:
    """The layers before they were narrowed are held against onnx.reference with the weights of the model."""
    one, other = (prepare(EXAMPLES["mlp"](), "mlp") for _ in range(2))
    bias = next(tensor for tensor in other.proto.graph.initializer if len(tensor.dims) == 1)
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + np.float32(0.1), bias.name))
    model = compile_model(one, Target(qconfig=QConfig(weight=8)))
    inputs = random_inputs(model, 2)
    outputs, codes = ia.observed(model, NpuConfig(), inputs)
    assert compare(model, outputs, inputs, codes).outputs["y"]["ok"]
    assert not compare(replace(model, model=other), outputs, inputs, codes).outputs["y"]["ok"]


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_without_folding_and_fusion_it_is_the_same(granularity: str) -> None:
    model = compiled("cnn", QConfig(weight=4), granularity=granularity, passes="-batchnorm-folding,-fusion")
    inputs = random_inputs(model, 2)
    outputs, codes = ia.observed(model, NpuConfig(), inputs)
    assert compare(model, outputs, inputs, codes).outputs["y"]["ok"]


def test_every_mode_gives_the_same() -> None:
    model = compiled("cnn", QConfig(weight=4))
    seen = set()
    for values in ({"run.sim_level": "IA"}, {"npu.mode": "loose"}, {"npu.mode": "tight"}):
        result = run_compiled(with_values(Config(), values), model)
        assert result.correct
        seen.add(result.detail.outputs["y"].tobytes())
    assert len(seen) == 1


def test_one_width_decides_bytes_and_rates(tmp_path: Path) -> None:
    """R9: with half the bits half of the bytes of weights move, and the engine takes half of the cycles (f_w)."""
    path = tmp_path / "gemm.onnx"
    onnx.save(EXAMPLES["gemm"](512, 512, 512), path)
    busy, sizes = {}, {}
    for bits in (8, 4, 2):
        qconfig = write(tmp_path, f"qbits_weight_default: {bits}\n")
        run = Simulator(path, level="L1", qconfig=qconfig, settings={"npu.te.count": 1, "npu.spm.port": 1 << 16})
        found = run.run()
        busy[bits] = round(found.utilization["te0"] * found.cycles)
        graph = run.compiled.graph
        sizes[bits] = graph.tensors[graph.layers[0].inputs[1]].size
    assert sizes == {8: 512 * 512, 4: 512 * 256, 2: 512 * 128}
    assert busy[8] == pytest.approx(2 * busy[4], rel=0.02) and busy[4] == pytest.approx(2 * busy[2], rel=0.02)


def test_the_documented_file_is_read(tmp_path: Path) -> None:
    config = load_qconfig(
        write(
            tmp_path,
            """
bitwidths:
  weight: [2, 4, 8]
  activation: [4, 8]
  kv: [4, 8]
packing:
  use_packed_int4: false
  use_packed_int2: false
alignment:
  default_alignment_bytes: 32
  weight_alignment_bytes: 64
  kv_alignment_bytes: 64
spm:
  bank_size_bytes: 262144
  num_banks: 8
qbits_kv_default: 4
override:
  layer_3: {kv: 4}
  layer_4:
    kv: 8
    head_2: {kv: 4}
  layer_5.head_0.kv: 8
""",
        )
    )
    assert [config.kv_bits(*one) for one in ((0, 0), (4, 0), (4, 2), (5, 0), (5, 1))] == [4, 8, 4, 8, 4]
    compiled("mlp", config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("qbits_weight: 4\n", ":1: qbits_weight: no such key; keys are qbits_weight_default, "),
        ("override:\n  layer_0:\n    timestep_1: {kv: 4}\n", ":3: override.layer_0.timestep_1.kv: no such override; "),
        ("layer_0.x: {kv: 4}\n", ":1: layer_0.x.kv: no such override; "),
        ("qbits_weight_default: 3\n", ":1: qbits_weight_default: 3 bits: must be one of 2, 4, 8, 16, 32"),
        ("spm: 4\n", ":1: spm: must be a table of keys and values"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(BadInputError) as caught:
        load_qconfig(path)
    assert str(caught.value).startswith(f"{path}{message}") and "\n" not in str(caught.value)


def test_the_command_line_takes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mlp.onnx"
    onnx.save(EXAMPLES["mlp"](), path)
    qconfig = write(tmp_path, "qbits_weight_default: 4\noverride: {layer_2.weight: 8}\n")
    assert main(["run", str(path), "--qconfig", str(qconfig), "--sim-level", "IA", "--json"]) == 0
    model = json.loads(capsys.readouterr().out)["model"]
    assert model["precision"]["products"] == ["fp32 x int4", "fp32 x int8"]
    assert model["original_error"]["y"] > model["checks"]["y"]["limit"] > model["checks"]["y"]["error"]
    write(tmp_path, "override: {layer_3.weight: 8}\n")
    assert main(["run", str(path), "--qconfig", str(qconfig)]) == 65
    assert "the model has 3 products with constant weights, layer_0 to layer_2" in capsys.readouterr().err
    assert main(["run", str(path), "--qconfig", str(qconfig), "--precision", "int8"]) == 65
    assert "the model has 3 products with constant weights" in capsys.readouterr().err
    assert main(["run", "hello", "--qconfig", str(qconfig)]) == 64
    assert "--qconfig: says how a model is compiled, and no ONNX model is named" in capsys.readouterr().err
