"""Folders of `--report` from the command line: swapped in whole when complete, as they were in any other case."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pyv_npu import manifest
from pyv_npu.cli import main
from pyv_npu.report.folder import ReportFolder

Files = dict[str, bytes]


def content(folder: Path) -> Files:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def earlier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Path, Files]:
    """A report and what is in it."""
    place = tmp_path / "results" / "out"
    assert main(["run", "hello", "--report", str(place), "--json"]) == 0
    capsys.readouterr()
    return place, content(place)


def press(*_: Any, **__: Any) -> None:
    signal.raise_signal(signal.SIGINT)


def fails(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    "line",
    [
        ["run", "helo"],
        ["run", "none.elf"],
        ["run", "hello", "--set", "core.timing.mul=x"],
        ["run", "hello", "--set", "core.timing.mull=1"],
        ["run", "hello", "--preset", "none"],
        ["run", "hello", "--no-such-option"],
        ["run", "hello", "--qbits-kv", "4"],
        ["run", "hello", "--restore", "none.snapshot"],
        ["compare", "cnn", "--set", "npu.te.count=0"],
        ["run", "--replay", "nowhere"],
    ],
)
def test_a_command_that_is_refused_touches_nothing(
    earlier: tuple[Path, Files], line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    place, before = earlier
    assert main([*line, "--report", str(place)]) in (64, 65), line
    error = capsys.readouterr().err
    assert "pyv-npu: error: " in error and "Traceback" not in error
    assert content(place) == before and [path.name for path in place.parent.iterdir()] == ["out"]


def test_a_report_that_cannot_be_written_leaves_the_earlier_one(
    earlier: tuple[Path, Files], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, before = earlier
    monkeypatch.setattr("pyv_npu.report.write.write_series_csv", fails)
    assert main(["run", "submit_latency", "--arg", "n=5", "--report", str(place), "--json"]) == 65
    assert content(place) == before and [path.name for path in place.parent.iterdir()] == ["out"]


def test_another_run_replaces_the_folder_as_a_whole(earlier: tuple[Path, Files], tmp_path: Path) -> None:
    place, before = earlier
    line = ["run", "submit_latency", "--arg", "n=5", "--json", "--report"]
    for each in (place, tmp_path / "fresh"):
        assert main([*line, str(each)]) == 0
    assert set(content(place)) == set(content(tmp_path / "fresh")) != set(before)
    assert main(["run", "hello", "--report", str(place), "--json"]) == 0
    assert set(content(place)) == set(before)


@pytest.mark.parametrize("where", ["write_series_csv", "write_page", "_write_metrics"])
def test_ctrl_c_while_the_report_is_written_keeps_the_earlier_one(
    earlier: tuple[Path, Files], where: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place, before = earlier
    monkeypatch.setattr(f"pyv_npu.report.write.{where}", press)
    assert main(["run", "submit_latency", "--arg", "n=5", "--report", str(place), "--json"]) == 130
    assert f"pyv-npu: the earlier report stays in {place}\n" in capsys.readouterr().err
    assert content(place) == before and [path.name for path in place.parent.iterdir()] == ["out"]


def test_ctrl_c_while_the_report_is_written_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr("pyv_npu.report.write.write_series_csv", press)
        assert main(["run", "submit_latency", "--arg", "n=5", "--report", str(place), "--json"]) == 130
    assert f"pyv-npu: a report that says so is in {place}\n" in capsys.readouterr().err
    said = "interrupted while the report was written: files are missing; result.json has the figures"
    for name in ("summary.txt", "report.html"):
        assert said in (place / name).read_text()
    assert json.loads((place / "result.json").read_text())["stop_reason"] == "exit"
    assert not (place / "series.csv").exists()
    assert main(["run", "--replay", str(place), "--report", str(place), "--json"]) == 0
    assert (place / "series.csv").exists() and said not in (place / "report.html").read_text()


def test_ctrl_c_after_the_report_changes_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A browser that `--open` waits for, for instance."""
    place = tmp_path / "out"
    monkeypatch.setattr("webbrowser.open", press)
    assert main(["run", "hello", "--report", str(place), "--open"]) == 130
    assert capsys.readouterr().err.endswith(f"pyv-npu: the report is in {place}\npyv-npu: error: interrupted\n")
    files = json.loads((place / "manifest.json").read_text())["files_sha256"]
    assert {*files, "manifest.json"} == set(content(place)) >= {"report.html", "timeline.csv"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_ctrl_c_between_both_renames_puts_the_earlier_report_back(
    earlier: tuple[Path, Files], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, before = earlier
    rename, done = os.rename, list[str]()

    def interrupted(old: Path, new: Path) -> None:
        rename(old, new)
        done.append(str(new))
        if len(done) == 1:
            press()

    with monkeypatch.context() as patched:
        patched.setattr("pyv_npu.report.folder.os.rename", interrupted)
        assert main(["run", "hello", "--report", str(place), "--json"]) == 130
    assert content(place) == before and [path.name for path in place.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("taken", [False, True])
def test_what_a_process_was_replacing_when_it_was_killed_comes_back(tmp_path: Path, taken: bool) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    place, old = tmp_path / "out", tmp_path / f".out.{gone.pid}.old"
    for folder in (old, *([place] if taken else [])):
        folder.mkdir()
        (folder / "run.yaml").write_text(json.dumps({"name": folder.name}))
        manifest.write(folder, "report", {})
    report = ReportFolder(place)
    assert report.is_occupied and set(tmp_path.iterdir()) == {place, report.draft}
    assert json.loads((place / "run.yaml").read_text())["name"] == ("out" if taken else old.name)
    report.discard()
