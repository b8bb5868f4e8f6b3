"""The report of a model's run: its files, what its figures add up to, the page in a browser, replays."""

import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from browser import chromium, open_page
from hypothesis import given
from hypothesis import strategies as st

from npu_device.abi.memory_map import SPM_BASE
from npu_device.cost.counts import Counts
from npu_device.trace.events import FRONTEND, Kind, What
from npu_device.trace.records import RECORD
from npu_device.trace.run_spans import Spans, rows_between
from npu_device.trace.spans import Table
from pyv_npu import Simulator
from pyv_npu.cli import main
from pyv_npu.observe.analysis.layers import covered_cycles
from pyv_npu.observe.analysis.metrics import roofline
from pyv_npu.observe.analysis.model import Analysis
from pyv_npu.observe.analysis.work import CommandWork, spm_occupancy
from toolchain.examples import EXAMPLES

FILES = {
    "npu_ir.jsonl", "cmdq.json", "timeline.csv", "metrics.csv", "report.html", "run.yaml", "result.json", "summary.txt",
    "outputs.npz", "latency.csv",
}  # fmt: skip
CHARTS = {"roofline", "bottlenecks_tight", "reasons"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    onnx.save(EXAMPLES["cnn"](), path)
    return str(path)


@pytest.fixture(scope="module")
def report(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "out"
    line = ["run", model, "--sim_level", "CA_HYBRID", "--mode", "tight", "--report", str(folder), "--json"]
    assert main(line) == 0
    return folder


def rows(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "metrics.csv").open()))


def value(folder: Path, scope: str, name: str, metric: str) -> float:
    (found,) = (r for r in rows(folder) if (r["scope"], r["name"], r["metric"]) == (scope, name, metric))
    return float(found["value"])


def test_it_has_every_file(report: Path) -> None:
    assert {path.name for path in report.iterdir()} >= FILES
    stages = [json.loads(line)["stage"] for line in (report / "npu_ir.jsonl").read_text().splitlines()]
    assert stages[0] == "import"
    assert main(["run", str(report / "cmdq.json"), "--sim-level", "IA_TIMING", "--json"]) == 0
    outputs = np.load(report / "outputs.npz")
    assert outputs["y"].shape == (1, 10)


def test_layers_add_up_to_the_counters(report: Path) -> None:
    npu = json.loads((report / "result.json").read_text())["npu"]
    layers: dict[str, float] = {}
    for row in rows(report):
        if row["scope"] == "layer" and row["metric"] not in ("operations", "rate", "intensity"):
            layers[row["metric"]] = layers.get(row["metric"], 0) + float(row["value"])
    for kind in ("te", "ve", "dma"):
        assert layers[f"{kind}_busy"] == sum(npu[f"{kind}_busy"])
    assert (layers["dram_read"], layers["dram_written"]) == (npu["dram_bytes_read"], npu["dram_bytes_written"])
    assert layers["commands"] == npu["accepted"]
    assert layers["chain"] == value(report, "run", "", "npu_makespan")
    causes = sum(float(row["value"]) for row in rows(report) if row["scope"] == "cause")
    assert causes == layers["chain"]


def test_banks_are_busy_while_their_steps_run(report: Path) -> None:
    lines = list(csv.DictReader((report / "series.csv").open()))
    npu = json.loads((report / "result.json").read_text())["npu"]
    for index, busy in enumerate(npu["bank_busy"]):
        bank = f"bank{index}"
        shares = [float(row.get(bank) or 0) for row in lines]
        width = [int(row["end"]) - int(row["start"]) for row in lines]
        assert np.dot(shares, width) == pytest.approx(busy, rel=1e-4)
        assert np.average(shares, weights=width) < 0.9  # no bank of this model is busy all of the time
        assert all(share for share, row in zip(shares, lines, strict=True) if float(row.get(f"{bank}_conflict") or 0))


def test_timeline_names_layers(report: Path) -> None:
    names = {row["name"] for row in rows(report) if row["scope"] == "layer"}
    worked = [row for row in csv.DictReader((report / "timeline.csv").open()) if row["unit"].startswith("te")]
    assert worked and {row["layer"] for row in worked} <= names


def test_operations_are_those_of_the_model(report: Path) -> None:
    conv0, conv1, gemm = 28 * 28 * 8 * 9, 14 * 14 * 16 * 8 * 9, 784 * 10
    assert value(report, "run", "", "macs") == conv0 + conv1 + gemm


def analysed(model: str, **arguments: Any) -> tuple[Simulator, Analysis]:
    sim = Simulator(model, **arguments)
    result = sim.run()
    return sim, result._result.analysis


@pytest.mark.parametrize("level", ["L1", "L2"])
@pytest.mark.parametrize("granularity", ["macro", "tile"])
def test_no_layer_is_above_the_roofline_and_no_bound_above_the_makespan(
    model: str, level: str, granularity: str
) -> None:
    sim, found = analysed(model, level=level, granularity=granularity)
    device = roofline(sim.config.npu, found.layers)
    assert device.slope is not None
    for layer in found.layers:
        assert layer.start <= layer.end and layer.active <= layer.end - layer.start
        assert layer.rate <= sum(roof.rate for roof in device.roofs)
        assert layer.bytes <= layer.active * device.slope
    assert max(found.explanation.bounds.values()) <= found.explanation.makespan
    assert 0 < found.peak_scratchpad <= sim.config.npu.spm.size
    assert sum(cycles for *_, cycles in found.bottlenecks) == found.explanation.makespan
    assert len(found.names) == sum(layer.commands for layer in found.layers)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), min_size=1, max_size=12))
def test_union_agrees_with_counting(spans: list[tuple[int, int]]) -> None:
    spans.sort()
    start = np.array([a for a, _ in spans], np.int64)
    end = np.array([a + length for a, length in spans], np.int64)
    cycles = {cycle for a, length in spans for cycle in range(a, a + length)}
    assert covered_cycles(start, end) == len(cycles)


def lasting(spans: list[tuple[int, int]]) -> Table:
    start, length = np.array(spans, np.int64).reshape(-1, 2).T
    return rows_between(start, start + length)


def records(*found: tuple[int, int, What, int]) -> Any:
    return np.array([(c, u, w, t, 0, 0, 0) for c, u, w, t in found], RECORD)


def work(fills: tuple[tuple[int, int], ...], uses: tuple[tuple[int, int], ...] = ()) -> CommandWork:
    return CommandWork("X", Counts(), 0, 0, None, fills, uses)


def test_a_range_is_occupied_until_its_last_reader_has_ended() -> None:
    dma, te = Kind.DMA << 8, Kind.TE << 8
    low, high = SPM_BASE, SPM_BASE + 100
    seen = records(
        (0, FRONTEND, What.ACCEPT, 5), (0, FRONTEND, What.ACCEPT, 6), (0, FRONTEND, What.ACCEPT, 7),
        (10, dma, What.DMA_BEGIN, 5), (20, dma, What.DMA_END, 5), (20, dma, What.DONE, 5), (25, te, What.TE_BEGIN, 6),
        (40, te, What.TE_END, 6), (40, te, What.DONE, 6), (50, dma, What.DMA_BEGIN, 7), (70, dma, What.DMA_END, 7),
        (70, dma, What.DONE, 7),
    )  # fmt: skip
    done = [work(((low, high),)), work((), ((low, high),)), work(((low + 50, high),))]
    occupancy = spm_occupancy(Spans([seen], 90), done)
    assert occupancy[["start", "end", "bytes"]].tolist() == [(10, 40, 100), (50, 70, 50)]


# -- the page --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as page:
        yield page


def test_the_page_shows_the_figures_of_metrics_csv(report: Path, browser: Any) -> None:
    open_page(browser, report / "report.html")
    shown = browser.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('[data-figure]')]"
        ".map((cell) => [cell.dataset.figure, cell.dataset.value ?? cell.innerText]))"
    )
    names = {"bound": "tight.bound.{}", "cause": "tight.cause.{}"}
    columns = {"dram_read": "dram read", "dram_written": "written"}
    seen = 0
    for row in rows(report):
        key = names.get(row["scope"], "").format(row["name"])
        if row["scope"] == "layer":
            key = f"tight.layer.{row['name']}.{columns.get(row['metric'], row['metric'])}"
            assert key in shown or row["metric"] not in columns
        if row["scope"] == "energy":
            key = f"tight.energy.{row['metric']}.{row['name']}"
            assert key in shown
        if key in shown:
            assert float(shown[key].replace(",", "")) == float(row["value"]), key
            seen += 1
    assert seen > 50
    assert shown["tight.run (core cycles)"].replace(",", "") == str(
        json.loads((report / "result.json").read_text())["cycles"]
    )
    assert "outputs as the reference\tyes" in browser.execute_script("return document.body.innerText")
    sections = browser.execute_script("return [...document.querySelectorAll('section')].map((part) => part.id)")
    assert sections == [
        "model", "cycles", "bottlenecks", "roofline", "layers", "traffic", "energy", "latency", "stages", "sites",
        "time", "run", "parameters",
    ]  # fmt: skip
    layer = browser.execute_script("const c = gantts['gantt-tight']; return c.layerOf(c.tickets[3])")
    fourth = [row["layer"] for row in csv.DictReader((report / "timeline.csv").open()) if row["what"] == "ACCEPT"][3]
    assert layer == f", layer {fourth}"
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


@pytest.mark.parametrize("level", ["IA", "IA_TIMING"])
def test_levels_without_a_core_have_reports_too(model: str, level: str, tmp_path: Path, browser: Any) -> None:
    assert main(["run", model, "--sim-level", level, "--report", str(tmp_path), "--json"]) == 0
    written = {path.name for path in tmp_path.iterdir()}
    assert {"npu_ir.jsonl", "cmdq.json", "outputs.npz", "run.yaml", "result.json"} <= written
    assert ("report.html" in written) == (level == "IA_TIMING") == ("timeline.csv" in written)
    if level == "IA_TIMING":
        open_page(browser, tmp_path / "report.html")
        assert "IA_TIMING" in browser.title
        assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


def test_compare_shows_both_modes(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", model, "--report", str(tmp_path), "--trace", "perfetto"]) == 0
    text = capsys.readouterr().out
    result = json.loads((tmp_path / "result.json").read_text())
    p50 = [result[mode]["latency"]["stages"]["t_submit_prebuilt"]["p50"] for mode in ("loose", "tight")]
    assert result["ratio"]["t_submit_prebuilt_p50"] == round(p50[0] / p50[1], 3)
    assert f"loose / tight, t_submit_prebuilt P50  {p50[0] / p50[1]:.2f}" in text
    for mode in ("loose", "tight"):
        assert result[mode]["model"]["checks"]["y"]["ok"]
        latency = result[mode]["latency"]
        stage = latency["stages"]["t_submit_prebuilt"]
        assert stage["n"] == result[mode]["model"]["commands"]
        total = stage["mean"] * stage["n"]
        assert math.isclose(sum(latency["reasons_prebuilt"].values()), total, rel_tol=1e-3)
        assert latency["reasons_prebuilt"]["validate"] == 4 * stage["n"]
        assert (tmp_path / mode / "trace.perfetto-trace").stat().st_size > 1000
    assert {row["run"] for row in rows(tmp_path)} == {"loose", "tight"}
    assert (tmp_path / "npu_ir.jsonl").exists() and (tmp_path / "cmdq.json").exists()


# -- replay ----------------------------------------------------------------------------------------------------


def test_a_replay_has_the_same_events(report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["run", "--replay", str(report / "run.yaml"), "--report", str(tmp_path), "--json"]) == 0
    captured = capsys.readouterr()
    first = json.loads((report / "result.json").read_text())
    assert {**json.loads(captured.out), "host": None} == {**first, "host": None}
    assert captured.err.endswith(f"replayed {report}/run.yaml: the events are those of the recorded run\n")
    for name in ("timeline.csv", "metrics.csv", "series.csv", "outputs.npz"):
        assert (report / name).read_bytes() == (tmp_path / name).read_bytes(), name


def test_a_replay_of_a_report_made_in_python(model: str, tmp_path: Path) -> None:
    given = {"x": np.full((1, 1, 28, 28), 0.25, np.float32)}
    result = Simulator(model, mode="loose", passes="-fusion", seed=7, preset="rocket").run(given)
    page = result.report(tmp_path / "out")
    assert page == tmp_path / "out" / "report.html" and page.exists()
    assert main(["run", "--replay", str(tmp_path / "out"), "--report", str(tmp_path / "again"), "--json"]) == 0
    again = json.loads((tmp_path / "again" / "result.json").read_text())
    assert {**again, "host": None} == {**result.json, "host": None}


@pytest.mark.slow
def test_replay_of_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["compare", "submit_latency", "--arg", "n=4", "--no-sweeps", "--preset", "ibex", "--json"]
    assert main([*line, "--report", str(tmp_path)]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(["run", "--replay", str(tmp_path), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    for mode in ("loose", "tight"):
        assert first[mode]["events_sha256"] == again[mode]["events_sha256"]


def test_a_replay_needs_no_debugger_and_starts_from_the_same_snapshot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = tmp_path / "s"
    line = ["run", "hello", "--mode", "loose", "--json"]
    assert main([*line, "--save", f"{snapshot}@500", "--report", str(tmp_path / "one")]) == 0
    data = snapshot.read_bytes()
    snapshot.write_bytes(b"mine now")
    assert main(["run", "--replay", str(tmp_path / "one")]) == 0
    assert snapshot.read_bytes() == b"mine now"
    snapshot.write_bytes(data)
    assert main([*line, "--restore", str(snapshot), "--report", str(tmp_path / "two")]) == 0
    assert main(["run", "--replay", str(tmp_path / "two")]) == 0
    snapshot.write_bytes(data + b"x")
    capsys.readouterr()
    assert main(["run", "--replay", str(tmp_path / "two")]) == 65
    assert f"{snapshot}: is another file than that of the recorded run" in capsys.readouterr().err


def test_another_model_is_refused(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(Path(model).read_bytes())
    assert main(["run", str(path), "--sim-level", "IA", "--report", str(tmp_path / "out")]) == 0
    onnx.save(EXAMPLES["mlp_qdq"](), path)
    capsys.readouterr()
    assert main(["run", "--replay", str(tmp_path / "out")]) == 65
    error = capsys.readouterr().err
    assert f"{path}: is another file than that of the recorded run (SHA-256 " in error and error.count("\n") == 1
    path.unlink()
    assert main(["run", "--replay", str(tmp_path / "out")]) == 65
    assert f"{path}: is neither here nor where the run was started" in capsys.readouterr().err


def test_other_events_are_an_error(report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (report / "run.yaml").read_text()
    digest = json.loads((report / "result.json").read_text())["events_sha256"]
    (tmp_path / "run.yaml").write_text(text.replace(digest, "f" * 64))
    assert main(["run", "--replay", str(tmp_path), "--json"]) == 70
    error = capsys.readouterr().err
    assert f"the events of run differ (events_sha256 {digest[:12]}..., recorded ffffffffffff...)" in error


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--mode", "loose"], 64, "repeats a run as it was recorded, settings of the run cannot change"),
        (["hello"], 64, "repeats a run as it was recorded, program cannot change"),
        (["--passes", "none"], 64, "repeats a run as it was recorded, passes cannot change"),
    ],
)
def test_a_replay_changes_nothing(
    report: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: int, message: str
) -> None:
    assert main(["run", *options, "--replay", str(report)]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "preset: ideal\n", "record: 5\n", "record: [\n"])
def test_a_file_without_a_record_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (tmp_path / "run.yaml").write_text(text)
    assert main(["run", "--replay", str(tmp_path / "run.yaml")]) == 65
    assert "has no record of a run; name the run.yaml of a report" in capsys.readouterr().err


def test_inputs_of_the_command_line(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "in.npz"
    values = np.linspace(-1, 1, 784, dtype=np.float32).reshape(1, 1, 28, 28)
    np.savez(file, x=values)
    assert main(["run", model, "--sim-level", "IA", "--inputs", str(file), "--json"]) == 0
    digest = json.loads(capsys.readouterr().out)["model"]["outputs_sha256"]
    assert digest == Simulator(model, level="IA").run({"x": values}).json["model"]["outputs_sha256"]
    assert main(["compile", model, "-o", str(tmp_path / "c"), "--inputs", str(file)]) == 0
    assert values.tobytes() in (tmp_path / "c" / "image.elf").read_bytes()
    assert main(["run", model, "--timing-only", "--inputs", str(file)]) == 64
    assert "--inputs: this run takes no inputs" in capsys.readouterr().err
    file.write_text("no archive")
    assert main(["run", model, "--inputs", str(file)]) == 65
    assert f"{file}: not a .npz file; give arrays that numpy.savez wrote" in capsys.readouterr().err
    assert main(["run", model, "--inputs", str(tmp_path / "none.npz")]) == 65
    assert "none.npz: No such file or directory; give arrays" in capsys.readouterr().err
    assert main(["run", "hello", "--inputs", str(file)]) == 64


@pytest.mark.parametrize("level", ["IA_TIMING", "CA_HYBRID"])
def test_runs_without_a_core_are_explained_too(
    model: str, report: Path, level: str, tmp_path: Path, browser: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    lines = {
        "timing": ["run", model, "--timing-only"],
        "list": ["run", str(report / "cmdq.json")],
    }
    found = {}
    for name, line in lines.items():
        folder = tmp_path / name
        assert main([*line, "--sim-level", level, "--report", str(folder), "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        found[name] = [row for row in rows(folder) if row["scope"] in ("layer", "cause", "bound")]
        assert value(folder, "run", "", "npu_makespan") == result["cycles"]
        open_page(browser, folder / "report.html")
        assert browser.execute_script("return document.getElementById('roofline') !== null")
        assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    assert found["timing"] == found["list"]
