"""Pages in a real browser, at three widths in both themes: errors, overflow, contrast, and the charts in use."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser import chromium, draw_all, open_page
from shares import slow

from pyv_npu.cli import main
from pyv_npu.observe.analysis.metrics import Roofline
from pyv_npu.report.charts import ChartPoint, roofline
from pyv_npu.report.vega import charts_of
from pyv_npu.studies.break_even import AUTOMATIC

PAGES = {
    "firmware": ["run", "submit_latency", "--arg", "n=40", "--report"],
    "diff": ["diff", "firmware", "slower", "-o"],
    "campaign": ["campaign", "campaign.yaml", "submit_latency", "-n", "8", "--arg", "n=8", "-o"],
    "sweep": ["sweep", "submit_latency", "core.timing.mmio_one_way=0,60", "npu.spm.banks=4,8", "tile=16,32", "--arg",
              "n=4", "--arg", "phases=2", "-o"],
    "compare": ["compare", "submit_latency", "--arg", "n=40", "--report"],
    "model": ["run", "cnn", "--report"],
    "llm": ["run", "llama2-7b", "--layers", "3", "--report"],
    "serve": ["serve", "llama2-7b", "--layers", "1", "--first", "8", "--output", "4", "--check-steps", "1", "--slo",
              "ttft=2s,tpot=100ms", "--report"],
}  # fmt: skip
"""Page -> the command that writes it to a folder, or to a file report.html; `diff` takes two of the folders."""
SLOWER = [*PAGES["firmware"][:-1], "--set", "core.timing.mmio_one_way=90", "--report"]
SEEN = ((1400, "light"), (800, "dark"), (400, "light"), (1400, "dark"), (400, "dark"))
"""Widths and themes."""

CONTRAST = """
const parse = (text) => { const m = text.match(/[\\d.]+/g); return m ? m.map(Number) : [0, 0, 0, 0]; };
const over = (top, under) => {
  const share = top.length > 3 ? top[3] : 1;
  return [0, 1, 2].map((i) => share * top[i] + (1 - share) * under[i]);
};
const ground = (element) => {
  const layers = [];
  for (let e = element; e; e = e.parentElement) {
    const colour = parse(getComputedStyle(e).backgroundColor);
    layers.push(colour);
    if (colour.length < 4 || colour[3] === 1) break;
  }
  return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
};
const light = (colour) => {
  const [r, g, b] = colour.map((c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ratio = (a, b) => {
  const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
};
const box = (e) => e.getBoundingClientRect();
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const e = node.parentElement, style = getComputedStyle(e);
  if (!node.data.trim() || ["SCRIPT", "STYLE", "OPTION"].includes(e.tagName) || style.visibility === "hidden") continue;
  if (e.closest("tr")?.rowIndex > 3) continue; // the rows of a table look alike
  const { width, height, left, top } = box(e);
  if (!width || !height) continue;
  let colour, under = ground(e);
  if (e.closest("svg")) {
    if (style.opacity === "0" || style.fill === "none") continue;
    colour = parse(style.fill);
    const x = left + width / 2, y = top + height / 2; // a cell of a heat map lies under its text
    for (const shape of e.closest("svg").querySelectorAll(".mark-rect path")) {
      const at = box(shape);
      if (at.left <= x && x <= at.right && at.top <= y && y <= at.bottom)
        under = over(parse(getComputedStyle(shape).fill), under);
    }
  } else colour = parse(style.color);
  const opacity = e.closest("button") ? Number(getComputedStyle(e.closest("button")).opacity) : 1;
  const seen = ratio(over([...over(colour, under), opacity], under), under);
  if (seen < 4.5) found.push(`${seen.toFixed(2)} on ${under.map(Math.round)}: ${node.data.trim().slice(0, 40)}`);
}
return [...new Set(found)];
"""
"""Texts whose contrast with what lies under them is below 4.5, by the formula of WCAG 2."""
CLIPPED = """
const found = [];
for (const svg of document.querySelectorAll(".chart svg")) {
  const edge = svg.getBoundingClientRect();
  for (const text of svg.querySelectorAll("text")) {
    const at = text.getBoundingClientRect();
    if (!at.width || getComputedStyle(text).opacity === "0" || text.closest("[clip-path]")) continue;
    if (at.left < edge.left - 1 || at.right > edge.right + 1 || at.top < edge.top - 1 || at.bottom > edge.bottom + 1)
      found.push(`${svg.closest("figure").id}: ${text.textContent}`);
    if (text.textContent.includes("\u2026")) found.push(`${svg.closest("figure").id}: ${text.textContent} is cut`);
  }
  for (const group of svg.querySelectorAll(".mark-text:not([clip-path] *)")) {
    const shown = [...group.querySelectorAll("text")].filter((text) => getComputedStyle(text).opacity !== "0");
    const boxes = shown.map((text) => [text.textContent, text.getBoundingClientRect()]);
    boxes.forEach(([text, a], index) => boxes.slice(index + 1).forEach(([other, b]) => {
      if (a.left < b.right && b.left < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom)
        found.push(`${svg.closest("figure").id}: ${text} over ${other}`);
    }));
  }
}
for (const text of document.querySelectorAll("nav a, th, dt, dd, .tile b, .tile span, h1, h2, h3, figcaption"))
  if (text.scrollWidth > text.clientWidth + 1 && getComputedStyle(text).display !== "inline")
    found.push(`${text.tagName}: ${text.textContent.slice(0, 60)}`);
return [...new Set(found)];
"""
"""Labels of charts that lie outside of them, on each other or are cut, and texts that are wider than their box."""
TILES = {"diff": 0, "campaign": 6}


class Folders(dict[str, Path]):
    """Folders of `PAGES` by name, each written when a test asks for it."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __missing__(self, name: str) -> Path:
        self[name] = self._root / name
        sweep = replace(AUTOMATIC["submit_latency"][3], values=("0", "240"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(AUTOMATIC, "submit_latency", (sweep,))
            if name == "diff":
                self[name].mkdir()
                folders = [str(self["firmware"]), str(self._root / "slower")]
                assert main([*SLOWER, folders[1]]) == 0
                assert main(["diff", *folders, "-o", str(self[name] / "report.html")]) == 0
            else:
                assert main([*PAGES[name], str(self[name])]) == 0
        return self[name]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as page:
        yield page


def show(browser: Any, folder: Path, width: int = 1400, scheme: str = "light") -> None:
    """Opens the page of a folder with all its charts."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    open_page(browser, folder / "report.html")
    draw_all(browser)


def errors(browser: Any) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


@pytest.mark.parametrize("seen", [SEEN[:3], *slow(SEEN[3:])])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_and_legible(name: str, seen: Any, folders: Folders, browser: Any) -> None:
    assert (folders[name] / "report.html").stat().st_size < 2_000_000
    for width, scheme in seen:
        show(browser, folders[name], width, scheme)
        browser.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        sizes = browser.execute_script(
            "const edge = document.documentElement.clientWidth;"
            "return [document.documentElement.scrollWidth - edge, document.querySelectorAll('.tile').length,"
            " charts.filter((chart) => { const svg = chart.box.querySelector('svg').getBoundingClientRect();"
            "   return svg.width > chart.width + 1 || svg.width < chart.width / 2; }).map((chart) => chart.name)]"
        )
        assert sizes == [0, TILES.get(name, 4), []], (width, scheme)
        clipped = [text for text in browser.execute_script(CLIPPED) if width >= 800 or not text.endswith("is cut")]
        assert clipped == [], (width, scheme)  # on a telephone names of rows are cut, and tooltips have them
        assert browser.execute_script(CONTRAST) == [], (width, scheme)
        cut = browser.execute_script(
            "return [...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth + 1)"
            ".map((e) => e.innerText.slice(0, 60))"
        )
        assert width < 1400 or cut == []  # on a telephone wide tables move within their boxes
    assert errors(browser) == []


def test_colours_of_marks_hold_in_both_themes() -> None:
    """3 to 1 against the card of the page, as WCAG 2 asks of graphics."""
    from pyv_npu.report.vega import themes

    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for theme, card in (("light", "#ffffff"), ("dark", "#171e26")):
        colours = json.loads(themes())[theme]["range"]["category"]
        assert len(set(colours)) == len(colours) >= 10
        for colour in colours:
            low, high = sorted((light(colour), light(card)))
            assert (high + 0.05) / (low + 0.05) >= 3, (theme, colour)


def test_the_effects_of_an_axis_share_legend_and_zoom(folders: Folders, browser: Any) -> None:
    show(browser, folders["sweep"])
    effect = "const chart = charts.find((one) => one.name === 'effect_core.timing.mmio_one_way');"
    faded = browser.execute_async_script(
        effect
        + """
        const done = arguments[0];
        const item = chart.box.querySelector('.role-legend-symbol path'), box = item.getBoundingClientRect();
        const at = { clientX: box.x + 3, clientY: box.y + 3, bubbles: true };
        item.dispatchEvent(new PointerEvent('pointerdown', at));
        item.dispatchEvent(new PointerEvent('pointerup', at));
        item.dispatchEvent(new MouseEvent('click', at));
        chart.view.runAsync().then(() => done(
          [...chart.box.querySelectorAll('.mark-line path')].map((e) => Number(getComputedStyle(e).opacity))));
        """
    )
    assert len(faded) >= 4 and faded.count(1) == len(faded) / 2 and set(faded) == {1, 0.12}
    ticks = """[...chart.box.querySelectorAll('.role-axis[aria-label^="X-axis"]')].map((axis) =>
      [...axis.querySelectorAll('.role-axis-label text')].map((e) => Number(e.textContent)))"""
    whole = browser.execute_script(f"{effect} return {ticks};")
    assert len(whole) >= 2 and all((axis[0], axis[-1]) == (0, 60) for axis in whole)
    near = browser.execute_async_script(
        effect
        + """
        const done = arguments[0], target = chart.box.querySelectorAll('svg path.background')[1];
        const box = target.getBoundingClientRect();
        target.dispatchEvent(new WheelEvent('wheel', { clientX: box.x + box.width / 2, clientY: box.y + box.height / 2,
          deltaY: -200, ctrlKey: true, bubbles: true, cancelable: true }));
        chart.view.runAsync().then(() => done("""
        + f"{ticks}));"
    )
    assert len(near) == len(whole) and all(axis == near[0] and 0 < axis[0] < axis[-1] < 60 for axis in near)


def test_points_chosen_on_the_front_are_chosen_below(folders: Folders, browser: Any) -> None:
    show(browser, folders["sweep"])
    before, after = browser.execute_async_script(
        """
        const done = arguments[0], chart = charts.find((one) => one.name === 'front');
        const lines = () => [...chart.box.querySelectorAll('.mark-line path')]
          .map((e) => Number(getComputedStyle(e).strokeOpacity) * Number(getComputedStyle(e).opacity));
        const before = lines();
        chart.box.scrollIntoView();
        const box = chart.box.querySelectorAll('svg path.background')[1].getBoundingClientRect();
        const send = (kind, x, y) => document.elementFromPoint(x, y).dispatchEvent(
          new PointerEvent(kind, { clientX: x, clientY: y, bubbles: true }));
        send('pointerdown', box.x + 2, box.y + 2);
        send('pointermove', box.x + 60, box.y + box.height - 3);
        send('pointermove', box.x + 70, box.y + box.height - 2);
        send('pointerup', box.x + 70, box.y + box.height - 2);
        chart.view.runAsync().then(() => done([before, lines()]));
        """
    )
    assert sum(opacity < 0.1 for opacity in before) == 0
    assert 0 < sum(opacity < 0.1 for opacity in after) < len(after)


def test_a_mark_says_its_figures_with_their_units(folders: Folders, browser: Any) -> None:
    show(browser, folders["compare"])
    text = browser.execute_script(
        "const chart = charts.find((one) => one.name === 'reasons'); chart.box.scrollIntoView();"
        "const box = chart.box.querySelector('.mark-rect path').getBoundingClientRect();"
        "const at = { clientX: box.x + box.width / 2, clientY: box.y + box.height / 2, bubbles: true };"
        "chart.box.querySelector('.mark-rect path').dispatchEvent(new PointerEvent('pointermove', at));"
        "return tip.textContent"
    )
    assert "of: loose" in text and "core cycles: " in text


def test_charts_are_files_when_they_are_asked_for(
    folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = folders["compare"]
    assert not list(page.rglob("*.svg"))
    capsys.readouterr()
    assert main(["charts", str(page), "latency_cdf", "gantt_tight", "-o", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/out/latency_cdf.svg\n{tmp_path}/out/gantt_tight.svg\n"
    assert "latency (core cycles)" in (tmp_path / "out/latency_cdf.svg").read_text()
    over_time = (tmp_path / "out/gantt_tight.svg").read_text()
    assert ">te0<" in over_time and ">queue<" in over_time and ">bank" in over_time
    assert main(["charts", str(page / "report.html"), "reasons", "--format", "png", "-o", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out/reasons.png").read_bytes().startswith(b"\x89PNG")
    assert main(["charts", str(page), "latency_cd", "-o", str(tmp_path)]) == 64
    assert "latency_cd: is no chart of" in capsys.readouterr().err
    (tmp_path / "report.html").write_text('<script type="application/json" class="chart-data">{"name": 1}</script>')
    assert main(["charts", str(tmp_path)]) == 65
    error = capsys.readouterr().err
    assert "a chart has not the fields name, title, caption, spec" in error and error.count("\n") == 1


def test_axes_are_as_their_quantities(folders: Folders) -> None:
    """Time is linear, shares end at 100 %, and dots at the ends of an axis are whole."""
    pages = {name: charts_of((folders[name] / "report.html").read_text()) for name in ("serve", "campaign", "sweep")}
    (server,) = (chart for chart in pages["serve"] if chart.name == "over_time")
    assert all(view["encoding"]["x"]["scale"].get("type") != "log" for view in server.spec["concat"])
    shares = [chart.spec["encoding"]["x"]["scale"] for chart in pages["campaign"] if chart.name.startswith("outcomes")]
    assert shares == [{"domain": [0, 100]}] * 2
    (effect,) = (chart for chart in pages["sweep"] if chart.name == "effect_core.timing.mmio_one_way")
    for view in effect.spec["concat"]:
        low, high = view["encoding"]["x"]["scale"]["domain"]
        assert low < 0 and high > 60


def test_layers_at_one_place_of_a_roofline_have_one_label() -> None:
    points = [ChartPoint(f"layer{at}", "tight", 1.0 + at / 100, 85.0, 100 - at) for at in range(5)]
    far = ChartPoint("head", "tight", 40.0, 300.0, 1)
    spec = roofline("roofline", "", "", [*points, far], Roofline(85.0, ())).spec
    assert [row["text"] for row in spec["layer"][-1]["data"]["values"]] == ["layer0", "head"]


def test_every_axis_of_every_chart_has_a_title(folders: Folders) -> None:
    """Quantities carry their unit there."""

    def axes(node: Any) -> Iterator[dict[str, Any]]:
        if isinstance(node, dict):
            for name, value in node.items():
                if name in ("x", "y") and isinstance(value, dict) and value.get("type") in ("quantitative", "ordinal"):
                    yield value
                yield from axes(value)
        elif isinstance(node, list):
            for value in node:
                yield from axes(value)

    for name in ("compare", "model"):
        for chart in charts_of((folders[name] / "report.html").read_text()):
            titles = [axis.get("title") for axis in axes(chart.spec) if axis.get("axis", 1) is not None]
            assert any(titles), (name, chart.name)
