"""A comparison over widths of keys and values (docs/bit-widths.md, R24): its rows, its sections and its page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from npu_device.cost.rates import Rates
from pyv_native.files import write_text
from pyv_npu.csv_table import write_csv
from pyv_npu.report import memory, page
from pyv_npu.report.charts import Line, lines
from pyv_npu.result import Result
from pyv_npu.sections import Cell, Chart, Note, Section, Table, csv_tables, plain


class Width(NamedTuple):
    """Run of a comparison of widths."""

    qbits_kv: int
    kv_bytes_moved: int | None
    """Between caches and scratchpad, summed over the DMA events."""
    kv_bytes_per_token: int
    """Bytes of all layers, in DRAM."""
    t_max_limit: int
    """Capacity: tokens that the caches could hold."""
    dma_cycles: int | None
    """Summed over the channels; None: the level has no counters."""
    total_latency: int | None
    """Core cycles of all steps."""
    bandwidth: int | None
    """Bytes per second that crossed the pins of DRAM."""
    bw_usage: float | None
    """Share of the bandwidth of DRAM."""
    tokens_per_second: float | None
    error: float | None
    """Largest error of the logits against the reference, relative to its largest value; None: nothing was computed."""


HEADS = {
    "qbits_kv": "", "kv_bytes_moved": "bytes", "kv_bytes_per_token": "bytes", "t_max_limit": "tokens",
    "dma_cycles": "cycles", "total_latency": "cycles", "bandwidth": "bytes/s", "bw_usage": "share",
    "tokens_per_second": "", "error": "",
}  # fmt: skip
"""Units of the columns."""
CHARTS = {
    "dma_cycles": ("DMA cycles", "core cycles in which channels moved data, summed over them", "core cycles"),
    "total_latency": ("Latency", "core cycles of all steps", "core cycles"),
    "bandwidth": ("DRAM bandwidth", "bytes a second that crossed its pins", "bytes per second"),
    "tokens_per_second": ("Speed", "tokens a second", "tokens per second"),
    "t_max_limit": ("Capacity", "tokens for which the caches fit DRAM beside everything else", "tokens"),
    "error": ("Error", "largest error of the logits, relative to the largest value of the reference", "relative error"),
}


def width(bits: int, result: Result[Any]) -> Width:
    """Returns the figures of a run with keys and values of so many bits."""
    json = result.json
    figures = json["llm"] if "llm" in json else json["generate"]
    cycles = sum(json["cycles_by_step"]) if json.get("cycles_by_step") else result.cycles
    seconds = cycles / result.config.npu.clock_hz if cycles else None
    moved, traffic = figures["kv_tokens"], json["traffic"]
    aligned = None if traffic is None else traffic["total"]["bytes_aligned"]
    rates = Rates(result.config.npu)
    full = cycles * rates.total // rates.per_byte if cycles and rates.total else None
    tokens = figures["requests"] * figures["tokens"] if "requests" in figures else len(figures["tokens"]) - 1
    errors = [step["error"] for step in figures.get("steps", ()) if step["error"] is not None]
    return Width(
        bits,
        sum(token["bytes_k"] + token["bytes_v"] for token in moved) if moved else None,
        figures["kv_capacity"]["kv_bytes_per_token"],
        figures["kv_capacity"]["t_max_limit"],
        None if json["npu"] is None else sum(json["npu"]["dma_busy"]),
        cycles,
        round(aligned / seconds) if aligned is not None and seconds else None,
        aligned / full if aligned is not None and full else None,
        tokens / seconds if seconds else None,
        max(errors, default=None),
    )


def width_sections(results: Sequence[Result[Any]], widths: Sequence[Width]) -> list[Section]:
    """Returns a table with a row for each width."""
    rows = [[str(each.qbits_kv), *each[1:-1], Cell("" if each.error is None else f"{each.error:.2e}", value=each.error)]
            for each in widths]  # fmt: skip
    table = Table(Width._fields, rows, units=list(HEADS.values()), file="widths.csv", figures="width.{0}.{head}")
    return [Section("widths", _title(results), [table])]


def _title(results: Sequence[Result[Any]]) -> str:
    first = results[0]
    llm = first.json.get("llm")
    if llm is None:
        return f"{first.program}, {first.name}: keys and values of several widths"
    work = f"{llm['phase']}, {llm['requests']} requests, {llm['layers']} layers"
    return f"{first.program} {work}, timing only"


def write(folder: Path, results: Sequence[Result[Any]], widths: Sequence[Width]) -> None:
    """Writes report.html, with a chart of each figure, and the CSV files."""
    runs: dict[str, Mapping[str, Any]] = {
        f"{each.qbits_kv} bits": result.json for each, result in zip(widths, results, strict=True)
    }
    (table,) = width_sections(results, widths)
    charts = [chart for name in CHARTS if (chart := _chart(name, widths)) is not None]
    sections = [
        Section("widths", "Widths of keys and values", [*table.parts, *charts]),
        Section("traffic", "Traffic", memory.traffic(runs, {})),
        Section("kv", "Keys and values", memory.keys_and_values(runs)),
    ]
    for name, each in csv_tables(sections).items():
        write_csv(folder / name, each.heads, [list(map(plain, row)) for row in each.rows])
    first = results[0]
    note = (
        f"preset {first.config.preset}, {first.config.run.sim_level}, {first.config.npu.clock_hz / 1e6:g} MHz; "
        f"cycles are core cycles"
    )
    write_text(folder / "report.html", page.render(_title(results), [Note(note, "muted")], (), sections))


def _chart(name: str, widths: Sequence[Width]) -> Chart | None:
    points: list[tuple[float | str, float]] = [
        (str(each.qbits_kv), getattr(each, name)) for each in sorted(widths) if getattr(each, name) is not None
    ]
    if not points:
        return None
    title, caption, unit = CHARTS[name]
    curve = [Line(unit, points)]
    return lines(f"widths_{name}", title, caption, curve, "bits of keys and values", unit, dots=True)
