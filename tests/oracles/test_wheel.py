"""The wheel in a fresh environment outside the checkout, for a user without root, by every Python that PATH has.

All commands of the tutorial print what the page shows, and all commands of the README end well. The user is `nobody`
where the tests run as root.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sessions import PAGES, ROOT, played_in

pytestmark = pytest.mark.slow

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
NOBODY = 65534
USER: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
EXTRAS = "fmu,mlir"
"""Of the commands of the README."""
FILES = """
pyv-npu export-models . cnn decoder_kv
mv decoder_kv.onnx decoder.onnx && cp cnn.onnx model.onnx && mv cnn.onnx MODEL.onnx
pyv-npu compile model.onnx --emit npu-mlir -o model.mlir
pyv-npu compile model.onnx -o compiled && mv compiled/cmdq.json CMDQ.json
pyv-npu new project && cp project/main.c .
pyv-npu build main.c -o my.elf && cp my.elf test.elf && mkdir -p FOLDER path/to && cp my.elf path/to
for report in before after; do pyv-npu run hello --report $report; done
echo 'override.layer_0.kv: 8' > kv.yaml
pyv-npu docs assembler | sed -n '/\\.globl _start/,/\\.space/s/^    //p' > first.s
"""
"""Commands that make the files which commands of the README name."""


def run(*command: str | Path, cwd: Path, **process: Any) -> str:
    """Return what a command prints; it has to succeed."""
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=900, **process)
    assert done.returncode == 0, f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="session")
def home() -> Iterator[Path]:
    """The home of the user, with nothing in it."""
    with tempfile.TemporaryDirectory(prefix="pyv-npu-") as name:
        if USER:
            os.chown(name, NOBODY, NOBODY)
        yield Path(name)


@pytest.fixture(scope="session")
def wheel(home: Path) -> Path:
    source = home / "source"  # a build leaves files behind: not in the checkout
    ignored = shutil.ignore_patterns(".git", ".venv", ".*cache*", "build", "out", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, symlinks=True, ignore=ignored)
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", home / "wheel", source, cwd=home)
    shutil.rmtree(source)
    (path,) = (home / "wheel").glob("*.whl")
    return path


@pytest.fixture(scope="session", params=VERSIONS)
def process(request: pytest.FixtureRequest, home: Path, wheel: Path) -> dict[str, Any]:
    """Arguments of `subprocess` for a shell of the user, in which the wheel is installed."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYV_NPU", "VIRTUAL_"))}
    process = {**USER, "env": {**own, "HOME": str(home), "PATH": os.defpath}}
    folder = home / request.param
    for path in os.get_exec_path():
        python = Path(path, f"python{request.param}")
        try:
            run(python, "-m", "venv", folder, cwd=home, **process)
            break
        except (OSError, AssertionError):
            continue
    else:
        pytest.skip(f"PATH has no python{request.param} that any user may run, with the module venv")
    process["env"]["PATH"] = f"{folder}/bin:{os.defpath}"
    run("pip", "install", "-q", "--no-cache-dir", f"{wheel}[{EXTRAS}]", cwd=home, **process)
    return process


@pytest.fixture
def folder(home: Path, process: dict[str, Any]) -> Iterator[Path]:
    """An empty folder of the user."""
    with tempfile.TemporaryDirectory(dir=home) as name:
        if USER:
            os.chown(name, NOBODY, NOBODY)
        yield Path(name)


def test_the_tutorial(folder: Path, process: dict[str, Any]) -> None:
    page = PAGES["tutorial"].read_text(encoding="utf-8")
    assert played_in(page, folder, **process) == page


def test_every_command_of_the_readme(folder: Path, process: dict[str, Any]) -> None:
    files = folder / "files"
    run("mkdir", files, cwd=folder, **process)
    run("bash", "-euc", FILES, cwd=files, **process)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = dict.fromkeys(re.findall(r'`((?:eval "\$\()?pyv-npu [^`\n]+)`', readme))
    assert len(commands) > 30
    failures = []
    for number, command in enumerate(commands):
        copy = folder / str(number)  # results of one command are no inputs of the next
        run("cp", "-r", files, copy, cwd=folder, **process)
        try:
            run("bash", "-c", command, cwd=copy, **process)
        except AssertionError as error:
            failures.append(str(error))
        shutil.rmtree(copy)
    assert not failures, "\n".join(failures)


def test_the_package(folder: Path, process: dict[str, Any]) -> None:
    names = "import importlib.util as u; print([u.find_spec(name) for name in ('toolchain', 'firmware', 'examples')])"
    assert run("python", "-c", names, cwd=folder, **process) == "[None, None, None]\n"
    text = "from importlib.metadata import distribution as d; print(d('pyv-npu').read_text('METADATA'))"
    metadata = run("python", "-c", text, cwd=folder, **process)
    assert "Project-URL: Documentation, https://" in metadata and not re.search(r"\]\((?!https?://|#)", metadata)
    assert "absent   firmware" not in run("pyv-npu", "doctor", cwd=folder, **process)
    project = "pyv-npu new my-fw && cd my-fw && pip install -q pytest && make compare test"
    run("bash", "-euc", project, cwd=folder, **process)
