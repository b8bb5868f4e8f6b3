"""The pytest plugin, in sessions of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pyv_native.code_cache import VARIABLE
from pyv_npu.studies.baselines import differences

ROOT = Path(__file__).resolve().parent.parent.parent.parent
PAGE = ROOT / "docs" / "testing.md"


def session(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_firmware.py").write_text(text)
    line = [sys.executable, "-m", "pytest", "-q", "-p", "pyv_npu.pytest_plugin", "-p", "no:cacheprovider", *options]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", VARIABLE: os.environ[VARIABLE]}
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=120, env=environment)


@pytest.mark.slow
def test_the_example_of_the_page_and_baselines(tmp_path: Path) -> None:
    (text,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    first = session(tmp_path, text)
    assert "1 failed, 1 passed" in first.stdout
    assert "no baseline of this run; pytest --update-baselines writes it" in first.stdout
    assert "2 passed" in session(tmp_path, text, "--update-baselines").stdout
    assert "2 passed" in session(tmp_path, text, "--junitxml=out.xml").stdout
    assert 'tests="2"' in (tmp_path / "out.xml").read_text()
    changed = session(tmp_path, text.replace("mode=mode", 'preset="ibex", mode=mode'))
    assert "1 failed, 1 passed" in changed.stdout
    assert "latency.stages.t_submit.p50: " in changed.stdout and ", was 167" in changed.stdout
    assert "if it is right: pytest --update-baselines" in changed.stdout


FIXTURES = """
import pytest
from pyv_npu.errors import BadInputError, UsageError

def test_stepping(platform, npu, uart):
    machine = platform.load("hello", mode="loose")
    machine.step()
    assert machine.hart.instret == 1 and npu.accepted == 0 and uart.text == ""
    machine.run()
    assert uart.lines[0].startswith("hello from hart 0")
    assert npu.counters["accepted"] == npu.accepted

def test_misuse(platform, npu, uart):
    with pytest.raises(UsageError, match="no platform yet: call platform.run"):
        uart.text
    with pytest.raises(UsageError, match="argument mode: npu.mode = fast: must be one of loose, tight"):
        platform.run("hello", mode="fast")
    with pytest.raises(BadInputError, match="nothing.elf: neither a file, nor firmware"):
        platform.run("nothing.elf")
    platform.load("hello")
    with pytest.raises(AttributeError, match="finished: the NPU has no such counter; there are submitted, "):
        npu.finished

def test_own_devices(platform):
    from pyv_ext.devices.base import Register, RegisterDevice
    from pyv_npu.platform import Placed

    class Pins(RegisterDevice):
        name, size = "pins", 0x1000
        registers = (Register("pins", 0x00),)

    run = platform.run("hello", devices=[Placed(0x6000_0000, Pins())])
    assert run.exit_code == 0 and platform.machine.devices[0].device.name == "pins"
"""


def test_fixtures(tmp_path: Path) -> None:
    done = session(tmp_path, FIXTURES)
    assert "3 passed" in done.stdout, done.stdout


FAILING = """
def test_errors(platform, npu):
    platform.run("fault_descriptor")
    assert npu.errors == 0

def test_other(platform, npu):
    platform.run("hello")
    assert npu.errors == 1
"""


def test_a_failing_test_shows_the_reasons_of_error_tickets(tmp_path: Path) -> None:
    done = session(tmp_path, FAILING)
    assert "2 failed" in done.stdout
    assert done.stdout.count("NPU error tickets") == 1
    (ticket,) = re.findall(r"^ticket: 2$.*?^$", done.stdout, re.MULTILINE | re.DOTALL)
    assert "operation: 19\n" in ticket and "reason: unknown opcode: opcode 19: must be 0..18\n" in ticket
    assert "submitted at: expect_row, firmware/apps/fault_descriptor.c:" in ticket
    assert re.search(r": and \d+ more$", done.stdout, re.MULTILINE)


def test_a_session_that_uses_nothing_loads_nothing(tmp_path: Path) -> None:
    text = (
        "import sys\n\ndef test_nothing():\n"
        "    assert not {'numpy', 'llvmlite', 'pyv_ext', 'npu_device', 'pyv_npu.platform'} & set(sys.modules)\n"
    )
    done = session(tmp_path, text, "-p", "no:hypothesispytest")
    assert "1 passed" in done.stdout, done.stdout


def test_the_entry_point_is_declared() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '[project.entry-points.pytest11]\n"pyv_npu.pytest_plugin" = "pyv_npu.pytest_plugin"\n' in text


@pytest.mark.parametrize(
    ("was", "now", "found"),
    [
        ({"a": {"b": 1, "c": [1]}}, {"a": {"b": 1, "c": [1]}}, []),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, ["a.b: 2, was 1"]),
        ({"a": None, "x": 1}, {"a": {"b": 2}}, ["a: {'b': 2}, was None", "x: None, was 1"]),
    ],
)
def test_differences(was: object, now: object, found: list[str]) -> None:
    assert list(differences(was, now)) == found
