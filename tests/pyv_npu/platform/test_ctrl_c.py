"""Ctrl-C: the machine stops between two instructions and can go on; reports are written; twice means at once."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

from pyv_ext.engines.core import Stop, StopReason
from pyv_ext.hart.hart import Hart
from pyv_npu import ctrl_c
from pyv_npu.boot import find_program
from pyv_npu.cli import main
from pyv_npu.cli.shared.progress import ERASE
from pyv_npu.config import load
from pyv_npu.platform import Platform
from pyv_npu.studies.break_even import AUTOMATIC, Sweep
from toolchain.examples import EXAMPLES

PROGRAM = "submit_latency"


class Interrupting:
    """A console that presses Ctrl-C while it is given the character `press`, with others or alone."""

    def __init__(self, press: bytes, times: int = 1) -> None:
        self.press = press
        self.times = times

    def __call__(self, data: bytes) -> None:
        if self.press in data and self.times:
            self.times -= 1
            signal.raise_signal(signal.SIGINT)


def platform(console: Interrupting | None = None, **args: int) -> Platform:
    made = Platform(load().config, console=console)
    made.load(find_program(PROGRAM), args)
    return made


def outcome(machine: Platform) -> tuple[object, ...]:
    hart = machine.hart
    return hart.cycle, hart.instret, bytes(hart.x)[:256], machine.console.text, machine.events.hexdigest()


def test_a_run_that_was_interrupted_goes_on_as_if_nothing_had_been() -> None:
    whole, interrupted = platform(n=10), platform(n=10)
    assert interrupted.program is not None
    drain, pressed = interrupted.program.symbols["npu_drain"].address, list[int]()

    def press(hart: Hart) -> None:
        if not pressed:
            pressed.append(hart.cycle)
            signal.raise_signal(signal.SIGINT)

    interrupted.engine.code.add_hook(drain, press)
    assert whole.run().reason is StopReason.EXIT
    stop = interrupted.run()
    assert stop == Stop(StopReason.INTERRUPTED, text=f"interrupted at pc {interrupted.hart.pc:#010x}")
    assert 0 < interrupted.cycle < whole.cycle
    assert interrupted.run() == Stop(StopReason.EXIT, 0, "exit code 0")
    assert outcome(interrupted) == outcome(whole)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_second_ctrl_c_gives_up_at_once() -> None:
    class Twice(Interrupting):
        def __call__(self, data: bytes) -> None:
            super().__call__(data)
            super().__call__(data)

    with pytest.raises(KeyboardInterrupt):
        platform(Twice(b":", 2), n=10).run()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_application_stays() -> None:
    seen = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        assert platform(Interrupting(b":"), n=10).run().reason is StopReason.EXIT
        assert seen == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_run_in_another_thread_is_left_alone() -> None:
    stops: list[Stop] = []
    thread = threading.Thread(target=lambda: stops.append(platform(n=1).run()))
    thread.start()
    thread.join(60)
    assert [stop.reason for stop in stops] == [StopReason.EXIT]


def interrupted(command: str, report: Path) -> tuple[int, str, str]:
    """Press Ctrl-C in a command of many minutes when its progress line shows completed commands: exit code, standard
    output, and standard error behind the progress line."""
    args = [sys.executable, "-m", "pyv_npu", command, PROGRAM, "--arg", "n=10000000", "--report", str(report)]
    ours, theirs = pty.openpty()
    err, pressed = "", False
    with tempfile.TemporaryFile("w+") as out, open(ours, "rb", buffering=0) as terminal:
        with subprocess.Popen(args, stdout=out, stderr=theirs) as process:
            os.close(theirs)
            with suppress(OSError):  # EIO: the command has ended
                while data := terminal.read(4096):
                    err += data.decode()
                    if not pressed and re.search(r"[1-9][\d,]* of [\d,]+ commands complete", err):
                        pressed = True
                        process.send_signal(signal.SIGINT)
        out.seek(0)
        return process.returncode, out.read(), err.rpartition(ERASE)[2].replace("\r\n", "\n")


def test_ctrl_c_leaves_a_report_and_code_130(tmp_path: Path) -> None:
    code, out, err = interrupted("run", tmp_path)
    assert code == 130
    assert re.search(r"^stopped +interrupted$", out, re.MULTILINE)
    assert "interrupted at pc 0x8000" in err
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["stop_reason"] == "interrupted"
    assert result["exit_code"] is None
    accepted = result["npu"]["accepted"]
    assert len((tmp_path / "latency.csv").read_text().splitlines()) - 1 == accepted > 0
    assert len((tmp_path / "timeline.csv").read_text().splitlines()) > accepted


def test_ctrl_c_in_the_first_half_of_a_comparison_leaves_that_half(tmp_path: Path) -> None:
    code, _, err = interrupted("compare", tmp_path)
    assert code == 130
    assert err == f"pyv-npu: what was complete is in {tmp_path}\npyv-npu: error: interrupted\n"
    assert (tmp_path / "loose" / "latency.csv").stat().st_size > 0
    assert not (tmp_path / "tight").exists()
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["loose"]["stop_reason"], result["tight"]) == ("interrupted", None)
    assert "interrupted in the first run" in (tmp_path / "summary.txt").read_text()
    page = (tmp_path / "report.html").read_text()
    assert "loose did not come to its end (interrupted): its figures are those up to cycle" in page


def press_during(monkeypatch: pytest.MonkeyPatch, which: int, after: float = 0) -> None:
    """Press Ctrl-C so many seconds after the n-th run of a platform has begun; 0: before its first instruction."""
    begun = []

    @contextmanager
    def caught(stop: Callable[[], None]) -> Iterator[None]:
        begun.append(stop)
        with ctrl_c.caught(stop):
            if len(begun) == which and after:
                threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT)).start()
            elif len(begun) == which:
                signal.raise_signal(signal.SIGINT)
            yield

    monkeypatch.setattr("pyv_npu.platform.ctrl_c", SimpleNamespace(caught=caught))


def test_ctrl_c_in_the_second_half_of_a_comparison_keeps_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    press_during(monkeypatch, 2)
    line = ["compare", PROGRAM, "--arg", "n=20", "--no-sweeps", "--report", str(tmp_path), "--json"]
    assert main(line) == 130
    result = json.loads((tmp_path / "result.json").read_text())
    assert [result[mode]["stop_reason"] for mode in ("loose", "tight")] == ["exit", "interrupted"]
    assert result["same_results"] is None  # a verdict needs two whole runs
    page = (tmp_path / "report.html").read_text()
    assert "tight did not come to its end (interrupted)" in page and "loose did not come" not in page


@pytest.mark.parametrize(("command", "which"), [("run", 1), ("compare", 1), ("compare", 2)])
def test_an_interrupted_run_replaces_no_complete_report(
    command: str, which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [command, PROGRAM, "--arg", "n=20", "--report", str(tmp_path / "out"), "--json"]
    line += ["--no-sweeps"] if command == "compare" else []
    assert main(line) == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()}
    press_during(monkeypatch, which)
    assert main(line) == 130
    assert f"pyv-npu: the earlier report stays in {tmp_path / 'out'}" in capsys.readouterr().err
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_ctrl_c_in_a_sweep_keeps_what_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    press_during(monkeypatch, 5)
    sweeps = (Sweep("run.args.tile", ("16",)), Sweep("npu.queue.size", ("8", "16")))
    monkeypatch.setitem(AUTOMATIC, PROGRAM, sweeps)
    line = ["compare", PROGRAM, "--arg", "n=20", "--report", str(tmp_path), "--json"]
    assert main(line) == 130
    result = json.loads((tmp_path / "result.json").read_text())
    assert [one["key"] for one in result["sweeps"]] == ["run.args.tile"]
    assert "interrupted: sweeps are missing" in capsys.readouterr().err


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Some ten thousand commands in tile form: seconds of work."""
    path = tmp_path_factory.mktemp("model") / "gemm.onnx"
    onnx.save(EXAMPLES["gemm"](1024, 2048, 1024), path)
    return str(path)


def test_ctrl_c_in_a_models_run_leaves_a_report(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    press_during(monkeypatch, 1, after=0.05)
    assert main(["run", model, "--granularity", "tile", "--report", str(tmp_path), "--json"]) == 130
    captured = capsys.readouterr()
    result = json.loads((tmp_path / "result.json").read_text())
    assert result == json.loads(captured.out) and result["stop_reason"] == "interrupted"
    assert "interrupted at pc 0x8000" in captured.err
    assert result["model"]["checks"] == {}
    assert result["npu"]["completed"] < result["model"]["commands"]
    assert "tight did not come to its end (interrupted)" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "metrics.csv").exists() and (tmp_path / "timeline.csv").exists()
    assert main(["run", "--replay", str(tmp_path), "--max-cycles", "5"]) == 64


def test_ctrl_c_before_the_run_leaves_a_report_that_says_so(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def press(*args: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("pyv_npu.workloads.model.compile_for", press)
    assert main(["run", model, "--report", str(tmp_path)]) == 130
    assert capsys.readouterr().err == (
        f"pyv-npu: a report that says so is in {tmp_path}\npyv-npu: error: interrupted\n"
    )
    assert json.loads((tmp_path / "result.json").read_text())["stop_reason"] == "interrupted"
    for name in ("summary.txt", "report.html"):
        assert "interrupted before the run came to its end: there are no figures" in (tmp_path / name).read_text()


def test_ctrl_c_before_the_run_keeps_an_earlier_report(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def press(*args: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    assert main(["run", "hello", "--report", str(tmp_path / "out")]) == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()}
    monkeypatch.setattr("pyv_npu.workloads.model.compile_for", press)
    capsys.readouterr()
    assert main(["run", model, "--report", str(tmp_path / "out")]) == 130
    assert capsys.readouterr().err.startswith(f"pyv-npu: the earlier report stays in {tmp_path / 'out'}\n")
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
