"""Configurations that ship with the package are named without a path."""

import json
import re
from fractions import Fraction
from pathlib import Path

import onnx
import pytest

from npu_device.cost.tensor import gemm_rate
from pyv_npu.cli import main
from pyv_npu.config import load
from pyv_npu.config.package_data import data_files, descriptions
from pyv_npu.workloads.compiled import target_of
from toolchain.codegen.product_cost import step_cycles
from toolchain.examples import EXAMPLES

CONFIGS = descriptions("configs")


@pytest.mark.parametrize("name", CONFIGS)
def test_a_name_is_the_shipped_file(name: str) -> None:
    effective = load([name])
    assert effective.config == load([data_files("configs")[name]]).config
    assert any(origin.startswith(f"{name}:") for origin in effective.origins.values())


@pytest.mark.parametrize("name", CONFIGS)
def test_a_name_is_taken_as_a_preset(name: str) -> None:
    assert load(preset=name).config == load([name]).config
    over = load(["lpu-hbm"], name, {"npu.te.count": 3})
    assert over.config.npu.dram == load([name]).config.npu.dram and over.config.npu.te.count == 3


@pytest.mark.parametrize(("speed", "fp16"), [("by_bits", Fraction(1, 2)), ("flat", Fraction(1))])
def test_the_compiler_sees_the_speed_of_narrow_elements(speed: str, fp16: Fraction) -> None:
    npu = load(overrides={"npu.te.speed": speed, "npu.ve.speed": speed}).config.npu
    target = target_of(npu)
    assert target.ve_f_a[16] == fp16
    wide, byte = (step_cycles(target.te, 64, 128, 256, bits, bits, False, 1) - npu.te.fill for bits in (16, 8))
    assert byte == wide * fp16 * fp16
    assert wide * (gemm_rate(npu.te, 16, 16) if speed == "by_bits" else npu.te.rows * npu.te.columns) == 64 * 128 * 256


def test_every_file_that_ships_says_what_it_is() -> None:
    assert all(re.fullmatch(r"[^\n]{20,110}", text) for text in (*CONFIGS.values(), *descriptions("qconfigs").values()))


def test_onnxims_array_times_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(EXAMPLES["cnn"](kind="float16"), tmp_path / "cnn.onnx")
    assert main(["run", str(tmp_path / "cnn.onnx"), "--timing-only", "--config", "onnxim-c1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["npu"]["te_busy"]) == 1 and result["cycles"] > 0
    assert main(["info"]) == 0 and "onnxim-c1" in capsys.readouterr().out
