"""The wheel works in a fresh environment outside the checkout, for a user without root.

The commands of the tutorials print what the page shows, those of the README end well. The wheel is built, or taken from
the folder that PYV_NPU_WHEEL names; PYV_NPU_PYTHONS names the Pythons. Where the tests run as root, the user is nobody.
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
from sessions import PAGES, ROOT, TUTORIALS, played_in
from test_documented_commands import commands

PYTHONS = os.environ.get("PYV_NPU_PYTHONS", f"python3.{sys.version_info.minor}").split()
NOBODY = 65534
USER: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
TOOLS = {"build": "riscv64-unknown-elf-gcc", "build-engine": "verilator"}
"""Verb -> program of the system without which it cannot work."""
FILES = """
pyv-npu export-models . cnn decoder_kv
mv decoder_kv.onnx decoder.onnx && cp cnn.onnx model.onnx && mv cnn.onnx MODEL.onnx
pyv-npu compile model.onnx --emit npu-mlir -o model.mlir
pyv-npu compile model.onnx -o compiled && mv compiled/cmdq.json CMDQ.json && cp compiled/image.elf my.elf
cp my.elf test.elf && mkdir -p FOLDER path/to && cp my.elf path/to
pyv-npu new project && cp project/main.c .
pyv-npu docs assembler | sed -n '/\\.globl _start/,/\\.space/s/^    //p' > first.s
echo 'override.layer_0.kv: 8' > kv.yaml
pyv-npu compare submit_latency --arg n=20 --no-sweeps --phases 0 --report demo
for report in before after; do pyv-npu run hello --report $report; done
"""
"""Commands that make the files which commands of the README name."""


def run(*command: str | Path, cwd: Path, **process: Any) -> str:
    """Return the output of a command, which has to succeed."""
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1800,
        **process,
    )  # fmt: skip
    if done.returncode:
        raise AssertionError(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


@pytest.fixture(scope="session")
def home() -> Iterator[Path]:
    """The empty home of the user."""
    with tempfile.TemporaryDirectory(prefix="pyv-npu-") as name:
        if USER:
            os.chown(name, NOBODY, NOBODY)
        yield Path(name)


@pytest.fixture(scope="session")
def wheel(home: Path) -> Path:
    built = Path(os.environ.get("PYV_NPU_WHEEL") or home / "built").resolve()
    if not built.exists():  # a build leaves files behind: not in the checkout
        source = home / "source"
        ignored = shutil.ignore_patterns(".git", ".venv", ".*cache*", "build", "out", "*.egg-info", "__pycache__")
        shutil.copytree(ROOT, source, symlinks=True, ignore=ignored)
        run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", built, source, cwd=home)
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="session", params=PYTHONS)
def process(request: pytest.FixtureRequest, home: Path, wheel: Path) -> dict[str, Any]:
    """Arguments of `subprocess` for a shell of the user in which the wheel is installed."""
    private = "PYTHON", "PYV_NPU", "VIRTUAL_", "XDG_"
    own = {name: value for name, value in os.environ.items() if not name.startswith(private)}
    process: dict[str, Any] = {**USER, "env": {**own, "HOME": str(home), "PATH": os.defpath}}
    environment = home / request.param
    for folder in os.get_exec_path():
        try:
            run(Path(folder, request.param), "-m", "venv", environment, cwd=home, **process)
            break
        except (OSError, AssertionError):
            continue
    else:
        pytest.skip(f"PATH has no {request.param} that the user may run, with the module venv")
    process["env"]["PATH"] = f"{environment}/bin:{os.defpath}"
    run("python", "-m", "pip", "install", "-q", f"{wheel}[fmu,mlir]", cwd=home, **process)
    return process


@pytest.fixture
def folder(home: Path, process: dict[str, Any]) -> Iterator[Path]:
    """An empty folder of the user."""
    with tempfile.TemporaryDirectory(dir=home) as name:
        if USER:
            os.chown(name, NOBODY, NOBODY)
        yield Path(name)


@pytest.mark.slow
def test_the_wheel_holds_what_a_user_needs(folder: Path, process: dict[str, Any]) -> None:
    def output(command: str) -> str:
        return run("bash", "-euc", command, cwd=folder, **process)

    assert "hello from hart 0" in output("pyv-npu run hello")
    assert "absent   firmware" not in output("pyv-npu doctor")
    assert "outcome      recovered" in output("pyv-npu run submit_latency --arg n=20 --faults lost_doorbell")
    assert "\nmlp: tight, core fast" in output("pyv-npu run mlp")
    assert "my-fw/.github/workflows/firmware.yml" in output("pyv-npu new my-fw")
    assert output("pyv-npu docs latency").startswith("# Submit latency\n")
    names = "import importlib.util as u; print([u.find_spec(name) for name in ('toolchain', 'firmware', 'examples')])"
    assert output(f'python -c "{names}"') == "[None, None, None]\n"
    text = "from importlib.metadata import distribution as d; print(d('pyv-npu').read_text('METADATA'))"
    metadata = output(f'python -c "{text}"')
    assert "Project-URL: Documentation, https://" in metadata and not re.search(r"\]\((?!https?://|#)", metadata)


@pytest.mark.nightly
@pytest.mark.parametrize("name", TUTORIALS)
def test_the_commands_of_a_tutorial_print_what_the_page_shows(name: str, folder: Path, process: dict[str, Any]) -> None:
    page = PAGES[name].read_text(encoding="utf-8")
    assert played_in(page, folder, **process) == page


@pytest.mark.nightly
def test_the_commands_of_the_readme_end_well(folder: Path, process: dict[str, Any]) -> None:
    files = folder / "files"
    run("mkdir", files, cwd=folder, **process)
    run("bash", "-euc", FILES, cwd=files, **process)
    lines = [line for page, line in commands() if page == "README.md"]
    assert len(lines) > 25
    failures = []
    for number, line in enumerate(lines):
        if not shutil.which(TOOLS.get(line.partition(" ")[0], "sh")):
            continue
        copy = folder / str(number)  # results of one command are no inputs of the next
        run("cp", "-r", files, copy, cwd=folder, **process)
        try:
            before = "mkdir out && cp -r demo out && " if "out/demo" in line else ""  # of scripts/demo
            run("bash", "-c", f"{before}pyv-npu {line}", cwd=copy, **process)
        except AssertionError as error:
            failures.append(str(error))
        shutil.rmtree(copy)
    assert not failures, "\n".join(failures)
