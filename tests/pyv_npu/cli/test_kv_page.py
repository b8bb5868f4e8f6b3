"""The examples of docs/kv-cache.md, each run."""

import re
import shlex
from pathlib import Path

import onnx
import pytest

from pyv_npu.cli.main import main
from toolchain.examples import DECODERS

PAGE = (Path(__file__).parents[3] / "docs/kv-cache.md").read_text(encoding="utf-8")
FILES = re.findall(r"^```\w+ (\S+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
EXAMPLES = [
    (command, wanted.splitlines())
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    for command, wanted in re.findall(r"^\$ pyv-npu (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
]


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 12 and all(wanted for _, wanted in EXAMPLES)
    assert [name for name, _ in FILES] == ["kv.yaml", "tiles.json", "update.json"]


@pytest.mark.parametrize(("command", "wanted"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_an_example_prints_what_the_page_says(
    command: str, wanted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES:
        Path(name).write_text(text)
    if "decoder_kv.onnx" in command:
        onnx.save(DECODERS["decoder_kv"](), "decoder_kv.onnx")
    code = main(shlex.split(command))
    said = capsys.readouterr()
    assert code == (65 if "llama2-13b" in command else 0)
    for line in wanted:
        assert line in (said.err if code else said.out)
