"""A comparison over widths of keys and values (docs/bit-widths.md, R24): rows, text, CSV, charts and page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from npu_device.cost.rates import Rates
from pyv_native.files import write_text
from pyv_npu.csv_table import write_csv
from pyv_npu.report import memory, page
from pyv_npu.report.charts import Chart, Line, lines
from pyv_npu.report.page import Cell, Note, Section, Table
from pyv_npu.result import Result
from pyv_npu.text import MISSING, columns


class Width(NamedTuple):
    """One run of a comparison."""

    qbits_kv: int
    kv_bytes_moved: int | None
    """Between caches and scratchpad, summed over the DMA events."""
    kv_bytes_per_token: int
    """Of all layers, in DRAM."""
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
    "qbits_kv": "qbits_kv", "kv_bytes_moved": "KV bytes moved", "kv_bytes_per_token": "KV bytes a token",
    "t_max_limit": "capacity, tokens", "dma_cycles": "dma_cycles", "total_latency": "total_latency",
    "bandwidth": "bytes/s", "bw_usage": "bw_usage", "tokens_per_second": "tokens/s", "error": "error",
}  # fmt: skip
CHARTS = {
    "dma_cycles": ("DMA cycles", "core cycles in which channels moved data, summed over them", "core cycles"),
    "total_latency": ("Latency", "core cycles of all steps", "core cycles"),
    "bandwidth": ("DRAM bandwidth", "bytes a second that crossed its pins", "bytes per second"),
    "tokens_per_second": ("Speed", "tokens a second", "tokens per second"),
    "t_max_limit": ("Capacity", "tokens for which the caches fit DRAM beside everything else", "tokens"),
    "error": ("Error", "largest error of the logits, relative to the largest value of the reference", "relative error"),
}


def width(bits: int, result: Result[Any]) -> Width:
    """The figures of a run with keys and values of so many bits."""
    json = result.json
    figures = json["llm"] if "llm" in json else json["generate"]
    cycles = sum(json["cycles_by_step"]) if json.get("cycles_by_step") else result.cycles
    seconds = cycles / result.config.npu.clock_hz if cycles else None
    moved, traffic = figures["kv_tokens"], json["traffic"]
    aligned = None if traffic is None else traffic["total"]["bytes_aligned"]
    rates = Rates(result.config.npu)
    full = cycles * rates.total // rates.per_byte if cycles and rates.total else None
    made = figures["requests"] * figures["tokens"] if "requests" in figures else len(figures["tokens"]) - 1
    errors = [step["error"] for step in figures.get("steps", ()) if step["error"] is not None]
    return Width(
        bits,
        sum(one["bytes_k"] + one["bytes_v"] for one in moved) if moved else None,
        figures["kv_capacity"]["kv_bytes_per_token"],
        figures["kv_capacity"]["t_max_limit"],
        None if json["npu"] is None else sum(json["npu"]["dma_busy"]),
        cycles,
        round(aligned / seconds) if aligned is not None and seconds else None,
        aligned / full if aligned is not None and full else None,
        made / seconds if seconds else None,
        max(errors, default=None),
    )


def render(results: Sequence[Result[Any]], widths: Sequence[Width]) -> str:
    """A row for each width."""
    rows = [[_shown(name, value) for name, value in one._asdict().items()] for one in widths]
    return f"{_title(results)}\n\n{columns(list(HEADS.values()), rows)}\n"


def _title(results: Sequence[Result[Any]]) -> str:
    first = results[0]
    llm = first.json.get("llm")
    if llm is None:
        return f"{first.program}, {first.name}: keys and values of several widths"
    work = f"{llm['phase']}, {llm['requests']} requests, {llm['layers']} layers"
    return f"{first.program} {work}, timing only"


def _shown(name: str, value: Any) -> str:
    if value is None:
        return MISSING
    if name == "bw_usage":
        return f"{value:.1%}"
    if name == "error":
        return f"{value:.2e}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def write(folder: Path, results: Sequence[Result[Any]], widths: Sequence[Width]) -> None:
    """widths.csv and report.html, with a chart of each figure."""
    write_csv(folder / "widths.csv", Width._fields, widths)
    runs: dict[str, Mapping[str, Any]] = {
        f"{one.qbits_kv} bits": result.json for one, result in zip(widths, results, strict=True)
    }
    write_csv(folder / "traffic.csv", memory.CSV_HEADS, memory.traffic_rows(runs))
    charts = [chart for name in CHARTS if (chart := _chart(name, widths)) is not None]
    rows = [
        [Cell(_shown(name, value), f"width.{one.qbits_kv}.{name}") for name, value in one._asdict().items()]
        for one in widths
    ]
    sections = [
        Section("widths", "Widths of keys and values", [Table(list(HEADS.values()), rows), *charts]),
        Section("traffic", "Traffic", memory.traffic(runs, {})),
        Section("kv", "Keys and values", memory.keys_and_values(runs)),
    ]
    first = results[0]
    note = (
        f"preset {first.config.preset}, {first.config.run.sim_level}, {first.config.npu.clock_hz / 1e6:g} MHz; "
        f"times are core cycles"
    )
    write_text(folder / "report.html", page.render(_title(results), [Note(note, "muted")], (), sections))


def _chart(name: str, widths: Sequence[Width]) -> Chart | None:
    points: list[tuple[float | str, float]] = [
        (str(one.qbits_kv), getattr(one, name)) for one in sorted(widths) if getattr(one, name) is not None
    ]
    if not points:
        return None
    title, caption, unit = CHARTS[name]
    curve = [Line(unit, points)]
    return lines(f"widths_{name}", title, caption, curve, "bits of keys and values", unit, dots=True)
