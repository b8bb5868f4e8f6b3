"""The wheel works away from the checkout: it holds all that the commands of the README need.

The wheel is built, or taken from the folder that PYV_NPU_WHEEL names.
"""

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from test_documented_commands import commands

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.slow

TOOLS = {"build": "riscv64-unknown-elf-gcc", "build-engine": "verilator"}
"""Verb -> program of the system without which it cannot work."""
FILES = {
    "first.s": ".globl _start\n_start: li t0, 0x100000\nli t1, 0x5555\nsw t1, 0(t0)\nj .\n",
    "main.c": "int main(void) { return 0; }\n",
    "kv.yaml": "qbits_kv_default: 8\n",
    "model.mlir": """func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %y = tosa.tanh %x : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}
""",
}
COPIES = """
import shutil
from pathlib import Path
import pyv_npu
from pyv_npu.boot import find_program, model_file
shutil.copytree(Path(pyv_npu.__file__).with_name("examples"), "examples")
Path("path/to").mkdir(parents=True)
Path("FOLDER").mkdir()
for name in ("my.elf", "path/to/my.elf", "test.elf"):
    shutil.copy(find_program("hello"), name)
for name, model in (("model", "cnn"), ("MODEL", "cnn"), ("decoder", "decoder_kv")):
    shutil.copy(model_file(model), f"{name}.onnx")
"""
"""Program that makes files of the user of whatever the wheel holds."""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment that has the wheel and its small extras."""
    folder = tmp_path_factory.mktemp("wheel")
    built = Path(os.environ.get("PYV_NPU_WHEEL") or folder / "built").resolve()
    if not built.exists():  # a build leaves files behind: not in the checkout
        source = folder / "source"
        shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "out", "*.egg-info", "__pycache__"))
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", built, source, cwd=folder)
    (wheel,) = built.glob("*.whl")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[fmu,mlir]", cwd=folder)
    return python


def test_the_commands_of_the_readme_run_in_an_empty_folder(python: Path, tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    tool = python.with_name("pyv-npu")
    run(python, "-c", COPIES, cwd=tmp_path)
    run(tool, "compile", "model.onnx", "-o", "compiled", cwd=tmp_path)
    shutil.copy(tmp_path / "compiled" / "cmdq.json", tmp_path / "CMDQ.json")
    for name in ("before", "after"):
        run(tool, "compare", "submit_latency", "--arg", "n=20", "--phases", "0", "--report", name, cwd=tmp_path)
    path = f"{python.parent}:{os.environ['PATH']}"
    failures = {}
    for page, line in commands():
        verb = line.partition(" ")[0]
        if page != "README.md" or verb == line == "profile-kv" or not shutil.which(TOOLS.get(verb, "sh")):
            continue
        done = subprocess.run(
            ["bash", "-c", f"pyv-npu {line}"], cwd=tmp_path, env=os.environ | {"PATH": path},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800,
        )  # fmt: skip
        if done.returncode:
            failures[line] = done.stderr.strip()
        shutil.rmtree(tmp_path / "out", ignore_errors=True)  # the next one may refuse what another has left there
    assert failures == {}


def test_the_wheel_runs_the_shipped_firmware_anywhere(python: Path, tmp_path: Path) -> None:
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
