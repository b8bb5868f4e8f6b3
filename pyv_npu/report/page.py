"""HTML of sections, from the templates in page/: a self-contained page, which loads no other resources, or a fragment
for notebooks."""

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pyv_npu.report.vega import chart_name, deflated, library, themes
from pyv_npu.sections import Chart, Part, Section, Tile, layout, parts_of


@cache
def _environment() -> Environment:
    loader = PackageLoader("pyv_npu.report", "page")
    environment = Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.filters |= {
        "kind": lambda part: type(part).__name__,
        "with_file_name": lambda chart: chart._replace(name=chart_name(chart.name)),
        "layout": layout,
        "deflated": lambda run: deflated(json.dumps(run, separators=(",", ":"))),
    }
    return environment


def render(title: str, head: Sequence[Part] = (), tiles: Sequence[Tile] = (), sections: Sequence[Section] = ()) -> str:
    """Render the page, without sections that have no parts."""
    folder = resources.files("pyv_npu.report") / "page"
    contents = [section for section in sections if section.parts]
    charted = any(isinstance(part, Chart) for part in parts_of(contents))
    style, theme, *scripts = (
        Markup((folder / name).read_text(encoding="utf-8"))
        for name in ("style.css", "theme.js", "tables.js", "gantt.js", "time.js", *(["charts.js"] if charted else []))
    )
    return _environment().get_template("report.html").render(
        title=title, head=head, tiles=tiles, sections=contents, style=style, theme=theme, scripts=scripts,
        vega=Markup(library()) if charted else "", themes=Markup(themes()),
    )  # fmt: skip


def render_fragment(sections: Sequence[Section], tiles: Sequence[Tile] = ()) -> str:
    """Render sections without charts for a notebook, in colours of its theme; key figures follow the first section."""
    return _environment().get_template("notebook.html").render(sections=sections, tiles=tiles)
