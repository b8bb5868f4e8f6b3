"""`scripts/bench`: names, options, several benchmarks in a row, and errors of one line."""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from pkgutil import iter_modules

import pytest

import benchmarks
from benchmarks import host, runner
from benchmarks.core import processes
from pyv_npu.config import load
from pyv_npu.errors import PyvNpuError, UsageError

SHARED = {"host", "peers", "runner"}


class Recorder:
    """Stub of a benchmark: it records its runs and returns an exit code."""

    def __init__(self, runs: list[int], code: int) -> None:
        self.runs, self.code = runs, code

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds an option."""
        parser.add_argument("--points", type=runner.positive, default=7)

    def run(self, args: argparse.Namespace) -> int:
        """Records the option."""
        self.runs.append(args.points)
        return self.code


def failure(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Returns the only line that a command line ends with."""
    with pytest.raises(SystemExit) as exit:
        runner.main(words)
    text = exit.value.code if isinstance(exit.value.code, str) else capsys.readouterr().err.removesuffix("\n")
    assert exit.value.code and "\n" not in text
    return text


def test_every_module_but_the_shared_ones_is_a_benchmark() -> None:
    modules = {module.name for module in iter_modules(benchmarks.__path__)}
    assert {name.replace("-", "_") for name in runner.NAMES} == modules - SHARED


def test_the_list_describes_each_benchmark_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(runner.NAMES)
    assert all(len(line.split()) > 5 and len(line) <= 120 and line.endswith(".") for line in lines)


@pytest.mark.parametrize("name", runner.NAMES)
def test_each_benchmark_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        runner.main([name, "--help"])
    assert exit.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: scripts/bench {name} ") and runner.summary(name) in text
    assert callable(runner.load(name).run)


def test_the_script_runs_from_any_folder(tmp_path: Path) -> None:
    command = [sys.executable, str(host.ROOT / "scripts" / "bench"), "tile-form", "300"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    assert "tile commands, " in process.stdout and "us of CPU each" in process.stdout


def test_several_benchmarks_run_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: list[int] = []
    stubs = {"oaken": Recorder(runs, 0), "core": Recorder(runs, 3), "npu": Recorder(runs, 0)}
    monkeypatch.setattr(runner, "load", stubs.__getitem__)
    assert runner.main(["oaken", "core", "npu"]) == 3
    assert runs == [7, 7, 7]
    assert capsys.readouterr().out == "== oaken\n== core\n== npu\n"
    assert runner.main(["npu", "--points", "2"]) == 0
    assert runs[3:] == [2] and capsys.readouterr().out == ""
    assert "--points: belongs to which of oaken, core? Give one NAME" in failure(
        capsys, "oaken", "core", "--points", "2"
    )
    assert "0: must be an integer from 1" in failure(capsys, "npu", "--points", "0")
    assert "-1: must be an integer from 1" in failure(capsys, "npu", "--points=-1")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "scripts/bench: no NAME; --list prints the names"),
        (["coer"], "coer: choose core, submissions, "),
        (["coer"], "did you mean core?"),
        (
            ["oaken", "--faster"],
            "scripts/bench oaken: unrecognized arguments: --faster; see scripts/bench oaken --help",
        ),
        (["core", "--core", "faster"], "core.engine = faster: must be one of "),
        (["core", "--only", "speed"], "invalid choice: 'speed'"),
        (["npu", "GEMM"], "GEMM: choose GEMM 1024, "),
        (["models", "--config", "nowhere.yaml"], "nowhere.yaml"),
        (["submissions", "--against", "/nowhere"], "/nowhere: no checkout of this project"),
        (["sanitize", "nothing"], "nothing"),
        (["mutation", "codecs"], "codecs: choose abi, "),
    ],
)
def test_a_wrong_command_line_is_refused_in_a_line(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert text in failure(capsys, *words)


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "benchmarks.oaken", None)
    assert "pip install -e '.[test]'" in failure(capsys, "oaken")


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("speeds", "scripts/bench core: needs qemu-system-riscv32: sudo apt-get install qemu-system-misc"),
        ("debugger", "scripts/bench core: needs gdb-multiarch: sudo apt-get install gdb-multiarch"),
    ],
)
def test_a_missing_peer_is_named_with_the_command_that_installs_it(
    part: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert failure(capsys, "core", "--only", part) == text


def test_spike_is_optional(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    processes.spike.cache_clear()
    monkeypatch.setenv("SPIKE", "/nowhere/spike")
    with pytest.raises(UsageError, match=r"SPIKE=/nowhere/spike: no such program: git clone "):
        processes.spike()
    monkeypatch.delenv("SPIKE")
    assert processes.spike() == processes.spike() == ""
    assert capsys.readouterr().err.count("Spike is not measured: git clone ") == 1


def test_an_isolated_function_has_a_process_of_its_own() -> None:
    assert host.isolated(os.getpid) != os.getpid()
    with pytest.raises(PyvNpuError, match="nowhere"):
        host.isolated(load, ["nowhere.yaml"])


def test_a_failed_process_is_named_with_its_output() -> None:
    with pytest.raises(SystemExit) as exit:
        processes.run_cold([sys.executable, "-c", "print('no checksum'); raise SystemExit(3)"])
    assert str(exit.value.code).endswith("exit code 3\nno checksum")


def test_submissions_are_measured_in_this_checkout(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main(["submissions", "--only", "timing", "window-64", "--divide", "500"]) == 0
    *_, submissions, tiles = (
        [cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()
    )
    assert submissions[:3] == ["submissions without values", "100,000", "200"] and submissions[-1] == "0.6 s"
    assert tiles[:3] == ["tile commands, scheduler.window 64", "65,536", "256"] and tiles[-1] == ""
    for _, amount, _, cost, seconds, peak, *_ in (submissions, tiles):
        assert float(seconds) == pytest.approx(float(cost) * int(amount.replace(",", "")) / 1e6, abs=0.06)
        assert float(cost) > 0 and float(peak) > 10
