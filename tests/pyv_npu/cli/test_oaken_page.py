"""The examples of docs/oaken.md, each run."""

import re
import shlex
from pathlib import Path

import onnx
import pytest

from pyv_npu.cli.main import main
from toolchain.examples import DECODERS

PAGE = (Path(__file__).parents[3] / "docs/oaken.md").read_text(encoding="utf-8")
BLOCKS = [
    re.findall(r"^\$ pyv-npu (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
]


LONG = {"--report", "--layers"}


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, id=block[0][0], marks=[pytest.mark.slow] * (not LONG.isdisjoint(block[0][0].split())))
        for block in BLOCKS
    ],
)
def test_a_block_prints_what_the_page_says(
    block: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(DECODERS["decoder_kv"](), "decoder_kv.onnx")
    for command, wanted in block:
        assert main(shlex.split(command)) == 0
        said = capsys.readouterr().out
        assert wanted and all(line in said for line in wanted.splitlines())
