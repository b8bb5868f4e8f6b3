"""Native code that a process finds in the cache gives what it gave the process that compiled it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pyv_npu.cli import main

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import sys
from npu_device.event_loop.storage import compiled_module
from pyv_npu.cli import main
for simple in (True, False):
    compiled_module(simple, False, False, False)
sys.exit(main(["run", "submit_latency", "--json", "--arg", "n=60"]))
"""
"""The core's interpreter, its regions and calls of Python, and both loops of the NPU."""


def result(folder: Path | str) -> dict[str, Any]:
    """What the program says, but for what the host took."""
    environment = os.environ | {"PYV_NPU_CACHE": str(folder)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    del found["host"]
    return found


def kept(folder: Path) -> dict[str, bytes]:
    """File name -> content."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_cold_warm_damaged_and_without(tmp_path: Path) -> None:
    """The second process compiles nothing: so no text has an address in it, which differs from process to process."""
    cold, made = result(tmp_path), kept(tmp_path)
    assert len(made) >= 4
    assert result(tmp_path) == cold
    assert kept(tmp_path).keys() == made.keys()
    for path in tmp_path.glob("*.code"):  # with another key of the HMAC, files would differ
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert result(tmp_path) == cold
    assert kept(tmp_path) == made
    assert result("off") == cold


def test_the_doctor_shows_it_and_clears_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYV_NPU_CACHE", str(tmp_path))
    (tmp_path / "a.code").write_bytes(bytes(2048))
    assert main(["doctor"]) == 0
    assert f"ok       native code                  {tmp_path}: 1 files, 2 KiB\n" in capsys.readouterr().out
    assert main(["doctor", "--clear-cache"]) == 0
    assert capsys.readouterr().out == f"removed from {tmp_path}: 1 files, 2 KiB\n"
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("PYV_NPU_CACHE", "off")
    assert main(["doctor"]) == 0
    assert "absent   native code                  not kept: PYV_NPU_CACHE is 'off'" in capsys.readouterr().out
    assert main(["doctor", "--clear-cache"]) == 0
    assert capsys.readouterr().out == "no native code is kept\n"
