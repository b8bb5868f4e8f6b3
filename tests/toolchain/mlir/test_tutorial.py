"""docs/mlir.md is executed: its module, and every command of its tutorial in their order."""

import re
import shlex
from pathlib import Path

import pytest
from external_tools import need
from mlir_runner import LLC, TRANSLATE, verified

from pyv_npu.cli import main

PAGE = Path(__file__).resolve().parents[3] / "docs" / "mlir.md"


@pytest.mark.slow
def test_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    need(TRANSLATE, LLC, "riscv64-unknown-elf-gcc")
    text = PAGE.read_text(encoding="utf-8")
    (module,) = re.findall(r"^```mlir\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    Path("attention.mlir").write_text(module)
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = "".join(blocks).splitlines()
    assert len(lines) == 9
    for line in lines:
        assert main(shlex.split(line)[1:]) == 0, line
    said = capsys.readouterr().out
    assert "saved per command" in said and Path("out/report.html").exists()
    (shown,) = re.findall(r"^```\n( {8}lui.*?)^```", text, re.DOTALL | re.MULTILINE)
    code = re.sub(r"\s+", " ", re.sub(r"#.*", "", Path("attention.s").read_text()))
    assert re.sub(r"\s+", " ", shown).strip() in code
    verified(module.replace("maximumf", "maxf"))  # its name in MLIR 16
