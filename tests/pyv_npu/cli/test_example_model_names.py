"""Example models by name: made on demand, in every command that takes models."""

from pathlib import Path

import pytest

from pyv_npu.boot import find_program, is_example, model_file
from pyv_npu.cli import main
from toolchain.examples import EXAMPLES


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYV_NPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def test_run_report_and_replay(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "cnn", "--mode", "loose", "--report", "r"]) == 0
    assert "\ncnn: loose, core fast" in capsys.readouterr().out
    (made,) = cache.rglob("cnn.onnx")
    assert made.read_bytes() == EXAMPLES["cnn"]().SerializeToString()
    made.unlink()
    assert main(["run", "--replay", "r"]) == 0, "it is made again"
    assert "the events are those of the recorded run" in capsys.readouterr().err


def test_the_other_commands(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "mlp"]) == 0
    assert main(["compile", "mlp", "-o", "m"]) == 0
    assert main(["run", "mlp", "--timing-only"]) == 0
    assert main(["info"]) == 0
    assert "mobilenet_v2" in capsys.readouterr().out


def test_files_and_firmware_come_first(cache: Path, tmp_path: Path) -> None:
    assert is_example("mlp") and not is_example("gemm") and not is_example("mlp.onnx") and not is_example("hello")
    assert find_program("gemm").endswith("/gemm.elf")
    (tmp_path / "mlp").write_bytes(b"an own program")
    assert not is_example("mlp") and model_file("mlp") == Path("mlp")


def test_a_name_that_is_almost_one(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "mobilenet"]) == 65
    assert capsys.readouterr().err.endswith("did you mean mobilenet_v2?\n")


def test_without_a_cache(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PYV_NPU_CACHE", "off")
    assert main(["run", "cnn"]) == 65
    assert capsys.readouterr().err == (
        "pyv-npu: error: cnn: there is no cache to make example models in; set PYV_NPU_CACHE to a folder\n"
    )
