"""`pyv-npu docs`: every page of the documentation on the terminal."""

import re
import sys
from pathlib import Path

import pytest

from pyv_npu.cli import main
from pyv_npu.cli.verbs import docs

ROOT = Path(__file__).resolve().parents[3]
PAGES = {path.stem: path for path in (ROOT / "docs").glob("*.md")}


def test_the_list_has_every_page_with_its_title(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head == "pages (pyv-npu docs PAGE)"
    titles = {name: re.search(r"^# (.+)", path.read_text(), re.MULTILINE) for name, path in PAGES.items()}
    assert [row.split(maxsplit=1) for row in rows] == [[name, titles[name][1]] for name in sorted(PAGES)]


def test_a_page_is_shown_as_it_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    for name, path in PAGES.items():
        assert main(["docs", name]) == 0
        shown = capsys.readouterr().out
        assert shown.split() == re.sub(r"<!--.*?-->", "", path.read_text(), flags=re.DOTALL).split()


def test_a_section_ends_where_the_next_one_begins(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "npu-timing.md", "levels"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("## Levels\n") and "\n### Tiles\n" in text and "\n## " not in text


def test_a_terminal_gets_a_pager(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[str] = []
    monkeypatch.setattr(docs, "pager", shown.append)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["docs", "glossary"]) == 0
    assert capsys.readouterr().out == "" and shown[0].startswith("# Glossary\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["latncy"], "latncy: must be one of architecture, assembler, "),
        (["latncy"], "; did you mean latency?\n"),
        (["latency", "resons"], "resons: is no section of latency; it has Submit latency, "),
        (["latency", "resons"], "; did you mean Reasons?\n"),
    ],
)
def test_a_wrong_name_is_one_line(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", *arguments]) == 64
    error = capsys.readouterr().err
    assert text in error and error.count("\n") == 1
