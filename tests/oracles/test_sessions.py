"""What the pages with sessions show is what happens."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from external_tools import GDB, needs
from sessions import PAGES, TUTORIALS, played


@pytest.mark.slow
@needs(GDB)
def test_every_command_of_the_page_on_debugging_prints_what_the_page_shows() -> None:
    page = PAGES["debugging"].read_text(encoding="utf-8")
    assert page.count("\n(gdb) ") > 20
    assert played(page) == page, "if it is right: scripts/sessions"


@pytest.mark.slow
@pytest.mark.parametrize("name", TUTORIALS)
def test_every_command_of_a_tutorial_prints_what_the_page_shows(name: str) -> None:
    page = PAGES[name].read_text(encoding="utf-8")
    assert page.count("\n$ ") >= 5
    assert played(page) == page, "if it is right: scripts/sessions"


def test_the_tutorial_begins_with_a_fresh_machine() -> None:
    page = PAGES["tutorial"].read_text(encoding="utf-8")
    setups = [block.split("\n", 1)[0] for block in page.split("```sh\n")[1:]]
    assert setups == ["python3 -m venv .venv", "scripts/demo"], "what a fresh machine begins with is not played"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llm", "serving"])
def test_every_command_of_a_page_on_language_models_prints_what_the_page_shows(name: str) -> None:
    page = PAGES[name].read_text(encoding="utf-8")
    assert page.count("\n$ ") >= 3
    assert played(page) == page, "if it is right: scripts/sessions"


def test_the_programs_of_the_page_on_python_print_what_the_page_shows() -> None:
    page = PAGES["python"].read_text(encoding="utf-8")
    assert page.count("\n```python\n# ") == 3
    assert played(page) == page, "if it is right: scripts/sessions"


@pytest.mark.parametrize("name", PAGES)
def test_every_command_of_a_page_shows_something_or_writes_a_file(name: str) -> None:
    """A filter behind a command that no longer matches leaves an empty block, which is "what the command prints"."""
    blocks = PAGES[name].read_text(encoding="utf-8").split("```console\n")[1:]
    lines = [line for block in blocks for line in block.split("```")[0].splitlines()]
    silent = [line for line, after in pairwise([*lines, "$ "]) if line.startswith("$ ") and after.startswith("$ ")]
    assert [line for line in silent if not re.search(r"> \S+$", line)] == []


def test_a_page_that_lies_is_found(tmp_path: Path) -> None:
    page = (
        "```python\n# a.py\nprint(6 * 7)\n```\n```json b.json\n[1]\n```\n"
        "```console\n$ python a.py\n43\n$ cat b.json\n$ echo $((1 + 1)) >&2\n```\n"
    )
    right = page.replace("43", "42").replace("$ cat b.json\n", "$ cat b.json\n[1]\n").replace(">&2\n", ">&2\n2\n")
    assert played(page) == right
