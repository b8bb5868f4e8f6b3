"""Commands on a host that fails: earlier results stay, the message says what failed, the same command succeeds next.

The schedule of docs/reliability.md: each command, each kind of call, the first call that fails, the second, and so on
until the command succeeds.
"""

import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from external_tools import GCC, PICOLIBC, needs
from host_faults import KINDS, failing

from pyv_npu.cli import main


class Case(NamedTuple):
    """A command that is run over the results of an earlier one."""

    before: list[str]
    """What made the results that are there; empty: none."""
    command: list[str]
    out: str = "out"
    """File or folder of the results; empty: there is none."""


CASES = {
    "run": Case(["run", "hello", "--report", "out"], ["run", "hello", "--mode", "loose", "--report", "out"]),
    "save": Case(["run", "hello", "--save", "out@5000"], ["run", "hello", "--save", "out@6000"]),
    "restore": Case([], ["run", "hello", "--restore", "a.snapshot"], ""),
    "replay": Case([], ["run", "--replay", "report"], ""),
    "faults": Case(
        ["run", "hello", "--report", "out"],
        ["run", "hello", "--mode", "loose", "--faults", "plan.yaml", "--report", "out"],
    ),
    "compare": Case(["run", "hello", "--report", "out"], ["compare", "hello", "--phases", "0", "--report", "out"]),
    "campaign": Case(
        ["campaign", "plan.yaml", "hello", "-n", "1", "--mode", "tight", "-o", "out"],
        ["campaign", "plan.yaml", "hello", "-n", "2", "--mode", "tight", "-o", "out"],
    ),
    "campaign-csv": Case(
        ["campaign", "plan.yaml", "hello", "-n", "1", "--mode", "tight", "--csv", "out"],
        ["campaign", "plan.yaml", "hello", "-n", "2", "--mode", "tight", "--csv", "out"],
    ),
    "sweep": Case(
        ["sweep", "hello", "core.timing.alu=1", "--mode", "tight", "-o", "out"],
        ["sweep", "hello", "core.timing.alu=1,2", "--mode", "tight", "-o", "out"],
    ),
    "diff": Case(["diff", "a.json", "a.json", "-o", "out"], ["diff", "a.json", "b.json", "-o", "out"]),
    "compile": Case(["compile", "a.onnx", "-o", "out"], ["compile", "b.onnx", "-o", "out"]),
    "compile-apart": Case(
        ["compile", "a.onnx", "-o", "out", "--weights-bin"], ["compile", "b.onnx", "-o", "out", "--weights-bin"]
    ),
    "emit": Case(
        ["compile", "a.onnx", "--emit", "elf", "-o", "out"], ["compile", "b.onnx", "--emit", "elf", "-o", "out"]
    ),
    "check": Case([], ["check", "a.onnx"], ""),
    "model": Case(
        ["run", "a.onnx", "--sim-level", "IA", "--report", "out"],
        ["run", "b.onnx", "--sim-level", "IA_TIMING", "--report", "out"],
    ),
    "traces": Case(
        ["run", "hello", "--report", "out"],
        ["run", "hello", "--report", "out", "--profile", "--trace", "commits,perfetto,konata,vcd"],
    ),
    "asm": Case(["asm", "a.s", "-o", "out"], ["asm", "b.s", "-o", "out"]),
    "disasm": Case([], ["disasm", "a.elf"], ""),
    "new": Case([], ["new", "out"]),
    "export-models": Case([], ["export-models", "out", "mlp"]),
    "export-fmu": Case(["export-fmu", "hello", "-o", "out.fmu"], ["export-fmu", "gemm", "-o", "out.fmu"], "out.fmu"),
    "profile-kv": Case([], ["profile-kv", "decoder_kv", "-o", "out"]),
    "serve": Case(
        ["serve", "llama2-7b", "--first", "2", "--layers", "1", "--check-steps", "0", "--report", "out"],
        ["serve", "llama2-7b", "--first", "3", "--layers", "1", "--check-steps", "0", "--report", "out"],
    ),
    "verify": Case([], ["verify", "report"], ""),
    "build": Case(["build", "a.s", "-o", "out"], ["build", "c.c", "-o", "out"]),
    "build-firmware": Case([], ["build-firmware", "out", "hello"]),
}
TOOLS = ("build", "build-firmware")
SAMPLE = {"run": ("open", "write", "rename", "mmap"), "save": ("write", "rename"), "compile": ("write", "rename"),
          "sweep": ("write",), "asm": ("open", "write", "rename")}  # fmt: skip
"""What the default suite takes: the first calls and some later ones."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands read."""
    folder = tmp_path_factory.mktemp("inputs")
    before = os.getcwd()
    os.chdir(folder)
    try:
        Path("a.s").write_text(".globl main\nmain: li a0,0\nret\n_start: j main\n")
        Path("b.s").write_text(".globl main\nmain: li a0,1\nret\n_start: j main\n")
        Path("c.c").write_text('#include "runtime.h"\nint main(void) { print("c\\n"); return 0; }\n')
        Path("plan.yaml").write_text("faults: [{do: interrupt_spurious, at: {cycle: 900}}]")
        Path("a.json").write_text('{"cycles": 1}')
        Path("b.json").write_text('{"cycles": 2}')
        assert main(["export-models", ".", "mlp", "mlp_int8"]) == 0
        os.rename("mlp.onnx", "a.onnx")
        os.rename("mlp_int8.onnx", "b.onnx")
        assert main(["asm", "a.s", "-o", "a.elf"]) == 0
        assert main(["run", "hello", "--report", "report", "--save", "a.snapshot@5000"]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def place(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the inputs, in which everything that a command writes lies."""
    shutil.copytree(inputs, tmp_path / "work")
    for name, variable in (("tmp", "TMPDIR"), ("cache", "PYV_NPU_CACHE")):
        (tmp_path / name).mkdir(mode=0o700)
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def content(out: str) -> dict[str, bytes]:
    """The files of a result by their paths, without what says when and where it was made."""
    if not out or not os.path.exists(out):
        return {}
    paths = [Path(out)] if os.path.isfile(out) else [path for path in Path(out).rglob("*") if path.is_file()]
    return {str(path): path.read_bytes() for path in paths if path.name != ".lock"}


TIMED = ("result.json", "summary.txt", "report.html", "manifest.json", "profile.txt", "campaign.json")
"""Files with times of the host, or hashes of such."""


def others(found: dict[str, bytes], expected: dict[str, bytes]) -> list[str]:
    """The files that are missing, too many, or of another content."""
    timed = [name for name in expected if Path(name).name in TIMED or name.endswith(".fmu") or "points/" in name]
    names = {*found, *expected} - ({*timed} & {*found})
    return sorted(name for name in names if found.get(name) != expected.get(name))


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def start(case: Case, earlier: Path) -> dict[str, bytes]:
    """The place as it is before the command; `earlier`: where the results of an earlier one are kept."""
    if not case.out:
        return {}
    remove(Path(case.out))
    if case.before and not earlier.exists():
        assert main(case.before) == 0
        os.rename(case.out, earlier)
    if earlier.is_dir():
        shutil.copytree(earlier, case.out)
    elif earlier.exists():
        shutil.copy(earlier, case.out)
    return content(case.out)


BY_FILE = ("sweep", "campaign", "export-models", "build-firmware")
"""Commands whose folder grows file by file."""
MIXED = re.compile(r"points/|manifest|campaign\.json|report\.html|profile")
"""Files with times of the host, or hashes of such."""


def judge(case: Case, before: dict[str, bytes], expected: dict[str, bytes], code: int, error: str) -> None:
    """What is there after a command that met a fault, and after the same command without one."""
    found = content(case.out)
    line = error.splitlines()[-1] if error else ""
    assert "Traceback" not in error and "internal error" not in error, error
    if code == 0 and "points failed" not in error:  # the next sweep runs such a point again
        assert others(found, expected) == []
    elif code == 0:
        assert any(os.strerror(number) in error or "no such memory" in error for number in KINDS.values())
    else:
        assert code in (64, 65, 69), (code, error)
        reasons = (*map(os.strerror, KINDS.values()), "the host gives no such memory")
        assert (line.startswith("pyv-npu: error: ") or case.command[0] == "check") and any(
            reason in line for reason in reasons
        ), line
        if found != before and case.command[0] == "compile":
            assert main(["verify", case.out]) == 65
        elif found != before:
            assert case.command[0] in BY_FILE, sorted(found)
            assert all(
                data in (before.get(name), expected.get(name)) or MIXED.search(name) for name, data in found.items()
            )
    assert not list(Path().rglob("*.part")), "drafts are left"
    if case.command[0] == "new" and code == 0:
        shutil.rmtree(case.out)  # a project is never replaced
    assert main(case.command) == 0
    assert others(content(case.out), expected) == []


def schedule(name: str, kind: str, place: Path, capsys: pytest.CaptureFixture[str], numbers: "list[int] | None") -> int:
    """Fail the n-th call for n = 1.. until the command succeeds without one; how many calls there were."""
    case = CASES[name]
    start(case, place / "earlier")
    assert main(case.command) == 0
    expected = content(case.out)
    number = 1
    while True:
        before = start(case, place / "earlier")
        shutil.rmtree(place / "cache")
        (place / "cache").mkdir(mode=0o700)
        capsys.readouterr()
        with failing(kind, number, str(place)) as plan:
            try:
                code = main(case.command)
            except OSError as error:
                pytest.fail(f"{name}, {kind} {number}: {error!r} leaves main")
        said = capsys.readouterr()
        error = said.err or said.out.rstrip()  # check says in its result why a model does not compile
        if plan.count < number:
            assert code == 0
            return plan.count
        try:
            judge(case, before, expected, code, error)
        except AssertionError as wrong:
            raise AssertionError(f"{name}, {kind} {number} of {' '.join(case.command)}: {wrong}") from wrong
        number = number + 1 if numbers is None else next((one for one in numbers if one > number), 1 << 30)


ALL = [
    pytest.param(name, kind, marks=[pytest.mark.nightly, *([needs(GCC), needs(PICOLIBC)] if name in TOOLS else [])])
    for name in CASES
    for kind in KINDS
]


@pytest.mark.parametrize(("name", "kind"), ALL)
def test_every_call_of_a_command_may_fail(
    name: str, kind: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule(name, kind, place, capsys, None)


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kinds in SAMPLE.items() for kind in kinds])
def test_some_calls_of_a_command_may_fail(
    name: str, kind: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert schedule(name, kind, place, capsys, [4]) > 0


# -- kill -9 -----------------------------------------------------------------------------------------------------------

KILLED = ("run", "save", "compile", "emit", "sweep", "campaign", "export-fmu", "asm")


def kill_at_random(name: str, times: int, place: Path) -> None:
    """End a command by SIGKILL at some moment; earlier results stay, and the same command succeeds next."""
    case, chance = CASES[name], random.Random(name)
    start(case, place / "earlier")
    line = [sys.executable, "-m", "pyv_npu", *case.command]
    began = time.monotonic()
    assert subprocess.run(line, capture_output=True, check=False).returncode == 0
    took, expected = time.monotonic() - began, content(case.out)
    for _ in range(times):
        before = start(case, place / "earlier")
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(chance.uniform(0.3, 1.1) * took)
        process.kill()
        process.wait()
        found = content(case.out)
        if name in BY_FILE or name == "compile":
            for path, data in found.items():
                assert data in (before.get(path), expected.get(path)) or MIXED.search(path), path
        else:
            assert found == before or others(found, expected) == []
        assert subprocess.run(line, capture_output=True, check=False).returncode == 0
        assert others(content(case.out), expected) == []
        assert not [path for path in Path().iterdir() if path.name.endswith((".part", ".old"))]


@pytest.mark.nightly
@pytest.mark.parametrize("name", KILLED)
def test_a_command_may_be_killed_at_any_time(name: str, place: Path) -> None:
    kill_at_random(name, 20, place)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run", "compile"])
def test_a_command_may_be_killed(name: str, place: Path) -> None:
    kill_at_random(name, 2, place)
