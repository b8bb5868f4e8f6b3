"""scripts/bench-core does what docs/benchmarks.md says; what it measures is its own affair."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from external_tools import GCC, PICOLIBC, QEMU, needs

ROOT = Path(__file__).resolve().parent.parent.parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"

pytestmark = needs(GCC, PICOLIBC, QEMU)


def tables(text: str) -> list[list[str]]:
    """The first cells of the rows of each Markdown table."""
    return [
        re.findall(r"^\| ([^|]*?) \|", table, re.MULTILINE) for table in re.split(r"\n\n+", text) if "|---|" in table
    ]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["start", "speeds", "where"])
def test_the_page_shows_the_tables_that_the_script_prints(part: str) -> None:
    command = [sys.executable, "-m", "pyv_npu.benchmarks.core", "--divide", "4000", "--repeats", "1", "--only", part]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    printed = tables(done.stdout)
    assert len(printed) == {"speeds": 3, "start": 2, "where": 1}[part]
    shown = tables(PAGE.read_text(encoding="utf-8"))
    assert all(table in shown for table in printed)
