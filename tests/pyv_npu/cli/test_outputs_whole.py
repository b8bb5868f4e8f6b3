"""Outputs of commands on a full disk: what was there stays, and the message names the file."""

import os
from pathlib import Path

import pytest
from external_tools import GCC, PICOLIBC, needs

from pyv_npu.cli import main

OUTPUTS = [
    (["run", "hello", "--save", "OUT@5000"], "out"),
    (["campaign", "campaign.yaml", "hello", "-n", "1", "--mode", "tight", "--csv", "OUT"], "out"),
    (["compile", "mlp", "-o", "OUT"], "image.elf"),
    (["compile", "mlp", "--emit", "elf", "-o", "OUT"], "out"),
    (["asm", "first.s", "-o", "OUT"], "out"),
    (["export-models", "OUT", "mlp"], "mlp.onnx"),
    (["export-fmu", "hello", "-o", "OUT.fmu"], "out.fmu"),
    (["diff", "r.json", "r.json", "-o", "OUT"], "out"),
    (["profile-kv", "decoder_kv", "-o", "OUT"], "out"),
    pytest.param(["build", "first.s", "-o", "OUT"], "out", marks=[needs(GCC), needs(PICOLIBC)]),
    pytest.param(["build-firmware", "OUT", "hello"], "hello.elf", marks=[needs(GCC), needs(PICOLIBC)]),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("first.s").write_text(".globl main\nmain: li a0,0\nret\n_start: j main\n")
    Path("r.json").write_text('{"cycles": 1}')


def files() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}


@pytest.mark.parametrize(("line", "name"), OUTPUTS)
def test_a_full_disk_leaves_the_earlier_file(
    line: list[str], name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [word.replace("OUT", "out") for word in line]
    assert main(line) == 0
    before = files()
    assert any(Path(path).name == name for path in before)
    capsys.readouterr()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert main(line) in (64, 65)
    error = capsys.readouterr().err.splitlines()[-1]
    assert "No space left on device" in error and "out" in error
    assert files() == before
    assert main(line) == 0
