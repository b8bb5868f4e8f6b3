"""Every `pyv-npu` command of the README and of docs/ is one that the command line takes."""

import re
import shlex
from pathlib import Path

import pytest

from pyv_npu.cli.main import parser

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`pyv-npu ([a-z][^`\n]*)`")
LINE = re.compile(r"^(?:\$ )?pyv-npu ([a-z].*)$", re.MULTILINE)
PLACEHOLDERS = {"PORT": "1234", "CYCLE": "5", "N@5": "f@5"}
"""What stands for a number in a command."""


def commands() -> list[tuple[str, str]]:
    found: dict[tuple[str, str], None] = {}
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")  # a command over several lines
        lines = [line for block in BLOCK.findall(text) for line in LINE.findall(block)]
        for line in (*lines, *INLINE.findall(text)):
            found[page.name, line] = None
    return list(found)


def words(line: str) -> list[str]:
    """The command's own words: without comments, pipes and redirections."""
    split = shlex.split(line, comments=True)
    ends = [index for index, word in enumerate(split) if word in ("|", ">", ">>", "&", "&&", ";", "2>")]
    return split[: min(ends, default=len(split))]


def test_there_are_commands() -> None:
    assert len(commands()) > 60


@pytest.mark.parametrize(("page", "line"), commands())
def test_a_command_is_understood(page: str, line: str) -> None:
    given = words(line)
    if len(given) == 1:  # the name of a command, in a sentence
        given.append("--help")
        with pytest.raises(SystemExit) as left:
            parser().parse_args(given)
        assert not left.value.code
        return
    parser().parse_args(given)
