"""Models end to end: compiled, run through firmware on the core in both modes, equal to IA, near the ONNX reference."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from model_runs import execute, run_compiled
from onnx import TensorProto, helper

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.opcodes import Opcode
from npu_device.config import NpuConfig
from npu_device.levels.command_list import load
from pyv_npu.cli import main
from pyv_npu.config import Config, with_values
from pyv_npu.workloads import ia
from pyv_npu.workloads.checks import compare
from pyv_npu.workloads.data import random_inputs
from toolchain.codegen import GRANULARITIES, Target
from toolchain.codegen.cmdq import document
from toolchain.compiler import Compiled, compile_model
from toolchain.examples import EXAMPLES, LARGE
from toolchain.onnx_model.model import prepare
from toolchain.passes import PASSES

SMALL = [name for name in EXAMPLES if not name.startswith(LARGE)]


def compiled(name: str, granularity: str = "macro", passes: str = "all", **options: object) -> Compiled:
    return compile_model(prepare(EXAMPLES[name](**options), name), Target(), passes=passes, granularity=granularity)


def assert_correct(model: Compiled) -> None:
    inputs = random_inputs(model, 1)
    outputs, codes = ia.observed(model, NpuConfig(), inputs)
    for name, check in compare(model, outputs, inputs, codes).outputs.items():
        assert check["ok"], (name, check)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("name", SMALL)
def test_ia_agrees_with_the_reference(name: str, granularity: str) -> None:
    assert_correct(compiled(name, granularity))


@pytest.mark.parametrize("left_out", PASSES)
def test_every_pass_can_be_left_out(left_out: str) -> None:
    assert_correct(compiled("cnn", passes=f"-{left_out}"))


@pytest.mark.parametrize("name", ["mlp_qdq", "cnn", "decoder"])
def test_loose_tight_and_ia_are_equal_bit_for_bit(name: str) -> None:
    model = compiled(name)
    expected = execute(model, NpuConfig(), random_inputs(model, 1))
    for mode in ("loose", "tight"):
        result = run_compiled(with_values(Config(), {"npu.mode": mode, "run.seed": 1}), model)
        assert result.core is not None and result.exit_code == 0 and result.correct
        for output, values in expected.items():
            assert result.detail.outputs[output].tobytes() == values.tobytes(), (mode, output)


def test_resnet18_compiles_in_a_few_commands() -> None:
    model = compiled("resnet18")
    assert len(model.commands) < 200
    assert model.end < 0x8000_0000 + NpuConfig().dram.size


def save(folder: Path, name: str, **options: object) -> str:
    path = folder / f"{name}.onnx"
    onnx.save(EXAMPLES[name](**options), path)
    return str(path)


def test_compile_writes_an_image_that_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", save(tmp_path, "mlp"), "-o", str(tmp_path / "out")]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert [path.name for path in written] == ["image.elf", "npu_ir.txt", "npu_ir.jsonl", "cmdq.json", "model.json"]
    stages = [json.loads(line)["stage"] for line in written[2].read_text().splitlines()]
    assert list(dict.fromkeys(stages)) == ["import", *PASSES, "tensors", "commands"]
    assert main(["run", str(written[0]), "--json"]) == 0
    run = json.loads(capsys.readouterr().out)
    assert run["npu"]["completed"] == json.loads(written[4].read_text())["commands"] and run["npu"]["errors"] == 0


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_the_command_list_is_what_the_firmware_submits(granularity: str) -> None:
    model = compiled("decoder", granularity)
    listed = load(document(model.commands, Target()), NpuConfig())
    if granularity == "macro":
        bare = [one.descriptor._replace(param1=0, extended=0) for one in listed]
        assert bare == [one.descriptor._replace(param1=0, extended=0) for one in model.commands]
        assert [one.block for one in listed] == [one.block for one in model.commands]
    computed = [one.descriptor for one in listed if one.descriptor.opcode not in (Opcode.LOAD, Opcode.STORE)]
    assert len(computed) == sum(c.descriptor.opcode not in (Opcode.LOAD, Opcode.STORE) for c in model.commands)
    assert sum(moved(one.descriptor) for one in listed) == sum(moved(one.descriptor) for one in model.commands)


def moved(d: Descriptor) -> int:
    """Elements that a LOAD or STORE moves."""
    return d.tile_m * d.tile_k if d.opcode in (Opcode.LOAD, Opcode.STORE) else 0


def test_ia_timing_gives_cycles_and_the_outputs_of_ia(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = {}
    for level in ("IA", "IA_TIMING"):
        assert main(["run", save(tmp_path, "decoder"), "--sim-level", level, "--json"]) == 0
        results[level] = json.loads(capsys.readouterr().out)
    assert results["IA"]["model"]["outputs_sha256"] == results["IA_TIMING"]["model"]["outputs_sha256"]
    assert results["IA_TIMING"]["cycles"] > 0 and results["IA"]["cycles"] is None


def test_the_parts_of_the_cycles_add_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The cycles of the core, those of the work and those of the NPU without firmware are told apart."""
    path = save(tmp_path, "cnn")
    assert main(["compare", path, "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert main(["run", path, "--timing-only", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)["cycles"]
    for mode in ("loose", "tight"):
        parts = both[mode]["cycles_parts"]
        assert sum(parts.values()) == both[mode]["cycles"] and min(parts.values()) > 0
        assert alone < parts["work"]
    assert both["tight"]["cycles_parts"]["work"] < alone + 100  # six submissions, of which one is not hidden
    assert main(["run", "hello", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cycles_parts"] is None


def test_run_says_how_the_outputs_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", save(tmp_path, "mlp"), "--sim-level", "IA", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["model"]["checks"]["y"]["ok"] and result["sim_level"] == "IA"


def test_a_dynamic_dimension_needs_a_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path, "mlp", batch="n")
    assert main(["run", path, "--sim-level", "IA"]) == 65
    message = f"{path}: input x has shape [n, 784]: give every dimension a size, --shape n=N with a number for each N"
    assert message in capsys.readouterr().err
    assert main(["run", path, "--sim-level", "IA", "--shape", "x=3,784"]) == 0


def one_node(
    folder: Path, operator: str, kind: int = TensorProto.FLOAT, shape: tuple[int, ...] = (2, 3, 4)
) -> str:  # fmt: skip
    """A model of one node from x to y."""
    values = [helper.make_tensor_value_info(name, kind, shape) for name in "xy"]
    node = helper.make_node(operator, ["x"], ["y"], name="n")
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    path = folder / "one.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


def test_an_unknown_operator_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = {"x": [1, 1, 4, 4], "r": [2, 5], "y": [2, 1, 2, 2]}
    x, regions, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    node = helper.make_node("MaxRoiPool", ["x", "r"], ["y"], name="n", pooled_shape=[2, 2])
    graph, path = helper.make_graph([node], "g", [x, regions], [y]), tmp_path / "regions.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    assert main(["run", str(path)]) == 65
    said = capsys.readouterr().err
    assert "node n (MaxRoiPool, opset 17): this operator is not supported; `pyv-npu docs onnx-coverage` " in said


def test_an_unknown_type_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", one_node(tmp_path, "Identity", TensorProto.COMPLEX64)]) == 65
    assert "input x: data type COMPLEX64: supported are FLOAT, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--passes", "fussion"], 65, "--passes fussion: no such pass; passes are constant-folding, "),
        (["--shape", "x"], 64, "--shape x: must have the form NAME=1,128"),
        (["--shape", "z=1,2"], 65, "--shape z: no such input; inputs are x"),
        (["--shape", "x=1,2,3"], 65, "--shape x: has 2 dimensions, got 3"),
        (["--shape", "x=16,785"], 65, "--shape x: a dimension is 784 in the model, got 785"),
        (
            ["--sim-level", "L3"],
            64,
            "sim_level CA_FULL: needs an engine outside, and npu.te.external.engine is empty; ",
        ),
        (["--set", "npu.dram.size=8388608"], 65, "npu.dram.size is 8388608: --set npu.dram.size="),
    ],
)
def test_what_cannot_be_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: int, message: str
) -> None:
    assert main(["run", save(tmp_path, "mlp"), *options]) == code
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("option", [["--shape", "x=1"], ["--passes", "none"], ["--granularity", "tile"]])
@pytest.mark.parametrize("command", ["run", "compare"])
def test_firmware_takes_no_options_of_models(
    capsys: pytest.CaptureFixture[str], command: str, option: list[str]
) -> None:
    assert main([command, "hello", *option]) == 64
    assert f"{option[0]}: says how a model is compiled, and no ONNX model is named" in capsys.readouterr().err


def test_a_layer_of_which_no_tile_fits_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", save(tmp_path, "decoder", width=256), "--set", "npu.spm.size=4096"]) == 65
    error = capsys.readouterr().err
    assert "layer layernormalization0 (LAYERNORM): a tile of 1 x 256 needs 8192 bytes of scratchpad with " in error
    assert "its buffers, 2048 of them for tensor w0; there are 4096: no tile fits, --set npu.spm.size=8192" in error


def test_a_broken_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for data in (b"", b"\x08", np.random.default_rng(0).bytes(300)):
        (tmp_path / "m.onnx").write_bytes(data)
        assert main(["run", str(tmp_path / "m.onnx")]) == 65
        error = capsys.readouterr().err
        assert "no ONNX model (" in error and len(error.strip().splitlines()) == 1


def test_passes_are_explained_by_what_the_model_takes_without_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", save(tmp_path, "cnn"), "-o", str(tmp_path / "out"), "--explain-passes"]) == 0
    text = capsys.readouterr().out
    for name in PASSES:
        row = next(line for line in text.splitlines() if line.startswith(f"without {name} "))
        assert row.endswith(("%", "cannot be compiled"))
    every, without = (
        int(text.split(name)[1].split()[0]) for name in ("all chosen passes", "without batchnorm-folding")
    )
    assert without == every + 6, "after each of the two convolutions a factor, and bias and activation behind it"


def test_compare_runs_a_model_in_both_modes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path, "cnn")
    assert main(["compare", path, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["same_results"] and result["loose"]["program"] == path
    assert main(["compare", path, "--sim-level", "IA"]) == 64
    assert "--sim-level IA: computes a model without a core; firmware runs at CA_HYBRID" in capsys.readouterr().err


def test_a_models_run_has_a_report(tmp_path: Path) -> None:
    assert main(["run", save(tmp_path, "mlp"), "--report", str(tmp_path / "out"), "--json"]) == 0
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"report.html", "timeline.csv", "run.yaml", "result.json"} <= written
    assert json.loads((tmp_path / "out/result.json").read_text())["model"]["checks"]["y"]["ok"]
