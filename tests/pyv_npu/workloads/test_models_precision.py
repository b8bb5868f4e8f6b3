"""--precision: explicit conversion, against the reference of the original model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from model_runs import execute, run_compiled
from onnx import numpy_helper, parser
from onnxruntime_reference import by_onnxruntime

from npu_device.abi.opcodes import DataType
from npu_device.config import NpuConfig
from pyv_npu.cli import main
from pyv_npu.config import Config, with_values
from pyv_npu.simulator import Simulator
from pyv_npu.workloads import ia
from pyv_npu.workloads.checks import compare, converted_error
from pyv_npu.workloads.data import random_inputs, samples
from toolchain.codegen import Target
from toolchain.compiler import Compiled, compile_model
from toolchain.errors import ModelError
from toolchain.examples import EXAMPLES
from toolchain.ir.operations import PRODUCTS
from toolchain.onnx_frontend import import_model
from toolchain.onnx_model.model import prepare
from toolchain.passes import run_passes
from toolchain.quantize.precision import CALIBRATED, FP8, PRECISIONS, cast

SMALL = ["mlp", "cnn", "decoder"]
TYPES = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "e4m3fn", "fp8_e4m3fn": "e4m3fn", "fp8_e5m2": "e5m2"}
WORST = {"mlp": 0.03, "cnn": 0.05, "decoder": 0.1}
"""What int8 may cost on random weights: several steps of 1/127; fp8 four times as much: 1/16 and 1/8 of a value."""


def compiled(name: str, precision: str) -> Compiled:
    model = prepare(EXAMPLES[name](), name)
    made = samples(model, (), 1) if precision in CALIBRATED else ()
    return compile_model(model, Target(), precision=precision, samples=made)


def kinds(model: Compiled) -> set[str]:
    """Types of the factors of products."""
    graph = model.graph
    return {graph.tensors[n].dtype.name.lower() for la in graph.layers if la.op_type in PRODUCTS for n in la.inputs[:2]}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", SMALL)
def test_a_converted_model_is_near_the_original(name: str, precision: str) -> None:
    model = compiled(name, precision)
    inputs = random_inputs(model, 3)
    outputs, codes = ia.observed(model, NpuConfig(), inputs)
    for key, check in compare(model, outputs, inputs, codes).outputs.items():
        assert check["ok"], (key, check)
        assert outputs[key].dtype == np.float32, "inputs and outputs keep their types"
    assert kinds(model) <= ({"int8", "uint8"} if precision == "int8" else {TYPES[precision]})
    for error in converted_error(model, outputs, inputs).values():
        assert error is not None and 1e-5 < error < WORST[name] * (4 if precision in FP8 else 1)


@pytest.mark.parametrize("precision", ["fp16", "int8", "fp8", "fp8_e5m2"])
def test_every_level_and_mode_gives_the_same(precision: str) -> None:
    model = compiled("cnn", precision)
    seen = set()
    for values in (
        {"run.sim_level": "IA"},
        {"run.sim_level": "IA_TIMING"},
        {"npu.mode": "loose"},
        {"npu.mode": "tight"},
    ):
        result = run_compiled(with_values(Config(), values), model)
        assert result.correct
        seen.add(result.detail.outputs["y"].tobytes())
    assert len(seen) == 1


def test_int8_leaves_no_float_step_between_products() -> None:
    """What is quantized at the input stays so through pooling and flattening; only the end is float."""
    graph = compiled("cnn", "int8").graph
    steps = [layer.text("function") for layer in graph.layers if layer.op_type == "ELTWISE"]
    assert steps == ["QUANT"]
    assert {graph.tensors[layer.outputs[0]].dtype for layer in graph.layers[:-1]} <= {DataType.INT8, DataType.UINT8}


RESIZED = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1, 8, 6, 10] x) => (float[1, 8, 12, 20] y) <float[4] s = {1, 1, 2, 2}> {
  a = Conv (x, w)
  b = Resize <mode = "MODE", coordinate_transformation_mode = "pytorch_half_pixel"> (a, , s)
  y = Conv (b, v)
}"""


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_a_resize_between_products_is_products_of_codes(mode: str) -> None:
    proto, draw = parser.parse_model(RESIZED.replace("MODE", mode)), np.random.default_rng(1)
    weights = {name: draw.standard_normal((8, 8, 1, 1)).astype(np.float32) for name in "wv"}
    proto.graph.initializer.extend(numpy_helper.from_array(values, name) for name, values in weights.items())
    inputs = [{"x": draw.standard_normal((1, 8, 6, 10)).astype(np.float32)} for _ in range(4)]
    made = compile_model(prepare(proto, "m"), Target(), precision="int8", samples=inputs[1:])
    kinds = [made.graph.tensors[layer.inputs[0]].dtype for layer in made.graph.layers if layer.op_type in PRODUCTS]
    assert kinds.count(DataType.FP32) == 0 and len(kinds) == 4
    want, got = by_onnxruntime(proto, inputs[0])["y"], execute(made, NpuConfig(), inputs[0])["y"]
    assert 10 * np.log10((want**2).sum() / ((want - got) ** 2).sum()) > 30


def test_residuals_of_convolutions_are_in_their_epilogues() -> None:
    model = compile_model(prepare(EXAMPLES["resnet18_int8"](size=32), "r"), Target())
    operations = [layer.op_type for layer in model.graph.layers]
    assert operations.count("CONV2D_T") == 20 and len(operations) < 30
    assert sum("residual" in layer.text("epilogue") for layer in model.graph.layers) == 8


def test_residuals_of_a_decoder_stay_float() -> None:
    functions = [layer.text("function") for layer in compiled("decoder", "int8").graph.layers]
    assert functions.count("ADD") == 3 and functions.count("QUANT") > 3 and "DEQUANT" not in functions


def test_weights_of_int8_take_a_quarter() -> None:
    sizes = {}
    for precision in ("fp32", "int8"):
        graph = compiled("mlp", precision).graph
        sizes[precision] = [graph.tensors[la.inputs[1]].size for la in graph.layers if la.op_type in PRODUCTS]
    assert sizes["fp32"] == [4 * size for size in sizes["int8"]]


def test_a_cast_keeps_what_is_finite_finite_and_names_the_ends() -> None:
    graph = run_passes(import_model(prepare(EXAMPLES["decoder"](), "d")), [], Target())
    narrow = cast(graph, "fp16")
    assert [layer.id for layer in (narrow.layers[0], narrow.layers[-1])] == ["x.fp16.cast", "y.cast"]
    assert narrow.tensors["x"].dtype is DataType.FP32 and narrow.tensors["x.fp16"].dtype is DataType.FP16
    assert all(np.isfinite(values.astype(np.float64)).all() for values in narrow.constants.values())
    assert cast(graph, "fp32").layers == graph.layers


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_quantized_model_has_its_precision(precision: str) -> None:
    with pytest.raises(
        ModelError, match=f"--precision {precision}: layer .* has a scale, the model is quantized: drop"
    ):
        compiled("mlp_qdq", precision)


def test_int8_needs_float_products() -> None:
    with pytest.raises(ModelError, match="--precision int8: no product of floats to quantize: drop the option"):
        compiled("gemm", "int8")


def save(folder: Path, name: str) -> str:
    path = folder / f"{name}.onnx"
    onnx.save(EXAMPLES[name](), path)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["run", *arguments, "--sim-level", "IA", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["model"]


def test_the_run_says_which_precision_it_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path, "mlp")
    assert run(capsys, path)["precision"] == {"converted": None, "products": ["fp32"], "floats": {}}
    half = run(capsys, path, "--precision", "fp16")
    assert half["precision"] == {"converted": "fp16", "products": ["fp16"], "floats": {}}
    assert half["checks"]["y"]["limit"] == 2e-3 and 1e-5 < half["checks"]["y"]["error"] < 2e-3
    assert run(capsys, path, "--precision", "bf16")["checks"]["y"]["limit"] == 2e-2
    byte = run(capsys, path, "--precision", "int8")
    assert byte["precision"] == {"converted": "int8", "products": ["int8", "uint8 x int8"], "floats": {}}
    assert byte["original_error"]["y"] > 1e-3
    assert main(["run", path, "--sim-level", "IA", "--precision", "int8"]) == 0
    text = capsys.readouterr().out
    assert "int8, converted: int8, uint8 x int8" in text and "against the model before it was quantized" in text


def test_calibration_takes_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ranges ten times too wide cost precision."""
    path, wide = save(tmp_path, "mlp"), tmp_path / "wide.npz"
    np.savez(wide, x=np.full((16, 784), 10, np.float32))
    usual = run(capsys, path, "--precision", "int8")["original_error"]["y"]
    assert run(capsys, path, "--precision", "int8", "--calibration", str(wide))["original_error"]["y"] > 2 * usual


def test_calibration_takes_a_folder_and_a_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, folder = save(tmp_path, "mlp"), tmp_path / "shown"
    folder.mkdir()
    for index, size in enumerate((1, 10)):
        np.savez(folder / f"{index}.npz", x=np.full((16, 784), size, np.float32))
    files = [word for file in sorted(folder.iterdir()) for word in ("--calibration", str(file))]
    errors = [
        run(capsys, path, "--precision", "int8", *options)["original_error"]["y"]
        for options in (files, ["--calibration", str(folder)], [], ["--calibration", "4"], ["--calibration", "1"])
    ]
    assert errors[0] == errors[1] and errors[2] == errors[3] and len({*errors}) == 3


def test_a_method_leaves_out_what_is_far_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One number of a sample that is 100 times the others: codes of the whole range have few steps for them. Entropy
    keeps it, as the squared error without it would be larger."""
    path, shown = save(tmp_path, "mlp"), tmp_path / "shown.npz"
    values = np.random.default_rng(4).standard_normal((16, 784)).astype(np.float32)
    values[0, 0] = 100
    np.savez(shown, x=values)
    whole, *less = (
        run(capsys, path, "--precision", "int8", "--calibration", str(shown), *method)["original_error"]["y"]
        for method in ([], ["--calibration-method", "percentile:99.9"], ["--calibration-method", "entropy"])
    )
    assert less[0] < whole / 3 and less[1] <= whole
    made = Simulator(path, level="IA", precision="int8", calibration=[shown], calibration_method="entropy").run()
    assert made.json["model"]["original_error"]["y"] == less[1]
    made.report(tmp_path / "report")
    assert main(["run", "--replay", str(tmp_path / "report"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["original_error"]["y"] == less[1]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--precision", "int8", "--calibration", "0"], 64, "--calibration 0: a number of random inputs is 1..4096"),
        (["--precision", "int8", "--calibration", "."], 65, ".: the folder has no .npz file; put arrays there"),
        (["--calibration-method", "entropy"], 64, "--calibration-method: is for --precision int8 and fp8"),
        (
            ["--precision", "int8", "--calibration-method", "mean"],
            64,
            "--calibration-method mean: must be minmax, p",
        ),
        (["--precision", "int8", "--calibration-method", "percentile:7"], 64, "P above 50, at most 100, or entropy"),
        (
            ["--calibration", "x.npz"],
            64,
            "--calibration: shows the model to int8, fp8 and rounding: gptq of a QConfig; give --precision int8 or fp8",
        ),
        (
            ["--precision", "int8", "--calibration", "none.npz"],
            65,
            "none.npz: No such file or directory; give arrays that numpy.savez wrote",
        ),
        (["--precision", "fp4"], 64, "--precision fp4: choose fp32, fp16"),
    ],
)
def test_wrong_options_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: list[str], code: int,
    message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["run", save(tmp_path, "mlp"), *options]) == code
    assert message in capsys.readouterr().err
