"""The example models in all their types: near the reference, and the same at every level and in both modes."""

from pathlib import Path

import onnx
import pytest
from model_runs import run_compiled

from pyv_npu.cli import main
from pyv_npu.config import Config, with_values
from toolchain.codegen import Target
from toolchain.compiler import compile_model
from toolchain.examples import EXAMPLES, LARGE
from toolchain.onnx_model.model import prepare

WAYS = ({"run.sim_level": "IA"}, {"run.sim_level": "IA_TIMING"}, {"npu.mode": "loose"}, {"npu.mode": "tight"})
VARIANTS = [name for name in EXAMPLES if name.endswith(("_fp16", "_int8")) and not name.startswith(LARGE)]


def assert_same_everywhere(name: str) -> None:
    model = compile_model(prepare(EXAMPLES[name](), name), Target())
    seen = set()
    for values in WAYS:
        result = run_compiled(with_values(Config(), values), model)
        assert result.correct, (values, result.json["model"])
        seen.add(tuple(output.tobytes() for output in result.detail.outputs.values()))
    assert len(seen) == 1


@pytest.mark.parametrize("name", VARIANTS)
def test_a_model_gives_the_same_everywhere(name: str) -> None:
    assert_same_everywhere(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name.startswith(LARGE)])
def test_a_large_model_gives_the_same_everywhere(name: str) -> None:
    assert_same_everywhere(name)


def test_the_command_writes_valid_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export-models", str(tmp_path / "new" / "models"), "mlp_int8", "decoder_fp16"]) == 0
    paths = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert [path.name for path in paths] == ["mlp_int8.onnx", "decoder_fp16.onnx"]
    for path in paths:
        onnx.checker.check_model(onnx.load(path), full_check=True)
    assert sorted(paths[0].parent.iterdir()) == sorted(paths)


def test_a_wrong_name_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export-models", str(tmp_path / "models"), "cnn", "mlpp"]) == 64
    text = capsys.readouterr().err
    assert text.startswith("pyv-npu: error: mlpp: must be one of gemm, mlp, ") and text.endswith("did you mean mlp?\n")
    (tmp_path / "file").touch()
    assert main(["export-models", str(tmp_path / "file"), "cnn"]) == 64
    assert capsys.readouterr().err == f"pyv-npu: error: {tmp_path}/file: is not a folder; name a new one\n"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_models_are_the_same_every_time() -> None:
    assert EXAMPLES["cnn_int8"]().SerializeToString() == EXAMPLES["cnn_int8"]().SerializeToString()
