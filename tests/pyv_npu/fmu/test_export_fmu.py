"""`export-fmu`, judged by FMPy; steps add up."""

from pathlib import Path

import pytest

from pyv_npu.boot import find_program
from pyv_npu.cli.main import main
from pyv_npu.errors import BadInputError
from pyv_npu.fmu.stepper import Stepper


def stepper(folder: Path) -> Stepper:
    (folder / "c.yaml").write_text("npu: {mode: tight}\n", encoding="utf-8")
    return Stepper(folder / "c.yaml", find_program("hello"))


def test_steps_add_up(tmp_path: Path) -> None:
    many, one = stepper(tmp_path), stepper(tmp_path)
    for index in range(1, 11):
        many.step(index * 1e-6)
    one.step(10e-6)
    assert many.outputs == one.outputs and one.outputs.running
    assert 12_000 <= one.outputs.cycles < 12_200, "at 1.2 GHz, to the end of an access"


def test_inputs_act(tmp_path: Path) -> None:
    fast = stepper(tmp_path)
    fast.step(10e-6, clock_scale=0.5, interrupt=True, dram_slowdown=3)
    assert 6_000 <= fast.outputs.cycles < 6_100
    assert fast._platform.plic.peek(0x1000, 4, 0) == 1 << 12


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"clock_scale": 0.0}, "clock_scale 0: must be above 0 and at most 16"),
        ({"dram_slowdown": 0}, "dram_slowdown 0: must be from 1 to 1024"),
        ({"seconds": -1.0}, "a step to -1 s: time does not go back"),
    ],
)
def test_inputs_that_cannot_be(tmp_path: Path, inputs: dict[str, float], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        stepper(tmp_path).step(**{"seconds": 1e-6, **inputs})  # type: ignore[arg-type]


def test_fmpy_validates_and_simulates_the_unit(tmp_path: Path) -> None:
    fmpy = pytest.importorskip("fmpy", reason="pip install fmpy")
    pytest.importorskip("pythonfmu", reason="pip install pythonfmu")
    from fmpy.validation import validate_fmu

    unit = tmp_path / "platform.fmu"
    assert main(["export-fmu", "gemm", "-o", str(unit)]) == 0
    assert validate_fmu(str(unit)) == []
    ten = fmpy.simulate_fmu(str(unit), stop_time=0.01, step_size=0.001, output_interval=0.001)
    one = fmpy.simulate_fmu(str(unit), stop_time=0.01, step_size=0.01, output_interval=0.01)
    assert len(ten) == 11 and len(one) == 2
    assert ten[-1] == one[-1] and one[-1]["completed"] == 52
    assert ten["cycles"][0] == 0 and 1_200_000 <= ten["cycles"][1] < 1_200_200


def test_what_cannot_be_exported_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pythonfmu", reason="pip install pythonfmu")
    assert main(["export-fmu", "hello", "-o", str(tmp_path / "x.zip")]) == 64
    assert "the name of a unit ends in .fmu" in capsys.readouterr().err
