"""What the README shows is what its command gives."""

from pathlib import Path

import pytest

from pyv_npu.cli import main

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.slow


def test_table_and_picture_are_those_of_the_demo(tmp_path: Path) -> None:
    """Stale? Run scripts/demo, copy out/demo/latency_cdf.svg to docs/ and the tables of its summary to the README."""
    assert "compare submit_latency" in (ROOT / "scripts" / "demo").read_text(encoding="utf-8")
    assert main(["compare", "submit_latency", "--report", str(tmp_path)]) == 0
    picture = Path("docs", "latency_cdf.svg")
    assert (tmp_path / picture.name).read_text(encoding="utf-8") == (ROOT / picture).read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = next(block for block in readme.split("```")[1::2] if "t_submit" in block)
    summary = (tmp_path / "summary.txt").read_text(encoding="utf-8")
    for table in shown.strip("\n").split("\n\n"):
        assert table in summary
