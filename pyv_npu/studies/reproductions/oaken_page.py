"""The report of `pyv-npu reproduce oaken`: figures 4 and 11 to 14 as charts, tables, the page."""

from collections.abc import Mapping
from typing import Any

from pyv_npu.kv_quant.study import sweep_chart
from pyv_npu.report.charts import Line, lines
from pyv_npu.report.page import render
from pyv_npu.sections import Cell, Chart, Note, Section, Table, Tile
from pyv_npu.studies.reproductions.oaken import LENGTHS, SHOWN
from pyv_npu.units import number


def _curves(data: Mapping[str, Any], at: tuple[int, ...]) -> list[Line]:
    """A line for each system, where it fits its memory."""
    return [Line(name, [(x, y) for x, y in zip(at, values, strict=True) if y]) for name, values in data.items()]


def pictures(json: Mapping[str, Any]) -> dict[str, Chart]:
    """By name."""
    drawn = {}
    for figure, caption in (("figure4", "fp16"), ("figure11", "vLLM's scheduler")):
        for name, data in json[figure].items():
            drawn[f"{figure}-{name}"] = lines(
                f"{figure}-{name}", f"{name}: throughput by batch",
                f"{caption}, burst of 1K + 1K; no point: out of memory",
                _curves(data, SHOWN), "requests", "new tokens per second", dots=True,
            )  # fmt: skip
    drawn["figure12a"] = sweep_chart(json["figure12a"], "synthetic keys and values")
    parts = json["figure12b"]
    drawn["figure12b"] = lines(
        "figure12b", "Step of generation by batch", "Llama2-7B, context 1,535; broken down in the table",
        [Line(name, [(int(batch), sum(row[name].values())) for batch, row in parts.items()])
         for name in ("lpu-lpddr", "oaken-lpddr")],
        "requests", "core cycles", dots=True,
    )  # fmt: skip
    drawn["figure13"] = lines(
        "figure13", "Throughput by length", "Llama2-13B, 16 sequences, half in and half out; no point: out of memory",
        _curves(json["figure13"], LENGTHS), "tokens of a sequence", "new tokens per second", dots=True,
    )  # fmt: skip
    gains = json["figure14"]
    drawn["figure14"] = lines(
        "figure14", "Gain over the stand-in of an A100", "synthetic lengths, 128 requests, or a trace",
        [Line(name, [(float(text.partition("+")[2] or 0), gain) for text, gain in data.items()])
         for name, data in gains.items()],
        "new tokens of a request", "ratio", dots=True,
    )  # fmt: skip
    return drawn


def files(json: Mapping[str, Any]) -> dict[str, str]:
    """Of the report, by name."""
    drawn = pictures(json)
    return {"report.html": _page(json, drawn)}


def _claims(json: Mapping[str, Any]) -> Table:
    names = ("id", "text", "paper", "ours", "word", "remark", "verdict")
    rows = [[Cell(str(one[name]), kind="text") for name in names] for one in json["claims"]]
    return Table(("", "figure", "paper", "device", "word", "remark", "verdict"), rows)


def _rows(rows: Any) -> Table:
    heads = list(rows[0])
    cells = [[Cell(str(row[heads[0]]), kind="text"), *(Cell(number(row[name])) for name in heads[1:])] for row in rows]
    return Table([name.replace("_", " ") for name in heads], cells)


def _page(json: Mapping[str, Any], drawn: Mapping[str, Chart]) -> str:
    def figure(start: str) -> list[Chart]:
        return [chart for name, chart in drawn.items() if name.startswith(start)]

    constants = json["constants"]
    sections = [
        Section("claims", "Claims", [
            _claims(json),
            Note("simulated: cycles of the device or of serve's ledger; calibrated: with a constant that was fitted to "
                 "this figure; computed: a closed form, as the paper's own figure is; cited: needs what is not here."),
        ]),
        Section("figure4", "Figure 4: HBM or LPDDR, fp16", figure("figure4-")),
        Section("figure11", "Figure 11: throughput", figure("figure11-")),
        Section("figure12", "Figure 12: errors, and parts of the latency", [
            *figure("figure12"), Note("synthetic keys and values, relative error of each method"),
            _rows(json["synthetic_errors"]), Note("parts of Oaken, the same keys and values"),
            _rows(json["ablations"]), Note("number of groups (table 3), the same keys and values"),
            _rows(json["groups"]), Note("cycles of a step, Llama2-7B, context 1,535"),
            _rows([
                {"batch": batch,
                 **{f"{name} {part}": cycles for name, one in row.items() for part, cycles in one.items()}}
                for batch, row in json["figure12b"].items()
            ]),
        ]),
        Section("figure13", "Figure 13: length", figure("figure13")),
        Section("figure14", "Figure 14: input and output", figure("figure14")),
        Section("constants", "Area and power, as published", [
            Table(("", "value"), [
                [Cell(f"{name}, {unit}", kind="text"), Cell(number(value))]
                for key, unit in (("area_mm2", "mm2"), ("area_percent", "% of a core"), ("power_watts", "W"))
                for name, value in constants[key].items()
            ]),
        ]),
    ]  # fmt: skip
    met = sum(one["met"] is True for one in json["claims"])
    tiles = [Tile("figures", f"{met} of {len(json['claims'])}", "met within bounds that were written before the run")]
    return render("Oaken", [Note(json["source"], "muted")], tiles, sections)
