"""The examples of docs/kv-cache.md, and the commands of its table of rules, each run."""

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
RULES = [
    (section.strip(), shlex.split(command), re.findall("`([^`]*)`", shown))
    for section, command, shown in re.findall(r"^\| (00[03].*?) \|.*\| `pyv-npu (.*?)` \| (.*) \|$", PAGE, re.MULTILINE)
]
"""Section, words of the command, texts that it shows."""


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 12 and all(wanted for _, wanted in EXAMPLES)
    assert [name for name, _ in FILES] == ["kv.yaml", "tiles.json", "update.json", "wrong.json", "packing.yaml"]


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


@pytest.mark.slow
@pytest.mark.parametrize(("section", "words", "shown"), RULES, ids=[" ".join(one[1]) for one in RULES])
def test_a_rule_is_shown_by_its_command(
    section: str, words: list[str], shown: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for name, text in FILES:
        Path(name).write_text(text)
    onnx.save(DECODERS["decoder_kv"](), "decoder_kv.onnx")
    code = main(words)
    assert code == (65 if "llama2-13b" in words or "wrong.json" in words else 0)
    said, files = "".join(capsys.readouterr()), [file for file in Path("DIR").rglob("*") if file.is_file()]
    texts = [said, *(file.read_text(encoding="utf-8", errors="replace") for file in files)]
    for text in shown:
        assert text in {file.name for file in files} or any(text in one for one in texts), text


def test_each_section_with_rules_has_a_command() -> None:
    named = " ".join(section for section, _, _ in RULES)
    for section in (
        *(f"000.{number}" for number in (2, *range(4, 15))),
        "003.3",
        "003.10",
        "003.12",
        "003.13",
        "003.14",
    ):
        assert re.search(rf"{re.escape(section)}\b", named), section
