"""What a notebook shows of a run, and its tables as data frames: the same figures as the files of a report."""

import csv
import webbrowser
from pathlib import Path

import onnx
import pytest

from pyv_npu import Platform, Simulator
from pyv_npu.boot import find_program
from pyv_npu.cli import main
from pyv_npu.config import load
from pyv_npu.errors import UsageError
from pyv_npu.simulator import Simulation
from pyv_npu.workloads.firmware import Firmware
from pyv_npu.workloads.workload import compare
from toolchain.examples import EXAMPLES


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "a<b.onnx"
    onnx.save(EXAMPLES["mlp"](), path)
    return str(path)


@pytest.fixture(scope="module")
def result(model: str) -> Simulation:
    return Simulator(model, level="CA_HYBRID", mode="tight").run()


def test_a_result_shows_itself(result: Simulation) -> None:
    shown = result._repr_mimebundle_()
    assert set(shown) == {"text/plain", "text/html"} and result._repr_html_() == shown["text/html"]
    html = shown["text/html"]
    assert f">{result.cycles:,}<" in html and "outputs as the reference" in html
    assert "Tight: " in html and "same commands without firmware" in html
    assert "a&lt;b" in html and "a<b" not in html
    assert shown["text/plain"].splitlines()[0].endswith("1200 MHz")


def test_firmware_and_comparisons_show_themselves_in_a_line() -> None:
    config = load(overrides={"run.args.n": 2}).config
    both = compare(Firmware("submit_latency").prepare(config), config)
    assert repr(both.tight) == f"<Result: submit_latency, tight, {both.tight.cycles:,} cycles, exit code 0>"
    assert repr(both).endswith("same results yes>") and repr(both).count("<Result") == 2
    latency = both.tight.latency
    assert repr(latency).startswith("<Latency of 8 submissions: <Distribution: n 6, p50 ")
    assert "\nqueue_wait " in latency._repr_html_()
    platform = Platform(config)
    assert repr(platform) == "<Platform: no program, tight, cycle 0, pc 0x0>"
    platform.load(find_program("hello"))
    assert repr(platform).startswith("<Platform: hello.elf, tight, cycle 0, pc 0x8")


def test_without_time_it_shows_what_there_is(model: str) -> None:
    found = Simulator(model, level="IA").run()
    assert "cycles<" not in found._repr_mimebundle_()["text/html"]
    with pytest.raises(UsageError, match=r"^no layers: IA has no time"):
        found.to_dataframe("layers")


def test_data_frames_are_the_files_of_the_report(result: Simulation, tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="pip install pandas")
    result.report(tmp_path / "out")
    for table, file in (("timeline", "timeline.csv"), ("submissions", "latency.csv"), ("metrics", "metrics.csv")):
        rows = list(csv.DictReader((tmp_path / "out" / file).open()))
        frame = result.to_dataframe(table)
        column = {"timeline": "start", "submissions": "t2", "metrics": "value"}[table]
        assert [str(each) for each in frame[column]] == [row[column] for row in rows]
        assert len(rows) > 2 and set(frame.columns) <= {*rows[0], "run"}
    layers, seen = result.to_dataframe("layers").set_index("name"), set[str]()
    for row in csv.DictReader((tmp_path / "out" / "metrics.csv").open()):
        if row["scope"] == "layer" and row["metric"] in layers.columns:
            assert str(layers.loc[row["name"], row["metric"]]) == row["value"]
            seen.add(row["metric"])
    assert len(seen) > 5


def test_what_is_not_there_is_said_in_one_line(result: Simulation) -> None:
    with pytest.raises(UsageError) as error:
        result.to_dataframe("layer")
    said = "to_dataframe('layer'): there is no such table; choose from timeline, layers, metrics, submissions"
    assert str(error.value) == said


def test_open_shows_the_page(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: bool(seen.append(url)))
    out = tmp_path / "out"
    assert main(["run", model, "--sim-level", "IA_TIMING", "--report", str(out), "--open", "--json"]) == 0
    assert seen == [(out / "report.html").as_uri()]
    assert f"--open: no browser was found; open {out / 'report.html'}" in capsys.readouterr().err
    assert main(["run", model, "--sim-level", "IA", "--report", str(tmp_path / "ia"), "--open", "--json"]) == 0
    assert len(seen) == 1 and "has no report.html" in capsys.readouterr().err
    assert main(["run", model, "--open"]) == 64
    said = "pyv-npu: error: --open: shows the page of a report; give --report DIR too\n"
    assert capsys.readouterr().err.endswith(said)
