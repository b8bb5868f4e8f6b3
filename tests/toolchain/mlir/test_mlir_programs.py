"""Twelve modules at every level, loose and tight, with firmware and with generated code that submits."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from external_tools import missing, need
from mlir_rig import PROGRAMS, assert_as_mlir, compiled, outputs
from mlir_runner import LLC, OPT, RUNNER, TRANSLATE, verified
from model_runs import run_compiled
from shares import slow

from pyv_npu.cli import main
from pyv_npu.config import Config, with_values
from pyv_npu.units import number
from pyv_npu.workloads.compiled import GENERATED
from toolchain.examples import EXAMPLES

IDS = [path.stem for path in PROGRAMS]
each_program = pytest.mark.parametrize("path", PROGRAMS, ids=IDS)


def test_there_are_twelve() -> None:
    assert len(PROGRAMS) >= 12


@each_program
def test_the_numbers_are_those_of_mlir(path: Path) -> None:
    text = path.read_text()
    inputs, made = outputs(compiled(text, path.name))
    if missing(OPT, RUNNER):
        need(OPT, RUNNER)
    verified(text)
    assert_as_mlir(text, inputs, made)


@each_program
def test_every_level_and_mode_leaves_the_same(path: Path) -> None:
    model = compiled(path.read_text(), path.name)
    config = with_values(Config(), {"run.seed": 3})
    expected = run_compiled(with_values(config, {"run.sim_level": "IA"}), model)
    assert expected.correct
    timed = run_compiled(with_values(config, {"run.sim_level": "IA_TIMING"}), model)
    assert timed.cycles is not None and timed.cycles > 0
    for mode in ("loose", "tight"):
        ran = run_compiled(with_values(config, {"npu.mode": mode}), model)
        assert ran.core is not None and ran.exit_code == 0 and ran.correct
        for name, values in expected.detail.outputs.items():
            assert ran.detail.outputs[name].tobytes() == values.tobytes(), (mode, name)
            assert timed.detail.outputs[name].tobytes() == values.tobytes(), name


@pytest.mark.parametrize("path", [PROGRAMS[0], *slow(*PROGRAMS[1:])], ids=IDS)
def test_generated_code_leaves_what_firmware_leaves(path: Path) -> None:
    need(TRANSLATE, LLC, "riscv64-unknown-elf-gcc")
    model = compiled(path.read_text(), path.name)
    for mode in ("loose", "tight"):
        room = {"npu.queue.tight_size": 1024}  # else both wait for the device, and submission costs what that takes
        config = with_values(Config(), {"run.seed": 3, "npu.mode": mode, **room})
        firmware = run_compiled(config, model)
        generated = run_compiled(config, model, submit=GENERATED)
        assert firmware.core is not None and generated.core is not None
        assert generated.correct and generated.exit_code == 0
        assert generated.core.outputs_sha256 == firmware.core.outputs_sha256
        assert generated.core.order == firmware.core.order
        for name, values in firmware.detail.outputs.items():
            assert generated.detail.outputs[name].tobytes() == values.tobytes()
        submission = generated.detail.submission
        assert submission["commands"] == len(model.commands)
        assert submission["generated_cycles"] < submission["firmware_cycles"]


@pytest.mark.slow
def test_tile_commands_are_submitted_by_generated_code_too() -> None:
    """More commands than the ring holds: code waits for room."""
    need(TRANSLATE, LLC, "riscv64-unknown-elf-gcc")
    text = next(path for path in PROGRAMS if path.stem == "linalg_residual").read_text()
    model = compiled(text, granularity="tile")
    for mode in ("loose", "tight"):
        config = with_values(Config(), {"npu.mode": mode, "npu.queue.size": 4, "npu.queue.tight_size": 4})
        firmware, generated = run_compiled(config, model), run_compiled(config, model, submit=GENERATED)
        assert len(model.commands) > 8
        assert firmware.core is not None and generated.core is not None and generated.correct
        assert generated.core.outputs_sha256 == firmware.core.outputs_sha256


def test_the_commands_of_the_issue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need(TRANSLATE, LLC, "riscv64-unknown-elf-gcc")
    import json

    module = tmp_path / "attention.mlir"
    module.write_text(next(path for path in PROGRAMS if path.stem == "linalg_attention").read_text())
    assert main(["run", str(module), "--mode", "tight", "--report", str(tmp_path / "out"), "--json"]) == 0
    direct = json.loads(capsys.readouterr().out)
    assert (tmp_path / "out" / "report.html").exists()
    elf = str(tmp_path / "x.elf")
    assert main(["compile", str(module), "--emit", "elf", "--submit", "generated", "-o", elf]) == 0
    capsys.readouterr()
    assert main(["run", elf, "--mode", "tight", "--json"]) == 0
    from_elf = json.loads(capsys.readouterr().out)
    assert from_elf["outputs_sha256"] == direct["outputs_sha256"]


def test_a_report_says_what_generated_code_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need(TRANSLATE, LLC, "riscv64-unknown-elf-gcc")
    module = str(next(path for path in PROGRAMS if path.stem == "linalg_mlp"))
    options = ["--mode", "tight", "--submit", "generated", "--report", str(tmp_path)]
    assert main(["run", module, *options]) == 0
    assert "saved per command" in (tmp_path / "summary.txt").read_text()
    saved = json.loads((tmp_path / "result.json").read_text())["model"]["submission"]["saved_per_command"]
    figure = "tight.cycles saved per submission by generated code"
    assert saved > 0 and f'data-figure="{figure}">{number(saved)}<' in (tmp_path / "report.html").read_text()


def test_a_sum_of_i64_beyond_32_bits_says_why_it_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module, inputs = tmp_path / "sum.mlir", tmp_path / "inputs.npz"
    module.write_text("""func.func @main(%a: tensor<3xi64>) -> tensor<3xi64> {
  %r = arith.addi %a, %a : tensor<3xi64>
  return %r : tensor<3xi64>
}
""")
    np.savez(inputs, a=np.array([1, 1 << 30, -5]))
    assert main(["run", str(module), "--sim-level", "IA", "--inputs", str(inputs)]) == 65
    assert "makes 2147483648 of these inputs, which INT32 does not hold" in capsys.readouterr().err


def test_check_says_what_a_module_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = next(path for path in PROGRAMS if path.stem == "linalg_mlp")
    assert main(["check", str(module)]) == 0
    said = capsys.readouterr().out
    assert "linalg.matmul" in said and "tensor<4x32xf32>" in said and "it compiles" in said
    npu = tmp_path / "npu.mlir"
    assert main(["compile", str(module), "--emit", "npu-mlir", "-o", str(npu)]) == 0
    capsys.readouterr()
    assert main(["check", str(npu)]) == 0
    assert "npu.gemm_t" in capsys.readouterr().out
    other = tmp_path / "other.mlir"
    other.write_text(module.read_text().replace("linalg.matmul", "linalg.batch_reduce_matmul", 1))
    assert main(["check", str(other)]) != 0
    assert "linalg.batch_reduce_matmul: this operation is not supported" in capsys.readouterr().out


@pytest.mark.parametrize("path", [PROGRAMS[0], *slow(*PROGRAMS[1:])], ids=IDS)
def test_npu_ir_as_a_module_runs_the_same(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    seen = []
    for program in (str(path), str(tmp_path / "npu.mlir")):
        if program != str(path):
            assert main(["compile", str(path), "--emit", "npu-mlir", "-o", program]) == 0
            capsys.readouterr()
        assert main(["run", program, "--mode", "tight", "--json"]) == 0
        run = json.loads(capsys.readouterr().out)
        seen.append((run["cycles"], run["outputs_sha256"]))
    assert seen[0] == seen[1]
    assert np.all([cycles for cycles, _ in seen])


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_weights_of_npu_ir_are_narrowed_as_those_of_its_model(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    model, module, widths = tmp_path / "m.onnx", tmp_path / "m.mlir", tmp_path / "widths.yaml"
    onnx.save(EXAMPLES[name](), str(model))
    widths.write_text("qbits_weight_default: 4\n")
    assert main(["compile", str(model), "--emit", "npu-mlir", "-o", str(module)]) == 0
    capsys.readouterr()
    runs = []
    for path in (model, module):
        assert main(["run", str(path), "--qconfig", str(widths), "--sim-level", "IA", "--json"]) == 0
        runs.append(json.loads(capsys.readouterr().out)["model"])
    assert runs[0]["outputs_sha256"] == runs[1]["outputs_sha256"]
    for run in runs:
        assert run["checks"]["y"]["ok"] and run["original_error"]["y"] > 1e-3
    assert main(["run", str(module), "--precision", "int8"]) != 0
    assert "activations of NPU-IR have the types that it says; convert its source" in capsys.readouterr().err
