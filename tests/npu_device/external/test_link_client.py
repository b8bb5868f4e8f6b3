"""Engines that misbehave: each is one line, and none is waited for longer than the time-out."""

import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest

from npu_device.abi.errors import ExternalEngineError, NpuDeviceError
from npu_device.config import ExternalConfig, NpuConfig, TeConfig, check
from npu_device.external.client import CHUNK, Client, arguments_of
from npu_device.external.protocol import Hello, Start

HEAD = """
import struct, sys, time
r, w = sys.stdin.buffer, sys.stdout.buffer
def frame(kind, body=b""):
    w.write(struct.pack("<IB", 1 + len(body), kind) + body)
    w.flush()
def take():
    size, kind = struct.unpack("<IB", r.read(5))
    return kind, r.read(size - 1)
def offer(version=1, rows=4, columns=4, types=2, lookahead=1):
    take()
    frame(1, struct.pack("<HHHHHHI", version, rows, columns, types, 0, 0, lookahead) + b"liar")
"""


READ = (7, 2, 0, 0, 64, 0, 0, 0, 0)
"""The fields of an EVENT."""


def client(text: str, timeout: float = 60) -> Client:
    return Client([sys.executable, "-S", "-c", HEAD + text], Hello(1, 1, 0), timeout)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sys.exit(3)", "ended with exit code 3 before "),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended by signal 9 before "),
        ("take(); frame(99)", "sent number 99 where HELLO is due"),
        ("take(); frame(11, b'no licence')", "says: no licence"),
        ("take(); w.write(b'\\xff' * 64); w.flush(); time.sleep(9)", "sent a frame of 4294967295 bytes"),
        ("offer(version=2)", "speaks protocol 2, and this is protocol 1"),
        ("offer(rows=0)", "an array of 0 x 4: 1 to 16384 each"),
        ("offer(types=0)", "without int8 it can take no command"),
        ("offer(lookahead=0)", "lookahead 0: a step takes at least 1 cycle"),
        ("take(); frame(1, b'x')", "HELLO has 1 bytes, and its answer at least 16"),
    ],
)
def test_an_engine_that_does_not_greet(text: str, message: str) -> None:
    with pytest.raises(ExternalEngineError, match=message):
        client(text)


def test_a_silent_engine_is_not_waited_for() -> None:
    with pytest.raises(ExternalEngineError, match=r"has not answered for 0.3 s \(npu.te.external.timeout\)"):
        client("take(); time.sleep(60)", timeout=0.3)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("frame(10)", "sent READY where EVENT or REACHED is due"),
        ("frame(5, b'x')", "EVENT has 1 bytes, at least 32 are its fields"),
        ("frame(6, b'x')", "REACHED has 1 bytes, not 8"),
        ("w.write(b'\\x09\\0\\0'); w.flush(); sys.exit(0)", "ended with exit code 0 before an answer"),
    ],
)
def test_an_engine_that_answers_nonsense(answer: str, message: str) -> None:
    one = client(f"offer(); take(); take(); {answer}")
    one.start(Start(0, 0, 0, 1, 1, 1, b"\1", b"\1"))
    with pytest.raises(ExternalEngineError, match=message):
        one.run_until(10, lambda event: None)
    one.close()


def test_an_answer_without_end_is_late_and_takes_no_memory() -> None:
    one = client(f"offer(); take(); take()\nwhile True: frame(5, struct.pack('<QBBHIIIII', *{READ}))")
    one._timeout = 0.5
    one.start(Start(0, 0, 0, 1, 1, 1, b"\1", b"\1"))
    cycles: Counter[int] = Counter()
    tracemalloc.start()
    with pytest.raises(ExternalEngineError, match=r"has not answered for 0.5 s \(npu.te.external.timeout\)"):
        one.run_until(10, lambda event: cycles.update([event.cycle]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert cycles[7] > 100 and peak < 4 * CHUNK
    one.close()


def test_an_engine_that_never_reads_is_not_waited_for() -> None:
    one = client("offer(); time.sleep(600)")
    one._timeout = 0.3
    with pytest.raises(ExternalEngineError, match=r"did not take START within 0.3 s"):
        one.start(Start(0, 0, 0, 4096, 1, 4096, bytes(1 << 24), bytes(4096)))
    process = one._process
    assert process is not None
    process.kill()
    one.close()


def test_no_shell_starts_an_engine(tmp_path: Path) -> None:
    with pytest.raises(NpuDeviceError, match=r"te.external.engine = true; touch .*: No such file"):
        Client([f"true; touch {tmp_path / 'x'}"], Hello(1, 1, 0), 1)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("text", [None, "{", "[]", '{"arguments": []}', '{"arguments": [1]}'])
def test_a_folder_without_an_engine(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "engine.json").write_text(text)
    with pytest.raises(NpuDeviceError, match=r"must hold engine.json; `pyv-npu build-engine rtl -o"):
        arguments_of([str(tmp_path)])


def test_closing_leaves_no_process() -> None:
    one = client("offer(); time.sleep(60)")
    process = one._process
    assert isinstance(process, subprocess.Popen)
    process.kill()
    one.close()
    one.close()
    assert process.returncode is not None


@pytest.mark.parametrize("where", ["tcp:localhost", "tcp:localhost:x", "tcp:localhost:0"])
def test_an_address_has_a_port(where: str) -> None:
    with pytest.raises(NpuDeviceError, match=r"tcp needs HOST:PORT with a port from 1 to 65535"):
        Client([where], Hello(1, 1, 0), 1)


@pytest.mark.parametrize(
    ("te", "message"),
    [
        (TeConfig(form="rtl"), "te.form = rtl: is the form of te.kind = systolic_os, and it is roofline"),
        (
            TeConfig(external=ExternalConfig(units=(2,))),
            "te.external.units = 2: te.count = 2 engines count from 0 to 1",
        ),
    ],
)
def test_rules_of_the_configuration(te: TeConfig, message: str) -> None:
    with pytest.raises(NpuDeviceError, match=message):
        check(NpuConfig(te=te))
