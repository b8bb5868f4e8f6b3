"""Summary of a run in sentences and key figures: its cycles, its bottleneck, and the faster mode.

The input are the run objects of docs/results.md, "JSON". Times are core cycles.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyv_npu.config import Config
from pyv_npu.result import Run, Runs, headline, stage_of
from pyv_npu.sections import Tile
from pyv_npu.units import duration, number, quantity

if TYPE_CHECKING:
    from pyv_npu.observe.analysis.model import Analysis

SAME = 0.005
"""Relative difference up to which modes are called equal; our choice."""
MOST_OF = 0.7
"""Minimum busy share of a unit that is called the limit; our choice."""
SHOWN_CAUSES = 3
UNITS = {"te": "tensor engine", "ve": "vector engine", "dma": "DMA channel"}


BOUNDS = {
    "compute": "engines",
    "dram": "DRAM",
    "noc": "NoC",
    "spm": "scratchpad ports",
    "critical_path": "critical path",
    "kv_engines": "KV engines",
}
ADVICE = {
    "tensor engine": "more tensor engines (npu.te.count)",
    "vector engine": "more vector engines (npu.ve.count)",
    "DRAM bandwidth": "more DRAM bandwidth (npu.dram.bytes_per_second), or narrower weights (--qbits-weight)",
    "DMA channel busy": "more DMA channels (npu.dma.channels)",
    "DMA channel bandwidth": "wider DMA channels (npu.dma.bytes_per_cycle)",
    "NoC": "more bandwidth of the NoC (npu.noc.bytes_per_second)",
    "bank conflict": "more banks of the scratchpad (npu.spm.banks)",
    "scratchpad port": "wider ports of the scratchpad (npu.spm.port)",
}
"""Cause -> first remedy."""


# -- sentences ---------------------------------------------------------------------------------------------------------


def sentences(runs: Runs, causes: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return sentences: the faster mode, if both runs ended, and the bottleneck of each run.

    `causes`: mode -> cause in words -> cycles; the cycles of a mode add up to the NPU's makespan.
    """
    exits = {mode: run for mode, run in runs.items() if run["stop_reason"] == "exit" and run["cycles"]}
    lines = [_winner(exits["loose"], exits["tight"])] if {"loose", "tight"} <= set(exits) else []
    for mode, run in exits.items():
        text = _cause_text(run, causes[mode]) if causes.get(mode) else _unit_text(run)
        if text:
            lines.append(f"{mode[0].upper()}{mode[1:]}: {text}")
    return lines


COMPARED = {
    "t_submit": "per submission",
    "t_submit_prebuilt": "per submission of a prebuilt descriptor",
    "core_busy": "in core time per submission",
}
"""Stages whose P50 is compared in the sentence on the faster mode."""


def _winner(loose: Run, tight: Run) -> str:
    """Return the sentence on the faster mode, over the whole run and in the medians of stages."""
    pairs = [("over the whole run", loose["cycles"], tight["cycles"])]
    for name, text in COMPARED.items():
        stages = [stage_of(run, name) for run in (loose, tight)]
        if all(stages):
            pairs.append((f"{text} (P50)", *(stage["p50"] for stage in stages)))
    won: dict[str, list[str]] = {"tight": [], "loose": [], "neither": []}
    for text, *cycles in pairs:
        low, high = sorted(cycles)
        if high - low <= SAME * high:
            won["neither"].append(f"{text} ({cycles[0]:,} cycles in loose and {cycles[1]:,} in tight mode)")
            continue
        times = f"by {high / low:.2f}x " if low else ""
        by = f"{times}{text} ({low:,} cycles against {high:,})"
        won["loose" if cycles[0] < cycles[1] else "tight"].append(by)
    texts = [f"{mode.capitalize()} wins {', '.join(by)}." for mode, by in won.items() if by and mode != "neither"]
    if won["neither"]:
        texts.append(f"The modes are equal {', '.join(won['neither'])}.")
    return " ".join(texts)


def _cause_text(run: Run, causes: Mapping[str, int]) -> str:
    """Return the breakdown of a run whose NPU cycles all have a cause, the largest cause first."""
    cycles = run["cycles"]
    parts = run.get("cycles_parts")
    if parts is None:
        ranked = sorted(causes.items(), key=lambda item: -item[1])
        text = _bound_text(ranked, cycles, f"its {cycles:,} cycles")
        return f"limited by {ranked[0][0].split(': ')[-1]}; {text}{_advice(ranked)}"
    cycles_by_cause = dict(causes)
    waits = next((name for name in cycles_by_cause if name.endswith("submission")), None)
    if waits is not None:  # this cause includes the cycles before the first submission
        cycles_by_cause[waits] = max(0, cycles_by_cause[waits] - parts["before_submission"])
    ranked = sorted(((name, spent) for name, spent in cycles_by_cause.items() if spent), key=lambda item: -item[1])
    text = _bound_text(ranked, max(parts["work"], 1), f"the {parts['work']:,} cycles from first submission to last "
                    "completion")  # fmt: skip
    around = parts["before_submission"] + parts["after_completion"]
    if 2 * around > cycles:
        share = f"{around:,} of {cycles:,} cycles ({around / cycles:.0%})"
        return (f"firmware around the NPU's work limits the run: {share} lie before the first submission or after the "
                f"last completion. {text[:1].upper()}{text[1:]}")  # fmt: skip
    return f"limited by {ranked[0][0].split(': ')[-1]}; {text}{_advice(ranked)}" if ranked else ""


def _advice(ranked: list[tuple[str, int]]) -> str:
    """Return the advice for the largest cause, or ""."""
    change = ADVICE.get(ranked[0][0].split(": ")[-1])
    return f" Try {change} first." if change else ""


def _bound_text(ranked: list[tuple[str, int]], total: int, of: str) -> str:
    if not ranked:
        return ""
    shares = ", ".join(f"{name} {cycles / total:.0%}" for name, cycles in ranked[:SHOWN_CAUSES])
    return f"of {of}, {shares}."


def _unit_text(run: Run) -> str:
    """Return the busiest of core and engines, for a run whose commands are unknown."""
    npu, parts = run["npu"], run.get("cycles_parts")
    if npu is None or parts is None or not parts["work"]:
        return ""
    work = parts["work"]
    stages = run["latency"]["stages"] if run["latency"] else {}
    cycles = sum(
        stage["n"] * stage["mean"] for name in ("core_busy", "t_submit_prebuilt") if (stage := stages.get(name))
    )
    shares = [(min(1.0, cycles / work), "submission, with the core in submit functions for")]
    for kind, name in UNITS.items():
        busiest = max(npu.get(f"{kind}_busy") or [0])
        shares.append((min(1.0, busiest / work), f"the busiest {name}, at work for"))
    share, text = max(shares)
    of = f"{share:.0%} of the {work:,} cycles from first submission to last completion"
    if share >= MOST_OF:
        return f"limited by {text} {of}."
    return f"no unit limits the run by itself; the largest share is that of {text} {of}."


# -- key figures -------------------------------------------------------------------------------------------------------


SUBMISSION = (("t_submit", "p50"), ("t_submit", "p99"), ("core_busy", "p50"))
"""Stages and figures of a run of firmware, and of a comparison."""
STAGE_TEXTS = {"t_submit": "T_submit", "t_submit_prebuilt": "T_submit, prebuilt", "core_busy": "core busy"}


def key_figures(
    runs: Runs, configs: Mapping[str, Config], analyses: "Mapping[str, Analysis]", comparison: Run | None = None
) -> list[Tile]:
    """Return at most four key figures of a comparison, a decoder, a model or firmware."""
    mode, run = next(iter(runs.items()))
    analysis, hertz = analyses.get(mode), configs[mode].npu.clock_hz
    if comparison is not None:
        ratios = list(_comparison_figures(comparison, runs, hertz))
        model = () if analysis is None else _model_figures(mode, run, analysis, configs[mode])
        return [*ratios, *model][:4]
    if "llm" in run and run["llm"].get("tokens_per_second"):
        return list(_decoder_figures(mode, run))
    if analysis is not None and analysis.layers:
        return list(_model_figures(mode, run, analysis, configs[mode]))
    return list(_firmware_figures(mode, run, hertz))[:4]


def _comparison_figures(comparison: Run, runs: Runs, hertz: float) -> Iterator[Tile]:
    """Yield the ratios of loose to tight, with cycles and time of both."""
    spread = (comparison.get("phases") or {}).get("spread", {})
    for stage, figure in SUBMISSION if headline(runs) == "t_submit" else (("t_submit_prebuilt", "p50"),):
        key = f"{stage}_{figure}"
        values = [stage_of(run, stage).get(figure) for run in runs.values()]
        if comparison["ratio"].get(key) is None or None in values:
            continue
        times = " / ".join(duration(cycles, hertz) for cycles in values)
        phases = "" if spread.get(key) is None else f"; over phases {' to '.join(number(end) for end in spread[key])}"
        cycles = " / ".join(f"{value:,}" for value in values)
        text = f"{STAGE_TEXTS[stage]} {figure.upper()}, loose / tight: {cycles} cycles, {times}{phases}"
        yield Tile(f"ratio.{key}", f"{number(comparison['ratio'][key])}x", text)
    if comparison["ratio"]["cycles"] is not None:
        times = " / ".join(duration(run["cycles"], hertz) for run in runs.values())
        text = f"whole run, loose / tight: {times}"
        yield Tile("ratio.cycles", f"{number(comparison['ratio']['cycles'])}x", text)


def _decoder_figures(mode: str, run: Run) -> Iterator[Tile]:
    llm, capacity = run["llm"], run["llm"]["kv_capacity"]
    rate = llm["tokens_per_second"]
    yield Tile(
        f"{mode}.tokens_per_second", number(rate), f"tokens/s, {llm['requests']} request{'s' * (llm['requests'] != 1)}"
    )
    yield Tile(f"{mode}.time_per_token", quantity(llm["requests"] / rate, "s"), "per token of a request")
    token = quantity(capacity["kv_bytes_per_token"], "bytes")
    text = (
        f"keys and values of {llm['context']:,} tokens a request; {token} a token, room for {capacity['t_max_limit']:,}"
    )
    yield Tile(f"{mode}.kv_bytes", quantity(llm["kv_bytes_used"], "bytes"), text)
    bounds = llm["bound"]
    name = max(bounds, key=lambda bound: bounds[bound]).removesuffix("_cycles")
    text = f"bounds the run: {quantity(llm['bound_share'], 'share')} of its time at least"
    yield Tile(f"{mode}.bound", BOUNDS.get(name, name), text)


def _model_figures(mode: str, run: Run, analysis: "Analysis", config: Config) -> Iterator[Tile]:
    from pyv_npu.observe.analysis.metrics import roofline  # imports the compiler, which firmware does not need

    hertz, makespan = config.npu.clock_hz, max(analysis.explanation.makespan, 1)
    text = f"of {run['cycles']:,} cycles, {duration(makespan, hertz)} of them to the last completion on the NPU"
    yield Tile(f"{mode}.time", duration(run["cycles"], hertz), text)
    rate = sum(layer.ops for layer in analysis.layers) / makespan
    device = roofline(config.npu, analysis.layers)
    yield Tile(f"{mode}.operation_rate", quantity(rate * hertz, "ops/s"), "operations of all engines to that moment")
    peak = max((roof.rate for roof in device.roofs), default=0.0)
    note = f"of the peak of {quantity(peak * hertz, 'ops/s')}" if peak else "no engine has a limit"
    yield Tile(f"{mode}.of_peak", quantity(rate / peak if peak else None, "share"), note)
    aligned_bytes = run["traffic"]["total"]["bytes_aligned"] if run.get("traffic") else None
    speed = "" if aligned_bytes is None else f", {quantity(aligned_bytes * hertz / makespan, 'bytes/s')}"
    yield Tile(f"{mode}.dram_bytes", quantity(aligned_bytes, "bytes"), f"read from DRAM and written{speed}")


def _firmware_figures(mode: str, run: Run, hertz: float) -> Iterator[Tile]:
    for stage, figure in (*SUBMISSION, ("t_submit_prebuilt", "p50"), ("t_submit_prebuilt", "p95")):
        cycles = stage_of(run, stage).get(figure)
        if cycles is not None:
            text = f"{STAGE_TEXTS[stage]} {figure.upper()}, {cycles:,} cycles"
            yield Tile(f"{mode}.{stage}.{figure}.time", duration(cycles, hertz), text)
    parts = run.get("cycles_parts") or {}
    work = f", {duration(parts['work'], hertz)} of them with the NPU" if parts else ""
    yield Tile(f"{mode}.time", duration(run["cycles"], hertz), f"of {run['cycles'] or 0:,} cycles{work}")
    if run.get("instret") is not None and run["cycles"]:
        yield Tile(
            f"{mode}.ipc", number(run["instret"] / run["cycles"]), f"instructions per cycle, of {run['instret']:,}"
        )
    yield Tile(f"{mode}.stop", str(run["stop_reason"]), f"exit code {run['exit_code']}")
    npu = run["npu"] or {}
    yield Tile(f"{mode}.accepted", number(npu.get("accepted", 0)), "commands that the NPU accepted")
