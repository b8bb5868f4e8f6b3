"""`pyv-npu new` and `info` for build systems: the project builds with each of them, and does what it says."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from external_tools import GCC, PICOLIBC, needs
from packaging.requirements import Requirement

from pyv_npu.cli import main
from pyv_npu.config import load
from pyv_npu.workloads.firmware import run_program

needs_compiler = needs(GCC, PICOLIBC)
FILES = [
    ".github/workflows/firmware.yml",
    ".gitignore",
    ".vscode/launch.json",
    ".vscode/tasks.json",
    "CMakeLists.txt",
    "Makefile",
    "README.md",
    "main.c",
    "npu.schema.json",
    "npu.yaml",
    "tests/test_my_npu.py",
]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "my-npu"]) == 0
    assert capsys.readouterr().out.split() == [f"my-npu/{name}" for name in FILES]
    return tmp_path / "my-npu"


def test_the_files_of_a_project(project: Path) -> None:
    for name in FILES:
        assert not re.search(r"@[A-Z]+@", (project / name).read_text()), name
    launch = json.loads((project / ".vscode/launch.json").read_text())
    assert {row["type"] for row in launch["configurations"]} == {"cppdbg", "cortex-debug"}
    tasks = {row["label"] for row in json.loads((project / ".vscode/tasks.json").read_text())["tasks"]}
    assert {row["preLaunchTask"] for row in launch["configurations"]} <= tasks
    schema = json.loads((project / "npu.schema.json").read_text())
    jsonschema.validate(yaml.safe_load((project / "npu.yaml").read_text()), schema)
    assert load([project / "npu.yaml"]).config.npu.queue.command_size == 16
    compile((project / "tests/test_my_npu.py").read_text(), "test_my_npu.py", "exec")
    (job,) = yaml.safe_load((project / ".github/workflows/firmware.yml").read_text())["jobs"].values()
    (install,) = (shlex.split(step["run"]) for step in job["steps"] if "pip install" in step.get("run", ""))
    packages = [Requirement(word) for word in install[install.index("install") + 1 :]]
    assert [package.name for package in packages] == ["pyv-npu", "pytest"]
    assert packages[0].url == "git+https://github.com/pyv-npu/pyv-npu", "no package index has it"


@needs_compiler
def test_the_program_multiplies_in_both_modes(project: Path) -> None:
    assert main(["build", "my-npu/main.c", "-o", "my-npu/build/my-npu.elf", "--flag=-Wall", "--flag=-Werror"]) == 0
    for mode in ("loose", "tight"):
        config = load([project / "npu.yaml"], overrides={"npu.mode": mode}).config
        result = run_program(config, project / "build/my-npu.elf", {"n": 2})
        assert (result.exit_code, result.core.uart) == (0, f"{mode}: 2 products, wrong elements: 0\n")
        assert result.json["npu"]["completed"] == 8 and result.json["latency"]["n"] == 8


MISUSE = """
#include "npu_driver.h"
int main(void)
{
    static int8_t data[64];
    struct npu_tile tile = {0x30000000, 4, 4, NPU_TYPE_INT8}, wide = {0x30000000, 4, 5, NPU_TYPE_INT8};
    struct npu_tile none = {0x30000000, 0, 4, NPU_TYPE_INT8}, tall = {0x30000000, 65536, 4, NPU_TYPE_INT8};
    int bad = npu_open(NPU_MODE_AUTO) != 0;
    bad += npu_load(none, data, 0) != -NPU_EINVAL;
    bad += npu_load(tall, data, 0) != -NPU_EINVAL;
    bad += npu_load(tile, data, 65536) != -NPU_EINVAL;
    bad += npu_store(data, none, 0) != -NPU_EINVAL;
    bad += npu_gemm(tile, tile, wide) != -NPU_EINVAL;
    bad += npu_gemm(tile, wide, tile) != -NPU_EINVAL;
    bad += npu_completed() != 0;
    return bad;
}
"""


@needs_compiler
def test_tiles_that_do_not_fit_are_not_submitted(tmp_path: Path) -> None:
    (tmp_path / "misuse.c").write_text(MISUSE)
    assert main(["build", str(tmp_path / "misuse.c"), "-o", str(tmp_path / "misuse.elf")]) == 0
    for mode in ("loose", "tight"):
        assert run_program(load(overrides={"npu.mode": mode}).config, tmp_path / "misuse.elf").exit_code == 0


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("tool", ["make", "cmake"])
def test_each_build_system_and_the_tests_of_the_project(tool: str, project: Path) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"needs {tool}: apt-get install {tool}")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def run(*command: str) -> None:
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    if tool == "make":
        run("make")
    else:
        run("cmake", "-B", "build")
        run("cmake", "--build", "build")
    run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["new", "9x"],
            64,
            "9x: the name of a project begins with a letter and has letters, digits, - and _, at most 64;",
        ),
        (["new", "a" * 65], 64, "a" * 65 + ": the name of a project begins"),
        (["new", ".."], 64, "..: the name of a project begins"),
        (["new", "my-npu"], 65, "my-npu: is there already; choose another name, or remove it"),
        (["info", "--march", "rv32i"], 64, "--march: goes with --cflags and --ldflags; drop it"),
        (["info", "--include", "--slot", "1"], 64, "--slot: goes with --cflags; drop it"),
        (["info", "--cflags", "--ldflags"], 64, "argument --ldflags: not allowed with argument --cflags"),
        (["info", "--cflags", "--march", "rv64g"], 69, "--march rv64g: must begin with rv32i or rv64i, for example"),
    ],
)
def test_a_wrong_request(
    arguments: list[str], code: int, message: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    error = capsys.readouterr().err
    assert error.startswith(f"pyv-npu: error: {message}") and error.count("\n") == 1


def test_flags_for_build_systems(capsys: pytest.CaptureFixture[str]) -> None:
    answers = {}
    for what in ("cflags", "ldflags", "link-script", "include", "runtime"):
        assert main(["info", f"--{what}"]) == 0
        answers[what] = capsys.readouterr().out.split()
    assert f"-I{answers['include'][0]}" in answers["cflags"] and f"-T{answers['link-script'][0]}" in answers["ldflags"]
    assert (Path(answers["include"][0]) / "npu_driver.h").is_file()
    assert all(Path(source).is_file() for source in answers["runtime"])
    assert not [flag for flag in answers["cflags"] if flag.startswith("-W")]
