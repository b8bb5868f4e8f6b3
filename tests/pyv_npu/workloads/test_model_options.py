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


def test_a_model_has_more_dram_once_more_where_its_input_alone_needs_more(
    tmp_path: Path,
) -> None:
    """The input asks for 256 MiB, its layers then for 512."""
    path, large = tmp_path / "m.onnx", [1 << 10, 33 << 10]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    x, y, z = (
        helper.make_tensor_value_info(*one) for one in (("x", 1, large), ("y", 1, [1 << 10, 4]), ("z", 1, large))
    )
    weights = [numpy_helper.from_array(random(large[1], 4), "w")]
    path.write_bytes(helper.make_model(helper.make_graph(nodes, "g", [x], [y, z], weights)).SerializeToString())
    options = ["--precision", "int8", "--calibration", "1", "--sim-level", "IA_TIMING", "--timing-only"]
    assert main(["run", str(path), *options, "--report", str(tmp_path / "report")]) == 0
    assert "size: 536870912" in (tmp_path / "report" / "run.yaml").read_text()
