"""The published table of DCIS 2024, run again; and nothing else gives it."""

import json

import pytest

from pyv_npu.cli import main
from pyv_npu.config import load
from pyv_npu.errors import PyvNpuError, UsageError
from pyv_npu.studies import calibration
from pyv_npu.studies.calibration import calibrate, measure


def test_the_preset_prints_the_published_table() -> None:
    rows = calibrate("neorv32-2024").rows
    assert [row.cycles for row in rows] == [8, 11, 13, 16, 18, 37]
    assert [len(row.instructions) for row in rows] == [3, 3, 3, 5, 6, 11]


def names(row_instructions: tuple[str, ...]) -> list[str]:
    return [text.split()[0] for text in row_instructions]


def test_the_windows_hold_the_published_instructions() -> None:
    external, one_register, hand_shake = (names(row.instructions) for row in calibrate("neorv32-2024").rows[3:])
    assert external == ["lui", "addi", "lui", "sw", "lw"]
    assert one_register == ["lui", "lui", "addi", "addi", "sw", "lw"]
    assert sorted(hand_shake) == ["addi"] * 4 + ["lui"] * 2 + ["lw"] + ["sw"] * 4


@pytest.mark.parametrize(
    ("key", "changed"),
    [("custom", {0, 1, 2}), ("mmio_write", {3, 4, 5}), ("mmio_read", {3, 4, 5}), ("alu", {0, 1, 2, 3, 4, 5})],
)
def test_each_fitted_number_matters(key: str, changed: set[int]) -> None:
    value = getattr(load(preset="neorv32-2024").config.core.timing, key)
    config = load(preset="neorv32-2024", overrides={f"core.timing.{key}": value + 1}).config
    assert {index for index, row in enumerate(measure(config)) if row.cycles != row.published} == changed


def test_a_wrong_product_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "multiply_halves", lambda word: 0)
    with pytest.raises(PyvNpuError, match="computed 0x0 instead of"):
        calibrate("neorv32-2024")


def test_a_preset_without_a_measurement() -> None:
    with pytest.raises(UsageError, match="preset ibex has no published measurement; those that have: neorv32-2024"):
        calibrate("ibex")


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "neorv32-2024"]) == 0
    assert "exact: yes" in capsys.readouterr().out
    assert main(["calibrate", "neorv32-2024", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["exact"] and [row["cycles"] for row in result["rows"]] == [8, 11, 13, 16, 18, 37]
    assert main(["calibrate", "rocket"]) == 64
