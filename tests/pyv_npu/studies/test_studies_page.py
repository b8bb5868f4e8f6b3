"""docs/studies.md: its commands run as they stand, in their order, and its tables name everything there is."""

import re
import shlex
from pathlib import Path

import pytest

from pyv_npu.cli import main
from pyv_npu.studies.sweep.axes import read
from pyv_npu.studies.sweep.figures import FIGURES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "studies.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_commands_run_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = [line for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
    assert len(commands) == 8
    for line in commands:
        name, *words = shlex.split(line)
        assert name == "pyv-npu" and main(words) == 0, line
    made = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.html")}
    assert {"bus/report.html", "llm/report.html", "serving/report.html", "diff.html"} <= made
    assert sum(page.startswith("bus/reports/") for page in made) == 1


def test_the_file_is_one(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "sweep.yaml").write_text(block)
    file = read(tmp_path / "sweep.yaml")
    assert file.program == "submit_latency" and len(file.plan.points()) == 6 and file.base["preset"] == "pcie"


def test_the_page_names_every_figure() -> None:
    named = set(re.findall(r"`([\w.]+)`", TEXT))
    ends = ("_p50", "_p95", "_p99", "_max", "_mean")
    stages = {"t_submit", "t_submit_prebuilt", "core_busy", "queue_wait", "execute", "notify", "response"}
    assert stages <= named and set(ends) - {"_p50"} <= named
    derived = {f"{stage}{end}" for stage in stages for end in ends}
    roles = {f"{role}_bytes_{way}" for role in ("weight", "activation", "kv") for way in ("read", "written")}
    waits = {f"{name}_{end}" for name in ("ttft", "tpot", "itl", "e2e") for end in ("mean", "p50", "p90", "p99")}
    assert {"ttft_mean", "_p90", "tpot", "itl", "e2e"} <= named
    assert set(FIGURES) <= named | derived | roles | waits
