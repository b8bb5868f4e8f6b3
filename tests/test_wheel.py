"""The wheel holds what the first example of the README needs, and works away from the checkout."""

import re
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
    assert "\nmlp: tight, core fast" in run(command, "run", "mlp", cwd=tmp_path)
    assert "my-fw/main.c" in run(command, "new", "my-fw", cwd=tmp_path)
    assert "lost_doorbell.yaml" in run(command, "info", cwd=tmp_path)
    names = "import importlib.util as u; print([u.find_spec(name) for name in ('toolchain', 'firmware', 'examples')])"
    assert run(python, "-c", names, cwd=tmp_path) == "[None, None, None]\n"
    told = run(
        python,
        "-c",
        "from importlib.metadata import distribution as d; print(d('pyv-npu').read_text('METADATA'))",
        cwd=tmp_path,
    )
    assert "Project-URL: Documentation, https://" in told and not re.search(r"\]\((?!https?://|#)", told)
