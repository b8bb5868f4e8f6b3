"""Ctrl-C: the machine stops between two instructions and can go on; reports are written; twice means at once."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pyv_ext.stop import Stop, StopReason
from pyv_npu.config import load
from pyv_npu.platform import Platform
from pyv_npu.programs import find_program

PROGRAM = "submit_latency"


class Interrupting:
    """A console that presses Ctrl-C in the middle of the store that sends the character `press`."""

    def __init__(self, press: bytes, times: int = 1) -> None:
        self.press = press
        self.times = times

    def __call__(self, data: bytes) -> None:
        if data == self.press and self.times:
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
    whole, interrupted = platform(n=10), platform(Interrupting(b":", 1), n=10)
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


def start(command: str, report: Path) -> "subprocess.Popen[str]":
    """A run of many seconds, once it is under way."""
    args = [sys.executable, "-m", "pyv_npu", command, PROGRAM, "--arg", "n=10000000", "--report", str(report)]
    process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (report / "run.yaml").exists():
        assert process.poll() is None and time.monotonic() < deadline, process.kill()
        time.sleep(0.02)
    time.sleep(2)
    return process


def test_ctrl_c_leaves_a_report_and_code_130(tmp_path: Path) -> None:
    process = start("run", tmp_path)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "stopped  interrupted" in out
    assert "interrupted at pc 0x8000" in err
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["stop_reason"] == "interrupted"
    assert result["exit_code"] is None
    accepted = result["npu"]["accepted"]
    assert len((tmp_path / "latency.csv").read_text().splitlines()) - 1 == accepted > 0
    assert len((tmp_path / "timeline.csv").read_text().splitlines()) > accepted


def test_ctrl_c_in_the_first_half_of_a_comparison_ends_it(tmp_path: Path) -> None:
    process = start("compare", tmp_path)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err == "pyv-npu: error: interrupted\n"
    assert (tmp_path / "loose" / "latency.csv").stat().st_size > 0
    assert not (tmp_path / "tight").exists()
