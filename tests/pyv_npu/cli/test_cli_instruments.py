"""`pyv-npu run` with --trace, --profile and --signature, on the shipped firmware."""

import json
from pathlib import Path

import pytest

from pyv_npu.cli import main


def run(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str]:
    code = main(["run", "hello", *options])
    out, err = capsys.readouterr()
    return code, out, err


def test_files_of_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "report"
    code, _, err = run(capsys, "--trace", "commits", "--profile", "--report", str(folder), "--json")
    assert (code, err) == (0, f"pyv-npu: the report is in {folder}\n")
    instret = json.loads((folder / "result.json").read_text())["instret"]
    assert len((folder / "commits.log").read_text().splitlines()) == instret
    assert "\n_start;main" in (folder / "profile.folded").read_text()
    assert json.loads((folder / "profile.speedscope.json").read_text())["exporter"] == "PyV-NPU"
    assert (folder / "profile.csv").read_text().startswith("function,file,line,")
    assert "\nprofile: " in (folder / "summary.txt").read_text()


def test_the_profile_follows_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--profile")
    assert (code, err) == (0, "")
    assert "\n\nprofile: " in out
    assert "\nfunction " in out
    assert run(capsys)[1].count("profile: ") == 0


def test_json_stays_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(run(capsys, "--profile", "--json")[1])["exit_code"] == 0


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (
            ["--trace", "commits"],
            64,
            "pyv-npu: error: --trace commits: traces go to the report; add --report DIR\n",
        ),
        (["--trace", "commits,x"], 64, "pyv-npu: error: --trace commits,x: unknown trace 'x'; there are "),
        (
            ["--signature", "unused"],
            65,
            "pyv-npu: error: hello: no symbol begin_signature: a signature needs begin_signature and end_signature\n",
        ),
    ],
)
def test_what_cannot_be(
    options: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    got, out, err = run(capsys, *options)
    assert (got, out) == (code, "")
    assert err.startswith(message)
    assert err.count("\n") == 1
