"""The report of a built-in decoder model: that of any commands, and the bytes of keys and values as CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from npu_device.trace.events import Batch
from pyv_npu.observe.analysis.model import analyse
from pyv_npu.report.folder import write_text
from pyv_npu.report.report import Shown, shown, write_report
from pyv_npu.report.run_folder import RunFolder
from pyv_npu.report.timeline import write_timeline
from pyv_npu.workloads.llm import Ran

TABLES = ("kv_tokens", "kv_layers")
"""Lists of the `llm` object that are files, too (docs/bit-widths.md, R24)."""


def write_llm_report(folder: RunFolder, ran: Ran, text: str, records: Batch | None = None) -> None:
    """Everything that a report of the run holds. `records`: the events of a run without a core."""
    effective = folder.effective
    folder.finish(ran.json, text, effective)
    for name in TABLES:
        write_text(folder.folder / f"{name}.csv", _csv(ran.json["llm"][name]))
    if ran.run is not None:
        run = shown(ran.run)
    else:
        assert records is not None
        run = Shown.of(ran.json, effective.config, [records], ())
        layers = [command.layer for command in ran.commands]
        write_timeline(folder.folder / "timeline.csv", run.spans, layers)
    found = analyse(ran.commands, run.spans, effective.config.npu, ran.memory)
    write_report(folder.folder, [replace(run, analysis=found)], effective)


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
