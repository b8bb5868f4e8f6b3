"""HTML of sections, from the templates in page/: a self-contained page, which loads no other resources, or a fragment
for notebooks."""

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from itertools import groupby
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pyv_npu.report.vega import chart_name, deflated, library, themes
from pyv_npu.sections import Chart, Part, Section, Tile, layout


class Charts(NamedTuple):
    """Adjacent charts, drawn side by side."""

    charts: Sequence[Chart]


@cache
def _environment() -> Environment:
    loader = PackageLoader("pyv_npu.report", "page")
    environment = Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.filters |= {
        "kind": lambda part: type(part).__name__,
        "layout": layout,
        "deflated": lambda run: deflated(json.dumps(run, separators=(",", ":"))),
    }
    return environment


def render(title: str, head: Sequence[Part] = (), tiles: Sequence[Tile] = (), sections: Sequence[Section] = ()) -> str:
    """Render the page, without sections that have no parts."""
    folder = resources.files("pyv_npu.report") / "page"
    contents = [(section.name, section.title, _side_by_side(section.parts)) for section in sections if section.parts]
    charted = any(isinstance(part, Charts) for _, _, parts in contents for part in parts)
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


def _side_by_side(parts: Sequence[Part]) -> list[Any]:
    """Group adjacent charts."""
    groups: list[Any] = []
    for charts, run in groupby(parts, lambda part: isinstance(part, Chart)):
        group = list(run)
        named = [part._replace(name=chart_name(part.name)) for part in group if isinstance(part, Chart)]
        groups += [Charts(named)] if charts else group
    return groups
