"""What the Gantt chart of a page shows: lanes of spans, packed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npu_device.trace.events import Kind
from pyv_npu.observe.latency.rows import Submissions
from pyv_npu.report.charts import GRID, LEFT, MUTED, RIGHT, WIDTH
from pyv_npu.report.packed import packed
from pyv_npu.report.scale import Scale
from pyv_npu.report.spans import UNITS, Integers, Records, Spans, core_spans, queue_spans, unit_spans
from pyv_npu.report.svg import Svg

COLOURS = {"core": "#495057", "queue": "#f08c00", "te": "#1c7ed6", "ve": "#2f9e44", "dma": "#7048e8"}


def lanes(records: Records, submissions: Submissions, end: int) -> dict[str, Spans]:
    """Lane by name: the core in submit functions, the queue, every engine that worked."""
    found = {"core": core_spans(submissions), "queue": queue_spans(records, end)}
    for kind in UNITS:
        for unit, spans in unit_spans(records, kind, end).items():
            found[f"{Kind(kind).name.lower()}{unit & 0xFF}"] = spans
    return found


def picture(shown: Mapping[str, Spans], end: int, title: str) -> str:
    """The whole run as SVG text. What lies within one column of the picture is one rectangle."""
    top, row, columns = 70, 22, 2 * (RIGHT - LEFT)
    bottom = top + row * len(shown)
    svg = Svg(WIDTH, bottom + 50, title)
    svg.text(16, 26, title, size=16, weight="600", fill="#111111")
    svg.text(16, 45, "from when to when each unit worked; the chart of report.html can be zoomed", fill=MUTED)
    across = Scale(0, max(end, 1), LEFT, RIGHT)
    for tick in across.ticks():
        svg.line(across(tick), top, across(tick), bottom, GRID)
        svg.text(across(tick), bottom + 18, f"{tick:,}", size=11, anchor="middle")
    svg.text((LEFT + RIGHT) / 2, bottom + 40, "core cycles", anchor="middle")
    for number, (name, spans) in enumerate(shown.items()):
        y = top + row * number
        svg.text(LEFT - 10, y + 15, name, anchor="end", size=11)
        for first, last in _columns(spans, max(end, 1), columns):
            width = (last - first) * (RIGHT - LEFT) / columns
            left = LEFT + first * (RIGHT - LEFT) / columns
            svg.rectangle(left, y + 3, width, row - 6, COLOURS[name.rstrip("0123456789")])
    return str(svg)


def _columns(spans: Spans, end: int, count: int) -> list[tuple[int, int]]:
    """Runs [first, last) of the columns, `count` over [0, end), in which something of a lane is."""
    real = spans.end > spans.start
    change = np.zeros(count + 1, np.int64)
    np.add.at(change, spans.start[real] * count // end, 1)
    np.add.at(change, np.minimum(-(-spans.end[real] * count // end), count), -1)
    busy = np.concatenate([[False], np.cumsum(change[:count]) > 0, [False]])
    edges = np.flatnonzero(busy[1:] != busy[:-1]).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def chart(
    shown: Mapping[str, Spans], end: int, tickets: Integers | None = None, layers: Sequence[str] = ()
) -> dict[str, Any]:
    """The object that page/gantt.js reads; `layers`: of the commands with `tickets`, ascending, as far as known."""
    known = min(0 if tickets is None else len(tickets), len(layers))
    names = list(dict.fromkeys(layers))
    order = {name: index for index, name in enumerate(names)}
    return {
        "end": end,
        "layers": names,
        "known": known,
        "tickets": packed(np.zeros(0, np.int64) if tickets is None else tickets[:known]),
        "layer": packed(np.array([order[name] for name in layers[:known]], np.int64)),
        "lanes": [
            {
                "name": name,
                "colour": COLOURS[name.rstrip("0123456789")],
                "count": len(spans.start),
                "start": packed(spans.start),
                "length": packed(spans.end - spans.start),
                "ticket": packed(spans.ticket),
            }
            for name, spans in shown.items()
        ],
    }
