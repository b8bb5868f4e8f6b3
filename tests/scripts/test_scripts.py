"""Scripts that the suite does not run start: they have no suffix, and the type checker does not see them."""

import subprocess
import sys

import pytest

from benchmarks.host import ROOT

SCRIPTS = ("bench", "fuzz", "lockstep", "lockstep-pyv", "lockstep-qemu", "make-smollm2")
"""Those with options; the others in Python begin at once."""


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_says_its_options(name: str) -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / name), "--help"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0 and result.stdout.startswith("usage: "), result.stderr
