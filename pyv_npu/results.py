"""Runs a program and says what came of it: the JSON objects of docs/results.md, "JSON"."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from npu_device.abi.errors import TICKET_ERROR_TEXT, TicketError
from npu_device.trace.events import EventStream
from pyv_ext import elf
from pyv_ext.elf import Program
from pyv_ext.engines.stop import Stop, StopReason
from pyv_npu import boot
from pyv_npu.boot import find_program
from pyv_npu.config import Config, with_values
from pyv_npu.observe.latency.rows import Submissions
from pyv_npu.observe.latency.table import Latency
from pyv_npu.platform import Platform, sized_for
from pyv_npu.report.timeline import timeline_csv, write_latency_csv

SCHEMA = 1
SHOWN_ERRORS = 10
"""Tickets in error that a result lists; `latency.n_errors` counts all."""
Console = Callable[[bytes], None]


@dataclass(frozen=True)
class RunResult:
    """One run. `json` has the keys of docs/results.md, "JSON"."""

    config: Config
    stop: Stop
    exit_code: int | None
    """The guest's, None when it did not end by itself."""
    latency: Latency
    json: dict[str, Any]
    order: Mapping[int, tuple[int, ...]]
    """Stream -> acceptance numbers, within the stream, in the order of completion."""
    outputs_sha256: str
    """What the NPU left in memory."""
    events: EventStream
    """Its records, kept."""
    program: Program


@dataclass(frozen=True)
class CompareResult:
    """The same program, loose and tight."""

    loose: RunResult
    tight: RunResult
    json: dict[str, Any]


def run_program(
    config: Config,
    program: str | Path | Program,
    args: Mapping[str, int] | None = None,
    console: Console | None = None,
    report: Path | None = None,
    *,
    run: Callable[[Platform], Stop] = Platform.run,
    layers: Sequence[str] = (),
    values: bool = True,
    make: Callable[..., Platform] = Platform,
) -> RunResult:
    """Run firmware (a name that ships with the package, a path, or a loaded Program) to its end or limit.

    `console` gets the UART's bytes as they come; `report` is a folder that gets timeline.csv and latency.csv. `run`
    takes the loaded platform to the end: by itself, from a snapshot, or under a debugger. `layers` names the layer of
    each command for timeline.csv. Without `values` the NPU computes nothing. `make` makes the platform, for one with
    devices of its own; it is called as `Platform` is.
    Raises the errors of `Platform.load`.
    """
    loaded = _loaded(program)
    config = replace(config, npu=sized_for(config.npu, boot.requirements(loaded).dram_bytes))
    wall, cpu = time.perf_counter(), time.process_time()
    platform = make(config, console=console, values=values)
    platform.load(loaded, args)
    stop = _located(run(platform), loaded)
    latency = platform.result()
    if report is not None:
        report.mkdir(parents=True, exist_ok=True)
        with timeline_csv(report / "timeline.csv", layers) as timeline:
            for batch in platform.events.kept():
                timeline.events(batch)
        write_latency_csv(report / "latency.csv", latency.submissions, loaded)
    host = {"wall_s": round(time.perf_counter() - wall, 3), "cpu_s": round(time.process_time() - cpu, 3)}
    return _result(config, loaded, platform, stop, latency, host)


def _located(stop: Stop, program: Program) -> Stop:
    """The stop with function and source line behind each address of the program in its text."""

    def located(found: re.Match[str]) -> str:
        place = program.place(int(found[1], 16))
        return f"{found[0]} ({place})" if place else found[0]

    return replace(stop, text=re.sub(r"\bpc (0x[0-9a-f]{8})", located, stop.text))


def _loaded(program: str | Path | Program) -> Program:
    """The program, under the name by which it was asked for: results do not depend on where the package is."""
    if isinstance(program, Program):
        return program
    return replace(elf.read_elf(find_program(str(program))), name=str(program))


def _result(
    config: Config, program: Program, platform: Platform, stop: Stop, latency: Latency, host: dict[str, float]
) -> RunResult:
    hart = platform.hart
    outputs = platform.outputs.sha256()
    cpu = host["cpu_s"]
    json = {
        "schema": SCHEMA,
        "program": program.name,
        "core": config.core.engine,
        "mode": config.npu.mode,
        "sim_level": config.run.sim_level,
        "preset": config.preset,
        "exit_code": stop.code,
        "stop_reason": stop.reason.value,
        "stop_text": stop.text,
        "cycles": hart.cycle,
        "instret": hart.instret,
        "uart": platform.console.text,
        "latency": latency.to_json(),
        "ticket_errors": ticket_errors(latency.accepted, program),
        "npu": platform.npu.counters.to_json(),
        "outputs_sha256": outputs,
        "events_sha256": platform.events.hexdigest(),
        "host": {**host, "mips": round(hart.instret / cpu / 1e6, 3) if cpu else None},
    }
    return RunResult(
        config, stop, stop.code, latency, json, platform.completion_order(), outputs, platform.events, program
    )


def ticket_errors(accepted: Submissions, program: Program) -> list[dict[str, Any]]:
    """The first tickets that ended in an error, with where the program submitted them."""
    return [
        {
            "ticket": each.ticket,
            "code": each.error,
            "text": TICKET_ERROR_TEXT[TicketError(each.error)],
            "submitted_at": program.place(each.call_site) or None,
        }
        for each in accepted.where(accepted.column("error") != 0)[:SHOWN_ERRORS]
    ]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C stopped the first run of a comparison: there is nothing to compare it with."""

    def __init__(self, loose: RunResult) -> None:
        super().__init__()
        self.loose = loose


def compare_program(
    config: Config,
    program: str | Path | Program,
    args: Mapping[str, int] | None = None,
    console: Console | None = None,
    report: Path | None = None,
) -> CompareResult:
    """Run the same firmware loose and tight, see `compare`."""
    loaded = _loaded(program)
    return compare(config, lambda chosen, folder: run_program(chosen, loaded, args, console, folder), report)


def compare(config: Config, run: Callable[[Config, Path | None], RunResult], report: Path | None) -> CompareResult:
    """Run something loose and tight; everything else of `config` stays. `run` is given the folder of each mode.

    Interrupted when Ctrl-C stopped the first run.
    """
    runs: dict[str, RunResult] = {}
    for mode in ("loose", "tight"):
        made = runs[mode] = run(with_values(config, {"npu.mode": mode}), None if report is None else report / mode)
        if made.stop.reason is StopReason.INTERRUPTED and mode == "loose":
            raise Interrupted(made)
    loose, tight = runs["loose"], runs["tight"]
    same = (
        loose.exit_code == tight.exit_code
        and loose.outputs_sha256 == tight.outputs_sha256
        and loose.order == tight.order
    )
    json = {
        "schema": SCHEMA,
        "loose": loose.json,
        "tight": tight.json,
        "same_results": same,
        "ratio": {f"{stage}_{figure}": _ratio(loose, tight, stage, figure) for stage, figure in RATIOS},
    }
    return CompareResult(loose, tight, json)


RATIOS = (("t_submit", "p50"), ("t_submit", "p99"), ("core_busy", "p50"), ("t_submit_prebuilt", "p50"))
"""Stages and figures of `ratio`."""


def _ratio(loose: RunResult, tight: RunResult, stage: str, figure: str) -> float | None:
    """Loose over tight, None where one is missing or tight is 0."""
    values = []
    for run in (loose, tight):
        summary = run.latency.stage(stage).summary()
        values.append(None if summary is None else summary[figure])
    if values[0] is None or not values[1]:
        return None
    return round(values[0] / values[1], 3)
