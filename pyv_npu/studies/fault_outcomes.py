"""Outcomes of injected faults: a run with faults against the same run without (docs/reliability.md)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from npu_device.abi.recovery import RECOVERIES
from pyv_ext.elf import Program
from pyv_ext.engines.core import Stop, StopReason
from pyv_npu.boot import requirements
from pyv_npu.config import Config
from pyv_npu.errors import BadInputError, UsageError
from pyv_npu.faults.record import Record
from pyv_npu.result import Detail, Result
from pyv_npu.workloads.workload import PreparedWorkload, Session

D = TypeVar("D", bound=Detail)

UNHANDLED_TRAP = 62
"""Exit code of the runtime for an exception without a handler (firmware/lib/trap.c)."""
LONGER, MORE = 4, 10_000_000
"""Factor over the golden run, and cycles more than it; a run that exceeds both hangs."""
DRIVER_TIMEOUT = 10_000
"""driver.timeout of runs with faults, unless it is set."""


RETRIED = "submission refused, submitted again"
"""Text for a submission that the driver repeats because a fault answered ENQCMD_T as if the queue were full."""


class Outcome(StrEnum):
    MASKED = "masked"
    RECOVERED = "recovered"
    DETECTED = "detected"
    SILENT = "silent corruption"
    HANG = "hang"
    CRASH = "crash"


TEXT = {
    Outcome.MASKED: "the same results, and nothing noticed it",
    Outcome.RECOVERED: "noticed, and the same results",
    Outcome.DETECTED: "noticed, but other results",
    Outcome.SILENT: "other results, and nothing noticed it",
    Outcome.HANG: "the program does not end",
    Outcome.CRASH: "the program ends in a trap that it does not handle",
}


class Verdict(NamedTuple):
    """Outcome of a run with faults."""

    outcome: Outcome
    detected_by: Sequence[str]
    """time-out (or another detection of the driver), answer, ticket, trap, check."""
    cycles_lost: int | None
    """Cycles more than the golden run; None if the run did not end."""


DEFAULTS: Mapping[str, object] = {"driver.timeout": DRIVER_TIMEOUT}
"""Defaults of keys in runs with faults: a driver that recovers."""


def longest(reference: int) -> int:
    """Return the cycles after which a run with faults hangs; `reference`: cycles of the golden run."""
    return max(LONGER * reference, reference + MORE)


class Evidence(NamedTuple):
    """Observations of a run from which its outcome follows."""

    stop: Stop
    cycles: int
    lines: Sequence[str]
    """Output of the program."""
    errors: int
    """Number of entries in the device's error log."""
    record: Record


def evidence_of(run: Result[Any]) -> Evidence:
    """Return the evidence of a run with `Session.faults`."""
    core = run.on_core("faults")
    return Evidence(core.stop, run.cycles or 0, program_lines(core.uart, core.program), len(core.log), record_of(run))


def judge(reference: Evidence, run: Evidence) -> Verdict:
    """Compare a run with faults to the golden run."""
    expected_record, after = reference.record, run.record
    reason, code, expected = run.stop.reason, run.stop.code, reference.stop.code
    ways = []
    if after.recoveries > expected_record.recoveries:
        ways.append("time-out")
    if after.retried:
        ways.append("answer")
    if run.errors > reference.errors:
        ways.append("ticket")
    if after.exceptions > expected_record.exceptions:
        ways.append("trap")
    if code and code != expected:
        ways.append("check")
    if reason in (StopReason.LIMIT, StopReason.TIMEOUT, StopReason.DEADLOCK):
        return Verdict(Outcome.HANG, ways, None)
    if reason is StopReason.TRAP_LOOP or (code == UNHANDLED_TRAP != expected):
        return Verdict(Outcome.CRASH, ways, None)
    is_equal = (code, after.results_sha256, run.lines) == (expected, expected_record.results_sha256, reference.lines)
    outcome = {
        (True, True): Outcome.RECOVERED,
        (True, False): Outcome.MASKED,
        (False, True): Outcome.DETECTED,
        (False, False): Outcome.SILENT,
    }[is_equal, bool(ways)]
    return Verdict(outcome, ways, run.cycles - reference.cycles)


def record_of(run: Result[Any]) -> Record:
    """Return the fault record of a run with `Session.faults`."""
    record = run.on_core("faults").record
    if record is None:
        raise UsageError("no record of faults: the run was not asked to keep one")
    return record


NUMBER = r"(?>0x[0-9a-fA-F]+|\d+)"


def program_lines(uart: str, program: Program) -> list[str]:
    """Return the lines that a program has printed, without the driver's messages, and with # for each number that it
    declares as no result (`NPU_NOISE`)."""
    for text in requirements(program).noise:
        uart = re.sub(NUMBER.join(map(re.escape, text.split("#"))), text.replace("\\", r"\\"), uart)
    return [line for line in uart.splitlines() if not line.startswith("npu: ")]


def run_both(prepared: PreparedWorkload[D], config: Config, plain: Session, injected: Session) -> Result[D]:
    """Do the golden run, then run with the faults of the session `injected`; return that run with its outcome."""
    reference = prepared.run(config, plain)
    limit = longest(reference.cycles or 0) if config.run.max_cycles is None else config.run.max_cycles
    run = prepared.run(replace(config, run=replace(config.run, max_cycles=limit)), injected)
    return replace(run, faults=to_json(reference, run, judge(evidence_of(reference), evidence_of(run))))


def to_json(reference: Result[Any], run: Result[Any], verdict: Verdict) -> dict[str, Any]:
    record = record_of(run)
    return {
        "outcome": verdict.outcome.value,
        "meaning": TEXT[verdict.outcome],
        "detected_by": list(verdict.detected_by),
        "cycles_lost": verdict.cycles_lost,
        "cycles_without": reference.cycles,
        "injected": [
            {
                "name": entry.fault.name,
                "fault": str(entry.fault),
                "fired": [
                    {"cycle": firing.cycle, "ticket": firing.ticket, "what": firing.description}
                    for firing in entry.fired
                ],
            }
            for entry in record.injected
        ],
        "recoveries": record.recoveries + len(record.retried),
        "recovered": _recovery_notes(record),
    }


def _recovery_notes(record: Record) -> list[dict[str, Any]]:
    """Return the driver's recovery notes and the repeated submissions, in order of cycles."""
    noted = [(note.text, note.since, note.cycle, note.detail) for note in record.recovered]
    retries = [(RETRIED, since, cycle, 1) for since, cycle in record.retried[:RECOVERIES]]
    rows = sorted([*noted, *retries], key=lambda row: row[2])
    return [dict(zip(("text", "since", "cycle", "detail"), row, strict=True)) for row in rows]


def check_faults_acted(run: Result[Any]) -> None:
    """Raise BadInputError, with their names, for faults that did not act."""
    lines = []
    for number, (fault, fired) in enumerate(record_of(run).injected, 1):
        if not fired:
            name = f"{fault.name} ({fault})" if fault.name else str(fault)
            lines.append(f"fault {number} never acted: {name}; its trigger did not come, or nothing that it acts on")
    if lines:
        raise BadInputError("; ".join(lines))
