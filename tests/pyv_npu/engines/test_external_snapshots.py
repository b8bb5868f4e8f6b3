"""Snapshots at CA_FULL: what runs on an engine outside is saved in the middle of a step, and goes on from there."""

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from external_tools import built_or_skip

from pyv_ext.gdb.debugger import Debugger
from pyv_npu.boot import find_program
from pyv_npu.cli.main import main
from pyv_npu.config import load
from pyv_npu.debug import time_machine
from pyv_npu.engines.build import TEMPLATE, build
from pyv_npu.errors import BadInputError
from pyv_npu.platform import Platform
from pyv_npu.snapshot import Snapshot

Capture = pytest.CaptureFixture[str]
OVERRIDES: dict[str, object] = {"npu.dram.size": 16 << 20}
COUNT = 40
"""Cycles that an engine is granted at a time: a step of `gemm` has 6,015."""


@pytest.fixture(
    scope="module", params=["python", *(pytest.param(one, marks=pytest.mark.slow) for one in ("rtl", "systemc"))]
)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp(request.param)
    built_or_skip(request.param, folder)
    return str(folder)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("template")
    build("python", folder)
    return str(folder)


def machine(engine: str, **more: object) -> Platform:
    keys = {"run.sim_level": "CA_FULL", "npu.te.external.engine": engine, "npu.te.external.grant": COUNT}
    overrides = {**keys, **OVERRIDES, **{f"npu.te.external.{name}": one for name, one in more.items()}}
    platform = Platform(load(overrides=overrides).config)
    platform.load(find_program("gemm"))
    return platform


def to_the_middle(platform: Platform) -> None:
    """Run until an engine is in the middle of a step."""
    external = platform.external
    assert external is not None
    platform.run(until=1_058_000)  # `gemm` makes its matrices until then
    for _ in range(200):
        assert platform.run(until=platform.cycle + 100).reason == "limit"
        if external.running and max(step.granted for step in external._steps.values() if not step.ended) > 5 * COUNT:
            return
    raise AssertionError("no step runs")


def outcome(platform: Platform) -> tuple[object, ...]:
    stop = platform.run()
    assert platform.external is not None
    found = (stop, platform.cycle, platform.events.hexdigest(), platform.console.text, platform.outputs.sha256(),
             platform.external.to_json(), platform.npu.counters.to_json())  # fmt: skip
    platform.external.close()
    return found


@pytest.mark.parametrize("check", [pytest.param(True), pytest.param(False, marks=pytest.mark.slow)])
def test_saved_in_the_middle_of_a_step(engine: str, check: bool) -> None:
    straight = outcome(machine(engine, check=check))
    platform = machine(engine, check=check)
    to_the_middle(platform)
    saved = platform.save().to_bytes()
    assert outcome(platform) == straight, "saving changes nothing"
    other = machine(engine, check=check, timeout=77)
    other.restore(Snapshot.from_bytes(saved))
    assert other.external is not None and other.external.running
    assert other.save().to_bytes() == saved
    assert outcome(other) == straight


def test_a_debugger_steps_back_from_the_next_step_of_the_engine(template: str) -> None:
    platform = machine(template)
    to_the_middle(platform)
    debugger = Debugger(platform.engine, time_machine=time_machine(platform))
    before = platform.save().to_bytes()
    debugger.step(lambda: False)
    debugger.step_back()
    assert platform.save().to_bytes() == before
    straight = outcome(machine(template))
    assert outcome(platform) == straight


def test_an_engine_that_cannot_save_is_refused_in_one_line(template: str, tmp_path: Path, capsys: Capture) -> None:
    text = TEMPLATE.read_text(encoding="utf-8")
    old = '1 << 1, 1, 1, 1) + b"python'
    assert old in text
    (tmp_path / "engine.py").write_text(text.replace(old, '1 << 1, 1, 0, 1) + b"python'), encoding="utf-8")
    engine = f"{sys.executable},{tmp_path / 'engine.py'}"
    words = ["run", "gemm", "--set", "run.sim_level=CA_FULL", "--set", f"npu.te.external={engine}"]
    file = tmp_path / "x"
    assert main([*words, "--save", f"{file}@1000"]) == 64
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and "engine outside python 16x16 does not say in HELLO that it can save" in lines[0]
    assert not file.exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("send(STATE, struct", "send(READY, struct", "engine outside TE0: sent READY where STATE is due"),
        ("elif kind == SAVE:", "elif kind == SAVE:\n            raise SystemExit(7)", "TE0: ended with exit code 7"),
    ],
)
def test_a_lie_in_place_of_a_state(
    template: str, tmp_path: Path, capsys: Capture, old: str, new: str, message: str
) -> None:
    text = TEMPLATE.read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "engine.py").write_text(text.replace(old, new, 1), encoding="utf-8")
    engine = f"{sys.executable},{tmp_path / 'engine.py'}"
    words = ["run", "gemm", "--set", "run.sim_level=CA_FULL", "--set", f"npu.te.external={engine}"]
    assert main([*words, "--save", f"{tmp_path / 'x'}@1000", "--report", str(tmp_path / "r")]) == 70
    lines = [line for line in capsys.readouterr().err.splitlines() if message in line]
    assert len(lines) == 1
    kept = json.loads((tmp_path / "r" / "result.json").read_text(encoding="utf-8"))
    assert kept["stop_reason"] == "engine" and message in json.dumps(kept)


def test_snapshots_of_other_levels_are_refused(template: str) -> None:
    full = machine(template)
    full.run(until=1000)
    saved = full.save()
    assert full.external is not None
    full.external.close()
    hybrid = Platform(
        load(overrides={**OVERRIDES, "npu.te.external.engine": template, "npu.te.external.grant": COUNT}).config
    )
    hybrid.load(find_program("gemm"))
    with pytest.raises(BadInputError, match="was taken with engines outside"):
        hybrid.restore(saved)


@pytest.mark.parametrize("kind", ["unix", pytest.param("tcp", marks=pytest.mark.slow)])
def test_the_template_behind_a_socket(template: str, tmp_path: Path, capsys: Capture, kind: str) -> None:
    """Each connection is the standard input and output of an engine of its own."""
    served: list[subprocess.Popen[bytes]] = []
    with socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET) as server:
        server.bind(str(tmp_path / "s") if kind == "unix" else ("127.0.0.1", 0))
        where = f"unix:{tmp_path / 's'}" if kind == "unix" else f"tcp:127.0.0.1:{server.getsockname()[1]}"
        server.listen()

        def serve() -> None:
            for _ in range(2):
                link, _ = server.accept()
                with link:
                    words = [sys.executable, str(Path(template) / "engine.py")]
                    served.append(subprocess.Popen(words, stdin=link, stdout=link))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        words = ["run", "gemm", "--set", "run.sim_level=CA_FULL", "--set", f"npu.te.external={where}"]
        assert main([*words, "--set", "npu.te.external.timeout=60", "--json"]) == 0
        thread.join()
    found = json.loads(capsys.readouterr().out)
    assert found["external"]["steps"] == 16 and found["external"]["name"] == "python 16x16"
    assert [one.wait() for one in served] == [0, 0], "BYE ends them"


def test_a_comparison_says_what_is_outside(template: str, tmp_path: Path, capsys: Capture) -> None:
    keys = ("run.sim_level=CA_FULL", f"npu.te.external={template}")
    words = ["compare", "gemm", *(word for key in keys for word in ("--set", key))]
    assert main([*words, "--report", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for mode in ("loose", "tight"):
        engines = "2 x python 16x16: 16 steps, 96,240 cycles, checked against the numpy kernels"
        assert f"{mode}: external engines, {engines}" in " ".join(shown.split())
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "External engines" in page and "python 16x16" in page
    assert all(f'data-figure="{mode}.external.cycles">96,240<' in page for mode in ("loose", "tight"))


@pytest.mark.slow
def test_a_sweep_at_ca_full(template: str, tmp_path: Path, capsys: Capture) -> None:
    keys = ("run.sim_level=CA_FULL", f"npu.te.external={template}", "npu.mode=tight")
    words = ["sweep", "gemm", "npu.te.external.grant=1000,none", "--figures", "cycles,external.cycles"]
    assert main([*words, *(word for key in keys for word in ("--set", key)), "-o", str(tmp_path)]) == 0
    rows = (tmp_path / "table.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert len(rows) >= 2 and all("96240" in row for row in rows), rows
