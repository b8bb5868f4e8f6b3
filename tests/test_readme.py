"""What the README shows is what its command gives."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_table_and_picture_are_those_of_the_demo() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "readme", "--check"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_the_demo_is_the_command_whose_output_the_readme_shows() -> None:
    assert "pyv-npu compare submit_latency --report" in (ROOT / "scripts" / "demo").read_text(encoding="utf-8")
