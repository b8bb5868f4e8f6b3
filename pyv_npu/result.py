"""Result of a workload: a typed object, from which JSON, summary and report follow.

docs/results.md describes the keys of the JSON objects. Times are core cycles.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from npu_device.abi import EXTENDED_SIZE
from npu_device.abi.errors import TicketError
from npu_device.trace.stream import EventStream
from pyv_ext.elf import Program
from pyv_ext.engines.core import Stop, StopReason
from pyv_npu.config import Config
from pyv_npu.errors import UsageError
from pyv_npu.observe.latency.table import Latency

if TYPE_CHECKING:
    from npu_device.issue.retirement import ErrorEntry
    from npu_device.trace.records import Batch
    from npu_device.trace.run_spans import Spans
    from pyv_npu.faults.record import Record
    from pyv_npu.observe.analysis.energy import EnergyEstimate
    from pyv_npu.observe.analysis.model import Analysis
    from pyv_npu.observe.analysis.traffic import RoleTraffic
    from pyv_npu.observe.analysis.work import CommandWork
    from pyv_npu.observe.sanitizer.findings import Findings
    from pyv_npu.sections import Section
    from toolchain.codegen import Command

Run = Mapping[str, Any]
Runs = Mapping[str, Run]
"""Run objects of the JSON schema, by the name of the run: its mode, or its level without a core."""

SCHEMA = 1
SHOWN_ERRORS = 10
"""Maximum number of error tickets in a result; `latency.n_errors` counts all."""
ENDED = Stop(StopReason.EXIT, 0)
"""Stop of a run without a core."""
CUT = frozenset((StopReason.INTERRUPTED, StopReason.TIMEOUT, StopReason.LIMIT, StopReason.ENGINE))
"""Reasons of a stop that the program did not cause."""
SAME_RESULTS = {True: "yes", False: "NO", None: "unknown"}
"""Text for whether both modes have the same results."""


class Detail:
    """Part of a result that depends on the workload type; empty for firmware."""

    difference: ClassVar[str] = ""
    """Message if the run differs from its reference."""

    def to_json(self, result: "Result[Any]") -> dict[str, Any]:
        """Return additional keys of the result's JSON object."""
        return {}

    def sections(self, result: "Result[Any]") -> "list[Section]":
        """Return additional sections of the result."""
        return []

    def files(self, result: "Result[Any]") -> Mapping[str, bytes]:
        """Return files of the report by name."""
        return {}

    def compared(self, loose: "Result[Any]", tight: "Result[Any]") -> "tuple[dict[str, Any], list[Section]]":
        """Return keys and sections of a comparison of both modes."""
        return {}, []


D = TypeVar("D", bound=Detail, covariant=True)
E = TypeVar("E", bound=Detail)


@dataclass(frozen=True)
class CoreRun:
    """Final state of the core and its firmware."""

    program: Program
    stop: Stop
    instret: int
    uart: str
    latency: Latency
    order: Mapping[int, tuple[int, int]]
    """Stream -> (number of complete commands, hash of the order of their completion)."""
    outputs_sha256: str
    """Hash of the NPU's results in memory."""
    log: "Sequence[ErrorEntry]" = ()
    """Error log of the device."""
    record: "Record | None" = None
    """Record of injected faults; None without `Session.faults`."""
    findings: "Findings | None" = None
    """Findings of the sanitizer; None without a sanitizer."""
    external: Mapping[str, Any] | None = None
    """Description and counters of the external engines at CA_FULL."""

    @property
    def ticket_errors(self) -> list[dict[str, Any]]:
        """First tickets that ended in an error, with the source line of their submission."""
        if not self.latency.any:
            return []
        reasons = {entry.ticket: entry.reason for entry in self.log}
        return [
            {
                "ticket": submission.ticket,
                "code": submission.error,
                "text": TicketError(submission.error).text,
                "reason": reasons.get(submission.ticket),
                "submitted_at": self.program.place(submission.call_site) or None,
            }
            for submission in self.latency.accepted.failed[:SHOWN_ERRORS]
        ]

    @property
    def error_log(self) -> list[dict[str, Any]]:
        """Latest error tickets, oldest first: `npu.error_log` of the JSON result."""
        return error_rows(self.log, self.latency, self.program)


def error_rows(log: "Sequence[ErrorEntry]", latency: Latency, program: Program) -> list[dict[str, Any]]:
    """Return the error tickets of a log, oldest first, with the source line of their submission."""
    if not log:
        return []
    from npu_device.abi.opcodes import Opcode  # most firmware does not need it
    from npu_device.issue.retirement import UNKNOWN

    sites = {submission.ticket: submission.call_site for submission in latency.accepted.failed}
    opcodes = {int(opcode): opcode.name for opcode in Opcode}
    return [
        {
            "ticket": entry.ticket,
            "opcode": opcodes.get(entry.opcode, None if entry.opcode == UNKNOWN else entry.opcode),
            "command": entry.number - 1,
            "code": int(entry.code),
            "name": entry.code.name,
            "reason": entry.reason,
            "cycle": entry.cycle,
            "pc": sites.get(entry.ticket),
            "submitted_at": (program.place(sites[entry.ticket]) or None) if entry.ticket in sites else None,
        }
        for entry in log
    ]


@dataclass(frozen=True)
class Result(Generic[D]):
    """Result of a run."""

    program: str
    config: Config
    """Configuration of the run, with the DRAM that the program requires."""
    detail: D
    cycles: int | None = None
    """Core cycles; None: the level has no time."""
    counters: Mapping[str, Any] | None = None
    """Counters of the NPU, if it was simulated."""
    events: EventStream | None = None
    """Events, with their records if these are kept; None: the level has no events."""
    core: CoreRun | None = None
    host: Mapping[str, float | None] = field(default_factory=dict)
    commands: "Sequence[Command]" = ()
    """Commands of a model in the order of submission, if each is submitted once."""
    layers: Sequence[str] = ()
    """Layer of each submission, if `commands` does not have it."""
    memory: Mapping[int, bytes] = field(default_factory=dict)
    """Address -> bytes that commands read when they start."""
    faults: Mapping[str, Any] | None = None
    """Outcome of injected faults, the JSON object of `pyv_npu.studies.fault_outcomes`."""
    moved: "RoleTraffic | None" = None
    """Traffic counted during the run; None: counted from recorded events."""

    def __repr__(self) -> str:
        time = "without time" if self.cycles is None else f"{self.cycles:,} cycles"
        return f"<Result: {self.program}, {self.name}, {time}, {self.stop.text}>"

    @property
    def stop(self) -> Stop:
        return ENDED if self.core is None else self.core.stop

    @property
    def exit_code(self) -> int | None:
        """Exit code of the guest; None if it did not exit."""
        return self.stop.code

    @property
    def latency(self) -> Latency:
        """Submissions of the run. UsageError without a core."""
        return self.on_core("latency").latency

    @property
    def correct(self) -> bool:
        """True if all compared values agree with their reference."""
        return agrees(self.json)

    @property
    def findings_fail(self) -> bool:
        """True if findings of a sanitizer make the run a failure."""
        return "error" in self.config.run.sanitize and self.core is not None and bool(self.core.findings)

    @property
    def name(self) -> str:
        """Mode of the run, or its level without a core."""
        return self.config.npu.mode if self.core is not None else self.config.run.sim_level

    @property
    def layer_names(self) -> Sequence[str]:
        """Layer of each submission; empty for firmware."""
        return self.layers or [command.layer for command in self.commands]

    @property
    def batches(self) -> "Iterator[Batch]":
        """Events of the run. UsageError for a level without events."""
        if self.events is None:
            raise UsageError(f"no events: {self.config.run.sim_level} has no time; run at IA_TIMING or CA_HYBRID")
        return self.events.batches()

    @cached_property
    def spans(self) -> "Spans":
        """Spans of the run. UsageError for a level without time."""
        from npu_device.trace.run_spans import Spans  # needed for reports

        return Spans(self.batches, self.cycles)

    @cached_property
    def traffic(self) -> "RoleTraffic | None":
        """Traffic of the DMA by role; None for a level without time."""
        from pyv_npu.observe.analysis.traffic import traffic_of

        return self.moved if self.moved is not None or self.core is None else traffic_of(self.batches)

    @property
    def block_bytes(self) -> int:
        """Bytes of the extended blocks fetched in a run on the core, if each command is submitted once."""
        if self.core is None or self.counters is None:
            return 0
        fetched = self.commands[: self.counters["accepted"]]
        return EXTENDED_SIZE * sum(command.block is not None for command in fetched)

    @cached_property
    def works(self) -> "Sequence[CommandWork]":
        """Work of each command of a model, in the order of submission; empty if unknown."""
        if not self.commands:
            return ()
        from npu_device.levels.runner import Listed  # firmware needs neither it nor NumPy
        from pyv_npu.observe.analysis.work import works

        listed = [Listed(command.descriptor, 0, command.block) for command in self.commands]
        return works(listed, self.config.npu, self.memory)

    @cached_property
    def energy(self) -> "EnergyEstimate | None":
        """Estimate of energy and area; None if the commands are unknown, or for a level without time."""
        if not self.works or not self.cycles:
            return None
        from pyv_npu.observe.analysis.energy import estimate

        core = self.core is not None and self.traffic is not None
        fetched = self.traffic.to_json(self.block_bytes)["descriptors"] if core and self.traffic is not None else 0
        instructions = 0 if self.core is None else self.core.instret
        return estimate(
            self.config, self.layer_names, self.works, self.cycles, self.counters, instructions, fetched
        )  # fmt: skip

    @cached_property
    def analysis(self) -> "Analysis | None":
        """Analysis of a model's time by layer; None if the commands are unknown."""
        from pyv_npu.observe.analysis.model import analyse

        if not self.commands or self.cycles is None:
            return None
        return analyse(self.commands, self.works, self.spans, self.config.npu, self.memory)

    @cached_property
    def without_firmware(self) -> int | None:
        """Core cycles of a model's commands if the NPU has all of them from the start, as with `--timing-only`; None if
        they are unknown, without a core, and for a run that was cut."""
        if not self.commands or self.core is None or self.stop.reason in CUT:
            return None
        from npu_device.levels.runner import Listed, Runner, list_config

        runner = Runner(list_config(self.config.npu, len(self.commands)), values=False)
        for address, data in self.memory.items():
            runner.memory.write_bytes(address, data)
        return runner.run([Listed(command.descriptor, 0, command.block) for command in self.commands]).cycles

    @cached_property
    def json(self) -> dict[str, Any]:
        """JSON object of `pyv-npu run --json`."""
        return self.to_json()

    def to_json(self) -> dict[str, Any]:
        """Return the run object of docs/results.md."""
        config, core = self.config, self.core
        return {
            "schema": SCHEMA,
            "program": self.program,
            "core": None if core is None else config.core.engine,
            "mode": None if core is None else config.npu.mode,
            "sim_level": config.run.sim_level,
            "preset": config.preset,
            "exit_code": self.exit_code,
            "stop_reason": self.stop.reason.value,
            "stop_text": self.stop.text,
            "cycles": self.cycles,
            "cycles_parts": None if core is None or self.cycles is None else core.latency.parts(self.cycles),
            "instret": None if core is None else core.instret,
            "uart": None if core is None else core.uart,
            "latency": None if core is None else core.latency.to_json(),
            "ticket_errors": [] if core is None else core.ticket_errors,
            "npu": None
            if self.counters is None
            else {
                **self.counters,
                **({} if core is None else {"error_log": core.error_log}),
            },
            "traffic": None if self.traffic is None else self.traffic.to_json(self.block_bytes),
            **({} if self.energy is None else {"energy": self.energy.to_json()}),
            "outputs_sha256": None if core is None else core.outputs_sha256,
            "events_sha256": None if self.events is None else self.events.hexdigest(),
            **({} if self.faults is None else {"faults": self.faults}),
            **({} if core is None or core.findings is None else {"sanitizer": core.findings.to_json()}),
            **({} if core is None or core.external is None else {"external": dict(core.external)}),
            **self.detail.to_json(self),
            **({"host": dict(self.host)} if self.host else {}),
        }

    def extended(
        self, detail: E, commands: "Sequence[Command]" = (), memory: Mapping[int, bytes] | None = None
    ) -> "Result[E]":
        """Return the run with the detail and commands of the workload that contains it."""
        return replace(cast("Result[Any]", self), detail=detail, commands=commands, memory=memory or {})

    def on_core(self, figure: str) -> CoreRun:
        """Return the core's part. UsageError, which names `figure`, in a run without a core."""
        if self.core is None:
            raise UsageError(f"no {figure}: nothing is submitted at {self.config.run.sim_level}; run at CA_HYBRID")
        return self.core


def stage_of(run: Run, stage: str) -> Mapping[str, Any]:
    """Return order statistics of a stage of `STAGES` in a run object; empty without samples."""
    return (run["latency"] or {"stages": {}})["stages"].get(stage) or {}


def headline(runs: Runs) -> str:
    """Return the stage that describes runs: t_submit, or t_submit_prebuilt if no run has samples of t_submit."""
    has_submit = any(stage_of(run, "t_submit") for run in runs.values())
    return "t_submit" if has_submit else "t_submit_prebuilt"


def checks(run: Run) -> Iterator[Mapping[str, Any]]:
    """Yield all checks against the ONNX reference in a run object: outputs of a model or steps of a decoder, and
    codes. `ok` None: only reported."""
    model, generated = run.get("model", {}), run.get("generate", {})
    yield from model.get("checks", {}).values()
    yield from generated.get("steps", ())
    yield from (part["codes"] for part in (model, generated) if part.get("codes"))


def submission_of(run: Run) -> Mapping[str, Any]:
    """Return the savings of generated submission code (docs/mlir.md) in a run object; empty if firmware submits."""
    submission: Mapping[str, Any] = (
        run.get("model", {}).get("submission") or run.get("generate", {}).get("submission") or {}
    )
    return submission


def agrees(run: Run) -> bool:
    """Check whether all comparisons of a run object agree."""
    return all(check["ok"] is not False for check in checks(run))


class Stopwatch:
    """Host time since construction."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def figures(self, instret: int | None = None) -> dict[str, float | None]:
        """Return the object `host`: seconds, and million instructions per CPU second."""
        wall, cpu = time.perf_counter() - self._wall, round(time.process_time() - self._cpu, 3)
        mips = round(instret / cpu / 1e6, 3) if instret is not None and cpu else None
        return {"wall_s": round(wall, 3), "cpu_s": cpu, "mips": mips}


RATIOS = (("t_submit", "p50"), ("t_submit", "p99"), ("core_busy", "p50"), ("t_submit_prebuilt", "p50"))
"""Stages and figures of `ratio`."""


@dataclass(frozen=True)
class Comparison:
    """Results of a workload on the core, loose and tight."""

    loose: Result[Any]
    tight: Result[Any]
    sweeps: Sequence[Mapping[str, Any]] = ()
    """Results of `pyv_npu.studies.break_even.run_sweep`."""
    phases: Mapping[str, Any] | None = None
    """Result of `pyv_npu.studies.phases.run_phases`."""
    placement: Mapping[str, Any] | None = None
    """Result of `pyv_npu.studies.placement.run_placement`."""

    def __repr__(self) -> str:
        return f"<Comparison: {self.loose!r}, {self.tight!r}, same results {SAME_RESULTS[self.same_results]}>"

    @property
    def runs(self) -> dict[str, Result[Any]]:
        return {"loose": self.loose, "tight": self.tight}

    @property
    def same_results(self) -> bool | None:
        """True if exit codes, the NPU's outputs and the order of completion agree; None if a run was cut."""
        if any(run.stop.reason in CUT for run in self.runs.values()):
            return None
        loose, tight = (run.on_core("comparison") for run in self.runs.values())
        return (loose.stop.code, loose.outputs_sha256, loose.order) == (
            tight.stop.code, tight.outputs_sha256, tight.order,
        )  # fmt: skip

    @cached_property
    def json(self) -> dict[str, Any]:
        """JSON object of `pyv-npu compare --json`."""
        return {
            "schema": SCHEMA,
            **{mode: run.json for mode, run in self.runs.items()},
            "same_results": self.same_results,
            "ratio": self.ratio,
            **({"phases": self.phases} if self.phases else {}),
            **({"placement": self.placement} if self.placement else {}),
            **({"sweeps": list(self.sweeps)} if self.sweeps else {}),
            **self.loose.detail.compared(self.loose, self.tight)[0],
        }

    @property
    def ratio(self) -> dict[str, float | None]:
        """Loose divided by tight: above 1, loose takes longer. `cycles` is the ratio of the whole runs."""
        stages = {f"{stage}_{figure}": self._ratio(stage, figure) for stage, figure in RATIOS}
        return {"cycles": _over(self.loose.cycles, self.tight.cycles), **stages}

    def _ratio(self, stage: str, figure: str) -> float | None:
        summaries = (run.latency.stage(stage).summary() for run in self.runs.values())
        return _over(*(None if summary is None else summary[figure] for summary in summaries))


def _over(loose: float | None, tight: float | None) -> float | None:
    """Return loose divided by tight, None if a value is missing or tight is 0."""
    return None if loose is None or not tight else round(loose / tight, 3)
