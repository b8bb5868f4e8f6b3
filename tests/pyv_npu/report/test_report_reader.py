"""What a reader does with report.html in a real browser: widths, light and dark, tables, the time axis."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from browser import chromium, draw_all, open_page

from npu_device.abi.opcodes import Opcode
from pyv_npu.cli import main
from pyv_npu.observe.analysis.layers import Layer
from pyv_npu.report.layers import blocks
from toolchain.examples import EXAMPLES

WIDTHS = (400, 800, 1400, 2560)
CHART = "const c = gantts['gantt-tight'];"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reader")
    onnx.save(EXAMPLES["cnn"](), folder / "model.onnx")
    assert main(["compare", str(folder / "model.onnx"), "--json", "--report", str(folder / "out")]) == 0
    return folder / "out"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(report: Path, browser: Any) -> Iterator[Any]:
    """The page at 1400 pixels; there is no error on the console at the end."""
    seen(browser, 1400, "light")
    open_page(browser, report / "report.html")
    draw_all(browser)
    yield browser
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


def seen(browser: Any, width: int, scheme: str) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )


def timeline(report: Path, mode: str) -> list[dict[str, str]]:
    """The rows of work on units."""
    rows = csv.DictReader((report / mode / "timeline.csv").open())
    opcodes = {opcode.name for opcode in Opcode}
    return [row for row in rows if row["what"] in opcodes]


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_off(page: Any, width: int) -> None:
    for scheme in ("light", "dark"):
        seen(page, width, scheme)
        draw_all(page)
        page.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        out = page.execute_script(
            "const edge = document.documentElement.clientWidth;"
            "const within = (e) => { for (let p = e.parentElement; p; p = p.parentElement)"
            "  if (getComputedStyle(p).overflowX !== 'visible') return true; return false; };"
            "return [document.documentElement.scrollWidth - edge,"
            " [...document.querySelectorAll('main *, nav *')].filter((e) => e.getBoundingClientRect().right > edge + 1"
            "  && !within(e)).map((e) => e.outerHTML.slice(0, 80))]"
        )
        assert out == [0, []]
        hidden = page.execute_script(
            "return [...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth + 1)"
            ".map((e) => [e.innerText.slice(0, 60), e.scrollWidth - e.clientWidth])"
        )
        assert width < 1400 or hidden == []  # on a telephone wide tables move within their boxes


def test_text_is_legible_and_charts_use_the_width(page: Any) -> None:
    for width in WIDTHS:
        seen(page, width, "light")
        small = page.execute_script(
            "return [...document.querySelectorAll('svg text')].filter((e) => e.textContent.trim())"
            ".map((e) => e.getBoundingClientRect().height).filter((height) => height && height < 9).length"
        )
        wide = page.execute_script("return document.querySelector('canvas').clientWidth / document.body.clientWidth")
        assert small == 0 and wide > 0.75


def test_dark_mode_differs_and_can_be_chosen(page: Any) -> None:
    def shown() -> list[str]:
        page.execute_script("axis.show(0, axis.end)")
        found: list[str] = page.execute_script(
            "const s = (e) => getComputedStyle(e);"
            "return [s(document.body).backgroundColor, s(document.body).color,"
            " s(document.querySelector('td')).backgroundColor,"
            " s(document.querySelector('svg text')).fill, document.querySelector('canvas').toDataURL()]"
        )
        return found

    light = shown()
    seen(page, 1400, "dark")
    draw_all(page)
    dark = shown()
    assert all(one != other for one, other in zip(light, dark, strict=True))
    press = "document.getElementById('theme').click(); return document.getElementById('theme').textContent"
    assert page.execute_script(press) == "theme: light"
    assert shown() == light
    assert page.execute_script(press) == "theme: dark"
    assert shown() == dark
    assert page.execute_script(press) == "theme: system"


def test_a_table_is_sorted_and_saved_as_csv(page: Any, report: Path) -> None:
    find = "const box = document.querySelector('#layers .wide'); "
    heads = next(csv.reader([page.execute_script(find + "return box.csv().split('\\n')[0]")]))
    column = heads.index("active cycles")
    page.execute_script(find + f"box.querySelectorAll('th')[{column}].click()")
    rows = list(csv.DictReader(io.StringIO(page.execute_script(find + "return box.csv()"))))
    active = [int(row["active cycles"]) for row in rows]
    assert active == sorted(active) and len(set(active)) > 2
    metrics = csv.DictReader((report / "metrics.csv").open())
    of_run = {row["name"] for row in metrics if row["scope"] == "layer" and row["run"] == "loose"}
    assert {row["layer"] for row in rows} == of_run
    page.execute_script(find + f"box.querySelectorAll('th')[{column}].click()")
    rows = list(csv.DictReader(io.StringIO(page.execute_script(find + "return box.csv()"))))
    assert [int(row["active cycles"]) for row in rows] == active[::-1]


def test_both_runs_share_one_axis_and_its_keys(page: Any) -> None:
    keys = "axis.charts[0].canvas.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0]}));"
    shown = "return axis.charts.map((chart) => [axis.from, axis.to])"
    whole = page.execute_script(shown)
    assert whole[0] == whole[1] and whole[0][0] == 0
    ends = page.execute_script("return axis.charts.map((chart) => chart.run.end)")
    assert whole[0][1] == max(ends) and len(ends) == 2
    (from_, to), other = page.execute_script(keys + shown, "+")
    assert [from_, to] == other and to - from_ == pytest.approx(max(ends) / 2)
    (left, _), _ = page.execute_script(keys + shown, "ArrowLeft")
    assert left == pytest.approx(from_ - 0.2 * (to - from_))
    assert page.execute_script(keys + shown, "0") == whole


def test_what_is_drawn_is_the_timeline(page: Any, report: Path) -> None:
    for mode in ("loose", "tight"):
        lanes = page.execute_script(
            f"return gantts['gantt-{mode}'].lanes.map((l) => [l.name, [...l.start], [...l.stop], [...l.ticket]])"
        )
        rows = timeline(report, mode)
        for name, *columns in lanes:
            if name in ("core", "queue"):
                continue
            drawn = sorted(zip(*columns, strict=True))
            said = sorted(
                (int(row["start"]), int(row["end"]), int(row["ticket"])) for row in rows if row["unit"] == name
            )
            assert drawn == said and said
    busy = page.execute_script(
        CHART
        + "return Object.fromEntries(c.rows.filter((r) => r.share).map((r) => [r.name, c.value(r, 0, c.run.end)]))"
    )
    npu = json.loads((report / "result.json").read_text())["tight"]
    for kind in ("te", "ve", "dma"):
        cycles = npu["npu"][f"{kind}_busy"]
        assert busy[f"{kind} busy"] == pytest.approx(100 * sum(cycles) / len(cycles) / npu["cycles"])


def test_the_queue_is_as_deep_as_the_result_says(page: Any, report: Path) -> None:
    depth = page.execute_script(CHART + "return c.rows.find((row) => row.name === 'queue depth').track.most")
    most = json.loads((report / "result.json").read_text())["tight"]["npu"]["queue_depth_max"]
    assert most - 1 <= depth <= most  # a command that starts at once does not wait


def test_a_range_is_measured(page: Any) -> None:
    page.execute_script("measure(gantts['gantt-tight'], 3000, 4200)")
    text = page.execute_script("return document.querySelector('.time output').textContent")
    assert text.startswith("tight: 3,000 to 4,200, 1,200 cycles = 1 µs · te busy ")
    row = page.execute_script(CHART + "const t = c.lanes.filter((l) => l.engine === 'te');"
                              "let sum = 0; for (const l of t) l.start.forEach((s, i) => {"
                              " sum += Math.max(0, Math.min(l.stop[i], 4200) - Math.max(s, 3000)); });"
                              "return 100 * sum / 1200 / c.run.engines.te")  # fmt: skip
    assert float(text.split("te busy ")[1].split(" %")[0]) == pytest.approx(row, abs=0.006)


def test_a_command_is_found_with_what_it_waits_for(page: Any, report: Path) -> None:
    tickets = page.execute_script(CHART + "return [...c.tickets]")
    said = page.execute_script(
        "search(arguments[0]); return document.querySelector('.time output').textContent", str(tickets[1])
    )
    assert f"ticket {tickets[1]}, layer " in said and f"waits for ticket {tickets[0]}" in said
    chosen = page.execute_script(CHART + "return [c.chosen, c.spans.length, c.arrows.map((a) => a[2])]")
    rows = [row for row in timeline(report, "tight") if row["ticket"] == str(tickets[1])]
    assert chosen[0] == tickets[1] and chosen[1] >= len(rows) > 0
    assert {"before", "after"} <= set(chosen[2])
    layer = page.execute_script(CHART + "return c.layers[0]")
    said = page.execute_script("search(arguments[0]); return document.querySelector('.time output').textContent", layer)
    assert said.count(" commands") == 2 and ": 0 commands" not in said
    before = page.execute_script(CHART + "return c.canvas.toDataURL()")
    page.execute_script(
        "const s = document.querySelector('.time select'); s.value = 'layer'; s.dispatchEvent(new Event('change'))"
    )
    assert page.execute_script(CHART + "return c.canvas.toDataURL()") != before


def test_the_tip_is_at_the_pointer(page: Any) -> None:
    found = page.execute_script(
        CHART + "c.canvas.scrollIntoView({block: 'center'}); const l = c.lanes.findIndex((l) => l.engine);"
        "const lane = c.lanes[l], box = c.canvas.getBoundingClientRect();"
        "const x = box.left + c.x((lane.start[0] + lane.stop[0]) / 2), y = box.top + c.rows[l].top + 12;"
        "c.canvas.dispatchEvent(new PointerEvent('pointermove', {clientX: x, clientY: y, bubbles: true}));"
        "const at = tip.getBoundingClientRect();"
        "return [tip.textContent, Math.abs(at.left - x), Math.abs(at.top - y), lane.name, lane.ticket[0]]"
    )
    assert found[0].startswith(f"{found[3]}: ticket {found[4]}, layer ")
    assert found[1] < 40 and found[2] < 40


def test_the_file_for_perfetto_has_every_slice(page: Any, report: Path) -> None:
    events = page.execute_script("return traceEvents().traceEvents")
    processes = {
        event["pid"]: event["args"]["name"].split(",")[0] for event in events if event["name"] == "process_name"
    }
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    for pid, mode in processes.items():
        slices = sorted(
            (threads[pid, e["tid"]], round(e["ts"] * 1000), round(e["dur"] * 1000))
            for e in events if e["ph"] == "X" and e["pid"] == pid and threads[pid, e["tid"]] != "core"
        )  # fmt: skip
        units = {unit for unit, _, _ in slices}
        rows = [row for row in timeline(report, mode) if row["unit"] in units]
        assert slices == sorted((row["unit"], int(row["start"]), int(row["end"]) - int(row["start"])) for row in rows)
    starts = [e["id"] for e in events if e["ph"] == "s"]
    assert sorted(starts) == sorted(e["id"] for e in events if e["ph"] == "f") and starts


def test_equal_layers_are_one_row_with_a_count() -> None:
    layers = [Layer(f"layers.{at}.{part}", (part.upper(),)) for at in range(32) for part in ("attn", "mlp")]
    layers.append(Layer("head", ("GEMM",)))
    found = blocks(layers)
    assert found is not None
    assert {name: len(group) for name, group in found.items()} == {"layers.#.attn": 32, "layers.#.mlp": 32, "head": 1}
    assert blocks(layers[:8]) is None
