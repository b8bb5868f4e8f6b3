"""Options of a model that contradict each other, or that it makes needless."""

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnxruntime_reference import one_node, random

from pyv_npu.cli.main import main

TOO_LARGE = 300 << 20
"""Bytes of weights that the DRAM of the default configuration does not hold."""


def weights_and_row(path: Path, rows: int) -> Path:
    """A product with zeros."""
    model = one_node("MatMul", {"x": random(1, rows)}, constants={"w": np.zeros((rows, 64), np.float32)})
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("option", ["--inputs", "--input"])
def test_an_input_that_a_constant_fixes_is_not_given(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, arrays = tmp_path / "m.onnx", tmp_path / "x.npz"
    path.write_bytes(one_node("Mul", {"x": random(3), "rate": random(1)}).SerializeToString())
    np.savez(arrays, rate=np.ones(1, np.float32))
    given = str(arrays) if option == "--inputs" else "rate=3"
    assert main(["run", str(path), "--constant", "rate=2", option, given, "--sim-level", "IA"]) == 64
    assert f"{option} rate: --constant rate=2 fixes it: drop one of them" in capsys.readouterr().err


def test_a_model_has_the_dram_that_it_needs_unless_its_size_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = weights_and_row(tmp_path / "m.onnx", TOO_LARGE // 256)
    command = ["run", str(path), "--sim-level", "IA_TIMING", "--timing-only", "--json"]
    assert main([*command, "--report", str(tmp_path / "report")]) == 0
    assert json.loads(capsys.readouterr().out)["cycles"] > 0
    recorded = (tmp_path / "report" / "run.yaml").read_text()
    assert "size: 536870912" in recorded and "the model" in recorded
    assert main([*command, "--set", "npu.dram.size=134217728"]) == 65
    assert "--set npu.dram.size=536870912" in capsys.readouterr().err


def test_an_input_beyond_dram_is_refused_before_calibration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    x, y = (helper.make_tensor_value_info(*one) for one in (("x", 1, [1024, 2048]), ("y", 1, [1024, 4])))
    weights = [numpy_helper.from_array(random(2048, 4), "w")]
    path.write_bytes(helper.make_model(helper.make_graph([node], "g", [x], [y], weights)).SerializeToString())
    assert main(["run", str(path), "--precision", "int8", "--set", "npu.dram.size=4194304"]) == 65
    message = "input x: 8388608 bytes, npu.dram.size is 4194304: --set npu.dram.size=16777216"
    assert message in capsys.readouterr().err
