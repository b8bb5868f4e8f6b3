"""What docs/debugging.md shows is what happens."""

import shutil
from pathlib import Path

import pytest
from sessions import GDB, ROOT, played

PAGE = ROOT / "docs" / "debugging.md"


@pytest.mark.skipif(shutil.which(GDB) is None, reason=f"needs {GDB}: apt-get install {GDB}")
def test_every_command_of_the_page_prints_what_the_page_shows() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.count("\n(gdb) ") > 20
    assert played(page) == page, "if it is right: scripts/sessions"


def test_a_page_that_lies_is_found(tmp_path: Path) -> None:
    page = "```python\n# a.py\nprint(6 * 7)\n```\n```console\n$ python a.py\n43\n$ echo $((1 + 1)) >&2\n```\n"
    assert played(page) == page.replace("43", "42").replace(">&2\n", ">&2\n2\n")
