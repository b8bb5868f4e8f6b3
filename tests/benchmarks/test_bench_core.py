"""Tables of `scripts/bench core` are those of docs/benchmarks.md, whatever their figures."""

import re
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest
from external_tools import GCC, PICOLIBC, QEMU, needs

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"

pytestmark = needs(GCC, PICOLIBC, QEMU)


def tables(text: str) -> list[list[str]]:
    """Returns the first cells of the rows of each Markdown table."""
    return [
        re.findall(r"^\| ([^|]*?) \|", table, re.MULTILINE) for table in re.split(r"\n\n+", text) if "|---|" in table
    ]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["start", "speeds", "profile"])
def test_the_page_shows_the_tables_that_the_script_prints(part: str) -> None:
    command = [sys.executable, "scripts/bench", "core", "--divide", "4000", "--repeats", "1", "--only", part]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stderr
    printed = tables(process.stdout)
    assert len(printed) == {"speeds": 3, "start": 3 if which("valgrind") else 2, "profile": 1}[part]
    page = tables(PAGE.read_text(encoding="utf-8"))
    assert all(table in page for table in printed)
