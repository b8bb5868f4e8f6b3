"""Progress is for terminals and for long work; it leaves nothing behind."""

import io
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import onnx
import pytest

from pyv_npu.boot import find_program
from pyv_npu.cli.shared.progress import ERASE, Progress, bar, of_platform
from pyv_npu.config import load, with_values
from pyv_npu.platform import Platform
from pyv_npu.workloads.data import random_inputs
from pyv_npu.workloads.model import CompiledModel
from pyv_npu.workloads.model_file import Choices, compile_for
from toolchain.examples import EXAMPLES


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def wait_for(stream: io.StringIO, text: str) -> None:
    deadline = time.monotonic() + 20
    while text not in stream.getvalue():
        assert time.monotonic() < deadline, stream.getvalue()
        time.sleep(0.005)


def test_a_terminal_sees_what_is_going_on_and_an_empty_line_at_the_end() -> None:
    stream = Terminal()
    with Progress(stream, delay=0, interval=0.01) as progress:
        progress.say("first")
        wait_for(stream, f"{ERASE}first, 0 s")
        turns = iter(range(1_000_000))
        progress.say(lambda: f"turn {next(turns)}")
        wait_for(stream, f"{ERASE}turn 1, ")
    written = stream.getvalue()
    assert written.endswith(ERASE)
    time.sleep(0.05)
    assert stream.getvalue() == written


def test_short_work_and_files_see_nothing() -> None:
    for stream, delay in ((Terminal(), 60.0), (io.StringIO(), 0.0)):
        with Progress(stream, delay=delay, interval=0.001) as progress:
            progress.say("work")
            time.sleep(0.03)
        assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("done", "total", "text"),
    [
        (0, 7, "[........................] 0 %"),
        (3, 4, "[##################......] 75 %"),
        (9, 9, f"[{'#' * 24}] 100 %"),
    ],
)
def test_bars(done: int, total: int, text: str) -> None:
    assert bar(done, total) == text


def test_firmware_says_how_many_commands_there_will_be() -> None:
    platform = Platform(load().config)
    platform.load(find_program("submit_latency"), {"n": 20, "phases": 63, "warmup": 7})
    state = of_platform(platform)
    assert state() == "cycle 0, 0 commands complete"
    platform.run()
    assert state().startswith(f"{bar(1, 1)} cycle ") and state().endswith(", 147 of 147 commands complete")


def test_the_state_of_a_run(tmp_path: Path) -> None:
    onnx.save(EXAMPLES["mlp_qdq"](), tmp_path / "m.onnx")
    config = load().config
    compiled = compile_for(config, tmp_path / "m.onnx", Choices())
    platform = Platform(config)
    platform.load(CompiledModel(compiled, random_inputs(compiled, 1)).program())
    count = len(compiled.commands)
    state = of_platform(platform, "tight")
    assert state() == f"{bar(0, 1)} tight: cycle 0, 0 of {count} commands complete"
    platform.run()
    assert state() == f"{bar(1, 1)} tight: cycle {platform.cycle:,}, {count} of {count} commands complete"
    other = cast(
        Any,
        SimpleNamespace(
            config=with_values(config, {"run.max_cycles": 100}), hart=SimpleNamespace(cycle=50), program=None,
            npu=SimpleNamespace(counters=SimpleNamespace(completed=1)),
        ),
    )  # fmt: skip
    assert of_platform(other)() == f"{bar(1, 2)} cycle 50, 1 commands complete"


def test_a_command_on_a_terminal(tmp_path: Path) -> None:
    """Standard error is a terminal: a line that is rewritten and erased; standard output holds the JSON only."""
    ours, theirs = pty.openpty()
    line = [sys.executable, "-m", "pyv_npu", "run", "submit_latency", "--arg", "n=1000000", "--timeout", "3", "--json"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    seen = b""
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:
            break
        if not data:
            break
        seen += data
    assert process.stdout is not None
    out = process.stdout.read()
    assert process.wait(60) == 75
    assert out.startswith(b"{\n") and out.endswith(b"}\n")
    shown = seen.decode()
    state = re.escape(ERASE) + r"\[[#.]{24}\] \d+ % cycle [\d,]+, [\d,]+ of 4,000,000 commands complete, \d s"
    assert re.search(state, shown)
    assert shown.rsplit(ERASE, 1)[1].startswith("pyv-npu: 3 s are over at pc 0x8000")
