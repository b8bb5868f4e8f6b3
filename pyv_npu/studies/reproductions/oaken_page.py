"""Sections of `pyv-npu reproduce oaken`: claims, figures 4 and 11 to 14 as charts, tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyv_npu.kv_quant.study import ablation_table, sweep_chart, sweep_table
from pyv_npu.report.charts import Line, lines
from pyv_npu.sections import Chart, Heading, Note, Section, Table, Tile
from pyv_npu.studies.reproductions import Reproduction
from pyv_npu.studies.reproductions.oaken import LENGTHS, SHOWN, TOLERANCE

RENEWAL = "pyv-npu reproduce oaken --full simulates all of them anew (about 12 CPU minutes; resumes where it stopped)"


def _curves(data: Mapping[str, Any], at: tuple[int, ...]) -> list[Line]:
    """Return a line for each system, without points that exceed its memory."""
    return [Line(name, [(x, y) for x, y in zip(at, values, strict=True) if y]) for name, values in data.items()]


def pictures(json: Mapping[str, Any]) -> dict[str, Chart]:
    """Return the charts by name."""
    charts = {}
    for figure, caption in (("figure4", "fp16"), ("figure11", "vLLM's scheduler")):
        for name, data in json[figure].items():
            charts[f"{figure}-{name}"] = lines(
                f"{figure}-{name}", f"{name}: throughput by batch",
                f"{caption}, burst of 1K + 1K; no point: out of memory",
                _curves(data, SHOWN), "requests", "new tokens per second", dots=True,
            )  # fmt: skip
    charts["figure12a"] = sweep_chart(json["figure12a"], "synthetic keys and values")
    parts = json["figure12b"]
    charts["figure12b"] = lines(
        "figure12b", "Step of generation by batch", "Llama2-7B, context 1,535; broken down in the table",
        [Line(name, [(int(batch), sum(row[name].values())) for batch, row in parts.items()])
         for name in ("lpu-lpddr", "oaken-lpddr")],
        "requests", "core cycles", dots=True,
    )  # fmt: skip
    charts["figure13"] = lines(
        "figure13", "Throughput by length", "Llama2-13B, 16 sequences, half in and half out; no point: out of memory",
        _curves(json["figure13"], LENGTHS), "tokens of a sequence", "new tokens per second", dots=True,
    )  # fmt: skip
    gains = json["figure14"]
    charts["figure14"] = lines(
        "figure14", "Gain over the stand-in of an A100", "synthetic lengths, 128 requests, or a trace",
        [Line(name, [(float(text.partition("+")[2] or 0), gain) for text, gain in data.items()])
         for name, data in gains.items()],
        "new tokens of a request", "ratio", dots=True,
    )  # fmt: skip
    return charts


CLAIM = {"id": "claim", "text": "figure", "paper": "paper", "ours": "device", "error": "error", "word": "origin",
         "remark": "remark", "verdict": "verdict"}  # fmt: skip
"""Key of a claim -> heading of its column."""


def _claims(json: Mapping[str, Any]) -> Table:
    rows = [[claim[key] for key in CLAIM] for claim in json["claims"]]
    return Table(list(CLAIM.values()), rows, units=["share" if key == "error" else "" for key in CLAIM])


def _rows(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of rows with the same keys."""
    return Table([name.replace("_", " ") for name in rows[0]], [list(row.values()) for row in rows])


def trust(json: Mapping[str, Any]) -> Note:
    """Describe the origin and error of step costs."""
    costs = json["step_costs"]
    text = f"{costs['simulated']:,} parts of steps were simulated"
    if costs["samples"]:
        text += f"; {costs['samples']} step costs of oaken_steps.json simulated again: error {costs['error']:.2%}"
    if json["exact"]:
        return Note(text)
    return Note(f"{text}, above {TOLERANCE:.0%}: the device has changed, and these figures are of the one before. "
                f"{RENEWAL}", "warning")  # fmt: skip


def reproduced(json: Mapping[str, Any]) -> Reproduction:
    """Return the sections of the figures, for a terminal and a page."""
    drawn = pictures(json)

    def figure(start: str) -> list[Chart]:
        return [chart for name, chart in drawn.items() if name.startswith(start)]

    parts = [
        {"batch": batch, **{f"{name} {part}": cycles for name, costs in row.items() for part, cycles in costs.items()}}
        for batch, row in json["figure12b"].items()
    ]
    constants = [
        (f"{name}, {unit}", value)
        for key, unit in (("area_mm2", "mm2"), ("area_percent", "% of a core"), ("power_watts", "W"))
        for name, value in json["constants"][key].items()
    ]
    sections = [
        Section("claims", "Claims", [
            _claims(json),
            Note("simulated: cycles of the device or of serve's ledger; calibrated: with a constant that was fitted to "
                 "this figure; computed: a closed form, as the paper's own figure is; cited: needs what is not here."),
            trust(json),
        ]),
        Section("figure4", "Figure 4: HBM or LPDDR, fp16", figure("figure4-")),
        Section("figure11", "Figure 11: throughput", figure("figure11-")),
        Section("figure12", "Figure 12: errors, and parts of the latency", [
            *figure("figure12"), Heading("synthetic keys and values: relative error of each method"),
            _rows(json["synthetic_errors"]), Heading("ablations, synthetic keys and values: relative error"),
            ablation_table(json["ablations"]), Heading("shares of outer, middle and inner group: relative error"),
            sweep_table(json["figure12a"]), Heading("number of groups (table 3), synthetic keys and values"),
            _rows(json["groups"]), Heading("cycles of a step, Llama2-7B, context 1,535"), _rows(parts),
        ]),
        Section("figure13", "Figure 13: length", figure("figure13")),
        Section("figure14", "Figure 14: input and output", figure("figure14")),
        Section("constants", "Area and power, as published", [Table(("", "value"), constants)]),
    ]  # fmt: skip
    met = sum(claim["met"] is True for claim in json["claims"])
    tiles = [Tile("figures", f"{met} of {len(json['claims'])}", "met within bounds that were written before the run")]
    return Reproduction("Oaken", json, tiles, sections)
