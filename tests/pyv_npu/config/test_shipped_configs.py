"""Configurations that ship with the package are named without a path."""

import json
from pathlib import Path

import onnx
import pytest

from pyv_npu.cli import main
from pyv_npu.config import load
from pyv_npu.config.presets import CONFIGS, config_file
from toolchain.examples import EXAMPLES


@pytest.mark.parametrize("name", CONFIGS)
def test_a_name_is_the_shipped_file(name: str) -> None:
    effective = load([name])
    assert effective.config == load([config_file(name)]).config
    assert any(origin.startswith(f"{name}:") for origin in effective.origins.values())


def test_every_file_that_ships_has_a_name() -> None:
    shipped = {path.stem for path in config_file(next(iter(CONFIGS))).parent.glob("*.yaml")}
    assert shipped == set(CONFIGS)


def test_onnxims_array_times_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(EXAMPLES["cnn"](kind="float16"), tmp_path / "cnn.onnx")
    assert main(["run", str(tmp_path / "cnn.onnx"), "--timing-only", "--config", "onnxim-c1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["npu"]["te_busy"]) == 1 and result["cycles"] > 0
    assert main(["info"]) == 0 and "onnxim-c1" in capsys.readouterr().out
