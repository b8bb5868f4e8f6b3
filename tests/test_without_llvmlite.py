"""What `pytest --without-llvmlite` promises: here and in child processes, as if llvmlite were not installed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HIDING = ROOT / "tests" / "without_llvmlite"


def without(*arguments: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join(filter(None, (str(HIDING), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=ROOT, timeout=60
    )


def test_neither_the_package_nor_its_metadata_is_found() -> None:
    lines = (
        "from importlib import metadata, util",
        "names = {found.name for found in metadata.distributions()}",
        "print(util.find_spec('llvmlite'), util.find_spec('numpy') is not None, 'llvmlite' in names, 'numpy' in names)",
        "import llvmlite",
    )
    done = without("-c", "\n".join(lines))
    assert done.stdout == "None True False True\n"
    assert done.stderr.endswith("ModuleNotFoundError: No module named 'llvmlite'\n")


def test_the_doctor_tells_which_engine_runs() -> None:
    done = without("-m", "pyv_npu", "doctor")
    rows = {line.split()[1]: line for line in done.stdout.splitlines()}
    assert re.fullmatch(r"absent +llvmlite +python -m pip install llvmlite \(.*\)", rows["llvmlite"])
    assert re.fullmatch(r"ok +--core +python is the default", rows["--core"])
    assert done.returncode == 0


def test_a_large_model_runs_all_the_same() -> None:
    """So many steps that its loop would be compiled."""
    done = without("-m", "pyv_npu.benchmarks.bench", "--one", "ResNet-18", "--config", "onnxim-c1")
    assert json.loads(done.stdout)["errors"] == []
