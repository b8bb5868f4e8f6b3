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


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_fits_the_terminal_and_loses_no_word(name: str) -> None:
    text = docs.layout(docs.lines_in(str(PAGES[name])), 72)
    paragraphs = [line.strip() for line in text.splitlines() if not re.match(r"    |#", line) and "  " not in line]
    assert [line for line in paragraphs if len(line) > 72 and " " in line] == []
    source = re.sub(r"<!--.*?-->|^```.*$|\]\([^)\s]*\)|^\|[-|:]+$", "", PAGES[name].read_text(), flags=re.M | re.S)
    missing = set(re.findall(r"\w{3,}", source)) - set(re.findall(r"\w{3,}", text))
    assert missing == set()


def test_tables_items_and_links() -> None:
    page = """# T

A [page](x.md), [y.md](y.md#there), [below](#t) and [far](https://a.org/b).

- one item that is longer
  than a line
- [two](x.md)

| name | text |
|---|---|
| `a\\|b` | some words that are too many for a line |

    x = [1](2)

```sh
# no heading [a](b)
```
"""
    assert docs.layout(page.splitlines(), 30).splitlines() == [
        "# T", "",
        "A page (x.md), y.md, below and", "far (https://a.org/b).", "",
        "- one item that is longer than", "  a line", "- two (x.md)", "",
        "name   text", "-----  -----------------------", "`a|b`  some words that are too", "       many for a line", "",
        "    x = [1](2)", "",
        "    # no heading [a](b)",
    ]  # fmt: skip


def test_a_section_ends_where_the_next_one_begins(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "npu-timing.md", "levels"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("## Levels\n") and "\n### Tiles\n" in text and "\n## " not in text


def test_paths(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "latency", "--path"]) == main(["docs", "--path"]) == 0
    page, folder = map(Path, capsys.readouterr().out.splitlines())
    assert page.samefile(PAGES["latency"]) and folder.samefile(ROOT / "docs")


def test_a_terminal_gets_a_pager(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[str] = []
    monkeypatch.setattr(docs, "pager", shown.append)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "72")
    assert main(["docs", "glossary"]) == 0
    assert capsys.readouterr().out == "" and shown == [docs.layout(docs.lines_in(str(PAGES["glossary"])), 72)]


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
