"""Files that ship with the package are found by name, in every place that takes such a file."""

import os
from pathlib import Path

import pytest

from pyv_npu.config import load
from pyv_npu.config.package_data import data_files, find_file
from pyv_npu.config.yaml_file import load_qconfig
from pyv_npu.errors import BadInputError, UsageError
from pyv_npu.faults.plan import read_plan

PLANS = data_files("examples")


@pytest.mark.parametrize("name", ["lost_doorbell", "lost_doorbell.yaml", Path("lost_doorbell.yaml")])
def test_a_name_goes_with_or_without_its_suffix(
    name: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_file(name, "examples") == PLANS["lost_doorbell"]
    assert read_plan(name) == read_plan(PLANS["lost_doorbell"])


def test_a_file_of_the_user_comes_first_and_a_folder_never(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("stuck_engine.yaml", "rocket.yaml", "int4-weights"):
        (tmp_path / name).write_text("")
    for name in ("bit_flip", "oaken-hbm", "dma.yaml"):
        (tmp_path / name).mkdir()
    assert find_file("stuck_engine.yaml", "examples") == "stuck_engine.yaml"
    assert find_file("stuck_engine", "examples") == PLANS["stuck_engine"]
    assert [find_file(name, "examples") for name in ("bit_flip", "dma.yaml")] == [PLANS["bit_flip"], PLANS["dma"]]
    assert load_qconfig("int4-weights") == load_qconfig(os.devnull) != load_qconfig("int4-weights.yaml")
    assert load(["oaken-hbm"]).config == load(["oaken-hbm.yaml"]).config
    with pytest.raises(UsageError, match=r"rocket\.yaml: name: is missing"):
        load(preset="rocket.yaml")
    assert load(preset="rocket").config.preset == "rocket"


def test_a_preset_is_looked_for_beside_the_file_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inside").mkdir()
    (tmp_path / "mine.yaml").write_text("name: mine\nbasis: b\nsource: s\n")
    (tmp_path / "inside" / "c.yaml").write_text("preset: mine.yaml\n")
    with pytest.raises(BadInputError, match=r"mine\.yaml: must be a file, or the name of a shipped one: cva6, "):
        load(["inside/c.yaml"])


@pytest.mark.parametrize("name", ["nothing.yaml", "/nowhere/lost_doorbell.yaml", "", "."])
def test_what_is_neither_is_one_line_with_the_names(name: str) -> None:
    with pytest.raises(BadInputError) as caught:
        read_plan(name)
    assert f"{name}: must be a file, or the name of a shipped one: bit_flip, campaign, dma, " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pipe_is_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert find_file(tmp_path / "pipe", "examples") == str(tmp_path / "pipe")
