"""The wheel holds what the first example of the README needs, and works away from the checkout."""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_runs_the_shipped_firmware_anywhere(tmp_path: Path) -> None:
    source, built = tmp_path / "source", tmp_path / "built"  # a build leaves files behind: not in the checkout
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "out", "*.egg-info", "__pycache__"))
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", built, source, cwd=tmp_path)
    (wheel,) = built.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", wheel, cwd=tmp_path)
    command = python.with_name("pyv-npu")
    assert "hello from hart 0" in run(command, "run", "hello", cwd=tmp_path)
    assert "same results in both modes: yes" in run(
        command, "compare", "submit_latency", "--preset", "rocket", "--arg", "n=100", "--report", "r", cwd=tmp_path
    )
    assert (tmp_path / "r" / "latency_cdf.svg").is_file()
    assert "absent   firmware" not in run(command, "doctor", cwd=tmp_path)
