"""What the Gantt chart of a page shows: lanes of spans, packed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npu_device.events import Kind
from pyv_npu.latency.submission import Submission
from pyv_npu.report.packed import packed
from pyv_npu.report.spans import UNITS, Integers, Records, Spans, core_spans, queue_spans, unit_spans

COLOURS = {"core": "#495057", "queue": "#f08c00", "te": "#1c7ed6", "ve": "#2f9e44", "dma": "#7048e8"}


def lanes(records: Records, submissions: Sequence[Submission], end: int) -> dict[str, Spans]:
    """Lane by name: the core in submit functions, the queue, every engine that worked."""
    found = {"core": core_spans(submissions), "queue": queue_spans(records, end)}
    for kind in UNITS:
        for unit, spans in unit_spans(records, kind, end).items():
            found[f"{Kind(kind).name.lower()}{unit & 0xFF}"] = spans
    return found


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
