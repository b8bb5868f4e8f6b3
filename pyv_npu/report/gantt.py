"""What the Gantt chart of a page shows: lanes of spans, packed."""

from collections.abc import Mapping, Sequence
from typing import Any

from npu_device.events import Kind
from pyv_npu.latency.submission import Submission
from pyv_npu.report.packed import packed
from pyv_npu.report.spans import UNITS, Records, Spans, core_spans, queue_spans, unit_spans

COLOURS = {"core": "#495057", "queue": "#f08c00", "te": "#1c7ed6", "ve": "#2f9e44", "dma": "#7048e8"}


def lanes(records: Records, submissions: Sequence[Submission], end: int) -> dict[str, Spans]:
    """Lane by name: the core in submit functions, the queue, every engine that worked."""
    found = {"core": core_spans(submissions), "queue": queue_spans(records, end)}
    for kind in UNITS:
        for unit, spans in unit_spans(records, kind, end).items():
            found[f"{Kind(kind).name.lower()}{unit & 0xFF}"] = spans
    return found


def chart(shown: Mapping[str, Spans], end: int) -> dict[str, Any]:
    """The object that page/gantt.js reads."""
    return {
        "end": end,
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
