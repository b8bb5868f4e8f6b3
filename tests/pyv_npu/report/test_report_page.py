"""report.html in a real browser: it opens without an error, shows the figures of the JSON, and its chart is fluid."""

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import chromium, draw_all, open_page
from hypothesis import given
from hypothesis import strategies as st
from shares import slow

from npu_device.trace.run_spans import rows_between
from pyv_npu.cli import main
from pyv_npu.config.presets import NAMES
from pyv_npu.report.figures import Series, _covered_cycles, _deepest, differences, gantt_chart, gantt_picture, sums
from pyv_npu.report.page import render
from pyv_npu.report.vega import library
from pyv_npu.sections import Chart, OverTime, Section
from pyv_npu.studies.break_even import AUTOMATIC, Sweep

FEW = ["--arg", "n=60", "--arg", "tile=16"]
SWEEPS = (Sweep("run.args.tile", ("16", "32")), Sweep("npu.queue.full_policy", ("retry", "stall")))


def chart_of(lanes: dict[str, Any], end: int, hertz: float = 0) -> dict[str, Any]:
    """The chart of a run whose commands, engines and series are unknown."""
    unknown = Series(np.zeros(1, np.int64), {"barrier_waiting": np.zeros(0)})
    return gantt_chart(lanes, end, np.zeros(0, np.int64), (), unknown, {}, (), hertz)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(AUTOMATIC, "submit_latency", SWEEPS)
        assert main(["compare", "submit_latency", *FEW, "--json", "--report", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as page:
        yield page


def errors(browser: Any) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def test_it_loads_nothing_from_anywhere(report: Path, browser: Any) -> None:
    open_page(browser, report / "report.html")
    draw_all(browser)
    assert browser.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)") == []
    text = (report / "report.html").read_text(encoding="utf-8").replace(library(), "")
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#|data:,)|url\((?!#)|@import|https?://""", text)
    assert len(text) + len(library()) < 2e6


def figures(report: Path, browser: Any) -> dict[str, str]:
    """What the page shows, by the name of each figure; it opens without an error."""
    open_page(browser, report / "report.html")
    shown: dict[str, str] = browser.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('[data-figure]')]"
        ".map((cell) => [cell.dataset.figure, cell.dataset.value ?? cell.innerText]))"
    )
    assert errors(browser) == []
    return shown


def check_modes(shown: dict[str, str], result: dict[str, Any]) -> None:
    """The figures of both modes are those of the JSON."""
    seen = 0
    for mode in ("loose", "tight"):
        for stage, values in result[mode]["latency"]["stages"].items():
            for name, value in (values or {}).items():
                if name == "ci95":
                    continue
                text = shown[f"{mode}.{stage}.{name}"]
                assert (value is None and text == "-") or float(text.replace(",", "")) == pytest.approx(value, rel=1e-3)
                seen += 1
        for reason, cycles in result[mode]["latency"]["reasons"].items():
            text = shown.get(f"reasons.{reason}.{mode}, cycles", "0")
            assert int(text.replace(",", "")) == cycles
        assert int(shown[f"{mode}.run (core cycles)"].replace(",", "")) == result[mode]["cycles"]
    assert seen > 50
    assert float(shown["ratio.t_submit_p50"].removesuffix("x")) == pytest.approx(
        result["ratio"]["t_submit_p50"], rel=1e-3
    )


def test_it_shows_the_figures_of_the_json(report: Path, browser: Any) -> None:
    shown = figures(report, browser)
    result = json.loads((report / "result.json").read_text())
    check_modes(shown, result)
    for sweep in result["sweeps"]:
        for point in sweep["points"]:
            text = shown[f"sweep.{sweep['key']}.{point['value']}.loose.t_submit"]
            assert float(text.replace(",", "")) == pytest.approx(point["loose"]["t_submit"], rel=1e-3)


@pytest.mark.parametrize("preset", [NAMES[0], *slow(*NAMES[1:])])
def test_every_preset_has_a_page(preset: str, tmp_path: Path, browser: Any) -> None:
    line = ["compare", "submit_latency", "--preset", preset, "--arg", "n=8", "--no-sweeps", "--json"]
    assert main([*line, "--report", str(tmp_path)]) == 0
    check_modes(figures(tmp_path, browser), json.loads((tmp_path / "result.json").read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("preset", NAMES)
def test_every_preset_has_a_page_of_thousands_of_submissions(preset: str, tmp_path: Path, browser: Any) -> None:
    assert main(["compare", "submit_latency", "--preset", preset, "--json", "--report", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    check_modes(figures(tmp_path, browser), result)
    assert {sweep["key"] for sweep in result["sweeps"]} == {sweep.key for sweep in AUTOMATIC["submit_latency"]}
    for mode in ("loose", "tight"):
        latency = result[mode]["latency"]
        assert latency["stages"]["t_submit"]["n"] == 3000 and latency["stages"]["t_submit_prebuilt"]["n"] == 1000
        lines = list(csv.DictReader((tmp_path / mode / "latency.csv").open()))
        for prebuilt, stage, reasons in (
            ("0", "t_submit", latency["reasons"]),
            ("1", "t_submit_prebuilt", latency["reasons_prebuilt"]),
        ):
            spans = sorted(int(line["t2"]) - int(line["t0"]) for line in lines if line["prebuilt"] == prebuilt)
            assert sum(reasons.values()) == sum(spans)
            assert latency["stages"][stage]["p99"] == spans[-(-99 * len(spans) // 100) - 1]
    drawn = browser.execute_script(
        "return Object.values(gantts).map((chart) => chart.lanes.filter((lane) => lane.name === 'core')[0].count)"
    )
    assert drawn == [4000, 4000]


def test_submission_over_computation_is_swept_by_tile_size_and_prefetch_distance(
    tmp_path: Path, browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = [replace(sweep, values=sweep.values[:2]) for sweep in AUTOMATIC["submit_latency"][:2]]
    monkeypatch.setitem(AUTOMATIC, "submit_latency", tuple(short))
    assert main(["compare", "submit_latency", "--arg", "n=30", "--report", str(tmp_path), "--json"]) == 0
    shown = figures(tmp_path, browser)
    rows = list(csv.DictReader((tmp_path / "sweeps.csv").open()))
    ratios = [row for row in rows if row["figure"] == "submit_per_compute"]
    assert {row["key"] for row in ratios} == {"run.args.tile", "run.args.prefetch"}
    for row in ratios:
        text = shown[f"sweep.{row['key']}.{row['value']}.{row['mode']}.submit_per_compute"]
        assert float(text.replace(",", "")) == pytest.approx(float(row["result"]), rel=1e-3)
        assert row["unit"] == "ratio"
    text = browser.execute_script("return document.getElementById('sweeps').innerText")
    assert "submit_per_compute (ratio)" in text and "t_submit (core cycles)" in text


def test_every_part_is_there(report: Path, browser: Any) -> None:
    open_page(browser, report / "report.html")
    sections = browser.execute_script("return [...document.querySelectorAll('section')].map((part) => part.id)")
    assert sections == [
        "cycles", "latency", "placement", "stages", "sweeps", "sites", "time", "run", "parameters",
    ]  # fmt: skip
    draw_all(browser)
    drawn = browser.execute_script(
        "return charts.map((chart) => [chart.name, chart.box.querySelectorAll('svg').length])"
    )
    assert dict(drawn).items() >= {"latency_cdf": 1, "reasons": 1, "effect_run.args.tile": 1}.items()
    over_time = browser.execute_script("return gantts['gantt-loose'].rows.map((row) => row.name)")
    assert {"core", "queue", "te0", "te busy", "queue depth", "bank0"} <= {*over_time}
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    text = browser.execute_script(
        "document.querySelectorAll('details').forEach((each) => { each.open = true; }); return document.body.innerText"
    )
    assert "core.timing.mmio_one_way" in text and "gem5" in text


def test_the_tables_are_files_too(report: Path) -> None:
    result = json.loads((report / "result.json").read_text())
    for row in csv.DictReader((report / "stages.csv").open()):
        assert str(result[row["mode"]]["latency"]["stages"][row["stage"]]["p50"]) == row["p50"]
    series = list(csv.DictReader((report / "series.csv").open()))
    for mode in ("loose", "tight"):
        rows = [row for row in series if row["mode"] == mode]
        busy = sum(float(row["te_busy"]) * (int(row["end"]) - int(row["start"])) for row in rows)
        engines = result[mode]["npu"]["te_busy"]
        assert busy * len(engines) == pytest.approx(sum(engines), rel=1e-4)
        deepest = max(int(row["queue_depth_max"]) for row in rows)  # a command that starts at once does not wait
        assert 0 <= result[mode]["npu"]["queue_depth_max"] - deepest <= 1


def drawing(browser: Any, start: int, end: int) -> dict[str, int]:
    """What one drawing of [start, end) of the chart takes: numbers read of its lanes and tracks, rectangles drawn."""
    counted: dict[str, int] = browser.execute_script(
        """
        const chart = gantts['gantt-tight'], painter = chart.canvas.getContext('2d');
        const counted = { lanes: 0, tracks: 0, rectangles: 0 }, real = [];
        const count = (kind, of, names) => names.forEach((name) => {
          const values = of[name];
          real.push(() => { of[name] = values; });
          of[name] = new Proxy(values, { get(_, key) {
            if (/^[0-9]+$/.test(key)) counted[kind]++;
            return values[key];
          } });
        });
        for (const { lane, track } of chart.rows)
          if (lane) count('lanes', lane, ['start', 'stop', 'reach']);
          else count('tracks', track, ['start', 'stop', 'starts', 'stops']);
        painter.fillRect = (...where) => {
          counted.rectangles++;
          Object.getPrototypeOf(painter).fillRect.apply(painter, where);
        };
        axis.show(...arguments);
        delete painter.fillRect;
        real.forEach((restore) => restore());
        return counted;
        """,
        start,
        end,
    )
    return counted


def test_the_chart_stays_fluid_at_100_000_spans(tmp_path: Path, browser: Any) -> None:
    count = 100_000
    start = np.arange(count, dtype=np.int64) * 50
    tickets = np.arange(1, count + 1, dtype=np.int64)
    drawn = chart_of(
        {"te0": rows_between(start, start + 37, tickets), "queue": rows_between(start, start + 400, tickets)},
        count * 50,
    )
    text = render("x", [OverTime({"tight": drawn})])
    assert len(text) + len(library()) < 2_000_000
    (tmp_path / "x.html").write_text(text)
    open_page(browser, tmp_path / "x.html")
    whole = drawing(browser, 0, count * 50)
    width = browser.execute_script("return Math.round(gantts['gantt-tight'].width * devicePixelRatio)")
    assert count <= whole["lanes"] / 2 <= 5 * count  # each span of both lanes is looked at once
    assert whole["tracks"] <= 2 * width * 4 * 20  # searched by halves: 2^17 places, and their sums
    assert 2 * width <= whole["rectangles"] <= 4 * width + 100  # two lanes, two tracks, grid and texts
    columns = browser.execute_script(
        "const c = gantts['gantt-tight']; return c.lanes.map((lane) => [...c.columns(lane, 1000)])"
    )
    for lane, covered in zip(columns, (37 / 50, 1.0), strict=True):  # 100 spans a column
        assert np.abs(np.array(lane) - covered).max() < 0.01
    first = browser.execute_script("return [...gantts['gantt-tight'].lanes[0].start.slice(-2)]")
    assert first == [float(start[-2]), float(start[-1])]
    browser.execute_script("document.querySelector('[data-do=in]').click()")
    assert browser.execute_script("return axis.to - axis.from") == count * 50 / 2
    part = drawing(browser, 1000, 1200)
    assert part["lanes"] <= 2 * 5 * (200 / 50 + 17 + 8)
    assert part["tracks"] <= 2 * width * 4 * 20 and part["rectangles"] <= 4 * width + 100
    columns = browser.execute_script(
        "const c = gantts['gantt-tight']; return c.lanes.map((lane) => [...c.columns(lane, 200)])"
    )
    assert columns == [[float(cycle % 50 < 37) for cycle in range(1000, 1200)], [1.0] * 200]
    assert errors(browser) == []
    dark = browser.execute_script(
        "const c = gantts['gantt-tight'], r = devicePixelRatio, p = c.canvas.getContext('2d');"
        "return [10, 40].map((cycle) => p.getImageData((Gantt.LEFT + cycle * c.width / 200) * r,"
        " (Gantt.HEAD + 12) * r, 1, 1).data[3])"
    )
    assert dark == [255, 0]  # cycles 1000..1037 are busy, 1037..1050 are not


def test_a_page_of_100_000_irregular_submissions_is_small() -> None:
    random, count = np.random.default_rng(1), 100_000
    start = np.cumsum(random.integers(50, 306, count))
    ends = (start + random.integers(20, 276, count) for _ in range(3))
    rows = [rows_between(start, end, np.arange(1, count + 1)) for end in ends]
    page = render("x", [OverTime({"tight": chart_of(dict(zip(("core", "queue", "te0"), rows, strict=True)), 10**8)})])
    assert len(page) + len(library()) < 2_000_000


@pytest.mark.slow
def test_a_page_of_100_000_submissions_is_interactive_within_a_second(tmp_path: Path, browser: Any) -> None:
    """CPU seconds of the page's main thread, with all of its charts."""
    assert main(["run", "submit_latency", "--arg", "n=25000", "--timing-only", "--report", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").stat().st_size < 1_000_000
    browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> float:
        metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))

    seconds = []
    for _ in range(3):
        browser.get("about:blank")
        before = spent()
        open_page(browser, tmp_path / "report.html")
        draw_all(browser)
        seconds.append(spent() - before)
    browser.execute_cdp_cmd("Performance.disable", {})
    assert browser.execute_script("return gantts['gantt-tight'].lanes[0].count") == 100_000
    assert min(seconds) < 1, seconds


def test_data_cannot_end_its_element() -> None:
    def page(text: str) -> str:
        return render("x", [], [], [Section("x", "x", [Chart("x", text, "", {})])])

    assert page("</script>").count("</script>") == page("x").count("</script>")


@given(st.lists(st.integers(0, 1 << 45), max_size=40))
def test_differences_add_up_to_the_numbers(values: list[int]) -> None:
    steps = differences(np.array(values, dtype=np.int64))
    assert sums(steps, len(values)).tolist() == values
    for wrong in ([*steps, 1], [*steps[:-1], 0.5], [*steps[:-1], 1 << 70], [*steps[:-1], "1"], [*steps[:-1], []]):
        with pytest.raises(ValueError, match=r"integers|inhomogeneous"):
            sums(wrong, len(values))


def test_a_picture_shows_when_each_lane_works() -> None:
    rows = rows_between(np.array([100, 500]), np.array([300, 510]))
    run = chart_of({"te0": rows, "queue": rows_between(np.zeros(0), np.zeros(0))}, 1000, hertz=1e9)
    chart = gantt_picture("tight", run)
    values = chart.spec["data"]["values"]
    assert [(row["lane"], row["x"], row["x2"], row["share"]) for row in values] == [
        ("te0", 0.1, 0.3, 1.0), ("te0", 0.5, 0.51, 1.0),
    ]  # fmt: skip
    assert chart.name == "gantt_tight" and chart.spec["encoding"]["x"]["title"] == "time (us)"
    coarse = gantt_picture(
        "x", chart_of({"te0": rows_between(np.arange(0, 10**6, 10), np.arange(3, 10**6, 10))}, 10**6)
    )
    assert [(row["x"], row["x2"], row["share"]) for row in coarse.spec["data"]["values"]] == [(0, 10**6, 3 / 8)]
    track = {"name": "bank0", "step": 0.5, "values": [1, 1, -2], "most": 1}
    tracked = gantt_picture("x", run | {"edges": [0, 250, 250, 500], "bins": 3, "tracks": [track]}).spec
    assert [(row["x"], row["x2"], row["share"]) for row in tracked["data"]["values"] if row["lane"] == "bank0"] == [
        (0, 0.25, 0.5), (0.25, 0.5, 1.0),
    ]  # fmt: skip
    lane = run["lanes"][0] | {"count": 3}
    with pytest.raises(ValueError, match="a row has not 3 integers"):
        gantt_picture("tight", run | {"lanes": [lane]})


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 30)), max_size=25))
def test_bins_agree_with_counting_cycle_by_cycle(rows: list[tuple[int, int]]) -> None:
    starts, lengths = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    spans = rows_between(starts, starts + lengths)
    edges = np.array([0, 7, 20, 21, 60, 130], dtype=np.int64)
    open_at = [sum(start <= cycle < start + length for start, length in rows) for cycle in range(130)]
    bins = list(pairwise(edges))
    assert _covered_cycles(spans, edges).tolist() == [sum(open_at[a:b]) for a, b in bins]
    assert _deepest(spans, edges).tolist() == [max(open_at[a:b]) for a, b in bins]
