"""The page of `pyv-npu diff`: whole distributions over each other, both results on one time axis, in a real browser."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from browser import chromium, draw_all, open_page

from pyv_npu.cli import main
from pyv_npu.report.vega import deflated, gantts_of
from pyv_npu.studies.diff_page import cumulative
from toolchain.examples import EXAMPLES

WIDTHS = (400, 1400, 2560)


def made(folder: Path, *pairs: list[str]) -> list[Path]:
    """Reports of commands, by the names a and b."""
    found = []
    for name, line in zip("ab", pairs, strict=True):
        assert main([*line, "--report", str(folder / name), "--json"]) in (0, 75)
        found.append(folder / name)
    return found


def page_of(a: Path, b: Path) -> Path:
    page = a.parent / f"{a.name}-{b.stem}.html"
    assert main(["diff", str(a), str(b), "-o", str(page)]) == 0
    return page


def charts(page: Path) -> dict[str, Any]:
    """The charts over time of a page, by their names."""
    return gantts_of(page.read_text("utf-8"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two comparisons of a model with layers."""
    folder = tmp_path_factory.mktemp("models")
    onnx.save(EXAMPLES["cnn"](), folder / "cnn.onnx")
    line = ["compare", str(folder / "cnn.onnx"), "--phases", "0", "--no-sweeps"]
    return made(folder, line, [*line, "--set", "npu.dma.channels=1"])


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs of firmware; the second is cut while engines work."""
    line = ["run", "submit_latency", "--arg", "n=100"]
    more = ["--set", "core.timing.mmio_one_way=80", "--max-cycles", "170000"]
    return made(tmp_path_factory.mktemp("programs"), line, [*line, *more])


@pytest.mark.parametrize("which", ["models", "programs"])
def test_the_runs_over_time_are_those_of_both_reports(which: str, request: pytest.FixtureRequest) -> None:
    folders = request.getfixturevalue(which)
    drawn = charts(page_of(*folders))
    for side, folder in zip("AB", folders, strict=True):
        for name, chart in charts(folder / "report.html").items():
            assert drawn.pop(f"{side}-{name}" if which == "models" else side) == chart
            assert any(lane["count"] for lane in chart["lanes"] if lane["engine"])
    assert drawn == {}


def test_distributions_are_those_of_all_submissions(programs: list[Path]) -> None:
    for folder in programs:
        stages = json.loads((folder / "result.json").read_text())["latency"]["stages"]
        (table,) = cumulative(folder / "latency_cdf.csv").values()
        assert "t_submit" in table
        for name, steps in table.items():
            assert (steps[-1][1], steps[0][0], steps[-1][0]) == tuple(stages[name][key] for key in ("n", "min", "max"))
            middle = next(cycles for cycles, rank in steps if 2 * rank >= steps[-1][1])
            assert middle == stages[name]["p50"]
    text = page_of(*programs).read_text("utf-8")
    counts = [json.loads((one / "result.json").read_text())["latency"]["stages"]["t_submit"]["n"] for one in programs]
    assert counts[0] > 100 and counts[0] != counts[1]
    assert f"A (n = {counts[0]:,})" in text and f"B (n = {counts[1]:,})" in text and "percentiles only" not in text


def test_a_baseline_without_a_folder_has_percentiles_only(programs: list[Path]) -> None:
    page = page_of(programs[0], programs[0] / "result.json")
    text = page.read_text("utf-8")
    assert re.search(r"\"A \(n = \d+\)\"", text) and re.search(r"\"B \(n = \d+, percentiles only\)\"", text)
    assert list(charts(page)) == ["A"]


def test_a_page_that_cannot_be_written_is_one_line(
    programs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["diff", str(programs[0]), str(programs[0]), "-o", str(tmp_path / "file" / "diff.html")]) == 64
    error = capsys.readouterr().err
    assert error == f"pyv-npu: error: --output {tmp_path / 'file'}: File exists: choose another place\n"


RUN = 'id="gantt-tight">'


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("latency_cdf.csv", ("stage", "phase"), "has no column 'stage'"),
        ("latency_cdf.csv", ("tight,t_submit,39,", "tight,t_submit,39,-"), "is no whole number from 0 on"),
        ("latency_cdf.csv", ("tight,t_submit,39,", "tight,t_submit,999999,"), "t_submit does not ascend at"),
        ("latency_cdf.csv", ("tight,t_submit,39,", "tight,t_submit\ntight,t_submit,39,"), "a line has no number there"),
        ("report.html", (RUN, f"{RUN}!"), "Only base64 data is allowed"),
        ("report.html", (RUN, f"{RUN}AAAA"), "Error -3 while decompressing data"),
        ("report.html", (RUN, f"{RUN}{deflated('{')}</script>"), "Expecting property name"),
        ("report.html", (RUN, f"{RUN}{deflated('{}')}</script>"), "has not the fields end, lanes and columns"),
    ],
)
def test_a_wrong_file_is_one_line(
    programs: list[Path], tmp_path: Path, file: str, change: tuple[str, str], said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    shutil.copytree(programs[0], tmp_path / "a")
    (tmp_path / "a" / "manifest.json").unlink()
    path, page = tmp_path / "a" / file, tmp_path / "diff.html"
    text = path.read_text("utf-8")
    assert change[0] in text
    path.write_text(text.replace(*change), "utf-8")
    page.write_text("earlier")
    code = main(["diff", str(tmp_path / "a"), str(programs[0]), "-o", str(page)])
    error = capsys.readouterr().err
    assert (code, page.read_text()) == (65, "earlier")
    assert error.startswith(f"pyv-npu: error: {path}: ") and said in error and error.count("\n") == 1


# -- in a browser --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(models: list[Path], browser: Any) -> Iterator[Any]:
    """There is no error on the console at the end."""
    seen(browser, 1400, "light")
    open_page(browser, page_of(*models))
    yield browser
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


def seen(browser: Any, width: int, scheme: str) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def test_nothing_is_cut_off_in_light_and_dark(page: Any) -> None:
    pictures = []
    for scheme in ("light", "dark"):
        for width in WIDTHS:
            seen(page, width, scheme)
            page.execute_script("axis.show(0, axis.end)")
            over = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert page.execute_script(over) == 0
        pictures.append(page.execute_script("return axis.charts[0].canvas.toDataURL()"))
    assert pictures[0] != pictures[1]


def test_a_and_b_move_together(page: Any) -> None:
    names = page.execute_script("return axis.charts.map((chart) => chart.name)")
    assert names == ["A loose", "B loose", "A tight", "B tight"]
    shown = "return axis.charts.map((chart) => [axis.from, axis.to])"
    ends = page.execute_script("return axis.charts.map((chart) => chart.run.end)")
    assert page.execute_script(shown) == [[0, max(ends)]] * 4 and len(set(ends)) == 4
    press = "axis.charts[1].canvas.dispatchEvent(new KeyboardEvent('keydown', {key: '+'}));"
    near = page.execute_script(press + shown)
    assert near[0][1] - near[0][0] == pytest.approx(max(ends) / 2) and near == [near[0]] * 4
    drawn = page.execute_script("return axis.charts.map((chart) => chart.canvas.toDataURL())")
    assert len(set(drawn)) == 4


def test_a_command_is_chosen_in_both(page: Any) -> None:
    ticket = page.execute_script("return axis.charts[0].tickets[1]")
    chosen = page.execute_script(
        "search(String(arguments[0])); return axis.charts.map((chart) => [chart.chosen, chart.spans.length])", ticket
    )
    assert all(found == ticket and spans for found, spans in chosen)
    said = page.execute_script("return document.querySelector('.time output').textContent")
    assert said.startswith(f"A loose: ticket {ticket}, layer ")
    counts = page.execute_script(
        "search(axis.charts[0].layers[0]); return document.querySelector('.time output').textContent"
    )
    assert counts.count(" commands") == 4 and ": 0 commands" not in counts


def test_curves_of_a_and_b_lie_over_each_other(page: Any) -> None:
    """Each picture has both curves; they have a size and different colours."""
    draw_all(page)
    found = page.execute_script(
        "return [...document.querySelectorAll('#latency svg')].map((svg) => ["
        " [...svg.querySelectorAll('text')].map((e) => e.textContent.trim()).filter((t) => /^[AB] \\(n = /.test(t)),"
        " [...svg.querySelectorAll('.mark-line path')].filter((e) => e.getBoundingClientRect().height > 100)"
        "   .map((e) => e.getAttribute('stroke'))])"
    )
    assert len(found) >= 2
    for legend, colours in found:
        assert [text[0] for text in legend] == ["A", "B"] and len(set(colours)) == len(colours) == 2
