"""Vega: the library that draws the charts of a page, and files of charts drawn by it."""

import base64
import json
import re
import zlib
from functools import cache
from hashlib import sha256
from importlib import resources
from importlib.metadata import version
from typing import Any

from pyv_native.code_cache import code_cache
from pyv_native.files import MAX_RESULT
from pyv_npu.sections import Chart

WIDTH = 820
"""Width of a file, pixels."""
FORMATS = ("svg", "png")
PNG_SCALE = 2
_CLIP = re.compile(r"\bclip[0-9]+\b")
EXPORTS = "window.vegaEmbed = vegaEmbed;"
"""Statement that exports the library to a page."""
NAME = re.compile(r"[A-Za-z0-9_.-]{1,120}")
"""Pattern of names of charts, which are names of files."""


def chart_name(text: str) -> str:
    """Convert text to the name of a chart: characters invalid in file names become hyphens."""
    return re.sub("[^A-Za-z0-9_.-]", "-", text)[:120]


def deflated(text: str, level: int = zlib.Z_DEFAULT_COMPRESSION) -> str:
    """Encode a text as base64 of raw deflate, which page/tables.js reads."""
    deflate = zlib.compressobj(level, wbits=-zlib.MAX_WBITS)
    return base64.b64encode(deflate.compress(text.encode()) + deflate.flush()).decode()


def inflated(text: str, limit: int) -> str:
    """Decode the result of `deflated`. ValueError: invalid text, or more than `limit` bytes."""
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        data = inflate.decompress(base64.b64decode(text, validate=True), limit)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not inflate.eof:
        raise ValueError(f"a run over time is cut, or above {limit:,} bytes")
    return data.decode()


@cache
def library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed, as base64 of raw deflate, cached for the user, since V8 takes longer to
    bundle them than writing a page takes."""
    import vl_convert  # 84 MB, of which a page needs only this text

    cached = code_cache()
    key = sha256(f"{EXPORTS} deflated, of vl-convert {version('vl-convert-python')}".encode()).digest()
    text = cached.get(key) if cached is not None else None
    if text is None:
        bundle = f"(() => {{{vl_convert.javascript_bundle(EXPORTS)}\n}})();"  # its names are not those of the page
        text = deflated(bundle, zlib.Z_BEST_COMPRESSION).encode()
        if cached is not None:
            cached.put(key, text)
    return text.decode()


def themes() -> str:
    """Return the Vega-Lite configurations `common`, `light` and `dark` as JSON text."""
    return (resources.files("pyv_npu.report") / "page" / "themes.json").read_text(encoding="utf-8")


_DATA = re.compile(r'<script type="application/json" class="chart-data">(.*?)</script>', re.DOTALL)


def charts_of(page: str) -> list[Chart]:
    """Read the charts of a report.html. ValueError for an invalid chart."""
    charts = []
    for match in _DATA.finditer(page):
        fields = json.loads(match[1])
        if not isinstance(fields, dict) or {*fields} != {*Chart._fields} or not NAME.fullmatch(str(fields["name"])):
            raise ValueError("a chart has not the fields " + ", ".join(Chart._fields))
        charts.append(Chart(**fields))
    return charts


_GANTT = re.compile(r'<script type="text/plain" id="gantt-([^"]*)">(.*?)</script>', re.DOTALL)


def gantts_of(page: str) -> dict[str, dict[str, Any]]:
    """Read the timelines of a report.html, by the name of the run. ValueError for an invalid timeline."""
    runs = {}
    for match in _GANTT.finditer(page):
        run = json.loads(inflated(match[2], MAX_RESULT))
        if not isinstance(run, dict) or not {"end", "lanes", "columns"} <= {*run}:
            raise ValueError("a run over time has not the fields end, lanes and columns")
        runs[match[1]] = run
    return runs


def draw(chart: Chart, form: str) -> bytes:
    """Draw a chart in light colours in a format of `FORMATS`, without access to files or URLs. ValueError: the chart
    cannot be drawn."""
    import vl_convert

    palette = json.loads(themes())
    config: dict[str, Any] = dict(palette["common"])
    for name, value in palette["light"].items():
        config[name] = {**config[name], **value} if isinstance(config.get(name), dict) else value
    spec = {**chart.spec, "title": {"text": chart.title, "subtitle": chart.caption}, "config": config,
            "background": "#ffffff"}  # fmt: skip
    views = spec.get("concat") or spec.get("vconcat")
    if views:
        spec["columns"] = 2 if "concat" in spec else 1
        width = WIDTH // spec["columns"] - 88
        spec["concat" if "concat" in spec else "vconcat"] = [{**view, "width": width} for view in views]
    else:
        spec |= {"width": WIDTH, "autosize": {"type": "fit-x", "contains": "padding"}}
    if form == "png":
        return bytes(vl_convert.vegalite_to_png(spec, scale=PNG_SCALE, allowed_base_urls=[]))
    text = str(vl_convert.vegalite_to_svg(spec, allowed_base_urls=[]))
    clips = {name: f"clip{index}" for index, name in enumerate(dict.fromkeys(_CLIP.findall(text)))}
    return _CLIP.sub(lambda match: clips[match[0]], text).encode()  # V8 numbers them across charts
