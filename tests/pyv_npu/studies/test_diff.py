"""`pyv-npu diff`: the parts of a difference add up to it, causes are named, thresholds have an exit code."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from pyv_npu.cli import main
from pyv_npu.errors import UsageError
from pyv_npu.studies.diff import FigureChange, breakdowns, load, threshold
from toolchain.examples import EXAMPLES

QUICK = ["--arg", "phases=2", "--arg", "n=8"]
SLOWER = ["--set", "core.timing.mmio_one_way=80"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    made = []
    for name, more in (("a", []), ("b", SLOWER)):
        made.append(str(tmp_path_factory.mktemp("diff") / name))
        line = ["compare", "submit_latency", *QUICK, *more, "--no-sweeps", "--phases", "0", "--report", made[-1]]
        assert main([*line, "--json"]) == 0
    return made[0], made[1]


def found(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    assert main(["diff", *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_longer_bus_is_the_cause(folders: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    made = found(capsys, *folders)
    assert [(one["kind"], one["name"], one["before"], one["after"]) for one in made["settings"]] == [
        ("key", "core.timing.mmio_one_way", 60, 80)
    ]
    (reasons,) = [one for one in made["breakdowns"] if one["run"] == "loose" and one["name"].startswith("t_submit by")]
    assert reasons["parts"][0]["figure"] == "bus" and reasons["parts"][0]["delta"] == 8 * 20
    by_name = {(one["run"], one["figure"]): one for one in made["changes"]}
    assert by_name["loose", "latency.stages.t_submit.p50"]["delta"] == 20
    assert not any(run == "tight" and "t_submit" in figure for run, figure in by_name)
    assert not any("host" in figure for _, figure in by_name)
    assert ": cycles of the run " in made["sentence"]


def test_parts_add_up(folders: tuple[str, str]) -> None:
    for one in breakdowns(*map(load, map(Path, folders))):
        assert sum(part.delta for part in one.parts) == one.total.delta
        assert one.total.figure == one.name


def test_a_result_does_not_differ_from_itself(folders: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    made = found(capsys, folders[0], folders[0] + "/result.json", "--fail-if", "cycles > +0")
    assert made["sentence"] == "no cycle differs, and no other figure"
    assert made["changes"] == made["breakdowns"] == made["beyond"] == []
    found(capsys, folders[0], folders[0], "--fail-if", "cycles >= +0%", code=1)


@pytest.mark.parametrize(
    ("limit", "beyond"),
    [
        ("t_submit_p50 > +10%", ["loose"]),
        ("t_submit_p50>+12 %", []),
        ("latency.stages.t_submit.p50 > +19", ["loose"]),
        ("t_submit_p50 > +20", []),
        ("t_submit_p50 >= +20", ["loose"]),
        ("tight.t_submit_p50 > +0", []),
        ("t_submit_p50 > 186", ["loose"]),
        ("t_submit_p50 < -1%", []),
        ("t_submit_p50 < 50", ["tight"]),
    ],
)
def test_thresholds(
    folders: tuple[str, str], limit: str, beyond: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    made = found(capsys, *folders, "--fail-if", limit.replace(" %", "%"), code=1 if beyond else 0)
    assert [one["run"] for one in made["beyond"]] == beyond


@pytest.mark.parametrize("text", ["cycles", "cycles > x", "> +2%", "cycles = 3", "cycles > 2%", "cycles > +2% > 3"])
def test_a_wrong_threshold_is_one_line(text: str, folders: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *folders, "--fail-if", text]) == 64
    error = capsys.readouterr().err
    assert error.startswith(f"pyv-npu: error: --fail-if {text}: ") and error.count("\n") == 1


def test_a_figure_that_is_nowhere(folders: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *folders, "--fail-if", "tokens_per_second < -1%"]) == 64
    assert "no run of both results has the figure tokens_per_second" in capsys.readouterr().err


def test_growth_from_nothing_is_beyond_every_share() -> None:
    limit = threshold("errors > +5%")
    assert limit.holds(FigureChange("", "errors", 0, 1)) and not limit.holds(FigureChange("", "errors", 0, 0))
    assert not limit.holds(FigureChange("", "errors", 100, 105)) and limit.holds(FigureChange("", "errors", 100, 106))
    with pytest.raises(UsageError):
        threshold("errors > 5%")


@pytest.mark.parametrize("text", ["[]", "{}", "nonsense", '{"loose": null, "tight": null}', "null"])
def test_what_is_no_result(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    assert main(["diff", str(path), str(path)]) == 65
    assert f"{path}: holds no result of a run" in capsys.readouterr().err
    assert main(["diff", str(tmp_path / "none"), str(path)]) == 65
    assert "No such file or directory; name a folder" in capsys.readouterr().err


def test_a_model_by_cause_and_by_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(EXAMPLES["cnn"](), tmp_path / "cnn.onnx")
    for name, channels in (("a", "2"), ("b", "1")):
        line = ["run", str(tmp_path / "cnn.onnx"), "--set", f"npu.dma.channels={channels}", "--mode", "tight"]
        assert main([*line, "--report", str(tmp_path / name), "--json"]) == 0
    capsys.readouterr()
    made = found(capsys, str(tmp_path / "a"), str(tmp_path / "b"))
    names = {one["name"]: one for one in made["breakdowns"]}
    causes, layers = names["makespan of the NPU by cause"], names["makespan of the NPU by layer"]
    assert causes["total"]["delta"] == layers["total"]["delta"] > 0
    assert "channel_busy" in [part["figure"] for part in causes["parts"]]
    assert "conv0.1" in [part["figure"] for part in layers["parts"]]


def test_sweeps_are_compared_row_by_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, more in (("a", []), ("b", SLOWER)):
        line = ["sweep", "submit_latency", "tile=16,32", *QUICK, *more, "-o", str(tmp_path / name)]
        assert main(line) == 0
    capsys.readouterr()
    made = found(capsys, str(tmp_path / "a"), str(tmp_path / "b"), "--fail-if", "t_submit_p50 > +10%", code=1)
    assert [one["run"] for one in made["beyond"]] == ["tile = 16, mode = loose", "tile = 32, mode = loose"]


def test_the_page_has_the_same(folders: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "new" / "diff.html"
    assert main(["diff", *folders, "-o", str(page)]) == 0
    text, shown = page.read_text(encoding="utf-8"), capsys.readouterr().out
    assert "core.timing.mmio_one_way" in text and "core.timing.mmio_one_way" in shown
    assert "submit by reason, summed" in text and "chart-data" in text
