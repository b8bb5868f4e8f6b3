"""What the Gantt chart of a page shows: lanes of spans, packed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npu_device.trace.spans import UNITS, Integers, Spans, Table, made
from pyv_npu.observe.latency.rows import NONE, Submissions
from pyv_npu.report.charts import GRID, LEFT, MUTED, RIGHT, WIDTH
from pyv_npu.report.packed import packed
from pyv_npu.report.scale import Scale
from pyv_npu.report.svg import Svg
from pyv_npu.report.timeline import unit_name

COLOURS = {"core": "#495057", "queue": "#f08c00", "te": "#1c7ed6", "ve": "#2f9e44", "dma": "#7048e8"}


def lanes(spans: Spans, submissions: Submissions) -> dict[str, Table]:
    """Lane by name: the core in submit functions, the queue, every engine that worked."""
    found = {"core": _core(submissions), "queue": spans.queue}
    for kind in UNITS:
        found |= {unit_name(unit): rows for unit, rows in spans.units(kind).items()}
    return found


def _core(submissions: Submissions) -> Table:
    """The core in its submit function: t0 to t1."""
    t0, t1, ticket = (submissions.column(name) for name in ("t0", "t1", "ticket"))
    order = np.lexsort((ticket, t1, t0))
    order = order[(t0[order] != NONE) & (t1[order] != NONE)]
    return made(t0[order], t1[order], ticket[order])


def picture(shown: Mapping[str, Table], end: int, title: str) -> str:
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
    for number, (name, rows) in enumerate(shown.items()):
        y = top + row * number
        svg.text(LEFT - 10, y + 15, name, anchor="end", size=11)
        for first, last in _columns(rows, max(end, 1), columns):
            width = (last - first) * (RIGHT - LEFT) / columns
            left = LEFT + first * (RIGHT - LEFT) / columns
            svg.rectangle(left, y + 3, width, row - 6, COLOURS[name.rstrip("0123456789")])
    return str(svg)


def _columns(rows: Table, end: int, count: int) -> list[tuple[int, int]]:
    """Runs [first, last) of the columns, `count` over [0, end), in which something of a lane is."""
    rows = rows[rows["end"] > rows["start"]]
    change = np.zeros(count + 1, np.int64)
    np.add.at(change, rows["start"] * count // end, 1)
    np.add.at(change, np.minimum(-(-rows["end"] * count // end), count), -1)
    busy = np.concatenate([[False], np.cumsum(change[:count]) > 0, [False]])
    edges = np.flatnonzero(busy[1:] != busy[:-1]).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def chart(
    shown: Mapping[str, Table], end: int, tickets: Integers | None = None, layers: Sequence[str] = ()
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
                "count": len(rows),
                "start": packed(rows["start"]),
                "length": packed(rows["end"] - rows["start"]),
                "ticket": packed(rows["ticket"]),
            }
            for name, rows in shown.items()
        ],
    }
